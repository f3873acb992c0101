"""A store that reaches trap points before, within and after each write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, cast

from lro.adapters import Change, Claim, Claimed, Done, Inserted, Record, RequestKey, Store, Worker
from tests.chaos.traps import Moment, Point, point_of, step_on, waits_for, writing


class TrappedStore:
    """A wrapper of a store that checks for traps around its writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owners: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)  # these calls reach no trap

    def insert(self, record: Record, *arguments: Any, **options: Any) -> Any:
        with self._inserting(record):
            return self._store.insert(record, *arguments, **options)

    def update(self, name: str, change: Change) -> Record | None:
        with self._updating(name, change) as watched:
            return self._store.update(name, watched)

    def insert_later(
        self, record: Record, request: Any, key: RequestKey | None, done: Done[Inserted]
    ) -> None:
        call = self._store.insert_later
        _later(self._inserting(record), lambda _, over: call(record, request, key, over), done)

    def update_later(self, name: str, change: Change, done: Done[Record | None]) -> None:
        call = self._store.update_later
        block = self._updating(name, change)
        _later(block, lambda watched, over: call(name, watched, over), done)

    def checkpoint(self, *facts: Any) -> None:
        with self._keeping():
            self._store.checkpoint(*facts)

    def checkpoint_later(self, *facts: Any) -> None:
        *kept, done = facts
        call = self._store.checkpoint_later
        _later(self._keeping(), lambda _, over: call(*kept, over), done)

    def claim(self, claim: Claim) -> Claimed:
        with writing():
            claimed = self._store.claim(claim)
            if claim.owner and claimed.works:  # otherwise nothing was claimed
                self._owners.add(claim.owner)
                for _ in claimed.works:
                    step_on(Point.CLAIM, Moment.AFTER)
        return claimed

    def renew(self, worker: Worker) -> Any:
        holds = worker.owner in self._owners  # otherwise the worker only registers itself
        step_on(Point.RENEW if holds else None, Moment.BEFORE)
        with writing():
            asked = self._store.renew(worker)
            step_on(Point.RENEW if holds else None, Moment.AFTER)
        return asked

    def lose(self, owner: str, alive_until: datetime | None) -> bool:
        step_on(Point.LOSE, Moment.BEFORE)
        with writing():
            lost = self._store.lose(owner, alive_until)
            if lost:
                step_on(Point.LOSE, Moment.AFTER)
        return lost

    def expire(self, limit: int) -> Any:
        step_on(Point.EXPIRE, Moment.BEFORE)
        with writing():
            removed = self._store.expire(limit)
            step_on(Point.EXPIRE, Moment.AFTER)
        return removed

    def claim_due(self, until: datetime, limit: int) -> Any:
        step_on(Point.CLAIM_DUE, Moment.BEFORE)
        with writing():
            claimed = self._store.claim_due(until, limit)  # type: ignore[attr-defined]  # if it can
            if claimed:
                step_on(Point.CLAIM_DUE, Moment.AFTER)
        return claimed

    @contextlib.contextmanager
    def _inserting(self, record: Record) -> Iterator[None]:
        self._owners.add(record.owner)
        step_on(Point.INSERT, Moment.BEFORE)
        with writing():
            yield
            step_on(Point.INSERT, Moment.AFTER)
            if record.attempt:  # the record is stored as claimed
                step_on(Point.CLAIM, Moment.AFTER)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        step_on(Point.CHECKPOINT, Moment.BEFORE)
        with writing():
            yield
            step_on(Point.CHECKPOINT, Moment.AFTER)

    @contextlib.contextmanager
    def _updating(self, name: str, change: Change) -> Iterator[Change]:
        self._foresee(name, change)
        done: list[Point | None] = [None]

        def watched(record: Record) -> Record | None:
            after = change(record)
            done[0] = point_of(record, after, self._owners)
            step_on(done[0], Moment.WITHIN)
            return after

        with writing():
            yield watched
            step_on(done[0], Moment.AFTER)

    def _foresee(self, name: str, change: Change) -> None:
        # A change has no side effects, so it can be tried on the current record.
        if not any(waits_for(point, Moment.BEFORE) for point in Point):
            return
        try:
            record = self._store.get(name)
            point = point_of(record, change(record), self._owners)
        except Exception:  # the store's own call raises the error too
            return
        step_on(point, Moment.BEFORE)


def _later(
    block: contextlib.AbstractContextManager[Any], call: Callable[[Any, Any], None], done: Done[Any]
) -> None:
    """Enter a block, make a call, and leave the block in the thread that gets the result."""
    entered = block.__enter__()

    def over(found: Any, error: BaseException | None) -> None:
        block.__exit__(type(error) if error else None, error, None)
        done(found, error)

    try:
        call(entered, over)
    except BaseException as error:
        block.__exit__(type(error), error, None)
        raise


def trapped(store: Store) -> Store:
    """Wrap a store with traps."""
    return cast(Store, TrappedStore(store))
