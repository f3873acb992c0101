"""The orders in which records in memory are found: of all of a parent, by state, and by key."""

from __future__ import annotations

import bisect
import heapq
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from lro._filters.prefilter import UNKNOWN, Bounds, Span
from lro._model.page_tokens import Cursor
from lro._model.record import Record, State
from lro.stores._rows import micros

_Entry: TypeAlias = tuple[datetime, str]
_Facet: TypeAlias = "State | tuple[str, str] | None"
"""What the records of an order have in common beside their parent: a state, a key's value."""

_ALL: Final = None


class OrderedRecords:
    """Records ordered by when they were created. Used under the store's lock."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._orders: dict[tuple[str, _Facet], list[_Entry]] = {}
        self._keys: frozenset[str] = frozenset()
        self._expiries: list[_Entry] = []

    def index(self, keys: Collection[str]) -> None:
        """Keep orders by these keys from now on, and put in them what is there."""
        new = frozenset(keys) - self._keys
        self._keys |= new
        for record in self._records.values() if new else ():
            for key in new:
                self._insert(record, (key, _value(record, key)))

    def add(self, record: Record) -> None:
        """Put a record in every order that it belongs to."""
        for facet in self._facets(record):
            self._insert(record, facet)
        if record.expire_time is not None:
            bisect.insort(self._expiries, (record.expire_time, record.name))

    def remove(self, records: Collection[Record]) -> None:
        """Take records out of all of them."""
        gone: dict[tuple[str, _Facet], list[_Entry]] = {}
        for record in records:
            for facet in self._facets(record):
                entry = record.create_time, record.name
                gone.setdefault((record.parent, facet), []).append(entry)
        for order, entries in gone.items():
            _delete(self._orders[order], entries)
            if not self._orders[order]:
                del self._orders[order]
        _delete(self._expiries, [(r.expire_time, r.name) for r in records if r.expire_time])

    def move(self, before: Record, after: Record) -> None:
        """Put a record that has changed where it belongs now."""
        if before.state is not after.state:
            self._take(before, before.state)
            self._insert(after, after.state)
        if before.expire_time != after.expire_time:
            if before.expire_time is not None:
                _delete(self._expiries, [(before.expire_time, before.name)])
            if after.expire_time is not None:
                bisect.insort(self._expiries, (after.expire_time, after.name))
        if before.keys != after.keys:
            for key in self._keys:
                self._take(before, (key, _value(before, key)))
                self._insert(after, (key, _value(after, key)))

    def expired(self, now: datetime, limit: int) -> list[str]:
        """The names of up to ``limit`` records that have expired, the oldest first."""
        due = bisect.bisect_right(self._expiries, now, key=_moment)
        return [name for _, name in self._expiries[: min(due, limit)]]

    def walk(self, parent: str, after: Cursor | None, bounds: Bounds) -> Iterator[Record]:
        """The records within bounds, or more, newest first, equal times by name."""
        if bounds.names is not None:
            return self._named(parent, after, bounds.names)
        orders = [self._orders.get((parent, facet), []) for facet in self._best(bounds)]
        walks = [_newest_first(entries, after, bounds.created) for entries in orders]
        entries = walks[0] if len(walks) == 1 else heapq.merge(*walks, key=_in_order)
        return (self._records[name] for _, name in entries)

    def _named(self, parent: str, after: Cursor | None, names: Collection[str]) -> Iterator[Record]:
        found = [self._records[name] for name in names if name in self._records]
        entries = [(r.create_time, r.name) for r in found if r.parent == parent]
        for entry in sorted(entries, key=_in_order):
            if after is None or _in_order(entry) > _in_order((after.create_time, after.name)):
                yield self._records[entry[1]]

    def _best(self, bounds: Bounds) -> Sequence[_Facet]:
        for key in self._keys & bounds.keys.keys():
            return [(key, value) for value in (*bounds.keys[key], UNKNOWN)]
        return [_ALL] if bounds.states is None else list(bounds.states)

    def _facets(self, record: Record) -> Iterator[_Facet]:
        yield _ALL
        yield record.state
        for key in self._keys:
            yield key, _value(record, key)

    def _insert(self, record: Record, facet: _Facet) -> None:
        entries = self._orders.setdefault((record.parent, facet), [])
        bisect.insort(entries, (record.create_time, record.name))  # at the end, or close to it

    def _take(self, record: Record, facet: _Facet) -> None:
        entries = self._orders[record.parent, facet]
        _delete(entries, [(record.create_time, record.name)])
        if not entries:
            del self._orders[record.parent, facet]


def _delete(entries: list[_Entry], gone: Collection[_Entry]) -> None:
    # All at once: what comes after them is moved once, and there may be a million.
    places = sorted(bisect.bisect_left(entries, entry) for entry in gone)
    if places:
        first, last = places[0], places[-1] + 1
        leaving = set(places)
        entries[first:last] = [entries[n] for n in range(first, last) if n not in leaving]


def _value(record: Record, key: str) -> str:
    known: dict[str, str] = json.loads(record.keys or "{}")
    return known.get(key, UNKNOWN)


def _newest_first(entries: Sequence[_Entry], after: Cursor | None, span: Span) -> Iterator[_Entry]:
    # The oldest stands first, so that new ones come to the end, where they cost least. But of one
    # moment, names go upwards in a page too.
    begin, end = 0, len(entries)
    if span.low is not None:
        begin = bisect.bisect_left(entries, span.low, key=_micros)
    if span.high is not None:
        end = bisect.bisect_right(entries, span.high, key=_micros)
    if after is not None:
        at = micros(after.create_time)
        rest = bisect.bisect_right(entries, (after.create_time, after.name), begin, end)
        yield from entries[rest : bisect.bisect_right(entries, at, rest, end, key=_micros)]
        end = bisect.bisect_left(entries, at, begin, end, key=_micros)
    while end > begin:
        first = bisect.bisect_left(entries, entries[end - 1][0], begin, end, key=_moment)
        yield from entries[first:end]
        end = first


def _moment(entry: _Entry) -> datetime:
    return entry[0]


def _micros(entry: _Entry) -> int:
    return micros(entry[0])


def _in_order(entry: _Entry) -> tuple[int, str]:
    return -micros(entry[0]), entry[1]
