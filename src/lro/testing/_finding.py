"""Checks of stores: find records by time, filter and page (spec §3.3, §3.4)."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from lro._base.errors import TargetBusy
from lro._base.status import AnyMessage, Code, Json, Status
from lro._engine.store_port import Inserted, Store, place_of
from lro._filters.prefilter import (
    EVERYTHING,
    NOTHING,
    AllOf,
    AnyOf,
    CancelIs,
    Column,
    Created,
    Ended,
    InState,
    KeyIn,
    NameIn,
    NumberIn,
    Span,
    Test,
    TextContains,
    all_of,
    any_of,
)
from lro._model.operation import Record, State, delete, request_cancel
from lro._model.page_tokens import KEY_BYTES, Cursor
from lro.stores._rows import COLUMNS, micros, to_row
from lro.testing._samples import (
    ManualClock,
    end_of,
    expect,
    gone,
    held,
    ids,
    insert,
    record_of,
    refuses,
    same,
    together,
)


def pages_are_newest_first_then_by_name(store: Store, clock: ManualClock) -> None:
    """Records of equal times are sorted by name, in code point order, not UTF-16 (spec §3.4(2))."""
    for unique_id in ("b", "\U00010000", "a", "\uffff", "B", "a/a", "a-"):
        insert(store, record_of(clock, unique_id))
    clock.advance(microseconds=1)
    insert(store, record_of(clock, "z"))
    wanted = ["z", "B", "a", "a-", "a/a", "b", "\uffff", "\U00010000"]
    same(ids(store.page("", None, 99).records), wanted, "the whole page")


def page_continues_after_a_cursor(store: Store, clock: ManualClock) -> None:
    """A page continues after its cursor, even if no record is there any more (spec §3.4(7))."""
    for unique_id in "edcba":
        insert(store, record_of(clock, unique_id))
        clock.advance(seconds=1)
    first = store.page("", None, 2).records
    same(ids(first), ["a", "b"], "the first page")
    place = Cursor(first[-1].create_time, first[-1].name)
    store.update(first[-1].name, delete(clock()))
    same(ids(store.page("", place, 2).records), ["c", "d"], "the second page")
    between = Cursor(first[-1].create_time - timedelta(milliseconds=500), "operations/x")
    same(ids(store.page("", between, 9).records), ["c", "d", "e"], "after a place between two")


def pages_have_one_parent(store: Store, clock: ManualClock) -> None:
    """A page has only records of its own parent, none of parents above or below (spec §3.3(3))."""
    parents = ("", "projects/p", "projects/p/locations/l", "projects/pp", "projects/P")
    for parent in parents:
        insert(store, record_of(clock, "a/b", parent=parent))
    for parent in parents:
        found = store.page(parent, None, 9).records
        same([record.parent for record in found], [parent], f"the page of {parent!r}")
    same(
        list(store.page("projects", None, 9).records), [], "the page of a parent without operations"
    )


def pages_exclude_hidden_and_expired_records(store: Store, clock: ManualClock) -> None:
    """Pages have no hidden or expired records, and do not count them towards the limit."""
    for unique_id in "abcd":
        insert(store, record_of(clock, unique_id, target=unique_id))
    store.update("operations/a", delete(clock()))
    store.update("operations/b", end_of(clock, days=1))
    clock.advance(days=1, microseconds=-1)
    same(ids(store.page("", None, 2).records), ["b", "c"], "just before the expiry")
    clock.advance(microseconds=1)
    same(ids(store.page("", None, 2).records), ["c", "d"], "at the expiry")


def walk_ends_after_the_last_record(store: Store, clock: ManualClock) -> None:
    """Paging returns all records, and then ends, however few records a call reads."""
    for number in range(9):
        insert(store, record_of(clock, str(number), target=str(number)))
        clock.advance(seconds=number % 2)  # so that some creation times are equal
    for number in (0, 4, 5, 8):
        store.update(f"operations/{number}", delete(clock()))
    for scan in (1, 2, 3, 100):
        for limit in (1, 2, 100):
            found = list(_walked(store, limit=limit, scan=scan))
            same(sorted(ids(found)), ["1", "2", "3", "6", "7"], f"all of a walk by {scan}")
            same(ids(found), ids(store.page("", None, 99).records), f"the order by {scan}")


def pages_are_bounded_in_bytes(store: Store, clock: ManualClock) -> None:
    """A page ends before the record that would exceed ``max_bytes`` (spec §3.4(9))."""
    for number, size in enumerate((10, 4000, 4000, 10, 10, 9000, 10, 4000)):
        metadata = AnyMessage("type.googleapis.com/a.M", {"n": number, "s": "\u00e9" * (size // 2)})
        record = record_of(clock, str(number), metadata=metadata, keys=_keys(k1="ab"[number % 2]))
        insert(store, record)
        clock.advance(seconds=1)
    store.index({"k1"})
    either = KeyIn("k1", frozenset({"a", "b"}))
    states = InState(frozenset({State.IN_PROGRESS, State.FAILED}))
    for test in (EVERYTHING, either, states):
        walked = list(_pages(store, test, max_bytes=8700))
        same(walked, [["7", "6"], ["5"], ["4", "3", "2", "1"], ["0"]], f"the pages of {test}")
        least = list(_pages(store, test, max_bytes=1))
        same(least, [[str(n)] for n in range(7, -1, -1)], "the pages of one record each")
    weights = [record.weight for record in store.page("", None, 9).records[2:5]]
    exact = store.page("", Cursor(clock(), ""), 9, EVERYTHING, 99, 10**9).records
    same(len(exact), 8, "how many are on a page without bound")
    for less, count in ((0, 3), (1, 2)):
        page = store.page("", place_of(exact[1]), 9, EVERYTHING, 99, sum(weights) - less)
        same(len(page.records), count, f"how many fit, {less} byte less than three records have")


def _pages(store: Store, test: Test, max_bytes: int) -> Iterator[list[str]]:
    after: Cursor | None = None
    while True:
        page = store.page("", after, 9, test, 99, max_bytes)
        yield ids(page.records)
        if page.reached is None:
            return
        after = page.reached


def page_has_all_matching_records(store: Store, clock: ManualClock) -> None:
    """A page has all matching records in order; it may also have records that do not match."""
    _fill(store, clock)
    _compare(store, _tests(clock))


def index_finds_every_record(store: Store, clock: ManualClock) -> None:
    """A prefilter finds records that were stored or changed before or after the index was made."""
    _fill(store, clock)
    store.index({"k1"})
    store.index({"k1", "k2"})
    _compare(store, _tests(clock))
    insert(store, record_of(clock, "late", keys=_keys(k1="a")))
    insert(store, record_of(clock, "unknown", keys=_keys(k9="a")))
    for record in store.page("", None, 99).records:
        if record.keys is not None:
            changed = _keys(k1="b") if "a" in record.keys else _keys(k1="a", k2="c")
            store.update(record.name, functools.partial(_rekeyed, keys=changed))
    _compare(store, _tests(clock))
    store.update("operations/late", lambda _: None)
    _compare(store, _tests(clock))


def _rekeyed(record: Record, keys: str) -> Record:
    return record.with_keys(keys).next_version()


def _walked(
    store: Store, test: Test = EVERYTHING, *, limit: int = 3, scan: int = 4
) -> Iterator[Record]:
    after: Cursor | None = None
    while True:
        page = store.page("", after, limit, test, scan)
        expect(len(page.records) <= limit, f"at most {limit} on a page")
        yield from page.records
        if page.reached is None:
            return
        expect(after is None or _order(page.reached) > _order(after), "each page goes on")
        after = page.reached


def _order(place: Cursor) -> tuple[float, str]:
    return -place.create_time.timestamp(), place.name


def _compare(store: Store, tests: Collection[Test]) -> None:
    everything = list(_walked(store))
    order = [record.name for record in everything]
    for test in tests:
        wanted = [record.name for record in everything if _meets(test, record)]
        for limit, scan in ((2, 3), (100, 1000)):
            found = [record.name for record in _walked(store, test, limit=limit, scan=scan)]
            same([name for name in order if name in found], found, f"the order of {test}")
            missing = set(wanted) - set(found)
            expect(not missing, f"{test} has {sorted(missing)} too")


def _fill(store: Store, clock: ManualClock) -> None:
    ends = (
        None,
        AnyMessage(_URL, {"a": 5}),
        Status(Code.ABORTED, "no"),
        Status(Code.CANCELLED, ""),
    )
    for number in range(24):
        metadata = AnyMessage(_URL, _PAYLOADS[number % len(_PAYLOADS)])
        keys = (None, _keys(k1="a"), _keys(k1="b", k2="c"), _keys(k2="-"))[number % 4]
        record = record_of(clock, f"{number:02}", metadata=metadata, keys=keys)
        insert(store, record)
        if number % 5 == 0:
            store.update(record.name, request_cancel(clock()))
        clock.advance(seconds=number % 3)
        if number % 6 < 4 and (number % 6 != 3 or number % 5 == 0):
            store.update(record.name, end_of(clock, ends[number % 6]))
    insert(store, record_of(clock, "other", parent="projects/p", keys=_keys(k1="a")))


_URL: Final = "type.googleapis.com/lro.testing.Metadata"
_PAYLOADS: Final[tuple[Json | bytes, ...]] = (
    {"text": "abc", "n": 5, "flag": True, "inner": {"n": "7"}},
    {"text": "Stra\u00dfe \u2713", "n": -1.5},
    {"text": 'quo"ted\\', "n": "Infinity"},
    {"text": "\u0000", "n": 10**30},
    {},
    b"abc",
)


def _keys(**values: str) -> str:
    return json.dumps(values, separators=(",", ":"))


def _tests(clock: ManualClock) -> list[Test]:
    """Return conditions of all kinds, alone and in pairs."""
    now = int(clock().timestamp() * 1e6)
    spans = [Span(now - 9_000_000, now), Span(low=now), Span(high=now - 5_000_000), Span()]
    kinds: list[Test] = [
        EVERYTHING,
        NOTHING,
        *(InState(frozenset({state})) for state in State),
        InState(frozenset({State.FAILED, State.CANCELLED, State.IN_PROGRESS})),
        *map(Created, spans),
        *map(Ended, spans),
        CancelIs(True),
        CancelIs(False),
        NameIn(frozenset({"operations/03", "operations/11", "operations/none"})),
        *(KeyIn(key, frozenset(values)) for key in ("k1", "k2") for values in ("a", "bc", "-")),
        TextContains((Column.METADATA,), ('"abc"',)),
        TextContains((Column.METADATA, Column.RESULT), ('"a":5',)),
        TextContains(tuple(Column), ("strasse",), folded=True),
        TextContains((Column.NAME,), ("operations/1",)),
        TextContains((Column.RESULT,), ('"a":', "5")),
        NumberIn(column=Column.METADATA, path=("n",), low=4.0, high=5.0),
        NumberIn(column=Column.METADATA, path=("n",), low=1e20, high=None, or_text=True),
        NumberIn(column=Column.METADATA, path=("inner", "n"), low=None, high=7.0),
    ]
    count = len(kinds)
    pairs = [(kinds[n], kinds[(n + step) % count]) for step in (3, 10) for n in range(count)]
    return [*kinds, *map(all_of, pairs), *map(any_of, pairs)]


def _meets(test: Test, record: Record) -> bool:
    """Return whether the record matches a condition."""
    match test:
        case AllOf(items):
            return all(_meets(item, record) for item in items)
        case AnyOf(items):
            return any(_meets(item, record) for item in items)
        case NameIn(names):
            return record.name in names
        case InState(states):
            return record.state in states
        case Created(span):
            return _within(span, record.create_time)
        case Ended(span):
            return record.end_time is not None and _within(span, record.end_time)
        case CancelIs(cancel):
            return record.cancel_requested is cancel
        case KeyIn(key, values):
            known = json.loads(record.keys or "{}")
            return key not in known or known[key] in values
        case TextContains(columns, pieces, folded):
            texts = [_text(column, record, folded=folded) for column in columns]
            return any(all(piece in text for piece in pieces) for text in texts)
        case _:
            number = _number(test.column, test.path, record)
            if number is None:
                return False
            low = number if test.low is None else test.low
            return low <= number <= (number if test.high is None else test.high)


def _within(span: Span, moment: datetime) -> bool:
    at = micros(moment)
    return (span.low is None or at >= span.low) and (span.high is None or at <= span.high)


def _text(column: Column, record: Record, *, folded: bool) -> str:
    text = dict(zip(COLUMNS, to_row(record), strict=True))[column.value]
    found = text if isinstance(text, str) else ""
    return found.casefold() if folded else found


def _number(column: Column, path: tuple[str, ...], record: Record) -> float | None:
    packed = record.metadata if column is Column.METADATA else record.response
    value = None if packed is None else packed.payload
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return float(value) if value.isdecimal() else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def records_are_found_by_name(store: Store, clock: ManualClock) -> None:
    """Each named record is found once, even if callers cannot see it any more."""
    names = [f"operations/{unique_id}" for unique_id in ("running", "done", "expired", "hidden")]
    for unique_id in ("running", "done", "expired", "hidden", "other"):
        insert(store, held(clock, unique_id))
    insert(store, record_of(clock, "deleted"))
    store.update("operations/done", end_of(clock))
    store.update("operations/expired", end_of(clock, days=1))
    for unique_id in ("hidden", "deleted"):
        store.update(f"operations/{unique_id}", delete(clock()))
    clock.advance(days=1)
    asked = [*names, names[0], "operations/deleted", "operations/never", "", "a\0", "a\ud800"]
    wanted = sorted((store.get(name) for name in names), key=_by_name)
    same(_found(store, asked), wanted, "the records found")
    same(_found(store, frozenset(names)), wanted, "those of a set of names")
    same(_found(store, ()), [], "those of no names")


def found_records_are_current(store: Store, clock: ManualClock) -> None:
    """After a change or removal, ``find`` does not return a cached record."""
    names = [insert(store, held(clock, unique_id)).record.name for unique_id in "abc"]
    store.find(names)
    store.update(names[0], request_cancel(clock()))
    store.update(names[2], lambda _: None)
    wanted = [store.get(name) for name in names[:2]]
    for time in ("first", "second"):
        same(_found(store, names), wanted, f"the records, the {time} time")


def many_names_are_found_in_one_read(store: Store, clock: ManualClock) -> None:
    """A call can find more names than a statement can have parameters, with any characters."""
    ids_ = [f"{n}\u2603'\"\\,{{}}" for n in range(3000)]
    there = [insert(store, record_of(clock, unique_id)).record for unique_id in ids_[::1000]]
    found = _found(store, [f"operations/{unique_id}" for unique_id in ids_])
    same(found, sorted(there, key=_by_name), "those that are there")


def found_records_are_bounded_in_bytes(store: Store, clock: ManualClock) -> None:
    """Names whose records exceed ``max_bytes`` are returned in ``rest``, for another call."""
    packed = AnyMessage("type.googleapis.com/a.M", {"s": "\u00e9" * 2000})
    names = [insert(store, record_of(clock, one, metadata=packed)).record.name for one in "abcde"]
    weight = store.get(names[0]).weight
    for changed in (names, names[:2], ()):
        for name in changed:
            store.update(name, lambda record: record.next_version())
        for room, count in ((5 * weight, 5), (5 * weight - 1, 4), (2 * weight, 2), (1, 1)):
            found = store.find([*names, "operations/never"], room)
            same(len(found.records), count, f"how many records of {weight} bytes {room} allow")
            known = {record.name for record in found.records}
            expect(known.isdisjoint(found.rest), "none is both found and left")
            expect(known | set(found.rest) >= set(names), "each is found or left")
            if count == 5:
                same(list(found.rest), [], "those left, if all were found")


def exclusive_target_has_one_operation(store: Store, clock: ManualClock) -> None:
    """A second operation on a target is refused; other targets are free (spec §9.5)."""
    insert(store, record_of(clock, target="t"))
    busy = record_of(clock, "b", target="t")
    error = refuses(TargetBusy, lambda: insert(store, busy), "the target is busy")
    same(error.target, "t", "the target that the error names")
    gone(store, busy.name)
    for number, target in enumerate(("u", "", "")):
        expect(insert(store, record_of(clock, str(number), target=target)).fresh, "is free")


def end_of_the_work_frees_the_target(store: Store, clock: ManualClock) -> None:
    """A success, an error and a cancellation each free the target."""
    for number, result in enumerate((None, Status(Code.ABORTED, ""), Status(Code.CANCELLED, ""))):
        record = record_of(clock, str(number), target="t")
        expect(insert(store, record).fresh, "the target is free")
        store.update(record.name, end_of(clock, result))


def delete_does_not_free_the_target(store: Store, clock: ManualClock) -> None:
    """A deleted operation keeps its target until its work ends (spec §9.5)."""
    record = record_of(clock, target="t")
    insert(store, record)
    store.update(record.name, delete(clock()))
    same(store.get(record.name).state, State.HIDDEN, "the state of the deleted record")
    refuses(TargetBusy, lambda: insert(store, record_of(clock, "b", target="t")), "still busy")
    same(store.update(record.name, end_of(clock)), None, "the end of the work")
    gone(store, record.name)
    expect(insert(store, record_of(clock, "b", target="t")).fresh, "the target is free then")


def concurrent_inserts_for_one_target_store_one(store: Store, clock: ManualClock) -> None:
    """Of eight concurrent inserts for one target, exactly one succeeds."""
    found = together(8, lambda n: insert(store, record_of(clock, str(n), target="t")))
    same(sum(isinstance(one, Inserted) for one in found), 1, "how many were stored")
    same(sum(isinstance(one, TargetBusy) for one in found), 7, "how many were refused")


def records_are_removed_at_their_expiry(store: Store, clock: ManualClock) -> None:
    """Records are removed from their exact expiry on; running operations never are (spec §9.4)."""
    for unique_id, days in (("a", 1), ("b", 1), ("c", 2), ("d", None)):
        insert(store, record_of(clock, unique_id, method=f"M.{unique_id}"))
        if days is not None:
            store.update(f"operations/{unique_id}", end_of(clock, days=days))
    clock.advance(days=1, microseconds=-1)
    early = store.expire(9)
    same((list(early.names), early.more), ([], False), "just before the first expiry")
    clock.advance(microseconds=1)
    sweeps = [store.expire(1), store.expire(9), store.expire(9)]
    removed = [name for sweep in sweeps for name in sweep.names]
    same(sorted(removed), ["operations/a", "operations/b"], "what is removed, one and then more")
    same([sweep.more for sweep in sweeps], [True, False, False], "whether there is more")
    methods = [dict(sweep.methods) for sweep in sweeps]
    wanted = [{f"M.{name[-1]}": 1 for name in sweep.names} for sweep in sweeps]
    same(methods, wanted, "how many of each method")
    gone(store, "operations/a")
    clock.advance(days=10_000)
    same(list(store.expire(9).names), ["operations/c"], "what is removed much later")
    same(ids(store.page("", None, 9).records), ["d"], "what is left")


def secret_and_flags_are_stable(store: Store, clock: ManualClock) -> None:
    """The secret is 64 random bytes and the flags are booleans, and neither changes."""
    said = store.secret(), store.reads_block, store.writes_block, store.shared
    same(len(said[0]), KEY_BYTES, "the length of the secret")
    expect(len(set(said[0])) > 16, "the secret is random")
    same([type(flag) for flag in said[1:]], [bool, bool, bool], "the types of the flags")
    clock.advance(days=1)
    found = store.secret(), store.reads_block, store.writes_block, store.shared
    same(found, said, "all that a day later")


def store_uses_the_given_clock(store: Store, clock: ManualClock) -> None:
    """The store's time is the given clock's time, in UTC."""
    same((store.now(), store.now().tzinfo), (clock(), UTC), "the moment")
    clock.advance(seconds=5)
    same(store.now(), clock(), "the moment later")


def close_is_idempotent(store: Store, clock: ManualClock) -> None:
    """A second ``close`` raises no error."""
    record: Record = record_of(clock)
    insert(store, record)
    store.close()
    store.close()


def _found(store: Store, names: Collection[str]) -> list[Record]:
    found = store.find(names)
    same(list(found.rest), [], "names that were not looked at")
    return sorted(found.records, key=_by_name)


def _by_name(record: Record) -> str:
    return record.name
