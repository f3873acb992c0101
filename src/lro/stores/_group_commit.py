"""Group commit: writes that arrive during a commit are committed together by the next commit."""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from lro._engine.process import PerProcess

_RELEASED_AT_ONCE: Final = 2

_IDLE_SECONDS: Final = 10.0
"""Seconds without a write after which the thread for handed-in writes ends."""


class WriteState(enum.Enum):
    """State of a queued write."""

    __hash__ = object.__hash__  # identity is enough; Enum's own hash is a Python call

    WAITING = "waiting"
    """The write waits for a group, or for the leader of its group."""
    LEADING = "leading"
    """The write's thread, or the thread for handed-in writes, leads now or will lead next."""
    MADE = "made"
    """The write has its result or its error."""
    LEFT = "left"
    """The write's thread has continued with the result, or was interrupted."""


NEXT: Final[Mapping[WriteState, frozenset[WriteState]]] = {
    WriteState.WAITING: frozenset({WriteState.LEADING, WriteState.MADE, WriteState.LEFT}),
    WriteState.LEADING: frozenset({WriteState.MADE, WriteState.LEFT}),
    WriteState.MADE: frozenset({WriteState.LEFT}),
    WriteState.LEFT: frozenset(),  # a leader may still make the write of an interrupted thread
}
"""The allowed transitions. The lock of the :class:`GroupCommit` guards them."""


class QueuedWrite(ABC):
    """A queued write, with its state and its outcome.

    Either a thread waits for the write, or the write was handed in (:meth:`GroupCommit.hand_in`).
    The outcome of a handed-in write is reported by :meth:`call_back`.
    """

    state: WriteState = WriteState.WAITING
    handed_in: bool = False
    """True if no thread waits for the write."""
    gate: threading.Lock | None = None
    """Locked while the write's thread waits; None if that thread leads at once."""
    error: BaseException | None = None
    """The error, if the write failed."""
    rest: list[Any] | None = None
    """After the end of the group: its writes whose threads still wait. They share this list."""

    def become(self, state: WriteState) -> None:
        """Change the state if the table allows it. The caller has the lock."""
        if state in NEXT[self.state]:
            self.state = state

    @abstractmethod
    def call_back(self) -> None:
        """Report the outcome to the caller that handed the write in. Be quick; never raise.

        This method is called once: by the thread for handed-in writes, or by
        :meth:`GroupCommit.hand_in` if that thread cannot be started.
        """


W = TypeVar("W", bound=QueuedWrite)


class GroupCommit(PerProcess, ABC, Generic[W]):
    """Base class that commits writes in groups.

    A thread that writes while no group is in progress leads a group at once, so a lone write never
    waits. Threads that write while a group is in progress wait. When the group has ended, the
    thread that has waited longest leads the next group, for itself and for the waiting threads. If
    no thread waits for the first queued write, because it was handed in, the thread for handed-in
    writes leads.
    """

    _closed = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[W] = []
        self._group: list[W] = []
        self._made = False
        """True if the writes of the group have their results or their errors."""
        self._led = False
        self._leading: W | None = None
        """The write whose thread leads, or will lead next."""
        self._done: list[W] = []
        """Handed-in writes that have ended, and whose callbacks have not been called yet."""
        self._turn = threading.Lock()
        self._turn.acquire()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """True while a thread leads a group, or will lead next."""
        return self._led

    def close(self) -> None:
        """Let the thread for handed-in writes end after the waiting writes."""
        with self._lock:
            self._closed = True
            if not self._led:
                self._promote()

    def _submit(self, write: W) -> None:
        """Queue a write, and return when it has ended; the calling thread may lead its group.

        If the calling thread leads, errors of :meth:`_lead` propagate.
        """
        try:
            with self._lock:
                self._waiting.append(write)
                if self._led:
                    write.gate = threading.Lock()
                    write.gate.acquire()
                else:
                    self._led = True
                    self._let_lead(write)
            if write.gate is not None:
                _follow(write.gate)
            if write.state is WriteState.LEADING:
                self._lead(write)
        finally:
            self._leave(write)

    def hand_in(self, write: W) -> None:
        """Queue a write, and return at once. Call ``write.call_back()`` when the write has ended.

        If no thread can be started (as when the interpreter exits), make the write before
        returning.
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
        """Lead groups whose first write was handed in; end some seconds after the last write."""
        while self._live_on(timely=turn.acquire(timeout=_IDLE_SECONDS)):
            pass  # each turn is a separate call, so its writes are freed before the next wait

    def _live_on(self, *, timely: bool) -> bool:
        """Take one turn of the thread for handed-in writes; return True if it must continue."""
        with self._lock:
            if not timely and self._led:
                return True  # another thread leads, or has just given this thread a turn
            done, self._done = self._done, []
            if not done and not self._waiting:
                self._thread, self._led = None, False
                return False
            write = self._waiting[0] if self._waiting else None
            if write is None or write.gate is not None:  # a thread that waits for its write leads
                write = None
                self._promote()
            else:
                self._let_lead(write)
        for one in done:
            # Only this thread calls back. A signal might interrupt a thread of the application,
            # and its callbacks would be lost.
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
        """Make the writes that :meth:`_take` returns, and set ``_made`` when all are made.

        If the thread is interrupted, the next leader makes the writes that are left.
        """

    def _choose(self, waiting: list[W]) -> tuple[list[W], list[W]]:
        """Split the waiting writes: the next group, with the leader's write, and later writes."""
        return waiting, []

    def _take(self) -> Sequence[W]:
        """Begin a group of waiting writes, and return them."""
        with self._lock:
            self._made = False
            self._group, self._waiting = self._choose(self._waiting)
            return self._group

    def _let_lead(self, write: W) -> None:
        """Let the thread of this write lead. The lock is held."""
        self._leading = write
        write.become(WriteState.LEADING)

    def _leave(self, write: W) -> None:
        """End the use of a write by its thread, and release waiting threads of the same group.

        If the thread led the group, let another thread lead the next group.
        """
        with self._lock:
            leads = self._leading is write
            if leads and self._made:
                for one in self._group:
                    one.become(WriteState.MADE)
            if write.state is not WriteState.MADE and write in self._waiting:
                self._waiting.remove(write)  # the thread of the write was interrupted
            write.become(WriteState.LEFT)
            if leads:
                self._leading = None
                group, self._group = self._group, []
                if len(group) > 1:
                    others = [one for one in group if one is not write]
                    self._waiting[:0] = [one for one in others if one.state is WriteState.WAITING]
                    made = [one for one in others if one.state is WriteState.MADE]
                    self._done += [one for one in made if one.handed_in]
                    write.rest = [one for one in reversed(made) if one.gate]
                    for one in write.rest:
                        one.rest = write.rest
                if write.handed_in:
                    self._done.append(write)
                self._promote()
            if write.rest:
                self._release(write.rest)

    def _promote(self) -> None:
        """Let a thread lead the group of the first waiting write. The lock is held."""
        self._led = True
        if self._waiting and self._waiting[0].gate is not None and not self._done:
            self._let_lead(self._waiting[0])
            self._waiting[0].gate.release()
        elif self._waiting or self._done or (self._closed and self._thread is not None):
            self._turn.release()
        else:
            self._led = False

    def _release(self, rest: list[W]) -> None:
        """Release the threads of a few of these writes. The lock is held.

        Each released thread releases a few more threads. If all threads were released at once, they
        would delay the next leader and each other.
        """
        released = 0
        while rest and released < _RELEASED_AT_ONCE:
            write = rest.pop()
            if write.gate is not None and write.state is not WriteState.LEFT:
                write.gate.release()
                released += 1


def _follow(gate: threading.Lock) -> None:
    """Wait until a leader has made this thread's write, or this thread must lead."""
    gate.acquire()
