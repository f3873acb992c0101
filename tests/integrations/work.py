"""The service of these tests, its callers, and calls that every framework refuses alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import httpx
import pytest

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro_client import Client

TOKENS = {"Bearer a1": "ann", "Bearer b2": "bob"}
ANN, BOB = ({"authorization": token} for token in TOKENS)
START = "/v1/counts:count"
MAX_BODY = 4096
PARENTS = ["projects/*"]


@lro.message("acme.counts.v1.CountRequest")
@attrs.frozen
class CountRequest:
    """How far to count."""

    number: lro.Int32 = 0


@lro.message("acme.counts.v1.CountResponse")
@attrs.frozen
class CountResponse:
    """How far the counting got."""

    total: lro.Int32 = 0


def authorize(caller: str, verb: str, name: str) -> bool:
    """Only ann may delete."""
    return verb != "DeleteOperation" or caller == "ann"


@attrs.frozen
class Counting:
    """A service whose operations are seen by their owners alone, and its method."""

    service: lro.Service
    count: lro.Method[CountRequest, CountResponse, lro.OperationMetadata]
    spell: lro.Method[lro.Struct, lro.types.StringValue, lro.Struct]
    """Its messages are known to Google's clients too."""


def build(store: Any = None, **options: Any) -> Counting:
    """A service in memory, unless another store is given."""
    options = {"authorize": authorize, "owner_only": True, **options}
    service = lro.Service(store or MemoryStore(), ThreadExecutor(), **options)

    @service.method("acme.counts.v1.Counts.Count", path=START)
    def count(request: CountRequest, job: lro.Job[lro.OperationMetadata]) -> CountResponse:
        job.progress(0.5, "counting")
        return CountResponse(total=request.number)

    @service.method("acme.counts.v1.Counts.Spell")
    def spell(request: lro.Struct, job: lro.Job[lro.Struct]) -> lro.types.StringValue:
        return lro.types.StringValue("three")

    return Counting(service, count, spell)


def caller_of(headers: Mapping[str, str]) -> str:
    """The caller whose token this is."""
    caller = TOKENS.get(headers.get("authorization", ""))
    if caller is None:
        raise lro.errors.Unauthenticated("a token is needed")
    return caller


@attrs.frozen
class BadCall:
    """A call that is refused: method, path (``NAME`` is an operation of bob's), headers, body."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str] = ANN
    body: bytes = b""


JSON = {**ANN, "content-type": "application/json"}
BAD_CALLS = {
    "malformed JSON": BadCall("POST", START, 400, JSON, b"{"),
    "wrong type": BadCall("POST", START, 400, JSON, b'{"number": "x"}'),
    "unknown field": BadCall("POST", START, 400, JSON, b'{"colour": 1}'),
    "malformed request id": BadCall("POST", START, 400, JSON, b'{"requestId": "x"}'),
    "wrong media type": BadCall("POST", START, 415, {**ANN, "content-type": "text/plain"}, b"{}"),
    "body too large": BadCall("POST", START, 413, JSON, b" " * (MAX_BODY + 1)),
    "start without a token": BadCall("POST", START, 401, {}, b"{}"),
    "list without a token": BadCall("GET", "/v1/operations", 401, {}),
    "foreign operation": BadCall("GET", "/v1/NAME", 404),
    "foreign cancel": BadCall("POST", "/v1/NAME:cancel", 404),
    "forbidden": BadCall("DELETE", "/v1/NAME", 403, BOB),
    "unknown operation": BadCall("GET", "/v1/operations/unknown", 404),
    "malformed name": BadCall("GET", "/v1/operations/%00", 400),
    "bad filter": BadCall("GET", "/v1/operations?filter=done+%3D", 400),
    "bad page size": BadCall("GET", "/v1/operations?pageSize=-1", 400),
    "unknown parameter": BadCall("GET", "/v1/operations?colour=red", 400),
    "bad timeout": BadCall("POST", "/v1/operations/x:wait", 400, JSON, b'{"timeout": "-1s"}'),
    "page of another site": BadCall(
        "POST", "/v1/NAME:cancel", 403, {**ANN, "sec-fetch-site": "cross-site"}
    ),
    "method not served": BadCall("PUT", "/v1/operations", 405),
}
each_bad_call = pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)


def answered(base_url: str, call: BadCall, name: str) -> tuple[Any, ...]:
    """What a server says to a call: status, the headers that count, body."""
    path = call.path.replace("NAME", name)
    reply = httpx.request(
        call.method, base_url + path, headers=dict(call.headers), content=call.body, timeout=60
    )
    headers = ("content-type", "www-authenticate", "cache-control", "x-content-type-options")
    return reply.status_code, {key: reply.headers.get(key) for key in headers}, reply.text


def check_client(base_url: str) -> None:
    """Start, wait, list and delete as ann by our client, who sees nothing of bob's."""
    with (
        httpx.Client(base_url=base_url, headers=ANN, timeout=60) as http,
        Client(http=http) as client,
        httpx.Client(base_url=base_url, headers=BOB, timeout=60) as bobs,
    ):
        started = client.start(
            START, CountRequest(3), response=CountResponse, metadata=lro.OperationMetadata
        )
        assert started.result(timeout=60) == CountResponse(3)
        assert started.metadata is not None
        assert (started.metadata.progress_percent, started.metadata.verb) == (100, "count")
        bobs.post(START, json={"number": 4})
        assert [one.name for one in client.list()] == [started.name]
        assert bobs.get(f"/v1/{started.name}").status_code == 404
        client.delete(started.name)
        assert list(client.list()) == []


def check_google_client(base_url: str, counting: Counting) -> None:
    """Get and list by Google's REST client, which sends bob's token and wants a parent."""
    name = counting.spell.start(lro.Struct(), parent="projects/p", caller="bob").name
    pytest.importorskip("requests")
    operations_v1 = pytest.importorskip("google.api_core.operations_v1")
    credentials = pytest.importorskip("google.auth.credentials")
    for known in ("struct", "wrappers"):  # it prints no messages but those that are imported
        pytest.importorskip(f"google.protobuf.{known}_pb2")

    class Token(credentials.AnonymousCredentials):  # type: ignore[misc,name-defined]
        def before_request(self, request: Any, method: Any, url: Any, headers: Any) -> None:
            headers.update(BOB)

    transport = operations_v1.OperationsRestTransport(host=base_url, credentials=Token())
    client = operations_v1.AbstractOperationsClient(transport=transport)
    try:
        assert client.get_operation(name).name == name
        assert [one.name for one in client.list_operations(name="projects/p")] == [name]
    finally:
        transport._session.close()
