"""The two drivers that obey flows: one blocks, one awaits."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any as Anything
from typing import Generic, TypeVar

import attrs

from lro_client._calls import AsyncTransport, Call, Flow, Pause, Reply, Show, Step, Transport
from lro_client._errors import CallError, too_late

R = TypeVar("R")


@attrs.frozen
class Finished(Generic[R]):
    """The flow wants nothing more: this is what it returned."""

    value: R


def advance(flow: Flow[R], found: Reply | CallError | None) -> Step | Finished[R]:
    """Tell a flow what became of its last step, and get the next one.

    The end is a value here, since a StopIteration cannot pass through a coroutine (PEP 479).
    """
    try:
        return flow.throw(found) if isinstance(found, CallError) else flow.send(found)
    except StopIteration as end:
        return Finished(end.value)


@attrs.frozen
class Driver:
    """Obeys flows in this thread."""

    transport: Transport
    sleep: Callable[[float], None]

    def run(self, flow: Flow[R]) -> R:
        """What the flow returns in the end."""
        step = advance(flow, None)
        while not isinstance(step, Finished):
            step = advance(flow, self._act(step))
        return step.value

    def walk(self, flow: Flow[R]) -> Iterator[Anything]:
        """What the flow shows, one by one."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                if isinstance(step, Show):
                    yield step.value
                step = advance(flow, self._act(step))

    def _act(self, step: Step) -> Reply | CallError | None:
        if isinstance(step, Pause):
            self.sleep(step.seconds)
        elif isinstance(step, Call):
            try:
                return _bounded(self.transport, step) if step.hard else self.transport.send(step)
            except CallError as exc:
                return exc
        return None


@attrs.frozen
class AsyncDriver:
    """Obeys flows on the running event loop."""

    transport: AsyncTransport
    sleep: Callable[[float], Awaitable[None]]

    async def run(self, flow: Flow[R]) -> R:
        """What the flow returns in the end."""
        step = advance(flow, None)
        while not isinstance(step, Finished):
            step = advance(flow, await self._act(step))
        return step.value

    async def walk(self, flow: Flow[R]) -> AsyncGenerator[Anything, None]:
        """What the flow shows, one by one."""
        with contextlib.closing(flow):
            step = advance(flow, None)
            while not isinstance(step, Finished):
                if isinstance(step, Show):
                    yield step.value
                step = advance(flow, await self._act(step))

    async def _act(self, step: Step) -> Reply | CallError | None:
        if isinstance(step, Pause):
            await self.sleep(step.seconds)
        elif isinstance(step, Call):
            try:
                return await self._send(step)
            except CallError as exc:
                return exc
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


def _bounded(transport: Transport, call: Call) -> Reply:
    # No timeout of a blocking HTTP library bounds a whole exchange: each covers one read, so that
    # a server which drips bytes holds a caller for ever. The exchange gets a thread, which is left
    # behind at the deadline; its own timeouts end it later.
    box: queue.SimpleQueue[Reply | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            box.put(transport.send(call))
        except BaseException as exc:
            box.put(exc)

    context = contextvars.copy_context()  # tracing libraries keep the caller's span in it
    name = "lro-client-call"
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    try:
        found = box.get(timeout=call.budget)
    except queue.Empty:
        raise too_late(call.verb, call.budget) from None
    if isinstance(found, BaseException):
        raise found
    return found
