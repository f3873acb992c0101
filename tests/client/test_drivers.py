"""The drivers of client flows: transports, threads, deadlines and closing."""

from __future__ import annotations

import asyncio
import contextlib
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
from lro_client import AsyncClient, CallError, PollTimeout
from lro_client._flow import drivers
from lro_client._flow.async_driver import AsyncDriver
from lro_client._flow.drivers import Driver
from lro_client._flow.steps import Sleep
from lro_client.transports import Call, Reply
from tests.client.faces import Face
from tests.client.messages import NAME, TYPES, ResizeResponse, packed
from tests.client.sockets import serving, silent
from tests.interleaving import interleaved
from tests.waiting import until, until_async

DONE = lro.wire.operation_from_json(
    {"name": NAME, "done": True, "response": packed("ResizeResponse", sizeBytes=3)},
    lro.TypeRegistry(),
)


class Fake:
    """A transport that answers with a given function, and records the ``calls`` it received."""

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
    """The same transport as ``Fake``, but async."""

    async def send(self, call: Call) -> Reply:  # type: ignore[override]
        return super().send(call)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


def fake(face: Face, answer: Callable[[Call], Reply]) -> Any:
    """Make a transport for the blocking or async client."""
    return (Fake if face.name == "sync" else AsyncFake)(answer)


def test_any_object_that_answers_calls_can_be_a_transport(face: Face) -> None:
    """Any object that answers calls can be a transport. Closing the client closes the transport."""
    transport = fake(face, lambda _: Reply(DONE))
    client = face.client("", transport=transport)
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(size_bytes=3)
    client.close()
    assert [call.verb for call in transport.calls] == ["WaitOperation"]
    assert transport.closed


def test_transport_with_its_own_timeouts_is_called_without_a_thread() -> None:
    """A transport that enforces timeouts itself is called in the caller's own thread."""
    threads = []

    def answer(_: Call) -> Reply:
        threads.append(threading.current_thread())
        return Reply(DONE)

    for bounds in (True, False):
        transport = Fake(answer)
        transport.bounds = bounds
        Face().client("", transport=transport).operation(NAME, **TYPES).result(60)
    assert [one is threading.current_thread() for one in threads] == [True, False]


def test_final_state_is_not_undone_by_another_thread() -> None:
    """An older answer that a thread is taking does not undo the final state (spec §2.9)."""
    answers = [lro.Operation(name=NAME)]
    transport = Fake(lambda _: Reply(answers[-1]))
    transport.bounds = True
    client, handle = Face().client("", transport=transport), None

    def pair() -> tuple[Callable[[], object], Callable[[], object]]:
        nonlocal handle
        handle = client.operation(NAME, **TYPES)

        def end() -> None:
            answers.append(DONE)
            handle.refresh()
            answers.pop()

        return handle.refresh, end

    for _ in interleaved(pair):
        assert handle.done


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_transport_sees_the_callers_context_variables(timeout: float | None, face: Face) -> None:
    """The transport sees the caller's context variables, even when it runs in a call thread."""
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
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("inside"),
        TimeoutError("inside"),
        KeyboardInterrupt("inside"),
        CallError("GetOperation", lro.Status(lro.Code.PERMISSION_DENIED, "inside")),
    ],
    ids=lambda given: type(given).__name__,
)
def test_errors_of_a_transport_are_raised_unchanged(
    error: BaseException, timeout: float | None, face: Face
) -> None:
    """An error of a transport keeps its traceback, even if it is a TimeoutError."""
    if face.name == "async" and isinstance(error, KeyboardInterrupt):
        error = ArithmeticError("inside")  # the event loop handles KeyboardInterrupt

    def answer(_: Call) -> Reply:
        raise error

    handle = face.client("", transport=fake(face, answer)).operation(NAME, **TYPES)
    with pytest.raises(type(error), match="inside") as caught:
        handle.result(timeout)
    assert caught.value is error
    assert any(entry.name == "answer" for entry in caught.traceback)


def test_caller_of_a_blocking_transport_returns_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller returns at the deadline; the call thread ends when the transport returns."""
    monkeypatch.setattr(drivers, "MAX_IDLE_THREADS", 0)
    drivers.CALL_THREADS.forget()  # drop the idle threads of other tests
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


class Held(AsyncFake):
    """A transport that never answers, and counts the calls that were cancelled."""

    cancelled = 0

    async def send(self, call: Call) -> Reply:  # type: ignore[override]
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        return Reply(DONE)


def test_a_cancelled_task_cancels_its_call() -> None:
    """Cancelling the task that waits cancels the task's call, but not the operation.

    A TimeoutError of ``asyncio.timeout`` around a wait stays a TimeoutError.
    """

    async def main() -> tuple[int, list[Call]]:
        transport = Held(lambda _: Reply(DONE))
        client = AsyncClient(transport=transport)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.operation(NAME, **TYPES)
        waiting = asyncio.create_task(client.operation(NAME, **TYPES).wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return transport.cancelled, transport.calls

    assert asyncio.run(main()) == (2, [])


def closing(
    face: Face, client: Any, timeout: float | None, asked: threading.Event
) -> BaseException:
    """Return the error of a single wait whose client is closed once ``asked`` is set."""
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


def silent_server(face: Face, asked: threading.Event, stack: contextlib.ExitStack) -> Any:
    """Make a client of a server that never answers a call."""

    def receive(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(1, socket.MSG_PEEK)
        asked.set()
        silent(connection, over)

    return face.make(stack.enter_context(serving(receive)))


def busy_server(face: Face, asked: threading.Event, _: object) -> Any:
    """Make a client of a server that fails with UNAVAILABLE and asks for a retry in an hour."""

    def answer(call: Call) -> Reply:
        asked.set()
        busy = lro.Status(lro.Code.UNAVAILABLE, "busy")
        raise CallError(call.verb, busy, retry_after=3600.0)

    return face.client("", transport=fake(face, answer))


@pytest.mark.parametrize("timeout", [None, 6000.0])
@pytest.mark.parametrize("make", [silent_server, busy_server])
def test_closing_ends_a_lone_wait(make: Any, timeout: float | None, face: Face) -> None:
    """Closing the client ends a single wait with an error, during a call and during a pause."""
    asked = threading.Event()
    with contextlib.ExitStack() as stack:
        error = closing(face, make(face, asked, stack), timeout, asked)
    assert isinstance(error, CallError)
    assert error.code is lro.Code.CANCELLED
    assert "the client was closed" in str(error)


def test_runtime_error_of_the_transport_is_raised_unchanged(face: Face) -> None:
    """A RuntimeError of the transport reaches the caller unchanged."""

    def fail(_: httpx.Request) -> httpx.Response:
        raise RuntimeError("of a transport")

    client = face.client(http=face.http(transport=httpx.MockTransport(fail)))
    with pytest.raises(RuntimeError, match="of a transport"):
        client.get(NAME)


def broken() -> Any:
    """Yield one step, then raise an error."""
    yield Sleep(0)
    raise ZeroDivisionError("inside")


def test_error_in_a_background_thread_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The error of a flow in the background, for which no caller waits, is logged."""

    def failed() -> list[object]:
        found = [one.exc_info for one in caplog.records if "has failed" in one.message]
        return [type(one[1]) for one in found if one]

    Driver(Fake(lambda _: Reply(DONE)), time.monotonic, time.sleep).start(broken())
    until(lambda: failed() == [ZeroDivisionError])

    async def main() -> None:
        AsyncDriver(AsyncFake(lambda _: Reply(DONE)), asyncio.sleep).start(broken())
        await until_async(lambda: failed() == [ZeroDivisionError] * 2)

    asyncio.run(main())


def test_item_that_arrives_as_the_deadline_passes_is_returned() -> None:
    """An item that arrives between two reads of the clock is returned, even at the deadline."""
    looks = iter([0.0, 5.0, 40.0])

    def clock() -> float:
        now = next(looks)
        if now == 40.0:
            channel.put("ended at 39")
        return now

    channel = drivers.ThreadChannel(clock)
    assert channel.take(30.0) == "ended at 39"
