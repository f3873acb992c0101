"""One span for each operation, linked to its start; log lines with or without tracing."""

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
from lro_client import OperationFailed, PollTimeout, _tracing
from lro_client._tracing import Trace
from tests.client.faces import URL, Clock, Face
from tests.client.messages import NAME, TYPES, ResizeRequest, refusal, reply, running, succeeded
from tests.client.messages import failed as failed_operation

DONE = lro.Operation(name="operations/a", done=True)
PATH = "/v1/images:resize"
REMOTE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def failed(code: int) -> lro.Operation:
    """Return an operation that ended with this status code."""
    return lro.Operation(name="operations/a", done=True, result=lro.Status(code, "no source"))


class Spans:
    """The spans of an OpenTelemetry tracer provider, kept in memory."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        self.exporter = memory.InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def ours(self) -> list[Any]:
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.instrumentation_scope.name == "lro_client"
        ]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The spans of this test; ``get_tracer`` is patched, as a process can set only one provider."""
    found = Spans()
    api = pytest.importorskip("opentelemetry.trace")
    monkeypatch.setattr(api, "get_tracer", found.provider.get_tracer)
    yield found
    found.provider.shutdown()


def begun(target: str = PATH) -> Trace:
    found = Trace.begin(target)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("target", "method"),
    [
        (PATH, PATH),
        ("/acme.images.v1.Images/Resize", "acme.images.v1.Images.Resize"),
        ("acme.images.v1.Images.Resize", "acme.images.v1.Images.Resize"),
        ("https://a.example/v1/images:resize", "https://a.example/v1/images:resize"),
    ],
)
def test_span_lasts_from_start_to_end_of_an_operation(
    spans: Spans, target: str, method: str
) -> None:
    """The span has the operation's name, polls, state and method.

    The method is the full name if the client knows it, as with gRPC; otherwise it is the path.
    """
    with spans.tracer.start_as_current_span("request") as current:
        trace = begun(target)
    assert spans.ours() == []
    trace.ended(DONE, 3)
    (span,) = spans.ours()
    assert (span.name, span.kind.name) == (target, "CLIENT")
    assert dict(span.attributes) == {
        "lro.operation.name": "operations/a",
        "lro.polls": 3,
        "lro.state": "SUCCEEDED",
        "lro.method": method,
    }
    assert span.status.is_unset
    assert current.start_time <= span.start_time <= current.end_time <= span.end_time


@pytest.mark.parametrize("text", ["", "nonsense", "00-" + "0" * 32 + "-" + "2" * 16 + "-01"])
def test_invalid_traceparent_gives_a_span_without_links(text: str, spans: Spans) -> None:
    """An invalid traceparent gives a span without links."""
    trace = Trace.of_token(text)
    assert trace is not None
    trace.ended(DONE, 1)
    (span,) = spans.ours()
    assert span.links == ()


@pytest.mark.parametrize(
    ("code", "kind", "state"),
    [(9, "FAILED_PRECONDITION", "FAILED"), (1, "CANCELLED", "CANCELLED"), (0, "UNKNOWN", "FAILED")],
)
def test_span_of_a_failed_operation_has_status_error(
    code: int, kind: str, state: str, spans: Spans
) -> None:
    """The span of a failed or cancelled operation has the status ERROR and an ``error.type``."""
    begun().ended(failed(code), 1)
    (span,) = spans.ours()
    assert span.status.status_code.name == "ERROR"
    assert span.status.description == "no source"
    assert (span.attributes["error.type"], span.attributes["lro.state"]) == (kind, state)


def test_end_of_an_operation_makes_one_span(spans: Spans) -> None:
    trace = begun()
    ready = threading.Barrier(8)

    def see(polls: int) -> None:
        ready.wait()
        trace.ended(DONE, polls)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(see, range(8)))
    assert len(spans.ours()) == 1


def test_client_works_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    _tracing._api.cache_clear()
    try:
        assert Trace.begin("/v1/images:resize") is None
        assert Trace.of_token(REMOTE) is None
    finally:
        _tracing._api.cache_clear()


def test_importing_the_client_does_not_load_opentelemetry() -> None:
    """OpenTelemetry is imported only when the first operation starts."""
    program = "import sys, lro_client._tracing; print('opentelemetry' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr


def test_start_sends_the_traceparent_and_the_span_links_to_it(
    face: Face, server: respx.Router, spans: Spans
) -> None:
    """A start sends the traceparent. Two reads of the result make one span, linked to the start."""
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
    (link,) = span.links
    assert (link.context.trace_id, link.context.span_id) == (found.trace_id, found.span_id)
    assert span.parent is None
    assert span.context.trace_id != found.trace_id


def test_span_of_a_resumed_token_links_to_the_start(
    face: Face, server: respx.Router, spans: Spans
) -> None:
    """A client that resumes the token links its span to the start."""
    server.post(PATH).mock(return_value=reply(running()))
    server.post(f"/v1/{NAME}:wait").mock(return_value=reply(failed_operation()))
    with spans.tracer.start_as_current_span("request") as current:
        token = face.client().start(PATH, ResizeRequest(), **TYPES).token
    with pytest.raises(OperationFailed):
        face.client().operation(token, **TYPES).result()
    (span,) = spans.ours()
    (link,) = span.links
    assert link.context.span_id == current.get_span_context().span_id
    assert link.context.is_remote
    assert span.attributes["error.type"] == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (f"{PATH}?key=s3cr3t", PATH),
        (f"{URL}{PATH}?key=s3cr3t#s3cr3t", f"{URL}{PATH}"),
        (f"{URL.replace('://', '://user:s3cr3t@')}{PATH}", f"{URL}{PATH}"),
    ],
)
def test_secrets_in_a_url_are_not_in_log_or_span(
    target: str,
    shown: str,
    face: Face,
    server: respx.Router,
    spans: Spans,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An API key in the query, or a password in the URL, appears in neither log nor span."""
    caplog.set_level(logging.INFO, "lro_client")
    server.post(path=PATH).mock(return_value=reply(running()))
    server.route().mock(return_value=reply(succeeded()))
    face.client().start(target, ResizeRequest(), **TYPES).result()
    assert f"{NAME}: started by {shown}" in caplog.messages
    [span] = spans.ours()
    assert (span.name, span.attributes["lro.method"]) == (shown, shown)
    assert "s3cr3t" not in f"{caplog.text}{span.to_json()}"


def test_client_logs_start_cancel_end_and_failures(
    face: Face, clock: Clock, server: respx.Router, caplog: pytest.LogCaptureFixture
) -> None:
    """Start, cancel, end, failed polls and timeouts are logged with the operation's name."""
    caplog.set_level(logging.INFO, "lro_client")
    server.post(PATH).mock(return_value=reply(running()))
    server.post(f"/v1/{NAME}:cancel").mock(return_value=reply({}))
    waits = server.post(f"/v1/{NAME}:wait")
    polls = server.get(f"/v1/{NAME}")
    client = face.client(clock=clock)
    handle, other = (client.start(PATH, ResizeRequest(), **TYPES) for _ in range(2))
    handle.cancel()
    waits.mock(return_value=refusal(lro.Code.UNAVAILABLE, "away"))
    polls.mock(side_effect=[reply(running()), reply(succeeded())])
    for _ in range(2):
        handle.result()
    polls.mock(return_value=reply(failed_operation(1, "no source")))
    with pytest.raises(OperationFailed):
        other.result()
    polls.mock(return_value=reply(running()))
    with pytest.raises(PollTimeout):
        client.operation(NAME, **TYPES).result(0)
    found = [(one.levelname, one.getMessage()) for one in caplog.records]
    again = f"{NAME}: polled again in 0.5 s: WaitOperation failed with UNAVAILABLE: away"
    away = ("WARNING", again)
    assert [one for one in found if one[1].startswith(NAME)] == [
        ("INFO", f"{NAME}: started by {PATH}"),
        ("INFO", f"{NAME}: started by {PATH}"),
        ("INFO", f"{NAME}: CancelOperation was accepted"),
        away,
        away,
        ("INFO", f"{NAME}: SUCCEEDED after 4 polls"),
        away,
        ("INFO", f"{NAME}: CANCELLED after 2 polls: CANCELLED: no source"),
        ("WARNING", f"{NAME}: no longer waited for: {NAME} was not done within 0 s and 1 poll"),
    ]
