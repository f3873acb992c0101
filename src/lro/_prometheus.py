"""What a service counts, as Prometheus reads it: the families of metrics, and the edge."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from lro._base.errors import HttpMethodNotAllowed, LroError, MissingExtra, RouteNotFound
from lro._engine import metrics
from lro._engine.flow import Flow
from lro._engine.gauges import Gauges
from lro._engine.metrics import BUCKETS, METHOD, METRICS, Metric
from lro._engine.service import Service
from lro._engine.store_port import Counts, keeps_statistics
from lro._http.edge import Authenticate, CallFunction, Exchange, Found, OperationsEdge
from lro._http.requests import checked_prefix
from lro._http.responses import HttpReply
from lro._http.routes import Allowed, HttpRequest, Match

try:
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.metrics_core import Metric as MetricFamily
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as _exc:
    raise MissingExtra("lro.prometheus", "prometheus") from _exc

log = logging.getLogger("lro")

_COUNTED: Final[Mapping[str, Metric]] = {
    "starts": metrics.STARTS,
    "queue": metrics.QUEUE_DURATION,
    "attempt": metrics.ATTEMPT_DURATION,
    "operation": metrics.OPERATION_DURATION,
    "cancel": metrics.CANCEL_DURATION,
    "lost": metrics.LOST_ATTEMPTS,
    "refused_writes": metrics.REFUSED_WRITES,
    "lease_margin": metrics.LEASE_MARGIN,
    "expired": metrics.EXPIRED,
    "expiries": metrics.QUEUE_EXPIRIES,
}
"""The metric of each kind of series that is kept in totals: see ``Statistics``."""

_PROCESS: Final = "process"
_SUM: Final = "sum"
_BOUNDS: Final = (*map(floatToGoString, BUCKETS), "+Inf")
_OPENMETRICS: Final = "application/openmetrics-text"
_READS: Final = ("GET", "HEAD", "OPTIONS")

_Samples = dict[tuple[str, ...], dict[str, float]]
"""Of one metric: the values of its labels, and for these its number, or its buckets and sum."""


def _label(attribute: str) -> str:
    return attribute.replace(".", "_")


class ServiceCollector(Collector):
    """Gives the metrics of a service to a registry of ``prometheus_client``.

    Where the store cannot be read, or keeps no statistics, there are only gauges; the first is
    logged.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._gauges = Gauges(service._runtime, service.specs, service.work, service.waiters)

    def describe(self) -> Iterator[MetricFamily]:
        """The families without samples: a registry looks for equal names."""
        return self.families({})

    def collect(self) -> Iterator[MetricFamily]:
        """The families with what is counted by now."""
        try:
            totals = self.totals()
        except LroError as exc:
            log.warning("metrics of all processes cannot be read now: %s", exc)
            totals = {}
        return self.families(totals)

    def totals(self) -> Counts:
        """What all processes on the store have counted; nothing if it keeps no statistics.

        Raises:
            Unavailable: The store cannot be read now.
        """
        store = self._service.store
        return store.read_totals() if keeps_statistics(store) else {}

    def families(self, totals: Counts) -> Iterator[MetricFamily]:
        """The families of all metrics, with these totals and the gauges of this process."""
        found = _samples(totals)
        for metric in METRICS:
            if metric.opt_in:
                continue
            if metric.observed:
                yield self._gauge(metric)
            elif metric.kind == "histogram":
                yield _histogram(metric, found[metric.name])
            else:
                yield _counter(metric, found[metric.name])

    def _gauge(self, metric: Metric) -> MetricFamily:
        labels = [*map(_label, metric.attributes), _PROCESS]
        family = GaugeMetricFamily(metric.prometheus_name, metric.description, labels=labels)
        process = str(os.getpid())
        for attributes, number in self._gauges.read(metric):
            values = [attributes.get(name, "") for name in metric.attributes]
            family.add_metric([*values, process], number)
        return family


def _samples(totals: Counts) -> Mapping[str, _Samples]:
    found: dict[str, _Samples] = {metric.name: {} for metric in _COUNTED.values()}
    for method, series in totals.items():
        for name, number in series.items():
            kind, *rest = name.split(".")
            metric = _COUNTED.get(kind)
            many = metric is not None and metric.kind == "histogram"
            # What other metrics say too, or what only a later version can read.
            if metric is None or (many and not rest):
                continue
            place = rest.pop() if many else _SUM
            given = iter((method, *rest) if METHOD in metric.attributes else rest)
            values = tuple(next(given, "") for _ in metric.attributes)
            found[metric.name].setdefault(values, {})[place] = number
    return found


def _counter(metric: Metric, samples: _Samples) -> MetricFamily:
    labels = [*map(_label, metric.attributes)]
    family = CounterMetricFamily(metric.prometheus_name, metric.description, labels=labels)
    for values, numbers in sorted(samples.items()):
        family.add_metric(values, numbers[_SUM])
    return family


def _histogram(metric: Metric, samples: _Samples) -> MetricFamily:
    labels = [*map(_label, metric.attributes)]
    family = HistogramMetricFamily(
        metric.prometheus_name, metric.description, labels=labels, unit="seconds"
    )
    for values, numbers in sorted(samples.items()):
        counts = accumulate(numbers.get(str(place), 0) for place in range(len(_BOUNDS)))
        family.add_metric(values, list(zip(_BOUNDS, counts, strict=True)), numbers.get(_SUM, 0))
    return family


class MetricsEdge(OperationsEdge):
    """The metrics of a service for Prometheus: GET of one path.

    All callers who reach it may read it, unless ``authenticate`` refuses the caller: it is asked as
    by :class:`lro.http.OperationsEdge`. There are names of methods in it and numbers, no names of
    operations or callers, and no messages. ``path`` is where it is, such as ``/metrics``; by
    default it is wherever it is mounted.

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

    def route(self, method: str, path: str, *, shared: bool = False) -> Found:  # noqa: ARG002
        """See :meth:`lro.http.OperationsEdge.route`."""
        if path not in self._paths:
            return RouteNotFound(path)
        if method not in _READS:
            return HttpMethodNotAllowed(method, path, _READS)
        return Allowed(_READS) if method == "OPTIONS" else Match(rpc="", bindings={}, head=False)

    def exchange(self, request: HttpRequest, found: Found | None = None) -> Exchange:
        """See :meth:`lro.http.OperationsEdge.exchange`."""
        found = found or self.route(request.method, request.path)
        if not isinstance(found, Match):
            return (yield from super().exchange(request, found))
        try:
            yield from self._caller(request)

            def read() -> Flow[HttpReply]:
                yield from ()
                return self._exposition(request.headers.get("accept", ""))

            reply: HttpReply = yield CallFunction(read(), many=True)
        except Exception as exc:
            return self.refusal(request, exc)
        return reply.headless if request.method == "HEAD" else reply

    def _exposition(self, accept: str) -> HttpReply:
        families = list(self._collector.families(self._collector.totals()))
        encode, kind = choose_encoder(_OPENMETRICS if _OPENMETRICS in accept else "")
        headers = (("content-type", kind), ("cache-control", "no-store"))
        return HttpReply(200, headers, encode(_Collected(families)))


class _Collected(Collector):
    """Families that were collected."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterable[MetricFamily]:
        return self._families
