"""Tests for every framework; each framework's test module imports them and defines ``served``."""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

import lro
from lro.console import page_files
from lro_client import Client
from tests.integrations.counting import (
    ANN,
    BOB,
    START,
    CountMetadata,
    CountRequest,
    CountResponse,
    Served,
)
from tests.waiting import until

JSON = {"content-type": "application/json"}
PART = b'--b\nContent-Disposition: form-data; name="steps"\n\n3\n--b--\n'
REQUEST_ID = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"


FORMS: Any = [  # form bodies, which the application's middleware has already parsed
    {"headers": ANN | {"content-type": kind}, "content": body}
    for kind, body in (
        ("application/x-www-form-urlencoded", b"steps=3"),
        ("multipart/form-data; boundary=b", PART.replace(b"\n", b"\r\n")),
    )
]


def head_of(served: Served, path: str, *lines: str) -> bytes:
    """Return the head of a POST request with Ann's token, to send over a socket."""
    raw = served.http.build_request("POST", path).url.raw_path.decode()
    head = [f"POST {raw} HTTP/1.1", f"host: {served.http.base_url.host}"]
    head += [f"{name}: {value}" for name, value in (ANN | JSON).items()]
    return "\r\n".join([*head, *lines, "", ""]).encode()


def compared(reply: httpx.Response) -> tuple[Any, ...]:
    """Return the status code, the body and the error-related headers of an error reply."""
    assert reply.status_code >= 400, reply.text
    names = ("content-type", "cache-control", "x-content-type-options", "www-authenticate")
    headers = {name: reply.headers.get(name) for name in (*names, "allow", "retry-after")}
    return reply.status_code, json.loads(reply.content) if reply.content else None, headers


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("GET", "/v1/operations/x", {}),  # unauthenticated
        ("GET", "/v1/operations/x", {"headers": ANN}),  # not found
        ("GET", "/v1/operations/a%2Fb%3Ac", {"headers": ANN}),
        ("GET", "/v1/operations/a/b", {"headers": ANN}),
        ("GET", "/v1/operations/%C3%BC", {"headers": ANN}),  # a Latin-1 letter
        ("GET", "/v1/operations/%E6%97%A5", {"headers": ANN}),  # a letter outside Latin-1
        ("GET", "/v1/operations/%2E%2E", {"headers": ANN}),  # not a valid name
        ("GET", "/v1/operations/x?a=b", {"headers": ANN}),  # an unknown parameter
        ("DELETE", "/v1/operations/x", {"headers": BOB}),  # forbidden
        ("PUT", "/v1/operations/x", {"headers": ANN}),  # method not allowed
        ("POST", "/v1/operations/x:cancel", {"headers": ANN | JSON, "content": b"{"}),
        ("POST", "/v1/operations/x:cancel", {"headers": ANN | {"sec-fetch-site": "cross-site"}}),
        ("GET", "/v1/operations?filter=a+AND", {"headers": ANN}),
        ("GET", "/v1/operations?pageSize=x", {"headers": ANN}),
        ("POST", "/v1/operations:batchGet", {"headers": ANN, "json": {"names": []}}),
        ("POST", START, {"json": {}}),
        ("POST", START, {"headers": ANN | JSON, "content": b'{"steps": 1'}),
        ("POST", START, {"headers": ANN, "json": {"steps": "many"}}),
        ("POST", START, {"headers": ANN, "json": {"colour": "red"}}),
        ("POST", START, {"headers": ANN, "json": [1]}),
        ("POST", START, {"headers": ANN | {"content-type": "text/plain"}, "content": b"{}"}),
        ("POST", START, {"headers": ANN, "json": {"pad": "x" * 1_100_000}}),  # too large
        ("POST", START, {"headers": ANN | JSON, "content": b"\xff"}),
        *[("POST", START, form) for form in FORMS],
    ],
)
def test_errors_equal_those_of_the_plain_edge(
    served: Served, method: str, path: str, options: Any
) -> None:
    """An error reply has the same status, body and headers as without a framework."""
    ours = served.http.request(method, served.prefix + path, **options)
    assert compared(ours) == compared(served.plain.request(method, path, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"json": {}},  # unauthenticated
        {"headers": ANN, "json": {"steps": 1, "requestId": " x"}},
        {"headers": ANN, "json": {"steps": 1, "requestId": 7}},
        {"headers": ANN | JSON, "content": b'{"steps": 1'},
        {"headers": ANN, "json": {"steps": "many"}},
        {"headers": ANN, "json": {"colour": "red"}},
        {"headers": ANN | {"content-type": "text/plain"}, "content": b"{}"},
        {"headers": ANN | {"sec-fetch-site": "cross-site"}, "json": {"steps": 1}},
        {"headers": ANN, "json": {"pad": "x" * 1_100_000}},  # too large
        *FORMS,
    ],
)
def test_errors_of_own_starts_equal_those_of_the_plain_edge(served: Served, options: Any) -> None:
    """An endpoint of the application refuses a start with the same reply as a start route."""
    ours = served.http.post(served.own_path, **options)
    assert compared(ours) == compared(served.plain.post(START, **options))


def test_life_of_an_operation_through_our_client(served: Served) -> None:
    """The client starts, awaits, lists and deletes one operation, and cancels another."""
    with httpx.Client(base_url=served.url, headers=ANN) as http, Client(http=http) as client:
        kinds: Any = {"response": CountResponse, "metadata": CountMetadata}
        once = str(uuid.uuid4())  # several fixtures may serve the same service
        operation = client.start(START, CountRequest(steps=7), **kinds, request_id=once)
        assert operation.result(timeout=60).total == 7
        assert operation.metadata == CountMetadata(percent=50)
        assert operation.name in {one.name for one in client.list(filter="done=true")}
        client.delete(operation.name)
        client.start(START, CountRequest(steps=-1), **kinds).cancel()
        served.counting.go.set()


def test_path_with_a_variable_starts_without_an_endpoint(served: Served) -> None:
    """The variable in a start's path sets a request field; a bad body gets INVALID_ARGUMENT."""
    at = f"{served.prefix}/v1/boxes/a%20b:count"
    name = served.http.post(at, json={"steps": 1}, headers=ANN).json()["name"]
    assert served.wait(name)["response"]["total"] == len("a b")
    wrong = served.http.post(at, json={"steps": "x"}, headers=ANN)
    assert wrong.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_own_start_with_a_repeated_request_id_starts_once(served: Served) -> None:
    """Two POSTs to the application's endpoint with one request ID start one operation."""
    body = {"steps": 3, "requestId": REQUEST_ID[:-1] + "2"}
    first, second = (served.http.post(served.own_path, json=body, headers=ANN) for _ in "ab")
    assert first.status_code == second.status_code == 200, first.text
    assert first.json()["name"] == second.json()["name"]
    assert served.wait(first.json()["name"])["response"]["total"] == 3
    assert first.headers["cache-control"] == "no-store"


def test_own_start_validates_only(served: Served) -> None:
    reply = served.http.post(served.own_path, json={"steps": 3, "validateOnly": True}, headers=ANN)
    assert reply.status_code == 200, reply.text
    assert reply.json()["done"]
    assert not reply.json().get("name")


ASYNC = ANN | {"prefer": "respond-async, wait=0"}


@contextlib.contextmanager
def work_held(served: Served) -> Iterator[None]:
    """Keep work with negative ``steps`` running until the end of this block."""
    served.counting.go.clear()
    try:
        yield
    finally:
        served.counting.go.set()


def test_unfinished_start_has_the_location_of_the_operation(served: Served) -> None:
    """The ``Location`` of a 202 leads to the operation, even if the framework adds a prefix."""
    with work_held(served):
        reply = served.http.post(f"{served.prefix}{START}", json={"steps": -1}, headers=ASYNC)
    assert reply.status_code == 202, reply.text
    assert reply.headers["preference-applied"] == "respond-async, wait=0"
    found = served.http.get(reply.headers["location"], headers=ANN).json()
    assert found["name"] == reply.json()["name"]


def test_own_start_waits_as_the_caller_prefers(served: Served) -> None:
    """An endpoint obeys ``Prefer``; a 202 has ``Location`` unless the prefix has a variable."""
    wanted = ANN | {"prefer": "wait=60"}
    waited = served.http.post(served.own_path, json={"steps": 4}, headers=wanted)
    applied = "wait=60" if served.streams else "wait=20"  # where a call occupies a thread
    assert (waited.status_code, waited.headers["preference-applied"]) == (200, applied)
    assert waited.json()["response"]["total"] == 4
    with work_held(served):
        reply = served.http.post(served.own_path, json={"steps": -1}, headers=ASYNC)
    name = reply.json()["name"]
    assert (reply.status_code, reply.headers["operation-id"]) == (202, name.rpartition("/")[2])
    if served.prefix.endswith("%20b"):  # the prefix has a variable, so the URL is unknown
        assert "location" not in reply.headers
    else:
        assert served.http.get(reply.headers["location"], headers=ANN).json()["name"] == name


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("sent", [b'{"steps": 3}', b""])
def test_disconnect_within_the_body_is_not_an_error(
    served: Served, sent: bytes, own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """If the caller disconnects within the body, no operation starts and no error is logged."""

    def count_of() -> int:
        every = lro.wire.ListOperationsRequest(page_size=1000)
        return len(served.counting.service.list(every, caller="ann").operations)

    before = count_of()
    url, path = served.http.base_url, served.own_path if own else served.prefix + START
    with socket.create_connection((url.host, url.port)) as line:
        line.sendall(head_of(served, path, "content-length: 50") + sent)
    for _ in range(3):
        served.http.get(f"{served.prefix}/v1/operations/x", headers=ANN)
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []
    assert count_of() == before


@pytest.mark.parametrize("own", [True, False])
def test_disconnect_ends_the_wait(served: Served, own: bool) -> None:
    """If a waiting caller disconnects, the wait ends but the operation goes on."""
    service, url = served.counting.service, served.http.base_url
    with work_held(served):
        name = served.counting.count.start(CountRequest(steps=-1), caller="ann").name
        path = served.own_path if own else f"{served.prefix}/v1/{name}:wait"
        body = '{"steps": -1}' if own else "{}"
        head = head_of(served, path, "prefer: wait=60", f"content-length: {len(body)}")
        with socket.create_connection((url.host, url.port)) as line:
            line.sendall(head + body.encode())
            until(lambda: service.edges.waiters.waiting)
        until(lambda: service.edges.waiters.waiting, lambda count: count == 0)
        assert not service.get(name, caller="ann").done


def test_operation_of_another_caller_is_not_found(served: Served) -> None:
    """Bob cannot get or list an operation that Ann started at the application's endpoint."""
    started = served.http.post(served.own_path, json={"steps": 1}, headers=ANN).json()
    at = f"{served.prefix}/v1/{started['name']}"
    assert served.http.get(at, headers=ANN).status_code == 200
    assert served.http.get(at, headers=BOB).status_code == 404
    listed = served.http.get(f"{served.prefix}/v1/operations", headers=BOB).json()
    assert started["name"] not in {one["name"] for one in listed.get("operations", [])}


def test_watch_streams_until_the_operation_is_done(served: Served) -> None:
    """The framework does not buffer Watch's stream, which ends once the operation is done."""
    served.counting.go.clear()
    name = served.start(-2)
    with served.http.stream("GET", f"{served.prefix}/v1/{name}:watch", headers=ANN) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in reply.iter_lines() if line.startswith("data:"))
        assert not json.loads(next(lines).partition(":")[2]).get("done")
        served.counting.go.set()
        *_, last = lines
        assert json.loads(last.partition(":")[2])["done"]


CODES = {
    **dict.fromkeys((400, 413, 415), lro.Code.INVALID_ARGUMENT),
    401: lro.Code.UNAUTHENTICATED,
    403: lro.Code.PERMISSION_DENIED,
    404: lro.Code.NOT_FOUND,
    429: lro.Code.RESOURCE_EXHAUSTED,
    503: lro.Code.UNAVAILABLE,
}


def test_exception_of_the_framework_refuses_in_our_format(served: Served) -> None:
    """If ``caller`` raises a framework's exception, the reply has its status and text."""
    for status in served.refuses:
        headers = {"x-refuse": str(status)}
        reply = served.http.get(f"{served.prefix}/v1/operations/x", headers=headers)
        assert reply.status_code == status, reply.text
        assert reply.json()["error"]["status"] == CODES[status].name
        assert ("www-authenticate" in reply.headers) == (status == 401)
        assert ("retry-after" in reply.headers) == (status in (429, 503))
        # This reply may have the framework's format.
        own = served.http.post(served.own_path, headers=headers)
        assert own.status_code == status
        assert "not you" in reply.text
        assert "not you" in own.text


def test_console_serves_its_page_to_everyone(served: Served) -> None:
    """``/console`` redirects to ``/console/``; its page is public, but its data is not."""
    at = f"{served.prefix}/console"
    moved = served.http.get(f"{at}?x=1")
    assert (moved.status_code, urljoin(at, moved.headers["location"])) == (307, f"{at}/?x=1")
    for path, file in page_files().items():
        reply = served.http.get(at + path)
        assert (reply.status_code, reply.content) == (200, file.content)
        assert "trusted-types" in reply.headers["content-security-policy"]
        assert served.http.post(at + path).status_code in (403, 405)
    for path in ("/session", "/v1/operations"):
        refused = served.http.get(at + path)
        assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert served.http.get(f"{at}/unknown", headers=ANN).status_code == 404


def test_console_uses_the_caller_of_the_framework(served: Served) -> None:
    """The console hides operations of other callers; it refuses Delete and cross-site requests."""
    at = f"{served.prefix}/console"
    session = served.http.get(f"{at}/session", headers=ANN).json()
    found = [session[key] for key in ("caller", "title", "actions", "watches", "parents")]
    assert found == ["ann", "Counts", ["cancel"], served.streams, ["", "projects"][:1]]
    with work_held(served):
        name = served.counting.count.start(CountRequest(steps=-1), caller="ann").name
        for headers, there in ((ANN, True), (BOB, False)):
            listed = served.http.get(f"{at}/v1/operations", headers=headers).json()
            assert (name in {one["name"] for one in listed.get("operations", ())}) == there
        assert served.http.delete(f"{at}/v1/{name}", headers=ANN).status_code == 403
        other = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
        for headers, status in ((ANN | other, 403), (BOB, 404), (ANN, 200)):
            reply = served.http.post(f"{at}/v1/{name}:cancel", headers=headers)
            assert reply.status_code == status
        for view in ("BASIC", "FULL"):
            names, path = {"names": [name]}, f"{at}/v1/operations:batchGet?view={view}"
            reply = served.http.post(path, json=names, headers=ANN)
            assert name in reply.text


def test_console_without_a_caller_is_for_this_machine(served: Served) -> None:
    """Without ``caller``, a console request through a proxy or for another host gets 403."""
    if served.unnamed is None:
        return
    assert served.unnamed.get("/console/session").json()["caller"] == ""
    for headers in ({"via": "1.1 proxy"}, {"host": "console.example.com"}):
        for path in ("/", "/session", "/v1/operations"):
            refused = served.unnamed.get(f"/console{path}", headers=headers)
            assert (refused.status_code, path) == (403, path)
            assert "authenticate=" in refused.text


def test_unknown_path_is_left_to_the_framework(served: Served) -> None:
    """An unknown path gets the framework's 404, even if it begins with the operations' prefix."""
    for path in ("/nothing", f"{served.prefix}/v1/unknown"):
        reply = served.http.get(path)
        assert reply.status_code == 404
        assert "google.rpc" not in reply.text


def test_google_client_reads_lists_cancels_and_deletes(served: Served) -> None:
    """The REST client of google-api-core works if it only adds the application's token."""
    pytest.importorskip("google.api_core")
    pytest.importorskip("grpc")  # which operations_v1 imports, although it sends JSON
    pytest.importorskip("requests")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please install grpcio-status", ImportWarning)
        from google.api_core import exceptions, operations_v1
    from google.auth.credentials import AnonymousCredentials
    from google.protobuf import struct_pb2, wrappers_pb2

    class Ann(AnonymousCredentials):
        """Add Ann's token to each request."""

        def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
            headers.update(ANN)

    transport = operations_v1.OperationsRestTransport(host=served.url, credentials=Ann())
    client = operations_v1.AbstractOperationsClient(transport=transport)
    try:
        counting = served.counting
        name = counting.name.start(lro.Struct(), parent="projects/p", caller="ann").name
        counting.service.wait(name, caller="ann")
        found = client.get_operation(name)
        value, metadata = wrappers_pb2.StringValue(), struct_pb2.Struct()
        assert found.response.Unpack(value)
        assert found.metadata.Unpack(metadata)
        assert (found.name, value.value, dict(metadata)) == (name, "ann", {"percent": 50})
        assert name in {one.name for one in client.list_operations("projects/p", "")}
        client.cancel_operation(name)
        client.delete_operation(name)
        with pytest.raises(exceptions.NotFound):
            client.get_operation(name)
    finally:
        transport._session.close()


__all__ = [*(name for name in globals() if name.startswith("test_"))]
