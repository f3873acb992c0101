"""Metrics for Prometheus, which need the extra ``prometheus``.

``lro.asgi.EdgeApp`` and ``lro.wsgi.EdgeApp`` serve a :class:`MetricsEdge`; a
:class:`ServiceCollector` is for a registry of ``prometheus_client`` of your own.

Counters and histograms belong to the process. Where several processes share a port, set the
environment variable ``PROMETHEUS_MULTIPROC_DIR`` to an empty directory, as for all programs that
use ``prometheus_client``; ``lro serve --workers`` sets it itself. Then each process reports the
sums of all processes, and no sum falls when a process ends. Gauges belong to the process that
answers, and have its id in the label ``process``.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from lro import Service
from lro.errors import HttpMethodNotAllowed, MissingExtra, RouteNotFound
from lro.http import (
    Allowed,
    Authenticate,
    Exchange,
    HttpReply,
    HttpRequest,
    Match,
    OperationsEdge,
    RouteResult,
    checked_prefix,
    in_few_threads,
)
from lro.telemetry import METRICS, Metric, MetricObserver

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric as MetricFamily
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector
except ImportError as _exc:
    raise MissingExtra("lro.prometheus", "prometheus") from _exc

__all__ = ["MetricsEdge", "ServiceCollector"]

_SHARED: Final = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
"""The directory in which ``prometheus_client`` keeps the values of all processes; None: nowhere."""

_PROCESS: Final = "process"
_OPENMETRICS: Final = "application/openmetrics-text"
_READS: Final = ("GET", "HEAD", "OPTIONS")

_Instrument: TypeAlias = Counter | Histogram


def _labels(metric: Metric) -> list[str]:
    return [attribute.replace(".", "_") for attribute in metric.attributes]


def _made(registry: CollectorRegistry) -> Mapping[str, _Instrument]:
    """Make the instruments of all metrics that count events; return them by name."""
    found: dict[str, _Instrument] = {}
    for metric in METRICS:
        given = metric.prometheus_name, metric.description, _labels(metric)
        if metric.observed or metric.opt_in:
            continue
        if metric.kind == "histogram":
            found[metric.name] = Histogram(*given, registry=registry, buckets=metric.buckets)
        else:
            found[metric.name] = Counter(*given, registry=registry)
    return found


@functools.cache
def _shared_instruments() -> Mapping[str, _Instrument]:
    """Return the instruments that all services of this process share, because they share a file."""
    return _made(CollectorRegistry())


class _SharedCollector(Collector):
    """Collects the sums of all processes from the files of a directory.

    A process makes an empty file before it writes values to it, and may be killed in between. The
    collector of ``prometheus_client`` cannot read such a file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[MetricFamily]:
        """Return the families with the sums of their samples."""
        files = [str(file) for file in self._directory.glob("*.db") if file.stat().st_size]
        merged: Iterable[MetricFamily] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


class _EventCounter(MetricObserver):
    """Observer that counts the events of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        if _SHARED is None:
            self._instruments = _made(self.registry)
        else:
            self._instruments = _shared_instruments()
            self.registry.register(_SharedCollector(Path(_SHARED)))

    def record(self, metric: Metric, value: float, *attributes: str) -> None:
        """Add a value to the metric's instrument."""
        instrument = self._instruments[metric.name]
        one = instrument.labels(*attributes) if attributes else instrument
        # A negative value, after a clock was set back, must not decrease a sum.
        value = value if 0 <= value < math.inf else 0.0
        one.observe(value) if isinstance(one, Histogram) else one.inc(value)


_lock: Final = threading.Lock()
_counters: Final[weakref.WeakKeyDictionary[Service, _EventCounter]] = weakref.WeakKeyDictionary()


def _counter_of(service: Service) -> _EventCounter:
    """Return the counter of a service; the first call starts the counting."""
    with _lock:
        if service not in _counters:
            counter = _counters[service] = _EventCounter()
            service.edges.observe(counter)
        return _counters[service]


class ServiceCollector(Collector):
    """Collect the metrics of a service for a registry of ``prometheus_client``.

    ``REGISTRY.register(ServiceCollector(service))`` adds the metrics. Events are counted from the
    moment at which the first collector or :class:`MetricsEdge` of the service is made.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._counted = _counter_of(service).registry

    def describe(self) -> Iterator[MetricFamily]:
        """Yield the families without samples; a registry uses them to find duplicate names."""
        return map(_family, filter(lambda metric: not metric.opt_in, METRICS))

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families with their current samples."""
        counted = {family.name: family.samples for family in self._counted.collect()}
        for metric in METRICS:
            if metric.opt_in:
                continue
            family = _family(metric)
            if metric.observed:
                self._read(metric, family)
            found = counted.get(family.name, ())
            family.samples += [one for one in found if not one.name.endswith("_created")]
            yield family

    def _read(self, metric: Metric, family: MetricFamily) -> None:
        process = {_PROCESS: str(os.getpid())}
        for attributes, number in self._service.edges.gauges.read(metric):
            values = [attributes.get(name, "") for name in metric.attributes]
            labels = dict(zip(_labels(metric), values, strict=True))
            family.add_sample(family.name, labels | process, number)


def _family(metric: Metric) -> MetricFamily:
    kind = "gauge" if metric.observed else metric.kind
    unit = "seconds" if metric.kind == "histogram" else ""
    name = metric.prometheus_name.removesuffix("_total")
    return MetricFamily(name, metric.description, kind, unit)


class MetricsEdge(OperationsEdge):
    """Serve the metrics of a service to Prometheus, for a GET of one path.

    Every caller who reaches the path may read the metrics, unless ``authenticate`` (as for
    :class:`lro.http.OperationsEdge`) refuses the caller. The reply has names of methods and
    numbers, but no names of operations or callers, and no messages. ``path``, such as ``/metrics``,
    is needed only with a fallback; without ``path``, mount the edge at any path.

    Raises:
        DeclarationError: As for :class:`lro.http.OperationsEdge`; or ``path`` is not a path.
    """

    def __init__(
        self, service: Service, *, path: str = "", authenticate: Authenticate | None = None
    ) -> None:
        super().__init__(service, authenticate=authenticate)
        mount = checked_prefix(path, "/metrics")
        self._paths = (mount, mount + "/")
        self._collector = ServiceCollector(service)

    def route(self, method: str, path: str, *, shared: bool = False) -> RouteResult:  # noqa: ARG002
        """See :meth:`lro.http.OperationsEdge.route`."""
        if path not in self._paths:
            return RouteNotFound(path)
        if method not in _READS:
            return HttpMethodNotAllowed(method, path, _READS)
        return Allowed(_READS) if method == "OPTIONS" else Match(rpc="", bindings={}, head=False)

    def exchange(self, request: HttpRequest, found: RouteResult | None = None) -> Exchange:
        """See :meth:`lro.http.OperationsEdge.exchange`."""
        found = found or self.route(request.method, request.path)
        if not isinstance(found, Match):
            return (yield from super().exchange(request, found))
        try:
            yield from self._caller(request)
            accept = request.headers.get("accept", "")
            make = functools.partial(self._exposition, accept)
            reply = yield from in_few_threads(self.service, make)
        except Exception as exc:
            return self.refusal(request, exc)
        return reply.headless if request.method == "HEAD" else reply

    def _exposition(self, accept: str) -> HttpReply:
        encode, kind = choose_encoder(_OPENMETRICS if _OPENMETRICS in accept else "")
        headers = (("content-type", kind), ("cache-control", "no-store"))
        return HttpReply(200, headers, encode(self._collector))
