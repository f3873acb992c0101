"""A store in memory: for tests, and for services whose operations may die with the process."""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
import json
import operator
import secrets
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from lro._base.arguments import check_count, check_function
from lro._base.errors import OperationNotFound, TargetBusy
from lro._base.status import AnyMessage
from lro._engine.process import PerProcess
from lro._engine.store_port import (
    COUNTS_READ,
    FREE_LANE,
    READ_BYTES,
    SCAN,
    STEP_MINUTES,
    SUSPECT,
    Claim,
    Claimed,
    Counts,
    Done,
    Expired,
    Found,
    Inserted,
    Load,
    MinuteCounts,
    Orphans,
    Page,
    Renewed,
    RequestKey,
    StateSummary,
    WaitingWork,
    Worker,
    place_of,
)
from lro._filters.prefilter import EVERYTHING, UNKNOWN, Bounds, Span, Test, bounds_of
from lro._model.operation import Change, Record, State, check_reporting
from lro._model.operation import claim as begin
from lro._model.page_tokens import KEY_BYTES, Cursor
from lro._schedules.schedule import Schedule
from lro.stores._counting import (
    LoadRow,
    added,
    load_of,
    oldest_minute,
    step_since,
    step_time,
    steps_of,
)
from lro.stores._rows import (
    MICROSECOND,
    REQUEST_LIFE,
    micros,
    moment,
    refuse_untextual,
    repeats_start,
    sweep_time,
    taken,
)
from lro.stores._turns import MOST_LANES, Due, in_turn
from lro.stores._workers import FORGOTTEN, Hold, orphans_of, renewed_of, unknown_worker

__all__ = ["MemoryStore"]

_Entry: TypeAlias = tuple[datetime, str]
_E = TypeVar("_E", tuple[datetime, str], tuple[int, str], tuple[int, int])
_Facet: TypeAlias = "State | tuple[str, str] | None"
"""Property that all records of a list have: a state, or a key's value; None: no such property."""

_ALL: Final = None
_SWEEPS: Final = "sweeps"
_DEBTS: Final = "debts"
_List: TypeAlias = "tuple[str, _Facet] | str"
"""A list of records: those of a parent with a facet; those to sweep; those with notifications."""


class OrderedRecords:
    """Lists of records by create time, by expiry, and by the due time of their notifications.

    Used under the store's lock.
    """

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._keys: frozenset[str] = frozenset()
        self.clear()

    def clear(self) -> None:
        """Make the lists empty; they are kept by the same keys as before."""
        self._lists: dict[_List, list[Any]] = {_SWEEPS: [], _DEBTS: []}

    def index(self, keys: Collection[str]) -> None:
        """Keep lists by these metadata keys as well, and fill them with the existing records."""
        new = frozenset(keys) - self._keys
        self._keys |= new
        found: defaultdict[_List, list[Any]] = defaultdict(list)
        for record in self._records.values() if new else ():
            for key in new:
                entry = record.create_time, record.name
                found[record.parent, (key, _value(record, key))].append(entry)
        self._add(found)

    def move(self, changes: Iterable[tuple[Record | None, Record | None]]) -> None:
        """Follow the changes of distinct records: each before and after (None: not stored)."""
        gone: defaultdict[_List, list[Any]] = defaultdict(list)
        new: defaultdict[_List, list[Any]] = defaultdict(list)
        for before, after in changes:
            if (
                before is not None
                and after is not None
                and before.create_time is after.create_time
                and before.parent == after.parent
            ):
                self._enter(before, after, gone)
                self._enter(after, before, new)
                continue
            if before is not None:
                self._enter(before, None, gone)
            if after is not None:
                self._enter(after, None, new)
        for where, entries in gone.items():
            _delete(self._lists[where], entries)
        self._add(new)
        for where in gone:
            if not self._lists[where] and not isinstance(where, str):
                del self._lists[where]

    def _enter(
        self, record: Record, other: Record | None, into: defaultdict[_List, list[Any]]
    ) -> None:
        """Add the entries of a record, except those that another version of the record has, too."""
        parent, entry = record.parent, (record.create_time, record.name)
        if other is None:
            into[parent, _ALL].append(entry)
        if other is None or record.state is not other.state:
            into[parent, record.state].append(entry)
        if other is None or record.keys != other.keys:
            for key in self._keys:
                into[parent, (key, _value(record, key))].append(entry)
        times = record.expire_time, record.notify_at
        if times == (None, None):
            return
        if other is None or times != (other.expire_time, other.notify_at):
            if (at := sweep_time(record)) is not None:
                into[_SWEEPS].append((at, record.name))
            if record.notify_at is not None:
                into[_DEBTS].append((micros(record.notify_at), record.name))

    def _add(self, new: Mapping[_List, list[Any]]) -> None:
        for where, entries in new.items():
            known = self._lists.setdefault(where, [])
            entries.sort()
            if not known or known[-1] < entries[0]:  # in most cases, all entries are the newest
                known += entries
            else:
                for entry in entries:
                    _add(known, entry)

    def expired(self, now: datetime, limit: int) -> list[str]:
        """Return the names of up to ``limit`` records past their expiry, the oldest first."""
        sweeps = self._lists[_SWEEPS]
        due = bisect.bisect_right(sweeps, micros(now), key=_first)
        return [name for _, name in sweeps[: min(due, limit)]]

    def due(self, now: datetime, limit: int) -> list[Record]:
        """Return up to ``limit`` records whose notifications are due, the earliest due first."""
        debts = self._lists[_DEBTS]
        due = bisect.bisect_right(debts, micros(now), key=_first)
        return [self._records[name] for _, name in debts[: min(due, limit)]]

    def next_due(self) -> datetime | None:
        """Return when the next notification is due."""
        debts = self._lists[_DEBTS]
        return moment(debts[0][0]) if debts else None

    def oldest(self, parent: str, state: State, limit: int) -> list[str]:
        """Return up to ``limit`` names of a parent's records in this state, the oldest first."""
        return [name for _, name in self._lists.get((parent, state), ())[:limit]]

    def walk(self, parent: str, after: Cursor | None, bounds: Bounds) -> Iterator[Record]:
        """Yield the records within bounds, and perhaps further records, the newest first.

        Records of the same time are in order of name.
        """
        if bounds.names is not None:
            return self._named(parent, after, bounds.names)
        orders = [self._lists.get((parent, facet), []) for facet in self._best(bounds)]
        walks = [_newest_first(entries, after, bounds.created) for entries in orders]
        entries = walks[0] if len(walks) == 1 else heapq.merge(*walks, key=_in_order)
        return map(self._records.__getitem__, map(operator.itemgetter(1), entries))

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


def _add(entries: list[_E], entry: _E) -> None:
    if not entries or entries[-1] < entry:  # in most cases, the entry is the newest
        entries.append(entry)
    else:
        bisect.insort(entries, entry)


def _delete_one(entries: list[_E], entry: _E) -> None:
    del entries[bisect.bisect_left(entries, entry)]


def _delete(entries: list[_E], gone: Collection[_E]) -> None:
    places = sorted([bisect.bisect_left(entries, entry) for entry in gone])
    first, last = places[0], places[-1] + 1
    if last - first > _NEAR * len(places):
        for place in reversed(places):
            del entries[place]
    else:  # delete all in one step: the later entries, perhaps a million, move only once
        leaving = set(places)
        entries[first:last] = [entries[n] for n in range(first, last) if n not in leaving]


def _value(record: Record, key: str) -> str:
    known: dict[str, str] = json.loads(record.keys or "{}")
    return known.get(key, UNKNOWN)


def _newest_first(entries: Sequence[_Entry], after: Cursor | None, span: Span) -> Iterator[_Entry]:
    # The list begins with the oldest entry, because appending a new entry to a list is fast.
    # A page begins with the newest entry. Entries of the same time are in ascending order of name.
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
        first = end - 1
        newest = entries[first][0]
        if first > begin and entries[first - 1][0] == newest:  # few records are of the same time
            first = bisect.bisect_left(entries, (newest, ""), begin, first)
        yield from entries[first:end]
        end = first


def _until(entries: Sequence[_Entry], now: datetime) -> int:
    """Return the number of entries up to this time."""
    return bisect.bisect_left(entries, (now + MICROSECOND, ""))


def _first(entry: tuple[int, str]) -> int:
    return entry[0]


def _micros(entry: _Entry) -> int:
    return micros(entry[0])


def _in_order(entry: _Entry) -> tuple[int, str]:
    return -micros(entry[0]), entry[1]


_NEAR: Final = 10
"""Entries that are on average closer than this are deleted from a list in one step."""

_SLICE = 100
"""The most records that a sweep removes before it releases the lock for other threads."""

_UNSETTLED: Final = 250
"""The most changed records that the lists do not have yet; to enter them all takes about 1 ms."""

_Key: TypeAlias = tuple[str, str, str]


class _FirstStarts:
    """The first start of each request key, for at most ``most`` keys; the oldest start is first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[_Key, tuple[Record, str]] = {}

    def keep(self, key: RequestKey, record: Record) -> None:
        """Remember a start; it replaces an older start with the same key."""
        known = key.method, key.caller, key.request_id
        self._known.pop(known, None)
        self._known[known] = record, key.fingerprint
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def find(self, key: RequestKey, now: datetime) -> Record | None:
        """Return the record of the first start with a key, as the record was then; None if unknown.

        Raises:
            RequestIdConflict: The key was used with another fingerprint.
        """
        known = self._known.get((key.method, key.caller, key.request_id))
        if known is None or not repeats_start(key, known[1], known[0].create_time, now):
            return None
        return known[0]

    def forget_before(self, until: datetime, limit: int) -> bool:
        """Forget up to ``limit`` starts made by ``until``; return True if more are left."""
        starts = self._known.items()
        old = itertools.takewhile(lambda start: start[1][0].create_time <= until, starts)
        keys = [key for key, _ in itertools.islice(old, limit + 1)]
        for key in keys[:limit]:
            del self._known[key]
        return len(keys) > limit


_Lane: TypeAlias = tuple[int, int]
"""A rank, and the number of a lane."""


class _Work:
    """For each method: the waiting work in order of due time, and the work that has an owner.

    Used under the store's lock.
    """

    def __init__(self) -> None:
        self._begins: defaultdict[str, OrderedDict[int, list[int]]] = defaultdict(OrderedDict)
        """For each method and lane with a rate, when work began, in order of time."""
        self.clear()

    def clear(self) -> None:
        """Forget all work, but not when work with a rate began."""
        self._waiting: dict[tuple[str, bool], list[_Entry]] = {}
        """Keyed by method, and by True if the work is suspected of killing its workers."""
        self._lanes: dict[tuple[str, bool], dict[_Lane, list[_Entry]]] = {}
        self._order: dict[tuple[str, bool], list[_Lane]] = {}
        """The lanes that have entries, lowest rank first."""
        self._held: dict[str, dict[int, dict[str, None]]] = {}
        """For each method and lane, the names of operations that have an owner."""
        self._sent: dict[str, dict[str, tuple[int, datetime]]] = {}
        """For each method and name sent to a worker, the lane and the time of the next sending."""
        self._unbegun: list[tuple[int, str]] = []

    def _add(self, record: Record) -> None:
        if record.owner:
            lanes = self._held.setdefault(record.method, {})
            lanes.setdefault(record.lane, {})[record.name] = None
        elif record.lease_until is not None:
            kind, lane = _kind(record), (record.rank, record.lane)
            entries = self._lanes.setdefault(kind, {}).setdefault(lane, [])
            if not entries:
                _add(self._order.setdefault(kind, []), lane)
            for order in (entries, self._waiting.setdefault(kind, [])):
                _add(order, (record.lease_until, record.name))
            if record.sent_time is not None:
                sent = self._sent.setdefault(record.method, {})
                sent[record.name] = record.lane, record.lease_until
            if (late := _begin_before(record)) is not None:
                _add(self._unbegun, (late, record.name))

    def _remove(self, record: Record) -> None:
        method = record.method
        if record.owner:
            del self._held[method][record.lane][record.name]
            if not self._held[method][record.lane]:
                del self._held[method][record.lane]
        elif record.lease_until is not None:
            kind, lane = _kind(record), (record.rank, record.lane)
            lanes = self._lanes[kind]
            for order in (lanes[lane], self._waiting[kind]):
                _delete_one(order, (record.lease_until, record.name))
            self._sent.get(method, {}).pop(record.name, None)
            if not lanes[lane]:
                del lanes[lane]
                _delete_one(self._order[kind], lane)
            if (late := _begin_before(record)) is not None:
                _delete_one(self._unbegun, (late, record.name))

    def move(self, changes: Iterable[tuple[Record | None, Record | None]]) -> None:
        """Follow the changes of distinct records: each before and after (None: not stored)."""
        for before, after in changes:
            was = before if before is not None and _is_work(before) else None
            now = after if after is not None and _is_work(after) else None
            if was is not None and now is not None and _place(was) == _place(now):
                continue
            if was is not None:
                self._remove(was)
            if now is not None:
                self._add(now)

    def held(self) -> Iterator[str]:
        """Yield the names of operations that have an owner."""
        lanes = itertools.chain.from_iterable(map(dict.values, self._held.values()))
        return itertools.chain.from_iterable(lanes)

    def room(self, claim: Claim, method: str, lane: int, now: int) -> tuple[int, int | None]:
        """Return how many operations of a lane a claim may take, at most one more than it wants.

        If the rate is reached, also return the time at which more operations may begin.
        """
        bounds = [claim.max_count + 1]
        if method not in claim.limits:
            return 0, None
        keyed, limit, at = method in claim.keyed, claim.limits[method], None
        if keyed and lane == FREE_LANE:
            return bounds[0], None
        sent = self._sent.get(method, {}).values() if claim.puts_off else ()
        ahead = sum(micros(until) > now and (not keyed or one == lane) for one, until in sent)
        if limit is not None:
            lanes = self._held.get(method, {})
            running = len(lanes.get(lane, ())) if keyed else sum(map(len, lanes.values()))
            bounds.append(limit - running - ahead)
        if method in claim.rates:
            most, span = claim.rates[method][0], claim.rates[method][1] // MICROSECOND
            begun = self._begins[method].get(lane if keyed else 0, [])
            over = bisect.bisect_right(begun, now + span)  # the clock may have been set back
            count = over - bisect.bisect_right(begun, now - span, hi=over)
            bounds.append(most - count - ahead)
            at = begun[over - most] + span if count >= most else None
        return max(0, min(bounds)), at

    def note_begin(self, claim: Claim, record: Record, now: int) -> bool:
        """If the method of a record has a rate, note that its work begins, and return True."""
        if claim.puts_off or record.method not in claim.rates:
            return False
        lane = record.lane if record.method in claim.keyed else 0
        span = claim.rates[record.method][1] // MICROSECOND
        lanes = self._begins[record.method]
        begun = lanes.setdefault(lane, [])
        del begun[bisect.bisect_right(begun, now + span) :]
        del begun[: bisect.bisect_right(begun, now - span)]
        bisect.insort(begun, now)
        lanes.move_to_end(lane)
        while lanes[first := next(iter(lanes))][-1] <= now - span:
            del lanes[first]
        return True

    def due(self, claim: Claim, now: datetime) -> tuple[list[str], list[datetime]]:
        """Return the names that a claim may take, in order, and when rates let more work begin."""
        found: list[Due] = []
        at = micros(now)
        rooms: dict[tuple[str, int], tuple[int, int | None]] = {}
        for method, kind in itertools.product(claim.limits, claim.kinds):
            served: set[int] = set()
            for place, (rank, lane) in enumerate(self._in_turn((method, kind), claim.after_lane)):
                entries = self._lanes[method, kind][rank, lane]
                if entries[0][0] > now:
                    continue
                group = method, lane if method in claim.keyed else 0
                if group not in rooms:
                    rooms[group] = self.room(claim, *group, at)
                due = itertools.takewhile(lambda entry: entry[0] <= now, entries)
                free = (entry for entry in due if entry[1] not in claim.excluded)
                for moment_due, name in itertools.islice(free, rooms[group][0]):
                    found.append(Due(method, lane, rank, place, micros(moment_due), name))
                    served.add(group[1])
                # A later claim reads the remaining lanes.
                if len(served) > max(claim.max_count, MOST_LANES):
                    break
        names: list[str] = []
        taken: Counter[tuple[str, int]] = Counter()
        for one in in_turn(found, claim.keyed):
            group = one.method, one.lane if one.method in claim.keyed else 0
            taken[group] += 1
            if taken[group] <= rooms[group][0]:
                names.append(one.name)
        return names, [moment(time) for _, time in rooms.values() if time is not None]

    def _in_turn(self, kind: tuple[str, bool], start: int) -> Iterator[_Lane]:
        """Yield the lanes, by ascending rank; within a rank, lanes after ``start`` come first."""
        order, begin = self._order.get(kind, []), 0
        while begin < len(order):
            rank = order[begin][0]
            end = bisect.bisect_left(order, (rank + 1, 0), begin)
            first = bisect.bisect_right(order, (rank, start), begin, end)
            yield from itertools.islice(order, first, end)
            yield from itertools.islice(order, begin, first)
            begin = end

    def count(self, most: int) -> int:
        """Count the waiting operations, up to ``most``."""
        return min(most, sum(map(len, self._waiting.values())))

    def waiting(self, now: datetime) -> list[WaitingWork]:
        """Count the waiting and due operations of each method, with the earliest due time."""
        found: dict[str, WaitingWork] = {}
        for (method, _), entries in self._waiting.items():
            if entries:
                first, count = entries[0][0], len(entries)
                due = _until(entries, now)
                if (other := found.get(method)) is not None:
                    first, count = min(first, other.due_time), count + other.count
                    due += other.due
                found[method] = WaitingWork(method, count, first, due)
        return [found[method] for method in sorted(found)]

    def next_due(self, claim: Claim, now: datetime) -> list[datetime]:
        """Return the times at which more work of a claim's methods will be due."""
        kinds = itertools.product(claim.limits, claim.kinds)
        orders = [self._waiting.get(kind, []) for kind in kinds]
        places = [_until(entries, now) for entries in orders]
        return [e[place][0] for e, place in zip(orders, places, strict=True) if place < len(e)]

    def unbegun(self, now: int, limit: int) -> tuple[list[str], int | None]:
        """Return the names of work past its ``begin_before``, and the next ``begin_before``."""
        late = bisect.bisect_right(self._unbegun, now, key=_first)
        next_late = self._unbegun[late][0] if late < len(self._unbegun) else None
        return [name for _, name in self._unbegun[: min(late, limit)]], next_late


def _is_work(record: Record) -> bool:
    """Return True if the work of a record waits or has an owner; else the queue ignores it."""
    return record.lease_until is not None or record.owner != ""


def _kind(record: Record) -> tuple[str, bool]:
    return record.method, record.lost_attempts >= SUSPECT


def _place(record: Record) -> tuple[object, ...]:
    """Return all that the queue knows of a record."""
    where = _kind(record), record.rank, record.lane, record.owner, record.lease_until
    return *where, record.sent_time, _begin_before(record)


def _begin_before(record: Record) -> int | None:
    late = record.begin_before
    return None if late is None or record.attempt else micros(late)


def _taken(record: Record, claim: Claim, now: datetime) -> Record:
    if not claim.puts_off:
        taken = begin(claim.owner, claim.lease_until, now)(record)
        assert taken is not None  # no claim removes a record
        return taken
    sent = record.sent_time or now
    again = max(claim.lease_until, now + (now - sent))
    return record.next_version(lease_until=again, sent_time=sent)


class _Counts:
    """Counts by time step. Used under the store's lock."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[int, dict[str, dict[str, float]]]]
        self._steps = {step: {} for step in STEP_MINUTES}
        """Keyed by step length, then first minute (the oldest first), then method."""

    def add(self, minute: datetime, counts: Counts, oldest: int) -> None:
        """Add counts, and forget the steps that begin before the minute ``oldest``."""
        for step, first in steps_of(minute).items():
            steps = self._steps[step]
            counted = steps.setdefault(first, {})
            for method, more in counts.items():
                counted[method] = added(counted.get(method, {}), more)
            for old in [one for one in steps if one < oldest]:
                del steps[old]

    def since(self, first: int, step: int) -> Iterator[MinuteCounts]:
        """Yield the counts of a step and of all later steps, the newest first."""
        steps = self._steps[step]
        for minute in sorted((one for one in steps if one >= first), reverse=True):
            for method, counts in sorted(steps[minute].items(), reverse=True):
                yield MinuteCounts(step_time(minute), method, counts)


class NoChanges:
    """Change subscription of a store that only one process uses."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def next_changes(self, seconds: float) -> Collection[str]:
        """Wait ``seconds`` seconds, or until closed, and return no names."""
        self._closed.wait(seconds)
        return ()

    def close(self) -> None:
        """End a waiting ``next_changes``. There is nothing to free."""
        self._closed.set()


class MemoryStore(PerProcess):
    """Store that keeps records in a dictionary behind a lock. ``clock`` returns the time in UTC.

    ``request_ids`` is the maximum number of request ids kept, each for at most 24 hours. Beyond it,
    the oldest id is forgotten, and a start that repeats this id begins a second operation.

    Raises:
        DeclarationError: The clock is not a function, or ``request_ids`` is not an integer from 1.
    """

    reads_block = False
    writes_block = False
    shared = False

    def __init__(
        self, clock: Callable[[], datetime] | None = None, *, request_ids: int = 100_000
    ) -> None:
        if clock is not None:
            check_function("clock", clock)
        check_count("request_ids", request_ids)
        self._clock = clock or functools.partial(datetime.now, UTC)
        self._after_fork()
        self._records: dict[str, Record] = {}
        self._changed: dict[str, Record | None] = {}
        """Changed records, by name, as the lists and the queue know them; None: not known."""
        self._half_settled = False
        self._settled_lists = OrderedRecords(self._records)
        self._targets: dict[str, str] = {}
        self._settled_work = _Work()
        self._paused: dict[str, datetime] = {}
        self._workers: dict[str, Worker] = {}
        self._schedules: dict[str, Schedule] = {}
        self._inputs: dict[str, AnyMessage] = {}
        self._checkpoints: dict[str, dict[str, AnyMessage]] = {}
        self._starts = _FirstStarts(request_ids)
        self._counts = _Counts()
        self._secret = secrets.token_bytes(KEY_BYTES)

    def notify_others(self, name: str) -> None:
        """Do nothing: no other process uses this store."""

    def listen(self) -> NoChanges:
        """Return a subscription without changes: no other process can write to this store."""
        return NoChanges()

    def poll_states(self, names: Collection[str]) -> StateSummary:
        """Read which of these operations have ended, and which have a cancel request."""
        now = self._clock()
        found = {name: self._records.get(name) for name in names}
        return StateSummary(
            finished=frozenset(
                n for n, r in found.items() if r is None or r.finished_or_hidden(now)
            ),
            cancel_requested=frozenset(
                n for n, r in found.items() if r is not None and r.cancel_pending
            ),
        )

    def now(self) -> datetime:
        """Return the time by the store's clock."""
        return self._clock()

    def secret(self) -> bytes:
        """Return the key of this store's page tokens."""
        return self._secret

    def insert(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Add a record, or find the record that the same request added before."""
        refuse_untextual(record, key)
        with self._lock:
            first = None if key is None else self._starts.find(key, record.create_time)
            if first is not None:
                present = self._records.get(first.name)
                if present is None or not present.visible(record.create_time):
                    present = first
                return Inserted(present, fresh=False)
            if record.target and record.target in self._targets:
                raise TargetBusy(record.target)
            if record.name in self._records:
                raise taken(record.name)
            if not check_only:
                if len(self._changed) >= _UNSETTLED:
                    self._settle()
                self._changed.setdefault(record.name, None)
                self._records[record.name] = record
                self._inputs[record.name] = request
                if record.target:
                    self._targets[record.target] = record.name
                if key is not None:
                    self._starts.keep(key, record)
            return Inserted(record, fresh=True)

    def insert_later(
        self, record: Record, request: AnyMessage, key: RequestKey | None, done: Done[Inserted]
    ) -> None:
        """Add a record at once."""
        done(self.insert(record, request, key), None)

    def request(self, name: str) -> AnyMessage:
        """Read the packed request of an operation."""
        try:
            return self._inputs[name]
        except KeyError:
            raise OperationNotFound(name) from None

    def get(self, name: str) -> Record:
        """Read the record of this name."""
        record = self._records.get(name)
        if record is None:
            raise OperationNotFound(name)
        return record

    def find(self, names: Collection[str], max_bytes: int = READ_BYTES) -> Found:
        """Read the existing records of these names."""
        wanted = list(dict.fromkeys(names))
        found: list[Record] = []
        for place, name in enumerate(wanted):
            record = self._records.get(name)
            if record is None:
                continue
            max_bytes -= record.weight
            if found and max_bytes < 0:
                return Found(found, wanted[place:])
            found.append(record)
        return Found(found)

    def update(self, name: str, change: Change) -> Record | None:
        """Replace or remove a record, all or nothing."""
        with self._lock:
            record = self._records.get(name)
            if record is None:
                raise OperationNotFound(name)
            changed = change(record)
            if changed is None:
                self._drop(record)
            elif changed is not record:
                self._replace(changed)
            return changed

    def update_later(self, name: str, change: Change, done: Done[Record | None]) -> None:
        """Replace or remove a record at once."""
        done(self.update(name, change), None)

    def checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> None:
        """Store a checkpoint of the current attempt."""
        with self._lock:
            check_reporting(self.get(name), attempt)
            self._checkpoints.setdefault(name, {})[key] = value

    def checkpoint_later(
        self, name: str, attempt: int, key: str, value: AnyMessage, done: Done[None]
    ) -> None:
        """Store a checkpoint at once."""
        self.checkpoint(name, attempt, key, value)
        done(None, None)

    def checkpoints(self, name: str) -> dict[str, AnyMessage]:
        """Read the checkpoints of an operation, by key."""
        with self._lock:
            return dict(self._checkpoints.get(name, {}))

    def page(
        self,
        parent: str,
        after: Cursor | None,
        limit: int,
        prefilter: Test = EVERYTHING,
        scan: int = SCAN,
        max_bytes: int = READ_BYTES,
    ) -> Page:
        """Read up to ``limit`` visible records of one parent, newest first."""
        now, bounds = self._clock(), bounds_of(prefilter)
        found: list[Record] = []
        with self._lock:
            for looked, record in enumerate(self._lists.walk(parent, after, bounds), 1):
                if record.visible(now):
                    max_bytes -= record.weight
                    if found and max_bytes < 0:
                        return Page(found, place_of(found[-1]))
                    found.append(record)
                if len(found) == limit or looked == scan:
                    return Page(found, place_of(record))
        return Page(found, None)

    def index(self, keys: Collection[str]) -> None:
        """Keep lists by these metadata keys, too."""
        with self._lock:
            self._lists.index(keys)

    def claim(self, claim: Claim) -> Claimed:
        """Begin a new attempt at waiting operations, in the order of :meth:`Store.claim`."""
        now = self._clock()
        with self._lock:
            times: list[datetime] = []
            work = self._work
            if self._paused:
                limits = {m: n for m, n in claim.limits.items() if m not in self._paused}
                claim = attrs.evolve(claim, limits=limits)
            if claim.name:
                found = self._wanted(claim, now)
            else:
                found, times = work.due(claim, now)
                times += work.next_due(claim, now)
            works: list[tuple[Record, AnyMessage]] = []
            more = len(found) > max(0, claim.max_count)
            for name in found[: max(0, claim.max_count)]:
                record = _taken(self._records[name], claim, now)
                self._replace(record)
                more = work.note_begin(claim, record, micros(now)) or more
                works.append((record, self._inputs[name]))
        return Claimed(works, more, min(times, default=None))

    def _wanted(self, claim: Claim, now: datetime) -> list[str]:
        record = self._records.get(claim.name)
        if record is None or not record.waits or claim.name in claim.excluded:
            return []
        until = now if record.sent_time else record.lease_until
        if until is not None and until > now:
            return []
        room, _ = self._work.room(claim, record.method, record.lane, micros(now))
        return [claim.name] if room else []

    def pause(self, method: str) -> None:
        """Stop claims from taking work of a method."""
        with self._lock:
            self._paused.setdefault(method, self._clock())

    def resume(self, method: str) -> None:
        """Let claims take work of a method again."""
        with self._lock:
            self._paused.pop(method, None)

    def paused(self) -> dict[str, datetime]:
        """Read the paused methods, with the times of their pauses."""
        with self._lock:
            return dict(self._paused)

    def count_waiting(self, most: int) -> int:
        """Count the waiting operations, up to ``most``."""
        with self._lock:
            return self._work.count(most)

    def waiting(self) -> list[WaitingWork]:
        """Count the waiting operations of each method."""
        with self._lock:
            return self._work.waiting(self._clock())

    def renew(self, worker: Worker) -> Renewed | None:
        """Record that a worker is alive; return None if it counts as lost."""
        now = self._clock()
        with self._lock:
            known = self._workers.get(worker.owner)
            if known is not None and known.lost:
                return None
            if known is not None:
                said = ("methods", "capacity", "seen_time", "alive_until")
                worker = attrs.evolve(known, **{name: getattr(worker, name) for name in said})
            self._workers[worker.owner] = worker
            self._forget_workers(now)
            mine = [(r, until) for r, until in self._leases() if r.owner == worker.owner]
        return renewed_of((r.name, r.cancel_requested, until <= now) for r, until in mine)

    def leave(self, owner: str) -> None:
        """Forget a worker."""
        with self._lock:
            self._workers.pop(owner, None)

    def workers(self) -> list[Worker]:
        """Read the workers, the oldest first."""
        with self._lock:
            ends: dict[str, list[datetime]] = {}
            for record, until in self._leases():
                ends.setdefault(record.owner, []).append(until)
            found = [(worker, ends.get(worker.owner, ())) for worker in self._workers.values()]
        found.sort(key=lambda one: (one[0].start_time, one[0].owner))
        return [
            attrs.evolve(worker, running=len(held), held_until=max(held, default=None))
            for worker, held in found
        ]

    def orphans(self, methods: Collection[str], limit: int) -> Orphans:
        """Read records in progress whose worker is lost."""
        with self._lock:
            latest: dict[str, int] = {}
            lost: list[_Entry] = []
            for record, until in self._leases():
                latest[record.owner] = max(micros(until), latest.get(record.owner, 0))
                worker = self._workers.get(record.owner)
                if worker is not None and worker.lost and record.method in methods:
                    lost.append((until, record.name))
            known = [(owner, self._workers.get(owner), until) for owner, until in latest.items()]
            records = [self._records[name] for _, name in sorted(lost)[:limit]]
            now = self._clock()
            late, next_late = self._work.unbegun(micros(now), limit)
            unbegun = [self._records[name] for name in late]
        holds: list[Hold] = [
            (owner, None if w is None else micros(w.alive_until), w is not None and w.lost, until)
            for owner, w, until in known
        ]
        if next_late is not None:
            holds.append(("", None, False, next_late))
        return orphans_of(holds, records, (), now, unbegun)

    def lose(self, owner: str, alive_until: datetime | None) -> bool:
        """Mark a worker as lost, unless it has renewed since."""
        with self._lock:
            known = self._workers.get(owner)
            if known is None and alive_until is None:
                known = unknown_worker(owner, self._clock())
            elif known is None or (not known.lost and known.alive_until != alive_until):
                return False
            self._workers[owner] = attrs.evolve(known, lost=True)
            return True

    def schedules(self) -> list[Schedule]:
        """Read all schedules, by name."""
        with self._lock:
            return [self._schedules[name] for name in sorted(self._schedules)]

    def note_tick(self, schedule: Schedule) -> bool:
        """Store a schedule if it follows the stored version; return True if it does."""
        with self._lock:
            known = self._schedules.get(schedule.name)
            if known is not None and known.version != schedule.version - 1:
                return False
            self._schedules[schedule.name] = schedule
            return True

    def _forget_workers(self, now: datetime) -> None:
        holding = {record.owner for record, _ in self._leases()}
        for owner, worker in [*self._workers.items()]:
            if worker.seen_time <= now - FORGOTTEN and owner not in holding:
                del self._workers[owner]

    def _leases(self) -> Iterator[tuple[Record, datetime]]:
        for record in map(self._records.__getitem__, self._work.held()):
            if record.lease_until is not None:
                yield record, record.lease_until

    def expire(self, limit: int) -> Expired:
        """Remove records past their expiry, and old request keys, a few at a time."""
        now, more = self._clock(), True
        removed: list[Record] = []
        for left in range(limit, 0, -_SLICE):
            with self._lock:
                over = self._lists.expired(now, min(left, _SLICE))
                some = [self._records[name] for name in over]
                self._drop(*some)
                more = self._starts.forget_before(now - REQUEST_LIFE, min(left, _SLICE))
                more = more or bool(self._lists.expired(now, 1))
            removed += some
            if not more:
                break
        names = tuple(record.name for record in removed)
        return Expired(names, Counter(record.method for record in removed), more)

    def add_counts(self, minute: datetime, counts: Counts) -> None:
        """Add counts to the stored counts of a minute."""
        with self._lock:
            self._counts.add(minute, counts, oldest_minute(self._clock()))

    def read_counts(
        self, since: datetime, limit: int = COUNTS_READ, step_minutes: int = 1
    ) -> list[MinuteCounts]:
        """Read the counts of the steps that end after ``since``, the oldest first."""
        first = step_since(since, step_minutes)
        with self._lock:
            found = list(itertools.islice(self._counts.since(first, step_minutes), limit))
        return found[::-1]

    def read_load(self, parents: Collection[str], limit: int) -> Load:
        """Read the work in progress under these parents, the oldest first."""
        rows: list[LoadRow] = []
        with self._lock:
            for parent in dict.fromkeys(parents):
                names = self._lists.oldest(parent, State.IN_PROGRESS, limit + 1 - len(rows))
                for record in map(self._records.__getitem__, names):
                    within = len(rows) < limit
                    created = micros(record.create_time)
                    held = record.method, record.owner, record.waits
                    rows.append((*held, within, not within, created, record.name))
        return load_of(rows)

    def claim_due(self, until: datetime, limit: int) -> list[Record]:
        """Claim records whose notifications are due; set their next due time to ``until``."""
        with self._lock:
            due = self._lists.due(self._clock(), limit)
            claimed = [record.next_version(notify_at=until) for record in due]
            for record in claimed:
                self._replace(record)
        return claimed

    def next_due(self) -> datetime | None:
        """Read when the next notification is due; None if none is pending."""
        with self._lock:
            return self._lists.next_due()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def reopen(self) -> None:
        """Do nothing: the records are still there."""

    @property
    def _lists(self) -> OrderedRecords:
        self._settle()
        return self._settled_lists

    @property
    def _work(self) -> _Work:
        self._settle()
        return self._settled_work

    def _settle(self) -> None:
        """Bring the lists and the queue up to date, because they are read, or much has changed.

        Short work has often ended by then, so most of its states never enter the lists.
        """
        if not (self._changed or self._half_settled):
            return
        changes: list[tuple[Record | None, Record | None]]
        if self._half_settled:  # an exception, such as that of Ctrl-C, came in between
            self._settled_lists.clear()
            self._settled_work.clear()
            changes = [(None, record) for record in self._records.values()]
        else:
            changes = [(was, self._records.get(name)) for name, was in self._changed.items()]
        self._half_settled = True
        self._changed.clear()
        self._settled_lists.move(changes)
        self._settled_work.move(changes)
        self._half_settled = False

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # from now on, this forked process has its own records

    def _replace(self, record: Record) -> None:
        name = record.name
        if len(self._changed) >= _UNSETTLED:
            self._settle()
        self._changed.setdefault(name, self._records[name])
        self._records[name] = record
        if (record.target or self._checkpoints) and record.done:
            self._free(record)
        if not record.keeps_request:
            self._inputs.pop(name, None)

    def _free(self, record: Record) -> None:
        if self._checkpoints:
            self._checkpoints.pop(record.name, None)
        if record.target and self._targets.get(record.target) == record.name:
            del self._targets[record.target]

    def _drop(self, *records: Record) -> None:
        for record in records:
            if len(self._changed) >= _UNSETTLED:
                self._settle()
            self._free(record)
            self._inputs.pop(record.name, None)
            self._changed.setdefault(record.name, record)
            del self._records[record.name]
