"""Messages as JSON values: reading, writing and refusing the forms of spec §1.8-§1.13."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs
import pytest
from hypothesis import given, settings

from lro import AnyMessage, Int32, InvalidArgument, LroError, TypeRegistry
from lro.testing._samples import together
from lro.wire import dumps, loads, loads_strict
from tests.filters.messages import Book, ExportMetadata, ExportResponse, ImportMetadata, Stage, Step
from tests.filters.messages import Warning as RpcStatus
from tests.messages.scalars_message import METADATA, SCALARS, Scalars, signs
from tests.messages.test_scalars import One
from tests.vector_files import by_id, vectors

TYPES = TypeRegistry(ExportMetadata, ExportResponse, ImportMetadata, Book, Scalars, RpcStatus)

# -- vectors --------------------------------------------------------------------------------------

CASES = vectors("any_json")["cases"]
WAITING = {
    "anyjson-064": "an enum class of Python has no number without a name",
    "anyjson-114": "an enum class of Python has no number without a name",
    "anyjson-083": "an attrs class has no json_name of its own choice",
    "anyjson-097": "an attrs class has no json_name of its own choice",
    "anyjson-145": "the members of a one-of are independent optional fields in an attrs class",
}
"""Cases that need protobuf messages, with the reason (cases in binary form need them too)."""


def cases(*modes):
    chosen = [c for c in CASES if c["mode"] in modes and c["id"] not in WAITING]
    return pytest.mark.parametrize("case", chosen, ids=by_id)


def read(case):
    text = (
        case["input_text"]
        if "input_text" in case
        else json.dumps(case.get("input", case.get("json")))
    )
    return TYPES.from_json(loads_strict(text), strict=True)


@cases("roundtrip", "parse")
def test_any_is_read_and_written_as_canonical_json(case):
    """Each input is read as an Any, and that Any is written as the case's canonical JSON."""
    packed = read(case)
    assert packed.type_url == case["type_url"]
    assert TYPES.to_json(packed) == case["json"]


@cases("parse_error")
def test_invalid_any_is_refused(case):
    """Reading an invalid Any raises an error with a message for the caller."""
    with pytest.raises((ValueError, InvalidArgument)) as caught:
        read(case)
    assert str(caught.value)


def test_every_id_in_waiting_is_a_case_of_the_vectors():
    """Every ID in ``WAITING`` is that of a case in the vectors, and the case has a JSON form."""
    known = {case["id"]: case["mode"] for case in CASES}
    assert {known[name] for name in WAITING} <= {"roundtrip", "parse", "parse_error"}


# -- round trips ----------------------------------------------------------------------------------


@settings(max_examples=50)
@given(SCALARS | METADATA)
def test_message_survives_json_and_any(message):
    """A message is unchanged by a round trip through JSON text or through an Any."""
    value = TYPES.dump(message)
    for read_text in (loads, loads_strict):
        again = TYPES.load(read_text(dumps(value)), type(message))
        assert again == message
        assert signs(again) == signs(message)
    assert TYPES.dump(again) == value
    packed = TYPES.pack(message)
    for strict in (True, False):
        again = TYPES.from_json(TYPES.to_json(packed), strict=strict)
        assert again == packed
        assert TYPES.unpack(again, type(message), strict=strict) == message
    assert TYPES.unpack_any(packed) == message


class Text(str):
    """A subclass of str."""


# -- presence -------------------------------------------------------------------------------------


def test_fields_without_presence_are_not_written_at_zero():
    """A field without presence is left out at its default (spec §1.8(1)), but -0.0 is written."""
    assert TYPES.dump(One()) == {}
    assert TYPES.load({}, One) == One()
    for name in ("single", "double"):
        printed = TYPES.dump(One(**{name: -0.0}))
        assert str(printed[name]) == "-0.0"
        assert signs(TYPES.load(printed, One)) != signs(One())
    assert TYPES.dump(One(text=Text("a"))) == {"text": "a"}


@attrs.frozen
class Presence:
    maybe: str | None = None
    count: Int32 = 7
    label: str = "none"
    rate: float = 0
    step: Step | None = None
    anything: object = None
    rows: Sequence[object] = ()
    listed: list[Int32] = attrs.field(factory=list)
    indexed: Mapping[int, object] = attrs.field(factory=dict)


def test_present_empty_fields_are_printed():
    """An empty value is written if leaving it out would mean another value (spec §1.8(1))."""
    assert TYPES.dump(Presence()) == {"count": 7, "label": "none"}
    present = Presence(maybe="", count=0, label="", step=Step(), rate=-0.0)
    shown = {"maybe": "", "count": 0, "label": "", "step": {}, "rate": -0.0}
    assert TYPES.dump(present) == shown
    assert TYPES.load(shown, Presence) == present
    assert TYPES.load({}, Presence) == Presence()
    assert TYPES.load({"listed": [1], "rows": [1]}, Presence) == Presence(listed=[1], rows=(1,))


def test_null_leaves_a_field_unset():
    """Null leaves a field unset, unless the field may hold any JSON value (spec §1.8(3))."""
    nulls = dict.fromkeys(("maybe", "count", "label", "rate", "step", "rows", "listed", "indexed"))
    assert TYPES.load(nulls, Presence) == Presence()
    assert TYPES.load({"anything": None}, Presence).anything is None


def test_null_in_a_list_or_map_is_refused():
    """Null in a list or map is refused unless elements may be any JSON value (spec §1.8(3))."""
    free = {"rows": [None, 1], "indexed": {"1": None}}
    message = Presence(rows=(None, 1), indexed={1: None})
    assert TYPES.load(free, Presence) == message
    assert TYPES.dump(message) == {"count": 7, "label": "none", **free}
    for value, field in (({"listed": [1, None]}, "listed[1]"), ({"notes": [None]}, "notes[0]")):
        cls = Presence if "listed" in value else Step
        with pytest.raises(InvalidArgument, match="must not be null") as caught:
            TYPES.load(value, cls)
        assert caught.value.field == field
    with pytest.raises(InvalidArgument, match=r"labels\['a'\]: must not be null"):
        TYPES.load({"labels": {"a": None}}, ExportMetadata)


@attrs.frozen
class Required:
    text: str
    maybe: str | None
    count: Int32
    moment: datetime | None
    step: Step | None
    data: Mapping[str, object]
    listed: list[str]
    words: tuple[str, ...]
    labels: dict[str, str]


def test_missing_field_without_a_default_becomes_zero_none_or_empty():
    """A field missing from the JSON becomes zero, None or empty, depending on its type."""
    empty = Required("", None, 0, None, None, {}, [], (), {})
    assert TYPES.load({}, Required) == empty
    assert TYPES.dump(empty) == {}
    assert TYPES.load({"text": "a", "labels": {"b": "c"}}, Required) == attrs.evolve(
        empty, text="a", labels={"b": "c"}
    )


@attrs.frozen
class Needs:
    step: Step
    note: str = ""


def test_message_field_that_cannot_be_none_is_required():
    """A message field that cannot be None is required, because it has no zero value."""
    with pytest.raises(InvalidArgument, match="step: is required"):
        TYPES.load({"note": "x"}, Needs)
    assert TYPES.load({"step": {}}, Needs) == Needs(Step())


# -- structure ------------------------------------------------------------------------------------


@attrs.frozen
class Node:
    """A class with fields of its own type."""

    name: str = ""
    children: tuple[Node, ...] = ()
    by_name: Mapping[str, Node] = attrs.field(factory=dict)


def test_a_class_may_contain_itself():
    """A class may have lists and maps of its own type, which are read and written."""
    tree = Node("a", (Node("b", (Node("c"),)),), {"d": Node("e")})
    shown = {
        "name": "a",
        "children": [{"name": "b", "children": [{"name": "c"}]}],
        "byName": {"d": {"name": "e"}},
    }
    assert TYPES.dump(tree) == shown
    assert TYPES.load(shown, Node) == tree


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"children": [{}, {"children": [{"name": 5}]}]}, "children[1].children[0].name"),
        ({"byName": {"x": {"name": 5}}}, "by_name['x'].name"),
        ({"by_name": {"x": 5}}, "by_name['x']"),
        ({"children": [5]}, "children[0]"),
        ({"children": {}}, "children"),
        ({"byName": []}, "by_name"),
        ({"children": [{"nmae": "x"}]}, "children[0].nmae"),
        ({"by_name": {}, "byName": {}}, "by_name"),
        (5, ""),
        (Node(children=5), "children"),
        (Node(children="ab"), "children"),
        (Node(children=(Node(), 5)), "children[1]"),
        (Node(by_name=[]), "by_name"),
        (Node(by_name={5: Node()}), "by_name[5]"),
        (Node(by_name={"x": Node(name=5)}), "by_name['x'].name"),
        (Needs(Node()), "step"),
        (Scalars(by_id={True: "a"}), "by_id[True]"),
        (Scalars(flags={"true": "a"}), "flags['true']"),
    ],
)
def test_error_names_the_path_of_the_field(value, path):
    """An error's field path starts at the top of the message, and uses the proto names."""
    written = attrs.has(type(value))
    with pytest.raises(LroError) as caught:
        TYPES.dump(value) if written else TYPES.load(value, Node)
    assert (caught.value.path if written else caught.value.field) == path


@pytest.mark.parametrize(
    ("message", "shown", "wrong"),
    [
        (
            Scalars(flags={True: "a", False: "b"}),
            {"flags": {"true": "a", "false": "b"}},
            {"flags": {"True": "a"}},
        ),
        (Scalars(by_id={-7: "a"}), {"byId": {"-7": "a"}}, {"byId": {"1.5": "a"}}),
        (Scalars(pairs={"": "a"}), {"pairs": {"": "a"}}, {"flags": {"1": "a"}}),
    ],
)
def test_map_keys_are_written_as_strings(message, shown, wrong):
    """Map keys are written, and can only be read, in their type's text form (spec §1.8(7))."""
    assert TYPES.dump(message) == shown
    assert TYPES.load(shown, Scalars) == message
    with pytest.raises(InvalidArgument, match=r"\["):
        TYPES.load(wrong, Scalars)


@dataclasses.dataclass(frozen=True)
class Plain:
    """A dataclass that is used as a message."""

    text: str
    count: Int32 = 3
    words: list[str] = dataclasses.field(default_factory=list)
    derived: str = dataclasses.field(default="", init=False)


def test_dataclass_is_a_message():
    """A dataclass may be a message: its defaults and ``init=False`` fields work as in attrs."""
    assert TYPES.dump(Plain("a")) == {"text": "a", "count": 3}
    assert TYPES.dump(Plain("", 0)) == {"count": 0}
    assert TYPES.load({"text": "a", "count": 0, "words": ["b"]}, Plain) == Plain("a", 0, ["b"])
    with pytest.raises(InvalidArgument, match="derived"):
        TYPES.load({"derived": "x"}, Plain)


@attrs.frozen
class Checked:
    low: Int32 = attrs.field(default=0, validator=attrs.validators.ge(0))
    high: Int32 = 9

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise InvalidArgument("low", "must not be above high")
        if self.high > 100:
            raise ValueError


def test_validators_of_a_class_refuse_invalid_values():
    with pytest.raises(InvalidArgument, match="must be >= 0"):
        TYPES.load({"low": -1}, Checked)
    with pytest.raises(InvalidArgument, match="low: must not be above high"):
        TYPES.load({"low": 10}, Checked)
    with pytest.raises(InvalidArgument, match="is not a valid Checked"):
        TYPES.load({"high": 101}, Checked)


@attrs.frozen(kw_only=True)
class Dynamic:
    """A message with a default computed from another field, which gives the field presence."""

    base: Int32 = 0
    double: Int32 = attrs.field(default=attrs.Factory(lambda self: 2 * self.base, takes_self=True))


def test_missing_field_gets_its_default_made_from_other_fields():
    """A missing field gets its computed default; an explicit zero stays zero."""
    assert TYPES.load({"base": 4}, Dynamic) == Dynamic(base=4, double=8)
    assert TYPES.load({"base": 4, "double": 0}, Dynamic) == Dynamic(base=4, double=0)
    assert TYPES.dump(Dynamic(base=0)) == {"double": 0}


def test_subclass_is_written_with_the_fields_of_the_declared_class():
    """An instance of a subclass is written with only the fields of the declared class."""

    @attrs.frozen
    class MoreStep(Step):
        more: str = ""

    assert TYPES.dump(Needs(MoreStep(name="a", more="b"))) == {"step": {"name": "a"}}


# -- leniency -------------------------------------------------------------------------------------


@attrs.frozen
class Stages:
    by_name: Mapping[str, Stage] = attrs.field(factory=dict)


def test_unknown_fields_and_enum_names_are_dropped_for_clients():
    """A client drops unknown fields and enum names, but refuses other errors (spec §1.8(5))."""
    value = {"novel": 1, "stage": "NOVEL", "history": ["QUEUED", "NOVEL"], "verb": "v"}
    found = TYPES.load(value, ExportMetadata, strict=False)
    assert found == ExportMetadata(verb="v", history=(Stage.QUEUED,))
    found = TYPES.load({"byName": {"a": "NOVEL", "b": "QUEUED"}}, Stages, strict=False)
    assert found.by_name == {"b": Stage.QUEUED}
    for wrong in ({"stage": 1.5}, {"verb": 5}, {"payload": {"title": "x"}}):
        with pytest.raises(InvalidArgument):
            TYPES.load(wrong, ExportMetadata, strict=False)


def test_any_in_a_message_is_checked_by_servers_only():
    """A server checks an Any in a message and makes it canonical; a client keeps it as it is."""
    inside = {"payload": {"@type": "x/lrofix.v1.Book", "page_count": "5"}}
    strict = TYPES.load(inside, ExportMetadata)
    assert strict.payload == AnyMessage("x/lrofix.v1.Book", {"pageCount": 5})
    lenient = TYPES.load(inside, ExportMetadata, strict=False)
    assert lenient.payload == AnyMessage("x/lrofix.v1.Book", {"page_count": "5"})
    assert TYPES.load({"payload": {}}, ExportMetadata).payload == AnyMessage()
    assert TYPES.dump(ExportMetadata(payload=AnyMessage())) == {"payload": {}}
    with pytest.raises(LroError, match="payload must be an Any"):
        TYPES.dump(ExportMetadata(payload=5))
    with pytest.raises(LroError, match="payload is a x in binary form"):
        TYPES.dump(ExportMetadata(payload=AnyMessage("a/x", b"")))


# -- threads --------------------------------------------------------------------------------------


def test_codecs_can_be_built_by_several_threads():
    """Threads that share a new registry never see a codec that is only half built."""
    for _ in range(20):
        types = TypeRegistry(Scalars, ExportMetadata)
        message = Scalars(f_int32=1, words=("a",), f_string="x")
        shown = TYPES.dump(message)

        def both(number, types=types, message=message, shown=shown):
            if number % 2:
                return types.dump(message) == shown
            return types.load(shown, Scalars) == message

        assert together(8, both) == [True] * 8


@pytest.mark.parametrize(
    ("name", "value", "more"), [("Duration", "1s", {"more": 1}), ("Empty", {}, {"value": {"a": 1}})]
)
def test_extra_field_beside_a_value_is_refused(name, value, more):
    """Servers refuse an extra field beside the value of an Any; clients drop it (spec §1.10(1))."""
    packed = {"@type": f"x/google.protobuf.{name}", "value": value}
    assert TYPES.from_json(packed, strict=True) == AnyMessage(packed["@type"], value)
    if name == "Duration":
        assert TYPES.from_json(packed | more) == AnyMessage(packed["@type"], value)
    with pytest.raises(InvalidArgument):
        TYPES.from_json(packed | more, strict=True)
