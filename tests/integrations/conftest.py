"""A service for tests without a server; and what the Python here cannot have is left out."""

import sys
from collections.abc import Iterator

import pytest

from tests.integrations.counting import Counting, build

collect_ignore = []
if sys.version_info < (3, 12):  # for which there is no Django 6, whose tasks these are
    collect_ignore.append("test_django_tasks.py")


@pytest.fixture
def counting() -> Iterator[Counting]:
    """A service."""
    found = build()
    yield found
    found.go.set()
    found.service.close()
