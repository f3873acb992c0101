"""The drivers: what is theirs and not the flows'."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import lro
import lro.wire
from lro_client import AsyncClient, Call, CallError, Client, Polling, PollTimeout, Reply
from lro_client._flow import drivers
from lro_client._flow.async_driver import AsyncDriver
from lro_client._flow.drivers import Driver
from lro_client._flow.steps import RunBlocking
from tests.client.faces import Awaited, Clock, Face
from tests.client.messages import NAME, TYPES, ResizeMetadata, ResizeResponse, packed
from tests.client.sockets import serving, silent

DONE = lro.wire.operation_from_json(
    {"name": NAME, "done": True, "response": packed("ResizeResponse", sizeBytes=3)},
    lro.TypeRegistry(),
)


class Fake:
    """A transport that does what the test says; ``calls`` are those that it was asked for."""

    def __init__(self, answer: Callable[[Call], Reply]) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self.closed = False
        self.bounds = False

    def send(self, call: Call) -> Reply:
        self.calls.append(call)
        return self.answer(call)

    def close(self) -> None:
        self.closed = True


class AsyncFake(Fake):
    """The same for an event loop."""

    async def send(self, call: Call) -> Reply:  # type: ignore[override]
        return super().send(call)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


def fake(face: Face, answer: Callable[[Call], Reply]) -> Any:
    """A transport of the face's colour."""
    return (Fake if face.name == "sync" else AsyncFake)(answer)


def test_a_transport_of_ones_own(face: Face) -> None:
    """Anything that answers calls is a transport; closing the client closes it."""
    transport = fake(face, lambda _: Reply(DONE))
    client = face.client("", transport=transport)
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(size_bytes=3)
    client.close()
    assert [call.verb for call in transport.calls] == ["WaitOperation"]
    assert transport.closed


def test_a_transport_that_keeps_to_times_needs_no_thread() -> None:
    """It is called in the caller's own thread."""
    threads = []

    def answer(_: Call) -> Reply:
        threads.append(threading.current_thread())
        return Reply(DONE)

    for bounds in (True, False):
        transport = Fake(answer)
        transport.bounds = bounds
        Face().client("", transport=transport).operation(NAME, **TYPES).result(60)
    assert [one is threading.current_thread() for one in threads] == [True, False]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_the_callers_context_goes_along(timeout: float | None, face: Face) -> None:
    """Tracing finds the caller's span, in the thread of a hard call, too."""
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")
    seen = []

    def answer(_: Call) -> Reply:
        seen.append(span.get())
        return Reply(DONE)

    handle = face.client("", transport=fake(face, answer)).operation(NAME, **TYPES)
    token = span.set("caller")
    try:
        handle.result(timeout)
    finally:
        span.reset(token)
    assert seen == ["caller"]


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("defect", [ZeroDivisionError, TimeoutError, KeyboardInterrupt])
def test_defects_of_a_transport(
    defect: type[BaseException], timeout: float | None, face: Face
) -> None:
    """What is no failed call is raised as it is, even if it is called a time-out."""
    if face.name == "async" and defect is KeyboardInterrupt:
        defect = ArithmeticError  # an interrupt is the event loop's to handle

    def answer(_: Call) -> Reply:
        raise defect("inside")

    handle = face.client("", transport=fake(face, answer)).operation(NAME, **TYPES)
    with pytest.raises(defect, match="inside"):
        handle.result(timeout)


def test_a_blocking_transport_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller returns, and the thread ends when the transport does."""
    monkeypatch.setattr(drivers, "MAX_IDLE_THREADS", 0)
    drivers.CALL_THREADS.forget()  # those of other tests
    before, over = {*threading.enumerate()}, threading.Event()

    def answer(_: Call) -> Reply:
        over.wait(120)
        return Reply(DONE)

    face = Face()
    handle = face.client("", transport=Fake(answer)).operation(NAME, **TYPES)
    with pytest.raises(PollTimeout):
        handle.result(0.01)
    [left] = {*threading.enumerate()} - before
    assert left.daemon
    over.set()
    left.join(120)
    assert not left.is_alive()


def test_a_failure_is_raised_once(face: Face, clock: Clock) -> None:
    """The error that a flow gives up on is the transport's own, with its own traceback."""
    error = CallError("GetOperation", lro.Status(lro.Code.PERMISSION_DENIED, "no"))

    def answer(_: Call) -> Reply:
        raise error

    client = face.client("", transport=fake(face, answer), clock=clock)
    with pytest.raises(CallError) as caught:
        client.get(NAME)
    assert caught.value is error
    assert any(entry.name == "answer" for entry in caught.traceback)


def test_a_handle_can_be_awaited() -> None:
    """Awaiting it is awaiting its result."""

    async def main() -> Any:
        async with AsyncClient(transport=AsyncFake(lambda _: Reply(DONE))) as client:
            return await client.operation(NAME, response=ResizeResponse, metadata=ResizeMetadata)

    assert asyncio.run(main()) == ResizeResponse(size_bytes=3)


class Held(AsyncFake):
    """Holds every call until it is released, and counts those that were cancelled."""

    def __init__(self) -> None:
        super().__init__(lambda _: Reply(DONE))
        self.released = asyncio.Event()
        self.cancelled = 0

    async def send(self, call: Call) -> Reply:  # type: ignore[override]
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().send(call)


def test_a_cancelled_task_cancels_its_call() -> None:
    """The call in flight ends with the task that waits; the operation hears nothing of it."""

    async def main() -> tuple[int, list[Call]]:
        transport = Held()
        client = AsyncClient(transport=transport)
        waiting = asyncio.create_task(client.operation(NAME, **TYPES).wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return transport.cancelled, transport.calls

    assert asyncio.run(main()) == (1, [])


def test_a_deadline_of_the_callers_own() -> None:
    """``asyncio.timeout`` around a wait is the caller's, and stays a TimeoutError."""

    async def main() -> None:
        client = AsyncClient(transport=Held())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.operation(NAME, **TYPES).result(60)

    asyncio.run(main())


def test_many_wait_on_one_loop() -> None:
    """A wait blocks no other wait."""

    async def wait(client: AsyncClient) -> Any:
        return await client.operation(NAME, **TYPES).result()

    async def main() -> list[Any]:
        transport = Held()
        client = AsyncClient(transport=transport)
        gathered = asyncio.gather(*[wait(client) for _ in range(100)])
        await asyncio.sleep(0)
        transport.released.set()
        return await gathered

    assert asyncio.run(main()) == [ResizeResponse(size_bytes=3)] * 100


def test_sleeping_is_the_callers_to_choose(face: Face, clock: Clock) -> None:
    """A client keeps to the clock and the sleep that it was given."""
    replies = [Reply(DONE), Reply(lro.Operation(name=NAME))]
    client = face.client(
        "",
        transport=fake(face, lambda _: replies.pop()),
        clock=clock,
        polling=Polling(wait_first=False, wait=lambda _: 5000.0, jitter=0.0),
    )
    client.operation(NAME, **TYPES).wait()
    assert clock.sleeps == [5000.0]


def closing(
    face: Face, client: Any, timeout: float | None, asked: threading.Event
) -> BaseException:
    """What a lone wait ends with, whose client is closed once its server was ``asked``."""
    if face.name == "sync":
        handle = client.operation(NAME, **TYPES)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(handle.result, timeout)
            assert asked.wait(120)
            client.close()
            error = waiting.exception(120)
            assert error is not None
            return error
    inner = face.inside(client)

    async def main() -> BaseException:
        waiting = asyncio.create_task(inner.operation(NAME, **TYPES).result(timeout))
        assert await asyncio.to_thread(asked.wait, 120)
        await inner.close()
        [error] = await asyncio.gather(waiting, return_exceptions=True)
        return error

    return face.run(lambda: asyncio.wait_for(main(), 120))  # type: ignore[no-any-return]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_closing_ends_a_lone_wait(timeout: float | None, face: Face) -> None:
    """In a held call: it raises that the client was closed, as those in groups do."""
    asked = threading.Event()

    def receive(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(1, socket.MSG_PEEK)
        asked.set()
        silent(connection, over)

    with serving(receive) as url:
        made = Client if face.name == "sync" else AsyncClient
        client = made(url) if face.name == "sync" else Awaited(face, made(url))  # type: ignore[arg-type]
        error = closing(face, client, timeout, asked)
    assert isinstance(error, CallError)
    assert error.code is lro.Code.CANCELLED
    assert "the client was closed" in str(error)


@pytest.mark.parametrize("timeout", [None, 6000.0])
def test_closing_ends_a_pause(timeout: float | None, face: Face) -> None:
    """Which would have been of an hour."""
    asked = threading.Event()

    def answer(call: Call) -> Reply:
        asked.set()
        busy = lro.Status(lro.Code.UNAVAILABLE, "busy")
        raise CallError(call.verb, busy, retry_after=3600.0)

    client = face.client("", transport=fake(face, answer))
    error = closing(face, client, timeout, asked)
    assert isinstance(error, CallError)
    assert error.code is lro.Code.CANCELLED
    assert "the client was closed" in str(error)


def test_a_closed_client_says_so(face: Face) -> None:
    """A later call by it raises the same, not what the HTTP library makes of it."""
    client = (
        Client("http://test") if face.name == "sync" else Awaited(face, AsyncClient("http://test"))  # type: ignore[arg-type]
    )
    client.close()
    with pytest.raises(CallError, match="CANCELLED: the client was closed"):
        client.get(NAME)


def test_another_runtime_error_is_raised_unchanged(face: Face) -> None:
    """A defect is raised as it is."""

    def fail(_: httpx.Request) -> httpx.Response:
        raise RuntimeError("of a transport")

    client = face.client(http=face.http(transport=httpx.MockTransport(fail)))
    with pytest.raises(RuntimeError, match="of a transport"):
        client.get(NAME)


def broken() -> Any:
    """A flow that fails."""
    yield RunBlocking(lambda: None)
    raise ZeroDivisionError("inside")


def test_what_fails_aside_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """No caller waits who could get the error."""
    Driver(Fake(lambda _: Reply(DONE)), time.monotonic, time.sleep).start(broken())

    async def main() -> None:
        driver = AsyncDriver(AsyncFake(lambda _: Reply(DONE)), asyncio.sleep)
        driver.start(broken())
        await asyncio.gather(*driver._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert drivers.CALL_THREADS.call(lambda: 1, 10, set()) == 1
    failed = [one for one in caplog.records if "has failed" in one.message]
    assert failed
    assert all(isinstance(one.exc_info[1], ZeroDivisionError) for one in failed if one.exc_info)


def test_an_item_that_comes_as_the_clock_leaps_to_the_end_is_taken() -> None:
    """The thread had looked just before, and the clock is at the end when it looks again."""
    looks = iter([0.0, 5.0, 40.0])

    def clock() -> float:
        now = next(looks)
        if now == 40.0:
            channel.put("ended at 39")
        return now

    channel = drivers.ThreadChannel(clock)
    assert channel.take(30.0) == "ended at 39"
