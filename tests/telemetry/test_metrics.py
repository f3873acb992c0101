"""Metrics: the events that each metric counts, the table in the docs, the number of series."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import pytest

from lro import Cancelled, Code, Job, Service, State, StatusError
from lro._engine import events, telemetry
from lro._engine import metrics as table_of_metrics
from lro._engine.gauges import QUEUE_SECONDS, Gauges
from lro.adapters import (
    AttemptBegan,
    AttemptOver,
    LeaseRenewed,
    OperationEnded,
    OperationsExpired,
    OperationStarted,
    WorkLost,
    WriteRefused,
)
from lro.errors import InvalidArgument, LroError, OperationNotFound, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.telemetry import BUCKETS, METRICS, Telemetry
from tests.engine.engine_parts import once, raising
from tests.service_steps import WORK, Step, ended, work
from tests.stores.samples import end_of, insert, waiting, worker_of
from tests.telemetry.collected import Numbers
from tests.waiting import until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = WORK
PAGE = Path(__file__).parents[2] / "docs/how-to/observe.md"

Measured = Callable[..., Telemetry]


def fail(request: WorkRequest, _: Job[WorkMetadata]) -> None:
    """End the work with the outcome that the request names."""
    if request.text == "cancelled":
        raise Cancelled
    if request.text:
        raise StatusError(Code[request.text], "no")


def test_outcomes_and_codes_are_counted(numbers):
    """Starts and attempts are counted by outcome and error code; rare events are counted too."""
    options = Telemetry(meter_provider=numbers.provider)
    measuring = telemetry.ServiceTelemetry(options, executor="E", remote=False)
    measuring.use_providers([source() for source in measuring.sources()])
    known: dict[str, Any] = {"name": "operations/a", "method": METHOD}
    attempt: dict[str, Any] = {**known, "attempt": 1}
    ended: dict[str, Any] = {**attempt, "seconds": 2.0}
    for event in (
        OperationStarted(outcome="started", **known),
        OperationStarted(outcome="refused", error_type="INVALID_ARGUMENT", method=METHOD),
        AttemptBegan(queue_seconds=0.5, **attempt),
        AttemptBegan(queue_seconds=None, **attempt),  # a later attempt, which has no queue time
        AttemptOver(outcome="succeeded", **ended),
        AttemptOver(outcome="failed", error_type="NOT_FOUND", **ended),
        AttemptOver(outcome="cancelled", error_type="CANCELLED", **ended),
        OperationEnded(state=State.SUCCEEDED, **ended),
        OperationEnded(state=State.FAILED, error_type="ABORTED", cancel_seconds=9.0, **ended),
        OperationEnded(state=State.CANCELLED, error_type="CANCELLED", **ended),
        OperationEnded(state=State.CANCELLED, cancel_seconds=3.0, cancel_reach="at_await", **ended),
        OperationEnded(
            state=State.CANCELLED, cancel_seconds=4.0, cancel_reach="withdrawn", **ended
        ),
        OperationEnded(
            state=State.FAILED,
            error_type="DEADLINE_EXCEEDED",
            expired=True,
            **{**ended, "attempt": 0},
        ),
        WorkLost(decision="retried", lost_attempts=1, **attempt),
        WorkLost(decision="failed", lost_attempts=2, **attempt),
        WriteRefused(**attempt),
        LeaseRenewed(count=2, margin_seconds=15.0),
        LeaseRenewed(count=2, margin_seconds=6.0),
        OperationsExpired(methods={METHOD: 2}),
    ):
        getattr(measuring, event.kind)(event)
    assert {name: numbers.points(name) for name in numbers.metrics()} == {
        "lro.starts": {(METHOD, "started"): 1, (METHOD, "refused", "INVALID_ARGUMENT"): 1},
        "lro.queue.duration": {(METHOD,): (1, 0.5)},
        "lro.attempt.duration": {
            (METHOD, "succeeded"): (1, 2.0),
            (METHOD, "failed", "NOT_FOUND"): (1, 2.0),
            (METHOD, "cancelled"): (1, 2.0),
        },
        "lro.operation.duration": {
            (METHOD, "succeeded"): (1, 2.0),
            (METHOD, "failed", "ABORTED"): (1, 2.0),
            (METHOD, "failed", "DEADLINE_EXCEEDED"): (1, 2.0),
            (METHOD, "cancelled"): (3, 6.0),
        },
        "lro.cancel.duration": {(METHOD, "at_await"): (1, 3.0), (METHOD, "withdrawn"): (1, 4.0)},
        "lro.queue.expiries": {(METHOD,): 1},
        "lro.lost.attempts": {(METHOD, "retried"): 1, (METHOD, "failed"): 1},
        "lro.refused.writes": {(METHOD,): 1},
        "lro.lease.margin": {(): (2, 21.0)},
        "lro.expired.operations": {(METHOD,): 2},
    }


def test_gauges_report_the_present_state(make_service, numbers, measured, clock):
    """Gauges report running work, its highest age, waiting callers, and executor use and limit."""
    service, step = make_service(None, ThreadExecutor(1), telemetry=measured()), Step()
    method = work(service, lambda *_: step())
    service.declare("acme.work.v1.Works.Other", request=WorkRequest, response=WorkResponse)
    assert numbers.metrics() == {}  # nothing is imported before the first start
    first = method.start(WorkRequest()).name
    step.reached()
    clock.advance(7)
    assert numbers.points("lro.operation.active") == {
        (METHOD, "pending"): 0,
        (METHOD, "executing"): 1,
    }
    assert numbers.points("lro.operation.max_age") == {(METHOD,): 7.0}
    assert numbers.points("lro.executor.usage") == {(): 1}
    assert numbers.points("lro.executor.limit") == {(): 1}
    caller = threading.Thread(target=ended, args=(service, first))
    caller.start()
    until(lambda: numbers.points("lro.waiter.active")["wait",])
    assert numbers.points("lro.waiter.active") == {("wait",): 1, ("watch",): 0}
    step.go.set()
    caller.join()
    service.close()
    assert numbers.points("lro.operation.active") == {
        (METHOD, "pending"): 0,
        (METHOD, "executing"): 0,
    }
    assert numbers.points("lro.operation.max_age") == {}


def test_usage_of_each_executor_is_measured(make_service, numbers, measured):
    """Each executor reports its usage; an executor without a limit reports no limit."""
    service = make_service(None, InlineExecutor(), telemetry=measured())
    found: list[Any] = []

    def body(*_: object) -> None:
        found.append((numbers.points("lro.executor.usage"), numbers.points("lro.executor.limit")))

    work(service, body).start(WorkRequest())
    assert found == [({(): 1}, {})]
    assert AsyncioExecutor(3).usage.workers == 3


def test_unknown_values_are_not_reported():
    """Gauges leave out values that an executor cannot report, and the age if no work runs."""
    gauges = Gauges(
        SimpleNamespace(store=MemoryStore(), executor=object()),
        {METHOD: SimpleNamespace(function=fail)},
        SimpleNamespace(attempts=list),
        None,
    )
    for metric in ("EXECUTOR_USAGE", "EXECUTOR_LIMIT", "MAX_AGE"):
        assert list(gauges.read(getattr(table_of_metrics, metric))) == []
    active = list(gauges.read(table_of_metrics.ACTIVE))
    assert ({"lro.method": METHOD, "lro.state": "pending"}, 0) in active


def test_method_declared_while_metrics_are_read_is_not_an_error():
    """If a method is declared while gauges are read, attempts of the method may be counted."""
    other = "acme.v1.Works.Other"
    specs: dict[str, Any] = {}

    class Declaring:
        @property
        def function(self) -> object:
            specs[other] = SimpleNamespace(function=fail)
            return fail

    specs[METHOD] = Declaring()
    attempt = SimpleNamespace(method=other, executing=True)
    gauges = Gauges(
        SimpleNamespace(store=None), specs, SimpleNamespace(attempts=lambda: [attempt]), None
    )
    active = list(gauges.read(table_of_metrics.ACTIVE))
    assert ({"lro.method": other, "lro.state": "executing"}, 1) in active
    assert ({"lro.method": METHOD, "lro.state": "executing"}, 0) in active


def test_usage_of_celery_is_measured(tmp_path):
    """The usage of a CeleryExecutor is the number of operations that run in this process."""
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


def test_gauges_sum_the_services_of_a_process(make_service, numbers, measured, clock):
    """Gauges sum up all services of a process, but not services that were garbage-collected."""
    steps = [Step(), Step()]
    for step in steps:
        service = make_service(None, ThreadExecutor(2), telemetry=measured())
        work(service, lambda *_, step=step: step()).start(WorkRequest())
        step.reached()
        clock.advance(3)
    assert numbers.points("lro.operation.active")[METHOD, "executing"] == 2
    assert numbers.points("lro.operation.max_age") == {(METHOD,): 6.0}
    assert numbers.points("lro.executor.limit") == {(): 4}
    for step in steps:
        step.go.set()
    gone = Service(MemoryStore(), InlineExecutor(), maintenance=False, telemetry=measured())
    work(gone).start(WorkRequest())
    gone.close()
    del gone
    gc.collect()
    assert numbers.points("lro.executor.limit") == {(): 4}
    third = make_service(None, ThreadExecutor(1), telemetry=measured())
    work(third).start(WorkRequest())
    assert numbers.points("lro.executor.limit") == {(): 5}


def test_provider_set_later_takes_over(make_service, numbers, monkeypatch):
    """A service switches to a global provider that is set after the service's first start."""
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


def test_store_calls_are_measured_only_on_request(make_service, numbers, measured, tmp_path):
    """The durations of store calls are measured by verb and error code, if an option asks for it.

    A write that the store refuses at once is measured too, although ``done`` is not called.
    """

    class Refusing(SQLiteStore):
        refusing = False

        def insert_later(self, *arguments: Any) -> None:
            if self.refusing:
                raise KeyError("no")
            super().insert_later(*arguments)

    store = Refusing(tmp_path / "operations.db")
    service = make_service(store, telemetry=measured(store_calls=True))
    method = work(service)

    async def on_loop() -> None:
        one = "6a3a2b41-33c4-4ac8-9d0e-9b2f7a0e4d11"
        await method.start_async(WorkRequest("a"), request_id=one)
        with pytest.raises(InvalidArgument):
            await method.start_async(WorkRequest("b"), request_id=one)

    asyncio.run(on_loop())
    with pytest.raises(OperationNotFound):
        service.get("operations/none")
    store.refusing = True
    with pytest.raises(KeyError):
        asyncio.run(method.start_async(WorkRequest()))
    service.run_maintenance()
    service.close()
    points = numbers.points("lro.store.call.duration")
    counts = {key: count for key, (count, _) in points.items()}
    assert counts["insert_later",] == 1
    assert counts["insert_later", "INVALID_ARGUMENT"] == 1
    assert counts["insert_later", "KeyError"] == 1
    assert counts["get", "NOT_FOUND"] == 1
    assert counts["update",] >= 1
    assert counts["claim",] >= 1
    assert not {("now",), ("secret",)} & counts.keys()


GONE: Final = "acme.work.v1.Works.Gone"


def test_waiting_work_is_counted_every_15_seconds(make_service, numbers, measured, clock):
    """Every 15 s, waiting work is counted, split by whether a worker serves its method."""
    store = MemoryStore(clock)
    service = make_service(store, InlineExecutor(), telemetry=measured())
    work(service).start(WorkRequest())
    service.run_maintenance()
    for unique_id, method in (("a", GONE), ("b", GONE), ("c", METHOD)):
        insert(store, waiting(clock, unique_id, method=method))
        clock.advance(2)
    assert queue_of(numbers) == {(GONE, "false"): (2, 0, 6), (METHOD, "true"): (1, 0, 2)}
    store.update("operations/a", end_of(clock))
    clock.advance(QUEUE_SECONDS - 1)
    assert queue_of(numbers) == {(GONE, "false"): (2, 0, 6), (METHOD, "true"): (1, 0, 2)}
    clock.advance(1)
    once(store, "waiting", raising(Unavailable("away")))
    assert not {"lro.queue.operations", "lro.queue.max_age"} & numbers.metrics().keys()
    clock.advance(QUEUE_SECONDS)
    assert queue_of(numbers) == {(GONE, "false"): (1, 0, 34), (METHOD, "true"): (1, 0, 32)}


def test_delayed_work_is_not_late(make_service, numbers, measured, clock):
    """Delayed work is counted separately, and raises the queue's age only once it is due."""
    store = MemoryStore(clock)
    service = make_service(store, None, telemetry=measured())
    service.cancel(work(service).start(WorkRequest()).name)
    store.renew(attrs.evolve(worker_of(clock, seconds=999), methods=(METHOD,)))
    insert(store, waiting(clock, "a", seconds=60, method=METHOD))
    insert(store, waiting(clock, "b", seconds=90, method=METHOD))
    for passed, seen in ((0, (0, 2, 0)), (50, (0, 2, 0)), (20, (1, 1, 10)), (30, (2, 0, 40))):
        clock.advance(passed)
        assert queue_of(numbers) == {(METHOD, "true"): seen}


def test_method_without_waiting_work_reports_zero(make_service, numbers, measured, clock):
    """A method has zeros in the metrics of queues if it is declared here or served by a worker."""
    store = MemoryStore(clock)
    service = make_service(store, None, telemetry=measured())
    service.cancel(work(service).start(WorkRequest()).name)
    store.renew(attrs.evolve(worker_of(clock), methods=(GONE,)))
    assert queue_of(numbers) == {(GONE, "true"): (0, 0, 0), (METHOD, "false"): (0, 0, 0)}


def test_paused_methods_are_measured(make_service, numbers, measured, clock):
    """The gauge of pauses is 1 for a paused method, and 0 for every other known method."""
    store = MemoryStore(clock)
    service = make_service(store, InlineExecutor(), telemetry=measured())
    work(service, aliases=["acme.work.v1.Works.Old"]).start(WorkRequest())
    insert(store, waiting(clock, "a", method=GONE))
    assert numbers.points("lro.method.paused") == {(METHOD,): 0, (GONE,): 0}
    for name in (METHOD, GONE):
        service.pause(name)
    store.update("operations/a", end_of(clock))
    assert numbers.points("lro.method.paused") == {(METHOD,): 0, (GONE,): 0}
    clock.advance(QUEUE_SECONDS)
    assert numbers.points("lro.method.paused") == {(METHOD,): 1, (GONE,): 1}
    service.resume(METHOD)
    clock.advance(QUEUE_SECONDS)
    assert numbers.points("lro.method.paused") == {(METHOD,): 0, (GONE,): 1}


def queue_of(numbers: Numbers) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Return for each method: operations due, operations not yet due, and the highest age."""
    counts = numbers.points("lro.queue.operations")
    ages = numbers.points("lro.queue.max_age")
    assert {key[:2] for key in counts} == {*ages}
    return {key: (counts[*key, "true"], counts[*key, "false"], ages[key]) for key in ages}


# -- the table ------------------------------------------------------------------------------------


def test_page_of_the_docs_has_the_table():
    """The table of metrics in the docs is generated from the list of instruments."""
    assert table_of_metrics.table() in PAGE.read_text()


def test_instruments_are_those_of_the_table(make_service, numbers, measured, clock):
    """Instruments have the names, units, descriptions, buckets and attributes of the table."""
    store = MemoryStore(clock)
    insert(store, waiting(clock, method=GONE))
    options = measured(store_calls=True)
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
    rare = {"lro.lost.attempts", "lro.refused.writes", "lro.executor.limit", "lro.queue.expiries"}
    assert set(known) - rare == set(found)
    for name, metric in found.items():
        assert (metric.unit, metric.description) == (known[name].unit, known[name].description)
        for point in metric.data.data_points:
            assert set(point.attributes) <= set(known[name].attributes), name
            if known[name].kind == "histogram":
                assert tuple(point.explicit_bounds) == BUCKETS == known[name].buckets


def test_series_stay_few_however_many_operations(numbers, measured):
    """The number of series depends on methods and outcomes, not on the number of operations."""
    service = Service(MemoryStore(), InlineExecutor(), maintenance=False, telemetry=measured())
    methods = [work(service, fail, f"acme.work.v1.Works.W{number}") for number in range(2)]
    texts = ("", "", "NOT_FOUND", "INTERNAL", "cancelled")
    requests = [WorkRequest(text, size) for size, text in enumerate(texts)]
    for method, request in itertools.islice(
        itertools.cycle(itertools.product(methods, requests)), 1_000
    ):
        method.start(request)
    for method in methods:
        with pytest.raises(LroError):
            method.start(WorkRequest(), request_id=" x")
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
        "lro.queue.operations": 2 * 2,
        "lro.queue.max_age": 2,
        "lro.method.paused": 2,
        "lro.waiter.active": 2,
        "lro.executor.usage": 1,
    }
    assert sum(count for count, _ in numbers.points("lro.operation.duration").values()) == 1_000
