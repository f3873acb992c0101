"""Test vectors of the binary form: Any, Operation and other messages of the interface."""

from __future__ import annotations

import json

import pytest
from google.longrunning import operations_proto_pb2 as pb

from lro import AnyMessage, InvalidArgument, LroError
from lro._messages.protobuf.binary import parsed, serialized
from lro.protobuf import from_proto, operation_from_proto, operation_to_proto, to_proto
from lro.wire import loads_strict, operation_from_json, operation_to_json, page_to_json
from tests.protobuf.fixtures import of_attrs, of_protobuf
from tests.vector_files import by_id, vectors

KINDS = {"attrs": of_attrs(), "protobuf": of_protobuf()}
BY_NUMBER = {"anyjson-064", "anyjson-114"}
"""IDs of cases with an enum number that has no name; a Python enum cannot have such a number."""


NO_CLASS = {"google.rpc.Status", "lrofix.v1.Scalars"}
"""Messages without a fitting attrs class: Status has no class here; Scalars has ``sint32`` and
a custom JSON name, which attrs classes cannot express.
"""


def chosen(file, modes, kind):
    """Yield the file's cases with one of these modes and a message that this kind supports."""
    for case in vectors(file)["cases"]:
        name = case.get("type_url", "").rpartition("/")[2]
        known = kind == "protobuf" or (name not in NO_CLASS and case["id"] not in BY_NUMBER)
        if case["mode"] in modes and known:
            yield pytest.param(kind, case, id=f"{kind}-{case['id']}")


def any_cases(*modes):
    """Parametrize a test with cases of ``any_json`` for both kinds of classes."""
    found = [case for kind in KINDS for case in chosen("any_json", modes, kind)]
    return pytest.mark.parametrize(("kind", "case"), found)


def value_of(case):
    if "input_text" in case:
        return loads_strict(case["input_text"])
    return case["input"] if "input" in case else case["json"]


@any_cases("roundtrip", "parse")
def test_any_has_equal_json_and_binary_forms(kind, case):
    """The JSON of each vector is encoded as its bytes, and the bytes are printed as its JSON."""
    types = KINDS[kind]
    packed = types.from_json(value_of(case), strict=True)
    assert packed.type_url == case["type_url"]
    assert types.binary_payload(packed).hex() == case["value_hex"]
    assert types.to_json(packed) == case["json"]
    assert (
        types.to_json(AnyMessage(case["type_url"], bytes.fromhex(case["value_hex"])))
        == case["json"]
    )


@pytest.mark.parametrize(
    "case", [c for c in vectors("any_json")["cases"] if c["mode"] == "parse_error"], ids=by_id
)
def test_invalid_any_is_refused(case):
    """A registry of protobuf classes refuses each invalid Any of the vectors."""
    with pytest.raises((ValueError, LroError)):
        KINDS["protobuf"].from_json(value_of(case), strict=True)


@pytest.mark.parametrize(
    "case", [c for c in vectors("any_json")["cases"] if c["mode"] == "print_error"], ids=by_id
)
@pytest.mark.parametrize("kind", KINDS)
def test_message_that_cannot_be_printed_is_refused(kind, case):
    with pytest.raises(LroError):
        KINDS[kind].to_json(AnyMessage(case["type_url"], bytes.fromhex(case["value_hex"])))


INTERFACE = {cls.DESCRIPTOR.full_name: cls for cls in (
    pb.Operation, pb.GetOperationRequest, pb.ListOperationsRequest, pb.ListOperationsResponse,
    pb.CancelOperationRequest, pb.DeleteOperationRequest, pb.WaitOperationRequest,
    pb.OperationInfo,
)}  # fmt: skip
TYPES = KINDS["protobuf"]


def decoded(case):
    """Decode a case's bytes to a message of one of our classes or of a protobuf class."""
    payload = bytes.fromhex(case["input_hex"])
    if case["message"] in INTERFACE:
        return from_proto(parsed(INTERFACE[case["message"]], payload))
    return TYPES.codec(case["message"]).load(payload, strict=True)


def shown(case, message):
    """Return the JSON value of a case's message."""
    if case["message"] == "google.longrunning.Operation":
        return operation_to_json(message, TYPES)
    if case["message"] == "google.longrunning.ListOperationsResponse":
        return page_to_json(message, TYPES)
    return TYPES.dump(message)


@pytest.mark.parametrize("case", vectors("operation_wire")["cases"], ids=by_id)
def test_wire_bytes_survive_a_round_trip(case):
    """Each vector's bytes are decoded and encoded again, and keep unknown fields (spec §1.7)."""
    expected = case["expect"]
    if expected["decode"] == "error":
        with pytest.raises(InvalidArgument):
            decoded(case)
        return
    message = decoded(case)
    if case["message"] in INTERFACE:
        again = serialized(to_proto(message, TYPES))
    else:
        again = TYPES.codec(case["message"]).dump(message)
    assert again.hex() == expected["reencoded_hex"]
    assert shown(case, message) == expected["json"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "case",
    [c for c in vectors("operation_json")["cases"] if c["expect"]["parse"] == "ok"],
    ids=by_id,
)
def test_operation_has_equal_json_and_binary_forms(kind, case):
    """An operation's JSON is encoded as the vector's bytes, and the bytes are decoded again."""
    types = KINDS[kind]
    value = loads_strict(case.get("input_text") or json.dumps(case["input"]))
    strict = case.get("unknown_fields") != "ignore"
    proto = operation_to_proto(operation_from_json(value, types, strict=strict), types)
    assert serialized(proto).hex() == case["expect"]["wire_hex"]
    assert operation_to_json(operation_from_proto(proto), types) == case["expect"]["json"]
