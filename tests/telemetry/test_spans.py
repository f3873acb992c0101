"""Spans of starts, attempts and takeovers: kinds, parents, links and attributes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import SpanKind, StatusCode

from lro import Cancelled, Code, Service, StatusError
from lro.adapters import Executor
from lro.errors import DeclarationError, RequestIdConflict
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.telemetry import MAX_CONTEXT, SCHEMA_URL, Telemetry
from tests.engine.engine_parts import Held, once, raising
from tests.executors import process_methods
from tests.service_steps import WORK, Step, answer, ended, recovered, work
from tests.telemetry import traced_methods
from tests.telemetry.collected import Spans, hex_ids, ids, linked
from tests.work_messages import WorkRequest, WorkResponse

METHOD = WORK
ONE = "6a3a2b41-33c4-4ac8-9d0e-9b2f7a0e4d11"

Traced = Callable[..., Telemetry]


def test_start_and_attempt_are_spans_with_a_link(make_service, store, spans, traced):
    """A start's span is a child of the current span; the attempt's root span links to the start."""
    service = make_service(store, InlineExecutor(), telemetry=traced())
    method = work(service)
    with spans.tracer.start_as_current_span("request") as request:
        name = method.start(WorkRequest("a")).name
    start, process = spans.ours()
    assert (start.name, start.kind) == (f"start {METHOD}", SpanKind.PRODUCER)
    assert start.parent is not None
    assert ids(start.parent) == ids(request)
    named = {"lro.operation.name": name, "messaging.message.id": name}
    known = {
        "lro.method": METHOD,
        "messaging.system": "lro",
        "messaging.destination.name": METHOD,
        **named,
    }
    assert dict(start.attributes or {}) == {
        **known,
        "messaging.operation.type": "send",
        "lro.start.outcome": "started",
    }
    assert (process.name, process.kind) == (f"process {METHOD}", SpanKind.CONSUMER)
    assert process.parent is None
    assert linked(process) == [ids(start)]
    assert dict(process.attributes or {}) == {
        **known,
        "messaging.operation.type": "process",
        "lro.attempt": 1,
        "lro.executor": "InlineExecutor",
        "lro.outcome": "succeeded",
    }
    assert start.status.status_code is process.status.status_code is StatusCode.UNSET
    assert start.instrumentation_scope.schema_url == SCHEMA_URL
    assert service.get(name, view="FULL").description.trace_id == f"{ids(start)[0]:032x}"


@pytest.mark.parametrize(
    ("error", "outcome", "code", "status"),
    [
        (StatusError(Code.NOT_FOUND, "secret"), "failed", "NOT_FOUND", StatusCode.ERROR),
        (ValueError("secret"), "failed", "INTERNAL", StatusCode.ERROR),
        (Cancelled(), "cancelled", None, StatusCode.UNSET),
    ],
)
def test_only_a_failed_attempt_has_span_status_error(
    make_service, spans, traced, error, outcome, code, status
):
    """A failed attempt's span has the error code, but not the text, which may be confidential."""
    service = make_service(None, InlineExecutor(), telemetry=traced())
    work(service, raising(error)).start(WorkRequest())
    process = spans.only("CONSUMER")
    facts = dict(process.attributes or {})
    assert (facts["lro.outcome"], facts.get("error.type")) == (outcome, code)
    assert process.status.status_code is status
    assert "secret" not in "".join(span.to_json() for span in spans.ours())


def test_repeated_and_refused_starts_are_marked_in_their_spans(make_service, store, spans, traced):
    """A repeated start's span names the first operation; a refused start's span has an error."""
    method = work(make_service(store, InlineExecutor(), telemetry=traced()))
    name = method.start(WorkRequest("a"), request_id=ONE).name
    method.start(WorkRequest("a"), request_id=ONE)
    with pytest.raises(RequestIdConflict):
        method.start(WorkRequest("b"), request_id=ONE)
    method.start(WorkRequest("b"), validate_only=True)  # validation makes no span
    first, again, refused = (dict(span.attributes or {}) for span in spans.ours("PRODUCER"))
    assert first["lro.start.outcome"] == "started"
    assert (again["lro.start.outcome"], again["lro.operation.name"]) == ("repeated", name)
    assert (refused["lro.start.outcome"], refused["error.type"]) == ("refused", "INVALID_ARGUMENT")
    assert "lro.operation.name" not in refused
    assert spans.ours("PRODUCER")[-1].status.status_code is StatusCode.ERROR
    assert linked(spans.only("CONSUMER")) == [ids(spans.ours("PRODUCER")[0])]


def test_start_that_breaks_off_names_the_class_of_the_error(make_service, spans, traced):
    """A start that ends in a BaseException has the error's class in its span, but no outcome."""

    class Interrupted(BaseException):
        pass

    store = MemoryStore()
    once(store, "insert", raising(Interrupted()))
    with pytest.raises(Interrupted):
        work(make_service(store, InlineExecutor(), telemetry=traced())).start(WorkRequest())
    facts = dict(spans.only("PRODUCER").attributes or {})
    assert facts["error.type"].endswith("Interrupted")
    assert "lro.start.outcome" not in facts


def test_work_done_outside_has_a_start_alone(make_service, store, spans, traced):
    """An operation whose work is done outside has a span for its start, but none for an attempt."""
    service = make_service(store, InlineExecutor(), telemetry=traced())
    method = service.declare(METHOD, request=WorkRequest, response=WorkResponse)
    name = method.start(WorkRequest()).name
    assert service.reporter(name).complete(WorkResponse())
    (start,) = spans.ours()
    assert service.store.get(name).trace_context.startswith(f"00-{hex_ids(start)}-")


@pytest.mark.parametrize("propagation", ["child", "none"])
def test_attempt_may_be_a_child_of_the_start_or_apart(
    make_service, store, spans, traced, propagation
):
    """With "child", the attempt's span has the start's span as parent; with "none", no parent."""
    service = make_service(store, InlineExecutor(), telemetry=traced(propagation=propagation))
    name = work(service).start(WorkRequest()).name
    start, process = spans.ours()
    parent = process.parent and ids(process.parent)
    assert (parent, linked(process)) == (ids(start) if propagation == "child" else None, [])
    assert service.get(name, view="FULL").description.trace_id == f"{ids(start)[0]:032x}"


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "inline": InlineExecutor,
    "threads": lambda: ThreadExecutor(2),
    "asyncio": AsyncioExecutor,
    "processes": lambda: ProcessExecutor(1),
}


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("function", [traced_methods.plain, traced_methods.coroutine])
def test_function_runs_in_the_span_of_its_attempt(make_service, spans, traced, kind, function):
    """With every executor, the function runs in its attempt's span, with chosen baggage only."""
    service = make_service(None, EXECUTORS[kind](), telemetry=traced(baggage=["tenant", "none"]))
    method = service.method(METHOD)(function)
    token = context.attach(
        baggage.set_baggage("tenant", "acme", baggage.set_baggage("secret", "x"))
    )
    try:
        with spans.tracer.start_as_current_span("request"):
            operation = method.start(WorkRequest())
    finally:
        context.detach(token)
    text = answer(service, ended(service, operation.name))
    service.close()
    process = spans.only("CONSUMER")
    assert text == f"{hex_ids(process)} acme None"
    assert linked(process) == [ids(spans.only("PRODUCER"))]
    assert process.parent is None
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_function_on_the_loop_of_the_application_runs_in_the_span_of_its_attempt(
    make_service, spans, traced
):
    """The function runs in its attempt's span; the request's span is current after the call."""
    service = make_service(None, AsyncioExecutor(loop="running"), telemetry=traced())
    method = service.method(METHOD)(traced_methods.coroutine)

    async def call() -> WorkResponse:
        with spans.tracer.start_as_current_span("request") as request:
            found = await (await method.start_async(WorkRequest())).result_async()
            assert trace.get_current_span() is request
        await asyncio.to_thread(service.close)
        return found

    assert asyncio.run(call()).text == f"{hex_ids(spans.only('CONSUMER'))} None None"


def test_lost_work_that_is_retried_has_a_span_and_another_attempt(
    make_service, spans, traced, clock, tmp_path
):
    """A takeover has a span; the first attempt is superseded, and the second attempt succeeds."""
    path, step = tmp_path / "operations.db", Step()
    dead = make_service(SQLiteStore(path, clock=clock), telemetry=traced())
    name = work(dead, lambda *_: step()).start(WorkRequest()).name
    step.reached()
    other = make_service(SQLiteStore(path, clock=clock), InlineExecutor(), telemetry=traced())
    work(other)
    clock.advance(20)
    recovered(other, clock)
    step.go.set()
    dead.close()
    start = spans.only("PRODUCER")
    taken = spans.only("INTERNAL")
    assert taken.name == f"take over {METHOD}"
    assert (taken.parent, linked(taken)) == (None, [ids(start)])
    assert dict(taken.attributes or {}) == {
        "lro.method": METHOD,
        "lro.operation.name": name,
        "lro.attempt": 1,
        "lro.lost_attempts": 1,
        "lro.decision": "retried",
    }
    first, second = spans.ours("CONSUMER")
    assert linked(first) == linked(second) == [ids(start)]
    outcomes = [dict(span.attributes or {})["lro.outcome"] for span in (first, second)]
    assert outcomes == ["superseded", "succeeded"]
    assert first.status.status_code is StatusCode.UNSET


def test_child_process_that_dies_is_a_lost_attempt(spans, traced):
    """If a child process dies, the attempt's span ends as lost, and the operation fails."""
    with Service(MemoryStore(), ProcessExecutor(1), telemetry=traced()) as service:
        method = service.method(METHOD, at_most_once=True)(process_methods.exit_at_once)
        ended(service, method.start(WorkRequest(size=1)))
    assert dict(spans.only("CONSUMER").attributes or {})["lro.outcome"] == "lost"
    assert dict(spans.only("INTERNAL").attributes or {})["lro.decision"] == "failed"


REMOTE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def remote(state: str = "", **items: str) -> Any:
    """Return a context with a remote span, a tracestate and baggage."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    given = {"traceparent": REMOTE, "tracestate": state}
    found = TraceContextTextMapPropagator().extract(given, context.Context())
    for key, value in items.items():
        found = baggage.set_baggage(key, value, found)
    return found


LONG = f"a{'b' * 200}@{'c' * 10}={'v' * 250}"
STATES = ",".join(f"k{number}={'v' * 60}" for number in range(8))


@pytest.mark.parametrize(
    ("state", "tenant", "kept", "baggage_kept"),
    [
        ("", "", "", ""),
        ("a=1", "", " a=1", ""),
        ("", "acme ltd", "", "\ttenant=acme+ltd"),
        ("a=1,b= 2", "acme", " a=1,b= 2", "\ttenant=acme"),
        (STATES, "", f" {STATES}", ""),
        (f"{STATES},x={'v' * 200}", "", f" {STATES}", ""),
        (f"{LONG},b={'v' * 256}", "", f" {LONG}", ""),
        (f"x={'v' * 250},y={'v' * 250},z=1", "t" * 40, f" x={'v' * 250},y={'v' * 250},z=1", ""),
    ],
)
def test_stored_context_has_a_bounded_size(
    make_service, traced, store, state, tenant, kept, baggage_kept
):
    """If a context is too large, baggage is dropped first, then the last tracestate entries."""
    service = make_service(store, InlineExecutor(), telemetry=traced(baggage=["tenant"]))
    token = context.attach(remote(state, **({"tenant": tenant} if tenant else {})))
    try:
        name = work(service).start(WorkRequest()).name
    finally:
        context.detach(token)
    found = service.store.get(name).trace_context
    assert len(found) <= MAX_CONTEXT == 600
    assert found[:35] == REMOTE[:35]
    assert found[55:] == kept + baggage_kept


def test_sampling_decision_reaches_a_child(make_service):
    """Children of a start that is not sampled are not sampled either."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    none = Spans(sampler=ParentBased(ALWAYS_OFF))
    options = Telemetry(tracer_provider=none.provider, propagation="child")
    service = make_service(None, InlineExecutor(), telemetry=options)
    name = work(service).start(WorkRequest()).name
    assert service.store.get(name).trace_context.endswith(("-00", "-02"))
    assert none.all() == ()


def test_telemetry_that_is_off_makes_no_spans(make_service, spans, monkeypatch):
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    service = make_service(None, InlineExecutor(), telemetry=False)
    name = work(service).start(WorkRequest()).name
    assert spans.ours() == []
    assert service.store.get(name).trace_context == ""
    service = make_service(None, InlineExecutor())
    work(service).start(WorkRequest())
    assert len(spans.ours()) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"tracer_provider": 5},
        {"meter_provider": "global"},
        {"propagation": "links"},
        {"baggage": "tenant"},
        {"store_calls": 1},
    ],
)
def test_wrong_option_is_refused(options):
    """A wrong telemetry option is refused with an error that names the option."""
    (name,) = options
    with pytest.raises(DeclarationError, match=name):
        Telemetry(**options)
    with pytest.raises(DeclarationError, match="telemetry: must be"):
        Service(MemoryStore(), InlineExecutor(), telemetry=True)  # True is not a valid value


def test_attempt_of_a_stored_start_without_context_has_no_link(make_service, store, spans, traced):
    """An attempt has no link if the process that started the operation did not trace the start."""
    silent = make_service(store, Held(), telemetry=False)
    name = work(silent).start(WorkRequest()).name
    silent.edges.work.stop(timedelta(0))
    other = make_service(store, InlineExecutor(), telemetry=traced())
    work(other)
    other.edges.work.run_operation(name)
    process = spans.only("CONSUMER")
    assert (process.parent, linked(process)) == (None, [])
