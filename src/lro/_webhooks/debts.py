"""What is owed of the end of an operation: by endpoint, after how many tries, and when.

It stands in the record (``Record.notify``) as JSON, so that any process can go on with it.
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
"""Stands for the endpoints that the application has not said yet, its function having failed."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@attrs.frozen
class Debt:
    """A notification that is owed: how often it was tried, and when it is tried next.

    ``looked_up``: its endpoint is one that the application's function has given. ``since``: when
    it was owed again; None: it is owed since the end of the operation.
    """

    attempts: int
    at: datetime
    looked_up: bool = False
    since: datetime | None = None


@attrs.frozen
class Debts:
    """What is owed of an operation, and the endpoints that its start has named.

    ``owed`` is by the id of the endpoint; None: the operation has not ended, or not been looked at
    since. ``failed`` are the ids of those that were given up.
    """

    endpoints: tuple[Endpoint, ...] = ()
    owed: Mapping[str, Debt] | None = None
    failed: tuple[str, ...] = ()

    @classmethod
    def of(cls, notify: str) -> Debts:
        """Read what a record keeps."""
        if not notify:
            return cls()
        kept: dict[str, Any] = cast(Any, loads(notify))
        owed = kept.get("owed")
        return cls(
            tuple(endpoints_from_json(kept.get("endpoints", []))),
            None if owed is None else {id: _debt(*one) for id, one in owed.items()},
            tuple(kept.get("failed", ())),
        )

    def to_text(self) -> str:
        """What a record keeps; empty if nothing is owed and nothing was given up."""
        kept: dict[str, Any] = {}
        if self.endpoints:
            kept["endpoints"] = [endpoint_to_json(one) for one in self.endpoints]
        if self.owed is not None:
            if not self.owed and not self.failed:
                return ""  # with the secrets of the endpoints
            kept["owed"] = {id: _kept(debt) for id, debt in self.owed.items()}
        if self.failed:
            kept["failed"] = list(self.failed)
        return dumps(kept).decode() if kept else ""

    @property
    def of_start(self) -> tuple[Endpoint, ...]:
        """The endpoints of the start, with ids that no other has: callers choose those and URLs."""
        return tuple(attrs.evolve(one, id=f"start.{one.id}") for one in self.endpoints)

    @property
    def next_due(self) -> datetime | None:
        """When the next one is due; None if none is owed."""
        return min((debt.at for debt in (self.owed or {}).values()), default=None)

    def with_endpoints(self, endpoints: Iterable[Endpoint]) -> Debts:
        """Return the debts with other endpoints of the start, without debts to removed ones."""
        kept = attrs.evolve(self, endpoints=tuple(endpoints))
        gone = {one.id for one in self.of_start} - {one.id for one in kept.of_start}
        owed = {id: debt for id, debt in (self.owed or {}).items() if id not in gone}
        failed = tuple(id for id in self.failed if id not in gone)
        return attrs.evolve(kept, owed=None if self.owed is None else owed, failed=failed)

    def again(self, now: datetime) -> Debts:
        """The same, with all that is owed, or was given up, due now as for the first time."""
        owed = {id: Debt(0, now, since=now) for id in self.failed}
        for id, debt in (self.owed or {}).items():
            owed[id] = attrs.evolve(debt, attempts=0, at=now, since=now)
        return attrs.evolve(self, owed=owed, failed=())


def _kept(debt: Debt) -> list[int]:
    kept = [debt.attempts, _milliseconds(debt.at), int(debt.looked_up)]
    return kept if debt.since is None else [*kept, _milliseconds(debt.since)]


def _debt(attempts: int, at: int, looked_up: int, since: int | None = None) -> Debt:
    return Debt(attempts, _moment(at), looked_up == 1, None if since is None else _moment(since))


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND
