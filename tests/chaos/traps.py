"""Traps: the named points of a server's life at which it is made to die, or to freeze."""

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
    """What a process is about to write, or is doing."""

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
    """When, in relation to the commit of what is written."""

    BEFORE = "before"
    """Before the store is asked."""
    WITHIN = "within"
    """In the transaction, which is then never committed."""
    AFTER = "after"
    """When the store has answered, and before any other code knows."""


class Deed(enum.StrEnum):
    """What a trap does to its process."""

    KILL = "kill"
    STOP = "stop"


@attrs.frozen(kw_only=True)
class Trap:
    """Springs at the ``count``-th time that a process comes to a point, after ``delay`` seconds.

    Where the work of a server is done by its children, ``child_only`` spares the server.
    """

    point: Point
    moment: Moment = Moment.AFTER
    count: int = 1
    deed: Deed = Deed.KILL
    delay: float = 0.0
    child_only: bool = False


SERVER: Final = "LRO_CHAOS_SERVER"
"""The environment variable with the server to be killed, which leads a group of processes."""


_LANDING_SECONDS: Final = 0.05
"""A signal to one's own process may take a moment to reach the thread that sent it."""


class _Set:
    def __init__(self) -> None:
        self.trap: Trap | None = None
        self.left = 0
        self.lock = threading.Lock()
        self.writing = threading.Lock()


_set = _Set()


def arm(trap: Trap | None) -> None:
    """Set this process's trap; None: it has none."""
    _set.trap, _set.left = trap, trap.count if trap is not None else 0


def waits_for(point: Point, moment: Moment) -> bool:
    trap = _set.trap
    return trap is not None and trap.point is point and trap.moment is moment and _set.left > 0


def step_on(point: Point | None, moment: Moment, last: Callable[[], object] = lambda: None) -> None:
    """Come to a point: the process goes no further if its trap is there; ``last`` is done first."""
    trap = _set.trap
    if trap is None or trap.point is not point or trap.moment is not moment:
        return
    with _set.lock:  # a process that dies holds it for good, so that no thread passes the signal
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
        # Within and after a write, this thread is in its block.
        with _set.writing if trap.moment is Moment.BEFORE else contextlib.nullcontext():
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(_LANDING_SECONDS)
        return
    if not trap.child_only:
        with contextlib.suppress(ProcessLookupError):  # a child's server may be gone already
            os.killpg(int(os.environ[SERVER]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Write to a store: a process that is to freeze does so before the block, or at its end.

    Frozen in the midst of a write, it would hold the lock of a SQLite file, and stop every other
    process: that is tested apart.
    """
    if _set.trap is None or _set.trap.deed is not Deed.STOP:
        yield
        return
    with _set.writing:
        yield


def point_of(before: Record, after: Record | None, owners: set[str]) -> Point | None:
    """What an update does, by its effect on the record; ``owners`` are the process's own names."""
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
