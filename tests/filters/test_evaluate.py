"""Filters evaluated on cases that the vectors lack: more kinds of fields, malformed payloads."""

from __future__ import annotations

import pytest

from lro import AnyMessage, Status
from lro.types import Json
from tests.filters.every_field_kind import NAME, compiled, deep_list, matches, refusal
from tests.filters.messages import Row, types, url

LOOSE: Json = {"n": 1.5, "s": "x*y", "t": True, "nil": None, "o": {"k": [1, [2, {"d": "e"}]]}}


@pytest.mark.parametrize("field", ["value", "loose"])
@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("{}.n != x", False),
        ("{}.n = true", False),
        ("{}.s != 'x*'", False),
        ("{}.s > 'x'", True),
        ("{}.s = *", True),
        ("{}.n = *", False),
        ("{}.t != false", True),
        ("{}.t != 1", False),
        ("{}.nil:null", True),
        ("{}.nil != null", False),
        ("{}.nil > null", False),
        ("{}.gone:*", False),
        ("{}.o.k:1", True),
        ("{}.o.k:2", False),  # a list inside the list equals no value
        ("{}.o.k.d:e", True),
        ("{}.o.k.d = e", False),
        ("{}:n", True),
    ],
)
def test_dynamic_value_compares_by_its_json_type(field: str, test: str, expected: bool) -> None:
    """A value of dynamic type is compared by its JSON type, as in a Struct (spec §7.8(5))."""
    assert matches(test.format(f"metadata.{field}"), {field: LOOSE}) is expected


@pytest.mark.parametrize(
    ("text", "payload", "expected"),
    [
        # A Value may hold null. In other fields, null means unset (spec §1.8(3)).
        ("metadata.value = null", {"value": None}, True),
        ("metadata.value:*", {"value": None}, True),
        ("metadata.value:*", {}, False),
        ("metadata.by_key.a = null", {"byKey": {"a": None}}, True),
        *((f"metadata.{x}:*", {x: None}, False) for x in ("listed", "node", "maybe", "limit")),
        # A ListValue, repeated Values and repeated Structs are tested with ``:``.
        ("metadata.listed:b", {"listed": ["a", "b"]}, True),
        ("metadata.listed:*", {"listed": []}, True),
        ("metadata.listed = b", {"listed": ["b"]}, False),
        ("metadata.listed.k:v", {"listed": [{"k": "v"}]}, True),
        ("metadata.values:7", {"values": ["x", 7]}, True),
        ("metadata.values:null", {"values": [None]}, True),
        ("metadata.values:*", {"values": []}, False),
        ("metadata.lists:a", {"lists": [["a"]]}, False),
        ("metadata.structs.k:v", {"structs": [{}, {"k": "v"}]}, True),
        ("metadata.structs:*", {"structs": [{}]}, True),
        # ``Mapping[str, object]`` is a Struct. Its keys can be tested, but not the whole Struct.
        ("metadata.open:a", {"open": {"a": None}}, True),
        ("metadata.open.a.b = c", {"open": {"a": {"b": "c"}}}, True),
        ("metadata.open:*", {}, False),
        # A key is normalized to its JSON spelling.
        ("metadata.flags.true = yes", {"flags": {"true": "yes"}}, True),
        ("metadata.by_id:007", {"byId": {"7": ""}}, True),
        ("metadata.by_id.7 = ''", {"byId": {"7": ""}}, True),
        (
            "metadata.by_long.-9223372036854775808:label",
            {"byLong": {str(-(2**63)): {"label": "x"}}},
            True,
        ),
        ("metadata.by_long.1.label = x", {"byLong": {"2": {"label": "x"}}}, False),
        # An enum's aliases are equal. A number without a name equals no name.
        ("metadata.colour = RED", {}, True),
        ("metadata.colour:*", {}, False),
        ("metadata.colour = VERT", {"colour": "GREEN"}, True),
        ("metadata.colour != GREEN", {"colour": 77}, True),
        ("metadata.colour:*", {"colour": 77}, True),
        ("metadata.maybe:*", {"maybe": "RED"}, True),
        ("metadata.maybe != GREEN", {}, False),
        # Floats compare in 32 bits and doubles in 64, also in lists, and with NaN and infinity.
        ("metadata.ratio = 0.100000001", {"ratio": 0.1}, True),
        ("metadata.rate = 0.100000001", {"rate": 0.1}, False),
        ("metadata.ratios:0.1", {"ratios": [1, 0.1]}, True),
        ("metadata.rate > 9e307", {"rate": "Infinity"}, True),
        ("metadata.rate != 1", {"rate": "NaN"}, True),
        ("metadata.rate < 1", {"rate": "NaN"}, False),
        ("metadata.rate:*", {"rate": -0.0}, True),
        ("metadata.rate = 0", {"rate": -0.0}, True),
        ("metadata.rate:*", {"rate": "broken"}, False),
        ("metadata.rate != 1", {"rate": [1]}, False),
        ("metadata.limit = 5", {"limit": 5.0}, True),
        ("metadata.limit != 5", {"limit": 5.5}, False),
        ("metadata.limit != 1", {}, False),
        ("metadata.limit:*", {"limit": 0}, True),
        # An element of a list of times equals a literal of the same instant.
        ("metadata.when:'2030-01-01T01:00:00+01:00'", {"when": ["2030-01-01T00:00:00Z"]}, True),
        # Fields in a binary payload cannot be tested, but the payload's presence and type can be.
        ("metadata.limit = 5", b"\x08\x05", False),
        ("metadata:limit", b"\x08\x05", False),
        ("metadata.colour = RED", b"", False),
        ("limit", b"limit", False),
        ("gone", {"nosuch": "gone", "node": {"gone": "gone"}}, False),
        ("metadata:*", b"", True),
        (f"type(metadata) = {NAME}", b"", True),
    ],
)
def test_test_of_a_field_matches(text: str, payload: Json | bytes, expected: bool) -> None:
    """A filter matches or not, as the field's type and value require (spec §7.7 to §7.12)."""
    assert matches(text, payload) is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metadata.structs:k", "only ':*'"),
        ("metadata.values = 7", "only ':'"),
        ("metadata.structs.k = v", "only with ':'"),
        ("metadata.open = a", "a Struct takes only ':'"),
        ("metadata.flags:yes", "expected the key true or false, found 'yes'"),
        ("metadata.by_id:-1", "expected a key of type uint32, found '-1'"),
        ("metadata.by_id.4294967296 = x", "expected a key of type uint32"),
        ("metadata.by_id:x", "expected a key of type uint32"),
        ("metadata.by_long:" + "9" * 5000, "expected a key of type int64"),
        ("metadata.by_id = 7", "a repeated field or map takes only ':'"),
    ],
)
def test_unsuitable_test_of_a_field_is_refused(text: str, said: str) -> None:
    """A test that does not suit a list or Struct, or whose key the map cannot have, is refused."""
    assert said in refusal(text)


def test_bytes_masks_and_packed_messages_are_only_present() -> None:
    """Only the presence of bytes, field masks and Any fields can be tested (spec §7.7(3))."""
    payload: Json = {"blob": "", "raw": "", "blobs": ["AA=="], "mask": "a", "packed": [{}]}
    for field in ("blob", "raw", "blobs", "mask", "packed"):
        assert matches(f"metadata.{field}:*", payload)
        assert matches(f"metadata:{field}", payload)
        assert not matches(f"metadata.{field}:*", {})
        assert "takes only" in refusal(f"metadata.{field} = x")
        assert "only ':*'" in refusal(f"metadata.{field}:x")


def test_the_type_decides_which_test_applies() -> None:
    """A test of a field is false if the type of the record's metadata lacks the field."""
    book = AnyMessage(url("lrofix.v1.Book"), {"title": "x"})
    both = compiled("metadata.title = x", types(["lrofix.v1.Book"]))
    assert both.matches(Row(metadata=book))
    assert not both.matches(Row(response=book))
    assert not compiled("-metadata.limit:* metadata.colour = RED").matches(Row(metadata=book))
    assert not compiled("title").matches(Row(metadata=book))


@pytest.mark.parametrize(
    ("name", "payload", "text", "expected"),
    [
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
    ],
)
def test_well_known_type_as_metadata(name: str, payload: Json, text: str, expected: bool) -> None:
    """Parts of a Value or ListValue can be tested. A wrapper allows only search and presence."""
    full_name = f"google.protobuf.{name}"
    subject = Row(metadata=AnyMessage(url(full_name), payload))
    assert compiled(text, types([full_name])).matches(subject) is expected


@pytest.mark.parametrize("text", ["metadata:x", "metadata.value = x", "metadata = x"])
def test_wrapper_has_no_fields(text: str) -> None:
    assert refusal(text, types(["google.protobuf.StringValue"]))


def test_a_type_without_a_shape_has_no_fields() -> None:
    """For a type whose codec has no shape, only the presence of the metadata can be tested."""
    unknown = types(["acme.v1.Opaque"])
    assert "there is no field 'x'" in refusal("metadata.x = 1", unknown)
    subject = Row(metadata=AnyMessage(url("acme.v1.Opaque"), {"x": "found"}))
    assert not compiled("found", unknown).matches(subject)
    assert compiled("metadata:*", unknown).matches(subject)


def test_recursive_messages_are_walked_without_recursion() -> None:
    """Messages of thousands of nested levels are searched in a loop, without recursion."""
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


FAILED = Row(done=True, error=Status(3, "Bad Ä", (AnyMessage(),)), cancel_requested=True)
WAITS, RUNS = Row(waits=True), Row()


@pytest.mark.parametrize(
    ("text", "on_waiting", "on_running"),
    [
        ("waiting()", True, False),
        ("NOT waiting()", False, True),
        ("waiting() = true", True, False),
        ("waiting() = false", False, True),
        ("waiting() != true", False, True),
        ("waiting():*", True, False),
        ("NOT waiting():*", False, True),
        ("waiting() AND state() = IN_PROGRESS", True, False),
    ],
)
def test_waiting_work_is_told_from_running_work(
    text: str, on_waiting: bool, on_running: bool
) -> None:
    """``waiting()`` is a bool, so it needs no operator."""
    wanted = compiled(text, (), ())
    assert [wanted.matches(row) for row in (WAITS, RUNS, FAILED)] == [
        on_waiting,
        on_running,
        on_running and "state" not in text,
    ]


@pytest.mark.parametrize(
    ("text", "on_failed", "on_running"),
    [
        ("error.code = 3.0", True, False),
        ("error:details", True, False),
        ("error.details:*", True, False),
        ("error:code", True, False),
        ("ä", True, False),
        ("state():*", True, True),
        ("state() = 'FAILED'", True, False),
        ("cancel_requested():*", True, False),
        ("cancel_requested() = false", False, True),
        ("create_time():*", True, True),
        ("create_time() = '2024-01-01T00:00:00Z'", True, True),
        ("end_time() != '2024-01-01T00:00:00Z'", False, False),
        ("NOT end_time():*", True, True),
        ("method() = acme.v1.Data.Copy", True, False),
        ("method():acme.v1.Data.Copy", True, False),
        ("method() = 'acme.v1.*.Copy'", True, False),
        ("method() = acme.v1.Data", False, False),
        ("method() != acme.v1.Data.Copy", False, True),
        ("method() != 'acme.v1.*'", False, True),
        ("method():*", True, True),
        ("method() = (acme.v1.Data.Copy OR acme.v2.Data.Move)", True, True),
        ("type(metadata):*", False, False),
        ("type(response) != x", False, False),
        ("name:*", True, True),
        ("name:'*'", True, True),
        ("name = operations/*", True, True),
        ("name > 'operations/*'", True, True),
        ("name:(* -x)", True, True),
    ],
)
def test_own_field_or_function_matches(text: str, on_failed: bool, on_running: bool) -> None:
    """Each filter has the expected result for a failed and for a running operation."""
    assert compiled(text).matches(FAILED) is on_failed
    assert compiled(text).matches(Row(method="acme.v2.Data.Move")) is on_running


def test_type_of_an_empty_any_is_empty() -> None:
    assert compiled("type(metadata) = ''").matches(Row(metadata=AnyMessage()))
