"""Threads for calls that must end by a given time, whatever they do."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar, cast

R = TypeVar("R")
AnswerQueue: TypeAlias = "queue.SimpleQueue[tuple[object, BaseException | None]]"
"""Receives what a function returned or raised: (value, None) or (None, error)."""

MAX_IDLE_THREADS: Final = 8
"""Number of idle threads that are kept for the next calls."""

MAX_IDLE_SECONDS: Final = 10.0
"""How long an idle thread is kept."""


class Late(Exception):
    """The time was over first. The thread goes on alone, and its result is dropped."""


class CallThreads:
    """Makes calls in daemon threads, so that no call holds up the end of a process.

    No timeout of a blocking HTTP library bounds a whole exchange: each covers one read, so that a
    server which drips bytes holds its caller for ever. A thread can be left behind.
    """

    def __init__(self) -> None:
        self._idle: list[_CallThread] = []
        self._process = os.getpid()

    def forget(self) -> None:
        """Forget the idle threads: a forked process has none."""
        self._idle, self._process = [], os.getpid()

    def call(self, function: Callable[[], R], seconds: float, waiting: set[AnswerQueue]) -> R:
        """What the function returns or raises, if it does so within ``seconds``.

        Meanwhile the queue of the answer is in ``waiting``: a closing client puts an error there.

        Raises:
            Late: The function took longer.
        """
        answers: AnswerQueue = queue.SimpleQueue()
        waiting.add(answers)
        try:
            self.start(function, answers.put)
            found, error = answers.get(timeout=seconds)
        except queue.Empty:
            raise Late from None
        finally:
            waiting.discard(answers)
        if error is not None:
            raise error
        return cast(R, found)

    def start(
        self,
        function: Callable[[], object],
        report: Callable[[tuple[object, BaseException | None]], object],
    ) -> None:
        """Call the function in another thread, then ``report`` with what it returned or raised."""
        if self._process != os.getpid():  # the threads stayed in the process that was forked
            self.forget()
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = _CallThread(self._idle)
        # Tracing libraries keep the caller's span in the context.
        thread.tasks.put((contextvars.copy_context(), function, report))


_Task = tuple[
    contextvars.Context,
    Callable[[], object],
    Callable[[tuple[object, BaseException | None]], object],
]


class _CallThread:
    def __init__(self, idle: list[_CallThread]) -> None:
        self.tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._idle = idle
        threading.Thread(target=self._work, name="lro-client-call", daemon=True).start()

    def _work(self) -> None:
        kept = True
        while kept:
            try:
                task = self.tasks.get(timeout=MAX_IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(self)
                except ValueError:  # it was just taken: the task is on its way
                    continue
                return
            kept = self._run_task(*task)
            del task  # nothing is kept alive by an idle thread

    def _run_task(
        self,
        context: contextvars.Context,
        function: Callable[[], object],
        report: Callable[[tuple[object, BaseException | None]], object],
    ) -> bool:
        found: tuple[object, BaseException | None]
        try:
            found = context.run(function), None
        except BaseException as exc:
            found = None, exc
        kept = len(self._idle) < MAX_IDLE_THREADS
        if kept:
            self._idle.append(self)
        report(found)
        return kept


CALL_THREADS: Final = CallThreads()
"""Those of this process: however many clients there are, few threads are idle."""
