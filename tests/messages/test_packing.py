"""Packing messages that have fields of arbitrary JSON, which are copied whole where possible."""

from __future__ import annotations

import enum
import math
import types
import uuid
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lro import AnyMessage, Duration, Empty, Int32, InvalidArgument, Struct, TypeRegistry, message
from lro.errors import EncodingError
from lro.types import Float, UInt32, Value
from tests.filters.every_field_kind import deep_list


class Text(str):
    """A subclass of str."""


class Count(int):
    """A subclass of int."""


class Share(float):
    """A subclass of float."""


class Table(dict):
    """A subclass of dict."""


class Row(list):
    """A subclass of list."""


class Moment(datetime):
    """A subclass of datetime."""


class Level(enum.IntEnum):
    HIGH = 1


class Name(enum.StrEnum):
    A = "a"


class Colour(str, enum.Enum):  # noqa: UP042  # str() of a member is "Colour.RED"
    RED = "red"


class Plain(enum.Enum):
    ONE = 1


LEAVES = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**31, -(2**31) - 1, 2**63, 2**64, 10**309, -(10**400)),
        *(0.0, -0.0, 1.5, 1e16, 1e-5, 5e-324, 1.7976931348623159e308, math.nan, math.inf),
        *("", "é", "null", "0.00001", "\ud800", "[{", '"]', "\\", '\\"', "x" * 40),
        *(Text("a"), Text("\udc00"), Count(3), Share(0.5), Share("nan"), Level.HIGH, Name.A),
        *(Colour.RED, Plain.ONE, b"x", bytearray(b"y"), (1, "a"), {1}, uuid.UUID(int=1), object),
        *(datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1), AnyMessage("x/a.B", {"c": [1]})),
        *(datetime(999, 12, 31, tzinfo=UTC), Moment(2030, 1, 1, tzinfo=UTC)),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    ]
)
KEYS = st.sampled_from(["", "a", "é", "[", "\ud800", Text("k"), 1, None, True, Name.A, Colour.RED])
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


@message("acme.v1.Inner")
@attrs.frozen
class Inner:
    """The message inside a ``Report``."""

    data: dict[str, object] = attrs.field(factory=dict)
    maybe: dict[str, object] | None = None


@message("acme.v1.Report")
@attrs.frozen
class Report:
    """A message with fields of arbitrary JSON, and simple fields of each label (as repeated)."""

    title: str = ""
    data: dict[str, object] = attrs.field(factory=dict)
    anything: object = None
    many: tuple[object, ...] = ()
    by_name: dict[str, dict[str, object]] = attrs.field(factory=dict)
    value: Value | None = None
    struct: Struct | None = None
    packed: AnyMessage | None = None
    inner: Inner | None = None
    at: datetime | None = None
    all_at: list[datetime] = attrs.field(factory=list)
    texts: list[str] = attrs.field(factory=list)
    small: tuple[Int32, ...] = ()
    large: tuple[int, ...] = ()
    count: int = 0
    maybe: int | None = None
    flags: tuple[bool, ...] = ()
    rate: float = 0.0
    rates: tuple[float, ...] = ()
    share: Float = 0.0
    unsigned: tuple[UInt32, ...] = ()
    kind: Plain = Plain.ONE


class Derived(Report):
    """A subclass of ``Report``, for which the writer compiled for ``Report`` must not be used."""


TYPES = TypeRegistry(Report, Inner)
FIELDS = [field.name for field in attrs.fields(Report)]


def outcome(call):
    """Return the result of a call with the types of all its parts, or the text of its error."""
    try:
        return typed(call())
    except EncodingError as exc:
        return str(exc).partition(": ")[2]  # the text without the name of the class


def typed(value):
    """Return a value with the types of its parts; a subclass of a scalar counts as the scalar."""
    if isinstance(value, dict):
        return type(value), [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, list):
        return type(value), [typed(item) for item in value]
    if isinstance(value, AnyMessage):
        return value.type_url, typed(value.payload)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind, kind.__repr__(kind(value))
    return type(value), repr(value)


@pytest.mark.parametrize("beside", [[], (1,)])
def test_a_text_of_an_enum_class_is_written_as_its_text(beside):
    """A member that is a text is written as that text in every field, also as a key."""
    anything = [{Colour.RED: Colour.RED}, beside]  # a tuple makes other code copy the list
    report = Report(title=Colour.RED, texts=[Colour.RED], anything=anything)
    written = {"title": "red", "anything": [{"red": "red"}, list(beside)], "texts": ["red"]}
    assert typed(TYPES.dump(report)) == typed(written)
    assert typed(TYPES.pack(report).payload) == typed(written)
    assert TYPES.dump(Value(Colour.RED)) == "red"


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3), VALUES)
@example({"data": [1]}, [])
@example({"data": None, "title": 1}, 1)
@example({"many": [None, {"a": None}], "anything": [math.nan]}, {})
@example({"title": Text("a"), "data": {"a": 1}}, {"a": (1,)})
@example({"share": 1e-46}, 0)  # zero as a number of 32 bits
@example({"share": -1e-46}, 0)
def test_pack_and_dump_of_a_message_agree(fields, value):
    """``pack`` and ``dump`` write the same JSON or fail with the same text, at any depth."""
    whole = Report(**fields)
    inside = Report(inner=Inner(value, value)), Report(struct=Struct(value)), Value(value)
    for made in (whole, Report(anything=value), *inside):
        written = outcome(lambda made=made: TYPES.dump(made))
        assert outcome(lambda made=made: TYPES.pack(made).payload) == written
    assert outcome(lambda: TYPES.dump(Derived(**fields), Report)) == outcome(
        lambda: TYPES.dump(whole)
    )


@pytest.mark.parametrize("inner", [{}, 1])
def test_report_may_have_32_levels(inner):
    """A packed message may have 32 levels in total; a deeper message is refused."""
    most = 30 if inner == 1 else 29
    assert TYPES.pack(Report(data={"a": deep_list(most, inner)})).payload["data"]
    for levels in (most + 1, 200, 260, 5000):
        with pytest.raises(EncodingError, match="nested deeper than 32 levels"):
            TYPES.pack(Report(data={"a": deep_list(levels, inner)}))


@pytest.mark.parametrize("fast", [True, False])
def test_change_after_a_report_does_not_change_the_packed_message(monkeypatch, fast):
    """Data that is changed after packing does not change the packed message, at any depth."""
    if not fast:
        monkeypatch.setattr("lro._messages.json_text.orjson", None)
    data = {"rows": [{"id": 1, "size": 10**300}]}
    packed = TYPES.pack(Report(data=data, inner=Inner(data)))
    data["rows"][0]["id"] = 2
    data["rows"].append("more")
    reported = {"rows": [{"id": 1, "size": 10**300}]}
    assert packed.payload == {"data": reported, "inner": {"data": reported}}
    with pytest.raises(EncodingError):
        TYPES.pack(Report(data={"a": 10**400}))


@pytest.mark.parametrize("write", [TYPES.dump, lambda made: TYPES.pack(made).payload])
def test_iterator_in_a_report_is_written_once(write):
    """Iterators in a message are written whole, even if the fast writer gives up halfway."""
    reported = Report(many=iter([1]), texts=iter(["a"]), data={"a": (1,)})
    assert write(reported) == {"many": [1], "texts": ["a"], "data": {"a": [1]}}


@message("acme.v1.Turned")
@attrs.frozen(init=False)
class Turned:
    """A class whose constructor takes the fields in another order than they are declared in."""

    first: str = ""
    second: str = ""

    def __init__(self, second: str = "", first: str = "") -> None:
        self.__attrs_init__(first, second)


@message("acme.v1.Mixed")
@attrs.frozen
class Mixed:
    """A class with a keyword-only field in the middle."""

    first: str = ""
    second: str = attrs.field(default="", kw_only=True)
    third: str = attrs.field(default="", converter=str.upper)
    fourth: str = attrs.field(default="", alias="last")


@message("acme.v1.Watched")
@attrs.frozen
class Watched(Mixed):
    """A class whose ``__new__`` takes the fields too."""

    def __new__(cls, **fields: str) -> Watched:
        assert "first" in fields
        return super().__new__(cls)


@pytest.mark.parametrize("cls", [Turned, Mixed, Watched])
def test_each_field_is_passed_to_its_own_init_parameter(cls):
    given_fields = {"first": "1", "second": "2", "third": "C", "fourth": "4"}
    names = [field.name for field in attrs.fields(cls)]
    made = TypeRegistry(cls).load({name: given_fields[name] for name in names}, cls)
    assert [getattr(made, name) for name in names] == [given_fields[name] for name in names]


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
def test_any_is_read_alike_whether_its_type_is_known_or_not(value):
    """An Any is read with the same result whether its type is registered or not."""

    def found(types):
        try:
            return types.from_json(value)
        except InvalidArgument as exc:
            return str(exc)

    before = repr(value)
    assert found(TYPES) == found(TypeRegistry())
    assert repr(value) == before


def test_any_of_another_type_is_not_unpacked():
    """An Any with another type name is refused; the host in the type URL does not matter."""
    for url in ([], "", "type.googleapis.com/acme.v1.Report"):
        with pytest.raises(InvalidArgument, match=r"must be acme\.v1\.Inner"):
            TYPES.unpack(AnyMessage(url, {}), Inner)
    assert TYPES.unpack(AnyMessage("x/acme.v1.Inner", {}), Inner) == Inner()
    assert TYPES.unpack(TYPES.pack(Empty()), Empty) == Empty()
    assert TYPES.unpack(TYPES.pack(Duration(1)), Duration) == Duration(1)
