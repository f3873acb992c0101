"""Parents of start spans when the start arrives over HTTP or gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from opentelemetry import context, trace

from lro import Service
from lro.asgi import OperationsApp as AsgiApp
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.telemetry import Telemetry
from lro.wsgi import OperationsApp as WsgiApp
from tests.http.servers import asgi_inside, wsgi_inside
from tests.service_steps import WORK, work
from tests.telemetry.collected import Spans, hex_ids, ids, linked
from tests.work_messages import WorkRequest

METHOD = WORK
PATH = "/v1/works:work"
REMOTE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
PARENT = (int("1" * 32, 16), int("2" * 16, 16))

Traced = Callable[..., Telemetry]


OVER: dict[str, Any] = {"asgi": (asgi_inside, AsgiApp), "wsgi": (wsgi_inside, WsgiApp)}


def post(service: Service, headers: Mapping[str, str], over: str = "asgi") -> int:
    """Send a start with these headers, and return the status code."""
    inside, app = OVER[over]
    with inside(app(service, starts=True)) as call:
        return int(call("POST", PATH, json={}, headers=headers).status_code)


@pytest.mark.parametrize("over", OVER)
def test_start_is_a_child_of_the_span_that_its_caller_sends(make_service, spans, traced, over):
    """A start span's parent is the span in the caller's headers; only chosen baggage is stored."""
    service = make_service(None, InlineExecutor(), telemetry=traced(baggage=["tenant"]))
    work(service, path=PATH)
    headers = {"traceparent": REMOTE, "tracestate": "a=1", "baggage": "tenant=acme,secret=x"}
    assert post(service, headers, over) == 200
    start, process = spans.ours()
    assert ids(start.parent) == PARENT
    assert linked(process) == [ids(start)]
    (record,) = service.store.page("", None, 10).records
    assert record.trace_context == f"00-{hex_ids(start)}-01 a=1\ttenant=acme"


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-zz"}, {"traceparent": "0" * 9000}])
def test_start_without_a_span_of_its_caller_is_a_root(make_service, spans, traced, over, headers):
    service = make_service(None, InlineExecutor(), telemetry=traced())
    work(service, path=PATH)
    assert post(service, headers, over) == 200
    assert spans.only("PRODUCER").parent is None


def test_current_span_takes_precedence_over_the_trace_header(make_service, spans, traced):
    """The server's current span is the start's parent, even if there is a trace header."""
    service = make_service(None, InlineExecutor(), telemetry=traced())
    work(service, path=PATH)
    with spans.tracer.start_as_current_span("server") as server:
        post(service, {"traceparent": REMOTE})
    assert ids(spans.only("PRODUCER").parent) == ids(server.get_span_context())


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_start_over_grpc_is_a_child_of_the_span_in_its_metadata(make_service, spans, traced, kind):
    """The start's parent is the span in the call's metadata; without metadata it has no parent."""
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("google.protobuf")
    from google.longrunning import operations_pb2
    from google.protobuf.empty_pb2 import Empty

    from tests.grpc.serving import serving

    service = make_service(None, ThreadExecutor(1), telemetry=traced())
    service.method(METHOD, request=Empty, response=Empty)(lambda _: Empty())
    with serving(kind, service) as address, grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/acme.work.v1.Works/Work",
            request_serializer=Empty.SerializeToString,
            response_deserializer=operations_pb2.Operation.FromString,
        )
        call(Empty(), metadata=(("traceparent", REMOTE), ("tracestate", "a=1")), timeout=120)
        call(Empty(), timeout=120)
    first, second = spans.ours("PRODUCER")
    assert ids(first.parent) == PARENT
    assert second.parent is None


def ancestors(span: Any, spans: Spans) -> list[Any]:
    """Return the parent of a span, the parent's parent, and so on."""
    known = {ids(one): one for one in spans.all()}
    found = []
    while span.parent is not None and ids(span.parent) in known:
        span = known[ids(span.parent)]
        found.append(span)
    return found


@pytest.mark.parametrize("mounted", [False, True])
def test_fastapi_makes_the_server_span_and_we_the_start_span(spans, mounted):
    """FastAPI's instrumentation makes the only server spans; we add the start and attempt spans."""
    pytest.importorskip("fastapi.telemetry", reason="this FastAPI does not trace itself")
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from lro.integrations.fastapi import FastAPIOperations

    options = Telemetry(tracer_provider=spans.provider)
    service = Service(MemoryStore(), ThreadExecutor(1), telemetry=options)
    work(service, path=PATH)
    app = FastAPI(telemetry={"tracer_provider": spans.provider}, lifespan=service.lifespan)
    if mounted:
        app.mount("/api", AsgiApp(service, starts=True))
    else:
        operations = FastAPIOperations(service, caller=lambda: None)
        app.include_router(operations.router(starts=True), prefix="/api")
    with TestClient(app) as client:
        reply = client.post(f"/api{PATH}", json={}, headers={"traceparent": REMOTE})
        assert reply.status_code == 200, reply.text
        client.get(f"/api/v1/{reply.json()['name']}").raise_for_status()
        client.post(f"/api/v1/{reply.json()['name']}:wait", json={}).raise_for_status()
    start, process = spans.ours()
    assert (start.kind.name, process.kind.name) == ("PRODUCER", "CONSUMER")
    server = ancestors(start, spans)[-1]
    assert (server.kind.name, server.instrumentation_scope.name) == ("SERVER", "fastapi")
    assert ids(server.parent) == PARENT
    assert (process.parent, linked(process)) == (None, [ids(start)])
    servers = [span for span in spans.all() if span.kind.name == "SERVER"]
    assert len(servers) == 3
    assert {span.instrumentation_scope.name for span in servers} == {"fastapi"}


def test_poll_and_cancel_make_no_spans(make_service, spans, traced):
    """Get, Wait and Cancel make no spans; only the start and the attempt have spans."""
    service = make_service(None, InlineExecutor(), telemetry=traced())
    name = work(service, path=PATH).start(WorkRequest()).name
    service.get(name)
    service.wait(name)
    with contextlib.suppress(Exception):
        service.cancel(name)
    assert len(spans.ours()) == 2
    assert trace.get_current_span(context.get_current()) is trace.INVALID_SPAN
