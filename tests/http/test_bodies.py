"""Request bodies (spec §5.9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lro import Code, TypeRegistry
from lro._http.requests import MANY_BYTES, read_object
from lro.errors import MalformedRequest
from lro.http import OperationsEdge
from tests.http.counting_service import ask, build, check_error
from tests.vector_files import vectors

CASES = vectors("http_body")["cases"]
TYPES = TypeRegistry()
JSON = "application/json"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_body_gives_the_error_of_its_vector(case: dict[str, Any]) -> None:
    """Each body of http_body.json gives its error, or 404 because the operation does not exist."""
    edge = OperationsEdge(build().service)
    verb = case["rpc"].removesuffix("Operation").lower()
    headers = {} if case["content_type"] is None else {"content_type": case["content_type"]}
    body = case["body_text"].encode()
    reply = edge.handle(ask("POST", f"/v1/{case['path_name']}:{verb}", body, **headers))
    assert reply.status == case["expect"].get("http", 404)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("APPLICATION/Json;Charset=UTF-8", 404),
        ('application/json ; charset="utf-8" ; x=y', 404),
        (r'application/json; q="\";charset=x"; charset=utf-8', 404),
        (r'application/json; q="\";charset=utf-8"; charset=latin-1', 415),
        ('application/json; q="; charset=utf-16', 415),
        (' application/json; format="a;b"; Charset = "x"', 404),
        ("application/json; charset=utf-8; charset=latin-1", 404),
        ("application/json;;;charset=", 404),
        ("junk", 415),
    ],
)
def test_content_type_is_split_into_type_and_charset(header: str, status: int) -> None:
    request = ask("POST", "/v1/operations/x:cancel", b"{}", content_type=header)
    assert OperationsEdge(build().service).handle(request).status == status


LONG = f'{JSON}; a="{";" * 200}"'


@pytest.mark.parametrize("header", [LONG, LONG[:201], LONG * 10_000])
def test_long_content_type_is_refused(header: str) -> None:
    """A Content-Type of more than 200 characters is refused without parsing, whatever the body."""
    edge = OperationsEdge(build().service)
    for body in (b"{}", b"", b"{"):
        reply = edge.handle(ask("POST", "/v1/operations/x:cancel", body, content_type=header))
        error = check_error(reply, 415, Code.INVALID_ARGUMENT, "UNSUPPORTED_MEDIA_TYPE")
        assert "at most 200 characters" in error["message"]


def test_json_object_or_blank_body_is_accepted() -> None:
    """JSON in UTF-8 is accepted, and a blank body counts as an empty object."""
    for header in (JSON, f"{JSON};charset=utf8", f"{JSON}; v=1", "", None):
        for body in (b'{"a": 1}', b"\t{}\r\n", b"", b" \n", b'{"\\ud83d\\ude00": "\\\\ud800"}'):
            assert read_object(header, body) == json.loads(body.strip() or b"{}")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff{}", "is not UTF-8"),
        (b'{"a": 1,}', "is not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1, "a": 1}', "'a' stands twice"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "deeper than 100"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b'{"\\ud800": 1}', "unpaired surrogate"),
        (b'{"a": {"b": ["\\uDFff"]}}', "unpaired surrogate"),
        (b"null", "must be a JSON object"),
    ],
)
def test_body_that_is_not_an_object_is_malformed(body: bytes, why: str) -> None:
    """The error about a malformed body says what is wrong."""
    with pytest.raises(MalformedRequest, match=why) as refused:
        read_object(None, body)
    assert refused.value.field == "body"


@pytest.mark.parametrize("text", ["[]," * 100_001, '["a"],' * 100_001])
def test_body_of_too_many_lists_is_refused(text: str) -> None:
    """Very many lists are refused, because parsing them would block all threads."""
    body = f'{{"a": [{text[:-1]}]}}'.encode()
    with pytest.raises(MalformedRequest, match="more than 100000 lists"):
        read_object(JSON, body)


def test_brackets_in_strings_do_not_count_as_lists() -> None:
    text = '[\\"[\\\\' * 60_000
    assert read_object(JSON, json.dumps({"a": text, "b": ["["]}).encode()) == {
        "a": text,
        "b": ["["],
    }


@pytest.mark.parametrize("path", ["/v1/operations/x:cancel", "/v1/operations:batchGet"])
@pytest.mark.parametrize(("size", "long"), [(MANY_BYTES - 1, False), (MANY_BYTES, True)])
def test_long_body_is_read_in_a_thread(path: str, size: int, long: bool) -> None:
    """Long bodies are parsed in a thread, and shorter bodies on the event loop, which is faster."""
    body = b'{"names": ["operations/x"]}' if "batch" in path else b"{}"
    exchange = OperationsEdge(build().service).exchange(ask("POST", path, body.ljust(size)))
    step = next(exchange)
    assert step.blocks == long
