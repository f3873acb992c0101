"""The life of an operation: one table, and the pure changes that move a record through it.

A change is a function from the stored record to the one that replaces it (None: remove it). It has
no effects of its own, so a store may run it more than once. A change that comes too late raises
:class:`NotApplied`; no other code compares states to decide (spec §2.2, §2.3, §2.8, §2.9).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from lro._base.any import Any
from lro._base.errors import (
    CancellationNotRequested,
    InvalidArgument,
    LeaseLost,
    NotApplied,
    OperationNotFound,
)
from lro._base.status import Code, Status
from lro._model.record import GIVEN_UP, Record, State


class Event(enum.Enum):
    """What can happen to an operation."""

    __hash__ = object.__hash__  # a member is one object; Enum's own hash is a call in Python

    CLAIM = "claim"
    RELEASE = "release"
    REPORT = "report"
    REQUEST_CANCEL = "request cancel of"
    COMPLETE = "complete"
    FAIL = "fail"
    ACKNOWLEDGE_CANCEL = "acknowledge cancel of"
    DELETE = "delete"
    HIDE = "hide"
    EXPIRE = "expire"


_ENDED: Final = {Event.DELETE: State.GONE, Event.EXPIRE: State.GONE}

TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.IN_PROGRESS: {
        Event.CLAIM: State.IN_PROGRESS,
        Event.RELEASE: State.IN_PROGRESS,
        Event.REPORT: State.IN_PROGRESS,
        Event.REQUEST_CANCEL: State.IN_PROGRESS,
        Event.COMPLETE: State.SUCCEEDED,
        Event.FAIL: State.FAILED,
        Event.ACKNOWLEDGE_CANCEL: State.CANCELLED,
        Event.DELETE: State.GONE,
        Event.HIDE: State.HIDDEN,
    },
    State.SUCCEEDED: {Event.REQUEST_CANCEL: State.SUCCEEDED, **_ENDED},
    State.FAILED: {Event.REQUEST_CANCEL: State.FAILED, **_ENDED},
    State.CANCELLED: {Event.REQUEST_CANCEL: State.CANCELLED, **_ENDED},
    State.HIDDEN: {
        Event.CLAIM: State.HIDDEN,
        Event.RELEASE: State.HIDDEN,
        Event.REPORT: State.HIDDEN,
        Event.COMPLETE: State.GONE,
        Event.FAIL: State.GONE,
        Event.ACKNOWLEDGE_CANCEL: State.GONE,
    },
    State.GONE: {},
}

_CALLER_EVENTS: Final = frozenset({Event.REQUEST_CANCEL, Event.DELETE, Event.HIDE})


Change = Callable[[Record], Record | None]
Stamp = Callable[[Record], Record]
"""Gives a changed record what is derived from the rest of it."""


def step(record: Record, event: Event, now: datetime) -> State:
    """The state that an event leads to.

    Raises:
        OperationNotFound: A caller asked, but the record is deleted or expired.
        NotApplied: The event comes too late.
    """
    if event in _CALLER_EVENTS and not record.visible(now):
        raise OperationNotFound(record.name)
    try:
        return TRANSITIONS[record.state][event]
    except KeyError:
        raise NotApplied(record.name, event.value, record.state.value) from None


def take_over(owner: str, until: datetime, now: datetime) -> Change:
    """Hold work whose lease ran out; if it was not handed back, a worker is counted as lost.

    Without an owner any worker may claim the work, by preference before ``until``.

    Raises (when applied):
        LeaseLost: A worker holds a lease that has not run out.
    """

    def change(record: Record) -> Record:
        state = step(record, Event.CLAIM, now)
        _ran_out(record, now)
        lost = record.lost_attempts + (record.owner != "")
        return record.next_version(state=state, owner=owner, lease_until=until, lost_attempts=lost)

    return change


def abandon(error: Status, now: datetime, keep_for: timedelta) -> Change:
    """End work whose worker was lost.

    Raises (when applied):
        LeaseLost: A worker holds a lease that has not run out.
    """
    fail = end(error, now=now, keep_for=keep_for)

    def change(record: Record) -> Record | None:
        _ran_out(record, now)
        return fail(record)

    return change


def withdraw(error: Status, now: datetime, keep_for: timedelta) -> Change:
    """End work that is asked to stop and that no worker holds.

    Raises (when applied):
        LeaseLost: A worker holds it, or it is done outside.
    """
    cancel = end(error, now=now, keep_for=keep_for, acknowledge=True)

    def change(record: Record) -> Record | None:
        if not record.unclaimed:
            raise LeaseLost(record.name, record.attempt, record.attempt)
        return cancel(record)

    return change


def claim(owner: str, until: datetime, now: datetime) -> Change:
    """Begin a new attempt of work that has this owner or none.

    Raises (when applied):
        LeaseLost: It has another owner. Even if that one's lease is over: what becomes of its work
            is for :func:`take_over` and :func:`abandon` to say.
    """

    def change(record: Record) -> Record:
        state = step(record, Event.CLAIM, now)
        if record.owner not in ("", owner):
            raise LeaseLost(record.name, record.attempt, record.attempt)
        return record.next_version(
            state=state,
            owner=owner,
            lease_until=until,
            attempt=record.attempt + 1,
            start_time=record.start_time or now,
            update_time=now,
        )

    return change


def release(attempt: int, now: datetime) -> Change:
    """Hand the work back: any worker may claim it at once, and no attempt counts as lost."""

    def change(record: Record) -> Record:
        state = step(record, Event.RELEASE, now)
        _fence(record, attempt)
        return record.next_version(state=state, owner="", lease_until=now, update_time=now)

    return change


def lose(attempt: int, now: datetime) -> Change:
    """Give up work whose worker has died, for others to take over at once as lost."""

    def change(record: Record) -> Record:
        state = step(record, Event.RELEASE, now)
        _fence(record, attempt)
        # With another owner, so that a renewal of the owner's other work leaves this lease alone.
        owner = record.owner + GIVEN_UP
        return record.next_version(state=state, owner=owner, lease_until=now, update_time=now)

    return change


def report(
    metadata: Any,
    attempt: int | None,
    now: datetime,
    owner: str = "",
    lease: timedelta | None = None,
) -> Change:
    """Replace the metadata as a whole (spec §2.10).

    The report of an ``owner`` prolongs its lease, if less than half of it is left: as long as
    renewals come in time it leaves the lease alone, which is in an index.
    """

    def change(record: Record) -> Record:
        state = step(record, Event.REPORT, now)
        _fence(record, attempt)
        until = record.lease_until
        if lease is not None and until is not None and record.owner == owner:
            until = now + lease if until - now < lease / 2 else until
        return record.next_version(
            state=state, metadata=metadata, update_time=now, lease_until=until
        )

    return change


def request_cancel(now: datetime) -> Change:
    """Mark that a caller wants the work to stop; no effect once it is done (spec §2.6)."""

    def change(record: Record) -> Record:
        state = step(record, Event.REQUEST_CANCEL, now)
        if record.done or record.cancel_requested:
            return record
        return record.next_version(state=state, cancel_requested=True, update_time=now)

    return change


def end(
    result: Any | Status | None,
    *,
    now: datetime,
    keep_for: timedelta,
    attempt: int | None = None,
    metadata: Any | None = None,
    acknowledge: bool = False,
) -> Change:
    """End the operation: done and the result in one step (spec §2.2).

    An Any is the response of a success, None a success without a value, a Status an error.
    ``acknowledge`` says that the error answers a request to cancel. ``metadata`` is the last one.

    Raises:
        InvalidArgument: The error's code is not from 1 to 16 (spec §2.3).

    Raises (when applied):
        CancellationNotRequested: No caller asked for the cancellation that is acknowledged.
    """
    event = Event.COMPLETE
    if isinstance(result, Status):
        if not 1 <= result.code <= 16:
            raise InvalidArgument("error.code", f"must be from 1 to 16, got {result.code}")
        event = Event.ACKNOWLEDGE_CANCEL if acknowledge else Event.FAIL

    def change(record: Record) -> Record | None:
        state = step(record, event, now)
        _fence(record, attempt)
        if acknowledge and not record.cancel_requested:
            raise CancellationNotRequested(record.name)
        if state is State.GONE:
            return None
        if isinstance(result, Status) and result.code == Code.CANCELLED:
            state = State.CANCELLED
        ended = max(now, record.create_time)  # the clock may have been set back
        return record.next_version(
            state=state,
            result=result,
            metadata=metadata or record.metadata,
            owner="",
            lease_until=None,
            update_time=now,
            end_time=ended,
            expire_time=ended + keep_for,
        )

    return change


def delete(now: datetime) -> Change:
    """Remove the record; while its work goes on it only disappears from sight (spec §2.7)."""

    def change(record: Record) -> Record | None:
        busy = not record.done and (record.target or record.lease_until is not None)
        state = step(record, Event.HIDE if busy else Event.DELETE, now)
        return None if state is State.GONE else record.next_version(state=state, update_time=now)

    return change


def if_unchanged_since(seen: Record, change: Change) -> Change:
    """The same change, for a record that is held as it was when the change was decided on.

    Raises (when applied):
        LeaseLost: It has been claimed, handed back or taken over since.
    """

    def guarded(record: Record) -> Record | None:
        if (record.owner, record.attempt) != (seen.owner, seen.attempt):
            raise LeaseLost(record.name, seen.attempt, record.attempt)
        return change(record)

    return guarded


def with_derived(change: Change, stamp: Stamp) -> Change:
    """The same change, with what is derived brought up to date in the same step."""

    def both(record: Record) -> Record | None:
        changed = change(record)
        if changed is None or changed is record:
            return changed
        return stamp(changed)

    return both


def _fence(record: Record, attempt: int | None) -> None:
    if attempt is not None and attempt != record.attempt:
        raise LeaseLost(record.name, attempt, record.attempt)


def _ran_out(record: Record, now: datetime) -> None:
    if record.lease_until is None or now < record.lease_until:
        raise LeaseLost(record.name, record.attempt, record.attempt)
