"""The scripted peers, and their replies to calls that the script does not mention."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import time

import pytest

from lro_conform.client._http_peer import HttpPeer
from lro_conform.client._steps import Acknowledges, Lists, Performance, Script, Shows, Silent, Verb

NAME = "projects/p/operations/one"
SCRIPT = {
    Verb.GET: (Shows(operation={"name": NAME}),),
    Verb.CANCEL: (Acknowledges(),),
    Verb.LIST: (Lists(next_page_token="page-1"), Lists()),
}


async def answers(*requests: bytes, script: Script = SCRIPT) -> tuple[bytes, Performance]:
    played = Performance(script, "secret", time.monotonic)
    async with HttpPeer(NAME, played) as peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.listener.port)
        writer.write(b"".join(requests))
        writer.write_eof()
        found = b""
        with contextlib.suppress(ConnectionError):
            found = await reader.read()
        writer.close()
    return found, played


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", *headers, "", ""]).encode() + body


@pytest.mark.parametrize(
    ("line", "verb", "status"),
    [
        (f"GET /v1/{NAME}", Verb.GET, 200),
        (f"GET /v1/{NAME.replace('/', '%2F')}?alt=json", Verb.GET, 200),
        (f"POST /v1/{NAME}:cancel", Verb.CANCEL, 200),
        (f"POST /v1/{NAME}:wait", Verb.WAIT, 501),
        (f"POST /v1/{NAME}:other", Verb.OTHER, 501),
        (f"PUT /v1/{NAME}", Verb.OTHER, 501),
        (f"DELETE /v1/{NAME}", Verb.DELETE, 501),
        ("GET /v1/projects/p/operations", Verb.LIST, 200),
        ("GET /v1/projects/p/operations?pageToken=invented", Verb.LIST, 200),
        ("GET /favicon.ico", Verb.OTHER, 501),
    ],
)
def test_peer_records_a_request_as_its_call(line: str, verb: Verb, status: int) -> None:
    found, played = asyncio.run(answers(request(line, "Authorization: Bearer secret")))
    assert found.startswith(f"HTTP/1.1 {status} ".encode())
    assert [(one.verb, one.token) for one in played.calls] == [(verb, True)]


def test_bodies_are_read_whether_chunked_or_not() -> None:
    whole = request(f"POST /v1/{NAME}:cancel", "Content-Length: 2", body=b"{}")
    pieces = b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n"
    chunked = request(f"POST /v1/{NAME}:cancel", "Transfer-Encoding: chunked", body=pieces)
    found, played = asyncio.run(answers(whole, chunked, request(f"GET /v1/{NAME}")))
    assert found.count(b"HTTP/1.1 200 OK") == 3
    assert [one.verb for one in played.calls] == [Verb.CANCEL, Verb.CANCEL, Verb.GET]


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /",
        b"x" * 200_000,
        request(f"POST /v1/{NAME}:cancel", "Content-Length: many"),
        request(f"POST /v1/{NAME}:cancel", "Content-Length: 10", body=b"{}"),
    ],
)
def test_bytes_that_are_not_http_end_the_connection(sent: bytes) -> None:
    found, played = asyncio.run(answers(sent))
    assert (found, played.calls) == (b"", [])


def test_silent_peer_holds_the_call_until_the_client_disconnects() -> None:
    found, played = asyncio.run(answers(request(f"GET /v1/{NAME}"), script={Verb.GET: (Silent(),)}))
    assert found == b""
    assert [(one.verb, one.answered) for one in played.calls] == [(Verb.GET, None)]


def test_an_unknown_method_over_grpc_is_unimplemented() -> None:
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    aio = importlib.import_module("grpc.aio")

    from lro_conform.client._grpc_peer import GrpcPeer

    async def call() -> tuple[object, Performance]:
        played = Performance(SCRIPT, "secret", time.monotonic)
        async with GrpcPeer(NAME, played) as peer, aio.insecure_channel(peer.address) as made:
            with pytest.raises(aio.AioRpcError) as caught:
                await made.unary_unary("/acme.v1.Other/Call")(b"")
        return caught.value.code(), played

    code, played = asyncio.run(call())
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert [one.verb for one in played.calls] == [Verb.OTHER]
