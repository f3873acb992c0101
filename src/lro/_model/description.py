"""Descriptions of operations: what the service knows of them beside their messages (spec §3.11)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

import attrs

from lro._messages.json_text import dumps
from lro._messages.schema import Int32, UInt32
from lro._model.operation import FailedAttempt, Operation, Record

_WEIGHT: Final = 660
"""About how many bytes of JSON a description has without its names and failed attempts."""
_FAILURE_WEIGHT: Final = 60
"""The same of a failed attempt without its texts."""

Place: TypeAlias = tuple[str, int]
"""Host and process id of a worker."""
NOWHERE: Final[Place] = ("", 0)
"""The place of work that no known worker has."""


@attrs.frozen(kw_only=True)
class OperationDescription:
    """What a service knows of an operation beside its messages: method, times, attempt.

    ``state`` is that of :attr:`lro.Operation.state`, ``method`` the full name of the method.
    ``update_time`` is when the record was last changed, ``start_time`` when a worker began (None:
    the work waits), ``expire_time`` from when on the record is removed. ``cancel_requested`` says
    that a caller has asked for the work to stop, ``cancel_time`` when. ``attempt`` counts the
    attempts at the work, ``lost_attempts`` those whose worker was lost, ``failed_attempts`` those
    that have failed. ``due_time`` is from when on the work may begin, if it waits, and
    ``begin_before`` when the operation ends if the work has not begun by then. ``priority``:
    what is higher comes first. ``origin`` says what has started the operation, if no caller has:
    ``schedule NAME``, or the operation of which it is a rerun. ``trace_id`` is that of the
    start, 32 hexadecimal digits, empty if it was not traced. Times are in UTC by the clock of the
    server's store.

    Only operators get the rest: ``failures``, the last 20 failed attempts, the oldest first; and
    ``worker_host`` and ``worker_pid``, the machine and the process id of the worker that has the
    work.
    """

    name: str = ""
    state: str = ""
    method: str = ""
    create_time: datetime | None = None
    update_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    expire_time: datetime | None = None
    cancel_requested: bool = False
    cancel_time: datetime | None = None
    attempt: Int32 = 0
    lost_attempts: Int32 = 0
    failed_attempts: Int32 = 0
    due_time: datetime | None = None
    begin_before: datetime | None = None
    priority: Int32 = 0
    origin: str = ""
    trace_id: str = ""
    failures: tuple[FailedAttempt, ...] = ()
    worker_host: str = ""
    worker_pid: UInt32 = 0

    @property
    def weight(self) -> int:
        """About how many bytes of JSON it is."""
        failures = sum(_FAILURE_WEIGHT + len(dumps([x.error, x.text])) for x in self.failures)
        return _WEIGHT + len(self.name.encode()) + len(self.method) + failures


@attrs.frozen(kw_only=True)
class DescribedOperation(OperationDescription):
    """A description, and the operation itself as it was at the same moment."""

    operation: Operation


@attrs.frozen
class DescribeOperationsResponse:
    """The descriptions, in the order asked for, and the names of operations that are not there."""

    descriptions: tuple[OperationDescription, ...] = ()
    missing: tuple[str, ...] = ()


def description_of(
    record: Record, renamed: Mapping[str, str], place: Place | None = None
) -> OperationDescription:
    """The description of an operation that callers can see.

    ``renamed`` has the present names of methods, by their aliases. ``place`` is that of its worker;
    None: the description has nothing that is only for operators.
    """
    return OperationDescription(**_shown(record, renamed, place))


def described(
    record: Record, renamed: Mapping[str, str], place: Place | None = None
) -> DescribedOperation:
    """The description of an operation that callers can see, with the operation."""
    return DescribedOperation(operation=record.operation, **_shown(record, renamed, place))


def trace_id(trace_context: str) -> str:
    """The id of the trace of a start; empty if it was not traced."""
    return trace_context[3:35]


def _shown(record: Record, renamed: Mapping[str, str], place: Place | None) -> dict[str, Any]:
    # What is not named here is not for callers: the caller, owner, lease, keys and target.
    host, pid = place or NOWHERE
    return {
        "name": record.name,
        "state": record.state.value,
        "method": renamed.get(record.method, record.method),
        "create_time": record.create_time,
        "update_time": record.update_time,
        "start_time": record.start_time,
        "end_time": record.end_time,
        "expire_time": record.expire_time,
        "cancel_requested": record.cancel_requested,
        "cancel_time": record.cancel_time,
        "attempt": record.attempt,
        "lost_attempts": record.lost_attempts,
        "failed_attempts": record.failure_count,
        "due_time": (record.sent_time or record.lease_until) if record.waits else None,
        "begin_before": record.begin_before if record.waits and not record.attempt else None,
        "priority": -record.rank,
        "origin": record.origin,
        "trace_id": trace_id(record.trace_context),
        "failures": () if place is None else record.failed_attempts,
        "worker_host": host,
        "worker_pid": pid,
    }
