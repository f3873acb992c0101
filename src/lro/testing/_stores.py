"""The checks of stores: each tests one promise of :class:`lro.adapters.Store`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from lro._base.status import AnyMessage
from lro._engine.store_port import Inserted, RequestKey, Store
from lro._model.operation import Change, Record
from lro.testing import _claiming, _counting, _finding, _keeping, _notifying, _scheduling, _working
from lro.testing._samples import ManualClock, StoreCheck, made_later

MakeStore = Callable[[ManualClock], Store]
"""A function that makes an empty store, which uses the given clock."""

STORE_CHECKS: Final[tuple[StoreCheck, ...]] = tuple(
    check
    for part in (_keeping, _finding, _claiming, _working, _counting, _notifying, _scheduling)
    for check in vars(part).values()
    if inspect.isfunction(check)
    and check.__module__ == part.__name__
    and not check.__name__.startswith("_")
)
"""All checks; the name of each function is its promise."""


def check_store(make_store: MakeStore) -> None:
    """Run every check, each on a new store.

    Raises:
        AssertionError: The store breaks its contract; the text says where.
    """
    for check in STORE_CHECKS:
        run_store_check(check, make_store)


def run_store_check(check: StoreCheck, make_store: MakeStore) -> None:
    """Run one check on a new store, and close the store.

    Then run the check on another new store whose inserts and updates are queued by
    ``insert_later`` and ``update_later``: the same promises hold for queued writes.

    Raises:
        AssertionError: The store breaks its contract; the text says where.
    """
    for later in (False, True):
        clock = ManualClock()
        store = make_store(clock)
        checked: Any = _WritesLater(store) if later else store
        try:
            check(checked, clock)
        except Exception as exc:
            how = " with queued writes" if later else ""
            text = f"{check.__name__}{how}: {type(exc).__name__}: {exc}"
            raise AssertionError(text) from exc
        finally:
            store.close()


class _WritesLater:
    """A store that queues each insert and update, and waits until it is done."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def insert(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        if check_only:
            return self._store.insert(record, request, key, check_only=True)
        hand_in = functools.partial(self._store.insert_later, record, request, key)
        inserted: Inserted = made_later(hand_in)
        return inserted

    def checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> None:
        made_later(functools.partial(self._store.checkpoint_later, name, attempt, key, value))

    def update(self, name: str, change: Change) -> Record | None:
        hand_in = functools.partial(self._store.update_later, name, change)
        changed: Record | None = made_later(hand_in)
        return changed
