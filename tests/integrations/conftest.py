"""Fixtures of services without a server, and the test files that this Python cannot run."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integrations.counting import Counting, build

collect_ignore = []
if sys.version_info < (3, 12):  # these tests need Django 6, which needs Python 3.12
    collect_ignore.append("test_django_tasks.py")


@pytest.fixture
def make_counting() -> Iterator[Callable[..., Counting]]:
    """A function that calls ``build``; the services that it builds are closed after the test."""
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
    """A service in which callers see only their own operations."""
    return make_counting()


@pytest.fixture
def shared(make_counting: Callable[..., Counting]) -> Counting:
    """A service in which every caller sees and may change every operation."""
    return make_counting(owner_only=False, authorize=None)
