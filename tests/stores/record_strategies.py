"""Records and filters that Hypothesis draws: filters mostly of what stands in the records."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

import attrs
from hypothesis import strategies as st

from lro import Any, Int32, Status, message, number
from lro._base.status import declared_name, type_url
from lro._messages.json_text import reread
from lro._messages.schema import Field, Kind, Label
from lro._messages.shapes import shape_of
from lro.adapters import Record
from lro.testing import START
from lro.types import Json
from lro.wire import dumps
from tests.filters.every_field_kind import Everything
from tests.filters.messages import Book, ExportMetadata, ExportResponse, ImportMetadata
from tests.work_messages import WorkMetadata

Draw: TypeAlias = st.DrawFn


class EarlierStage(enum.Enum):
    STAGE_UNSPECIFIED = 0
    QUEUED = 1


@message("lrofix.v1.ExportMetadata")
@attrs.frozen
class EarlierExport:
    """The metadata as an earlier release knows it: with fewer fields, and fewer stages."""

    verb: str = attrs.field(default="", metadata=number(4))
    progress_percent: Int32 = attrs.field(default=0, metadata=number(8))
    stage: EarlierStage = attrs.field(default=EarlierStage.STAGE_UNSPECIFIED, metadata=number(9))
    labels: Mapping[str, str] = attrs.field(factory=dict, metadata=number(11))


TEXTS: Final = (
    *("a", "data", "Data", "datasets/alpha", "export", "COPYING", "FAILED", "true", "null", "NaN"),
    *("5", "05", "5.0", "-1", "Infinity", "a.b", "a*b", "*", "\\*", 'say "hi"', "back\\slash"),
    *("Straße", "STRASSE", "ſtop", "stop", "\u212a", "k", "İstanbul", "ﬁne", "FINE", "i\u0307x"),
    *("x\0y", "line\nbreak", "tab\t", "\x7f", "\u2028", "\ufeff", "\U0001f642", "\uffff", "%_'[^"),
    *(
        "2024-03-01T08:00:00Z",
        "1.5s",
        "operations/",
        '"',
        "',true]",
        "{}",
        "?",
        "-",
        "é",
        "e\u0301",
    ),
)
TEXT: Final = st.sampled_from(("", *TEXTS)) | st.text("ab*ß\"\\'. İ", max_size=4)
INTEGERS: Final[Sequence[Json]] = (
    *(0, 1, 5, 7, -1, 10, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, 2**63 - 1, 5.0, 5.5, 0.0, -0.0),
    *("0", "5", "05", "-0", "-1", "7", "9007199254740993", "18446744073709551615", "1e3", "", "٥"),
    *(10**30, 1e30, 1e308, "9" * 20, "9" * 21, True),
)
DOUBLES: Final[Sequence[Json]] = (
    *(0.1, 0.5, 5, 5.5, -0.0, 0, 1e308, -1e308, 1.7976931348623157e308, 5e-324, 1e-300, 10**30),
    *(
        16777217,
        0.10000000149011612,
        3.4028235e38,
        1e39,
        "NaN",
        "Infinity",
        "-Infinity",
        "0.1",
        "5",
    ),
)
TIMES: Final[Sequence[Json]] = (
    *("2024-03-01T08:00:00Z", "2024-03-01T08:00:00.500Z", "2024-03-01T09:00:00+01:00", "yesterday"),
    *("2024-03-01T08:00:00.000000001Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z"),
)
DURATIONS: Final[Sequence[Json]] = ("1.5s", "1.500s", "0s", "-0.5s", "90s", "0.000000001s", "soon")
KEYS: Final = st.sampled_from(["team", "env", "a.b", "a", "n", "", 'k"y', "k\\y", "7", "true", "ß"])
LOOSE: Final = st.recursive(
    st.sampled_from([None, True, False, 5, 5.5, 0, 1e30, -0.0]) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
STRUCTS: Final = st.dictionaries(KEYS, LOOSE, max_size=3)
_ODD: Final = st.none() | LOOSE
_SCALARS: Final[Mapping[Kind, st.SearchStrategy[Json]]] = {
    Kind.STRING: TEXT,
    Kind.BYTES: st.sampled_from(["", "YQ==", "YWJj"]),
    Kind.BOOL: st.sampled_from([True, True, False, "true"]),
    Kind.FLOAT: st.sampled_from(DOUBLES),
    Kind.DOUBLE: st.sampled_from(DOUBLES),
    **dict.fromkeys((Kind.INT32, Kind.INT64, Kind.UINT32, Kind.UINT64), st.sampled_from(INTEGERS)),
}
_WELL_KNOWN: Final[Mapping[str, st.SearchStrategy[Json]]] = {
    "Timestamp": st.sampled_from(TIMES),
    "Duration": st.sampled_from(DURATIONS),
    "Struct": STRUCTS,
    "Value": LOOSE,
    "ListValue": st.lists(LOOSE, max_size=2),
    "StringValue": TEXT,
    "BoolValue": st.booleans(),
    "Int32Value": st.sampled_from(INTEGERS),
    "BytesValue": st.just("YQ=="),
    "FieldMask": st.just("a.b,cD"),
    "Any": st.just({"@type": type_url("lrofix.v1.Book"), "title": "data"}),
}
FAVOURITES: Final = frozenset(
    {
        "target",
        "verb",
        "stage",
        "labels",
        "priority",
        "progressPercent",
        "bytesDone",
        "rate",
        "note",
    }
    | {"cancelRequested", "createTime", "elapsed", "ratio", "retries", "currentStep", "dryRun"}
    | {"colour", "node", "limit", "flags", "maybe", "rowsRead"}
)
"""Fields that are drawn more often: what is declared to be worth an index is among them."""


def seldom(draw: Draw, one_in: int) -> bool:
    """True for one in so many; what is drawn first, and most, is False."""
    return draw(st.integers(1, one_in)) == one_in


@functools.cache
def _fields(cls: type, wanted: frozenset[str]) -> Sequence[Field]:
    known = shape_of(cls).spellings
    liked = [field for field in known.values() if field.json_name in FAVOURITES]
    there = [known[name] for name in sorted(wanted) if name in known]
    return [*known.values(), *liked, *there * 15]


def payload(
    draw: Draw, cls: type, depth: int = 0, wanted: frozenset[str] = frozenset()
) -> dict[str, Json]:
    """The JSON of a message, canonical or not, some of it of wrong types or unknown."""
    found: dict[str, Json] = {}
    for _ in range(draw(st.integers(0, 6 - 2 * depth))):
        field = draw(st.sampled_from(_fields(cls, wanted)))
        name = field.name if seldom(draw, 16) else field.json_name
        found[name] = draw(_ODD) if seldom(draw, 10) else _many(draw, field, depth)
    if seldom(draw, 8):
        found["unknown"] = draw(LOOSE)
    return found


def _many(draw: Draw, field: Field, depth: int) -> Json:
    if field.label is Label.REPEATED:
        return [_one(draw, field, depth) for _ in range(draw(st.integers(0, 2)))]
    if field.label is Label.MAP:
        keys = {Kind.BOOL: st.sampled_from(["true", "false"]), Kind.STRING: KEYS}
        numbers = st.sampled_from(["7", "0", "-1"])
        wanted = draw(st.lists(keys.get(field.key_kind or Kind.INT32, numbers), max_size=2))
        return {key: _one(draw, field, depth) for key in wanted}
    return _one(draw, field, depth)


def _one(draw: Draw, field: Field, depth: int) -> Json:
    if field.kind is Kind.ENUM:
        names: list[Json] = [*field.python.__members__]
        return draw(st.sampled_from([*names, *names, 0, 2, 99, "NOPE", ""]))
    if field.kind is not Kind.MESSAGE:
        return draw(_SCALARS[field.kind])
    known = (field.message_name or "").removeprefix("google.protobuf.")
    if known in _WELL_KNOWN:
        return draw(_WELL_KNOWN[known])
    return payload(draw, field.python, depth + 1) if depth < 2 else {}


_CLASSES: Final = (ExportMetadata, ExportMetadata, ImportMetadata, Everything, WorkMetadata)
_UNREGISTERED: Final = type_url("acme.v1.Unknown")


@st.composite
def metadata(draw: Draw, binary: Sequence[Any], wanted: frozenset[str]) -> Any | None:
    """What stands in a record's metadata.

    ``binary`` are messages in binary form, ``wanted`` are fields that are there more often.
    """
    kind = 13 - draw(st.integers(0, 13))
    if kind == 0:
        return None
    if kind == 1:
        return Any(type_url("google.protobuf.Struct"), _as_read(draw(STRUCTS)))
    if kind == 2:
        return Any(_UNREGISTERED, _as_read(draw(LOOSE)))
    if kind in (3, 4) and binary:
        return draw(st.sampled_from(binary))
    if kind == 5:
        return Any(type_url("lrofix.v1.ExportMetadata"), _as_read(draw(LOOSE)))
    cls = draw(st.sampled_from(_CLASSES))
    return Any(type_url(str(declared_name(cls))), _as_read(payload(draw, cls, 0, wanted)))


def _as_read(value: Json) -> Json:
    # A database keeps what JSON says: integers of more than 64 bits may come back as floats.
    return reread(dumps(value).decode())


@st.composite
def results(draw: Draw, binary: Sequence[Any]) -> Any | Status | None:
    """How an operation ends."""
    kind = 7 - draw(st.integers(0, 7))
    if kind == 0:
        return None
    if kind == 1 and binary:
        return draw(st.sampled_from(binary))
    if kind < 5:
        code, details = draw(st.sampled_from([1, 1, 3, 5, 13, 16])), draw(st.integers(0, 2))
        return Status(code, draw(TEXT), (Any(_UNREGISTERED, {"a": "data"}), *binary)[:details])
    cls = draw(st.sampled_from([ExportResponse, Book, Book, ExportMetadata]))
    return Any(type_url(str(declared_name(cls))), _as_read(payload(draw, cls)))


@attrs.frozen
class Put:
    """A record is inserted by one of the processes."""

    record: Record
    by: int


@attrs.frozen
class Changed:
    """A process reports metadata, ends an operation, or is asked to cancel or delete it.

    What is ended is kept for so many ``seconds``.
    """

    name: str
    what: str
    value: Any | Status | None
    seconds: int
    by: int


@attrs.frozen
class Indexed:
    """From here on there are the indexes by these paths, of one more release of the service."""

    release: int


Happening: TypeAlias = Put | Changed | Indexed
PARENTS: Final = ("", "p/x")
_SPANS: Final = st.sampled_from([0, 0, 0, 1, 1, 1000, 1_000_000])
_IDS: Final = ("{}", "{}", "data-{}", "{}/b", "ß{}", "É{}", "🙂{}", "Data{}")


@st.composite
def happenings(
    draw: Draw,
    methods: Sequence[str],
    binary: Sequence[Any],
    processes: int,
    releases: int,
    wanted: frozenset[str],
) -> Sequence[Happening]:
    """What happens to a store, in this order: records come and change, indexes are declared."""
    made: list[Happening] = []
    now, names = START, list[str]()
    packed, ends, by = metadata(binary, wanted), results(binary), st.integers(0, processes - 1)
    for count in range(draw(st.integers(8, 20))):
        now += timedelta(microseconds=draw(_SPANS))
        parent = PARENTS[seldom(draw, 5)]
        prefix = f"{parent}/operations/" if parent else "operations/"
        name = prefix + draw(st.sampled_from(_IDS)).format(count)
        names.append(name)
        record = Record(
            name=name,
            parent=parent,
            method=draw(st.sampled_from(methods)),
            metadata=draw(packed),
            create_time=now,
            update_time=now,
            caller=draw(st.sampled_from(["", "ann", "bob"])),
            target=draw(st.sampled_from(["", "", f"target-{count}"])),
        )
        made.append(Put(record, draw(by)))
        for _ in range(draw(st.integers(0, 3))):
            what = draw(st.sampled_from(["report", "report", "cancel", "end", "end", "delete"]))
            value = draw(packed if what == "report" else ends if what == "end" else st.none())
            kept = draw(st.sampled_from([10**6, 10**6, 10**6, 1, 0]))
            made.append(Changed(draw(st.sampled_from(names)), what, value, kept, draw(by)))
    for release in range(releases):
        made.insert(draw(st.integers(0, len(made))), Indexed(release))
    return made
