"""What a hostile tester found, held down: stores that go away, errors that cannot be described."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest

from lro import InvalidArgument, TypeRegistry
from lro.errors import HttpMethodNotAllowed, RouteNotFound, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.http import error_reply
from lro.stores.memory import MemoryStore
from lro.wire import loads_strict
from tests.service_steps import WORK, recovered, work
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

LEASE = timedelta(seconds=15)


class Waiting(InlineExecutor):
    """Keeps its tasks and begins none; with a ``service`` it stops as they come."""

    worker_idle = False
    service = None

    def __init__(self):
        super().__init__()
        self.tasks = []

    def submit(self, task):
        if self.service is not None:
            self.service.workers.stopping = True
            raise Unavailable("the executor is stopping")
        self.tasks.append(task)

    def stop(self):
        super().stop()
        return self.tasks

    def join(self, seconds):
        return False


class Away(MemoryStore):
    """A store that refuses its writes when a test asks for it."""

    error: Exception | None = None
    asked = 0

    def update(self, name, change):
        self._refuse()
        return super().update(name, change)

    def renew(self, owner, until, names=None):
        self._refuse()
        return super().renew(owner, until, names)

    def _refuse(self):
        self.asked += 1
        if self.error is not None:
            raise self.error


def test_live_work_is_not_lost_with_its_lease(make_service, clock):
    """The store refused to renew for longer than a lease: the process does not end its own work."""
    store = Away(clock)
    service = make_service(store, Waiting())
    name = work(service).start(WorkRequest()).name
    service.run_maintenance()
    store.error = Unavailable("away")
    for _ in range(20):
        clock.advance(1)
        if clock() >= store.get(name).create_time + LEASE / 3:
            with pytest.raises(Unavailable):
                service.run_maintenance()
    store.error = None
    service._background.maintenance.recover(store.get(name))
    assert store.get(name).state == "IN_PROGRESS"
    service.run_maintenance()
    assert store.get(name).lease_until == clock() + LEASE


def test_work_that_never_began_is_begun(make_service, store, clock):
    """Its worker died before the claim: doing it cannot be doing it twice."""
    name = work(make_service(store, Waiting())).start(WorkRequest()).name
    clock.advance(15)
    other = make_service(store, InlineExecutor())
    work(other)
    recovered(other, clock)
    assert other.get(name).state == "SUCCEEDED"


def test_a_start_that_meets_the_end_is_kept(make_service, store):
    """Stopping between storing and submitting: the next process does what was answered."""
    executor = Waiting()
    service = executor.service = make_service(store, executor)
    assert store.get(work(service).start(WorkRequest()).name).owner == ""


@pytest.mark.parametrize("error", [Unavailable("away"), OSError("no disk")])
def test_closing_asks_a_store_that_is_away_once(make_service, clock, error):
    """And closes all the same; the leases run out by themselves."""
    store, executor = Away(clock), Waiting()
    service = make_service(store, executor)
    method = work(service)
    for _ in range(3):
        method.start(WorkRequest())
    executor.tasks.pop()
    store.asked, store.error = 0, error
    service.close(0)
    assert store.asked == 1


def test_error_details_with_surrogates_are_escaped():
    """Also in the name of the wrong field: the caller gets INVALID_ARGUMENT, not INTERNAL."""
    description = "no file \\udcff.png"
    error = InvalidArgument("half\ud800", "no file \udcff.png")
    types = TypeRegistry()
    status = types.status_of(error, "d")
    info, wrong = (detail.payload for detail in status.details)
    assert info["metadata"] == {"field": "half\\ud800"}
    assert wrong["fieldViolations"] == [{"field": "half\\ud800", "description": description}]
    reply = error_reply(error, types, "d")
    assert reply.status == 400
    assert description in json.loads(reply.body)["error"]["message"]


def test_an_async_method_without_a_loop(make_service, monkeypatch):
    """No event loop can be made: the work is dropped, for its lease to run out."""
    tried = threading.Event()

    def no_loop(coroutine):
        coroutine.close()
        tried.set()
        raise OSError("too many open files")

    monkeypatch.setattr("asyncio.run", no_loop)
    executor = ThreadExecutor(1)
    service = make_service(executor=executor)

    @service.method(WORK, metadata=WorkMetadata)
    async def method(_: WorkRequest) -> WorkResponse:
        raise AssertionError

    method.start(WorkRequest())
    assert tried.wait(PATIENCE)
    assert executor.join(PATIENCE)
    assert not service.workers.held()


def test_a_number_of_too_many_digits():
    """Python's advice to itself is not passed on."""
    with pytest.raises(ValueError, match="too many digits"):
        loads_strict("1" * 5000)


@pytest.mark.parametrize("error", [RouteNotFound, lambda at: HttpMethodNotAllowed("PUT", at, ())])
def test_long_paths_are_not_echoed_whole(error):
    """Neither in the sentence nor in the facts."""
    made = error("/" + "x" * 5000)
    assert len(str(made)) < 300
    assert len(made.facts()["path"]) < 300


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: AsyncioExecutor(0),
        lambda: AsyncioExecutor(1, queue=-1),
        lambda: ThreadExecutor(1, queue=-1),
    ],
)
def test_executor_without_room_is_refused(make_it):
    """Where it is made, and not when the first operation meets it."""
    with pytest.raises(ValueError):
        make_it()
