"""Services that come into a forked process, as those of preloaded servers do."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest

from lro._engine import process
from lro._engine.process import after_fork
from lro.stores.memory import MemoryStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PROGRAM = """
import asyncio, os, sys, threading
import attrs
import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

@attrs.frozen
class WorkRequest:
    text: str = ""

@attrs.frozen
class WorkMetadata:
    percent: lro.Int32 = 0

@attrs.frozen
class WorkResponse:
    text: str = ""

EXECUTORS = {"threads": lambda: ThreadExecutor(2), "asyncio": AsyncioExecutor}
store = MemoryStore() if sys.argv[1] == "memory" else SQLiteStore(sys.argv[1])
service = lro.Service(store, EXECUTORS[sys.argv[2]]())
go = threading.Event()

@service.method("acme.v1.Works.Work")
def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    if request.text == "held":
        go.wait(120)
    return WorkResponse(f"{request.text} {os.getpid()}")

def result(operation):
    found = service.wait(operation.name, 20)
    return service.types.unpack(found.response, WorkResponse).text

def awaited(operation):
    found = asyncio.run(service.wait_async(operation.name, 20))
    return service.types.unpack(found.response, WorkResponse).text

before = os.getpid()
assert result(work.start(WorkRequest("before"))) == f"before {before}"
held = work.start(WorkRequest("held"))
owner = service.workers.owner
child = os.fork()
if child == 0:
    assert service.workers.owner != owner
    assert not service.workers.held()
    started = work.start(WorkRequest("child"))
    print(started.name, flush=True)
    assert result(started) == f"child {os.getpid()}"
    assert awaited(work.start(WorkRequest("loop"))) == f"loop {os.getpid()}"
    if sys.argv[1] != "memory":
        assert service.get(held.name).done is False
    service.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
go.set()
assert result(held) == f"held {before}"
started = work.start(WorkRequest("after"))
print(started.name)
assert result(started) == f"after {before}"
service.close()
"""


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_both_processes_live_on(tmp_path, store, executor):
    """The child has threads, connections and leases of its own; the parent keeps its work."""
    where = "memory" if store == "memory" else str(tmp_path / "operations.db")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, where, executor]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=360)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(set(ran.stdout.split())) == 2  # they never make the same names


class Holder:
    """An object that must be reset in a child."""


def test_holders_are_renewed_in_order_and_each_by_itself(caplog):
    """One that fails is not in the way of the others; one that is gone is forgotten."""
    renewed = []

    def fail(holder):
        raise ZeroDivisionError

    holders = [Holder() for _ in range(3)]
    after_fork(holders[0], renewed.append)
    after_fork(holders[1], fail)
    after_fork(holders[2], renewed.append)
    before = len(process._holders)
    whole = dict(process._holders)
    process._holders.clear()
    try:
        for holder in holders:
            after_fork(holder, whole[holder])
        process._reset_all()
    finally:
        process._holders.clear()
        process._holders.update(whole)
    assert renewed == [holders[0], holders[2]]
    assert "could not be reset after a fork" in caplog.text
    whole.clear()
    holders.clear()
    renewed.clear()
    caplog.clear()
    assert len(process._holders) < before


def test_a_system_that_cannot_fork(monkeypatch):
    """There is nothing to register then."""
    monkeypatch.delattr(os, "register_at_fork")
    assert "after_fork" in runpy.run_path(process.__file__)


@pytest.mark.parametrize("maintenance", [False, True])
def test_a_service_starts_again_in_a_child(make_service, store, maintenance):
    """With another name, no work, and waiters of its own; what the parent has is the parent's."""
    service = make_service(store, maintenance=maintenance)
    method = service.declare(
        "acme.v1.Works.Work", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    name = method.start(WorkRequest()).name
    parents = service._background.maintenance._thread
    owner = service.workers.owner
    service._reset_after_fork()
    assert service.workers.owner != owner
    assert (service.waiting, len(service._runtime.updater.notifier)) == (0, 0)
    assert service._background.maintenance._thread is None  # until it is used: perhaps it never is
    assert not service.get(name).done
    assert (service._background.maintenance._thread is not None) == maintenance
    service.reporter(name).complete(WorkResponse("x"))
    assert service.wait(name, 20).done
    if parents is not None:  # in a real fork it is not there
        assert parents is not service._background.maintenance._thread


def test_a_record_store_starts_again_in_a_child():
    """The lock of a store in memory may be held by a thread that is not there."""
    store = MemoryStore()
    store._lock.acquire()
    store._reset_after_fork()
    assert list(store.expire(1).names) == []
