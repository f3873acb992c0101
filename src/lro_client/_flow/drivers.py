"""The driver that runs flows in the calling thread, and threads for calls with a time limit."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import attrs

from lro_client._errors import again, too_late
from lro_client._flow.steps import (
    Call,
    Flow,
    Gather,
    Receive,
    Reply,
    Sleep,
    SleepUntilWoken,
    Step,
    StopStream,
    Stream,
    Transport,
    YieldValue,
)

R = TypeVar("R")
AnswerQueue: TypeAlias = "queue.SimpleQueue[tuple[object, BaseException | None]]"
"""A queue for the outcome of a function: (value, None) or (None, error)."""

MAX_IDLE_THREADS: Final = 8
"""Maximum number of idle threads that are kept for the next calls."""

MAX_IDLE_SECONDS: Final = 10.0
"""Seconds for which an idle thread is kept."""


class CallTimedOut(Exception):
    """Raised if a function takes too long. Its thread continues, but the outcome is ignored."""


class CallDeadline(threading.local):
    """The deadline of the HTTP exchange that the current thread makes."""

    until: float | None = None


CALL_DEADLINE: Final = CallDeadline()


@contextlib.contextmanager
def ending_at(until: float) -> Iterator[None]:
    """Set a deadline for the exchanges that this thread makes in the block.

    Raises:
        CallTimedOut: The deadline has passed.
    """
    before, CALL_DEADLINE.until = CALL_DEADLINE.until, until
    try:
        yield
    finally:
        CALL_DEADLINE.until = before


class CallThreads:
    """Makes calls in daemon threads, so that no call delays the exit of the process.

    A blocking HTTP library cannot limit a whole exchange: its timeouts cover single reads, so a
    server that sends byte after byte can block a thread for ever. The caller can abandon
    such a thread.
    """

    def __init__(self) -> None:
        self._idle: list[_CallThread] = []
        self._process = os.getpid()

    def forget(self) -> None:
        """Forget the idle threads, which do not exist in a forked process."""
        self._idle, self._process = [], os.getpid()

    def call(self, function: Callable[[], R], seconds: float, waiting: set[AnswerQueue]) -> R:
        """Call a function in another thread, for at most ``seconds``, and return its result.

        During the call, ``waiting`` contains its result queue, so that a close can put an error
        into the queue.

        Raises:
            CallTimedOut: The function took longer.
        """
        answers: AnswerQueue = queue.SimpleQueue()
        waiting.add(answers)
        try:
            try:
                self.start(function, answers.put)
            except RuntimeError:  # no more threads, or the process exits (Python 3.12 and later)
                return function()  # limited only by the HTTP library's timeouts
            found, error = answers.get(timeout=seconds)
        except queue.Empty:
            raise CallTimedOut from None
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
        """Call a function in another thread, then ``report`` its outcome: a value or an error."""
        if self._process != os.getpid():  # a fork does not copy the threads
            self.forget()
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = _CallThread(self._idle)
        # The thread needs the caller's context, because tracing libraries keep the current span
        # there.
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
                except ValueError:  # a caller has just taken this thread; its task follows
                    continue
                return
            kept = self._run_task(*task)
            del task  # so that an idle thread keeps no objects alive

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
"""The threads of this process, shared by all clients."""


log: Final = logging.getLogger("lro_client")


@attrs.frozen(eq=False, repr=False)
class Finished(Generic[R]):
    """The result of a flow that has ended."""

    value: R


def advance(flow: Flow[R], found: object) -> Step | Finished[R]:
    """Send a flow the outcome of its last step, and return the next step.

    The flow's end is returned as a value, because a StopIteration cannot leave a coroutine
    (PEP 479).
    """
    try:
        return flow.throw(found) if isinstance(found, Exception) else flow.send(found)
    except StopIteration as end:
        return Finished(end.value)


def log_ended(found: tuple[object, BaseException | None]) -> None:
    if found[1] is not None:
        log.error("the poller of many operations has failed", exc_info=found[1])


_CLOCK_CHECK_SECONDS: Final = 0.01
"""Seconds between two reads of a virtual clock, which moves only while code sleeps on it."""


class ThreadChannel:
    """A channel to a thread. ``clock`` is a virtual clock, or None for real time."""

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._clock = clock
        self.put: Callable[[Any], None] = self._items.put

    def take(self, seconds: float | None) -> Any:
        """Return the next item, or None after ``seconds`` without one."""
        if self._clock is None or seconds is None:
            return self._take(seconds)
        end = self._clock() + seconds
        found = self._take(_CLOCK_CHECK_SECONDS)
        while found is None and self._clock() < end:
            found = self._take(_CLOCK_CHECK_SECONDS)
        # An item may have been added just before the clock reached the end.
        return self._take(0) if found is None else found

    def _take(self, seconds: float | None) -> Any:
        try:
            return self._items.get(timeout=seconds)
        except queue.Empty:
            return None


class Driver:
    """Runs flows in the calling thread, and background flows in the :data:`CALL_THREADS`."""

    def __init__(
        self, transport: Transport, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self.transport = transport
        self._sleep = sleep
        self._clock = None if sleep is time.sleep else clock
        self._woken, self._closed = threading.Event(), threading.Event()
        self._error = Exception()
        self._process = os.getpid()

    def place(self) -> object:
        """Return the process id. Background flows do not continue in a forked process."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._woken, self._closed = threading.Event(), threading.Event()
        return self._process

    def is_past(self, place: object) -> bool:
        """Return True if ``place`` is another process, from which this one was forked."""
        return place != os.getpid()

    def at(self, place: object, act: Callable[[], object]) -> None:
        """Call ``act`` unless ``place`` is another process."""
        if not self.is_past(place):
            act()

    def close(self, error: Exception) -> None:
        """End all pauses, which then raise ``error``."""
        self._error = error
        self._closed.set()

    def run(self, flow: Flow[R]) -> R:
        """Run a flow, and return its result."""
        try:
            step = advance(flow, None)
            while not isinstance(step, Finished):
                step = advance(flow, self._act(step))
            return step.value
        finally:
            flow.close()

    def iterate(self, flow: Flow[R]) -> Iterator[Any]:
        """Run a flow, and yield the values that it yields."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                if isinstance(step, YieldValue):
                    yield step.value
                    step = advance(flow, None)
                else:
                    step = advance(flow, self._act(step))

    def start(self, flow: Flow[None]) -> None:
        """Run a flow in the background."""
        CALL_THREADS.start(lambda: self.run(flow), log_ended)

    def leave(self, flow: Flow[R]) -> R:
        """Run a flow when a ``with`` block is left."""
        return self.run(flow)

    def shut_down(self, end_waits: Callable[[], object]) -> None:
        """End all waits, then close the transport."""
        end_waits()
        self.transport.close()

    def wake(self) -> None:
        """End the ``SleepUntilWoken`` of the one flow that sleeps."""
        self._woken.set()

    def max_pollers(self, wanted: int) -> int:
        """Return the maximum number of background flows.

        It is 1 with a virtual clock, because one thread could advance the clock while another
        thread is still at work. Otherwise it is ``wanted``.
        """
        return wanted if self._clock is None else 1

    def channel(self) -> ThreadChannel:
        """Return a channel that this driver can receive from."""
        return ThreadChannel(self._clock)

    def _act(self, step: Step) -> object:
        try:
            return self._do(step)
        except Exception as exc:  # raised again within the flow, where the traceback says more
            return exc

    def _do(self, step: Step) -> object:
        match step:
            case Call():
                return self._send(step)
            case Sleep(seconds):
                if self._clock is not None:
                    self._sleep(seconds)
                elif self._closed.wait(seconds):
                    raise again(self._error)
            case Gather(calls):
                return self._gather(calls)
            case Receive(box, seconds):
                assert isinstance(box, ThreadChannel)
                return box.take(seconds)
            case SleepUntilWoken(seconds):
                self._idle(seconds)
            case Stream():
                with contextlib.suppress(StopStream):
                    self.transport.stream(step.call, step.sink)  # type: ignore[attr-defined]  # it streams
        return None

    def _gather(self, calls: Sequence[Call]) -> list[object]:
        # No time limit is needed here, because each call observes its own budget.
        box: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        for place, call in enumerate(calls):
            try:
                CALL_THREADS.start(
                    functools.partial(self._act, call),
                    lambda found, place=place: box.put((place, found[0] or found[1])),  # type: ignore[misc]
                )
            except RuntimeError:  # no more threads can be started
                box.put((place, self._act(call)))
        return [found for _, found in sorted((box.get() for _ in calls), key=lambda pair: pair[0])]

    def _send(self, call: Call) -> Reply:
        transport = self.transport
        if getattr(transport, "bounds", False):
            return transport.send(call)
        try:
            return CALL_THREADS.call(lambda: transport.send(call), call.budget, set())
        except CallTimedOut:
            raise too_late(call.verb, call.budget) from None

    def _idle(self, seconds: float) -> None:
        if self._clock is None:
            self._woken.wait(seconds)
        else:
            self._sleep(seconds)
        self._woken.clear()
