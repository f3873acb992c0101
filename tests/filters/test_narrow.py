"""What stores may look for first: every record that a filter matches meets it, few others do."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from lro import State
from lro._filters.filter import compile_filter
from lro._filters.paths import Indexable, Step, indexable
from lro._filters.prefilter import (
    ABSENT,
    EVERYTHING,
    NOTHING,
    AllOf,
    AnyOf,
    Asked,
    Bounds,
    Column,
    Created,
    Ended,
    InState,
    KeyIn,
    Measures,
    NameIn,
    Span,
    Test,
    TextContains,
    all_of,
    any_of,
    bounds_of,
    digest,
    key_value,
)
from lro._filters.types import MessageType
from lro.errors import InvalidFilter
from tests.filters.every_field_kind import EVERYTHING as EVERY_KIND
from tests.filters.messages import TYPES

NOON = int(datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()) * 10**6
AT_NOON = "'2030-01-01T12:00:00Z'"
META, NAME, RESULT = Column.METADATA, Column.NAME, Column.RESULT
DONE = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
RUNNING = frozenset({State.IN_PROGRESS})
ERRORS = frozenset({State.FAILED, State.CANCELLED})
SUCCESS = frozenset({State.SUCCEEDED})
INDEXED = ("target", "stage", "priority", "labels.team", "rate", "current_step.stage", "ratio")


def in_(states: frozenset[State]) -> InState:
    """In one of these states."""
    return InState(states)


def key_of(type_name: str, steps: tuple[Step, ...]) -> Indexable | None:
    """The index for one of the paths above."""
    for path in INDEXED:
        try:
            place = indexable(path, _type(type_name))
            if place.steps == steps:
                return place
        except InvalidFilter:
            continue
    return None


def _type(name: str) -> MessageType:
    return EVERY_KIND if name == EVERY_KIND.full_name else TYPES[name]


def narrowed(text: str, *metadata: str) -> Test:
    """What stores may look for, for the filter, with these types of metadata."""
    known = [TYPES["lrofix.v1." + name] for name in metadata or ("ExportMetadata",)]
    responses = [TYPES["lrofix.v1.Book"], TYPES["google.protobuf.Struct"]]
    return compile_filter(text, metadata=known, response=responses).prefilter(key_of)


def says(column: Column, *pieces: str) -> TextContains:
    """The text of a column says so."""
    return TextContains((column,), pieces)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", EVERYTHING),
        ("done = true", in_(DONE)),
        ("done != true", in_(RUNNING)),
        ("NOT done = true", in_(RUNNING)),
        ("NOT done != true", in_(DONE)),
        ("done:*", in_(DONE)),
        ("NOT done:*", in_(RUNNING)),
        ("state() = FAILED", in_(frozenset({State.FAILED}))),
        ("state() != FAILED", in_(SUCCESS | RUNNING | {State.CANCELLED})),
        ("-state():FAILED", in_(SUCCESS | RUNNING | {State.CANCELLED})),
        ("state():*", in_(DONE | RUNNING)),
        ("NOT state():*", in_(frozenset())),
        ("error:*", in_(ERRORS)),
        ("NOT error:*", in_(RUNNING | SUCCESS)),
        ("cancel_requested()", Asked(True)),
        ("cancel_requested() != true", Asked(False)),
        ("NOT cancel_requested() = false", Asked(True)),
        ("cancel_requested():*", Asked(True)),
        ("NOT cancel_requested():*", Asked(False)),
        ("name = operations/a", NameIn(frozenset({"operations/a"}))),
        ("NOT name != operations/a", NameIn(frozenset({"operations/a"}))),
        ("name != operations/a", EVERYTHING),
        ("name > operations/a", EVERYTHING),
        ("name:*", EVERYTHING),
        ("NOT name:*", EVERYTHING),
        ("name = operations/a*b*", says(NAME, "operations/a")),
        ("name != operations/a*", EVERYTHING),
        ("NOT name = operations/a*", EVERYTHING),
        (f"create_time() = {AT_NOON}", Created(Span(NOON, NOON))),
        (f"create_time() >= {AT_NOON}", Created(Span(low=NOON))),
        (f"create_time() < {AT_NOON}", Created(Span(high=NOON))),
        (f"NOT create_time() < {AT_NOON}", Created(Span(low=NOON))),
        (f"NOT create_time() != {AT_NOON}", Created(Span(NOON, NOON))),
        (f"create_time() != {AT_NOON}", EVERYTHING),
        ("create_time():*", in_(DONE | RUNNING)),
        (f"end_time() <= {AT_NOON}", Ended(Span(high=NOON))),
        (f"end_time() != {AT_NOON}", Ended(Span())),
        (f"NOT end_time() <= {AT_NOON}", EVERYTHING),
        ("end_time():*", in_(DONE)),
        ("NOT end_time():*", EVERYTHING),
    ],
)
def test_fields_of_every_record_are_prefiltered_exactly(text: str, wanted: Test) -> None:
    """States, names, times and marks are in the prefilter, and negations where they are exact."""
    assert narrowed(text) == wanted


@pytest.mark.parametrize(
    ("nanos", "span"),
    [("000", (0, 0)), ("001", (0, 1)), ("999", (0, 1))],
)
def test_times_between_two_microseconds_are_rounded_outwards(
    nanos: str, span: tuple[int, int]
) -> None:
    """Rows know microseconds, filters nanoseconds."""
    low, high = (NOON + one for one in span)
    moment = f"'2030-01-01T12:00:00.000000{nanos}Z'"
    assert narrowed(f"create_time() = {moment}") == Created(Span(low, high))
    assert narrowed(f"create_time() > {moment}") == Created(Span(low=low))
    assert narrowed(f"create_time() <= {moment}") == Created(Span(high=high))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("error.code = 5", all_of([in_(ERRORS), says(RESULT, '"code":')])),
        ("error.code = 0", in_(ERRORS)),
        ("error.message = 'no way'", all_of([in_(ERRORS), says(RESULT, '"message":', '"no way"')])),
        ("error.code > 5", all_of([in_(ERRORS), says(RESULT, '"code":')])),
        ("NOT error.code = 5", EVERYTHING),
        ("type(metadata) = a.b.C", says(META, 'a.b.C"')),
        ("type(response) = a.b.C", all_of([in_(SUCCESS), says(RESULT, 'a.b.C"')])),
        ("type(metadata) = 'a.*.C'", says(META, '.C"')),
        ("NOT type(metadata) = a.b.C", EVERYTHING),
        ("metadata:*", EVERYTHING),
        ("NOT metadata:*", EVERYTHING),
        ("response:*", in_(SUCCESS)),
        ("response.title = 'no way'", all_of([in_(SUCCESS), says(RESULT, '"no way"', '"title":')])),
        ("NOT response.title = a", EVERYTHING),
        ("metadata.verb = 'no way'", says(META, '"no way"', '"verb":')),
        ("metadata.verb = ''", EVERYTHING),
        ("metadata.verb != a", EVERYTHING),
        ("metadata.verb > a", says(META, '"verb":')),
        ("metadata.verb:*", says(META, '"verb":')),
        ("metadata.verb = 'qu\"oted'", says(META, '"verb":')),
        ("metadata.verb = 'in*the*midst'", says(META, 'midst"', '"verb":', '"in', "the")),
        ("metadata.verb != 'in*'", EVERYTHING),
        ("metadata.note != 'in*'", says(META, '"note":')),
        ("metadata.cancel_requested = true", says(META, '"cancelRequested":true')),
        ("metadata.cancel_requested = false", EVERYTHING),
        ("metadata.dry_run = false", says(META, '"dryRun":')),
        ("metadata.tags:nightly", says(META, '"nightly"', '"tags":')),
        ("metadata.steps.ok:true", says(META, '"ok":true')),
        ("metadata.history:COPYING", says(META, '"COPYING"', '"history":')),
        ("metadata.labels.env = prod", says(META, '"prod"', '"env":')),
        ("metadata.labels.'e\"v' = prod", says(META, '"prod"')),
        ("metadata.extra.a.b = no", says(META, '"no"', '"b":')),
        ("metadata.extra.a = 5", says(META, '"a":')),
        ("metadata.extra.a = true", says(META, '"a":')),
        ("metadata.extra.a = null", says(META, '"a":')),
        ("metadata.extra.a = 'x*y'", says(META, '"a":')),
        ("metadata.extra.a > no", says(META, '"a":')),
        ("metadata.elapsed > 1.5s", says(META, '"elapsed":')),
        ("metadata.elapsed:*", says(META, '"elapsed":')),
        ("metadata.steps:*", says(META, '"steps":')),
        ("NOT metadata.verb = a", EVERYTHING),
    ],
)
def test_text_fields_are_prefiltered_by_their_pieces(text: str, wanted: Test) -> None:
    """The field's name, unless its default would do, and the value where JSON writes it as is."""
    found = narrowed(text)
    assert _sorted(found) == _sorted(wanted)


def _sorted(test: Test) -> Test:
    match test:
        case AllOf(items) | AnyOf(items):
            return type(test)(tuple(sorted(map(_sorted, items), key=str)))
        case TextContains(columns, pieces, folded):
            return TextContains(columns, tuple(sorted(pieces)), folded)
        case _:
            return test


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("disk", ("disk",)),
        ("'Straße * DISK'", ("strasse ", " disk")),
        ("'ЖЖЖ *disk'", ("disk",)),
        ("ab", ()),
        ("'a\\nbcd'", ()),
    ],
)
def test_a_search_is_prefiltered_in_the_whole_text(text: str, pieces: tuple[str, ...]) -> None:
    """In any of the texts; letters that are not ASCII's are left to the filter."""
    wanted = TextContains((NAME, META, RESULT), pieces, folded=True) if pieces else EVERYTHING
    assert _sorted(narrowed(text)) == _sorted(wanted)
    assert narrowed(f"NOT {text}") == EVERYTHING


def test_a_prefilter_has_at_most_four_pieces() -> None:
    """The longest, which are the rarest."""
    found = narrowed("metadata.verb = '*aaa*bbbb*ccccc*dddddd*eeeeeee*'")
    assert found == says(META, '"verb":', "eeeeeee", "dddddd", "ccccc")


def measured(
    path: str, low: float | None, high: float | None, *, or_text: bool = False
) -> Measures:
    """A number of the metadata is in a range."""
    names = tuple(path.split("."))
    return Measures(column=META, path=names, low=low, high=high, or_text=or_text)


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ("bytes_done = 7", "bytesDone", (7, 7, False)),
        ("bytes_done > 7", "bytesDone", (7, None, False)),
        ("bytes_done >= 7.5", "bytesDone", (7.5, None, False)),
        ("bytes_done < -7", "bytesDone", (None, -7, False)),
        ("rate <= -0.5", "rate", (None, -0.5, True)),
        ("counters.a >= 1", "counters.a", (1, None, False)),
    ],
)
def test_numbers_are_prefiltered_as_ranges(
    text: str, key: str, wanted: tuple[float | None, float | None, bool]
) -> None:
    """With a little to spare, for databases round in ways of their own."""
    low, high, or_text = wanted
    range_ = measured(
        key,
        None if low is None else low - 4 * math.ulp(low),
        None if high is None else high + 4 * math.ulp(high),
        or_text=or_text,
    )
    name = f'"{key.rpartition(".")[2]}":'
    assert range_ in _parts(narrowed(f"metadata.{text}"))
    assert says(META, name) in _parts(narrowed(f"metadata.{text}")) or len(name) < 3


def _parts(test: Test) -> tuple[Test, ...]:
    return test.items if isinstance(test, AllOf) else (test,)


@pytest.mark.parametrize(
    "text",
    [
        "metadata.snapshot_id <= 1.7976931348623157e308",
        "metadata.snapshot_id >= -1.7976931348623157e308",
        f"metadata.bytes_done > {'9' * 399}",
        "metadata.bytes_done != 7",
        "metadata.ratio > 1",
        "metadata.shards:7",
        "metadata.counters.'a\"b' > 1",
        "metadata.extra.n > 5",
    ],
)
def test_numbers_that_are_not_prefiltered_as_ranges(text: str) -> None:
    """Bounds beyond all doubles, what JSON may round, lists, and keys that JSON would escape."""
    assert not any(isinstance(part, Measures) for part in _parts(narrowed(text)))


def test_tests_of_a_group_are_joined() -> None:
    """As the filter joins it, also inside a negation."""
    assert narrowed("NOT (done = true OR state() = FAILED)") == all_of(
        [in_(RUNNING), in_(SUCCESS | RUNNING | {State.CANCELLED})]
    )
    assert narrowed("NOT (done = true AND cancel_requested())") == any_of(
        [in_(RUNNING), Asked(False)]
    )
    assert narrowed("name = (a OR b)") == any_of([NameIn(frozenset("a")), NameIn(frozenset("b"))])
    assert narrowed("done = true OR metadata:*") == EVERYTHING


def keyed(text: str, *metadata: str) -> KeyIn | None:
    """The key that is looked for."""
    found = [p for p in _parts(narrowed(text, *metadata)) if isinstance(p, KeyIn)]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("metadata.target = alpha", "target", {key_value("alpha")}),
        ("metadata.target = ''", "target", {key_value(""), ABSENT}),
        ("metadata.labels.team:data", "labels.team", {key_value("data")}),
        ("metadata.stage = COPYING", "stage", {key_value(2)}),
        ("metadata.priority = 5.0", "priority", {key_value(5)}),
        ("metadata.rate = 5", "rate", {key_value(5.0)}),
        ("metadata.ratio = 0.1", "ratio", {key_value(0.10000000149011612)}),
        ("metadata.current_step.stage = COPYING", "current_step.stage", {key_value(2)}),
    ],
)
def test_an_index_is_looked_up(text: str, key: str, values: set[str]) -> None:
    """By the hash of the value, and by that of nothing where the default is asked for."""
    assert keyed(text) == KeyIn(of_export(key), frozenset(values))


def of_export(path: str) -> str:
    """The key for a path of an export's metadata."""
    return indexable(path, TYPES["lrofix.v1.ExportMetadata"]).key


@pytest.mark.parametrize(
    "text",
    [
        "metadata.target != alpha",
        "metadata.target > alpha",
        "metadata.target = 'al*'",
        "metadata.target:*",
        "metadata.verb = alpha",
        "NOT metadata.target = alpha",
        "response.name = alpha",
    ],
)
def test_filters_that_no_index_helps(text: str) -> None:
    """For whatever is not to be equal to one value, or stands elsewhere."""
    assert keyed(text) is None


def test_an_index_of_several_types() -> None:
    """One look if all types have the path in one index; none if one of them has it elsewhere."""
    two = "ExportMetadata", "ImportMetadata"
    alpha = KeyIn(of_export("target"), frozenset({key_value("alpha")}))
    assert keyed("metadata.target = alpha", *two) == alpha
    assert keyed("metadata.priority = 5", *two) is None  # a number here, a text there
    text = "metadata.target = alpha"
    struct = [TYPES["lrofix.v1.ExportMetadata"], TYPES["google.protobuf.Struct"]]
    assert alpha not in _parts(compile_filter(text, metadata=struct, response=[]).prefilter(key_of))


def test_equal_values_have_one_key() -> None:
    """However they are spelled; what differs has another, or costs a look."""
    assert key_value(5) == key_value(5.0) == key_value("5")
    assert key_value(0) == key_value(-0.0)
    assert key_value(True) == key_value("true") != key_value(1)
    assert key_value(0.5) != key_value(0.25)
    assert key_value(1e30) == key_value(10**30) == key_value(int(1e30))
    assert key_value(2**53) != key_value(2**53 - 1)
    assert key_value(math.inf) == key_value(10**400)
    assert len({key_value(text) for text in ("", "a", "\ud800", "\0")}) == 4
    assert digest("a") != digest("b")


def test_joining_is_simple() -> None:
    """What is everything, or nothing, says so; nests are flat, and nothing stands twice."""
    one, two = Asked(True), in_(DONE)
    assert all_of([]) == EVERYTHING
    assert any_of([]) == NOTHING
    assert all_of([one, NOTHING, two]) == NOTHING
    assert any_of([one, EVERYTHING]) == EVERYTHING
    assert all_of([one, EVERYTHING]) == any_of([NOTHING, one]) == one
    assert all_of([one, all_of([two, one])]) == AllOf((one, two))
    assert any_of([one, any_of([two, one])]) == AnyOf((one, two))


K = "k"
A, B = KeyIn(K, frozenset("a")), KeyIn(K, frozenset("b"))
NAMED = NameIn(frozenset({"n"}))


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        (EVERYTHING, Bounds()),
        (Asked(True), Bounds()),
        (says(META, "abc"), Bounds()),
        (in_(DONE), Bounds(states=DONE)),
        (all_of([in_(DONE), in_(ERRORS)]), Bounds(states=ERRORS)),
        (any_of([in_(SUCCESS), in_(RUNNING)]), Bounds(states=SUCCESS | RUNNING)),
        (any_of([in_(SUCCESS), Asked(True)]), Bounds()),
        (any_of([in_(SUCCESS), in_(frozenset())]), Bounds(states=SUCCESS)),
        (Created(Span(1, 5)), Bounds(created=Span(1, 5))),
        (all_of([Created(Span(low=1)), Created(Span(high=5))]), Bounds(created=Span(1, 5))),
        (all_of([Created(Span(1, 5)), Created(Span(2, 9))]), Bounds(created=Span(2, 5))),
        (any_of([Created(Span(1, 2)), Created(Span(5, 9))]), Bounds(created=Span(1, 9))),
        (any_of([Created(Span(low=1)), Created(Span(high=5))]), Bounds()),
        (Ended(Span(3, 5)), Bounds(created=Span(high=5))),
        (A, Bounds(keys={K: frozenset("a")})),
        (any_of([A, B]), Bounds(keys={K: frozenset("ab")})),
        (any_of([A, KeyIn("x", frozenset("b"))]), Bounds()),
        (AllOf((A, KeyIn(K, frozenset("ab")))), Bounds(keys={K: frozenset("a")})),
        (any_of([A, NAMED]), Bounds()),
        (all_of([A, NAMED]), Bounds(names=NAMED.names, keys={K: frozenset("a")})),
        (any_of([NAMED, NameIn(frozenset("o"))]), Bounds(names=frozenset("no"))),
        (all_of([NAMED, NameIn(frozenset("no"))]), Bounds(names=frozenset("n"))),
    ],
)
def test_bounds(test: Test, wanted: Bounds) -> None:
    """What a test is sure of, so that the records can be found in some order."""
    assert bounds_of(test) == wanted
    assert not bounds_of(test).nothing


@pytest.mark.parametrize(
    "test",
    [
        NOTHING,
        in_(frozenset()),
        all_of([in_(DONE), in_(RUNNING)]),
        all_of([Created(Span(low=5)), Created(Span(high=4))]),
        all_of([Ended(Span(high=4)), Created(Span(low=5))]),
        all_of([NAMED, NameIn(frozenset("o"))]),
        any_of([in_(frozenset()), all_of([in_(DONE), in_(RUNNING)])]),
    ],
)
def test_bounds_that_no_value_meets_match_nothing(test: Test) -> None:
    """So that no store need look."""
    assert bounds_of(test).nothing


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nothing", "there is no field"),
        ("tags", "does not lead to one"),
        ("labels", "does not lead to one"),
        ("steps.name", "repeated fields"),
        ("extra", "does not lead to one"),
        ("extra.a", "does not lead to one"),
        ("checksum", "does not lead to one"),
        ("warning", "does not lead to one"),
        ("target:* OR metadata.verb", "no path"),
        ("target AND x", "no path"),
        ("a b", "no path"),
        ("(", ""),
    ],
)
def test_paths_without_one_scalar_value_cannot_be_indexed(path: str, why: str) -> None:
    """Whatever is no path, or leads to none or many."""
    with pytest.raises(InvalidFilter) as caught:
        indexable(path, TYPES["lrofix.v1.ExportMetadata"])
    assert why in caught.value.description
