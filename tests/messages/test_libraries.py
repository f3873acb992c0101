"""Message classes of pydantic, msgspec, TypedDict and proto-plus."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import typing
import uuid
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, TypedDict, TypeVar

import pytest

pytest.importorskip("google.cloud.redis_v1")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import attrs
import msgspec
import pydantic
import typing_extensions
from google.cloud import redis_v1
from pydantic import AliasChoices, AliasPath, BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

import lro
from lro._messages import pydantic_models
from lro._messages.schema import Kind, Label
from lro._messages.shapes import shape_of
from lro.errors import DeclarationError, EncodingError, InvalidArgument, MissingExtra, UnknownType
from lro.types import simple_name

T = TypeVar("T")
UserId = NewType("UserId", str)


class Stage(enum.Enum):
    WAITING = "waiting"
    COPYING = "copying"


def known(cls: type, name: str = "acme.v1.Made") -> lro.TypeRegistry:
    """Return a registry that knows one class."""
    types = lro.TypeRegistry()
    types.register(cls, name)
    return types


def both_ways(message: Any, cls: Any = None) -> Any:
    """Return a message's JSON; first check that the message survives JSON and binary form."""
    cls = cls or type(message)
    types = known(cls)
    packed = types.pack(message, cls)
    binary = lro.AnyMessage(packed.type_url, types.binary_payload(packed))
    for strict in (True, False):
        assert types.unpack(packed, cls, strict=strict) == message
        assert types.unpack(binary, cls, strict=strict) == message
    return packed.payload


def violations(cls: Any, value: Any, *, strict: bool = True) -> dict[str, str]:
    """Return the violations in a JSON value as a map from field path to description."""
    with pytest.raises(InvalidArgument) as caught:
        known(cls).load(value, cls, strict=strict)
    return {one.field: one.description for one in caught.value.violations}


# -- fields without a default ---------------------------------------------------------------------


class Needy(BaseModel):
    count: int
    tags: list[str]
    labels: dict[str, int]
    note: str | None
    stage: Stage


NeedyStruct = msgspec.defstruct("NeedyStruct", typing.get_type_hints(Needy).items())


@pytest.mark.parametrize(("cls", "text"), [(Needy, "Field required"), (NeedyStruct, "is required")])
def test_a_field_without_default_is_required_of_a_request_and_always_written(
    cls: Any, text: str
) -> None:
    """A field without default is required in requests unless it may be None; zeros are written."""
    empty = cls(count=0, tags=[], labels={}, note=None, stage=Stage.WAITING)
    shown = {"count": 0, "tags": [], "labels": {}, "stage": "WAITING"}
    assert both_ways(empty) == shown
    assert violations(cls, {}) == dict.fromkeys(["count", "tags", "labels", "stage"], text)
    assert violations(cls, {**shown, "count": None, "tags": "x"}) == {
        "count": text,
        "tags": "must be a list, got 'x'",
    }
    # A client accepts a reply in which the server left out zeros.
    assert known(cls).load({}, cls, strict=False) == empty
    outer = msgspec.defstruct("Outer", [("inner", cls), ("uid", uuid.UUID)])
    # Types without a zero, such as messages and UUIDs, are required in a reply too.
    assert violations(outer, {}, strict=False) == dict.fromkeys(["inner", "uid"], "is required")


class Part(TypedDict):
    name: str


class Whole(typing_extensions.TypedDict, total=False):
    count: typing_extensions.Required[int]
    tags: typing_extensions.Required[list[str]]
    note: typing_extensions.Required[str | None]
    part: NotRequired[Part]
    kept: typing_extensions.ReadOnly[str]


def test_required_keys_of_a_typed_dict_are_needed_to_write_it() -> None:
    """A request may lack a required key, which is then zero or None; a written dict may not."""

    types = known(Whole)
    assert types.load({}, Whole) == {"count": 0, "tags": [], "note": None}
    assert both_ways({"count": 0, "tags": [], "note": None, "kept": ""}, Whole) == {"kept": ""}
    full = {"count": 1, "tags": ["a"], "note": "", "part": {"name": "x"}}
    assert both_ways(full, Whole) == full
    for wrong, says in (
        ({"tags": [], "note": ""}, "field count is required"),
        ({**full, "odd": 1}, "field odd is not a key of Whole"),
        ([], r"must be a Whole, got \[\]"),
    ):
        with pytest.raises(EncodingError, match=says):
            types.pack(wrong, Whole)
    with pytest.raises(UnknownType, match="dict"):
        types.pack(full)
    assert types.dump(full, Whole) == full


# -- names ----------------------------------------------------------------------------------------


class Aliased(BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=lambda name: f"x-{name}")

    plain_one: str = ""
    given: str = Field("", alias="gegeben")
    written: str = Field("", serialization_alias="out")
    read: str = Field("", validation_alias=AliasChoices("in", "ein", AliasPath("a", 0)))


class Renamed(msgspec.Struct, rename=lambda name: f"x-{name}"):
    plain_one: str = ""
    given: str = msgspec.field(default="", name="gegeben")


@pydantic_dataclass
class AliasedData:
    given: str = Field("", alias="gegeben")
    tries: Annotated[int, Field(ge=1)] = 1
    hidden: str = Field("x", init=False)


def test_aliases_are_the_names_in_json() -> None:
    """JSON is written with the fields' aliases, and read with aliases or the fields' own names."""
    message = Aliased.model_validate(
        {"x-plain_one": "a", "gegeben": "b", "x-written": "c", "ein": "d"}
    )
    shown = {"x-plain_one": "a", "gegeben": "b", "out": "c", "x-read": "d"}
    assert both_ways(message) == shown
    types = known(Aliased)
    other = {"plain_one": "a", "given": "b", "written": "c", "ein": "d"}
    assert types.load(other, Aliased) == message
    assert violations(Aliased, {"plainOne": "", "gegeben": 5}) == {
        "plainOne": "is not a field of Aliased",
        "given": "must be a string, got 5",
    }
    assert both_ways(Renamed("a", "b")) == {"x-plain_one": "a", "gegeben": "b"}
    assert both_ways(CamelStruct("a")) == {"itemName": "a"}
    assert known(CamelStruct).load({"item_name": "a"}, CamelStruct) == CamelStruct("a")
    assert both_ways(AliasedData(gegeben="b")) == {"gegeben": "b", "tries": 1}  # type: ignore[call-arg]
    assert violations(AliasedData, {"given": 5, "tries": 0}) == {
        "given": "must be a string, got 5",
        "tries": "Input should be greater than or equal to 1",
    }


class CamelStruct(msgspec.Struct, rename="camel"):
    item_name: str = ""


class Page(BaseModel, Generic[T]):
    items: list[T] = []


@pytest.mark.parametrize(
    "cls", [Needy, NeedyStruct, AliasedData, type("Part", (Needy,), {"__module__": __name__})]
)
def test_lro_message_names_classes_of_every_kind(cls: Any) -> None:
    """``lro.message`` sets the full name of a model, a Struct, a dataclass or a TypedDict."""
    named = lro.message("acme.v1.Named")(type(cls)("Copy", (cls,), {}))
    if dataclasses.is_dataclass(cls):
        named = lro.message("acme.v1.Named")(pydantic_dataclass(named))
    assert lro.TypeRegistry().register(named) == "acme.v1.Named"
    named = lro.message("acme.v1.Named")(TypedDict("Named", {"name": str}))
    assert lro.TypeRegistry(named).pack({"name": "a"}, named).type_name == "acme.v1.Named"
    assert simple_name(Page[int]) == "Page_int"  # proto does not allow the name Page[int]
    assert both_ways(Page[int](items=[1])) == {"items": [1]}


NUMBERED = {
    "name": Annotated[str, lro.types.field_number(4)],
    "size": Annotated[lro.Int32, lro.types.field_number(1)],
}


@pytest.mark.parametrize(
    "cls",
    [
        pydantic.create_model("Numbered", **{name: (kind, ...) for name, kind in NUMBERED.items()}),
        msgspec.defstruct("Numbered", NUMBERED.items()),
        TypedDict("Numbered", NUMBERED),
    ],
)
def test_field_numbers_may_stand_in_the_annotation(cls: Any) -> None:
    numbers = [(one.name, one.number, one.kind) for one in shape_of(cls).fields]
    assert numbers == [("name", 4, Kind.STRING), ("size", 1, Kind.INT32)]


# -- types of fields ------------------------------------------------------------------------------


@attrs.frozen
class Point:
    x: lro.Int32 = 0


@dataclasses.dataclass
class Line:
    length: float = 0.0


def model(**fields: Any) -> Any:
    """Return a pydantic model with these types and defaults."""
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return pydantic.create_model("Made", __config__=config, **fields)


def struct(*fields: Any) -> Any:
    """Return a msgspec Struct with these fields."""
    return msgspec.defstruct("Made", fields)


ID = uuid.UUID(int=7)
BOTH = [  # (type, value, JSON of the value)
    (uuid.UUID, ID, str(ID)),
    (decimal.Decimal, decimal.Decimal("2.5"), "2.5"),
    (date | None, date(2030, 1, 2), "2030-01-02"),
    (list[uuid.UUID], [ID], [str(ID)]),
    (dict[str, uuid.UUID], {"a": ID}, {"a": str(ID)}),
    (Literal["fast", "slow"], "slow", "slow"),
    (tuple[int, str], (2, "b"), [2, "b"]),
    (frozenset[str], frozenset("ab"), ["a", "b"]),
    (UserId, UserId("me"), "me"),
    (Line, Line(1.5), {"length": 1.5}),
    (Point, Point(3), {"x": 3}),
    (list[CamelStruct] | None, [], []),
]
PYDANTIC = [
    (pydantic.HttpUrl | None, pydantic.HttpUrl("http://test/x"), "http://test/x"),
    (pydantic.ByteSize, pydantic.ByteSize(5), 5),
    (Literal[1, 2], 2, 2),
    (
        Line | Needy | None,
        Needy(count=1, tags=[], labels={}, note=None, stage=Stage.COPYING),
        {"count": 1, "tags": [], "labels": {}, "note": None, "stage": "copying"},
    ),
    (pydantic.AwareDatetime, datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00Z"),
    (Any, {"a": [1.0, None]}, {"a": [1.0, None]}),
]
MSGSPEC = [
    (Literal[1, 2], 2, 2),
    (int | CamelStruct | None, CamelStruct("a"), {"itemName": "a"}),
    (int | msgspec.UnsetType, 0, 0),
    (list[str] | msgspec.UnsetType, [], []),
]


@pytest.mark.parametrize(
    ("cls", "value", "shown"),
    [
        *((model(a=(kind, ...)), *rest) for kind, *rest in BOTH[:-1] + PYDANTIC),
        *((struct(("a", kind)), *rest) for kind, *rest in BOTH + MSGSPEC),
    ],
)
def test_type_without_a_proto_form_is_written_as_its_library_writes_it(
    cls: Any, value: Any, shown: Any
) -> None:
    """A field is a scalar if its class's library writes one, else any JSON; UNSET is left out."""
    assert both_ways(cls(a=value)) == {"a": shown}
    assert both_ways(struct(("a", int | msgspec.UnsetType, msgspec.UNSET))()) == {}


@pytest.mark.parametrize(
    ("cls", "wrong", "paths"),
    [
        (model(a=(uuid.UUID, ...)), "x", {"a"}),
        (model(a=(list[uuid.UUID], ...)), [5, "y"], {"a[0]", "a[1]"}),
        (model(a=(Literal[1, 2], ...)), 3, {"a"}),
        (model(a=(pydantic.AwareDatetime, ...)), 5, {"a"}),
        (model(a=(Line, ...)), {"length": "x"}, {"a.length"}),
        (struct(("a", list[uuid.UUID])), [5, "y"], {"a[0]", "a[1]"}),
        (struct(("a", Literal[1, 2])), 3, {"a"}),
        (struct(("a", int | CamelStruct)), {"itemName": 5}, {"a.itemName"}),
        (struct(("a", tuple[int, str])), [1, 2.0], {"a[1]"}),
    ],
)
def test_wrong_value_of_a_type_without_a_proto_form_is_named_by_its_path(
    cls: Any, wrong: Any, paths: set[str]
) -> None:
    """A wrong value is reported with its field path, even if the library finds the error."""
    assert violations(cls, {"a": wrong}).keys() == paths


class Holder(msgspec.Struct):
    """A struct whose fields are a pydantic model and an attrs class."""

    model: Needy | None = None
    point: Point | None = None


class Bag(TypedDict):
    struct: NotRequired[Holder]
    models: list[Needy]


def test_messages_of_every_kind_may_contain_each_other() -> None:
    needy = Needy(count=1, tags=["a"], labels={}, note="", stage=Stage.COPYING)
    both_ways({"struct": Holder(needy, Point(1)), "models": [needy]}, Bag)
    wrong = {"struct": {"model": {}, "point": {"x": "y"}}, "models": [{"count": 1}]}
    assert violations(Bag, wrong).keys() == {
        *(f"struct.model.{name}" for name in ("count", "tags", "labels", "stage")),
        *(f"models[0].{name}" for name in ("tags", "labels", "stage")),
        "struct.point.x",
    }


class Tree(BaseModel):
    kids: list[Tree] = []
    need: int


class TreeStruct(msgspec.Struct):
    need: list[str]
    kids: list[TreeStruct] = []


def test_a_class_may_contain_itself() -> None:
    """A pydantic model or a Struct may have fields of its own type."""
    assert both_ways(Tree(kids=[Tree(need=0)], need=1)) == {"kids": [{"need": 0}], "need": 1}
    assert both_ways(TreeStruct([], [TreeStruct(["a"])])) == {"need": [], "kids": [{"need": ["a"]}]}


class Rooted(pydantic.RootModel[list[int]]):
    pass


class OwnForm(BaseModel):
    a: int = 0

    @pydantic.model_serializer
    def write(self) -> str:
        return str(self.a)


class OldModel:
    """A class that looks like a pydantic 1 model."""

    __fields__: typing.ClassVar[dict[str, object]] = {}
    __validators__: typing.ClassVar[dict[str, object]] = {}


@pydantic_dataclass
class LostData:
    other: Missing  # type: ignore[name-defined]  # noqa: F821 - that is the point


class Lost(BaseModel):
    other: Missing  # type: ignore[name-defined]  # noqa: F821 - that is the point


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (model(a=(pydantic.SecretStr, ...)), r"a: no proto field has the type .*SecretStr"),
        (model(a=(str, Field(exclude=True))), "a: is excluded from JSON, and has no default"),
        (
            model(a=(str, Field("", validation_alias=AliasPath("whole", 0)))),
            "a: is read from a part of another field",
        ),
        (model(a=(typing.Callable[[], int] | None, None)), "a: no proto field has the type"),
        (Rooted, "has no fields in JSON, but one value; put it in a field"),
        (OwnForm, "has no fields in JSON"),
        (struct(("a", SimpleNamespace | None, None)), "a: no proto field has the type"),
        (struct(("a", msgspec.Raw, msgspec.Raw(b""))), "a: no proto field has the type"),
        (
            struct(("at", str, msgspec.field(name="@type", default=""))),
            "at: a JSON name must not begin with '@'",
        ),
        (
            model(page_count=(int, 0), other=(int, Field(0, alias="pageCount"))),
            "other: another field is called 'pageCount' in JSON",
        ),
        (LostData, "has an unknown name in an annotation: name 'Missing'"),
        (Lost, "has an unknown name in an annotation: name 'Missing'"),
        (OldModel, "message classes are those of pydantic 2"),
    ],
)
def test_unsupported_field_is_refused_at_declaration(cls: type, says: str) -> None:
    """Registering a class with an unsupported field fails; the error names the field."""
    with pytest.raises(DeclarationError, match=says):
        known(cls)


def test_an_excluded_field_is_not_part_of_the_message() -> None:
    cls = model(shown=(str, ""), hidden=(str, Field("default", exclude=True)))
    assert known(cls).dump(cls(shown="a", hidden="b")) == {"shown": "a"}
    assert violations(cls, {"hidden": "b"}) == {"hidden": "is not a field of Made"}
    assert known(cls).load({"hidden": "b"}, cls, strict=False).hidden == "default"


def test_a_model_with_custom_json_may_be_the_type_of_a_field() -> None:
    cls = model(root=(Rooted, Rooted([])), own=(OwnForm | None, None))
    assert both_ways(cls(root=Rooted([1]))) == {"root": [1]}
    assert known(cls).dump(cls(own=OwnForm(a=3))) == {"root": [], "own": "3"}


def test_a_value_of_another_type_than_declared_is_not_written() -> None:
    """Writing a value of another type than declared fails with an error that names the field."""
    for message in (
        model(a=(uuid.UUID, ...)).model_construct(a=5),
        model(a=(Line | Needy | None, None)).model_construct(a=object()),
        model(a=(Literal[1, 2], 1)).model_construct(a=object()),
        model(a=(pydantic.AwareDatetime, ...)).model_construct(a=datetime(2030, 1, 1)),
        struct(("a", uuid.UUID))(a=5),
        struct(("a", int | CamelStruct))(a=object()),
    ):
        with pytest.raises(EncodingError, match="field a ") as caught:
            known(type(message)).pack(message)
        assert caught.value.path == "a"


# -- validators, serializers, configuration -------------------------------------------------------


class Checked(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True)

    low: int = Field(0, ge=0)
    high: int = 9
    words: Annotated[list[str], Field(max_length=2)] = []
    codes: Annotated[
        list[int], pydantic.BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)
    ] = []
    title: str = ""
    uid: uuid.UUID | None = None
    scores: dict[str, Annotated[float, Field(lt=1)]] = {}
    by_code: dict[Annotated[str, Field(max_length=1)], int] = {}

    @pydantic.field_validator("title")
    @classmethod
    def no_shouting(cls, value: str) -> str:
        if value.isupper():
            raise ValueError("must not shout")
        return value

    @pydantic.model_validator(mode="after")
    def in_order(self) -> Checked:
        if self.low > self.high:
            raise lro.errors.InvalidArgument("low", "must not be above high")
        return self


def test_every_violation_of_a_model_is_named() -> None:
    assert violations(
        Checked,
        {
            "low": -1,
            "high": "x",
            "words": ["a", "b", "c"],
            "title": "LOUD",
            "scores": {"a b": 2, "c": "d"},
            "odd": 1,
        },
    ) == {
        "high": "must be an int64, got 'x'",
        "scores['c']": "must be a number, got 'd'",
        "odd": "is not a field of Checked",
        "low": "Input should be greater than or equal to 0",
        "words": "List should have at most 2 items after validation, not 3",
        "title": "must not shout",
    }
    assert violations(Checked, {"scores": {"a b": 2}}) == {
        "scores['a b']": "Input should be less than 1"
    }
    assert violations(Checked, {"byCode": {"ab": 2}}) == {
        "by_code['ab']": "String should have at most 1 character"
    }
    assert violations(Checked, {"low": 10}) == {"low": "must not be above high"}
    assert known(Checked).load({"codes": "1,2"}, Checked).codes == [1, 2]
    assert "codes" in str(violations(Checked, {"codes": "1,b"}))
    # A stored message of another release is read, even if the class forbids extra fields.
    assert known(Checked).load({"odd": 1, "uid": str(ID)}, Checked, strict=False) == Checked(uid=ID)


def mended(value: Any) -> Any:
    """Replace "small" by 1, also in a dict; raise TypeError for 7."""
    if isinstance(value, dict):
        return {name: mended(one) for name, one in value.items()}
    if value == 7:
        raise TypeError("is no size")
    return 1 if value == "small" else value


def sized(name: str, mode: str) -> Any:
    """Return a model validated by ``mended``, which gets a field, each field or the whole model."""
    if not name:
        decorator: Any = pydantic.model_validator(mode="before")
    else:
        decorator = pydantic.field_validator(name, mode=mode)  # type: ignore[call-overload]
    mend = (lambda value, go_on: go_on(mended(value))) if mode == "wrap" else mended
    return pydantic.create_model("Made", size=(int, 0), __validators__={"mend": decorator(mend)})


@pytest.mark.parametrize("cls", [sized("", "before"), sized("size", "before"), sized("*", "wrap")])
def test_before_validator_gets_the_json_value(cls: Any) -> None:
    """A before-validator gets the JSON value unchanged; its TypeError becomes a violation."""
    assert known(cls).load({"size": "small"}, cls).size == 1
    assert violations(cls, {"size": "large"}).keys() == {"size"}
    assert "is no size" in violations(cls, {"size": 7}).popitem()[1]


YEAR = Annotated[
    datetime,
    pydantic.PlainSerializer(lambda one: one.year, return_type=int),
    pydantic.PlainValidator(
        lambda one: datetime(one, 1, 1, tzinfo=UTC) if isinstance(one, int) else one
    ),
]


class Written(BaseModel):
    model_config = pydantic.ConfigDict(use_enum_values=True)

    stage: Stage = Stage.WAITING
    stages: list[Stage] = []
    by_name: dict[str, Stage] = {}
    maybe: Stage | None = None
    number: lro.Int32 = 0
    percent: float = 0.0
    since: YEAR = datetime(2030, 1, 1, tzinfo=UTC)
    years: list[YEAR] = []

    @pydantic.field_serializer("percent")
    def as_text(self, value: float) -> str:
        return f"{value:.1f}"

    @pydantic.computed_field(alias="twice-as-much")  # type: ignore[prop-decorator]
    @property
    def twice(self) -> lro.Int32:
        return self.number * 2


class SelfWritten(BaseModel):
    kids: list[SelfWritten] = []
    count: int = 0

    @pydantic.field_serializer("count")
    def as_text(self, value: int) -> str:
        return str(value)


class AllWritten(BaseModel):
    size: int = 0

    @pydantic.field_serializer("*")
    def in_metres(self, value: int) -> str:
        return f"{value} m"

    @pydantic.field_validator("size", mode="before")
    @classmethod
    def of_metres(cls, value: object) -> object:
        return int(value.removesuffix(" m")) if isinstance(value, str) else value


def test_serializers_and_computed_fields_of_a_model_are_used() -> None:
    """Custom serializers are used; computed fields are written, not read; enums appear by name."""
    message = Written(
        stage=Stage.COPYING,
        stages=[Stage.WAITING],
        by_name={"a": Stage.COPYING},
        maybe=Stage.WAITING,
        number=2,
        percent=0.25,
        since=datetime(2031, 1, 1, tzinfo=UTC),
        years=[datetime(2032, 1, 1, tzinfo=UTC)],
    )
    assert both_ways(message.model_copy(update={"percent": 0.2})) == {
        "stage": "COPYING",
        "stages": ["WAITING"],
        "byName": {"a": "COPYING"},
        "maybe": "WAITING",
        "number": 2,
        "percent": "0.2",
        "since": 2031,
        "years": [2032],
        "twice-as-much": 4,
    }
    assert {one.name: one.kind for one in shape_of(Written).fields}["percent"] is Kind.STRING
    assert known(Written).load({"twice": 9}, Written) == Written()
    assert both_ways(SelfWritten(kids=[SelfWritten(count=1)])) == {
        "kids": [{"count": "1"}],
        "count": "0",
    }
    assert both_ways(AllWritten(size=2)) == {"size": "2 m"}
    year = SelfWritten.model_construct(count=datetime(2030, 1, 1, tzinfo=UTC))
    assert known(SelfWritten).dump(year)["count"].startswith("2030")  # type: ignore[index,call-overload,union-attr]
    with pytest.raises(EncodingError, match="field stage"):
        known(Written).pack(Written.model_construct(stage="odd"))


class Capped(msgspec.Struct, forbid_unknown_fields=True):
    low: Annotated[int, msgspec.Meta(ge=0)] = 0
    high: Annotated[int | None, msgspec.Meta(le=9)] = None
    words: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(max_length=2)
    ] = []
    labels: Annotated[dict[str, int], msgspec.Meta(max_length=1)] = {}
    due: Annotated[datetime | None, msgspec.Meta(tz=True)] = None
    took: Annotated[timedelta, msgspec.Meta(description="how long")] | None = None
    stage: Annotated[Stage, msgspec.Meta(description="of the work")] = Stage.WAITING
    raw: Annotated[bytes, msgspec.Meta(max_length=2)] = b""

    def __post_init__(self) -> None:
        if self.low == 7:
            raise ValueError("is no good number")
        if self.low == 8:
            raise lro.errors.InvalidArgument("low", "is no good number")


def test_every_violation_of_a_struct_is_named() -> None:
    """All violations are reported together; a stored message may have unknown fields."""
    assert violations(
        Capped,
        {
            "low": -1,
            "high": 10,
            "words": ["", "a", ""],
            "labels": {"a": 1, "b": 2},
            "raw": "YWJj",
            "odd": 1,
        },
    ) == {
        "low": "Expected `int` >= 0",
        "high": "Expected `int` <= 9",
        "words[0]": "Expected `str` of length >= 1",
        "words[2]": "Expected `str` of length >= 1",
        "raw": "Expected `bytes` of length <= 2",
        "odd": "is not a field of Capped",
        "labels": "Expected `object` of length <= 1",
    }
    assert violations(Capped, {"words": ["a"] * 3}) == {"words": "Expected `array` of length <= 2"}
    assert violations(Capped, {"low": 7}) == {"": "is no good number"}
    assert violations(Capped, {"low": 8}) == {"low": "is no good number"}
    assert known(Capped).load({"odd": 1}, Capped, strict=False) == Capped()
    both_ways(Capped(1, 2, ["a"], {"a": 1}, datetime(2030, 1, 1, tzinfo=UTC), timedelta(1)))


def test_default_that_needs_other_values_is_made_by_the_class() -> None:
    """A default that depends on other fields is computed by the model itself."""
    made = (list[str], Field(default_factory=lambda data: [*data]))
    cls = model(start=(int, Field(default_factory=int)), made=made)
    assert [one.label for one in shape_of(cls).fields] == [Label.IMPLICIT, Label.REPEATED]
    assert both_ways(cls(made=["a"])) == {"made": ["a"]}


def test_at_most_a_hundred_violations_are_collected() -> None:
    """At most 100 violations are collected, so that a hostile request cannot cause a huge reply."""
    for wrong in ({"tags": [5] * 1000}, {f"odd{place}": 1 for place in range(1000)}):
        with pytest.raises(lro.errors.InvalidFields) as caught:
            known(Needy).load(wrong, Needy)
        assert len(caught.value.violations) == 100
    assert str(caught.value).endswith("odd4: is not a field of Needy; and 95 more")
    assert "more" not in str(lro.errors.InvalidFields(*caught.value.violations[:5]))


@attrs.frozen
class Chosen:
    mode: Literal["fast", "slow"]
    modes: tuple[Literal["a", "b"], ...] = ()
    numbers: set[int] = attrs.field(factory=set)
    names: frozenset[str] = frozenset()


def test_attrs_class_may_have_literals_and_sets() -> None:
    """A Literal field is required, as it has no zero; a set is written as a sorted list."""
    shown = {"mode": "slow", "modes": ["b"], "numbers": [1, 2], "names": ["a", "b"]}
    assert both_ways(Chosen("slow", ("b",), {2, 1}, frozenset("ba"))) == shown
    assert violations(Chosen, {}) == {"mode": "is required"}
    assert violations(Chosen, {"mode": "x", "modes": ["a", "c"]}) == {
        "mode": "must be one of 'fast', 'slow', got 'x'",
        "modes[1]": "must be one of 'a', 'b', got 'c'",
    }
    with pytest.raises(EncodingError, match="field mode must be one of"):
        known(Chosen).pack(Chosen("x"))  # type: ignore[arg-type]


# -- proto-plus -----------------------------------------------------------------------------------


def test_proto_plus_class_is_packed_as_its_protobuf_message() -> None:
    """A proto-plus message is packed in binary form, under the name in its descriptor."""
    types = lro.TypeRegistry(redis_v1.Instance)
    instance = redis_v1.Instance(name="a", memory_size_gb=3)
    packed = types.pack(instance)
    assert packed.type_name == "google.cloud.redis.v1.Instance"
    assert packed.payload == redis_v1.Instance.serialize(instance)
    found = types.unpack(packed, redis_v1.Instance)
    assert type(found) is redis_v1.Instance
    assert found == instance
    shown = types.dump(instance)
    assert shown == {"name": "a", "memorySizeGb": 3}
    assert types.load(shown, redis_v1.Instance) == instance
    types.register(redis_v1.Instance.pb())  # the wrapped protobuf class is the same type
    with pytest.raises(EncodingError, match="must be a Instance, got 5"):
        types.pack(5, redis_v1.Instance)


# -- without the libraries ------------------------------------------------------------------------


def test_an_old_pydantic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pydantic 2.10, registration fails; the error names the extra with a newer version."""
    monkeypatch.setattr(pydantic_models.pydantic, "VERSION", "2.10.6")
    with pytest.raises(MissingExtra, match=r"lro\[pydantic\]"):
        known(type("Fresh", (Needy,), {"__module__": __name__}))


@pytest.mark.parametrize("name", ["class", "None"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: pydantic.create_model("Made", **{name: (int, 0)}),
        lambda name: msgspec.defstruct("Made", [(name, int, 0)]),
        lambda name: TypedDict("Made", {name: int}),
    ],
    ids=["pydantic", "msgspec", "typing"],
)
def test_field_named_as_a_python_keyword_is_read_and_written(make: Any, name: str) -> None:
    """Classes built by a function call can have field names that are Python keywords."""
    cls = make(name)
    assert known(cls).dump(known(cls).load({name: "3"}, cls), cls) == {name: 3}


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    size: int = 0


class Square(BaseModel):
    kind: Literal["square"] = "square"
    size: int = 0


def by_size(value: Any) -> str:
    """Return the tag of a shape: large shapes are squares."""
    size = value.get("size", 0) if isinstance(value, dict) else value.size
    return "square" if size > 9 else "circle"


class Drawing(BaseModel):
    """A model whose discriminators are arguments of ``Field`` instead of parts of the type."""

    shape: Circle | Square = Field(default=Circle(), discriminator="kind")
    sized: Annotated[Circle, pydantic.Tag("circle")] | Annotated[Square, pydantic.Tag("square")] = (
        Field(default=Circle(), discriminator=pydantic.Discriminator(by_size))
    )


def test_discriminator_of_a_field_chooses_the_class() -> None:
    """The tag alone selects the class, even if both classes would accept the value."""
    value: Any = {"shape": {"kind": "square", "size": 1}, "sized": {"size": 10}}
    drawing = known(Drawing).load(value, Drawing)
    assert drawing == Drawing.model_validate(value)
    assert isinstance(drawing.sized, Square)
    both_ways(drawing)
    for shape, said in (
        ({}, "shape: Unable to extract tag using discriminator 'kind'"),
        ({"kind": "line"}, "shape: Input tag 'line' found using 'kind' does not match"),
        ({"kind": "square", "size": "x"}, "shape.square.size: Input should be a valid integer"),
    ):  # each has one error, from the class that the tag selects
        ((path, text),) = violations(Drawing, {"shape": shape}).items()
        assert f"{path}: {text}".startswith(said)
