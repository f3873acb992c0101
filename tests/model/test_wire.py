"""Operations in JSON: the test vectors, and pages of operations."""

from __future__ import annotations

import json

import attrs
import pytest

from lro import AnyMessage, Code, InvalidArgument, Operation, Status, TypeRegistry
from lro.errors import EncodingError, UnknownType
from lro.wire import (
    BatchGetOperationsResponse,
    ListOperationsResponse,
    batch_from_json,
    batch_to_json,
    dumps,
    is_small,
    loads_strict,
    operation_from_json,
    operation_to_json,
    page_from_json,
    page_to_json,
    status_from_error_body,
    status_from_json,
    status_to_json,
    validate,
)
from tests.filters.messages import Book, ExportMetadata, ExportResponse, ImportMetadata
from tests.vector_files import by_id, vectors

CASES = vectors("operation_json")["cases"]
TYPES = TypeRegistry(ExportMetadata, ExportResponse, ImportMetadata, Book)
"""The ``wire_hex`` of the cases, which is the binary form, is not tested here."""


def read(case):
    """Read a case's operation as a server reads a request, or as a client reads a reply.

    A client ignores unknown fields, and does not read the messages inside a reply until a caller
    asks for the messages. This function reads them as well.
    """
    text = case["input_text"] if "input_text" in case else json.dumps(case["input"])
    value = loads_strict(text)
    if case.get("unknown_fields") != "ignore":
        return operation_from_json(value, TYPES, strict=True)
    found = operation_from_json(value, TYPES)
    changes = {}
    for name in ("metadata", "result"):
        packed = getattr(found, name)
        if isinstance(packed, AnyMessage):
            changes[name] = TYPES.pack(TYPES.unpack_any(packed))
    return attrs.evolve(found, **changes)


def cases(outcome):
    chosen = [c for c in CASES if c["expect"]["parse"] == outcome]
    return pytest.mark.parametrize("case", chosen, ids=by_id)


@cases("ok")
def test_operation_is_read_as_its_vector_says(case):
    """Each operation that is read has the vector's JSON, problems, state and result."""
    operation, expected = read(case), case["expect"]
    assert operation_to_json(operation, TYPES) == expected["json"]
    assert list(validate(operation)) == expected["problems"]
    if not expected["problems"]:
        result = "error" if operation.error else "response" if operation.response else None
        assert (operation.state, result) == (expected["state"], expected["result"])


@cases("error")
def test_invalid_operation_is_refused(case):
    """An invalid operation is refused with a message."""
    with pytest.raises((ValueError, InvalidArgument, UnknownType)) as caught:
        read(case)
    assert str(caught.value)


def test_canonical_json_is_read_as_the_same_operation():
    """The canonical JSON of an operation is read from text as the same operation."""
    for case in CASES:
        if case["expect"]["parse"] == "ok":
            operation = read(case)
            text = dumps(operation_to_json(operation, TYPES))
            again = operation_from_json(loads_strict(text), TYPES, strict=True)
            assert again == operation, case["id"]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (5, ""),
        ({"nmae": "x"}, "nmae"),
        ({"metadata": {"@type": "x/lrofix.v1.Book", "pageCount": "x"}}, "metadata.page_count"),
        ({"error": {"code": 1.5}}, "error.code"),
        ({"error": {"details": [{"@type": 5}]}}, "error.@type"),
        ({"done": 1}, "done"),
        ({"name": 1}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"error": {}, "response": {}}, "response"),
        ({"metadata": 1, "error": 1}, "metadata"),
        ({"description": 5}, "description"),
        ({"description": {"attempt": "many"}}, "description.attempt"),
        ({"x": None}, "x"),
    ],
)
def test_error_has_the_path_of_the_wrong_field(value, field):
    """The error about the JSON of an operation has the path of the wrong field."""
    with pytest.raises(InvalidArgument) as caught:
        operation_from_json(value, TYPES, strict=True)
    assert caught.value.field == field


def test_null_field_of_an_operation_is_unset():
    """A field of an operation that is null counts as unset."""
    nothing = dict.fromkeys(("name", "metadata", "done", "error", "response"))
    assert operation_from_json(nothing, TYPES, strict=True) == Operation()


def test_client_keeps_unknown_types_and_server_refuses_them():
    """A client keeps unknown types as data (spec §1.14(3)). A server refuses them in a request."""
    value = {"name": "operations/a", "metadata": {"@type": "x/foreign.Type", "a": [1]}}
    operation = operation_from_json(value, TYPES)
    assert operation.metadata == AnyMessage("x/foreign.Type", {"a": [1]})
    assert operation_to_json(operation, TYPES) == value
    with pytest.raises(InvalidArgument, match="not registered"):
        operation_from_json(value, TYPES, strict=True)


def test_binary_payload_of_unregistered_type_is_a_server_error():
    """A payload of an unregistered type in binary form raises EncodingError."""
    operation = Operation(name="operations/a", metadata=AnyMessage("x/foreign.Type", b"\x08\x01"))
    with pytest.raises(EncodingError, match="binary form"):
        operation_to_json(operation, TYPES)


def test_status_survives_json():
    """A status with details of special and unknown types survives JSON without its empty fields."""
    details = (
        AnyMessage("x/google.protobuf.Duration", "1s"),
        AnyMessage("x/foreign.Type", {"a": 1}),
    )
    status = Status(Code.ABORTED, "m", details)
    assert status_from_json(status_to_json(status, TYPES), TYPES) == status
    assert status_to_json(Status(), TYPES) == {}
    assert status_from_json({"code": None, "message": None, "details": None}, TYPES) == Status()
    with pytest.raises(InvalidArgument, match="details"):
        status_from_json({"details": {}}, TYPES)


def test_batch_survives_json():
    """Both lists of a batch are written even if empty. A reader accepts a missing list (§3.11)."""
    batch = BatchGetOperationsResponse((Operation(name="operations/a"),), ("operations/b",))
    for one in (batch, BatchGetOperationsResponse()):
        assert batch_from_json(batch_to_json(one, TYPES), TYPES) == one
    assert batch_to_json(BatchGetOperationsResponse(), TYPES) == {"operations": [], "missing": []}
    assert batch_from_json({"unreachable": [1]}, TYPES) == BatchGetOperationsResponse()


def test_page_survives_json():
    """A page with or without a token survives JSON. Unknown fields are ignored (spec §1.8(5))."""
    page = ListOperationsResponse((Operation(name="operations/a"), Operation(done=True)), "t")
    for one in (page, ListOperationsResponse()):
        assert page_from_json(page_to_json(one, TYPES), TYPES) == one
    read_page = page_from_json({"next_page_token": "t", "unreachable": []}, TYPES)
    assert read_page == ListOperationsResponse((), "t")


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (batch_from_json, [None, [], {"missing": "operations/b"}, {"missing": [1]}]),
        (batch_from_json, [{"operations": {}}, {"operations": [1]}]),
        (page_from_json, [[], {"operations": {}}, {"nextPageToken": 5}]),
        (page_from_json, [{"nextPageToken": "t", "next_page_token": "t"}]),
    ],
)
def test_invalid_batch_or_page_is_refused(read, values):
    """The types of all fields of a batch or page are checked."""
    for value in values:
        with pytest.raises(InvalidArgument):
            read(value, TYPES)


def test_error_body_with_status_ok_gets_the_code_of_the_http_status():
    """If the error in a reply's body has the status OK, the HTTP status decides the code."""
    body = {"error": {"code": 404, "message": "odd", "status": "OK"}}
    assert status_from_error_body(404, body, TypeRegistry()).code == Code.NOT_FOUND


def test_size_of_a_changed_operation_is_measured_again():
    """The size is measured once for each version of an operation, and is no part of its value."""
    url = "type.googleapis.com/acme.v1.Text"
    short = Operation(name="operations/a", metadata=AnyMessage(url, {"texts": ["a"]}))
    assert [is_small(short), is_small(short)] == [True, True]
    assert short == Operation(name=short.name, metadata=short.metadata)
    long = attrs.evolve(short, metadata=AnyMessage(url, {"texts": ["a" * 100_000]}))
    assert [is_small(long), is_small(long)] == [False, False]
