"""The verbs of a store that fail where its database does."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from lro.adapters import OutboxStore, StatisticsStore, Store

_WITHOUT_DATABASE = {"now", "secret", "notify_others", "index", "close"}
"""What asks no database after the store has been made, or has tests of its own."""


def check_complete(verbs: Iterable[str]) -> None:
    """Check that a table of verbs has each one: what a fault does to a new one is tested, too."""
    ports = vars(Store) | vars(StatisticsStore) | vars(OutboxStore)
    functions = {name for name, found in ports.items() if inspect.isfunction(found)}
    public = {name for name in functions if not name.startswith("_")}
    assert public - set(verbs) == _WITHOUT_DATABASE
