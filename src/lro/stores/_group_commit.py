"""Group commit: writes of many threads are made together, led by the first thread that waits."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import attrs

_RELEASED_AT_ONCE: Final = 2


@attrs.define(eq=False, kw_only=True)
class QueuedWrite:
    """The write of one thread, from the moment at which it is queued until it is made."""

    leads: bool = attrs.field(default=False, init=False)
    """Whether its thread leads the group that it is in, or the next group."""
    over: bool = attrs.field(default=False, init=False)
    """Whether it has its result or its error; set by the leader."""
    gate: threading.Lock | None = attrs.field(default=None, init=False)
    """Locked while its thread waits; None for a thread that leads at once."""
    gone: bool = attrs.field(default=False, init=False)
    """Whether its thread waits no longer: it has its result, or was interrupted."""
    rest: list[Any] | None = attrs.field(default=None, init=False)
    """Once its group is over: the writes of that group whose threads still wait, shared by all."""


W = TypeVar("W", bound=QueuedWrite)


class GroupCommit(ABC, Generic[W]):
    """Makes the writes of threads in groups.

    A thread that comes while no group is under way leads one at once. Threads that come meanwhile
    wait; when the group is over, the first of them leads the next group, with all the others. So a
    lone write waits for nothing, and there is no thread beside those of the callers.
    """

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the parent's queue: its threads do not exist in a forked child."""
        self._lock = threading.Lock()
        self._waiting: list[W] = []
        self._group: list[W] = []
        self._led = False

    def _submit(self, write: W) -> None:
        """Queue a write, and return when it is over; this thread may lead its group.

        What :meth:`_lead` raises in this thread is raised here.
        """
        try:
            with self._lock:
                self._waiting.append(write)
                if self._led:
                    write.gate = threading.Lock()
                    write.gate.acquire()
                else:
                    self._led = write.leads = True
            if write.gate is not None:
                _follow(write.gate)
            if write.leads:
                self._lead(write)
        finally:
            self._leave(write)

    @abstractmethod
    def _lead(self, leader: W) -> None:
        """Make the writes that :meth:`_take` gives, and set ``over`` of each that was made.

        Those which are not over when this ends, because the thread was interrupted, are made by the
        next leader.
        """

    def _choose(self, waiting: list[W]) -> tuple[list[W], list[W]]:
        """Split the waiting writes into the next group, the leader's among it, and the others."""
        return waiting, []

    def _take(self) -> Sequence[W]:
        """Begin a group with writes that wait now."""
        with self._lock:
            self._group, self._waiting = self._choose(self._waiting)
            return self._group

    def _leave(self, write: W) -> None:
        """Let the next thread lead, if this one did, and release threads of its group."""
        with self._lock:
            write.gone = True
            if not write.over and write in self._waiting:  # its thread was interrupted
                self._waiting.remove(write)
            if write.leads:
                group, self._group = self._group, []
                if len(group) > 1:
                    others = [one for one in group if one is not write]
                    self._waiting[:0] = [one for one in others if not (one.over or one.gone)]
                    write.rest = [one for one in reversed(others) if one.over]
                    for one in write.rest:
                        one.rest = write.rest
                self._promote()
            if write.rest:
                self._release(write.rest)

    def _promote(self) -> None:
        """Let the first thread that waits lead. Called with the lock held."""
        self._led = bool(self._waiting)
        if self._waiting:
            following = self._waiting[0]
            assert following.gate is not None  # it came while another thread led
            following.leads = True
            following.gate.release()

    def _release(self, rest: list[W]) -> None:
        """Let a few of these threads go on; each of them releases others. The lock is held.

        If all were released at once, they would delay the next leader and each other.
        """
        released = 0
        while rest and released < _RELEASED_AT_ONCE:
            write = rest.pop()
            if write.gate is not None and not write.gone:
                write.gate.release()
                released += 1


def _follow(gate: threading.Lock) -> None:
    """Wait until a leader has made this thread's write, or left the lead to this thread."""
    gate.acquire()
