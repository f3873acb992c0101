"""The metrics of a service: one table, from which instruments, exporters and docs are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs

from lro._base.by_fields import ByFields

MetricKind: TypeAlias = Literal["counter", "histogram", "gauge", "up_down_counter"]

BUCKETS: Final = (
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 10800.0,
    43200.0, 86400.0,
)  # fmt: skip
"""The upper bounds of the buckets of durations, in seconds; one more bucket has no upper bound."""

METHOD: Final = "lro.method"
_ERROR: Final = "error.type"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Metric(ByFields):
    """A metric; ``attributes`` are the names of its attributes, each of which has few values.

    The values of an ``observed`` metric are read when they are collected; other metrics count
    events. A metric that is ``opt_in`` exists only if an option asks for it. In the counts that a
    store keeps, the names of the metric's series begin with ``series``.
    """

    name: str
    kind: MetricKind
    unit: str
    description: str
    attributes: Sequence[str] = ()
    observed: bool = False
    opt_in: bool = False
    series: str = ""

    @property
    def buckets(self) -> Sequence[float]:
        """The upper bounds of the metric's buckets; empty unless the metric is a histogram."""
        return BUCKETS if self.kind == "histogram" else ()

    @property
    def prometheus_name(self) -> str:
        """The Prometheus name, with ``_seconds`` for the unit ``s``, ``_total`` for counters."""
        name = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        return f"{name}_total" if self.kind == "counter" else name


STARTS: Final = Metric(
    name="lro.starts",
    kind="counter",
    unit="{operation}",
    description="Starts that were answered; a `repeated` one has a known request id.",
    attributes=(METHOD, "lro.start.outcome", _ERROR),
    series="starts",
)
ACTIVE: Final = Metric(
    name="lro.operation.active",
    kind="up_down_counter",
    unit="{operation}",
    description="Operations in this process: `pending` ones wait, `executing` ones run.",
    attributes=(METHOD, "lro.state"),
    observed=True,
)
QUEUE_DURATION: Final = Metric(
    name="lro.queue.duration",
    kind="histogram",
    unit="s",
    description="From the creation of an operation to its first claim by a worker.",
    attributes=(METHOD,),
    series="queue",
)
ATTEMPT_DURATION: Final = Metric(
    name="lro.attempt.duration",
    kind="histogram",
    unit="s",
    description="Attempts, from when a worker begins them to their end.",
    attributes=(METHOD, "lro.outcome", _ERROR),
    series="attempt",
)
OPERATION_DURATION: Final = Metric(
    name="lro.operation.duration",
    kind="histogram",
    unit="s",
    description="Operations, from their creation to their end.",
    attributes=(METHOD, "lro.outcome", _ERROR),
    series="operation",
)
MAX_AGE: Final = Metric(
    name="lro.operation.max_age",
    kind="gauge",
    unit="s",
    description="Age of the oldest operation in this process.",
    attributes=(METHOD,),
    observed=True,
)
CANCEL_DURATION: Final = Metric(
    name="lro.cancel.duration",
    kind="histogram",
    unit="s",
    description="From the first request to cancel an operation to its end.",
    attributes=(METHOD, "lro.reach"),
    series="cancel",
)
QUEUE_OPERATIONS: Final = Metric(
    name="lro.queue.operations",
    kind="gauge",
    unit="{operation}",
    description="Operations that wait in the store.",
    attributes=(METHOD, "lro.served", "lro.due"),
    observed=True,
)
QUEUE_AGE: Final = Metric(
    name="lro.queue.max_age",
    kind="gauge",
    unit="s",
    description="How long the first of the waiting operations in the store has been due.",
    attributes=(METHOD, "lro.served"),
    observed=True,
)
QUEUE_EXPIRIES: Final = Metric(
    name="lro.queue.expiries",
    kind="counter",
    unit="{operation}",
    description="Operations that ended because their work had not begun before their expiry.",
    attributes=(METHOD,),
    series="expiries",
)
PAUSED: Final = Metric(
    name="lro.method.paused",
    kind="gauge",
    unit="1",
    description="1 while the method is paused, so that no process begins its work; else 0.",
    attributes=(METHOD,),
    observed=True,
)
LOST_ATTEMPTS: Final = Metric(
    name="lro.lost.attempts",
    kind="counter",
    unit="{attempt}",
    description="Attempts whose worker was lost; `lro.decision` is what happened then.",
    attributes=(METHOD, "lro.decision"),
    series="lost",
)
REFUSED_WRITES: Final = Metric(
    name="lro.refused.writes",
    kind="counter",
    unit="{write}",
    description="Writes of workers that were refused: other workers have their operations.",
    attributes=(METHOD,),
    series="refused_writes",
)
WAITERS: Final = Metric(
    name="lro.waiter.active",
    kind="up_down_counter",
    unit="{waiter}",
    description="Open calls of Wait and Watch in this process.",
    attributes=("lro.waiter.kind",),
    observed=True,
)
EXECUTOR_USAGE: Final = Metric(
    name="lro.executor.usage",
    kind="up_down_counter",
    unit="{task}",
    description="Tasks that the executor of this process runs.",
    observed=True,
)
EXECUTOR_LIMIT: Final = Metric(
    name="lro.executor.limit",
    kind="up_down_counter",
    unit="{task}",
    description="Tasks that the executor of this process can run at once.",
    observed=True,
)
LEASE_MARGIN: Final = Metric(
    name="lro.lease.margin",
    kind="histogram",
    unit="s",
    description="Time that was left of the lease of this process when it was renewed.",
    series="lease_margin",
)
EXPIRED: Final = Metric(
    name="lro.expired.operations",
    kind="counter",
    unit="{operation}",
    description="Operations that were removed because they had expired.",
    attributes=(METHOD,),
    series="expired",
)
STORE_CALLS: Final = Metric(
    name="lro.store.call.duration",
    kind="histogram",
    unit="s",
    description="Calls of the store.",
    attributes=("lro.store.verb", _ERROR),
    opt_in=True,
)

METRICS: Final[Sequence[Metric]] = (
    STARTS,
    ACTIVE,
    QUEUE_DURATION,
    ATTEMPT_DURATION,
    OPERATION_DURATION,
    MAX_AGE,
    QUEUE_OPERATIONS,
    QUEUE_AGE,
    QUEUE_EXPIRIES,
    PAUSED,
    CANCEL_DURATION,
    LOST_ATTEMPTS,
    REFUSED_WRITES,
    WAITERS,
    EXECUTOR_USAGE,
    EXECUTOR_LIMIT,
    LEASE_MARGIN,
    EXPIRED,
    STORE_CALLS,
)
"""All metrics, in the order of the docs.

``lro.method`` is a declared method; it is missing if an event belongs to no method. ``error.type``
is the name of a ``google.rpc.Code``, and present only on failure.
"""


def table() -> str:
    """Return the table of the metrics in Markdown, for the docs."""
    lines = ["| metric | kind, unit | attributes | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        kind = metric.kind.replace("_", "-") + (", observed" if metric.observed else "")
        attributes = ", ".join(f"`{name}`" for name in metric.attributes) or "–"
        said = metric.description + (" Opt-in." if metric.opt_in else "")
        lines.append(f"| `{metric.name}` | {kind}, `{metric.unit}` | {attributes} | {said} |")
    return "\n".join(lines)
