"""A service for tests without a server; and what the Python here cannot have is left out."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integrations.counting import Counting, build

collect_ignore = []
if sys.version_info < (3, 12):  # for which there is no Django 6, whose tasks these are
    collect_ignore.append("test_django_tasks.py")


@pytest.fixture
def make_counting() -> Iterator[Callable[..., Counting]]:
    """Makes services with these options of ``build``, which are closed after the test."""
    made: list[Counting] = []

    def make(*store: Any, **options: Any) -> Counting:
        made.append(build(*store, **options))
        return made[-1]

    yield make
    for one in made:
        one.go.set()
        one.service.close()


@pytest.fixture
def counting(make_counting: Callable[..., Counting]) -> Counting:
    """A service."""
    return make_counting()


@pytest.fixture
def shared(make_counting: Callable[..., Counting]) -> Counting:
    """A service whose callers may all do everything."""
    return make_counting(owner_only=False, authorize=None)
