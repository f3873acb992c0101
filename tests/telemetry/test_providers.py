"""A service without OpenTelemetry, without a provider, and with a provider that is set later."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from lro import Service
from lro._engine import events, telemetry
from lro._engine.telemetry import ParentTrace
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.telemetry import Telemetry
from tests.engine.engine_parts import raising
from tests.telemetry.collected import hex_ids
from tests.telemetry.test_spans import work
from tests.work_messages import WorkRequest

PROGRAM = """
import sys
{before}
import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.executors.process_methods import echo

def loaded():
    return any(name.startswith("opentelemetry.") for name in [*sys.modules])

with lro.Service(MemoryStore(), InlineExecutor()) as service:
    method = service.method("acme.v1.Works.Echo")(echo)
    print(loaded(), end=" ")
    from tests.work_messages import WorkRequest
    print(method.start(WorkRequest("a", 5)).result().text, loaded())
print([name for name in [*sys.modules] if name.startswith("opentelemetry.sdk")])
"""


@pytest.mark.parametrize("before", ["", "sys.modules['opentelemetry'] = None"])
def test_api_package_is_imported_at_the_first_start_if_it_is_there(before):
    """The first start imports the API package, if it is installed; the SDK is never imported."""
    program = PROGRAM.format(before=before)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"False a 5 {not before}\n[]\n"


def test_provider_that_is_set_later_is_used_from_then_on(make_service, spans, monkeypatch):
    """A global tracer provider that is set after the first start is used for the next start."""
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.0)
    present = trace.get_tracer_provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: present)
    service = make_service(None, InlineExecutor())
    method = work(service)
    assert service.store.get(method.start(WorkRequest()).name).trace_context == ""
    present = spans.provider
    method.start(WorkRequest())
    assert [span.kind.name for span in spans.ours()] == ["PRODUCER", "CONSUMER"]


def test_service_may_have_only_a_tracer_or_a_meter_provider(
    make_service, spans, numbers, traced, measured
):
    """A service may have only a tracer provider or only a meter provider."""
    for options in (traced(), measured()):
        service = make_service(None, InlineExecutor(), telemetry=options)
        name = work(service).start(WorkRequest()).name
    assert len(spans.ours()) == 2
    assert len(numbers.points("lro.starts")) == 1
    assert service.store.get(name).trace_context == ""


def test_child_with_the_api_package_runs_the_function_in_the_span_of_its_parent():
    """A child process needs only the API package to run a function in its parent's span."""
    detach = ParentTrace("00-" + "1" * 32 + "-" + "2" * 16 + "-01 a=1\ttenant=acme").attach()
    found = trace.get_current_span().get_span_context()
    assert hex_ids(found) == "1" * 32 + "-" + "2" * 16
    assert found.trace_state["a"] == "1"
    assert baggage.get_baggage("tenant") == "acme"
    detach()
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_child_without_the_api_package_runs_the_function(monkeypatch):
    monkeypatch.setattr(telemetry, "_api", lambda: None)
    assert ParentTrace("00-" + "1" * 32 + "-" + "2" * 16 + "-01").attach() is None


def test_missing_api_package_is_looked_for_once(monkeypatch):
    """If the API package is missing, the process tries to import it only once."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert telemetry._api.__wrapped__() is None
    looked: list[int] = []

    def absent() -> None:
        looked.append(1)

    monkeypatch.setattr(telemetry, "_api", absent)
    service = Service(MemoryStore(), InlineExecutor(), maintenance=False)
    method = work(service)
    for _ in range(3):
        method.start(WorkRequest())
    service.close()
    assert looked == [1]


class BrokenProvider:
    """A provider that raises an error when asked for a tracer or a meter."""

    get_tracer = get_meter = raising(ValueError("there is none"))


@pytest.mark.parametrize("where", ["start", "end", "tracer", "meter"])
def test_provider_that_raises_fails_no_operation(where, make_service, caplog):
    """An error in the provider is logged, but the start succeeds and the work is done."""
    provider: Any = BrokenProvider()
    if where in ("start", "end"):
        provider = TracerProvider()
        processor = SpanProcessor()
        setattr(processor, f"on_{where}", raising(ValueError(where)))
        provider.add_span_processor(processor)
    kind = "meter_provider" if where == "meter" else "tracer_provider"
    service = make_service(None, InlineExecutor(), telemetry=Telemetry(**{kind: provider}))
    assert work(service).start(WorkRequest("done")).result(0).text == "done"
    assert "OpenTelemetry has failed in" in caplog.text
