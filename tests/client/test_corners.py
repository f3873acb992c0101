"""Rare cases: waits that fail or time out, metadata of another type, a service in the process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro_client import AsyncClient, CallError, Client, OperationGone, PollTimeout, Retry
from lro_client.testing import Fault, ScriptedServer
from lro_client.transports import (
    AsyncLocalTransport,
    BatchGetOperationsRequest,
    Call,
    LocalTransport,
    WatchOperationsRequest,
)
from lro_client.waits import wait_exponential
from tests.client.faces import Face
from tests.client.messages import NAME, TYPES, ResizeMetadata, ResizeResponse
from tests.client.test_groups import client_of, plan


def test_one_of_many_single_waits_ends_when_its_operation_is_gone() -> None:
    """One of eight waits fails because its operation is gone; the other waits return results."""
    server = ScriptedServer(batch_get=True)
    names = plan(server, 8, ends_after=5.0)
    server.operation(names[7], ends_after=None, gone_after=3.0)

    async def main() -> list[Any]:
        async with server.async_client() as client:
            handles = [client.operation(name, **TYPES) for name in names]
            waits = [handle.result() for handle in handles]
            return await asyncio.gather(*waits, return_exceptions=True)

    *good, gone = asyncio.run(main())
    assert good == [ResizeResponse(number) for number in range(7)]
    assert isinstance(gone, OperationGone)


def test_cancel_and_wait_times_out_though_every_cancel_is_refused(face: Face) -> None:
    """The timeout ends ``cancel_and_wait``, although every cancel is refused as UNAVAILABLE."""
    server = ScriptedServer()
    server.operation(NAME, ends_after=None)
    server.fault(Fault(status=503), verb="CancelOperation", until=1000.0)
    handle = client_of(face, server).operation(NAME, **TYPES)
    began = server.clock()
    with pytest.raises(PollTimeout) as caught:
        handle.cancel_and_wait(timeout=3.0)
    assert server.clock() - began == pytest.approx(3.0, abs=0.05)
    assert isinstance(caught.value.last_error, CallError)
    assert caught.value.timeout == 3.0


def test_update_has_the_progress_and_raw_metadata_of_other_types(face: Face) -> None:
    """Progress is read from metadata of any type; it is 0 at first and 1 after a success."""
    server = ScriptedServer()
    server.operation(
        NAME,
        ends_after=5.0,
        response=ResizeResponse(1),
        metadata=lambda seconds: ResizeMetadata(percent=int(10 * seconds)),
    )
    client = client_of(face, server)
    found = [u.progress.fraction for u in client.operation(NAME, **TYPES).updates(every=1.0)]
    assert (found[0], found[-1]) == (0.0, 1.0)
    server.operation(NAME, ends_after=5.0, metadata=ResizeMetadata(percent=30))
    odd = client.operation(NAME, response=ResizeResponse, metadata=ResizeResponse)
    assert next(iter(odd.updates())).progress.fraction == 0.3


def test_failed_call_is_retried_after_a_pause_on_the_real_clock() -> None:
    """A failed call is sent again after a pause on the real clock."""
    calls: list[Call] = []

    class Shaky(AsyncLocalTransport):
        async def send(self, call: Call) -> Any:
            calls.append(call)
            if len(calls) == 1:
                raise CallError(call.verb, lro.Status(lro.Code.UNAVAILABLE, "no"))
            return await super().send(call)

    async def main() -> None:
        with lro.Service(MemoryStore(), ThreadExecutor()) as service:
            retry = Retry(wait=wait_exponential(0.001, 1.0, 0.001))
            async with AsyncClient(transport=Shaky(service), retry=retry) as client:
                with pytest.raises(CallError, match="NOT_FOUND"):
                    await client.get(NAME)

    asyncio.run(main())
    assert len(calls) == 2


def test_group_of_a_local_service_waits_in_a_thread_and_on_a_loop() -> None:
    """A group uses BatchGet in the blocking client, and a Watch stream in the async client."""
    go = threading.Event()
    with lro.Service(MemoryStore(), ThreadExecutor(8)) as service:

        @service.method("acme.images.v1.Images.Wait")
        def work(request: ResizeMetadata, job: lro.Job[ResizeMetadata]) -> ResizeResponse:
            go.wait(120)
            return ResizeResponse(size_bytes=request.percent)

        started = [work.start(ResizeMetadata(percent=number)) for number in range(6)]
        with Client(transport=LocalTransport(service)) as client:
            group = client.group([client.operation(one.name, **TYPES) for one in started])
            assert group.wait(timeout=0.05).done == ()
            go.set()
            assert [one.size_bytes for one in group.results(120)] == list(range(6))

        async def main() -> list[Any]:
            go.clear()
            more = [work.start(ResizeMetadata(percent=number)) for number in range(6)]
            async with AsyncClient(transport=AsyncLocalTransport(service)) as calls:
                names = [one.name for one in more] + ["operations/none"]
                some = calls.group([calls.operation(name, **TYPES) for name in names])
                waiting = asyncio.create_task(some.outcomes(30))
                await asyncio.sleep(0)
                go.set()
                return await waiting

        *good, gone = asyncio.run(main())
        assert [one.size_bytes for one in good] == list(range(6))
        assert isinstance(gone, OperationGone)


def test_extensions_that_a_service_lacks_are_unimplemented() -> None:
    with lro.Service(MemoryStore(), ThreadExecutor(), verbs=()) as service:
        watch = Call(request=WatchOperationsRequest("operations", (NAME,)), budget=1.0)
        batch = Call(request=BatchGetOperationsRequest("operations", (NAME,)), budget=1.0)
        local, aside = LocalTransport(service), AsyncLocalTransport(service)
        for ask in (
            lambda: local.send(watch),
            lambda: local.send(batch),
            lambda: asyncio.run(aside.stream(watch, print)),
        ):
            with pytest.raises(CallError, match="UNIMPLEMENTED"):
                ask()
