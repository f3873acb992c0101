"""Claims of waiting work in PostgreSQL. A claim skips rows that are locked."""

from __future__ import annotations

import threading
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from lro._base.errors import Unavailable
from lro._engine.store_port import Claim, Claimed
from lro._messages.json_text import dumps
from lro.stores._rows import MICROSECOND, RecordCache, from_row, micros, moment, text_length, unpack
from lro.stores._turns import MOST_LANES
from lro.stores.postgres import _statements as statements
from lro.stores.postgres._connections import ConnectionPool
from lro.stores.postgres._statements import id_of, ids_of, lock_number, sql_array

_BEYOND: Final = (16, 512)
"""Number of records that a claim reads beyond the wanted number, because some may be locked.

If all records that it has read are locked, the claim reads again, the second number of records.
"""

_KEPT: Final = 1000
"""The most claims whose owner, time and lease are remembered."""

_Limits: TypeAlias = Mapping[str, int | None]
_Rows: TypeAlias = Sequence[tuple[typing.Any, ...]]


class WorkClaims:
    """Claims work of a schema, and puts the claimed records into ``cache``.

    If a method has a limit, only one process at a time claims its work. Before the process counts
    the running operations, it takes an advisory lock, which it holds until its claim is committed.
    """

    def __init__(self, connections: ConnectionPool, cache: RecordCache) -> None:
        self._connections = connections
        self._cache = cache
        self._lock = threading.Lock()
        self._alone: dict[tuple[str, int, int], bool] = {}
        """Keyed by owner, time and lease of a claim. True if no other claim has the same key."""

    def make(self, claim: Claim, now: int) -> Claimed:
        """Begin work as :meth:`Store.claim` says.

        Raises:
            Unavailable: The database cannot be used now.
        """
        limits: _Limits = claim.limits
        bound = bool(claim.keyed or claim.rates)
        bound = bound or any(limit is not None for limit in limits.values())
        locked: Sequence[str] = ()
        times: list[int] = []
        many = False
        if bound:
            limits, times, many = self._possible(claim, now)
            if many and not limits:
                first = self._first_due(claim, now)
                if isinstance(first, Claimed):
                    return first
                for elsewhere in first:
                    limits, times, _ = self._possible(elsewhere, now)
                    if limits:
                        claim = elsewhere
                        break
            if not limits:
                return Claimed((), more=many, next_due=_first(times))
            locked = [
                method
                for method, limit in limits.items()
                if limit is not None or method in claim.rates
            ]
        try:
            rows = self._taken(claim, now, limits, locked, bound=bound)
        except Unavailable:
            # Perhaps the claim was committed, and only the reply was lost.
            works = self._works(self._made(claim, now))
            if not works:
                raise
            return Claimed(works, more=True, next_due=None)
        if rows[0][0] < 0 and not bound:
            first = self._first_due(claim, now)
            if isinstance(first, Claimed):
                return first
            many = True
            for elsewhere in first:
                rows = self._taken(elsewhere, now, limits, locked, bound=bound)
                if rows[0][0] > 0:
                    break
        works = self._works(rows)
        seen, next_due = rows[0][:2]
        times += [] if next_due is None else [next_due]
        more = (
            many or seen > len(works) or (bool(works) and not claim.rates.keys().isdisjoint(limits))
        )
        return Claimed(works, more, _first(times))

    def _first_due(self, claim: Claim, now: int) -> Claimed | Sequence[Claim]:
        """Find the work that has been due for longest, when the lanes read have nothing to claim.

        Return claims to try: first a claim that starts at the lane of the work, then a claim for
        this work alone, in case its rank in the lane is low. If nothing is due, return an empty
        result with the next due time.
        """
        values = claim.after_lane, now, _limits_text(claim, claim.limits), ids_of([*claim.excluded])
        for until, lane, name in self._connections.rows(statements.FIRST_WAITING, values):
            if until > now:
                return Claimed((), more=False, next_due=moment(until))
            in_lane = attrs.evolve(claim, after_lane=lane - 1)
            return (in_lane,) if claim.puts_off else (in_lane, attrs.evolve(claim, name=name))
        return Claimed((), more=False, next_due=None)

    def _possible(self, claim: Claim, now: int) -> tuple[_Limits, list[int], bool]:
        """Return the methods whose work may be taken, and when more work is due or may begin.

        The last value is True if there may be lanes that were not read.
        """
        rows = self._connections.rows
        if claim.name:
            waiting = rows(statements.WAITING_METHOD, (id_of(claim.name),))
            found = [method for (method,) in waiting if method in claim.limits]
            return {method: claim.limits[method] for method in found}, [], False
        values = claim.after_lane, now, _limits_text(claim, claim.limits)
        due = rows(statements.LANES_DUE, values)
        limits = {
            method: claim.limits[method]
            for method, is_due, _, room, _ in due
            if is_due and (room is None or room > 0)
        }
        times = [at for _, _, at, _, _ in due if at is not None]
        times += [at for _, is_due, _, _, at in due if is_due and at is not None]
        lanes = Counter(method for method, *_ in due)
        return limits, times, max(lanes.values(), default=0) >= MOST_LANES

    def _taken(
        self, claim: Claim, now: int, limits: _Limits, locked: Sequence[str], *, bound: bool
    ) -> _Rows:
        most = max(0, claim.max_count)
        rows: _Rows = ()
        if not claim.puts_off:
            with self._lock:
                if len(self._alone) >= _KEPT:
                    self._alone.clear()
                key = claim.owner, now, micros(claim.lease_until)
                self._alone[key] = key not in self._alone
        for beyond in _BEYOND:
            look = most + beyond
            rows = self._taken_of(look, claim, now, limits, locked, bound=bound)
            seen, _, request, *_ = rows[0]
            if request is not None or seen < look or not most:
                break  # the records that were read were not all locked
        return rows

    def _taken_of(
        self,
        look: int,
        claim: Claim,
        now: int,
        limits: _Limits,
        locked: Sequence[str],
        *,
        bound: bool,
    ) -> _Rows:
        most, until = max(0, claim.max_count), micros(claim.lease_until)
        excluded = ids_of([*claim.excluded])
        values: tuple[object, ...] = claim.after_lane, now, _limits_text(claim, limits), excluded
        values += (id_of(claim.name), look, most) if claim.name else (look, look, most)
        first = None
        if locked:
            schema = self._connections.address.schema
            numbers = sorted(lock_number("lro claim", schema, method) for method in locked)
            first = statements.LOCK_METHODS, (sql_array(numbers),)
        if claim.puts_off:
            in_order = statements.PUT_OFF_IN_TURN if bound else statements.PUT_OFF
            put_off = statements.PUT_OFF_ONLY if claim.name else in_order
            return self._connections.rows(put_off, (*values, until, now, now, now), first=first)
        begin = statements.CLAIM_IN_TURN if bound else statements.CLAIM
        values = *values, claim.owner, until, now, now
        begin = statements.CLAIM_ONLY if claim.name else begin
        return self._connections.rows(begin, values, once=True, first=first)

    def _made(self, claim: Claim, now: int) -> _Rows:
        until = micros(claim.lease_until)
        if not self._alone.get((claim.owner, now, until)):
            return ()
        methods = dumps([*claim.limits]).decode()
        return self._connections.rows(statements.CLAIMED, (methods, until, claim.owner, now))

    def _works(self, rows: _Rows) -> list[tuple[typing.Any, typing.Any]]:
        return [
            (self._cache.keep(from_row(row), text_length(row)), unpack(request))
            for _, _, request, *row in rows
            if request is not None
        ]


def _limits_text(claim: Claim, limits: _Limits) -> str:
    rows = []
    for method, limit in limits.items():
        bounds: dict[str, object] = {"method": method, "keyed": method in claim.keyed}
        if limit is not None:
            bounds["at_once"] = limit
        if method in claim.rates:
            most, span = claim.rates[method]
            bounds |= {"rate": most, "span": span // MICROSECOND}
        bounds["sends"] = claim.puts_off and not bounds.keys().isdisjoint(("at_once", "rate"))
        rows += [{**bounds, "suspect": kind} for kind in claim.kinds]
    return dumps(rows).decode()  # type: ignore[arg-type]  # a list is JSON


def _first(times: Sequence[int]) -> typing.Any:
    return moment(min(times)) if times else None
