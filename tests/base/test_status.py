"""Codes, statuses and error bodies: the vectors of §5.11, §5.12 and §11.8, as JSON."""

from __future__ import annotations

import json

import pytest

from lro import AnyMessage, Code, Status, TypeRegistry
from lro.wire import (
    code_from_http,
    error_body,
    error_fields,
    loads,
    status_from_error_body,
    status_from_json,
    status_to_json,
)
from tests.vector_files import by_id, vectors

CASES = vectors("status_http")["cases"]
TYPES = TypeRegistry()


def cases(kind):
    return pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == kind], ids=by_id)


CONNECT = {"type": "google.rpc.ErrorInfo", "value": "CglOT1RfRU1QVFk"}


def read_body(text):
    """Parse the text of a reply like a client: as JSON, or None if it is not JSON."""
    try:
        return loads(text)
    except ValueError:
        return None


@cases("code_to_http")
def test_code_has_the_http_status_of_the_vector(case):
    """Every code has the HTTP status of its vector. An unknown number counts as UNKNOWN."""
    code = Code.of(case["code"])
    assert (code.name, code.http) == (case["name"], case["http"])


@cases("http_to_code")
def test_http_status_has_the_code_of_the_vector(case):
    """A reply without a usable error body has the code of its HTTP status."""
    assert code_from_http(case["http"]).name == case["name"]
    status = status_from_error_body(case["http"], read_body(case["body"]), TYPES)
    assert Code(status.code).name == case["name"]


@cases("error_body")
def test_status_has_the_error_body_of_the_vector(case):
    """A status gives the error body of its vector, compared as JSON values and not as bytes."""
    status = status_from_json(case["status"], TYPES, strict=True)
    assert error_body(status, TYPES) == case["body"]
    assert Code.of(status.code).http == case["http"]
    assert status_to_json(status, TYPES) == case["status"]


@cases("parse_error_body")
def test_error_body_is_parsed_as_the_vector_says(case):
    """A client reads the vector's status from a reply, whatever server has sent the reply."""
    status = status_from_error_body(case["http"], read_body(case["body_text"]), TYPES)
    expected = case["expect"]
    assert (status.code, Code(status.code).name) == (expected["code"], expected["name"])
    assert len(status.details) == expected["details"]
    if "message" in expected:
        assert status.message == expected["message"]


def test_the_vectors_are_all_used():
    """Every kind of case in the vector file has a test here."""
    kinds = {"code_to_http", "http_to_code", "error_body", "parse_error_body"}
    assert {case["kind"] for case in CASES} == kinds


@pytest.mark.parametrize(
    ("http", "name"), [(418, "FAILED_PRECONDITION"), (599, "INTERNAL"), (600, "UNKNOWN")]
)
def test_unlisted_http_status_has_the_code_of_its_class(http, name):
    """An HTTP status that has no code of its own has the code of its class (spec §11.8(2))."""
    assert code_from_http(http).name == name


def test_http_only_statuses_keep_the_name_of_their_code():
    """The HTTP statuses 405, 413 and 415, which have no code of their own, keep a code's name."""
    body = error_body(Status(Code.UNIMPLEMENTED, "no"), TYPES, 405)
    assert body == {"error": {"code": 405, "message": "no", "status": "UNIMPLEMENTED"}}


INFO = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "NOT_EMPTY"}
BARE = [  # the first bodies are like those of grpc-gateway, Envoy and Connect
    (400, {"code": 9, "message": "no", "details": [INFO]}, Code.FAILED_PRECONDITION),
    (500, {"code": 15, "details": [INFO]}, Code.DATA_LOSS),
    (404, [{"code": 5, "message": "no", "details": [INFO]}], Code.NOT_FOUND),
    (400, {"error": "no", "code": 11, "details": [INFO]}, Code.OUT_OF_RANGE),
    (404, {"code": 5}, Code.NOT_FOUND),
    (400, {"error": {"code": 9, "message": "no", "details": [INFO]}}, Code.FAILED_PRECONDITION),
    (409, {"error": {"code": "already_exists", "status": "Conflict"}}, Code.ALREADY_EXISTS),
    (409, {"error": {"code": 6, "status": "ABORTED"}}, Code.ABORTED),
    (400, {"error": {"code": 400, "status": "OUT_OF_RANGE"}}, Code.OUT_OF_RANGE),
    (503, {"code": "unavailable", "details": [CONNECT]}, Code.UNAVAILABLE),
    (499, {"code": "canceled", "details": [CONNECT]}, Code.CANCELLED),
    (404, {"code": 9, "message": "no"}, None),
    (404, {"code": 404, "message": "no"}, None),
    (500, {"code": 99, "message": "no"}, None),
    (404, {"code": True, "message": "no"}, None),
    (404, {"code": 5.0, "message": "no"}, None),
    (200, {"code": 0, "message": "no"}, None),
    (404, {"code": "order_not_found", "message": "no"}, None),
    (404, {"code": "not_found ", "message": "no"}, None),
]


@pytest.mark.parametrize(("http", "body", "code"), BARE)
def test_unusual_error_body_is_used_if_its_code_fits_the_http_status(http, body, code):
    """The code in the body is used only if it agrees with the HTTP status."""
    status = status_from_error_body(http, body, TYPES)
    if code is None:
        assert error_fields(http, body) is None
        assert (status.code, status.details) == (code_from_http(http), ())
        return
    assert (status.code, Code[error_fields(http, body)["status"]]) == (code, code)
    assert len(status.details) == ("details" in str(body))
    for info in status.details:
        assert info.type_name == "google.rpc.ErrorInfo"
        assert info.payload in ({"reason": "NOT_EMPTY"}, b"\n\tNOT_EMPTY")


def test_unreadable_details_do_not_hide_the_error():
    """An invalid detail is dropped, and a detail of an unknown type is kept."""
    url = "type.googleapis.com/foreign.Detail"
    body = {"error": {"status": "ABORTED", "details": [5, {"a": 1}, {"@type": url, "a": 1}]}}
    status = status_from_error_body(409, body, TYPES)
    assert status == Status(
        Code.ABORTED, "the server answered HTTP 409", (AnyMessage(url, {"a": 1}),)
    )


@pytest.mark.parametrize("body", [None, [1], {"error": 5}, {"error": {"code": 9}}, {"error": None}])
def test_reply_without_error_body_has_the_code_of_its_status(body):
    """A reply without an error body has the code of its HTTP status, whatever the body contains."""
    status = status_from_error_body(503, body, TYPES)
    assert status == Status(Code.UNAVAILABLE, "the server answered HTTP 503")


def test_error_body_in_a_list_is_read():
    """The error of a streaming method, which some servers wrap in a list, is read."""
    body = json.loads('[{"error": {"status": "NOT_FOUND", "message": "gone", "details": 7}}]')
    assert status_from_error_body(404, body, TYPES) == Status(Code.NOT_FOUND, "gone")
