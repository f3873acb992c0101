"""Writes to the store for attempts that are stopped, lost or retried, or come too late to begin."""

from __future__ import annotations

import contextlib
import logging
from datetime import datetime, timedelta
from typing import Final

from lro._base.errors import Cancelled, LroError, StatusError
from lro._base.status import Code
from lro._engine.events import EventDispatch, WorkLost, about
from lro._engine.flow import Flow, read
from lro._engine.method_spec import FinalMetadataFailed, MethodSpec
from lro._engine.runtime import Runtime
from lro._engine.store_port import Store
from lro._model.description import FailedAttempt
from lro._model.operation import (
    Change,
    Record,
    State,
    due_again,
    end,
    if_not_cancelled,
    if_unchanged_since,
    lose,
    release,
    retry,
    with_failure,
    with_lost_attempts,
)

log = logging.getLogger("lro")

_FIRST_PAUSE: Final = timedelta(seconds=2)
"""Pause after the second loss of a worker; it doubles with each further loss."""


def store_stop(
    runtime: Runtime, spec: MethodSpec, record: Record, *, begun: bool
) -> Flow[Record | None]:
    """Store that the worker of this attempt stops: the work waits again, or the operation ends.

    ``begun`` is true if the function may have been called.

    Returns:
        The record after the write; None if the record is gone.

    Raises:
        LroError: The store or the change refuses the write.
    """
    attempt, now = record.attempt, runtime.store.now()
    error: StatusError | None = None
    if begun and spec.options.at_most_once:
        text = f"the worker of the operation was stopped in attempt {attempt}"
        error = StatusError(Code.ABORTED, text, why="WORKER_LOST")
    elif begun and attempt >= spec.options.max_attempts:
        error = _too_often(attempt)
    return (yield from _wait_again_or_end(runtime, spec, record, release(attempt, now), error))


def store_loss(runtime: Runtime, spec: MethodSpec, record: Record) -> Flow[Record | None]:
    """Store that the worker of an operation was lost: the work waits again, or the operation ends.

    Returns:
        The record after the write; None if the record is gone.

    Raises:
        LroError: The store or the change refuses the write.
    """
    attempt, lost, now = record.attempt, record.lost_attempts + 1, runtime.store.now()
    options = spec.options
    error: StatusError | None = None
    if options.at_most_once or lost > options.max_lost:
        text = f"the worker of the operation was lost in attempt {attempt}"
        error = StatusError(Code.ABORTED, text, why="WORKER_LOST")
    elif attempt >= options.max_attempts:
        error = _too_often(attempt)
    change = lose(attempt, _due(record, lost, now), now)
    after = yield from _wait_again_or_end(runtime, spec, record, change, error, lost)
    waits = after is not None and not after.done
    runtime.events.tracer.refresh()  # this process may not have checked for providers yet
    runtime.events.emit(
        WorkLost(
            name=record.name,
            method=spec.full_name,
            attempt=attempt,
            decision="retried" if waits else "failed",
            lost_attempts=lost,
            trace_context=record.trace_context,
        )
    )
    line = "%s: its worker was lost (loss %d): it %s"
    what = "waits again"
    if not waits:
        what = "ended" if lost <= options.max_lost else f"ended (max_lost={options.max_lost})"
    facts = about(record.name, record.method, attempt)
    log.warning(line, record.name, lost, what, extra=facts)
    return after


def store_retry(
    runtime: Runtime, spec: MethodSpec, record: Record, failed: FailedAttempt, due: datetime
) -> Flow[Record | None]:
    """Store that an attempt has failed, and that its work waits until ``due`` for the next attempt.

    If a caller has cancelled the operation, it ends CANCELLED instead. A deleted operation is
    removed.

    Returns:
        The record after the write; None if the record is gone.

    Raises:
        LroError: The store or the change refuses the write.
    """
    change = with_failure(retry(record.attempt, due, runtime.store.now()), failed)
    return (yield from _wait_again_or_end(runtime, spec, record, change, None))


def too_late(record: Record, store: Store) -> StatusError | None:
    """Return the error of work that has not begun in time; None if it may still begin."""
    before = record.begin_before
    if before is None or record.attempt > 1 or store.now() < before:
        return None
    text = f"the operation did not begin before {before.isoformat(' ', 'milliseconds')}"
    return StatusError(Code.DEADLINE_EXCEEDED, text, why="EXPIRED")


def store_expiry(runtime: Runtime, spec: MethodSpec | None, record: Record) -> Flow[Record | None]:
    """End an operation whose work has not begun in time; ``spec`` is None for an unknown method.

    Returns:
        The record after the write; None if the record is gone.

    Raises:
        LroError: The store or the change refuses the write; the work may have begun meanwhile.
    """
    error = too_late(record, runtime.store)
    assert error is not None  # the store selected the record by its begin_before
    types = runtime.types if spec is None else spec.types
    keep_for = runtime.keep_for if spec is None else spec.keep_for
    status = types.status_of(error, runtime.domain)
    change = if_unchanged_since(record, end(status, now=runtime.store.now(), keep_for=keep_for))
    if spec is None:
        return (yield from runtime.updater.applied(record.name, change))
    return (yield from ended_by(runtime, spec, record.name, change, State.FAILED))


def _too_often(attempt: int) -> StatusError:
    text = f"the operation was begun {attempt} times, and never came to its end"
    return StatusError(Code.ABORTED, text, why="TOO_MANY_ATTEMPTS")


def _due(record: Record, lost: int, now: datetime) -> datetime:
    if lost < 2:
        return due_again(record, now)
    return now + _FIRST_PAUSE * float(2 ** min(lost - 2, 10))


def _wait_again_or_end(
    runtime: Runtime,
    spec: MethodSpec,
    record: Record,
    back: Change,
    error: StatusError | None,
    lost: int | None = None,
) -> Flow[Record | None]:
    """End the operation with ``error``. If that is None, apply ``back``: the work then waits again.

    Instead of waiting again, the operation ends CANCELLED if a caller has asked to cancel it.
    ``lost`` is the new number of workers that this work has lost; None if no worker was lost now.
    The change is refused if the owner or the attempt has changed since ``record`` was read.
    """
    now = runtime.store.now()

    def ending(error: LroError, *, acknowledge: bool) -> Change:
        status = spec.types.status_of(error, runtime.domain)
        ended = end(
            status, now=now, keep_for=spec.keep_for, attempt=record.attempt, acknowledge=acknowledge
        )
        return ended if lost is None else with_lost_attempts(ended, lost)

    if error is not None:
        change = if_unchanged_since(record, ending(error, acknowledge=False))
        return (yield from ended_by(runtime, spec, record.name, change, State.FAILED))
    cancelled = ending(Cancelled(), acknowledge=True)
    if spec.options.final_metadata is None:
        change = if_unchanged_since(record, if_not_cancelled(back, cancelled))
        return (yield from runtime.updater.applied(record.name, change, spec.stamp))
    while not (yield from read(runtime.store, record.name)).cancel_pending:
        change = if_unchanged_since(record, if_not_cancelled(back, _look_again))
        with contextlib.suppress(_CancelledMeanwhile):
            return (yield from runtime.updater.applied(record.name, change, spec.stamp))
    change = if_unchanged_since(record, cancelled)
    return (yield from ended_by(runtime, spec, record.name, change, State.CANCELLED))


class _CancelledMeanwhile(Exception):
    """A caller has cancelled the operation since it was read."""


def _look_again(_: Record) -> Record | None:
    raise _CancelledMeanwhile


def ended_by(
    runtime: Runtime, spec: MethodSpec, name: str, change: Change, state: State
) -> Flow[Record | None]:
    """Apply a change that ends an operation with an error, and store final metadata, if any.

    If the final metadata cannot be computed, the operation ends with the same error, but without
    final metadata.

    Raises:
        LroError: The store or the change refuses the write.
    """
    try:
        return (yield from runtime.updater.ended(spec, name, change, state))
    except FinalMetadataFailed:
        line = "%s: the final metadata could not be computed"
        log.exception(line, name, extra=about(name, spec.full_name))
        return (yield from runtime.updater.applied(name, change, spec.stamp))


def emit_stored_end(events: EventDispatch, after: Record | None, *, expired: bool = False) -> None:
    """Emit the event of an operation's end, if the operation ``after`` has ended.

    The functions above do not emit this event. Their callers call this function after they have
    ended the attempt.
    """
    if after is not None and after.done:
        events.tracer.refresh()  # this process may not have checked for providers yet
        events.emit_end(after, expired=expired)
