"""When a process begins to see to leases and lost work: when it is first used, and no sooner."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lro import ListOperationsRequest, Service, asgi, wsgi
from lro._engine.maintenance import Maintenance
from lro._engine.process import mark_worker_process
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"
OPERATION = "operations/x"


def made(**options: object) -> tuple[Service, object]:
    """A service with a method."""
    service = Service(MemoryStore(), ThreadExecutor(1), **options)
    declared = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
    return service, service.declare(NAME, **declared)


async def _lifespan(app: asgi.OperationsApp) -> None:
    messages = iter([{"type": "lifespan.startup"}])

    async def receive() -> dict[str, str]:
        message = next(messages, None)
        if message is None:
            raise ConnectionError
        return message

    async def send(message: object) -> None:
        pass

    with contextlib.suppress(ConnectionError):
        await app({"type": "lifespan"}, receive, send)


def _called(service: Service) -> None:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/v1/operations/x"}
    wsgi.OperationsApp(service)(environ, lambda *_: None)


def _added(service: Service) -> None:
    grpc = pytest.importorskip("grpc")
    edge = pytest.importorskip("lro.grpc")
    server = grpc.server(ThreadPoolExecutor(1))
    edge.add_to(server, service)
    server.stop(None)


def _enter(service: Service) -> None:
    service.__enter__()


USES = {
    "get": lambda service, _: service.get(OPERATION),
    "list": lambda service, _: service.list(ListOperationsRequest(name="operations")),
    "cancel": lambda service, _: service.cancel(OPERATION),
    "delete": lambda service, _: service.delete(OPERATION),
    "wait": lambda service, _: service.wait(OPERATION, 0),
    "wait_async": lambda service, _: asyncio.run(service.wait_async(OPERATION, 0)),
    "batch_get": lambda service, _: service.batch_get([OPERATION]),
    "describe": lambda service, _: service.describe(OPERATION),
    "describe_many": lambda service, _: service.describe_many([OPERATION]),
    "watch": lambda service, _: asyncio.run(service.watch([OPERATION])),
    "start": lambda _, method: method.start(WorkRequest()),
    "with": lambda service, _: _enter(service),
    "start_maintenance": lambda service, _: service.start_maintenance(),
    "the start of an ASGI server": lambda service, _: asyncio.run(
        _lifespan(asgi.OperationsApp(service))
    ),
    "a gRPC server": lambda service, _: _added(service),
    "a request by WSGI": lambda service, _: _called(service),
}


@pytest.mark.parametrize("use", USES)
def test_maintenance_begins_with_the_first_use(use: str) -> None:
    """Constructing it and declaring methods is none: a master only preloads."""
    service, method = made()
    with contextlib.closing(service):
        maintenance = service._background.maintenance
        assert maintenance._thread is None
        with contextlib.suppress(Exception):
            USES[use](service, method)
        first = maintenance._thread
        assert first is not None
        service.start_maintenance()
        assert maintenance._thread is first
        assert first.is_alive()
    assert not first.is_alive()


def test_maintenance_does_not_begin_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed service is not maintained; a process that only runs functions for another is not."""
    service, _ = made(maintenance=False)
    service.start_maintenance()
    assert service._background.maintenance._thread is None
    closed, _ = made()
    closed.close()
    closed.start_maintenance()
    assert closed._background.maintenance._thread is None
    monkeypatch.setattr("lro._engine.process._is_worker_process", False)
    mark_worker_process()
    child, _ = made()
    child.start_maintenance()
    assert child._background.maintenance._thread is None


def test_maintenance_begins_once_threads_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was called meanwhile is answered all the same; the next call tries again."""
    service, method = made()
    whole, calls = Maintenance.start, []

    def start(self: Maintenance) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise RuntimeError("can't start new thread")
        whole(self)

    monkeypatch.setattr(Maintenance, "start", start)
    with contextlib.closing(service):
        name = method.start(WorkRequest()).name
        assert "leases are not renewed now" in caplog.text
        assert service._background.maintenance._thread is None
        assert service.get(name).name == name
        assert service._background.maintenance._thread is not None


def test_two_first_calls_start_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits until the first has started it."""
    service, _ = made()
    whole, calls, others = Maintenance.start, [], []

    def start(self: Maintenance) -> None:
        calls.append(self)
        other = threading.Thread(target=service.start_maintenance)
        other.start()
        others.append(other)
        whole(self)

    monkeypatch.setattr(Maintenance, "start", start)
    with contextlib.closing(service):
        service.start_maintenance()
        for other in others:
            other.join(PATIENCE)
        assert len(calls) == 1
