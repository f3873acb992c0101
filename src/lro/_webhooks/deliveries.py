"""Pending deliveries of an operation: for each endpoint, the attempts and the next time.

The operation's record keeps the deliveries as JSON (``Record.notify``), so that any process can
continue to send them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import attrs

from lro._webhooks.endpoints import endpoint_to_json, endpoints_from_json
from lro.adapters import Endpoint
from lro.wire import dumps, loads

LOOKUP: Final = ""
"""The id that stands for the endpoints of ``lookup`` until a call of ``lookup`` succeeds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@attrs.frozen
class PendingDelivery:
    """A delivery that has not succeeded yet.

    ``attempts`` is the number of failed attempts; the next attempt is due at ``at``. ``looked_up``
    is True if ``lookup`` returned the endpoint. ``since`` is the time at which an operator retried
    the delivery; None if the delivery has been pending since the operation ended.
    """

    attempts: int
    at: datetime
    looked_up: bool = False
    since: datetime | None = None


@attrs.frozen
class Deliveries:
    """The deliveries of an operation, and the endpoints that were named at its start.

    ``pending`` is keyed by endpoint id. It is None if the operation has not ended, or if no process
    has claimed its deliveries yet. ``failed`` are the ids of deliveries that were abandoned.
    """

    endpoints: tuple[Endpoint, ...] = ()
    pending: Mapping[str, PendingDelivery] | None = None
    failed: tuple[str, ...] = ()

    @classmethod
    def of(cls, notify: str) -> Deliveries:
        """Read the deliveries that a record keeps."""
        if not notify:
            return cls()
        kept: dict[str, Any] = cast(Any, loads(notify))
        pending = kept.get("owed")
        return cls(
            tuple(endpoints_from_json(kept.get("endpoints", []))),
            None if pending is None else {id: _read(*one) for id, one in pending.items()},
            tuple(kept.get("failed", ())),
        )

    def to_text(self) -> str:
        """Return the text for a record; empty if no delivery is pending and none has failed."""
        kept: dict[str, Any] = {}
        if self.endpoints:
            kept["endpoints"] = [endpoint_to_json(one) for one in self.endpoints]
        if self.pending is not None:
            if not self.pending and not self.failed:
                return ""  # no longer store the endpoints, which have secrets
            kept["owed"] = {id: _written(delivery) for id, delivery in self.pending.items()}
        if self.failed:
            kept["failed"] = list(self.failed)
        return dumps(kept).decode() if kept else ""

    @property
    def start_endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints of the start. Their ids get a prefix, because callers choose these ids."""
        return tuple(attrs.evolve(one, id=f"start.{one.id}") for one in self.endpoints)

    @property
    def next_due(self) -> datetime | None:
        """The time at which the next delivery is due; None if no delivery is pending."""
        return min((one.at for one in (self.pending or {}).values()), default=None)

    def with_endpoints(self, endpoints: Iterable[Endpoint]) -> Deliveries:
        """Replace the endpoints of the start, and drop the deliveries to removed endpoints."""
        kept = attrs.evolve(self, endpoints=tuple(endpoints))
        gone = {one.id for one in self.start_endpoints} - {one.id for one in kept.start_endpoints}
        pending = {id: one for id, one in (self.pending or {}).items() if id not in gone}
        failed = tuple(id for id in self.failed if id not in gone)
        return attrs.evolve(kept, pending=None if self.pending is None else pending, failed=failed)

    def restarted(self, now: datetime) -> Deliveries:
        """Make pending and failed deliveries due now, each with its whole retry schedule."""
        pending = {id: PendingDelivery(0, now, since=now) for id in self.failed}
        for id, delivery in (self.pending or {}).items():
            pending[id] = attrs.evolve(delivery, attempts=0, at=now, since=now)
        return attrs.evolve(self, pending=pending, failed=())


def _written(delivery: PendingDelivery) -> list[int]:
    kept = [delivery.attempts, _milliseconds(delivery.at), int(delivery.looked_up)]
    return kept if delivery.since is None else [*kept, _milliseconds(delivery.since)]


def _read(attempts: int, at: int, looked_up: int, since: int | None = None) -> PendingDelivery:
    again = None if since is None else _moment(since)
    return PendingDelivery(attempts, _moment(at), looked_up == 1, again)


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND
