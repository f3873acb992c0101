"""Prefilters for stores: every matching record meets its prefilter, and few other records do."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from datetime import UTC, datetime

import attrs
import pytest

from lro import Empty, Options, Service
from lro._filters.prefilter import bounds_of, key_value
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.filters.every_field_kind import compiled
from tests.filters.messages import ExportMetadata, types

EXPORT, IMPORT, STRUCT = (
    *(f"lrofix.v1.{name}Metadata" for name in ("Export", "Import")),
    "google.protobuf.Struct",
)
RESPONSES = types(["lrofix.v1.Book", STRUCT])
INDEXED = ("target", "stage", "priority", "labels.team", "rate", "current_step.stage", "ratio")


def indexes(*paths: str):
    """Return the indexes of a service with export metadata."""
    service = Service(MemoryStore(), InlineExecutor(), maintenance=False)
    options = Options(indexed_paths=paths)
    service.declare(
        "a.B.C", request=Empty, response=Empty, metadata=ExportMetadata, options=options
    )
    return service.edges.methods.indexes


KEY_OF = indexes(*INDEXED).of
PATH_OF = {key: path for path in INDEXED for key in indexes(path).keys}


def prefilter(text: str, *metadata: str):
    """Return the filter's prefilter, for metadata of these types."""
    return compiled(text, types(metadata or [EXPORT]), RESPONSES).prefilter(KEY_OF)


def said(test: object) -> str:
    """Return a condition of a prefilter as text: its class and its values, in a fixed order."""
    if isinstance(test, Mapping):
        return " ".join(f"{said(key)}: {said(test[key])}" for key in sorted(test))
    if isinstance(test, frozenset | tuple):
        return " ".join(sorted(map(said, test)))
    if isinstance(test, enum.Enum):
        return test.name
    if not attrs.has(type(test)):
        return "-" if test is None else PATH_OF.get(str(test), str(test))
    parts = [said(getattr(test, field.name)) for field in attrs.fields(type(test))]
    return f"{type(test).__name__}({', '.join(parts)})"


def instant(text: str) -> int:
    """Return a time in microseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**6


NOON = instant("2030-01-01T12:00:00")
AT_NOON = "'2030-01-01T12:00:00Z'"
EVERYTHING = "AllOf()"
DONE, RUNNING = "InState(CANCELLED FAILED SUCCEEDED)", "InState(IN_PROGRESS)"
ERRORS, SUCCESS = "InState(CANCELLED FAILED)", "InState(SUCCEEDED)"
NOT_FAILED = "InState(CANCELLED IN_PROGRESS SUCCEEDED)"
ALL = "InState(CANCELLED FAILED IN_PROGRESS SUCCEEDED)"


def both(*items: str) -> str:
    return f"AllOf({' '.join(sorted(items))})"


def says(column: str, *pieces: str) -> str:
    """Return the expected condition that the column's text contains these pieces."""
    return f"TextContains({column}, {' '.join(sorted(pieces))}, False)"


def meta(*pieces: str) -> str:
    """Return the expected condition that the metadata's text contains these pieces."""
    return says("METADATA", *pieces)


def created(low: object = "-", high: object = "-") -> str:
    """Return the expected condition on the creation time."""
    return f"Created(Span({low}, {high}))"


FOLDED = "TextContains(METADATA NAME RESULT, {}, True)"
NANOS = "'2030-01-01T12:00:00.000000{}Z'"

OWN_FIELDS = [
    ("", EVERYTHING),
    ("done = true", DONE),
    ("NOT done = true", RUNNING),
    ("done:*", DONE),
    ("NOT done:*", RUNNING),
    ("state() = FAILED", "InState(FAILED)"),
    ("state() != FAILED", NOT_FAILED),
    ("-state():FAILED", NOT_FAILED),
    ("state():*", ALL),
    ("NOT state():*", "InState()"),
    ("error:*", ERRORS),
    ("cancel_requested()", "CancelIs(True)"),
    ("cancel_requested() != true", "CancelIs(False)"),
    ("NOT cancel_requested() = false", "CancelIs(True)"),
    ("cancel_requested():*", "CancelIs(True)"),
    ("NOT cancel_requested():*", "CancelIs(False)"),
    ("waiting()", RUNNING),
    ("waiting() != false", RUNNING),
    ("waiting() = false", EVERYTHING),
    ("NOT waiting()", EVERYTHING),
    ("waiting():*", RUNNING),
    ("NOT waiting():*", EVERYTHING),
    ("name = operations/a", "NameIn(operations/a)"),
    ("NOT name != operations/a", "NameIn(operations/a)"),
    ("name > operations/a", EVERYTHING),
    ("name:*", EVERYTHING),
    ("NOT name:*", EVERYTHING),
    ("name = operations/a*b*", says("NAME", "operations/a")),
    ("name != operations/a*", EVERYTHING),
    ("NOT name = operations/a*", EVERYTHING),
    (f"create_time() = {AT_NOON}", created(NOON, NOON)),
    (f"create_time() >= {AT_NOON}", created(NOON)),
    (f"create_time() < {AT_NOON}", created(high=NOON)),
    (f"NOT create_time() < {AT_NOON}", created(NOON)),
    (f"NOT create_time() != {AT_NOON}", created(NOON, NOON)),
    (f"create_time() != {AT_NOON}", EVERYTHING),
    ("create_time():*", ALL),
    (f"end_time() <= {AT_NOON}", f"Ended(Span(-, {NOON}))"),
    (f"end_time() != {AT_NOON}", "Ended(Span(-, -))"),
    (f"NOT end_time() <= {AT_NOON}", EVERYTHING),
    ("end_time():*", DONE),
    ("NOT end_time():*", EVERYTHING),
    # Rows have microseconds and filters nanoseconds. Bounds are rounded outwards.
    (f"create_time() = {NANOS.format('001')}", created(NOON, NOON + 1)),
    (f"create_time() > {NANOS.format('999')}", created(NOON)),
    (f"create_time() <= {NANOS.format('001')}", created(high=NOON + 1)),
]
TEXTS = [
    ("error.code = 5", both(ERRORS, says("RESULT", '"code":'))),
    ("error.code = 0", ERRORS),
    ("error.message = 'no way'", both(ERRORS, says("RESULT", '"message":', '"no way"'))),
    ("error.code > 5", both(ERRORS, says("RESULT", '"code":'))),
    ("NOT error.code = 5", EVERYTHING),
    ("type(metadata) = a.b.C", meta('a.b.C"')),
    ("type(response) = a.b.C", both(SUCCESS, says("RESULT", 'a.b.C"'))),
    ("type(metadata) = 'a.*.C'", meta('.C"')),
    ("NOT type(metadata) = a.b.C", EVERYTHING),
    ("method() = a.b.C", EVERYTHING),
    ("NOT method() = 'a.*'", EVERYTHING),
    ("method():* done = true", DONE),
    ("metadata:*", EVERYTHING),
    ("NOT metadata:*", EVERYTHING),
    ("response:*", SUCCESS),
    ("response.title = 'no way'", both(SUCCESS, says("RESULT", '"no way"', '"title":'))),
    ("NOT response.title = a", EVERYTHING),
    # The pieces are the field's name, unless the default matches, and values that JSON keeps.
    ("metadata.verb = 'no way'", meta('"no way"', '"verb":')),
    ("metadata.verb = ''", EVERYTHING),
    ("metadata.verb != a", EVERYTHING),
    ("metadata.verb > a", meta('"verb":')),
    ("metadata.verb:*", meta('"verb":')),
    ("metadata.verb = 'qu\"oted'", meta('"verb":')),
    ("metadata.verb = 'in*the*midst'", meta('midst"', '"verb":', '"in', "the")),
    ("metadata.verb != 'in*'", EVERYTHING),
    ("metadata.note != 'in*'", meta('"note":')),
    ("metadata.cancel_requested = true", meta('"cancelRequested":true')),
    ("metadata.cancel_requested = false", EVERYTHING),
    ("metadata.dry_run = false", meta('"dryRun":')),
    ("metadata.tags:nightly", meta('"nightly"', '"tags":')),
    ("metadata.steps.ok:true", meta('"ok":true')),
    ("metadata.history:COPYING", meta('"COPYING"', '"history":')),
    ("metadata.labels.env = prod", meta('"prod"', '"env":')),
    ("metadata.labels.'e\"v' = prod", meta('"prod"')),
    ("metadata.extra.a.b = no", meta('"no"', '"b":')),
    *((f"metadata.extra.a {rest}", meta('"a":')) for rest in ("= 5", "= true", "= null", "> no")),
    ("metadata.extra.a = 'x*y'", meta('"a":')),
    ("metadata.elapsed > 1.5s", meta('"elapsed":')),
    ("metadata.elapsed:*", meta('"elapsed":')),
    ("metadata.steps:*", meta('"steps":')),
    ("NOT metadata.verb = a", EVERYTHING),
    # Of many pieces only the four longest are used, because they are the rarest.
    (
        "metadata.verb = '*aaa*bbbb*ccccc*dddddd*eeeeeee*'",
        meta('"verb":', "eeeeeee", "dddddd", "ccccc"),
    ),
    # A search tests all text columns. Only the filter itself tests non-ASCII letters.
    ("disk", FOLDED.format("disk")),
    ("'Straße * DISK'", FOLDED.format(" disk strasse ")),
    ("'ЖЖЖ *disk'", FOLDED.format("disk")),
    ("ab", EVERYTHING),
    ("'a\\nbcd'", EVERYTHING),
    ("NOT disk", EVERYTHING),
]
GROUPS = [
    ("NOT (done = true OR state() = FAILED)", both(RUNNING, NOT_FAILED)),
    ("NOT (done = true AND cancel_requested())", f"AnyOf(CancelIs(False) {RUNNING})"),
    ("name = (a OR b)", "AnyOf(NameIn(a) NameIn(b))"),
    ("done = true OR metadata:*", EVERYTHING),
    ("done = true done = true metadata:*", DONE),
    ("NOT (done != true OR NOT cancel_requested()) error:*", both(DONE, "CancelIs(True)", ERRORS)),
]


@pytest.mark.parametrize(("text", "wanted"), OWN_FIELDS + TEXTS + GROUPS)
def test_prefilter_has_the_conditions_of_every_match(text: str, wanted: str) -> None:
    """A prefilter tests conditions that every match meets. Exact conditions can be negated."""
    assert said(prefilter(text)) == wanted


@pytest.mark.parametrize(
    ("text", "path", "low", "high", "or_text"),
    [
        ("bytes_done = 7", "bytesDone", 7, 7, False),
        ("bytes_done > 7", "bytesDone", 7, None, False),
        ("bytes_done >= 7.5", "bytesDone", 7.5, None, False),
        ("bytes_done < -7", "bytesDone", None, -7, False),
        ("rate <= -0.5", "rate", None, -0.5, True),
        ("counters.a >= 1", "a counters", 1, None, False),
    ],
)
def test_numbers_are_prefiltered_as_ranges(
    text: str, path: str, low: float | None, high: float | None, or_text: bool
) -> None:
    """A comparison of numbers becomes a range, widened because databases round differently."""
    least = "-" if low is None else low - 4 * math.ulp(low)
    most = "-" if high is None else high + 4 * math.ulp(high)
    found = said(prefilter(f"metadata.{text}"))
    assert f"NumberIn(METADATA, {path}, {least}, {most}, {or_text})" in found
    assert meta(f'"{path.split()[0]}":') in found


@pytest.mark.parametrize(
    "text",
    [
        "metadata.snapshot_id <= 1.7976931348623157e308",
        f"metadata.bytes_done > {'9' * 399}",
        "metadata.bytes_done != 7",
        "metadata.ratio > 1",
        "metadata.shards:7",
        "metadata.counters.'a\"b' > 1",
        "metadata.extra.n > 5",
    ],
)
def test_numbers_that_are_not_prefiltered_as_ranges(text: str) -> None:
    """There is no range for huge bounds, rounded floats, lists, and keys that JSON escapes."""
    assert "NumberIn" not in said(prefilter(text))


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("metadata.target = alpha", "target", [key_value("alpha")]),
        ("metadata.target = ''", "target", [key_value(""), "-"]),  # the field may also be missing
        ("metadata.labels.team:data", "labels.team", [key_value("data")]),
        ("metadata.stage = COPYING", "stage", [key_value(2)]),
        ("metadata.priority = 5.0", "priority", [key_value(5)]),
        ("metadata.rate = 5", "rate", [key_value(5.0)]),
        ("metadata.ratio = 0.1", "ratio", [key_value(0.10000000149011612)]),
        ("metadata.current_step.stage = COPYING", "current_step.stage", [key_value(2)]),
    ],
)
def test_prefilter_has_the_hash_of_an_indexed_value(
    text: str, path: str, values: list[str]
) -> None:
    """A prefilter tests for the hash of an indexed value, and for ABSENT if the default matches."""
    assert f"KeyIn({path}, {' '.join(sorted(values))})" in said(prefilter(text))


@pytest.mark.parametrize(
    ("text", "metadata"),
    [
        ("metadata.target != alpha", [EXPORT]),
        ("metadata.target > alpha", [EXPORT]),
        ("metadata.target = 'al*'", [EXPORT]),
        ("metadata.target:*", [EXPORT]),
        ("metadata.verb = alpha", [EXPORT]),
        ("NOT metadata.target = alpha", [EXPORT]),
        ("response.name = alpha", [EXPORT]),
        ("metadata.priority = 5", [EXPORT, IMPORT]),  # a number and a text
        ("metadata.target = alpha", [EXPORT, STRUCT]),
    ],
)
def test_other_filters_use_no_index(text: str, metadata: list[str]) -> None:
    """Tests other than equality, and tests of unindexed or other fields, use no index."""
    assert "KeyIn" not in said(prefilter(text, *metadata))


def test_equal_values_have_one_key() -> None:
    """Equal values have the same index key, however they are spelled."""
    assert key_value(5) == key_value(5.0) == key_value("5")
    assert key_value(0) == key_value(-0.0)
    assert key_value(True) == key_value("true") != key_value(1)
    assert key_value(0.5) != key_value(0.25)
    assert key_value(1e30) == key_value(10**30) == key_value(int(1e30))
    assert key_value(2**53) != key_value(2**53 - 1)
    assert key_value(math.inf) == key_value(10**400)
    assert len({key_value(text) for text in ("", "a", "\ud800", "\0")}) == 4


CREATED = "create_time() {} '1970-01-01T00:00:00.{:06}Z'"


def at(op: str, micros: int) -> str:
    """Return a filter on the creation time."""
    return CREATED.format(op, micros)


@pytest.mark.parametrize(
    ("text", "names", "states", "span", "keys"),
    [
        ("", "-", "-", "-, -", ""),
        ("cancel_requested()", "-", "-", "-, -", ""),
        ("metadata.verb = abc", "-", "-", "-, -", ""),
        ("done = true", "-", "CANCELLED FAILED SUCCEEDED", "-, -", ""),
        ("done = true error:*", "-", "CANCELLED FAILED", "-, -", ""),
        ("response:* OR done = false", "-", "IN_PROGRESS SUCCEEDED", "-, -", ""),
        ("response:* OR cancel_requested()", "-", "-", "-, -", ""),
        ("response:* OR NOT state():*", "-", "SUCCEEDED", "-, -", ""),
        (f"{at('>=', 1)} {at('<=', 5)}", "-", "-", "1, 5", ""),
        (f"({at('>=', 1)} {at('<=', 5)}) {at('>=', 2)} {at('<=', 9)}", "-", "-", "2, 5", ""),
        (f"{at('=', 1)} OR {at('=', 9)}", "-", "-", "1, 9", ""),
        (f"{at('>=', 1)} OR {at('<=', 5)}", "-", "-", "-, -", ""),
        (at("=", 5).replace("create", "end"), "-", "-", "-, 5", ""),
        ("metadata.target = a", "-", "-", "-, -", "target: a"),
        ("metadata.target = (a OR b)", "-", "-", "-, -", "target: a b"),
        ("metadata.target = a OR metadata.rate = 5", "-", "-", "-, -", ""),
        ("metadata.target = a metadata.target = (a OR b)", "-", "-", "-, -", "target: a"),
        ("metadata.target = a OR name = n", "-", "-", "-, -", ""),
        ("metadata.target = a name = n", "n", "-", "-, -", "target: a"),
        ("name = n OR name = o", "n o", "-", "-, -", ""),
        ("name = n name = (n OR o)", "n", "-", "-, -", ""),
    ],
)
def test_filter_gives_bounds_for_its_order(
    text: str, names: str, states: str, span: str, keys: str
) -> None:
    """Bounds on name, state, time and key are derived from a filter, and hold for every match."""
    found = bounds_of(prefilter(text))
    path, _, values = keys.partition(": ")
    hashes = " ".join(sorted(map(key_value, values.split())))
    by_key = f"{path}: {hashes}" if path else ""
    assert said(found) == f"Bounds({names}, {states}, Span({span}), {by_key})"
    assert not found.nothing


@pytest.mark.parametrize(
    "text",
    [
        "NOT state():*",
        "done = true done = false",
        f"{at('>=', 5)} {at('<=', 4)}",
        f"{at('<=', 4).replace('create', 'end')} {at('>=', 5)}",
        "name = n name = o",
        "NOT state():* OR (done = true done = false)",
    ],
)
def test_impossible_bounds_match_nothing(text: str) -> None:
    assert bounds_of(prefilter(text)).nothing
