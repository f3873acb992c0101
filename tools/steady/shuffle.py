"""A plug-in of pytest that runs modules, and the tests in each, in an order of chance."""

from __future__ import annotations

import os
import random
from itertools import groupby

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the tests, by a seed that all workers of a run share."""
    chance = random.Random(os.environ["STEADY_SEED"])
    modules = [list(tests) for _, tests in groupby(items, key=lambda test: test.path)]
    chance.shuffle(modules)
    for tests in modules:
        chance.shuffle(tests)
    items[:] = [test for tests in modules for test in tests]
