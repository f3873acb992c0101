"""Time that passes only while code waits for it."""

from __future__ import annotations

import asyncio
import heapq
import sys
import threading
import weakref
from typing import Final

import attrs

from lro_client._errors import check

_TURNS: Final = 10
"""Turns of the event loop that other tasks get before time passes."""
_MAX_TURNS: Final = 1000
"""Maximum number of turns before time passes, even if new sleeps keep beginning."""


@attrs.frozen(order=True)
class _Sleeper:
    until: float
    number: int
    woken: asyncio.Future[None] = attrs.field(order=False)


@attrs.define
class _Sleeping:
    """The sleeping tasks of an event loop, and the number of turns until time passes for them."""

    sleepers: list[_Sleeper] = attrs.field(factory=list)
    turns: int = 0
    most: int = 0
    """Turns after which time passes, even if other tasks keep beginning to sleep."""


class VirtualClock:
    """A clock in seconds for a client's ``clock`` and ``sleep``. Its time passes only in sleeps.

    ``now`` is the current time, which a test may set. ``sleeps`` has the seconds of each sleep.
    Threads may share a clock, and their sleeps add up. Tasks of an event loop sleep at the same
    time: when all tasks wait, the task that is due first is woken.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now: float = now
        self.sleeps: list[float] = []
        self._lock = threading.Lock()
        self._sleeping: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Sleeping]
        self._sleeping = weakref.WeakKeyDictionary()
        self._count = 0

    def __call__(self) -> float:
        """Return the current time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let these seconds pass, as ``time.sleep`` does. A negative number means 0.

        Raises:
            DeclarationError: ``seconds`` is NaN, infinite, or more than a float can hold.
        """
        self.sleeps.append(_checked(seconds))
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        """Let these seconds pass for this task, as ``asyncio.sleep`` does.

        Raises:
            DeclarationError: As for :meth:`sleep`.
        """
        self.sleeps.append(_checked(seconds))
        await self.aadvance(seconds)

    def advance(self, seconds: float) -> None:
        """Let these seconds pass without an entry in ``sleeps``.

        Raises:
            DeclarationError: As for :meth:`sleep`.
        """
        passed = max(_checked(seconds), 0.0)
        with self._lock:
            self.now += passed

    async def aadvance(self, seconds: float) -> None:
        """Let these seconds pass in this task while others run, without an entry in ``sleeps``.

        Raises:
            DeclarationError: As for :meth:`sleep`.
        """
        passed = max(_checked(seconds), 0.0)
        loop = asyncio.get_running_loop()
        with self._lock:
            self._count += 1
            sleeper = _Sleeper(self.now + passed, self._count, loop.create_future())
            sleeping = self._sleeping.setdefault(loop, _Sleeping())
        heapq.heappush(sleeping.sleepers, sleeper)
        sleeping.turns = _TURNS  # count again, because other tasks may still be running
        if len(sleeping.sleepers) == 1:  # otherwise turns are already being counted
            self._begin(loop, sleeping)
        await sleeper.woken

    def _begin(self, loop: asyncio.AbstractEventLoop, sleeping: _Sleeping) -> None:
        sleeping.turns, sleeping.most = _TURNS, _MAX_TURNS
        self._later(loop, sleeping)

    def _later(self, loop: asyncio.AbstractEventLoop, sleeping: _Sleeping) -> None:
        if sleeping.turns and sleeping.most:
            sleeping.turns -= 1
            sleeping.most -= 1
            loop.call_soon(self._later, loop, sleeping)
            return
        sleepers = sleeping.sleepers
        while sleepers and sleepers[0].woken.done():  # the sleep was cancelled
            heapq.heappop(sleepers)
        if not sleepers:
            return
        with self._lock:
            self.now = max(self.now, sleepers[0].until)
        while sleepers and (sleepers[0].woken.done() or sleepers[0].until <= self.now):
            woken = heapq.heappop(sleepers).woken
            if not woken.done():
                woken.set_result(None)
        if sleepers:
            self._begin(loop, sleeping)


def _checked(seconds: float) -> float:
    # After a sleep of NaN or infinity seconds, other tasks would sleep for ever.
    fine = seconds <= sys.float_info.max
    check("seconds", seconds, "a finite number of seconds", fine=fine)
    return seconds
