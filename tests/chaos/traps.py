"""Traps: named points in a server's life at which the server is killed or frozen."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from lro import State
from lro.adapters import Record


class Point(enum.StrEnum):
    """A kind of write, or of work, at which a trap can spring."""

    INSERT = "insert"
    CLAIM = "claim"
    RENEW = "renew"
    REPORT = "report"
    CHECKPOINT = "keep a checkpoint"
    WORK = "work"
    ENCODE = "encode"
    END = "end"
    CANCEL = "cancel"
    ACKNOWLEDGE = "acknowledge"
    RELEASE = "release"
    TAKE_OVER = "take over"
    ABANDON = "abandon"
    LOSE = "lose a worker"
    DELETE = "delete"
    EXPIRE = "expire"
    CLAIM_DUE = "claim notifications"
    SETTLE = "settle notifications"


class Moment(enum.StrEnum):
    """The moment at which a trap springs, relative to the commit of the write."""

    BEFORE = "before"
    """The trap springs before the store is called."""
    WITHIN = "within"
    """The trap springs inside the transaction, which is then never committed."""
    AFTER = "after"
    """The trap springs after the store has returned, before any other code sees the result."""


class Deed(enum.StrEnum):
    """What a trap does to its process."""

    KILL = "kill"
    STOP = "stop"


@attrs.frozen(kw_only=True)
class Trap:
    """A trap, which springs ``delay`` seconds after its point is reached the ``count``-th time.

    With ``child_only``, it kills only the child process that has reached the point.
    """

    point: Point
    moment: Moment = Moment.AFTER
    count: int = 1
    deed: Deed = Deed.KILL
    delay: float = 0.0
    child_only: bool = False


SERVER: Final = "LRO_CHAOS_SERVER"
"""The environment variable with the PID of the server, whose process group a trap kills."""


_LANDING_SECONDS: Final = 0.05
"""The seconds that a process's signal to itself may take to arrive."""


class _Set:
    def __init__(self) -> None:
        self.trap: Trap | None = None
        self.left = 0
        self.lock = threading.Lock()
        self.writing = threading.Lock()


_set = _Set()


def arm(trap: Trap | None) -> None:
    """Set the trap of this process; None removes it."""
    _set.trap, _set.left = trap, trap.count if trap is not None else 0


def waits_for(point: Point, moment: Moment) -> bool:
    trap = _set.trap
    return trap is not None and trap.point is point and trap.moment is moment and _set.left > 0


def step_on(point: Point | None, moment: Moment, last: Callable[[], object] = lambda: None) -> None:
    """Reach a point; if its trap springs, call ``last`` and then kill or freeze the process."""
    trap = _set.trap
    if trap is None or trap.point is not point or trap.moment is not moment:
        return
    with _set.lock:  # a killed process keeps this lock, so no other thread passes the point
        _set.left -= 1
        if _set.left != 0:
            return
        last()
        if trap.delay:
            threading.Timer(trap.delay, _do, (trap,)).start()
            return
        _do(trap)


def _do(trap: Trap) -> None:
    if trap.deed is Deed.STOP:
        # Within and after a write, this thread already holds the lock.
        with _set.writing if trap.moment is Moment.BEFORE else contextlib.nullcontext():
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(_LANDING_SECONDS)
        return
    if not trap.child_only:
        with contextlib.suppress(ProcessLookupError):  # the server may be dead already
            os.killpg(int(os.environ[SERVER]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Mark a write to a store: only a trap of this thread may freeze the process in this block.

    A process that is frozen in a write of another thread would hold the lock of a SQLite file, and
    thus block all other processes.
    """
    if _set.trap is None or _set.trap.deed is not Deed.STOP:
        yield
        return
    with _set.writing:
        yield


def point_of(before: Record, after: Record | None, owners: set[str]) -> Point | None:
    """Return the point of an update, by its effect; ``owners`` are this process's owner names."""
    if after is before:
        return None
    if after is None:
        return Point.END if before.state is State.HIDDEN else Point.DELETE
    if after.state is State.HIDDEN and before.state is not State.HIDDEN:
        return Point.DELETE
    if before.done:
        return Point.SETTLE
    if after.done:
        if before.owner and before.owner not in owners:
            return Point.ABANDON
        return Point.ACKNOWLEDGE if after.state is State.CANCELLED else Point.END
    if after.cancel_requested and not before.cancel_requested:
        return Point.CANCEL
    if after.waits and not before.waits:
        return Point.RELEASE if before.owner in owners else Point.TAKE_OVER
    return Point.REPORT
