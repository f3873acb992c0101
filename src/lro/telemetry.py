"""OpenTelemetry for a service, and the table of its metrics, which Prometheus uses too."""

from lro._engine.events import MetricObserver
from lro._engine.metrics import BUCKETS, METRICS, Metric, MetricKind
from lro._engine.statistics import FLUSH_SECONDS
from lro._engine.telemetry import MAX_CONTEXT, SCHEMA_URL, SCOPE, Propagation, Telemetry

__all__ = [
    "BUCKETS",
    "FLUSH_SECONDS",
    "MAX_CONTEXT",
    "METRICS",
    "SCHEMA_URL",
    "SCOPE",
    "Metric",
    "MetricKind",
    "MetricObserver",
    "Propagation",
    "Telemetry",
]
