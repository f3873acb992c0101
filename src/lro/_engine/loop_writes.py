"""Writes that event loops hand in to a store: one wake-up brings a loop many answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

log = logging.getLogger("lro")


class Receipt:
    """What becomes of one write, for the event loop that runs where this is made."""

    __slots__ = ("_over", "_results", "future")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._over: tuple[Any, BaseException | None] | None = None
        self._results = _results_for(loop)

    def done(self, answer: Any, error: BaseException | None) -> None:
        """Take the answer or the error of the write. In any thread."""
        self._results.add(self, answer, error)

    def settle(self, answer: Any, error: BaseException | None) -> None:
        """Give what the write has come to to the one who awaits it. On the loop."""
        self._over = answer, error
        if self.future.done():
            return  # the task that awaited it was cancelled
        if error is None:
            self.future.set_result(answer)
        else:
            self.future.set_exception(error)

    async def result(self) -> Any:
        """What the write has come to, though the first future was cancelled."""
        if self._over is None:
            self.future = asyncio.get_running_loop().create_future()
            return await self.future
        if not self.future.cancelled():
            self.future.exception()  # or asyncio reports that it was never asked for
        answer, error = self._over
        if error is not None:
            raise error
        return answer

    def carry_on(self, rest: Coroutine[Any, Any, Any]) -> None:
        """Do the rest of a call whose caller has gone away, in a task of its own."""
        task = asyncio.get_running_loop().create_task(rest)
        _carried.add(task)
        task.add_done_callback(_over)


class _Results:
    """What has become of writes, until the thread of a loop takes note of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[tuple[Receipt, Any, BaseException | None]] = deque()
        self._called = False

    def add(self, receipt: Receipt, answer: Any, error: BaseException | None) -> None:
        """Add one, and wake the loop unless it is being woken already. In any thread."""
        self._waiting.append((receipt, answer, error))
        loop = self._loop()
        if self._called or loop is None:
            return
        self._called = True
        with contextlib.suppress(RuntimeError):  # it is closed: no task waits there
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._called = False  # first: what comes from now on wakes the loop again
        while self._waiting:
            receipt, answer, error = self._waiting.popleft()
            receipt.settle(answer, error)


_results: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Results]] = (
    weakref.WeakKeyDictionary()
)


def _results_for(loop: asyncio.AbstractEventLoop) -> _Results:
    found = _results.get(loop)
    if found is None:  # only the thread of the loop asks for those of a loop
        found = _results[loop] = _Results(loop)
    return found


_carried: Final[set[asyncio.Task[Any]]] = set()
"""An event loop holds its tasks by weak references only."""


def _over(task: asyncio.Task[Any]) -> None:
    _carried.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.info("a call whose caller had gone away has failed: %s", task.exception())
