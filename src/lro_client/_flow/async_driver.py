"""The driver that runs flows on an event loop."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import functools
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeVar

from lro_client._errors import again, too_late
from lro_client._flow.by_loop import ByLoop
from lro_client._flow.drivers import Finished, advance, log_ended
from lro_client._flow.steps import (
    AsyncTransport,
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
    YieldValue,
)

R = TypeVar("R")

_OWED: Final = contextvars.ContextVar("lro_client_owed", default=False)
"""True in a flow of :meth:`AsyncDriver.leave`. Closing the client waits for such flows."""


class LoopChannel:
    """A channel to a coroutine on one event loop."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._sleep = sleep
        self._items: collections.deque[Any] = collections.deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, seconds: float | None) -> Any:
        """Return the next item, or None after ``seconds`` without one."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await wait_at_most(self._waiter, seconds, self._sleep)
        return self._items.popleft() if self._items else None


async def wait_at_most(
    event: Awaitable[Any], seconds: float | None, sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Wait for an event, but for at most ``seconds``."""
    if seconds is None:
        await event
        return
    waited: list[asyncio.Future[Any]] = [asyncio.ensure_future(event)]
    real = sleep is asyncio.sleep
    if not real:
        waited.append(asyncio.ensure_future(sleep(seconds)))
    try:
        limit = seconds if real else None
        await asyncio.wait(waited, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waited:
            one.cancel()


class _Loop:
    """The tasks and pauses of one event loop."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.leaving: set[asyncio.Task[Any]] = set()
        self.limits: set[asyncio.Timeout] = set()
        self.woken, self.closed = asyncio.Event(), asyncio.Event()

    def close(self) -> None:
        """End all pauses and calls.

        Closing an HTTP client does not end a call that still connects.
        """
        self.closed.set()
        for limit in self.limits:
            if not limit.expired():
                limit.reschedule(0.0)

    async def stop(self) -> None:
        """Finish the flows of :meth:`AsyncDriver.leave`, then cancel all background flows."""
        await asyncio.gather(*self.leaving, return_exceptions=True)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class AsyncDriver:
    """Runs flows on the running event loop, and background flows as the loop's tasks.

    Several event loops may run at once, each in its own thread.
    """

    def __init__(
        self, transport: AsyncTransport, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.transport = transport
        self._sleep = sleep
        self._loops: ByLoop[_Loop] = ByLoop(self._new_loop)
        self._error: Exception | None = None
        self._closing: asyncio.Task[None] | None = None

    def _new_loop(self) -> _Loop:
        made = _Loop()
        if self._error is not None:
            made.closed.set()
        return made

    def place(self) -> object:
        """Return the running event loop. Background flows cannot move to another loop."""
        try:
            return asyncio.get_running_loop()
        except RuntimeError:  # no loop runs, for example during garbage collection
            return None

    def is_past(self, place: object) -> bool:
        """Return True if ``place`` is a closed event loop."""
        return not isinstance(place, asyncio.AbstractEventLoop) or place.is_closed()

    def at(self, place: object, act: Callable[[], object]) -> None:
        """Call ``act`` on the event loop ``place``."""
        if place is self.place():
            act()
        elif isinstance(place, asyncio.AbstractEventLoop) and place.is_running():
            place.call_soon_threadsafe(act)

    def close(self, error: Exception) -> None:
        """End all pauses and calls, which then raise ``error``."""
        self._error = error
        self._loops.everywhere(_Loop.close)

    async def run(self, flow: Flow[R]) -> R:
        """Run a flow, and return its result."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                step = advance(flow, await self._act(step))
            return step.value

    async def iterate(self, flow: Flow[R]) -> AsyncGenerator[Any, None]:
        """Run a flow, and yield the values that it yields."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                if isinstance(step, YieldValue):
                    yield step.value
                    step = advance(flow, None)
                else:
                    step = advance(flow, await self._act(step))

    def start(self, flow: Flow[None]) -> None:
        """Run a flow in the background."""
        # Made without the loop's task factory: an eager factory would run the flow's first step
        # now, while the caller holds a lock.
        task = asyncio.Task(self.run(flow), loop=asyncio.get_running_loop())
        tasks = self._loops.here().tasks
        tasks.add(task)
        task.add_done_callback(functools.partial(_ended, tasks))

    async def leave(self, flow: Flow[R]) -> R:
        """Run a flow when an ``async with`` block is left, even if the current task is cancelled.

        The cancellation is raised after the end of the flow.
        """
        context = contextvars.copy_context()
        context.run(_OWED.set, True)
        task = asyncio.Task(self.run(flow), loop=asyncio.get_running_loop(), context=context)
        leaving = self._loops.here().leaving
        leaving.add(task)
        task.add_done_callback(functools.partial(_left, leaving))
        cancelled: asyncio.CancelledError | None = None
        with shielded():
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as exc:
                    cancelled = exc
        if cancelled is not None:
            raise cancelled
        return task.result()

    def wake(self) -> None:
        """End the ``SleepUntilWoken`` of the one flow that sleeps."""
        self._loops.here().woken.set()

    def max_pollers(self, wanted: int) -> int:
        """Return the maximum number of background flows."""
        return wanted

    def channel(self) -> LoopChannel:
        """Return a channel that this driver can receive from."""
        return LoopChannel(self._sleep)

    async def shut_down(self, end_waits: Callable[[], object]) -> None:
        """End all waits, finish the flows of :meth:`leave`, then stop everything else."""
        if self._closing is None:  # closed in a new task, because this one may be cancelled
            closing = self._shut_down(end_waits)
            self._closing = asyncio.Task(closing, loop=asyncio.get_running_loop())
        with shielded():
            await asyncio.shield(self._closing)

    async def _shut_down(self, end_waits: Callable[[], object]) -> None:
        end_waits()
        await self._loops.end_all(_Loop.stop)
        await self.transport.close()

    async def _act(self, step: Step) -> object:
        try:
            return await self._do(step)
        except Exception as exc:  # raised again within the flow, where the traceback says more
            return exc

    async def _do(self, step: Step) -> object:
        match step:
            case Call():
                return await self._send(step)
            case Sleep(seconds):
                if self._sleep is not asyncio.sleep:
                    await self._sleep(seconds)
                    return None
                closed = self._loops.here().closed
                await wait_at_most(closed.wait(), seconds, self._sleep)
                if closed.is_set():
                    assert self._error is not None
                    raise again(self._error)
            case Gather(calls):
                return await asyncio.gather(*map(self._act, calls))
            case Receive(box, seconds):
                assert isinstance(box, LoopChannel)
                return await box.take(seconds)
            case SleepUntilWoken(seconds):
                await self._idle(seconds)
            case Stream():
                with contextlib.suppress(StopStream):
                    await self.transport.stream(step.call, step.sink)  # type: ignore[attr-defined]  # it streams
        return None

    async def _send(self, call: Call) -> Reply:
        limit, limits = asyncio.timeout(call.budget), self._loops.here().limits
        try:
            async with limit:
                if not _OWED.get():
                    limits.add(limit)
                return await self.transport.send(call)
        except TimeoutError:
            if not limit.expired():
                raise
            late = too_late(call.verb, call.budget)
            raise (late if self._error is None else again(self._error)) from None
        finally:
            limits.discard(limit)

    async def _idle(self, seconds: float) -> None:
        woken = self._loops.here().woken
        await wait_at_most(woken.wait(), seconds, self._sleep)
        woken.clear()


def shielded() -> contextlib.AbstractContextManager[object]:
    """Return a context that is shielded from a cancelled scope of anyio.

    Without the shield, a cancelled scope cancels every ``await``, again and again.
    """
    anyio = sys.modules.get("anyio")  # if anyio was not imported, there are no scopes
    return contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True)


def _ended(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.discard(task)
    if not task.cancelled():
        log_ended((None, task.exception()))


def _left(leaving: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    leaving.discard(task)
    _ = task.cancelled() or task.exception()  # asyncio may log an exception that is never read
