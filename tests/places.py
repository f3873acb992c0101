"""Databases for operations, described so that any process can open them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

import attrs

from lro._engine.change_listener import LOOK_AGAIN_SECONDS
from lro.adapters import ChangeSubscription, Store
from tests.waiting import PATIENCE


@attrs.frozen
class Place:
    """The location of a store that any process can open: its kind and path, or URL and schema."""

    kind: str
    where: str = ""
    schema: str = ""

    def open(self, clock: Callable[[], datetime] | None = None) -> Store:
        """Open the store in this process."""
        if self.kind == "memory":
            from lro.stores.memory import MemoryStore

            return MemoryStore(clock)
        if self.kind == "sqlite":
            from lro.stores.sqlite import SQLiteStore

            return SQLiteStore(self.where, clock=clock, busy_seconds=PATIENCE)
        from lro.stores.postgres import PostgresStore
        from tests.services.postgres import UNHURRIED

        return PostgresStore(self.where, schema=self.schema, clock=clock, **UNHURRIED)


class Muffled:
    """A store that drops all notifications, sent and received, while ``deaf`` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.deaf = False
        self.plugged = threading.Event()
        """An event that is set when a subscription waits while the store is deaf."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def notify_others(self, name: str) -> None:
        """Notify other processes, unless the store is deaf."""
        if not self.deaf:
            self._store.notify_others(name)

    def listen(self) -> ChangeSubscription:
        """Return a subscription that receives nothing while the store is deaf."""
        return _Plugged(self, self._store.listen())


class _Plugged:
    def __init__(self, store: Muffled, subscription: ChangeSubscription) -> None:
        self._store = store
        self._subscription = subscription
        self._closed = threading.Event()

    def next_changes(self, seconds: float) -> Collection[str] | None:
        if not self._store.deaf:
            # the wait is short, so that a subscription of a store that becomes deaf stops soon
            names = self._subscription.next_changes(min(seconds, LOOK_AGAIN_SECONDS / 10))
            return () if self._store.deaf else names
        self._store.plugged.set()
        self._closed.wait(seconds)
        return ()

    def close(self) -> None:
        self._closed.set()
        self._subscription.close()
