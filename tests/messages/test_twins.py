"""A message is the same in JSON and in binary form, whatever the kind of its class."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

pytest.importorskip("google.protobuf")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import lro
from lro._messages.shapes import shape_of
from tests.messages.twins import EXPORT, PAIRS, made, registry, values

TYPES = {kind: registry(kind) for kind in PAIRS}
KINDS = [kind for kind in PAIRS if kind != "attrs"]


@pytest.mark.parametrize("kind", KINDS)
@given(said=values)
def test_a_message_of_any_kind_is_written_and_read_as_its_twin(
    kind: str, said: dict[str, Any]
) -> None:
    """In JSON, strictly and leniently, and in binary form."""
    types, theirs = TYPES[kind], TYPES["attrs"]
    export = PAIRS[kind][0]
    message, twin = made(kind, said), made("attrs", said)
    packed = types.pack(message, export)
    assert packed == theirs.pack(twin)
    binary = lro.Any(packed.type_url, types.binary_payload(packed))
    assert binary.payload == theirs.binary_payload(packed)
    for form in (packed, binary):
        for strict in (True, False):
            assert types.unpack(form, export, strict=strict) == message


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_of_any_kind_has_the_shape_of_its_twin(kind: str) -> None:
    """Names, numbers, labels and kinds, by which filters and proto files know it."""

    def said(cls: Any) -> list[tuple[Any, ...]]:
        return [
            (one.name, one.json_name, one.number, one.label, one.kind, one.message_name)
            for one in shape_of(cls).fields
        ]

    export, step = PAIRS[kind]
    assert said(export) == said(PAIRS["attrs"][0])
    assert said(step) == said(PAIRS["attrs"][1])


def test_the_proto_file_is_the_same_for_every_kind() -> None:
    """The descriptor says nothing of Python."""
    found = {TYPES[kind].binary.descriptor(EXPORT).file.serialized_pb for kind in PAIRS}
    assert len(found) == 1


@pytest.mark.parametrize("kind", PAIRS)
def test_fields_that_are_missing_have_their_zero(kind: str) -> None:
    """And several wrong ones are all named, by the same paths and sentences."""
    types, export = TYPES[kind], PAIRS[kind][0]
    assert types.dump(types.load({}, export), export) == {}
    wrong = {
        "stepCount": "many",
        "small": 2**31,
        "tags": ["a", 3],
        "steps": [{"tries": 1.5}, 7, {"colour": 1}],
        "labels": {"a": "x"},
        "first": {"name": 5, "note": []},
        "odd": 1,
    }
    with pytest.raises(lro.errors.InvalidFields) as caught:
        types.load(wrong, export)
    step = PAIRS[kind][1].__name__
    assert [(one.field, one.description) for one in caught.value.violations] == [
        ("step_count", "must be an int64, got 'many'"),
        ("small", "must be from -2147483648 to 2147483647, got 2147483648"),
        ("tags[1]", "must be a string, got 3"),
        ("steps[0].tries", "must be an int32, got 1.5"),
        ("steps[1]", "must be an object, got 7"),
        ("steps[2].colour", f"is not a field of {step}"),
        ("labels['a']", "must be an int64, got 'x'"),
        ("first.name", "must be a string, got 5"),
        ("first.note", "must be a string, got []"),
        ("odd", f"is not a field of {export.__name__}"),
    ]
    dropped = types.load({"odd": 1, "smallNumber": 3}, export, strict=False)
    assert types.dump(dropped, export) == {}
