"""Evaluation beyond the vectors: other kinds of fields, odd payloads, what SQL may read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import Any, Status
from lro._base.status import type_url
from lro._filters.filter import compile_filter
from lro._filters.parse import Op
from lro._filters.types import MessageType
from lro._messages.shapes import shape_of
from lro.errors import InvalidFilter
from lro.types import Json
from tests.filters.every_field_kind import NAME, Everything, compiled, matches, refusal
from tests.filters.messages import TYPES, Row

LOOSE: Json = {"n": 1.5, "s": "x*y", "t": True, "nil": None, "o": {"k": [1, [2, {"d": "e"}]]}}


@pytest.mark.parametrize("field", ["value", "loose"])
@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("{}.n = 1.5", True),
        ("{}.n > 1", True),
        ("{}.n != 2", True),
        ("{}.n != x", False),
        ("{}.n = true", False),
        ("{}.s = 'x*'", True),
        ("{}.s != 'x*'", False),
        ("{}.s > 'x'", True),
        ("{}.s = *", True),
        ("{}.n = *", False),
        ("{}.t = true", True),
        ("{}.t != false", True),
        ("{}.t > false", False),
        ("{}.t != 1", False),
        ("{}.nil = null", True),
        ("{}.nil:null", True),
        ("{}.nil != null", False),
        ("{}.nil > null", False),
        ("{}.nil:*", True),
        ("{}.gone:*", False),
        ("{}.gone != x", False),
        ("{}.o:k", True),
        ("{}.o = k", False),
        ("{}.o.k:1", True),
        ("{}.o.k:2", False),  # an element that is a list equals nothing
        ("{}.o.k = 1", False),
        ("{}.o.k.d:e", True),
        ("{}.o.k.d = e", False),
        ("{}.n.below = 1", False),
        ("{}:n", True),
        ("{}:x", False),
    ],
)
def test_a_value_is_typed_by_what_it_holds(field: str, test: str, expected: bool) -> None:
    """Values of any type compare as in a Struct; what does not fit is false (spec §7.8(5))."""
    assert matches(test.format(f"metadata.{field}"), {field: LOOSE}) is expected


def test_null_is_a_value_only_where_it_can_be() -> None:
    """A Value may hold null; elsewhere a null means unset (spec §1.8(3))."""
    assert matches("metadata.value = null", {"value": None})
    assert matches("metadata.value:*", {"value": None})
    assert not matches("metadata.value:*", {})
    assert matches("metadata.by_key.a = null", {"byKey": {"a": None}})
    for field in ("listed", "node", "maybe", "limit"):
        assert not matches(f"metadata.{field}:*", {field: None})


def test_lists_and_repeated_values() -> None:
    """A ListValue, repeated Values and repeated Structs are asked with ``:``."""
    assert matches("metadata.listed:b", {"listed": ["a", "b"]})
    assert matches("metadata.listed:*", {"listed": []})
    assert not matches("metadata.listed = b", {"listed": ["b"]})
    assert matches("metadata.listed.k:v", {"listed": [{"k": "v"}]})
    assert matches("metadata.values:7", {"values": ["x", 7]})
    assert matches("metadata.values:null", {"values": [None]})
    assert not matches("metadata.values:*", {"values": []})
    assert matches("metadata.values.k:v", {"values": [1, {"k": "v"}]})
    assert not matches("metadata.lists:a", {"lists": [["a"]]})
    assert matches("metadata.structs.k:v", {"structs": [{}, {"k": "v"}]})
    assert matches("metadata.structs:*", {"structs": [{}]})
    assert "only ':*'" in refusal("metadata.structs:k")
    assert "only ':'" in refusal("metadata.values = 7")
    assert "only with ':'" in refusal("metadata.structs.k = v")


def test_an_open_map_is_a_struct() -> None:
    """``Mapping[str, object]`` is a Struct: keys are asked for, the whole is not compared."""
    assert matches("metadata.open:a", {"open": {"a": None}})
    assert matches("metadata.open.a.b = c", {"open": {"a": {"b": "c"}}})
    assert not matches("metadata.open:*", {})
    assert "a Struct takes only ':'" in refusal("metadata.open = a")


def test_map_keys_fit_their_type() -> None:
    """A key is looked up as JSON spells it; one that the type cannot have is refused."""
    assert matches("metadata.flags.true = yes", {"flags": {"true": "yes"}})
    assert matches("metadata.by_id:007", {"byId": {"7": ""}})
    assert matches("metadata.by_id.7 = ''", {"byId": {"7": ""}})
    assert matches(
        "metadata.by_long.-9223372036854775808:label", {"byLong": {str(-(2**63)): {"label": "x"}}}
    )
    assert not matches("metadata.by_long.1.label = x", {"byLong": {"2": {"label": "x"}}})
    assert refusal("metadata.flags:yes") == "expected the key true or false, found 'yes'"
    assert refusal("metadata.by_id:-1") == "expected a key of type uint32, found '-1'"
    assert refusal("metadata.by_id.4294967296 = x").startswith("expected a key of type uint32")
    assert refusal("metadata.by_id:x").startswith("expected a key of type uint32")
    assert refusal("metadata.by_long:" + "9" * 5000).startswith("expected a key of type int64")
    assert refusal("metadata.by_id = 7").startswith("a repeated field or map takes only ':'")


def test_enums_compare_by_name() -> None:
    """An alias is the name that JSON prints; a number without a name equals none."""
    assert matches("metadata.colour = RED", {})
    assert not matches("metadata.colour:*", {})
    assert matches("metadata.colour = VERT", {"colour": "GREEN"})
    assert matches("metadata.colour != GREEN", {"colour": 77})
    assert matches("metadata.colour:*", {"colour": 77})
    assert matches("metadata.maybe:*", {"maybe": "RED"})
    assert not matches("metadata.maybe != GREEN", {})


def test_numbers_are_rounded_to_the_type_of_the_field() -> None:
    """A float compares as 32 bits, a double as 64, also in lists and for special values."""
    assert matches("metadata.ratio = 0.1", {"ratio": 0.1})
    assert matches("metadata.ratio = 0.100000001", {"ratio": 0.1})
    assert not matches("metadata.rate = 0.100000001", {"rate": 0.1})
    assert matches("metadata.ratios:0.1", {"ratios": [1, 0.1]})
    assert matches("metadata.rate > 9e307", {"rate": "Infinity"})
    assert matches("metadata.rate != 1", {"rate": "NaN"})
    assert not matches("metadata.rate < 1", {"rate": "NaN"})
    assert matches("metadata.rate:*", {"rate": -0.0})
    assert matches("metadata.rate = 0", {"rate": -0.0})
    assert not matches("metadata.rate:*", {"rate": 0})
    assert not matches("metadata.rate:*", {"rate": "broken"})
    assert not matches("metadata.rate != 1", {"rate": [1]})
    assert matches("metadata.limit = 5", {"limit": 5.0})
    assert not matches("metadata.limit != 5", {"limit": 5.5})
    assert not matches("metadata.limit != 1", {})
    assert matches("metadata.limit:*", {"limit": 0})


def test_bytes_masks_and_packed_messages_are_only_present() -> None:
    """Presence is all that can be asked of them (spec §7.7(3))."""
    payload: Json = {"blob": "", "raw": "", "blobs": ["AA=="], "mask": "a", "packed": [{}]}
    for field in ("blob", "raw", "blobs", "mask", "packed"):
        assert matches(f"metadata.{field}:*", payload)
        assert matches(f"metadata:{field}", payload)
        assert not matches(f"metadata.{field}:*", {})
        assert "takes only" in refusal(f"metadata.{field} = x")
        assert "only ':*'" in refusal(f"metadata.{field}:x")


def test_repeated_times_compare_as_times() -> None:
    """An element equals a literal at the same moment, however either is written."""
    payload: Json = {"when": ["2030-01-01T00:00:00Z"]}
    assert matches("metadata.when:'2030-01-01T01:00:00+01:00'", payload)
    assert matches("metadata.when:('2029-01-01T00:00:00Z' OR '2030-01-01T00:00:00Z')", payload)


def test_a_binary_payload_is_not_looked_into() -> None:
    """Everything below it is false; its presence and type can be asked."""
    assert not matches("metadata.limit = 5", b"\x08\x05")
    assert not matches("metadata:limit", b"\x08\x05")
    assert not matches("metadata.colour = RED", b"")
    assert not matches("limit", b"limit")
    assert matches("metadata:*", b"")
    assert matches(f"type(metadata) = {NAME}", b"")


def test_the_type_decides_which_test_applies() -> None:
    """A type that is not registered, or not for this field, makes the test false."""
    book = Any(type_url("lrofix.v1.Book"), {"title": "x"})
    both = compile_filter("metadata.title = x", metadata=[TYPES["lrofix.v1.Book"]], response=[])
    assert both.matches(Row(metadata=book))
    assert not both.matches(Row(response=book))
    assert not compiled("-metadata.limit:* metadata.colour = RED").matches(Row(metadata=book))
    assert not compiled("title").matches(Row(metadata=book))


def test_well_known_types_as_metadata() -> None:
    """A Value or ListValue is looked into; a wrapper can be searched and is present, no more."""
    for name, payload, text, expected in (
        ("Value", {"a": [1]}, "metadata.a:1", True),
        ("Value", None, "metadata:null", True),
        ("Value", ["x"], "metadata:x", True),
        ("ListValue", ["x", {"y": 1}], "metadata.y:1", True),
        ("ListValue", ["x"], "X", True),
        ("Struct", {"a": [["b"]]}, "B", True),
        ("Struct", {"a": [["b"]]}, "a", True),
        ("StringValue", "Word", "word", True),
        ("StringValue", "Word", "metadata:*", True),
        ("Timestamp", "2030-01-01T00:00:00Z", "2030", False),
    ):
        full_name = f"google.protobuf.{name}"
        subject = Row(metadata=Any(type_url(full_name), payload))
        registered = [MessageType(full_name, None)]
        found = compile_filter(text, metadata=registered, response=[]).matches(subject)
        assert found is expected, (name, text)
    wrapper = [MessageType("google.protobuf.StringValue", None)]
    for text in ("metadata:x", "metadata.value = x", "metadata = x"):
        with pytest.raises(InvalidFilter):
            compile_filter(text, metadata=wrapper, response=[])


def test_a_type_without_a_shape_has_no_fields() -> None:
    """A codec that does not know its fields leaves nothing to ask for but presence."""
    unknown = [MessageType("acme.v1.Opaque", None)]
    with pytest.raises(InvalidFilter, match="there is no field 'x'"):
        compile_filter("metadata.x = 1", metadata=unknown, response=[])
    subject = Row(metadata=Any(type_url("acme.v1.Opaque"), {"x": "found"}))
    assert not compile_filter("found", metadata=unknown, response=[]).matches(subject)
    assert compile_filter("metadata:*", metadata=unknown, response=[]).matches(subject)


def test_recursive_messages_are_walked_without_recursion() -> None:
    """A path of thousands of steps and a payload as deep are only a loop."""
    payload: dict[str, Json] = {"label": "Bottom"}
    for _ in range(3000):
        payload = {"below": payload, "links": [{"label": "l"}]}
    top: Json = {"node": payload, "loose": deep_list(3000)}
    path = "metadata.node" + ".below" * 1200
    assert matches(f"{path}.links.label:l", top)
    assert not matches(f"{path}.label = x", {"node": {"below": {}}})
    assert matches("bottom", top)
    assert matches("innermost", top)
    assert matches("metadata.loose.k:innermost", {"loose": deep_list(3000, {"k": "innermost"})})


def deep_list(depth: int, inner: Json = "innermost") -> Json:
    """Lists in lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


def test_error_and_functions() -> None:
    """The operation's own fields and the functions, where the vectors leave a gap."""
    failed = Row(done=True, error=Status(3, "Bad Ä", (Any(),)), cancel_requested=True)
    for text, on_failed, on_running in (
        ("error.code = 3.0", True, False),
        ("error:details", True, False),
        ("error.details:*", True, False),
        ("error:code", True, False),
        ("bad", True, False),
        ("ä", True, False),
        ("state():*", True, True),
        ("state() = 'FAILED'", True, False),
        ("cancel_requested():*", True, False),
        ("cancel_requested() = false", False, True),
        ("cancel_requested() != true", False, True),
        ("create_time():*", True, True),
        ("create_time() = '2024-01-01T00:00:00Z'", True, True),
        ("end_time() != '2024-01-01T00:00:00Z'", False, False),
        ("NOT end_time():*", True, True),
        ("type(metadata):*", False, False),
        ("type(response) != x", False, False),
        ("name:*", True, True),
        ("name:'*'", True, True),
        ("name = operations/*", True, True),
        ("name > 'operations/*'", True, True),
        ("name:(* -x)", True, True),
    ):
        assert compiled(text).matches(failed) is on_failed, text
        assert compiled(text).matches(Row()) is on_running, text
    assert compiled("type(metadata) = ''").matches(Row(metadata=Any()))


FIELDS = st.sampled_from([field.json_name for field in shape_of(Everything).fields])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just("RED"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["label", "below", "links", "true", "7", "k"]), inner)
    ),
    max_leaves=6,
)
LITERALS = ["*", "x", "5", "1e308", "true", "null", "RED", "label", "7", "'2030-01-01T00:00:00Z'"]
PATHS = st.builds(
    "metadata.{}{}".format,
    FIELDS,
    st.sampled_from(["", ".k", ".7", ".true", ".label", ".below.label", ".links.label"]),
)


@given(PATHS, st.sampled_from(list(Op)), st.sampled_from(LITERALS), FIELDS, JSON)
def test_no_payload_makes_a_filter_fail(
    path: str, op: Op, literal: str, field: str, value: Json
) -> None:
    """A valid filter is true or false of any payload, also of one that breaks its type."""
    try:
        found = compiled(f"{path} {op.value} {literal}")
    except InvalidFilter:
        return
    own = path.split(".")[1]
    for payload in ({own: value, field: value}, value):
        subject = Row(metadata=Any(type_url(NAME), payload))
        assert found.matches(subject) in (True, False)
        assert compiled("label").matches(subject) in (True, False)


def test_five_hundred_searches_read_a_record_once() -> None:
    """A hostile filter costs a pass over the strings for each test, and folds them only once."""
    subject = Row(metadata=Any(type_url(NAME), {"loose": ["x" * 1000] * 100}))
    text = " OR ".join(["*x*y*"] * 500)
    assert not compiled(text).matches(subject)
    numbers = " OR ".join(f"{'9' * 10}{number}e308" for number in range(300))
    assert not compiled(f"metadata.limit = ({numbers})").matches(subject)
