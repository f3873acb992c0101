"""Group commit: writes that come while others are being made are made together, next."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import attrs

from lro._engine.process import PerProcess

_RELEASED_AT_ONCE: Final = 2

_IDLE_SECONDS: Final = 10.0
"""Seconds after which the thread of this module ends if it has nothing to write."""


@attrs.define(eq=False, kw_only=True)
class QueuedWrite(ABC):
    """A write, from the moment at which it is queued until it is made.

    A thread waits for it; or it was handed in, and :meth:`call_back` is called when it is over.
    """

    handed_in: bool = attrs.field(default=False, init=False)
    """True if no thread waits for the write."""
    leads: bool = attrs.field(default=False, init=False)
    """True if its thread, or the thread of this module, leads its group or the next one."""
    over: bool = attrs.field(default=False, init=False)
    """True if the write has its result or its error; set by the leader."""
    gate: threading.Lock | None = attrs.field(default=None, init=False)
    """Locked while its thread waits; None for a thread that leads at once."""
    gone: bool = attrs.field(default=False, init=False)
    """True if its thread no longer waits, because of a result or an interrupt."""
    error: BaseException | None = attrs.field(default=None, init=False)
    """The error, if there is no result."""
    rest: list[Any] | None = attrs.field(default=None, init=False)
    """Once its group is over: the writes of that group whose threads still wait, shared by all."""

    @abstractmethod
    def call_back(self) -> None:
        """Report what has become of it to the caller that handed it in; quick, raises nothing.

        Called once, by the thread for such writes.
        """


W = TypeVar("W", bound=QueuedWrite)


class GroupCommit(PerProcess, ABC, Generic[W]):
    """Base class that commits writes in groups.

    A thread that comes while no group is under way leads one at once. Threads that come meanwhile
    wait; when the group is over, the first of them leads the next group, with all the others. So a
    lone write waits for nothing. If the first that waits has no thread of its own, a thread that
    is started for such writes leads.
    """

    _closed = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[W] = []
        self._group: list[W] = []
        self._led = False
        self._done: list[W] = []
        """Writes without threads that are over, and whose callers have not been called yet."""
        self._turn = threading.Lock()
        self._turn.acquire()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Let the thread for writes without one of their own end, when what waits is over."""
        with self._lock:
            self._closed = True
            if not self._led:
                self._promote()

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

    def hand_in(self, write: W) -> None:
        """Queue a write, and return at once; its ``call_back`` is called when it is over.

        Where no thread can be started, as at the end of the interpreter, it is made here and now.
        """
        with self._lock:
            there = self._thread is not None or self._start_thread()
            if there:
                write.handed_in = True
                self._waiting.append(write)
                if not self._led:
                    self._promote()
        if not there:
            try:
                self._submit(write)
            except Exception as exc:
                write.error = write.error or exc
            write.call_back()

    def _start_thread(self) -> bool:
        thread = threading.Thread(
            target=self._live, args=(self._turn,), name="lro-writes", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _live(self, turn: threading.Lock) -> None:
        """Lead groups whose first write has no thread of its own, until there is none for long."""
        while self._live_on(timely=turn.acquire(timeout=_IDLE_SECONDS)):
            pass  # what was written is let go of while the thread waits

    def _live_on(self, *, timely: bool) -> bool:
        """Take one turn of that thread; whether it is to go on."""
        with self._lock:
            if not timely and self._led:
                return True  # another thread leads, or it is the turn of this one since then
            done, self._done = self._done, []
            if not done and not self._waiting:
                self._thread, self._led = None, False
                return False
            write = self._waiting[0] if self._waiting else None
            if write is None or write.gate is not None:  # the turn is that of a thread
                write = None
                self._promote()
            else:
                write.leads = True
        for one in done:
            # By this thread alone: another may be interrupted by a signal, and leave some uncalled.
            one.call_back()
        if write is not None:
            try:
                self._lead(write)
            except BaseException as exc:
                write.error = exc
            self._leave(write)
        return True

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
                    self._done += [one for one in others if one.over and one.handed_in]
                    write.rest = [one for one in reversed(others) if one.over and one.gate]
                    for one in write.rest:
                        one.rest = write.rest
                if write.handed_in:
                    self._done.append(write)
                self._promote()
            if write.rest:
                self._release(write.rest)

    def _promote(self) -> None:
        """Let the first write that waits have its group led. Called with the lock held."""
        self._led = True
        if self._waiting and self._waiting[0].gate is not None and not self._done:
            self._waiting[0].leads = True
            self._waiting[0].gate.release()
        elif self._waiting or self._done or (self._closed and self._thread is not None):
            self._turn.release()
        else:
            self._led = False

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
