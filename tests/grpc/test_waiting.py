"""WaitOperation over gRPC with the raw stub: timeouts, deadlines, disconnects (spec §4)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import attrs
import pytest
from google.longrunning import operations_pb2_grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.duration_pb2 import Duration

import grpc
import grpc.aio
import lro.grpc
from tests.grpc.serving import serving
from tests.http.counting_service import CountMetadata, CountService, Wrapped, begun, build
from tests.waiting import PATIENCE, until, until_async

MANY = 100
LONG = Duration(seconds=120)
ANN = (("x-caller", "ann"),)


@attrs.frozen
class Served:
    """A counting service, the address of its server, and a stub."""

    counting: CountService
    address: str
    stub: Any

    def waits(self, count: int) -> None:
        """Wait until exactly this many callers are waiting."""
        until(lambda: self.counting.service.edges.waiters.waiting, lambda found: found == count)


@pytest.fixture(params=["memory", "a store that blocks"])
def counting(request: pytest.FixtureRequest) -> Iterator[CountService]:
    """A counting service on each kind of store."""

    class Blocking(Wrapped):
        reads_block = writes_block = True

    store = None if request.param == "memory" else Blocking(lambda: None)
    made = build(store)
    yield made
    made.service.close()


@pytest.fixture
def served(counting: CountService, kind: str) -> Iterator[Served]:
    """A counting service on each kind of server."""
    with serving(kind, counting.service) as address, grpc.insecure_channel(address) as channel:
        yield Served(counting, address, operations_pb2_grpc.OperationsStub(channel))


def wait(name: str, timeout: Duration | None = None) -> Any:
    """Return a WaitOperation request."""
    return pb.WaitOperationRequest(name=name, timeout=timeout)


def test_wait_returns_when_the_work_ends(served: Served) -> None:
    """A Wait without timeout or deadline returns when the work ends, or at once if it has ended."""
    name = served.counting.start()
    call = served.stub.WaitOperation.future(wait(name))
    served.waits(1)
    served.counting.finish(name)
    assert call.result(timeout=PATIENCE).done
    served.waits(0)
    assert served.stub.WaitOperation(wait(name, LONG), timeout=PATIENCE).done  # returns at once


@pytest.mark.parametrize("timeout", [Duration(), Duration(nanos=20_000_000)])
def test_wait_returns_present_state_at_its_timeout(timeout: Duration, served: Served) -> None:
    """At its timeout, which may be zero, a Wait returns the unfinished operation."""
    name = served.counting.start(metadata=CountMetadata(percent=4))
    found = served.stub.WaitOperation(wait(name, timeout), timeout=PATIENCE)
    assert (found.name, found.done, found.HasField("metadata")) == (name, False, True)


def test_a_deadline_shorter_than_the_timeout(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Wait returns the unfinished operation before its deadline, which the service gets."""
    service, seen = served.counting.service, []
    wait_async = service.wait_async

    def sooner(*args: Any, deadline_seconds: float, **options: Any) -> Any:
        seen.append(deadline_seconds)
        return wait_async(*args, deadline_seconds=0.2, **options)

    monkeypatch.setattr(service, "wait_async", sooner)
    name = served.counting.start()
    found = served.stub.WaitOperation(wait(name, LONG), timeout=100)
    assert (found.name, found.done) == (name, False)
    assert 0 < seen[0] < 101


def test_wait_for_deleted_operation_is_not_found(served: Served) -> None:
    """If an operation is deleted, its waiting callers get NOT_FOUND (spec §4.6)."""
    name = served.counting.start()
    call = served.stub.WaitOperation.future(wait(name, LONG), timeout=PATIENCE)
    served.waits(1)
    served.counting.service.delete(name)
    assert call.code() is grpc.StatusCode.NOT_FOUND


def test_cancelled_wait_leaves_no_waiter(served: Served) -> None:
    """A cancelled Wait leaves no waiter, and its operation goes on (spec §4.8, §12.3)."""
    name = served.counting.start()
    calls = [served.stub.WaitOperation.future(wait(name, LONG)) for _ in range(4)]
    served.waits(4)
    for call in calls:
        call.cancel()
    served.waits(0)
    assert not served.counting.service.reporter(name).cancel_requested
    assert not served.stub.GetOperation(pb.GetOperationRequest(name=name)).done


@pytest.mark.parametrize("max_waiting", [0, 2])
def test_waiting_leaves_threads_for_others(max_waiting: int, counting: CountService) -> None:
    """A Wait over ``max_waiting`` returns at once, and Get still works (spec §4.7, §4.8)."""
    name, callers = counting.start(), set()

    def authenticate(metadata: Mapping[str, str]) -> str:
        callers.add(metadata["x-caller"])
        return metadata["x-caller"]

    options = {"max_waiting": max_waiting, "authenticate": authenticate}
    with (
        serving("threads", counting.service, **options) as address,
        grpc.insecure_channel(address) as channel,
    ):
        stub = operations_pb2_grpc.OperationsStub(channel)
        served = Served(counting, address, stub)
        calls = [
            stub.WaitOperation.future(wait(name, LONG), metadata=ANN) for _ in range(max_waiting)
        ]
        served.waits(max_waiting)
        for timeout in (None, PATIENCE):
            assert not stub.WaitOperation(wait(name, LONG), timeout=timeout, metadata=ANN).done
        with pytest.raises(grpc.RpcError, match="must be a duration of 0 or more"):
            stub.WaitOperation(wait(name, Duration(seconds=-1)), metadata=ANN)
        assert not stub.GetOperation(pb.GetOperationRequest(name=name), metadata=ANN).done
        counting.finish(name)
        assert all(call.result(timeout=PATIENCE).done for call in calls)
        assert stub.WaitOperation(wait(name, LONG), metadata=ANN).done
    assert callers == {"ann"}


def test_a_caller_who_was_gone_before_waits_for_nothing(counting: CountService) -> None:
    """If a caller has left before grpcio adds the callback, Wait returns without waiting."""
    server = create_autospec(grpc.Server, instance=True)
    lro.grpc.add_to(server, counting.service)
    ((handlers,),) = server.add_generic_rpc_handlers.call_args.args
    path = "/google.longrunning.Operations/WaitOperation"
    serve = handlers.service(SimpleNamespace(method=path)).unary_unary
    gone = create_autospec(grpc.ServicerContext, instance=True)
    gone.add_callback.return_value = False
    gone.time_remaining.return_value = None
    request = wait(counting.start(), Duration(nanos=1)).SerializeToString()
    assert serve(request, gone) == b""
    gone.add_callback.return_value = True
    assert serve(request, gone) != b""


def test_waiting_calls_need_no_thread_each() -> None:
    """On an asyncio server, 100 waiting calls need at most four more threads."""
    counting, name = begun()

    async def call_all(address: str) -> tuple[int, int]:
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(240):
            before = threading.active_count()
            stub = operations_pb2_grpc.OperationsStub(channel)
            calls = [stub.WaitOperation(wait(name, LONG)) for _ in range(MANY)]
            await until_async(
                lambda: counting.service.edges.waiters.waiting, lambda found: found == MANY
            )
            more = threading.active_count() - before
            counting.finish(name)
            return more, sum([(await call).done for call in calls])

    with serving("asyncio", counting.service) as address:
        more, done = asyncio.run(call_all(address))
    assert done == MANY
    assert more <= 4
    assert counting.service.edges.waiters.waiting == 0
    counting.service.close()
