"""Metrics: what each counts, that they are those of the table, and that their series are few."""

from __future__ import annotations

import gc
import itertools
import re
import threading
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lro import Cancelled, Code, Job, Service, StatusError, WorkerLost
from lro._engine import events
from lro._engine import metrics as table_of_metrics
from lro._engine.gauges import LOAD_SECONDS, Gauges
from lro.errors import DeclarationError, InvalidArgument, LroError, OperationNotFound, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.telemetry import BUCKETS, METRICS, Metric, Telemetry
from lro.testing import ManualClock
from tests.service_fixtures import MakeService
from tests.service_steps import WORK, Step, ended, recovered, work
from tests.telemetry.collected import Numbers
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = WORK
PAGE = Path(__file__).parents[2] / "docs/how-to/metrics.md"

Measured = Callable[..., Telemetry]


def fail(request: WorkRequest, _: Job[WorkMetadata]) -> None:
    """End as the request says."""
    if request.text == "cancelled":
        raise Cancelled
    if request.text:
        raise StatusError(Code[request.text], "no")


def test_starts_attempts_and_operations_are_measured(
    make_service: MakeService, numbers: Numbers, measured: Measured, clock: ManualClock
) -> None:
    """By outcome, and by code where they have failed."""
    service = make_service(None, InlineExecutor(), telemetry=measured())

    def body(request: WorkRequest, job: Job[WorkMetadata]) -> None:
        clock.advance(2)
        fail(request, job)

    method = work(service, body)
    for text in ("", "", "NOT_FOUND", "cancelled"):
        method.start(WorkRequest(text))
    with pytest.raises(InvalidArgument):
        method.start(WorkRequest(), request_id="x")
    assert numbers.points("lro.starts") == {
        (METHOD, "started"): 4,
        (METHOD, "refused", "INVALID_ARGUMENT"): 1,
    }
    assert numbers.points("lro.queue.duration") == {(METHOD,): (4, 0.0)}
    by_outcome = {
        (METHOD, "succeeded"): (2, 4.0),
        (METHOD, "failed", "NOT_FOUND"): (1, 2.0),
        (METHOD, "cancelled"): (1, 2.0),
    }
    assert numbers.points("lro.attempt.duration") == by_outcome
    assert numbers.points("lro.operation.duration") == by_outcome
    assert numbers.points("lro.cancel.duration") == {}  # no caller has asked for it


def test_what_a_process_has_is_read_when_it_is_collected(
    make_service: MakeService, numbers: Numbers, measured: Measured, clock: ManualClock
) -> None:
    """What waits, what runs, how old the oldest is, and what the executor can take."""
    service, step = make_service(None, ThreadExecutor(1, 5), telemetry=measured()), Step()
    method = work(service, lambda *_: step())
    service.declare("acme.work.v1.Works.Other", request=WorkRequest, response=WorkResponse)
    assert numbers.metrics() == {}  # nothing is imported before the first start
    first = method.start(WorkRequest()).name
    step.reached()
    clock.advance(7)
    second = method.start(WorkRequest()).name
    assert numbers.points("lro.operation.active") == {
        (METHOD, "pending"): 1,
        (METHOD, "executing"): 1,
    }
    assert numbers.points("lro.operation.max_age") == {(METHOD,): 7.0}
    assert numbers.points("lro.executor.usage") == {("worker",): 1, ("queue",): 1}
    assert numbers.points("lro.executor.limit") == {("worker",): 1, ("queue",): 5}
    waiting = threading.Thread(target=ended, args=(service, first))
    waiting.start()
    while not numbers.points("lro.waiter.active")["wait",]:
        pass  # until that thread waits
    assert numbers.points("lro.waiter.active") == {("wait",): 1, ("watch",): 0}
    step.go.set()
    waiting.join()
    ended(service, second)
    service.close()
    assert numbers.points("lro.operation.active") == {
        (METHOD, "pending"): 0,
        (METHOD, "executing"): 0,
    }
    assert numbers.points("lro.operation.max_age") == {}


def test_usage_of_each_executor(
    make_service: MakeService, numbers: Numbers, measured: Measured
) -> None:
    """One without bounds reports none; one that cannot say it reports nothing."""
    inline = InlineExecutor()
    service = make_service(None, inline, telemetry=measured())
    found: list[Any] = []

    def body(*_: object) -> None:
        found.append((numbers.points("lro.executor.usage"), numbers.points("lro.executor.limit")))

    work(service, body).start(WorkRequest())
    assert found == [({("worker",): 1, ("queue",): 0}, {})]
    executor = AsyncioExecutor(3, 4)
    assert (executor.usage.workers, executor.usage.queue) == (3, 4)
    mute: Any = SimpleNamespace(store=MemoryStore(), executor=object())
    none: Any = None
    gauges = Gauges(mute, {}, none, none)
    for metric in (table_of_metrics.EXECUTOR_USAGE, table_of_metrics.EXECUTOR_LIMIT):
        assert list(gauges.read(metric)) == []


def test_work_that_is_not_claimed_yet_has_no_age(clock: ManualClock) -> None:
    """A worker was sent its name, and does not know when it was created."""
    attempts = [SimpleNamespace(group=METHOD, executing=False, create_time=None)]
    runtime: Any = SimpleNamespace(store=MemoryStore(clock), executor=object())
    workers: Any = SimpleNamespace(attempts=lambda: attempts)
    none: Any = None
    specs: Any = {METHOD: SimpleNamespace(function=fail)}
    gauges = Gauges(runtime, specs, workers, none)
    assert list(gauges.read(table_of_metrics.MAX_AGE)) == []
    active = list(gauges.read(table_of_metrics.ACTIVE))
    assert ({"lro.method": METHOD, "lro.state": "pending"}, 1) in active


def test_usage_of_celery(tmp_path: Path) -> None:
    """What runs in this process; what waits is the broker's."""
    celery = pytest.importorskip("celery")
    from lro.executors.celery import CeleryExecutor

    app = celery.Celery("usage", broker="memory://")
    app.conf.task_always_eager = True
    executor = CeleryExecutor(app)
    assert (executor.usage.running, executor.usage.workers) == (0, None)
    with Service(MemoryStore(), executor, telemetry=False) as service:
        found: list[int] = []
        work(service, lambda *_: found.append(executor.usage.running)).start(WorkRequest())
    assert found == [1]


REACHES: dict[str, Callable[[], Any]] = {
    "cooperative": lambda: ThreadExecutor(1),
    "at_await": lambda: AsyncioExecutor(1),
}


@pytest.mark.parametrize("reach", REACHES)
def test_cancellation_is_measured_by_how_it_reached_the_work(
    make_service: MakeService,
    numbers: Numbers,
    measured: Measured,
    clock: ManualClock,
    reach: str,
) -> None:
    """Work that has not begun is withdrawn; other work stops as its executor can make it."""
    service = make_service(None, REACHES[reach](), telemetry=measured())
    begun = threading.Event()

    async def until_cancelled(_: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.set()
        while True:
            await job.sleep_async(60)

    def until_stopped(_: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.set()
        while True:
            job.sleep(60)

    method = service.method(METHOD)(until_cancelled if reach == "at_await" else until_stopped)
    first = method.start(WorkRequest()).name
    begun.wait()
    second = method.start(WorkRequest()).name
    service.cancel(second)
    service.cancel(first)
    ended(service, first)
    service.close()
    counts = {key: count for key, (count, _) in numbers.points("lro.cancel.duration").items()}
    assert counts == {(METHOD, "withdrawn"): 1, (METHOD, reach): 1}


def test_losses_refusals_margins_and_expiry_are_measured(
    make_service: MakeService,
    numbers: Numbers,
    measured: Measured,
    clock: ManualClock,
    tmp_path: Path,
) -> None:
    """What is zero on a good day."""
    path, step = tmp_path / "operations.db", Step()
    options = {"telemetry": measured(), "keep_for": timedelta(seconds=30)}
    dead = make_service(SQLiteStore(path, clock=clock), **options)
    for name in (METHOD, "acme.work.v1.Works.Once"):
        lost = WorkerLost.RETRY if name == METHOD else WorkerLost.FAIL
        work(dead, lambda *_: step(), name, worker_lost=lost).start(WorkRequest())
        step.reached()
    dead.run_maintenance()
    clock.advance(9)
    dead.run_maintenance()
    assert numbers.points("lro.lease.margin") == {(): (2, 15.0 + 6.0)}
    other = make_service(SQLiteStore(path, clock=clock), InlineExecutor(), **options)
    work(other, worker_lost=WorkerLost.RETRY)
    work(other, name="acme.work.v1.Works.Once")
    clock.advance(20)
    recovered(other, clock)
    assert numbers.points("lro.lost.attempts") == {
        (METHOD, "retried"): 1,
        ("acme.work.v1.Works.Once", "failed"): 1,
    }
    step.go.set()
    dead.close()
    assert numbers.points("lro.refused.writes") == {
        (METHOD,): 1,
        ("acme.work.v1.Works.Once",): 1,
    }
    clock.advance(100)
    other.run_maintenance()
    assert sum(numbers.points("lro.expired.operations").values()) == 2


def test_lost_work_that_was_to_stop_is_not_measured_as_stopped(
    make_service: MakeService,
    numbers: Numbers,
    measured: Measured,
    clock: ManualClock,
    tmp_path: Path,
) -> None:
    """The request did not stop it."""
    path, step = tmp_path / "operations.db", Step()
    dead = make_service(SQLiteStore(path, clock=clock), telemetry=False)
    name = work(dead, lambda *_: step()).start(WorkRequest()).name
    step.reached()
    other = make_service(SQLiteStore(path, clock=clock), InlineExecutor(), telemetry=measured())
    work(other)
    other.cancel(name)
    clock.advance(20)
    recovered(other, clock)
    step.go.set()
    assert numbers.points("lro.operation.duration") == {(METHOD, "failed", "ABORTED"): (1, 21.0)}
    assert numbers.points("lro.cancel.duration") == {}


def test_services_of_a_process_are_added_up(
    make_service: MakeService, numbers: Numbers, measured: Measured, clock: ManualClock
) -> None:
    """Of one provider, which takes each callback once; a service that is gone is left out."""
    steps = [Step(), Step()]
    for step in steps:
        service = make_service(None, ThreadExecutor(2), telemetry=measured())
        work(service, lambda *_, step=step: step()).start(WorkRequest())
        step.reached()
        clock.advance(3)
    assert numbers.points("lro.operation.active")[METHOD, "executing"] == 2
    assert numbers.points("lro.operation.max_age") == {(METHOD,): 6.0}
    assert numbers.points("lro.executor.limit")["worker",] == 4
    for step in steps:
        step.go.set()
    gone = Service(MemoryStore(), InlineExecutor(), maintenance=False, telemetry=measured())
    work(gone).start(WorkRequest())
    gone.close()
    del gone
    gc.collect()
    assert numbers.points("lro.executor.limit")["worker",] == 4
    third = make_service(None, ThreadExecutor(1), telemetry=measured())
    work(third).start(WorkRequest())
    assert numbers.points("lro.executor.limit")["worker",] == 5


def test_another_provider_takes_over(
    make_service: MakeService, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is set later is used from then on, by the services that there are."""
    from opentelemetry import metrics

    monkeypatch.setattr(events, "LOOK_SECONDS", 0.0)
    present = metrics.get_meter_provider()
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: present)
    service = make_service(None, InlineExecutor())
    method = work(service)
    method.start(WorkRequest())
    other = Numbers()
    for provider in (numbers.provider, other.provider):
        present = provider
        method.start(WorkRequest())
    for found in (numbers, other):
        assert found.points("lro.starts") == {(METHOD, "started"): 1}
    assert numbers.points("lro.operation.active") == {}
    assert len(other.points("lro.operation.active")) == 2
    other.provider.shutdown()


# -- the store ------------------------------------------------------------------------------------


def test_calls_of_the_store_are_measured_where_that_is_asked_for(
    make_service: MakeService, numbers: Numbers, measured: Measured, tmp_path: Path
) -> None:
    """By verb, and by code where they fail; also those that end after they have returned."""
    service = make_service(
        SQLiteStore(tmp_path / "operations.db"), telemetry=measured(store_calls=True)
    )
    method = work(service)

    async def on_loop() -> None:
        one = "6a3a2b41-33c4-4ac8-9d0e-9b2f7a0e4d11"
        await method.start_async(WorkRequest("a"), request_id=one)
        with pytest.raises(InvalidArgument):
            await method.start_async(WorkRequest("b"), request_id=one)

    import asyncio

    asyncio.run(on_loop())
    with pytest.raises(OperationNotFound):
        service.get("operations/none")
    service.close()
    points = numbers.points("lro.store.call.duration")
    counts = {key: count for key, (count, _) in points.items()}
    assert counts["insert_later",] == 1
    assert counts["insert_later", "INVALID_ARGUMENT"] == 1
    assert counts["get", "NOT_FOUND"] == 1
    assert counts["update",] >= 1


def test_calls_of_the_store_are_not_measured_by_default(
    make_service: MakeService, numbers: Numbers, measured: Measured
) -> None:
    """Nothing stands between the service and its store then."""
    service = make_service(telemetry=measured())
    service.get(work(service).start(WorkRequest()).name)
    assert numbers.points("lro.store.call.duration") == {}


def test_write_that_a_store_refuses_at_once_is_measured(
    make_service: MakeService, numbers: Numbers, measured: Measured
) -> None:
    """``done`` is never called then."""
    import asyncio

    class Refusing(MemoryStore):
        writes_block = True

        def insert_later(self, *_: Any, **__: Any) -> None:
            raise KeyError("no")

    service = make_service(Refusing(), telemetry=measured(store_calls=True))
    with pytest.raises(KeyError):
        asyncio.run(work(service).start_async(WorkRequest()))
    assert ("insert_later", "KeyError") in numbers.points("lro.store.call.duration")


def test_calls_of_the_store_are_not_measured_otherwise(
    make_service: MakeService, numbers: Numbers, measured: Measured
) -> None:
    """The store is used as it is."""
    service = make_service(None, InlineExecutor(), telemetry=measured())
    work(service).start(WorkRequest())
    assert "lro.store.call.duration" not in numbers.metrics()
    assert "lro.store.operations" not in numbers.metrics()


class Loaded(MemoryStore):
    """A store that says what is in progress."""

    loads: list[Any]

    def read_load(self, parents: Collection[str], limit: int) -> Any:
        """As the test says; it may be away."""
        assert (list(parents), limit) == (["", "projects/p"], 10_000)
        found = self.loads.pop(0)
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(methods=found)


def load(waiting: int, running: int) -> Any:
    """What is in progress of the method."""
    return SimpleNamespace(method=METHOD, waiting=waiting, running=running)


def test_operations_in_the_store_are_counted_where_that_is_asked_for(
    make_service: MakeService,
    numbers: Numbers,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most each 15 seconds; of a store that is away nothing is said."""
    from lro._engine import gauges

    now = 100.0
    monkeypatch.setattr(gauges, "time", SimpleNamespace(monotonic=lambda: now))
    store = Loaded()
    store.loads = [[load(3, 1)], Unavailable("away"), [load(0, 2)]]
    options = measured(store_operations=["", "projects/p"])
    service = make_service(store, InlineExecutor(), telemetry=options)
    work(service).start(WorkRequest())
    expected = {(METHOD, "pending"): 3, (METHOD, "executing"): 1}
    assert numbers.points("lro.store.operations") == expected
    now += LOAD_SECONDS - 1
    assert numbers.points("lro.store.operations") == expected
    now += 1
    assert numbers.points("lro.store.operations") == {}
    now += LOAD_SECONDS
    assert numbers.points("lro.store.operations")[METHOD, "executing"] == 2


def test_store_that_cannot_count_says_nothing(
    make_service: MakeService, numbers: Numbers, measured: Measured
) -> None:
    """The option is no mistake: another store can."""

    class Plain(MemoryStore):
        read_load: Any = None

    service = make_service(Plain(), InlineExecutor(), telemetry=measured(store_operations=[""]))
    work(service).start(WorkRequest())
    assert "lro.store.operations" not in numbers.metrics()


# -- the table ------------------------------------------------------------------------------------


def test_page_of_the_docs_has_the_table() -> None:
    """It is made of the same place as the instruments."""
    assert table_of_metrics.table() in PAGE.read_text()


def test_instruments_are_those_of_the_table(
    make_service: MakeService, numbers: Numbers, measured: Measured, clock: ManualClock
) -> None:
    """Names, units, descriptions, buckets, and no attribute that the table does not have."""
    store = Loaded(clock)
    store.loads = [[load(1, 1)]]
    options = measured(store_calls=True, store_operations=["", "projects/p"])
    service = make_service(store, InlineExecutor(), telemetry=options)

    def body(request: WorkRequest, job: Job[WorkMetadata]) -> None:
        service.cancel(job.name)
        service.run_maintenance()
        found.update(numbers.metrics())
        fail(request, job)

    found: dict[str, Any] = {}
    method = work(service, body)
    method.start(WorkRequest("cancelled"))
    method.start(WorkRequest("NOT_FOUND"))
    clock.advance(timedelta(days=31).total_seconds())
    service.run_maintenance()
    found = {**found, **numbers.metrics()}
    known = {metric.name: metric for metric in METRICS}
    rare = {"lro.lost.attempts", "lro.refused.writes", "lro.executor.limit"}  # not by this one
    assert set(known) - rare == set(found)
    for name, metric in found.items():
        assert (metric.unit, metric.description) == (known[name].unit, known[name].description)
        for point in metric.data.data_points:
            assert set(point.attributes) <= set(known[name].attributes), name
            if known[name].kind == "histogram":
                assert tuple(point.explicit_bounds) == BUCKETS == known[name].buckets


def test_names_are_as_prometheus_has_them() -> None:
    """Counters end with the total, seconds are said, and all are well-formed."""
    names = {metric.name: metric.prometheus_name for metric in METRICS}
    assert names["lro.starts"] == "lro_starts_total"
    assert names["lro.operation.duration"] == "lro_operation_duration_seconds"
    assert names["lro.executor.usage"] == "lro_executor_usage"
    assert len(set(names.values())) == len(METRICS)
    assert all(re.fullmatch(r"lro(_[a-z]+)+", name) for name in names.values())
    assert Metric(name="a", kind="counter", unit="1", description="").buckets == ()


def test_series_stay_few_however_many_operations(numbers: Numbers, measured: Measured) -> None:
    """A thousand, of two methods: as many series as methods and bounded values, no ids."""
    store = MemoryStore()
    service = Service(store, InlineExecutor(), maintenance=False, telemetry=measured())
    methods = [work(service, fail, f"acme.work.v1.Works.W{number}") for number in range(2)]
    texts = ("", "", "NOT_FOUND", "INTERNAL", "cancelled")
    requests = [WorkRequest(text, size) for size, text in enumerate(texts)]
    for method, request in itertools.islice(
        itertools.cycle(itertools.product(methods, requests)), 1_000
    ):
        method.start(request)
    for method in methods:
        with pytest.raises(LroError):
            method.start(WorkRequest(), request_id="x")
    service.close()
    series = {
        name: len(list(metric.data.data_points)) for name, metric in numbers.metrics().items()
    }
    assert series == {
        "lro.starts": 2 * 2,
        "lro.queue.duration": 2,
        "lro.attempt.duration": 2 * 4,
        "lro.operation.duration": 2 * 4,
        "lro.operation.active": 2 * 2,
        "lro.waiter.active": 2,
        "lro.executor.usage": 2,
    }
    assert sum(count for count, _ in numbers.points("lro.operation.duration").values()) == 1_000


def test_wrong_kind_of_telemetry_names_the_option() -> None:
    """As all options do."""
    with pytest.raises(DeclarationError, match="meter_provider: must be None, or a provider"):
        Telemetry(meter_provider=5)
