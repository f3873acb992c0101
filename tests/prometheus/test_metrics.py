"""A service's metrics in Prometheus' formats: names, types, labels and access control."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as plain_families

import lro.wsgi
from lro import Code, Job, State, StatusError
from lro.adapters import LeaseRenewed, Observer, OperationEnded, OperationsExpired
from lro.asgi import EdgeApp, OperationsApp
from lro.errors import DeclarationError, Unauthenticated, Unavailable
from lro.executors.inline import InlineExecutor
from lro.prometheus import MetricsEdge, ServiceCollector
from lro.stores.memory import MemoryStore
from lro.telemetry import BUCKETS, METRICS
from tests.http.servers import asgi_inside, asgi_socket, wsgi_inside, wsgi_socket
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = "acme.work.v1.Works.Work"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
"""The Accept header of Prometheus 2 and 3, without the protobuf part."""

Parse = Callable[[str], Any]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Broken(MemoryStore):
    """A store that cannot count pending work while ``away`` is set."""

    away = False

    def waiting(self) -> Any:
        if self.away:
            raise Unavailable("it is away")
        return super().waiting()


@pytest.fixture
def service(make_service, clock, monkeypatch):
    """Return a service that has run some operations and seen rare events."""
    made = make_service(Broken(clock), InlineExecutor())
    observers: list[Observer] = []
    observe = made.edges.observe
    monkeypatch.setattr(made.edges, "observe", lambda one: (observers.append(one), observe(one)))
    ServiceCollector(made)

    @made.method(METHOD)
    def do(request: WorkRequest, _: Job[WorkMetadata]) -> WorkResponse:
        if request.text == "fail":
            raise StatusError(Code.NOT_FOUND, "no such picture")
        clock.advance(float(request.text))
        return WorkResponse("")

    for text in ("0.2", "7", "fail"):
        do.start(WorkRequest(text))
    (observer,) = observers
    observer.renewed(LeaseRenewed(count=1, margin_seconds=5))
    observer.renewed(LeaseRenewed(count=1, margin_seconds=float("nan")))
    observer.expired(OperationsExpired(methods={METHOD: 3}))
    known: Any = {"name": "operations/late", "method": METHOD, "attempt": 0, "seconds": 60.0}
    why = "DEADLINE_EXCEEDED"
    observer.ended(OperationEnded(state=State.FAILED, error_type=why, expired=True, **known))
    return made


def samples(text: str, parse: Parse = plain_families) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    """Return these labels and the method's label, in the form that :func:`samples` returns."""
    return tuple(sorted({"lro_method": METHOD, **labels}.items()))


@pytest.mark.parametrize(
    ("accept", "parse"), [("", plain_families), (OPENMETRICS, openmetrics_families)]
)
def test_metrics_are_those_of_the_table(service, accept, parse):
    """Both formats have the names, types, units and labels of the table, without opt-in metrics."""
    with asgi_inside(EdgeApp(MetricsEdge(service))) as call:
        reply = call("GET", "/", headers={"accept": accept} if accept else {})
    assert reply.status_code == 200
    kind = "application/openmetrics-text" if accept else "text/plain; version=0.0.4"
    assert reply.headers["content-type"].startswith(kind)
    families = {family.name: family for family in parse(reply.text)}
    wanted = {m.prometheus_name.removesuffix("_total"): m for m in METRICS if not m.opt_in}
    assert list(families) == list(wanted)
    for name, metric in wanted.items():
        family = families[name]
        kinds = {"up_down_counter": "gauge"}
        assert family.type == kinds.get(metric.kind, metric.kind)
        assert family.documentation == metric.description
        if metric.kind == "histogram" and accept:
            assert family.unit == "seconds"
        labels = {label.replace(".", "_") for label in metric.attributes}
        labels |= {"process"} if metric.observed else set()
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, sample


def test_events_are_shown_as_counters_and_histograms(service):
    """Events become counters and cumulative histograms; a label that does not apply is empty."""
    with wsgi_inside(lro.wsgi.EdgeApp(MetricsEdge(service))) as call:
        found = samples(call("GET", "/").text)
    started = labelled(lro_start_outcome="started", error_type="")
    assert found["lro_starts_total", started] == 3
    done = {"lro_outcome": "succeeded", "error_type": ""}
    buckets = [
        found["lro_operation_duration_seconds_bucket", labelled(le=str(bound), **done)]
        for bound in (*BUCKETS, "+Inf")
    ]
    assert buckets == [0, 0, 0, 1, 1, 1, *[2] * 11]
    assert found["lro_operation_duration_seconds_sum", labelled(**done)] == 7.2
    assert found["lro_operation_duration_seconds_count", labelled(**done)] == 2
    failed = labelled(lro_outcome="failed", error_type="NOT_FOUND")
    assert found["lro_attempt_duration_seconds_count", failed] == 1
    assert found["lro_expired_operations_total", labelled()] == 3
    assert found["lro_queue_expiries_total", labelled()] == 1
    assert found["lro_lease_margin_seconds_sum", ()] == 5
    pending = labelled(lro_state="pending", process=str(os.getpid()))
    assert found["lro_operation_active", pending] == 0


def test_promtool_finds_no_error(service):
    """Prometheus' own tool, promtool, accepts the names, units, help texts and types."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    with asgi_inside(EdgeApp(MetricsEdge(service))) as call:
        text = call("GET", "/").text
    command = [promtool, "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize("serve", [asgi_socket, wsgi_socket])
def test_metrics_path_is_served_beside_another_application(make_service, serve):
    """Metrics are served at their path, and the other application serves all other paths."""
    service = make_service()
    fallback: Any
    app: Any
    if serve is asgi_socket:
        fallback = OperationsApp(service)
        app = EdgeApp(MetricsEdge(service, path="/metrics"), fallback)
    else:
        fallback = lro.wsgi.OperationsApp(service)
        app = lro.wsgi.EdgeApp(MetricsEdge(service, path="/metrics"), fallback)
    with serve(app) as call:
        for accept in (
            PROMETHEUS,
            "application/openmetrics-text; version=none",
            "text/html",
            "*/*",
        ):
            reply = call("GET", "/metrics", headers={"accept": accept})
            assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
            assert "lro_starts" in reply.text
        headed = call("HEAD", "/metrics")
        assert (headed.status_code, headed.content) == (200, b"")
        assert call("OPTIONS", "/metrics").headers["allow"] == "GET, HEAD, OPTIONS"
        assert call("POST", "/metrics", content=b"{}").status_code == 405
        assert call("GET", "/v1/operations").json() == {}
        assert call("GET", "/metrics/more").status_code == 404


def test_other_paths_are_not_found_without_another_application(service):
    """Without another application, every path except the path of the metrics is NOT_FOUND."""
    with asgi_inside(EdgeApp(MetricsEdge(service))) as call:
        assert call("GET", "/metrics").status_code == 404
        assert call("POST", "/").status_code == 405
    with pytest.raises(DeclarationError, match="path: must be a path such as '/metrics'"):
        MetricsEdge(service, path="metrics")


def test_metrics_are_served_to_authenticated_callers_only(service):
    def authenticate(headers: Mapping[str, str]) -> str:
        if headers.get("authorization") != "Bearer scrape":
            raise Unauthenticated()
        return "prometheus"

    for inside, app in (
        (asgi_inside, EdgeApp(MetricsEdge(service, authenticate=authenticate))),
        (wsgi_inside, lro.wsgi.EdgeApp(MetricsEdge(service, authenticate=authenticate))),
    ):
        with inside(app) as call:
            refused = call("GET", "/")
            assert (refused.status_code, "lro_starts" in refused.text) == (401, False)
            allowed = call("GET", "/", headers={"authorization": "Bearer scrape"})
            assert allowed.status_code == 200


def test_unavailable_store_hides_only_metrics_of_queued_work(service):
    """If the store is unavailable, only metrics of queued work are missing."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    service.store.away = True
    with asgi_inside(EdgeApp(MetricsEdge(service))) as call:
        reply = call("GET", "/")
    started = labelled(lro_start_outcome="started", error_type="")
    for text in (reply.text, generate_latest(registry).decode()):
        found = samples(text)
        assert found["lro_starts_total", started] == 3
        assert not [name for name, _ in found if name.startswith("lro_queue_operations")]
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(ServiceCollector(service))


def test_each_service_counts_from_its_first_collector_on(make_service):
    """A service counts events once its first collector exists; its collectors share the counts."""
    service, other = make_service(executor=InlineExecutor(), statistics=False), make_service()
    method = service.declare(METHOD, request=WorkRequest, response=WorkResponse)
    method.start(WorkRequest("before"))
    collectors = [ServiceCollector(one) for one in (service, service, other)]
    method.start(WorkRequest("after"))
    found = [
        sum(
            sample.value
            for family in collector.collect()
            for sample in family.samples
            if sample.name == "lro_starts_total"
        )
        for collector in collectors
    ]
    assert found == [1, 1, 0]
