"""The two drivers that obey flows: one blocks, one awaits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import attrs

from lro_client._errors import again, too_late
from lro_client._flow.channels import LoopChannel, ThreadChannel, until
from lro_client._flow.steps import (
    AsyncTransport,
    Call,
    Emit,
    Enough,
    Flow,
    Gather,
    Idle,
    Receive,
    Reply,
    RunBlocking,
    Sleep,
    Step,
    Stream,
    Transport,
)
from lro_client._flow.threads import CALL_THREADS, Late

R = TypeVar("R")

log = logging.getLogger("lro_client")


@attrs.frozen
class Finished(Generic[R]):
    """The flow wants nothing more: this is what it returned."""

    value: R


def advance(flow: Flow[R], found: object) -> Step | Finished[R]:
    """Tell a flow what became of its last step, and get the next one.

    The end is a value here, since a StopIteration cannot pass through a coroutine (PEP 479).
    """
    try:
        return flow.throw(found) if isinstance(found, Exception) else flow.send(found)
    except StopIteration as end:
        return Finished(end.value)


class Driver:
    """Obeys flows in this thread, and lanes in threads that are lent for it."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.transport = transport
        self._sleep = sleep
        self._clock = None if sleep is time.sleep else clock
        self._rung, self._closed = threading.Event(), threading.Event()
        self._error = Exception()
        self._process = os.getpid()

    def here(self) -> object:
        """Where flows run aside: in a forked process none of them goes on."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._rung, self._closed = threading.Event(), threading.Event()
        return self._process

    def close(self, error: Exception) -> None:
        """End all pauses: who wakes is told ``error``."""
        self._error = error
        self._closed.set()

    def run(self, flow: Flow[R]) -> R:
        """What the flow returns in the end."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                step = advance(flow, self._act(step))
            return step.value

    def walk(self, flow: Flow[R]) -> Iterator[Any]:
        """What the flow shows, one by one."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                if isinstance(step, Emit):
                    yield step.value
                step = advance(flow, self._act(step))

    def aside(self, flow: Flow[None]) -> None:
        """Have a flow run beside this thread."""
        CALL_THREADS.give(lambda: self.run(flow), _ended)

    def ring(self) -> None:
        """End the rest of the one flow that rests."""
        self._rung.set()

    def lanes(self, wanted: int) -> int:
        """How many flows may run aside: one where only sleeping takes time.

        With several threads, the time would pass that one sleeps while another is at work.
        """
        return wanted if self._clock is None else 1

    def box(self) -> ThreadChannel:
        """A box that this driver can take from."""
        return ThreadChannel(self._clock)

    def _act(self, step: Step) -> object:
        try:
            return self._acted(step)
        except Exception as exc:  # is told to the flow, whose traceback says more
            return exc

    def _acted(self, step: Step) -> object:
        match step:
            case Sleep(seconds):
                if self._clock is not None:
                    self._sleep(seconds)
                elif self._closed.wait(seconds):
                    raise again(self._error)
            case Call():
                return self._send(step)
            case Gather(calls):
                return self._together(calls)
            case Receive(box, seconds):
                assert isinstance(box, ThreadChannel)
                return box.take(seconds)
            case Idle(seconds):
                self._rest(seconds)
            case Stream():
                with contextlib.suppress(Enough):
                    self.transport.stream(step.call, step.sink)  # type: ignore[attr-defined]  # offered
            case RunBlocking(function):
                return function()
        return None

    def _together(self, calls: Sequence[Call]) -> list[object]:
        # Each keeps to its budget by itself.
        box: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        for place, call in enumerate(calls):
            CALL_THREADS.give(
                functools.partial(self._act, call),
                lambda found, place=place: box.put((place, found[0] or found[1])),  # type: ignore[misc]
            )
        return [found for _, found in sorted((box.get() for _ in calls), key=lambda pair: pair[0])]

    def _send(self, call: Call) -> Reply:
        transport = self.transport
        if getattr(transport, "bounds", False):
            return transport.send(call)
        try:
            return CALL_THREADS.ask(lambda: transport.send(call), call.budget, set())
        except Late:
            raise too_late(call.verb, call.budget) from None

    def _rest(self, seconds: float) -> None:
        if self._clock is None:
            self._rung.wait(seconds)
        else:
            self._sleep(seconds)
        self._rung.clear()


class AsyncDriver:
    """Obeys flows on the running event loop, and lanes as tasks of it."""

    def __init__(
        self, transport: AsyncTransport, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.transport = transport
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()
        self._rung, self._closed = asyncio.Event(), asyncio.Event()
        self._error = Exception()
        self._loop: asyncio.AbstractEventLoop | None = None

    def here(self) -> object:
        """Where flows run aside: on another event loop none of them goes on."""
        with contextlib.suppress(RuntimeError):  # no loop runs where something is cleaned away
            loop = asyncio.get_running_loop()
            if loop is not self._loop:
                self._loop, self._tasks = loop, set()
                self._rung, self._closed = asyncio.Event(), asyncio.Event()
        return self._loop

    def close(self, error: Exception) -> None:
        """End all pauses: who wakes is told ``error``."""
        self._error = error
        self._closed.set()

    async def run(self, flow: Flow[R]) -> R:
        """What the flow returns in the end."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                step = advance(flow, await self._act(step))
            return step.value

    async def walk(self, flow: Flow[R]) -> AsyncGenerator[Any, None]:
        """What the flow shows, one by one."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                if isinstance(step, Emit):
                    yield step.value
                step = advance(flow, await self._act(step))

    def aside(self, flow: Flow[None]) -> None:
        """Have a flow run beside this task."""
        task = asyncio.get_running_loop().create_task(self.run(flow))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def ring(self) -> None:
        """End the rest of the one flow that rests."""
        self._rung.set()

    def lanes(self, wanted: int) -> int:
        """How many flows may run aside."""
        return wanted

    def box(self) -> LoopChannel:
        """A box that this driver can take from."""
        return LoopChannel(self._sleep)

    async def end(self) -> None:
        """End all flows that run aside."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            _ended((None, task.exception()))

    async def _act(self, step: Step) -> object:
        try:
            return await self._acted(step)
        except Exception as exc:  # is told to the flow, whose traceback says more
            return exc

    async def _acted(self, step: Step) -> object:
        match step:
            case Sleep(seconds):
                if self._sleep is not asyncio.sleep:
                    await self._sleep(seconds)
                    return None
                await until(self._closed.wait(), seconds, self._sleep)
                if self._closed.is_set():
                    raise again(self._error)
            case Call():
                return await self._send(step)
            case Gather(calls):
                return await asyncio.gather(*map(self._act, calls))
            case Receive(box, seconds):
                assert isinstance(box, LoopChannel)
                return await box.take(seconds)
            case Idle(seconds):
                await self._rest(seconds)
            case Stream():
                with contextlib.suppress(Enough):
                    await self.transport.stream(step.call, step.sink)  # type: ignore[attr-defined]  # offered
            case RunBlocking(function):
                return await asyncio.to_thread(function)
        return None

    async def _send(self, call: Call) -> Reply:
        limit = asyncio.timeout(call.budget)
        try:
            async with limit:
                return await self.transport.send(call)
        except TimeoutError:
            if limit.expired():
                raise too_late(call.verb, call.budget) from None
            raise

    async def _rest(self, seconds: float) -> None:
        await until(self._rung.wait(), seconds, self._sleep)
        self._rung.clear()


def _ended(found: tuple[object, BaseException | None]) -> None:
    if found[1] is not None:
        log.error("what waits for many operations has failed", exc_info=found[1])
