"""Enum values as numbers, for clients that request them (spec §5.8(5))."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

import lro
import lro.wire
from lro._model.json import with_enum_numbers
from lro.http import OperationsEdge
from tests.http.counting_service import (
    URL,
    CountMetadata,
    CountResponse,
    Phase,
    Quality,
    ask,
    begun,
)


class Colour(enum.Enum):
    """An enum without numbers of its own."""

    NONE = "none"
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Pixel:
    """A message without a full name, used inside another."""

    colour: Colour = Colour.NONE


@lro.message("acme.v1.Picture")
@attrs.frozen(kw_only=True)
class Picture:
    """A message with enums in every possible place."""

    colour: Colour = Colour.NONE
    best: Colour | None = None
    colours: tuple[Colour, ...] = ()
    by_name: Mapping[str, Colour] = attrs.field(factory=dict)
    pixel: Pixel | None = None
    pixels: tuple[Pixel, ...] = ()
    inner: Picture | None = None
    packed: lro.AnyMessage | None = None
    data: dict[str, object] = attrs.field(factory=dict)
    anything: object = None
    label: str = ""
    last_words: tuple[str, ...] = ()
    count: lro.Duration | None = None


TYPES = lro.TypeRegistry(Picture, CountMetadata, CountResponse)
RED = TYPES.pack(Picture(colour=Colour.RED))


def shown(message: Any) -> Any:
    """Return the JSON of a message in a response that has enum numbers."""
    packed = message if isinstance(message, lro.AnyMessage) else TYPES.pack(message)
    operation = lro.Operation(name="operations/x", done=True, result=packed)
    response = lro.wire.operation_to_json(with_enum_numbers(operation, TYPES), TYPES)["response"]
    assert isinstance(response, dict)
    del response["@type"]
    return response


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (Picture(colour=Colour.BLUE, label="RED"), {"colour": 2, "label": "RED"}),
        (Picture(best=Colour.NONE), {"best": 0}),
        (Picture(colours=(Colour.RED, Colour.NONE)), {"colours": [1, 0]}),
        (Picture(by_name={"RED": Colour.BLUE}), {"byName": {"RED": 2}}),
        (Picture(pixel=Pixel(Colour.RED)), {"pixel": {"colour": 1}}),
        (Picture(pixels=(Pixel(), Pixel(Colour.RED))), {"pixels": [{}, {"colour": 1}]}),
        (Picture(inner=Picture(colour=Colour.RED)), {"inner": {"colour": 1}}),
        (Picture(data={"colour": "RED"}), {"data": {"colour": "RED"}}),
        (Picture(anything=["RED"]), {"anything": ["RED"]}),
        (Picture(last_words=("RED",)), {"lastWords": ["RED"]}),
        (Picture(count=lro.Duration(1)), {"count": "1s"}),
        (Picture(packed=RED), {"packed": {"@type": URL + "acme.v1.Picture", "colour": 1}}),
        (Picture(packed=lro.AnyMessage()), {"packed": {}}),
        (CountResponse(quality=Quality.FINE), {"quality": 10}),
        (lro.types.StringValue("RED"), {"value": "RED"}),
        (lro.Struct({"colour": "RED"}), {"value": {"colour": "RED"}}),
    ],
)
def test_enum_fields_are_numbers(message: Any, wanted: Any) -> None:
    """Each value of an enum field becomes its number; other texts stay unchanged."""
    assert shown(message) == wanted


def test_enums_in_nested_any_are_numbers() -> None:
    """An enum in a message inside two nested Anys becomes its number."""
    inner = {"@type": URL + "acme.v1.Picture", "colour": "RED"}
    middle = {"@type": URL + "google.protobuf.Any", "value": inner}
    outer = lro.AnyMessage(URL + "google.protobuf.Any", middle)
    assert shown(outer) == {"value": {**middle, "value": {**inner, "colour": 1}}}


@pytest.mark.parametrize(
    "payload",
    [
        {"colour": 7},
        {"colour": "MAUVE"},
        {"colours": "RED"},
        {"by_name": 7},
        {"pixel": "RED"},
        {"packed": ["RED"]},
        {"packed": {"@type": 7, "colour": "RED"}},
        {"packed": {"@type": URL + "acme.v1.Strange", "colour": "RED"}},
        {"strange": "RED"},
    ],
)
def test_payload_of_other_shape_is_unchanged(payload: dict[str, Any]) -> None:
    """Fields of a payload that do not fit their types stay unchanged."""
    assert shown(lro.AnyMessage(URL + "acme.v1.Picture", dict(payload))) == payload


def test_enum_field_is_found_by_proto_name_and_enum_alias() -> None:
    """A field is found by either of its names, and a value by its alias (FINE means GOOD)."""
    picture = lro.AnyMessage(URL + "acme.v1.Picture", {"by_name": {"a": "RED"}, "quality": "FINE"})
    assert shown(picture) == {"by_name": {"a": 1}, "quality": "FINE"}
    assert shown(lro.AnyMessage(URL + "acme.v1.CountResponse", {"quality": "FINE"})) == {
        "quality": 10
    }


def test_enums_in_all_messages_of_an_operation_are_numbers() -> None:
    """Enums in metadata, response and error details become numbers."""
    failed = lro.Operation(
        name="operations/x",
        done=True,
        metadata=TYPES.pack(CountMetadata(phase=Phase.COUNTING)),
        result=lro.Status(5, "RED", (RED, lro.AnyMessage(URL + "acme.v1.Strange", {"a": "RED"}))),
    )
    printed = lro.wire.operation_to_json(with_enum_numbers(failed, TYPES), TYPES)
    assert printed == {
        "name": "operations/x",
        "done": True,
        "metadata": {"@type": URL + "acme.v1.CountMetadata", "phase": 1},
        "error": {
            "code": 5,
            "message": "RED",
            "details": [
                {"@type": URL + "acme.v1.Picture", "colour": 1},
                {"@type": URL + "acme.v1.Strange", "a": "RED"},
            ],
        },
    }


def test_binary_payloads_are_not_changed() -> None:
    """A binary or missing payload stays unchanged."""
    binary = lro.Operation(
        name="operations/x", metadata=lro.AnyMessage(URL + "acme.v1.Picture", b"\0")
    )
    for operation in binary, lro.Operation(name="operations/y"):
        assert with_enum_numbers(operation, TYPES) == operation


@pytest.mark.parametrize("alt", ["$alt=json%3Benum-encoding%3Dint", "alt=json;enum-encoding=int"])
def test_enum_numbers_are_returned_only_on_request(alt: str) -> None:
    """Get, Wait, List and BatchGet return enum numbers only on request."""
    counting, name = begun(metadata=CountMetadata(phase=Phase.COUNTING))
    edge = OperationsEdge(counting.service)
    wait = {"timeout": "0s"}
    for query, phase in ((f"?{alt}", 1), ("", "COUNTING"), ("?alt=json", "COUNTING")):
        got = edge.handle(ask("GET", f"/v1/{name}{query}"))
        waited = edge.handle(ask("POST", f"/v1/{name}:wait{query}", wait))
        listed = edge.handle(ask("GET", f"/v1/operations{query}"))
        batch = edge.handle(ask("POST", f"/v1/operations:batchGet{query}", {"names": [name]}))
        single = json.loads(got.body)
        assert single["metadata"] == {"@type": URL + "acme.v1.CountMetadata", "phase": phase}
        assert json.loads(waited.body) == single
        assert json.loads(listed.body) == {"operations": [single]}
        assert json.loads(batch.body)["operations"] == [single]
