"""One span per operation, linked to its start; and lines in the log, with or without that."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import respx

import lro
from lro_client import OperationFailed, _tracing
from lro_client._tracing import Trace
from tests.client.faces import Face
from tests.client.messages import NAME, TYPES, ResizeRequest, reply, running, succeeded
from tests.client.messages import failed as failed_operation

DONE = lro.Operation(name="operations/a", done=True)
PATH = "/v1/images:resize"
REMOTE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def failed(code: int) -> lro.Operation:
    """An operation that ended with this code."""
    return lro.Operation(name="operations/a", done=True, result=lro.Status(code, "no source"))


class Spans:
    """The spans of a tracer provider of OpenTelemetry's SDK, kept in memory."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        self.exporter = memory.InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def ours(self) -> list[Any]:
        """What the client has emitted."""
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.instrumentation_scope.name == "lro_client"
        ]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Spans of this test; the API takes a provider only once per process."""
    found = Spans()
    api = pytest.importorskip("opentelemetry.trace")
    monkeypatch.setattr(api, "get_tracer", found.provider.get_tracer)
    yield found
    found.provider.shutdown()


def begun(target: str = PATH) -> Trace:
    found = Trace.begin(target)
    assert found is not None
    return found


def test_a_span_is_an_operation(spans: Spans) -> None:
    """It is emitted at the end, from the start on, and has name, polls and state."""
    with spans.tracer.start_as_current_span("request") as current:
        trace = begun()
    assert spans.ours() == []
    trace.ended(DONE, 3)
    (span,) = spans.ours()
    assert (span.name, span.kind.name) == ("/v1/images:resize", "CLIENT")
    assert dict(span.attributes) == {
        "lro.operation.name": "operations/a",
        "lro.polls": 3,
        "lro.state": "SUCCEEDED",
        "lro.method": PATH,
    }
    assert span.status.is_unset
    assert current.start_time <= span.start_time <= current.end_time <= span.end_time


@pytest.mark.parametrize(
    ("target", "method"),
    [
        (PATH, PATH),
        ("/acme.images.v1.Images/Resize", "acme.images.v1.Images.Resize"),
        ("acme.images.v1.Images.Resize", "acme.images.v1.Images.Resize"),
        ("https://a.example/v1/images:resize", "https://a.example/v1/images:resize"),
    ],
)
def test_span_has_the_method_as_it_was_called(spans: Spans, target: str, method: str) -> None:
    """By its full name where that is known, as over gRPC; else by its path."""
    begun(target).ended(DONE, 1)
    (span,) = spans.ours()
    assert span.attributes["lro.method"] == method


def test_a_link_and_no_child(spans: Spans) -> None:
    """The span that was current at the start is linked to; the one at the end is not its parent."""
    with spans.tracer.start_as_current_span("request") as current:
        trace = begun()
    with spans.tracer.start_as_current_span("another"):
        trace.ended(DONE, 1)
    (span,) = spans.ours()
    assert span.parent is None
    (link,) = span.links
    started = current.get_span_context()
    assert (link.context.trace_id, link.context.span_id) == (started.trace_id, started.span_id)
    assert span.context.trace_id != started.trace_id


def test_the_start_sends_the_trace_to_the_server(spans: Spans) -> None:
    """The headers of the start are those of the span that is current then."""
    with spans.tracer.start_as_current_span("request") as current:
        trace = begun()
    found = current.get_span_context()
    text = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    assert trace.text == text
    assert trace.headers() == {"traceparent": text}
    trace.headers().clear()
    assert trace.headers() == {"traceparent": text}


def test_a_trace_goes_on_elsewhere(spans: Spans) -> None:
    """A handle rebuilt from a token links to the same start."""
    trace = Trace.of_token(REMOTE)
    assert trace is not None
    assert trace.text == REMOTE
    trace.ended(DONE, 2)
    (span,) = spans.ours()
    (link,) = span.links
    assert (f"{link.context.trace_id:x}", f"{link.context.span_id:x}") == ("1" * 32, "2" * 16)
    assert link.context.is_remote


@pytest.mark.parametrize("text", ["", "nonsense", "00-" + "0" * 32 + "-" + "2" * 16 + "-01"])
def test_a_token_without_a_trace(text: str, spans: Spans) -> None:
    """What is no traceparent is linked to nothing."""
    trace = Trace.of_token(text)
    assert trace is not None
    trace.ended(DONE, 1)
    (span,) = spans.ours()
    assert span.links == ()


@pytest.mark.parametrize(
    ("code", "kind", "state"),
    [(9, "FAILED_PRECONDITION", "FAILED"), (1, "CANCELLED", "CANCELLED"), (0, "UNKNOWN", "FAILED")],
)
def test_an_operation_that_failed(code: int, kind: str, state: str, spans: Spans) -> None:
    """Its span has the status ERROR, and says of what kind."""
    begun().ended(failed(code), 1)
    (span,) = spans.ours()
    assert span.status.status_code.name == "ERROR"
    assert span.status.description == "no source"
    assert (span.attributes["error.type"], span.attributes["lro.state"]) == (kind, state)


def test_the_end_is_reported_once(spans: Spans) -> None:
    """However many threads see it."""
    trace = begun()
    ready = threading.Barrier(8)

    def see(polls: int) -> None:
        ready.wait()
        trace.ended(DONE, polls)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(see, range(8)))
    assert len(spans.ours()) == 1


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no trace, and no error."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    _tracing._api.cache_clear()
    try:
        assert Trace.begin("/v1/images:resize") is None
        assert Trace.of_token(REMOTE) is None
    finally:
        _tracing._api.cache_clear()


def test_importing_the_client_does_not_load_it() -> None:
    """It is loaded with the first operation."""
    program = "import sys, lro_client._tracing; print('opentelemetry' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr


def test_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each line of an operation's life begins with its name."""
    caplog.set_level(logging.INFO, "lro_client")
    _tracing.log_started(lro.Operation(name="operations/a"), "/v1/images:resize")
    _tracing.log_failed_poll("operations/a", ConnectionError("refused"), 0.5)
    _tracing.log_verb("operations/a", "Cancel")
    _tracing.log_ended(DONE, 3)
    _tracing.log_ended(failed(1), 4)
    _tracing.log_gave_up("operations/a", TimeoutError("late"))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "operations/a: started by /v1/images:resize"),
        ("WARNING", "operations/a: polled again in 0.5 s: refused"),
        ("INFO", "operations/a: Cancel was accepted"),
        ("INFO", "operations/a: SUCCEEDED after 3 polls"),
        ("INFO", "operations/a: CANCELLED after 4 polls: CANCELLED: no source"),
        ("WARNING", "operations/a: no longer waited for: late"),
    ]


def test_a_client_traces_its_operations(face: Face, server: respx.Router, spans: Spans) -> None:
    """The start names the server; the end, however often it is asked for, is one span."""
    starts = server.post(PATH).mock(return_value=reply(running()))
    server.post(f"/v1/{NAME}:wait").mock(return_value=reply(succeeded()))
    client = face.client()
    with spans.tracer.start_as_current_span("request") as current:
        handle = client.start(PATH, ResizeRequest(), **TYPES)
    for _ in range(2):
        handle.result()
    found = current.get_span_context()
    assert f"{found.span_id:016x}" in starts.calls.last.request.headers["traceparent"]
    (span,) = spans.ours()
    assert span.name == PATH
    assert span.attributes["lro.polls"] == 1
    assert [link.context.span_id for link in span.links] == [found.span_id]


def test_a_token_carries_the_trace(face: Face, server: respx.Router, spans: Spans) -> None:
    """Another client that takes the token links its span to the same start."""
    server.post(PATH).mock(return_value=reply(running()))
    server.post(f"/v1/{NAME}:wait").mock(return_value=reply(failed_operation()))
    with spans.tracer.start_as_current_span("request") as current:
        token = face.client().start(PATH, ResizeRequest(), **TYPES).token
    with pytest.raises(OperationFailed):
        face.client().operation(token, **TYPES).result()
    (span,) = spans.ours()
    assert [link.context.span_id for link in span.links] == [current.get_span_context().span_id]
    assert span.attributes["error.type"] == "FAILED_PRECONDITION"


def test_a_client_logs_lives(
    face: Face, server: respx.Router, caplog: pytest.LogCaptureFixture
) -> None:
    """Start, cancel and end, once each."""
    caplog.set_level(logging.INFO, "lro_client")
    server.post(PATH).mock(return_value=reply(running()))
    server.post(f"/v1/{NAME}:cancel").mock(return_value=reply({}))
    server.post(f"/v1/{NAME}:wait").mock(return_value=reply(succeeded()))
    handle = face.client().start(PATH, ResizeRequest(), **TYPES)
    handle.cancel()
    for _ in range(2):
        handle.result()
    assert [one.getMessage() for one in caplog.records if one.name == "lro_client"] == [
        f"{NAME}: started by {PATH}",
        f"{NAME}: CancelOperation was accepted",
        f"{NAME}: SUCCEEDED after 1 poll",
    ]
