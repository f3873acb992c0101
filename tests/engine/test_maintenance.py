"""A process begins to renew leases and recover lost work at its first use, not earlier."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from lro import Service, asgi, wsgi
from lro._engine.process import mark_worker_process
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import declared, maintenance_over, once, raising
from tests.stores.samples import held, insert
from tests.waiting import joined
from tests.work_messages import WorkRequest

OPERATION = "operations/x"


def made(**options: object) -> tuple[Service, object]:
    """Return a service and a method that it declares."""
    service = Service(MemoryStore(), ThreadExecutor(1), **options)
    return service, declared(service)


def maintenance_of(service):
    """Return the part of the service that owns the maintenance thread."""
    return service.edges.background.maintenance


def thread_of(service):
    """Return the maintenance thread, or None if it has not begun."""
    return maintenance_of(service)._thread


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


USES = {
    "get": lambda service, _: service.get(OPERATION),
    "list": lambda service, _: service.list(ListOperationsRequest(name="operations")),
    "cancel": lambda service, _: service.cancel(OPERATION),
    "delete": lambda service, _: service.delete(OPERATION),
    "wait": lambda service, _: service.wait(OPERATION, 0),
    "wait_async": lambda service, _: asyncio.run(service.wait_async(OPERATION, 0)),
    "batch_get": lambda service, _: service.batch_get([OPERATION]),
    "get in full": lambda service, _: service.get(OPERATION, view="FULL"),
    "watch": lambda service, _: asyncio.run(service.watch([OPERATION])),
    "start": lambda _, method: method.start(WorkRequest()),
    "with": lambda service, _: service.__enter__(),
    "start_maintenance": lambda service, _: service.edges.start_maintenance(),
    "the start of an ASGI server": lambda service, _: asyncio.run(
        _lifespan(asgi.OperationsApp(service))
    ),
    "a gRPC server": lambda service, _: _added(service),
    "a request by WSGI": lambda service, _: _called(service),
}


@pytest.mark.parametrize("use", USES)
def test_maintenance_begins_with_the_first_use(use):
    """A new service starts no thread before its first use. A master process can preload it."""
    service, method = made()
    with contextlib.closing(service):
        assert thread_of(service) is None
        with contextlib.suppress(Exception):
            USES[use](service, method)
        first = thread_of(service)
        assert first is not None
        service.edges.start_maintenance()
        assert thread_of(service) is first
        assert first.is_alive()
    assert not first.is_alive()


def test_maintenance_does_not_begin_if_switched_off_or_closed(monkeypatch):
    """No thread starts in a child worker, in a closed service, or with maintenance off."""
    service, _ = made(maintenance=False)
    service.edges.start_maintenance()
    assert thread_of(service) is None
    closed, _ = made()
    closed.close()
    closed.edges.start_maintenance()
    assert thread_of(closed) is None
    monkeypatch.setattr("lro._engine.process._is_worker_process", False)
    mark_worker_process()
    child, _ = made()
    child.edges.start_maintenance()
    assert thread_of(child) is None


def test_maintenance_begins_once_threads_can_be_started(caplog):
    """A call succeeds even if the maintenance thread cannot start. The next call tries again."""
    service, method = made()
    once(maintenance_of(service), "start", raising(RuntimeError("no more threads")))
    with contextlib.closing(service):
        name = method.start(WorkRequest()).name
        assert "leases are not renewed now" in caplog.text
        assert thread_of(service) is None
        assert service.get(name).name == name
        assert thread_of(service) is not None


def test_two_first_calls_start_one_thread():
    """Of two concurrent first calls, one starts the thread, and the other waits for the start."""
    service, _ = made()
    maintenance, threads = maintenance_of(service), set()
    other = threading.Thread(target=service.edges.start_maintenance)
    once(maintenance, "start", other.start)
    once(maintenance, "start", lambda: threads.add(thread_of(service)), after=True)
    with contextlib.closing(service):
        service.edges.start_maintenance()
        joined(other)
        assert threads == {thread_of(service)}


def test_maintenance_rests_after_a_method_was_declared_at_work(clock):
    """A renewal stores a newly declared method once, and then maintenance waits as usual."""
    seconds = [0.0]
    maintenance = maintenance_over(MemoryStore(clock), seconds=lambda: seconds[0], held=["it"])
    maintenance.run_due()
    maintenance.method_declared()
    seconds[0] = 0.6
    maintenance.run_due()
    assert maintenance.run_due() >= 1


def test_method_declared_during_a_renewal_is_stored_soon(clock):
    """A renewal that has begun without the new method does not put off its storage."""
    seconds = [0.0]
    store = MemoryStore(clock)
    maintenance = maintenance_over(store, seconds=lambda: seconds[0])
    renew, renewals = store.renew, []

    def renewed(worker):
        renewals.append(seconds[0])
        if len(renewals) == 1:
            maintenance.method_declared()
        return renew(worker)

    store.renew = renewed
    for seconds[0] in (0.0, 0.6, 1.2):
        maintenance.run_due()
    assert renewals == [0.0, 0.6]


def test_earliest_look_counts_of_two_at_the_same_time(clock):
    """A thread that asks for a later look does not undo the earlier look of another thread."""
    meanwhile = []

    def seconds():
        if meanwhile:
            maintenance.look_at(meanwhile.pop())
        return 0.0

    maintenance = maintenance_over(MemoryStore(clock), seconds=seconds)
    maintenance.run_due()
    meanwhile.append(clock() + timedelta(seconds=2))
    maintenance.look_at(clock() + timedelta(seconds=5))
    assert maintenance.run_due() == 2


def test_recovery_of_own_work_changes_no_limit_of_the_scan(clock):
    """A scan's limit grows only by other processes' operations that could not be recovered."""
    store, limits = MemoryStore(clock), []
    for name, owner in (("lost", "dead"), ("stray", "us")):
        insert(store, held(clock, name, owner=owner, attempt=1))
    update, orphans = store.update, store.orphans

    def failing(name, change):
        if name == "operations/lost":
            raise ZeroDivisionError
        return update(name, change)

    def noted(methods, limit):
        limits.append(limit)
        return orphans(methods, limit)

    store.update, store.orphans = failing, noted
    seconds = [0.0]
    maintenance = maintenance_over(
        store, seconds=lambda: seconds[0], held=["operations/x"], methods=["M"]
    )
    for step in (0, 15, 1):
        clock.advance(step)
        seconds[0] += step
        maintenance.run_due()
    least = limits[0]
    clock.advance(4)
    seconds[0] += 4
    maintenance.run_due()
    assert store.get("operations/stray").lost_attempts == 1
    assert limits[-1] == least + 1
