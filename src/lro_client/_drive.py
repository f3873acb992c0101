"""The two drivers that obey flows: one blocks, one awaits."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any as Anything
from typing import TypeVar

import attrs

from lro import Code, Status
from lro_client._calls import AsyncTransport, Call, Flow, Pause, Reply, Show, Transport
from lro_client._errors import CallError

R = TypeVar("R")


@attrs.frozen
class Driver:
    """Obeys flows in this thread."""

    transport: Transport
    sleep: Callable[[float], None]

    def run(self, flow: Flow[R]) -> R:
        """What the flow returns in the end."""
        steps = self.walk(flow)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: R = end.value
                return result

    def walk(self, flow: Flow[R]) -> Generator[Anything, None, R]:
        """What the flow shows, one by one."""
        act = self._act
        try:
            step = next(flow)
            while True:
                if isinstance(step, Show):
                    yield step.value
                    step = flow.send(None)
                    continue
                try:
                    found = act(step)
                except CallError as exc:
                    step = flow.throw(exc)
                else:
                    step = flow.send(found)
        except StopIteration as end:
            last: R = end.value
            return last

    def _act(self, step: Call | Pause) -> Reply | None:
        if isinstance(step, Pause):
            self.sleep(step.seconds)
            return None
        if step.hard and step.budget is not None:
            return _bounded(lambda: self.transport.send(step), step)
        return self.transport.send(step)


@attrs.frozen
class AsyncDriver:
    """Obeys flows on the running event loop."""

    transport: AsyncTransport
    sleep: Callable[[float], Awaitable[None]]

    async def run(self, flow: Flow[R]) -> R:
        """What the flow returns in the end."""
        try:
            step = next(flow)
            while True:
                step = await self._next(flow, step)
        except StopIteration as end:
            result: R = end.value
            return result

    async def walk(self, flow: Flow[R]) -> AsyncIterator[Anything]:
        """What the flow shows, one by one."""
        try:
            step = next(flow)
            while True:
                if isinstance(step, Show):
                    yield step.value
                step = await self._next(flow, step)
        except StopIteration:
            return

    async def _next(self, flow: Flow[R], step: Call | Pause | Show) -> Call | Pause | Show:
        if isinstance(step, Show):
            return flow.send(None)
        try:
            found = await self._act(step)
        except CallError as exc:
            return flow.throw(exc)
        return flow.send(found)

    async def _act(self, step: Call | Pause) -> Reply | None:
        if isinstance(step, Pause):
            await self.sleep(step.seconds)
            return None
        try:
            async with asyncio.timeout(step.budget if step.hard else None):
                return await self.transport.send(step)
        except TimeoutError:
            raise _too_late(step) from None


def _too_late(call: Call) -> CallError:
    text = f"no complete answer within {call.budget:.3g} s"
    return CallError(call.verb, Status(Code.DEADLINE_EXCEEDED, text), passing=True)


def _bounded(send: Callable[[], Reply], call: Call) -> Reply:
    # No timeout of a blocking HTTP library bounds a whole exchange: each covers one read, so that
    # a server which drips bytes holds a caller for ever. The exchange gets a thread which we leave
    # behind at the deadline; its own timeouts end it later.
    box: queue.SimpleQueue[Reply | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            box.put(send())
        except BaseException as exc:
            box.put(exc)

    threading.Thread(target=work, name="lro-client-call", daemon=True).start()
    try:
        found = box.get(timeout=call.budget)
    except queue.Empty:
        raise _too_late(call) from None
    if isinstance(found, BaseException):
        raise found
    return found
