"""Replies of real servers and of what stands before them (spec §11.5, §11.6, §11.8)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lro
from lro_client import CallError, Polling, PollTimeout, UnreadableReply
from lro_client.testing import Fault, ScriptedServer
from lro_client.transports import http as http_transport
from lro_client.transports.http import Unpacking
from tests.client.faces import Clock, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeResponse,
    refusal,
    reply,
    running,
    succeeded,
)


def headless(content: bytes) -> bytes:
    """What some servers send as deflate: without the head of zlib."""
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(content) + made.flush()


PACKING: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    " GZIP": gzip.compress,
}


def answering(face: Face, *answers: Callable[[], httpx.Response], **options: Any) -> Any:
    """A client, on a clock of its own, of a server that gives these answers, the last for ever."""
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        return (left.pop(0) if len(left) > 1 else left[0])()

    http = face.http(transport=httpx.MockTransport(answer), **options)
    return face.client(http=http, clock=Clock(), polling=Polling(wait_first=False))


def raw(content: bytes, status: int = 200, **headers: str) -> Callable[[], httpx.Response]:
    """An answer whose body was not read."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda: httpx.Response(status, headers=named, stream=httpx.ByteStream(content))


DONE = json.dumps(succeeded()).encode()

# -- bodies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coding", "pack"), [*PACKING.items(), ("deflate", headless), ("identity", bytes)]
)
def test_packed_bodies(coding: str, pack: Callable[[bytes], bytes], face: Face) -> None:
    """They are unpacked, however they were sent."""
    client = answering(face, raw(pack(DONE), content_encoding=coding))
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(7)


@given(
    content=st.binary(max_size=3000),
    pack=st.sampled_from([gzip.compress, zlib.compress, headless]),
    size=st.integers(1, 50),
)
def test_where_it_is_cut_does_not_matter(
    content: bytes, pack: Callable[[bytes], bytes], size: int
) -> None:
    """The same comes out of pieces of any size."""
    unpacking, whole = Unpacking(), pack(content)
    # The head of zlib is two bytes, which distinguish it from none.
    chunks = [whole[:2], *[whole[at : at + size] for at in range(2, len(whole), size)]]
    assert b"".join(piece for chunk in chunks for piece in unpacking.feed(chunk)) == content


def test_what_is_unpacked_comes_in_pieces() -> None:
    """However little of it was sent."""
    unpacking = Unpacking()
    found = [len(piece) for piece in unpacking.feed(gzip.compress(bytes(2_000_000)))]
    assert sum(found) == 2_000_000
    assert max(found) <= http_transport.MAX_PIECE_BYTES


def test_a_bomb_is_given_up(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reply unpacks to is bounded, before it is unpacked."""
    monkeypatch.setattr(http_transport, "MAX_REPLY", 1_000_000)
    client = answering(face, raw(gzip.compress(bytes(5_000_000)), content_encoding="gzip"))
    with pytest.raises(CallError, match="UNKNOWN: the reply is larger than 1000000"):
        client.get(NAME)


SPOILT = [b"no gzip at all", gzip.compress(DONE, mtime=0)[:-20] + b"x" * 20]


@pytest.mark.parametrize("spoilt", SPOILT, ids=["none", "cut"])
def test_a_spoilt_body_passes(spoilt: bytes, face: Face) -> None:
    """It is asked for again, as what was cut short on its way."""
    spoilt_once = raw(spoilt, content_encoding="gzip", content_type="application/json")
    client = answering(face, spoilt_once, raw(DONE))
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(7)


def test_a_body_that_a_hook_has_read() -> None:
    """It was unpacked then."""
    face = Face()
    hooks = {"response": [lambda response: response.read()]}
    client = answering(face, raw(gzip.compress(DONE), content_encoding="gzip"), event_hooks=hooks)
    assert client.get(NAME).done
    face.close()


def test_a_large_refusal_of_a_stream_is_not_read_to_its_end(face: Face) -> None:
    """Its status says enough."""
    sent: list[int] = []

    class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                sent.append(1)
                yield b"x" * 1000

        async def __aiter__(self) -> Any:
            for chunk in self:
                yield chunk

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(":watch"):
            return httpx.Response(404, stream=Endless())
        if request.url.path.endswith(":batchGet"):
            return refusal(lro.Code.NOT_FOUND)
        return reply(succeeded(name=request.url.path.removeprefix("/v1/").partition(":")[0]))

    http = face.http(transport=httpx.MockTransport(answer))
    client = face.client(http=http, clock=Clock())
    handles = [face.inside(client.operation(f"operations/{n}", **TYPES)) for n in range(6)]
    assert client.group(handles).results(60) == [ResizeResponse(7)] * 6
    assert len(sent) == 66


# -- what they say ------------------------------------------------------------------------------


@pytest.mark.parametrize("http", [408, 429, 500, 502, 503, 504])
def test_foreign_bodies_with_a_status_that_passes_are_sat_out(http: int, face: Face) -> None:
    """Whatever a proxy says, the wait goes on."""
    pages = (b"", b"<h1>no</h1>", b"{", b"[]", b'"no"', b"{}", b'{"error": "no"}')
    bodies = (*pages, b'{"error": {}}', b"\xff")
    client = answering(face, *[raw(body, http) for body in bodies], raw(DONE))
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(7)


@pytest.mark.parametrize("kept", [0, 1, 20, len(DONE) - 1])
def test_a_reply_that_was_cut_short(kept: int, face: Face) -> None:
    """Announced as JSON, with 200: it passes for a wait, and is an error of a single call."""
    cut = raw(DONE[:kept], content_type="application/json; charset=utf-8")
    handle = answering(face, cut, raw(DONE)).operation(NAME, **TYPES)
    assert handle.result() == ResizeResponse(7)
    with pytest.raises(UnreadableReply, match=r"the reply (is not JSON|says nothing)") as caught:
        answering(face, cut).get(NAME)
    assert caught.value.passing
    assert caught.value.http_status == 200


@attrs.define
class ForeignNames(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Carries calls to a server of this library as if its operations stood below a parent.

    Servers of others name them as they like: the transport takes the parent out of each request,
    and puts it into the reply. ``called`` are the paths of the calls that came.
    """

    inner: Any
    parent: str
    called: list[str] = attrs.field(factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.inner.handle_request(self._plain(request))
        return httpx.Response(
            response.status_code, headers=self._headers(response), content=self._sync(response)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        response = await self.inner.handle_async_request(self._plain(request))
        return httpx.Response(
            response.status_code, headers=self._headers(response), content=self._async(response)
        )

    def _plain(self, request: httpx.Request) -> httpx.Request:
        self.called.append(request.url.path)
        query = {key: self._without(value) for key, value in request.url.params.items()}
        url = request.url.copy_with(path=self._without(request.url.path), query=None)
        return httpx.Request(
            request.method,
            url.copy_merge_params(query) if query else url,
            content=self._without(request.read().decode()),
            headers={"content-type": "application/json"},
            extensions=request.extensions,
        )

    def _without(self, text: str) -> str:
        return text.replace(f"{self.parent}operations", "operations")

    def _with(self, content: bytes) -> bytes:
        return content.replace(b'"operations/', f'"{self.parent}operations/'.encode())

    def _headers(self, response: httpx.Response) -> dict[str, str]:
        return {key: value for key, value in response.headers.items() if key != "content-length"}

    def _sync(self, response: Any) -> Iterator[bytes]:
        yield from map(self._with, response.stream)

    async def _async(self, response: Any) -> AsyncIterator[bytes]:
        async for piece in response.stream:
            yield self._with(piece)


PARENTS = ["a/", "projects/operations/"]


@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("way", ["watch", "batch_get", "lists", "wait"])
def test_names_with_segments(way: str, parent: str, face: Face) -> None:
    """Below a parent, and with ids of several segments: one collection, by whatever way."""
    offered = {"watch": False, "batch_get": False, "lists": False, "wait": False, way: True}
    server = ScriptedServer(**offered)
    tails = [*"abcdef", "x/y/z"]
    for tail in tails:
        server.operation(f"operations/{tail}", ends_after=3.0, response=ResizeResponse(7))
    foreign = ForeignNames(server.transport, parent)
    client = face.client(server.url, clock=server.clock, http=face.http(transport=foreign))
    names = [f"{parent}operations/{tail}" for tail in tails]
    handles = [face.inside(client.operation(name, **TYPES)) for name in names]
    assert client.group(handles).results() == [ResizeResponse(7)] * len(names)
    paths = {path.partition(":")[0] for path in foreign.called}
    assert {path for path in paths if path.endswith("operations")} == {f"/v1/{parent}operations"}


def test_names_without_operations(face: Face) -> None:
    """Services name them as they like; those that offer only Get are asked with that."""
    names = [f"projects/p/tasks/{number}" for number in range(6)]

    def answer(request: httpx.Request) -> httpx.Response:
        name = request.url.path.removeprefix("/v1/")
        return reply(succeeded(name=name)) if name in names else refusal(lro.Code.NOT_FOUND)

    http = face.http(transport=httpx.MockTransport(answer))
    client = face.client(http=http, clock=Clock())
    handles = [face.inside(client.operation(name, **TYPES)) for name in names]
    assert client.group(handles).results() == [ResizeResponse(7)] * 6


# -- errors that help ---------------------------------------------------------------------------


def test_a_poll_timeout_says_how_to_go_on(face: Face) -> None:
    """The name, the last failed poll, how many there were; the last state beside it."""
    state = raw(json.dumps(running(30)).encode())
    handle = answering(face, state, raw(b"<h1>busy</h1>", 503)).operation(NAME, **TYPES)
    with pytest.raises(PollTimeout) as caught:
        handle.result(20)
    error = caught.value
    assert NAME in str(error)
    # The very last poll has but 30 ms, which a machine under load may need for itself.
    assert "the last poll failed: GetOperation failed with " in str(error)
    assert f"{error.polls} polls" in str(error)
    assert error.operation is not None
    assert error.operation.metadata is not None
    assert error.operation.metadata.payload["percent"] == 30
    assert json.loads(handle.token)["name"] == NAME


def test_a_call_error_says_what_was_found(face: Face) -> None:
    """The verb, the code, and what the server or the proxy gave."""
    server = ScriptedServer()
    server.operation(NAME, ends_after=None)
    server.fault(Fault(status=401, body=b"<h1>who?</h1>"), verb="GetOperation")
    http = face.http(transport=server.transport)
    client = face.client(server.url, clock=server.clock, http=http)
    with pytest.raises(CallError) as caught:
        client.get(NAME)
    assert (
        str(caught.value)
        == "GetOperation failed with UNAUTHENTICATED: the server answered HTTP 401"
        f" to GET {server.url}/v1/{NAME}"
    )
    with pytest.raises(CallError) as caught:
        client.get("operations/none")
    assert "GetOperation" in str(caught.value)


def test_what_is_spoilt_later() -> None:
    """The head was right, the rest is not."""
    unpacking = Unpacking()
    assert list(unpacking.feed(gzip.compress(b"x" * 100)[:10])) == []
    with pytest.raises(httpx.DecodingError):
        list(unpacking.feed(b"\xff" * 40))
