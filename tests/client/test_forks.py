"""Clients in forked processes, which must not use threads or connections of the parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from lro_client import AsyncClient, CallError, Client
from lro_client.testing import ScriptedServer
from lro_client.transports import HttpTransport
from tests.client.messages import NAME, TYPES, ResizeResponse
from tests.client.overshoot import reading
from tests.client.sockets import serving
from tests.waiting import until_async

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(work: Callable[[], object]) -> int:
    """Return the exit status of a forked child: 0 if ``work`` returned true, -9 after a hang."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns about forks with threads
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if work() else 1)
        os._exit(2)
    killing = threading.Timer(120, os.kill, (child, signal.SIGKILL))
    killing.start()
    _, status = os.waitpid(child, 0)
    killing.cancel()
    return os.waitstatus_to_exitcode(status)


def answering(line: str, connection: Any, over: threading.Event) -> None:
    """Answer a Get with a finished operation; hold ``:watch`` and Waits until the test ends."""
    name = line.split()[1].removeprefix("/v1/").partition(":")[0]
    if ":" in line.split()[1]:
        over.wait()
        return
    said = '{"@type":"type.googleapis.com/acme.images.v1.ResizeResponse","sizeBytes":"7"}'
    body = f'{{"name":"{name}","done":true,"response":{said}}}'
    connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


def test_forked_child_starts_its_own_pollers() -> None:
    """A group works in a forked child, where the pollers of the parent do not run.

    A client that the parent closed is closed in the child too.
    """
    server = ScriptedServer(watch=True)
    names = [f"operations/{number}" for number in range(6)]
    for name in names:
        server.operation(name, ends_after=1.0, response=ResizeResponse(7))
    with server.client() as client:
        registry = client._state.registry
        handles = [client.operation(name, **TYPES) for name in names]
        registry._pollers, registry._sleeping_until = 1, float("inf")  # as if the parent waited
        registry.own_calls = 4
        with registry.lock:
            expected = [ResizeResponse(7)] * 6
            assert in_child(lambda: client.group(handles).results() == expected) == 0

    def work() -> bool:
        with pytest.raises(CallError, match="the client was closed"):
            client.group(handles).results()
        return True

    assert in_child(work) == 0


def test_forked_child_makes_calls_while_the_parent_waits() -> None:
    """A child makes single calls while its parent has waits, a stream and idle threads."""
    with (
        serving(reading(answering)) as url,
        Client(transport=HttpTransport(base_url=url)) as client,
    ):
        assert client.get(NAME).done
        held = [client.operation(f"operations/{n}", **TYPES).future() for n in range(9)]
        others = [client.operation(f"operations/held-{n}", **TYPES) for n in range(6)]

        def work() -> bool:
            done = client.get(NAME).done
            return done and all(one.refresh().done for one in others)

        assert in_child(work) == 0
        assert client.get(NAME).done
    assert all(future.exception(120) for future in held)


def test_client_can_be_used_on_several_event_loops_in_turn() -> None:
    """A client can be used on a second event loop after the first ended during a wait."""
    server = ScriptedServer(watch=True)
    names = [f"operations/{number}" for number in range(6)]
    for name in names:
        server.operation(name, ends_after=None)
    client = server.async_client()

    async def left() -> asyncio.Future[Any]:
        group = client.group([client.operation(name, **TYPES) for name in names])
        waiting = asyncio.create_task(group.results())
        await until_async(lambda: server.calls)
        future = client.operation(names[0], **TYPES).future()
        waiting.cancel()
        return future

    asyncio.run(left())  # the loop ends while a poller runs
    for name in names:
        server.operation(name, ends_after=1.0, response=ResizeResponse(7))

    async def again(client: AsyncClient) -> list[Any]:
        return await client.group([client.operation(name, **TYPES) for name in names]).results()

    assert asyncio.run(asyncio.wait_for(again(client), 120)) == [ResizeResponse(7)] * 6
