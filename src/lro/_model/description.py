"""Descriptions of operations: the facts that are not in their messages (spec §3.11)."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import InvalidArgument, got
from lro._messages.schema import Int32, UInt32

View: TypeAlias = Literal["BASIC", "FULL"]
"""How much of an operation a call returns (AIP-157): only FULL has the description."""


def check_view(view: object) -> None:
    """Check that a value is a view.

    Raises:
        InvalidArgument: The value is neither BASIC nor FULL.
    """
    if view not in ("BASIC", "FULL"):
        raise InvalidArgument("view", f"must be BASIC or FULL, got {got(view)}")


Place: TypeAlias = tuple[str, int]
"""Host and process id of a worker."""
NOWHERE: Final[Place] = ("", 0)
"""Empty host and process id 0: no worker is known."""


@attrs.frozen(eq=False, repr=False)
class FailedAttempt(ByFields):
    """A failed attempt: its number, when it ended, the class and the text of the error.

    For operators only: callers get the operation's error. The text has at most 500 characters.
    """

    attempt: Int32
    time: datetime
    error: str
    text: str


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OperationDescription(ByFields):
    """The facts about an operation that are not in its messages: method, times, attempts.

    In the BASIC view the description is empty: ``state`` is the empty text.

    ``state`` is that of :attr:`lro.Operation.state`, ``method`` the full name of the method.
    ``update_time`` is when the record was last changed, ``start_time`` when a worker began (None:
    the work waits), ``expire_time`` when the record is due for removal. ``cancel_requested`` is
    true if a caller has asked for the work to stop, and ``cancel_time`` is when. ``attempt`` counts
    all attempts at the work, ``lost_attempts`` those whose worker was lost, ``failed_attempts``
    those that failed. For waiting work, ``due_time`` is the earliest time at which the work may
    begin, and ``begin_before`` the time at which the operation ends unless the work has begun. Work
    with a higher ``priority`` comes first. ``origin`` is empty if a caller started the operation;
    otherwise it is ``schedule NAME``, or for a rerun the name of the earlier operation. ``rerun``
    is the name of the latest rerun of this operation, or empty. ``trace_id`` is the trace of the
    start, 32 hexadecimal digits, or empty if the start was not traced. Times are in UTC by the
    clock of the server's store.

    Only operators get the other fields: ``failures``, the last 20 failed attempts, the oldest
    first; and ``worker_host`` and ``worker_pid``, the machine and the process id of the worker that
    has the work.
    """

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
    rerun: str = ""
    trace_id: str = ""
    failures: tuple[FailedAttempt, ...] = ()
    worker_host: str = ""
    worker_pid: UInt32 = 0


NO_DESCRIPTION: Final = OperationDescription()
"""The description of an operation in the BASIC view."""
