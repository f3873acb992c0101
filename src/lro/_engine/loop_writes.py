"""What event loops wait for elsewhere: one wake-up brings a loop many answers.

A loop hands writes in to a store, and calls that may block to threads. If the task that awaits the
answer goes away, or its loop ends, a thread does what is left to be done with the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from lro._engine.process import after_fork

log = logging.getLogger("lro")

Rest: TypeAlias = Callable[[Any, BaseException | None], object]
"""Does what is left to be done with an answer, or an error; in a thread, where it may block."""


class Receipt:
    """What comes of one write or call, for the event loop that runs where this is made."""

    __slots__ = ("_lock", "_over", "_rest", "_results", "future")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._over: tuple[Any, BaseException | None] | None = None
        self._rest: Rest | None = None
        self._lock = threading.Lock()
        self._results = _results_for(loop)

    def done(self, answer: Any, error: BaseException | None) -> None:
        """Take the answer or the error. In any thread."""
        over = answer, error  # made before: to collect garbage may close the task that awaits this
        with self._lock:
            self._over, rest = over, self._rest
        if rest is None:
            self._results.add(self)
        else:
            RESTS.do(rest, answer, error)

    def settle(self) -> None:
        """Give the answer to the task that awaits it. On the loop."""
        assert self._over is not None  # it is done
        answer, error = self._over
        if self.future.done():
            return  # that task was cancelled
        if error is None:
            self.future.set_result(answer)
        else:
            self.future.set_exception(error)

    def carry_on(self, rest: Rest) -> None:
        """Have a thread do the rest when there is an answer: no task awaits it any more."""
        with self._lock:
            self._rest, over = rest, self._over
        if over is not None:
            if self.future.done() and not self.future.cancelled():
                self.future.exception()  # or asyncio reports that it was never asked for
            RESTS.do(rest, *over)


class _Results:
    """Receipts that are done, until the thread of their loop takes note of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[Receipt] = deque()
        self._called = False

    def add(self, receipt: Receipt) -> None:
        """Add one, and wake the loop unless it is being woken already. In any thread."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            self._waiting.clear()  # what is left of its tasks goes on without it: see carry_on()
            return
        self._waiting.append(receipt)
        if self._called:
            return
        self._called = True
        with contextlib.suppress(RuntimeError):  # it has been closed just now
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._called = False  # first: what comes from now on wakes the loop again
        while self._waiting:
            self._waiting.popleft().settle()


_results: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Results]]] = (
    weakref.WeakKeyDictionary()
)
"""Only receipts hold them: they refer to futures, and so to the loop itself."""


def _results_for(loop: asyncio.AbstractEventLoop) -> _Results:
    known = _results.get(loop)
    found = None if known is None else known()
    if found is None:  # only the thread of the loop asks for those of a loop
        found = _Results(loop)
        _results[loop] = weakref.ref(found)
    return found


class _RestThread:
    """A thread that does the rest of calls whose callers have gone away, one after the other."""

    _thread: threading.Thread | None = None

    def __init__(self) -> None:
        self._reset_after_fork()
        after_fork(self, _RestThread._reset_after_fork)

    def do(self, rest: Rest, answer: Any, error: BaseException | None) -> None:
        """Do it soon; at the end of the interpreter, which starts no thread, do it here."""
        self._due.put((rest, answer, error))
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(
                target=self._live, args=(self._due,), name="lro-rest", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                self._do_all(self._due)
            else:
                self._thread = thread

    def _reset_after_fork(self) -> None:
        self._due: SimpleQueue[tuple[Rest, Any, BaseException | None]] = SimpleQueue()
        self._thread = None

    def _live(self, due: SimpleQueue[tuple[Rest, Any, BaseException | None]]) -> None:
        while True:
            self._do(*due.get())

    def _do_all(self, due: SimpleQueue[tuple[Rest, Any, BaseException | None]]) -> None:
        while not due.empty():
            self._do(*due.get())

    def _do(self, rest: Rest, answer: Any, error: BaseException | None) -> None:
        try:
            rest(answer, error)
        except BaseException as exc:
            log.info("a call whose caller had gone away has failed: %s", exc)


RESTS: Final = _RestThread()
