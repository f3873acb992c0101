"""Shorter ways through the codec: each agrees with the general way on every value."""

from __future__ import annotations

import enum
import json
import math
import types
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lro import (
    Any,
    Duration,
    Empty,
    Int32,
    InvalidArgument,
    LroError,
    Operation,
    Struct,
    TypeRegistry,
    UInt32,
    message,
)
from lro._messages import json_codec, json_text
from lro._messages.json_codec import JsonCodec
from lro._messages.json_text import deeper_than, plain_copy
from lro._messages.registry import ClassCodec
from lro._messages.schema import json_name
from lro._messages.times import datetime_text
from lro._model.operation import operation_of
from lro.errors import EncodingError
from lro.types import Value
from lro.wire import loads, operation_from_json

# -- values that JSON has, nearly has, and has not ------------------------------------------------


class Text(str):
    """A kind of string."""


class Count(int):
    """A kind of integer."""


class Share(float):
    """A kind of float."""


class Table(dict):
    """A kind of dict."""


class Row(list):
    """A kind of list."""


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Name(enum.StrEnum):
    A = "a"


class Plain(enum.Enum):
    ONE = 1


class Moment(datetime):
    """A kind of datetime."""


LEAVES = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**31, -(2**31) - 1, 2**63, 2**64, 10**309, -(10**400)),
        *(0.0, -0.0, 1.5, 1e16, 1e-5, 5e-324, 1.7976931348623159e308, math.nan, math.inf),
        *("", "é", "null", "0.00001", "\ud800", "[{", '"]', "\\", '\\"', "x" * 40),
        *(Text("a"), Text("\udc00"), Count(3), Share(0.5), Share("nan"), Level.HIGH, Name.A),
        *(Plain.ONE, b"x", bytearray(b"y"), (1, "a"), {1}, uuid.UUID(int=1), object),
        *(datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1), Any("x/a.B", {"c": [1]})),
    ]
)
KEYS = st.sampled_from(["", "a", "é", "[", "\ud800", Text("k"), 1, None, True, Name.A])
VALUES = st.recursive(
    LEAVES | st.text(max_size=3) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.lists(inner, max_size=2).map(Row)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2).map(Table)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2).map(OrderedDict)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2).map(types.MappingProxyType)
    ),
    max_leaves=8,
)


def nested(levels: int, inner: object) -> object:
    for _ in range(levels):
        inner = [inner]
    return inner


@message("acme.v1.Inner")
@attrs.frozen
class Inner:
    """A message in a message."""

    data: dict[str, object] = attrs.field(factory=dict)
    maybe: dict[str, object] | None = None


@message("acme.v1.Report")
@attrs.frozen
class Report:
    """Whose fields hold any JSON, in each way that a field can."""

    title: str = ""
    data: dict[str, object] = attrs.field(factory=dict)
    anything: object = None
    many: tuple[object, ...] = ()
    by_name: dict[str, dict[str, object]] = attrs.field(factory=dict)
    value: Value | None = None
    struct: Struct | None = None
    packed: Any | None = None
    inner: Inner | None = None


FIELDS = [field.name for field in attrs.fields(Report)]


def outcome(call):
    """What a call gives, with the type of everything in it; or what is wrong."""
    try:
        return typed(call())
    except LroError as exc:
        return type(exc), str(exc)


def typed(value):
    if isinstance(value, dict):
        return type(value), [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, list):
        return type(value), [typed(item) for item in value]
    if isinstance(value, Any):
        return value.type_url, typed(value.payload)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):  # a kind of integer may stay one: its JSON is the same
            return kind, kind.__repr__(kind(value))
    return type(value), repr(value)


def containers(value) -> Iterable[int]:
    """The identities of all containers in a value."""
    if isinstance(value, (dict, list)):
        yield id(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


@pytest.fixture(params=["orjson", "standard"])
def library(request, monkeypatch):
    if request.param == "standard":
        monkeypatch.setattr(json_text, "orjson", None)
    else:
        pytest.importorskip("orjson")


TYPES = TypeRegistry(Report, Inner)


def both_ways(pack):
    """What it gives where a message is copied as a whole, and where each container is by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClassCodec, "payload", lambda codec, message: None)
        general = outcome(pack)
    return outcome(pack), general


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
@example({"data": nested(29, {})})
@example({"data": {"a": nested(29, 1)}})
@example({"data": {"a": nested(30, 1)}})
@example({"data": {"a": nested(31, 1)}})
@example({"data": {"a": nested(200, 1)}})
@example({"data": [1]})
@example({"data": "a"})
@example({"data": None, "title": 1})
@example({"many": [None, {"a": None}], "anything": [math.nan]})
@example({"title": Text("a"), "data": {"a": 1}})
def test_report_copied_as_whole_equals_report_copied_by_container(fields):
    """Or both are refused, with the same words."""
    quick, general = both_ways(lambda: TYPES.pack(Report(**fields)))
    assert quick == general


@pytest.mark.parametrize("levels", [260, 5000])
def test_report_that_is_far_too_deep_is_refused_alike(levels):
    """However deep."""
    quick, general = both_ways(lambda: TYPES.pack(Report(data={"a": nested(levels, 1)})))
    assert quick == general
    assert "nested deeper than 32 levels" in quick[1]


@given(VALUES)
def test_inner_and_well_known_messages_agree_too(value):
    """Where the plain container is not a field of the outermost message."""
    for made in (Report(inner=Inner(value, value)), Report(struct=Struct(value)), Value(value)):
        quick, general = both_ways(lambda made=made: TYPES.pack(made))
        assert quick == general


@given(VALUES)
def test_packed_report_shares_no_container_with_what_was_reported(value):
    """So that nothing which happens to it afterwards shows."""
    report = Report(data={"a": value}, anything=value, many=(value, [value]))
    try:
        packed = TYPES.pack(report)
    except EncodingError:
        return
    given_containers = {id(report.data), *containers(value)}
    assert given_containers.isdisjoint(containers(packed.payload))


def test_change_after_report_does_not_show(library):
    """At any depth."""
    data = {"rows": [{"id": 1}]}
    packed = TYPES.pack(Report(data=data, inner=Inner(data)))
    data["rows"][0]["id"] = 2
    data["rows"].append("more")
    data["late"] = True
    reported = {"rows": [{"id": 1}]}
    assert packed.payload == {"data": reported, "inner": {"data": reported}}


@given(VALUES)
def test_copy_of_plain_data_equals_it_or_is_none(value):
    """By either library; what it copies, the careful walk copies too."""
    if not isinstance(value, (dict, list)):
        return
    found = []
    for chosen in (json_text.orjson, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_text, "orjson", chosen)
            found.append(plain_copy(value))
    for copy in found:
        assert copy is None or copy == value
    quick, general = both_ways(lambda: TYPES.pack(Report(anything=value)))
    assert quick == general


TEXTS = st.sampled_from(["", "a", "[", "]", "{}", '"', '"]', "\\", '\\"', "\\\\[", "é{", "[]"])


@given(
    st.recursive(
        TEXTS | st.none(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
        max_leaves=12,
    ),
    st.integers(0, 14),
    st.booleans(),
)
def test_depth_of_text_is_depth_of_value(value, levels, spaced):
    """Whatever brackets, quotes and backslashes its strings hold."""
    value = nested(levels, value)
    text = json.dumps(value, indent=1 if spaced else None, ensure_ascii=spaced).encode()
    for limit in (*range(16), 100):
        assert json_text._text_deeper_than(text, value, limit) is deeper_than(value, limit)


def test_depth_of_many_equal_rows(library):
    """Rows beside each other add nothing to the depth."""
    rows = [{"id": n, "tags": ["[", '"']} for n in range(200)]
    for levels in (0, 3, 20):
        value = nested(levels, rows)
        assert plain_copy(value, levels + 3) == value
        assert plain_copy(value, levels + 2) is None
    assert loads(json.dumps(rows)) == rows
    with pytest.raises(ValueError, match="nested deeper than 100"):
        loads(json.dumps(nested(100, [1] * 100)))


# -- compiled readers and writers -----------------------------------------------------------------


@attrs.frozen
class Times:
    """What the compiled functions read and write without a call of a hook, in each label."""

    at: datetime | None = None
    all_at: list[datetime] = attrs.field(factory=list)
    words: Sequence[str] = ()
    word_list: list[str] = attrs.field(factory=list)
    small: tuple[Int32, ...] = ()
    large: tuple[int, ...] = ()
    one_large: int = 0
    maybe_large: int | None = None
    flags: tuple[bool, ...] = ()
    rates: tuple[float, ...] = ()
    unsigned: tuple[UInt32, ...] = ()


TIMES = [field.name for field in attrs.fields(Times)]
ODD_TIMES = st.sampled_from(
    [
        *("2030-01-02T03:04:05Z", "0001-01-01T00:00:00Z", "2030-01-02T03:04:05.6Z", "2030-W01-1"),
        *("2030-01-02t03:04:05z", "2030-02-30T03:04:05Z", "2030-01-02T24:00:00Z", "9999-12-31T"),
        *("2030-01-02T03:04:60Z", "2030-01-02T03:04:05+01:00", "0001-01-01T00:00:00+01:00"),
        *("12", "-12", "+1", "007", "1_0", " 1", "١٢", "²", "9" * 18, "9" * 19, "1e2", "1.0", "-"),
        datetime(2030, 1, 1),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(999, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
        Moment(2030, 1, 1, tzinfo=UTC),
        timedelta(1),
    ]
)
ODD = LEAVES | ODD_TIMES
ODD_FIELDS = st.dictionaries(
    st.sampled_from(TIMES), ODD | st.lists(ODD, max_size=3) | st.lists(ODD, max_size=2).map(tuple)
)


def general():
    """Codecs without compiled readers and writers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_codec, "compile_loader", lambda cls, shape, hook, slow, drop: slow)
        patch.setattr(json_codec, "compile_dumper", lambda cls, shape, hook, slow: slow)
        made = {s: JsonCodec(strict=s, check_any=TYPES.checked) for s in (True, False)}
        for codec in made.values():
            codec.dump(Times())
            codec.load({}, Times)
        return made


GENERAL = general()
COMPILED = {s: JsonCodec(strict=s, check_any=TYPES.checked) for s in (True, False)}


@given(ODD_FIELDS)
def test_compiled_writer_agrees_on_lists_times_and_large_numbers(fields):
    """In its result, or in every word of the error."""
    made = Times(**fields)
    assert outcome(lambda: COMPILED[True].dump(made)) == outcome(lambda: GENERAL[True].dump(made))


@given(ODD_FIELDS, st.booleans())
def test_compiled_reader_agrees_on_lists_times_and_large_numbers(fields, strict):
    """In its result, or in every word of the error."""
    value = {json_name(name): item for name, item in fields.items()}
    wanted = outcome(lambda: GENERAL[strict].load(value, Times))
    assert outcome(lambda: COMPILED[strict].load(value, Times)) == wanted


def with_separators(text):
    letters = list(text)
    letters[4::3] = "--T::Z"
    return "".join(letters)


MOST_DIGITS = st.sampled_from("0011223344556789-+.:,TZW _\u0661\ud800")
SEPARATED = st.lists(MOST_DIGITS, min_size=20, max_size=20).map(with_separators)


@given(
    SEPARATED | st.datetimes().map(lambda moment: f"{moment.replace(microsecond=0).isoformat()}Z")
)
def test_text_with_separators_of_moment_is_read_or_refused_alike(text):
    """The compiled reader leaves out the pattern for these."""
    wanted = outcome(lambda: Times(at=GENERAL[True].load({"at": text}, Times).at))
    assert outcome(lambda: COMPILED[True].load({"at": text}, Times)) == wanted


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from([0, 1000, 120_000, 1, 999_999]))
def test_moment_is_written_as_isoformat_writes_it(moment, micros):
    """With the fewest of 0, 3 and 6 digits, and Z for UTC."""
    moment = moment.replace(microsecond=micros)
    digits = "microseconds" if micros % 1000 else "milliseconds" if micros else "seconds"
    assert datetime_text(moment) == moment.isoformat(timespec=digits)[:-6] + "Z"


def test_iterator_in_field_is_written_once():
    """It is not emptied by a writer that then leaves the message to another."""
    made = Times(words=iter(["a"]), at=Moment(2030, 1, 1, tzinfo=UTC))
    assert COMPILED[True].dump(made) == {"words": ["a"], "at": "2030-01-01T00:00:00Z"}
    reported = Report(many=iter([1]), data={"a": (1,)})
    assert TYPES.pack(reported).payload == {"many": [1], "data": {"a": [1]}}


# -- constructors ---------------------------------------------------------------------------------


@message("acme.v1.Turned")
@attrs.frozen(init=False)
class Turned:
    """Whose constructor takes its fields in another order."""

    first: str = ""
    second: str = ""

    def __init__(self, second: str = "", first: str = "") -> None:
        self.__attrs_init__(first, second)


@message("acme.v1.Watched")
@attrs.frozen
class Watched:
    """Whose fields are seen before it is made."""

    first: str = ""
    second: str = attrs.field(default="", kw_only=True)
    third: str = ""

    def __new__(cls, **fields: str) -> Watched:
        assert "first" in fields
        return super().__new__(cls)


@message("acme.v1.Mixed")
@attrs.frozen
class Mixed:
    """With a field in the middle that is given by its name."""

    first: str = ""
    second: str = attrs.field(default="", kw_only=True)
    third: str = attrs.field(default="", converter=str.upper)
    fourth: str = attrs.field(default="", alias="last")


@pytest.mark.parametrize("cls", [Turned, Watched, Mixed])
def test_fields_reach_their_own_parameters(cls):
    """Whatever the order of the constructor."""
    given_fields = {"first": "1", "second": "2", "third": "C", "fourth": "4"}
    names = [field.name for field in attrs.fields(cls)]
    made = TypeRegistry(cls).load({name: given_fields[name] for name in names}, cls)
    assert [getattr(made, name) for name in names] == [given_fields[name] for name in names]


def test_operation_of_its_parts_is_as_its_class_makes_it():
    """Equal, with the same hash, and as frozen."""
    packed = Any("x/acme.v1.Inner", {})
    made = operation_of("operations/a", packed, True, packed)
    wanted = Operation(name="operations/a", metadata=packed, done=True, result=packed)
    assert (made, hash(made), repr(made)) == (wanted, hash(wanted), repr(wanted))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.name = "b"
    assert attrs.evolve(made, done=False) == attrs.evolve(wanted, done=False)


# -- the Any of an operation ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, [], {}, {"@type": 1}, {"@type": []}, {"@type": "acme.v1.Inner"}, {"data": {}},
        {"@type": "type.googleapis.com/acme.v1.Inner", "data": {"a": 1}, "x": None},
        {"@type": "x/acme.v1.Inner", "data": {"a": 1}},
        {"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}},
        {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s", "x": 1},
        {"@type": "type.googleapis.com/google.protobuf.Duration"},
        {"@type": "type.googleapis.com/acme.v1.\ud800"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("strict", [True, False])
def test_known_and_unknown_types_are_read_alike(value, strict):
    """A registry that knows a type only needs less time to read an Any of it."""
    wanted = outcome(lambda: json_codec.load_any(value, strict=strict))
    found = outcome(lambda: TYPES.from_json(value, strict=strict))
    if not strict:
        assert found == wanted
    elif found != wanted:  # its payload is checked too
        assert found[0] is InvalidArgument
    if isinstance(value, dict):
        assert value == dict(value)
        assert "@type" not in value or value["@type"] is not None


def test_unpacking_what_is_no_type_url():
    """Refused as ever."""
    for url in ([], "", "type.googleapis.com/acme.v1.Report"):
        with pytest.raises(InvalidArgument, match=r"must be acme\.v1\.Inner"):
            TYPES.unpack(Any(url, {}), Inner)
    assert TYPES.unpack(Any("x/acme.v1.Inner", {}), Inner) == Inner()
    assert TYPES.unpack(TYPES.pack(Empty()), Empty) == Empty()
    assert TYPES.unpack(TYPES.pack(Duration(1)), Duration) == Duration(1)


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ([], "must be an object"),
        ({"name": 1}, "name must be a string"),
        ({"name": "\ud800"}, "name must be text without"),
        ({"done": 1}, "done must be true or false"),
        ({"error": {}, "response": {}}, "response must not be set beside error"),
        ({"metadata": 1, "error": 1}, "metadata must be an object"),
    ],
)
def test_what_is_no_operation(value, wrong):
    """The first wrong field is named."""
    with pytest.raises(InvalidArgument) as caught:
        operation_from_json(value, TYPES)
    assert str(caught.value).replace(": ", " ", 1).startswith(wrong)


def test_null_in_operation_is_absence():
    """For each field."""
    nothing = dict.fromkeys(("name", "metadata", "done", "error", "response"))
    assert operation_from_json(nothing, TYPES, strict=True) == Operation()
    with pytest.raises(InvalidArgument, match="is not a field"):
        operation_from_json({"x": None}, TYPES, strict=True)
