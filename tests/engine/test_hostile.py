"""What a hostile tester found, held down: stores that go away, errors that cannot be described."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import attrs
import pytest

import lro
from lro import TypeRegistry
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.http import error_reply
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.wire import loads_strict
from tests.service_steps import recovered

LEASE = timedelta(seconds=15)


@attrs.frozen
class DoRequest:
    """A request."""


@attrs.frozen
class DoMetadata:
    """Metadata."""


@attrs.frozen
class DoResponse:
    """A response."""


class Waiting(InlineExecutor):
    """Keeps its tasks and begins none; ``refused`` makes it stop as they come."""

    worker_idle = False

    def __init__(self):
        super().__init__()
        self.tasks = []
        self.service = None

    def submit(self, task):
        """Keep it, or refuse as one that has stopped meanwhile."""
        if self.service is not None:
            self.service.workers.stopping = True
            raise lro.errors.Unavailable("the executor is stopping")
        self.tasks.append(task)

    def stop(self):
        """What is kept."""
        super().stop()
        return self.tasks

    def join(self, seconds):
        """Never over."""
        return False


class Away(MemoryStore):
    """A store that refuses its writes when a test asks for it."""

    error: Exception | None = None
    asked = 0

    def update(self, name, change):
        """Refuse, if the test asks for it."""
        self.asked += 1
        if self.error is not None:
            raise self.error
        return super().update(name, change)

    def renew(self, owner, until, names=None):
        """Refuse, if the test asks for it."""
        if self.error is not None:
            raise self.error
        return super().renew(owner, until, names)


def make(store, executor, function=None, **options):
    def seconds():
        return store.now().timestamp()

    service = lro.Service(store, executor, maintenance=False, lease=LEASE, clock=seconds)
    method = service.method(
        "acme.v1.Dos.Do",
        request=DoRequest,
        response=DoResponse,
        metadata=DoMetadata,
        **options,
    )(function or (lambda request: DoResponse()))
    return service, method


def test_live_work_is_not_lost_with_its_lease():
    """The store refused to renew for longer than a lease: the process does not end its own work."""
    clock = ManualClock()
    store, executor = Away(clock), Waiting()
    service, method = make(store, executor)
    name = method.start(DoRequest()).name
    service.run_maintenance()
    store.error = lro.errors.Unavailable("away")
    for _ in range(20):
        clock.advance(1)
        if clock() >= store.get(name).create_time + LEASE / 3:
            with pytest.raises(lro.errors.Unavailable):
                service.run_maintenance()
    store.error = None
    service._background.maintenance.recover(store.get(name))
    assert store.get(name).state == "IN_PROGRESS"
    service.run_maintenance()
    assert store.get(name).lease_until == clock() + LEASE


def test_work_that_never_began_is_begun():
    """Its worker died before the claim: doing it cannot be doing it twice."""
    clock = ManualClock()
    store = MemoryStore(clock)
    _, method = make(store, Waiting())
    name = method.start(DoRequest()).name
    clock.advance(LEASE.total_seconds())
    other, _ = make(store, InlineExecutor())
    recovered(other, clock)
    assert other.get(name).state == "SUCCEEDED"


def test_a_start_that_meets_the_end_is_kept():
    """Stopping between storing and submitting: the next process does what was answered."""
    clock = ManualClock()
    store, executor = MemoryStore(clock), Waiting()
    service, method = make(store, executor)
    executor.service = service
    operation = method.start(DoRequest())
    assert store.get(operation.name).owner == ""


@pytest.mark.parametrize("error", [lro.errors.Unavailable("away"), OSError("no disk")])
def test_closing_asks_a_store_that_is_away_once(error):
    """And closes all the same; the leases run out by themselves."""
    store, executor = Away(ManualClock()), Waiting()
    service, method = make(store, executor)
    for _ in range(3):
        method.start(DoRequest())
    extra = executor.tasks.pop()
    store.asked, store.error = 0, error
    service.close(0)
    assert store.asked == 1
    assert extra._handing_back


def test_error_details_with_surrogates_are_escaped():
    """Also in the name of the wrong field: the caller gets INVALID_ARGUMENT, not INTERNAL."""
    description = "no file \\udcff.png"
    error = lro.InvalidArgument("half\ud800", "no file \udcff.png")
    types = TypeRegistry()
    status = types.status_of(error, "d")
    info, wrong = (detail.payload for detail in status.details)
    assert info["metadata"] == {"field": "half\\ud800"}
    assert wrong["fieldViolations"] == [{"field": "half\\ud800", "description": description}]
    reply = error_reply(error, types, "d")
    assert reply.status == 400
    assert description in json.loads(reply.body)["error"]["message"]


def test_an_async_method_without_a_loop(monkeypatch):
    """No event loop can be made: the work is dropped, for its lease to run out."""

    async def work(_: DoRequest):
        return DoResponse()

    tried = threading.Event()

    def no_loop(coroutine):
        coroutine.close()
        tried.set()
        raise OSError("too many open files")

    monkeypatch.setattr("asyncio.run", no_loop)
    executor = ThreadExecutor(1)
    service, method = make(MemoryStore(), executor, work)
    method.start(DoRequest())
    assert tried.wait(120)
    assert executor.join(120)
    assert not service.workers.held()
    service.close()


def test_a_number_of_too_many_digits():
    """Python's advice to itself is not passed on."""
    with pytest.raises(ValueError, match="too many digits"):
        loads_strict("1" * 5000)


def test_long_paths_are_not_echoed_whole():
    """Neither in the sentence nor in the facts."""
    long = "/" + "x" * 5000
    for error in (
        lro.errors.RouteNotFound(long),
        lro.errors.HttpMethodNotAllowed("PUT", long, ("GET",)),
    ):
        assert len(str(error)) < 300
        assert len(error.facts()["path"]) < 300
