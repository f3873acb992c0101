"""WaitOperation over gRPC by the raw stub: timeouts, deadlines, callers who go away (spec §4)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import attrs
import pytest

pytest.importorskip("grpc")

from google.longrunning import operations_pb2_grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.duration_pb2 import Duration

import grpc
import grpc.aio
from tests.edges.house import CountMetadata, House, Wrapped, build
from tests.grpc.serving import serving

MANY = 2000
LONG = Duration(seconds=30)


@attrs.frozen
class Served:
    """A house, the address of its server, and a stub."""

    house: House
    address: str
    stub: Any

    def waits(self, count: int) -> None:
        """Return when so many callers wait."""
        deadline = time.monotonic() + 30
        while self.house.service.waiting != count:
            assert time.monotonic() < deadline, self.house.service.waiting
            threading.Event().wait(0.005)


@pytest.fixture(params=["memory", "a store that blocks"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    """A house on each kind of store."""

    class Blocking(Wrapped):
        reads_block = writes_block = True

    store = None if request.param == "memory" else Blocking(lambda: None)
    made = build(store)
    yield made
    made.service.close()


@pytest.fixture
def served(house: House, kind: str) -> Iterator[Served]:
    """A house on each kind of server."""
    with (
        serving(kind, house.service) as address,
        grpc.insecure_channel(address) as channel,
    ):
        yield Served(house, address, operations_pb2_grpc.OperationsStub(channel))


def wait(name: str, timeout: Duration | None = None) -> Any:
    """The request of a wait."""
    return pb.WaitOperationRequest(name=name, timeout=timeout)


def test_done_at_once(served: Served) -> None:
    """What is done needs no waiting, whatever the timeout."""
    name = served.house.start()
    served.house.finish(name)
    assert served.stub.WaitOperation(wait(name, LONG), timeout=20).done


def test_done_meanwhile(served: Served) -> None:
    """The reply comes with the end of the work, without a timeout or a deadline."""
    name = served.house.start()
    call = served.stub.WaitOperation.future(wait(name))
    served.waits(1)
    served.house.finish(name)
    assert call.result(timeout=20).done
    served.waits(0)


@pytest.mark.parametrize("timeout", [Duration(), Duration(nanos=20_000_000)])
def test_not_done(timeout: Duration, served: Served) -> None:
    """At the timeout, or at once for zero, the present state is a success."""
    name = served.house.start(metadata=CountMetadata(percent=4))
    found = served.stub.WaitOperation(wait(name, timeout), timeout=20)
    assert (found.name, found.done, found.HasField("metadata")) == (name, False, True)


def test_a_deadline_shorter_than_the_timeout(served: Served) -> None:
    """The reply arrives before the deadline, with the present state (spec §4.4)."""
    name = served.house.start()
    found = served.stub.WaitOperation(wait(name, LONG), timeout=2)
    assert (found.name, found.done) == (name, False)


def test_deleted_meanwhile(served: Served) -> None:
    """Who waits for what is removed is told that it is not there (spec §4.6)."""
    name = served.house.start()
    call = served.stub.WaitOperation.future(wait(name, LONG), timeout=20)
    served.waits(1)
    served.house.service.delete(name)
    assert call.code() is grpc.StatusCode.NOT_FOUND


def test_a_service_that_stops(served: Served) -> None:
    """Whoever waits is sent home."""
    call = served.stub.WaitOperation.future(wait(served.house.start(), LONG), timeout=20)
    served.waits(1)
    served.house.service.close(timedelta())
    assert call.code() is grpc.StatusCode.UNAVAILABLE


def test_a_cancelled_call(served: Served) -> None:
    """It leaves no waiter behind, and the operation goes on (spec §4.8, §12.3)."""
    name = served.house.start()
    calls = [served.stub.WaitOperation.future(wait(name, LONG)) for _ in range(4)]
    served.waits(4)
    for call in calls:
        call.cancel()
    served.waits(0)
    assert not served.house.service.reporter(name).cancel_requested
    assert not served.stub.GetOperation(pb.GetOperationRequest(name=name)).done


def test_a_caller_who_was_gone_before(served: Served) -> None:
    """A call whose turn comes after its caller has left waits for nothing."""
    name = served.house.start()
    calls = [served.stub.WaitOperation.future(wait(name, LONG)) for _ in range(20)]
    for call in calls:
        call.cancel()
    served.waits(0)
    assert served.stub.WaitOperation(wait(name, Duration()), timeout=20).name == name


def test_waiting_calls_need_no_thread_each() -> None:
    """Thousands wait on an asyncio server, all wake, and the threads stay a handful."""
    house = build()
    name = house.start()

    async def call_all(address: str, parked: Callable[[], bool]) -> tuple[int, int]:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = operations_pb2_grpc.OperationsStub(channel)
            before = threading.active_count()
            calls = [stub.WaitOperation(wait(name, LONG)) for _ in range(MANY)]
            async with asyncio.timeout(60):
                while not parked():
                    await asyncio.sleep(0.01)
            more = threading.active_count() - before
            house.finish(name)
            found = await asyncio.gather(*calls)
        return more, sum(one.done for one in found)

    with serving("asyncio", house.service) as address:
        more, done = asyncio.run(call_all(address, lambda: house.service.waiting == MANY))
    assert done == MANY
    assert more <= 4
    assert house.service.waiting == 0
    house.service.close()
