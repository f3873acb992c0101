"""Threads that are lent for a call which must be over by a given time, whatever it does."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar, cast

R = TypeVar("R")
AnswerQueue: TypeAlias = "queue.SimpleQueue[tuple[object, BaseException | None]]"
"""Where it is put what a function gave or raised."""

MAX_IDLE_THREADS: Final = 8
"""So many idle threads are kept for the next calls."""

MAX_IDLE_SECONDS: Final = 10.0
"""So long an idle thread is kept."""


class Late(Exception):
    """The time was over first. The thread goes on alone, and what it finds is dropped."""


class CallThreads:
    """Does calls in other threads, which are daemons: no call can hold up the end of a process.

    No timeout of a blocking HTTP library bounds a whole exchange: each covers one read, so that a
    server which drips bytes holds its caller for ever. A thread can be left behind.
    """

    def __init__(self) -> None:
        self._idle: list[_CallThread] = []
        self._process = os.getpid()

    def forget(self) -> None:
        """Have no idle thread: in a forked process there are none."""
        self._idle, self._process = [], os.getpid()

    def call(self, function: Callable[[], R], seconds: float, asking: set[AnswerQueue]) -> R:
        """What the function gives or raises, if it does so within ``seconds``.

        Meanwhile ``asking`` has where the answer is put: another may be put there instead.

        Raises:
            Late: It does not.
        """
        box: AnswerQueue = queue.SimpleQueue()
        asking.add(box)
        try:
            self.start(function, box.put)
            found, error = box.get(timeout=seconds)
        except queue.Empty:
            raise Late from None
        finally:
            asking.discard(box)
        if error is not None:
            raise error
        return cast(R, found)

    def start(
        self,
        function: Callable[[], object],
        told: Callable[[tuple[object, BaseException | None]], object],
    ) -> None:
        """Have the function called in another thread, and ``told`` of what it gave or raised."""
        if self._process != os.getpid():  # the threads stayed in the process that was forked
            self.forget()
        try:
            hand = self._idle.pop()
        except IndexError:
            hand = _CallThread(self._idle)
        # Tracing libraries keep the caller's span in the context.
        hand.orders.put((contextvars.copy_context(), function, told))


_Task = tuple[
    contextvars.Context,
    Callable[[], object],
    Callable[[tuple[object, BaseException | None]], object],
]


class _CallThread:
    def __init__(self, idle: list[_CallThread]) -> None:
        self.orders: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._idle = idle
        threading.Thread(target=self._work, name="lro-client-call", daemon=True).start()

    def _work(self) -> None:
        kept = True
        while kept:
            try:
                order = self.orders.get(timeout=MAX_IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(self)
                except ValueError:  # it was just taken: the order is on its way
                    continue
                return
            kept = self._obey(*order)
            del order  # nothing is kept alive by an idle thread

    def _obey(
        self,
        context: contextvars.Context,
        function: Callable[[], object],
        told: Callable[[tuple[object, BaseException | None]], object],
    ) -> bool:
        found: tuple[object, BaseException | None]
        try:
            found = context.run(function), None
        except BaseException as exc:
            found = None, exc
        kept = len(self._idle) < MAX_IDLE_THREADS
        if kept:
            self._idle.append(self)
        told(found)
        return kept


CALL_THREADS: Final = CallThreads()
"""Those of this process: however many clients there are, few threads are idle."""
