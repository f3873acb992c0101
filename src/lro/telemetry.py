"""OpenTelemetry for a service: how it is used, and the metrics that it has."""

from lro._engine.metrics import BUCKETS, METRICS, Metric, MetricKind
from lro._engine.telemetry import MAX_CONTEXT, SCHEMA_URL, SCOPE, Propagation, Telemetry

__all__ = [
    "BUCKETS",
    "MAX_CONTEXT",
    "METRICS",
    "SCHEMA_URL",
    "SCOPE",
    "Metric",
    "MetricKind",
    "Propagation",
    "Telemetry",
]
