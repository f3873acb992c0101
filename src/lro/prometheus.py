"""Metrics for Prometheus, correct with any number of processes: the extra ``prometheus``.

``lro.asgi.EdgeApp`` and ``lro.wsgi.EdgeApp`` serve a :class:`MetricsEdge`; a
:class:`ServiceCollector` is for a registry of ``prometheus_client`` of your own.

Counters and histograms come from the totals that the store keeps for all its processes. So every
process answers for all, and no number falls when a process ends. Totals are at most about 15
seconds old. Gauges belong to the process that answers, and have its id in the label ``process``.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from lro import Service
from lro.adapters import Counts, keeps_statistics
from lro.errors import HttpMethodNotAllowed, LroError, MissingExtra, RouteNotFound
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
from lro.telemetry import BUCKETS, METHOD, METRICS, Metric

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

__all__ = ["MetricsEdge", "ServiceCollector"]

log = logging.getLogger("lro")

_COUNTED: Final = {metric.series: metric for metric in METRICS if metric.series}

_PROCESS: Final = "process"
_SUM: Final = "sum"
_BOUNDS: Final = (*map(floatToGoString, BUCKETS), "+Inf")
_OPENMETRICS: Final = "application/openmetrics-text"
_READS: Final = ("GET", "HEAD", "OPTIONS")

_Samples = dict[tuple[str, ...], dict[str, float]]
"""Samples of a metric by the values of its labels: its number, or its buckets and sum."""


def _label(attribute: str) -> str:
    return attribute.replace(".", "_")


class ServiceCollector(Collector):
    """Collect the metrics of a service for a registry of ``prometheus_client``.

    ``REGISTRY.register(ServiceCollector(service))`` adds them. If the store cannot be read, which
    the log says, or keeps no statistics, there are only gauges.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> Iterator[MetricFamily]:
        """Yield the families without samples, by which a registry finds equal names."""
        return self.families({})

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families with their present samples."""
        try:
            totals = self.totals()
        except LroError as exc:
            log.warning("metrics of all processes cannot be read now: %s", exc)
            totals = {}
        return self.families(totals)

    def totals(self) -> Counts:
        """Return the counts of all processes on the store; empty if it keeps no statistics.

        Raises:
            Unavailable: The store cannot be read now.
        """
        store = self._service.store
        return store.read_totals() if keeps_statistics(store) else {}

    def families(self, totals: Counts) -> Iterator[MetricFamily]:
        """Yield the families of all metrics, from these totals and the gauges of this process."""
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
        for attributes, number in self._service.gauges.read(metric):
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
            # Another metric has these numbers too, or only a later version can read them.
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
    """Serve the metrics of a service to Prometheus: GET of one path.

    Every caller who reaches the path may read it, unless ``authenticate``, which is the same as for
    :class:`lro.http.OperationsEdge`, refuses the caller. The reply has names of methods and
    numbers, but no names of operations or callers, and no messages. ``path``, such as
    ``/metrics``, is needed only beside a fallback; without it, mount the edge at any path.

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
        families = list(self._collector.families(self._collector.totals()))
        encode, kind = choose_encoder(_OPENMETRICS if _OPENMETRICS in accept else "")
        headers = (("content-type", kind), ("cache-control", "no-store"))
        return HttpReply(200, headers, encode(_Collected(families)))


class _Collected(Collector):
    """Collect these families once more, for an encoder."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterable[MetricFamily]:
        return self._families
