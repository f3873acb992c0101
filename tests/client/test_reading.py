"""Replies of real servers, and of proxies in front of them (spec §11.5, §11.6, §11.8)."""

from __future__ import annotations

import gzip
import json
import re
import traceback
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lro
from lro_client import CallError, OperationGone, PathNotServed, Polling, Retry, UnreadableReply
from lro_client.transports import http as http_transport
from lro_client.transports.http import Unpacking
from tests.client import sockets
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, TYPES, ResizeResponse, refusal, reply, succeeded
from tests.webhooks import certificates
from tests.webhooks.receivers import receiver


def headless(content: bytes) -> bytes:
    """Compress as raw deflate without the zlib header, as some servers do."""
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(content) + made.flush()


def in_members(content: bytes) -> bytes:
    """Compress as three gzip members, of which one is empty, and pad with zeros (RFC 1952 §2.2)."""
    at = len(content) // 2
    return b"".join(map(gzip.compress, (content[:at], b"", content[at:]))) + bytes(9)


PACKING: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("gzip", in_members),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", headless),
    (" GZIP", gzip.compress),
    ("identity", bytes),
    ("gzip, identity,, GZIP", lambda content: gzip.compress(gzip.compress(content))),
    ("gzip,deflate", lambda content: zlib.compress(gzip.compress(content))),
]


ONLY_GET = Polling(wait_first=False)


def answering(
    face: Face, *answers: Callable[[], httpx.Response], polling: Polling = ONLY_GET, **options: Any
) -> Any:
    """Make a client whose server sends these answers in turn, and then repeats the last one."""
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        return (left.pop(0) if len(left) > 1 else left[0])()

    http = face.http(transport=httpx.MockTransport(answer), **options)
    return face.client(http=http, clock=Clock(), polling=polling)


def raw(content: bytes, status: int = 200, **headers: str) -> Callable[[], httpx.Response]:
    """Return a function that makes a response whose body is not read yet."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda: httpx.Response(status, headers=named, stream=httpx.ByteStream(content))


DONE = json.dumps(succeeded()).encode()

# -- compressed bodies --------------------------------------------------------------------------


@pytest.mark.parametrize(("coding", "pack"), PACKING)
def test_compressed_body_is_decompressed(
    coding: str, pack: Callable[[bytes], bytes], face: Face
) -> None:
    client = answering(face, raw(pack(DONE), content_encoding=coding))
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(7)


@given(content=st.binary(max_size=3000), case=st.sampled_from(PACKING), size=st.integers(1, 50))
def test_chunked_compressed_body_is_decompressed_whatever_the_chunks(
    content: bytes, case: tuple[str, Callable[[bytes], bytes]], size: int
) -> None:
    """Chunks of any size decompress to the same content."""
    codings, pack = case
    unpacking, whole = Unpacking(codings), pack(content)
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert b"".join(piece for chunk in chunks for piece in unpacking.feed(chunk)) == content


PIECE = 256 * 1024


@pytest.mark.parametrize("size", [2_000_000, PIECE, 3 * PIECE])
@pytest.mark.parametrize("members", [1, 20])
def test_decompressed_pieces_are_bounded_in_size(members: int, size: int) -> None:
    """Each decompressed piece is bounded, even if few bytes or many members expand to much data."""
    unpacking = Unpacking("gzip")
    found = [len(piece) for piece in unpacking.feed(gzip.compress(bytes(size)) * members)]
    assert sum(found) == members * size
    assert max(found) <= PIECE


@pytest.mark.parametrize("codings", ["gzip", "gzip, gzip"])
def test_reply_that_decompresses_over_the_limit_is_refused(
    codings: str, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that decompresses to more than the limit is refused without filling the memory."""
    monkeypatch.setattr(http_transport, "MAX_REPLY", 1_000_000)
    bomb = bytes(50_000_000)
    for _ in codings.split(","):
        bomb = gzip.compress(bomb)
    client = answering(face, raw(bomb, content_encoding=codings))
    tracemalloc.start()
    with pytest.raises(CallError, match="UNKNOWN: the reply is larger than 1000000"):
        client.get(NAME)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("codings", ["br", "zstd", "gzip, br", "gzip, gzip, gzip", "x", "*"])
def test_other_content_encodings_are_refused(codings: str, face: Face) -> None:
    """Unsupported encodings are refused, as the HTTP library may decompress without a limit."""
    client = answering(face, raw(DONE, content_encoding=codings))
    with pytest.raises(UnreadableReply, match=rf"packed as '{re.escape(codings)}'") as caught:
        client.get(NAME)
    assert not caught.value.passing


@pytest.mark.parametrize(
    ("accepted", "asked"),
    [
        ("gzip, deflate", "gzip, deflate"),
        ("gzip;q=0.5, br, zstd, deflate", "gzip;q=0.5, deflate"),
        ("br", "identity"),
        ("identity", "identity"),
    ],
)
def test_accept_encoding_names_only_the_supported_encodings(
    accepted: str, asked: str, face: Face
) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["accept-encoding"])
        return reply(succeeded())

    headers = {"accept-encoding": accepted}
    http = face.http(transport=httpx.MockTransport(answer), headers=headers)
    face.client(http=http, clock=Clock()).get(NAME)
    assert seen == [asked]


SPOILT = [b"no gzip at all", gzip.compress(DONE, mtime=0)[:-20] + b"x" * 20]


@pytest.mark.parametrize("spoilt", SPOILT, ids=["none", "cut"])
def test_corrupt_body_is_retried(spoilt: bytes, face: Face) -> None:
    """A corrupt body is retried, like a truncated one."""
    spoilt_once = raw(spoilt, content_encoding="gzip", content_type="application/json")
    client = answering(face, spoilt_once, raw(DONE))
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(7)


def test_body_never_encoded_as_declared_fails_after_three_retries(face: Face) -> None:
    """A body that is never encoded as declared is polled three more times; then it is an error."""
    asked: list[int] = []

    def answer() -> httpx.Response:
        asked.append(1)
        return raw(DONE, content_encoding="gzip")()

    with pytest.raises(UnreadableReply, match="the reply cannot be unpacked"):
        answering(face, answer).operation(NAME, **TYPES).result()
    assert len(asked) == 4


def test_body_that_a_hook_has_read_is_used() -> None:
    face = Face()
    hooks = {"response": [lambda response: response.read()]}
    client = answering(face, raw(gzip.compress(DONE), content_encoding="gzip"), event_hooks=hooks)
    assert client.get(NAME).done
    face.close()


def test_a_large_refusal_of_a_stream_is_not_read_to_its_end(face: Face) -> None:
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
    assert 0 < len(sent) <= 66


# -- content ------------------------------------------------------------------------------------


@pytest.mark.parametrize("http", [408, 429, 500, 502, 503, 504])
def test_unexpected_body_with_a_retryable_status_is_retried(http: int, face: Face) -> None:
    pages = (b"", b"<h1>no</h1>", b"{", b"[]", b'"no"', b"{}", b'{"error": "no"}')
    errors = (b'{"error": {}}', b'[{"error": {"message": "x"}}]', b'{"error": {"status": "X"}}')
    answers = [*[raw(body, http) for body in (*pages, *errors, b"\xff")], raw(DONE)]
    retry = Retry(codes=frozenset(), transport=True, attempts=None)
    client = answering(face, *answers, polling=Polling(wait_first=False, retry=retry))
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(7)


@pytest.mark.parametrize("kept", [0, 1, 20, len(DONE) - 1])
def test_truncated_json_is_retried_by_a_wait_only(kept: int, face: Face) -> None:
    """Truncated JSON with status 200 is retried by a wait, but is an error of a single call."""
    cut = raw(DONE[:kept], content_type="application/json; charset=utf-8")
    handle = answering(face, cut, raw(DONE)).operation(NAME, **TYPES)
    assert handle.result() == ResizeResponse(7)
    with pytest.raises(UnreadableReply, match=r"the reply (is not JSON|says nothing)") as caught:
        answering(face, cut).get(NAME)
    assert caught.value.passing
    assert caught.value.http_status == 200


@pytest.mark.parametrize("parent", ["a/", "projects/operations/"])
@pytest.mark.parametrize("way", ["watch", "batchGet", "list", "get"])
def test_names_with_several_segments_form_one_collection(way: str, parent: str, face: Face) -> None:
    """Each verb reads operations below a parent, or with long ids, from one collection."""
    names = [f"{parent}operations/{tail}" for tail in (*"abcdef", "x/y/z")]
    ends = [succeeded(name=name) for name in names]
    collections = set()

    def answer(request: httpx.Request) -> httpx.Response:
        path, _, verb = request.url.path.removeprefix("/v1/").partition(":")
        if path in names:
            return refusal(lro.Code.UNIMPLEMENTED) if verb else reply(succeeded(name=path))
        collections.add(path)
        if (verb or "list") != way:
            return refusal(lro.Code.UNIMPLEMENTED)
        if verb == "watch":
            events = "".join(f"event: operation\ndata: {json.dumps(one)}\n\n" for one in ends)
            return httpx.Response(200, text=events, headers={"content-type": "text/event-stream"})
        return reply({"operations": ends})

    client = face.client(http=face.http(transport=httpx.MockTransport(answer)), clock=Clock())
    handles = [face.inside(client.operation(name, **TYPES)) for name in names]
    assert client.group(handles).results() == [ResizeResponse(7)] * len(names)
    assert collections == {f"{parent}operations"}


# -- helpful errors -----------------------------------------------------------------------------


def test_body_corrupt_at_its_end_is_retried() -> None:
    """Corruption is detected even if the beginning of the body was correct."""
    unpacking = Unpacking("gzip")
    assert b"".join(unpacking.feed(gzip.compress(b"x" * 100)[:10])) == b""
    with pytest.raises(httpx.DecodingError):
        list(unpacking.feed(b"\xff" * 40))


@pytest.mark.parametrize("read", [False, True])
def test_hook_that_raises_for_the_status_keeps_the_body_it_has_read(read: bool, face: Face) -> None:
    """The client uses a body that an error hook, as in httpx's documentation, has already read."""
    refused = refusal(lro.Code.UNAVAILABLE), refusal(lro.Code.NOT_FOUND, "deleted")
    replies = [raw(one.content, one.status_code)() for one in refused]

    def look(response: httpx.Response) -> None:
        if read:
            response.read()
        response.raise_for_status()

    async def look_async(response: httpx.Response) -> None:
        if read:
            await response.aread()
        response.raise_for_status()

    hooks = {"response": [look if face.name == "sync" else look_async]}
    http = face.http(transport=httpx.MockTransport(lambda _: replies.pop(0)), event_hooks=hooks)
    client = face.client(http=http, clock=Clock(), polling=ONLY_GET)
    wanted, says = (OperationGone, "deleted") if read else (PathNotServed, "nothing is served at")
    with pytest.raises(wanted, match=says):
        client.operation(NAME).result()
    assert replies == []


def test_error_about_an_invalid_header_hides_its_value(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    """The error hides the value of an invalid header, such as a token with a final newline."""
    http = face.http(headers={"authorization": "Bearer s3cr3t\n"})
    with (
        sockets.serving(sockets.silent) as url,
        pytest.raises(CallError, match="such as the newline at the end of a file") as caught,
    ):
        face.client(url, http=http).get(NAME)
    shown = "".join(traceback.format_exception(caught.value))
    assert "s3cr3t" not in f"{shown}{caplog.text}"


LASTING = [
    (httpx.ConnectError, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", "FAILED_PRECONDITION"),
    (httpx.ConnectError, "[SSL: WRONG_VERSION_NUMBER] wrong version", "FAILED_PRECONDITION"),
    (httpx.ProxyError, "407 Proxy Authentication Required", "FAILED_PRECONDITION"),
    (httpx.ProxyError, "403 Forbidden", "PERMISSION_DENIED"),
    (httpx.ProxyError, "407, message='as aiohttp says it'", "FAILED_PRECONDITION"),
    (httpx.ConnectTimeout, "of aiohttp: CERTIFICATE_VERIFY_FAILED", "FAILED_PRECONDITION"),
]


@pytest.mark.parametrize(("error", "text", "code"), LASTING)
def test_permanent_connection_error_is_raised_at_once(
    error: type[httpx.RequestError], text: str, code: str, face: Face
) -> None:
    """A connection error that no retry can cure is raised at once."""

    def answer() -> httpx.Response:
        asked.append(1)
        raise error(text)

    asked: list[int] = []
    with pytest.raises(CallError, match=f"{code}: .*{re.escape(text)}") as caught:
        answering(face, answer).operation(NAME, **TYPES).result()
    assert (asked, caught.value.passing) == ([1], False)


def test_tls_failure_names_the_reason_of_the_library(face: Face, tmp_path: Path) -> None:
    """The error has the TLS library's reason: an unknown authority, or a port without TLS."""
    context, _ = certificates.contexts(tmp_path, "127.0.0.1")
    for server, says in ((context, "CERTIFICATE_VERIFY_FAILED"), (None, "WRONG_VERSION|RECORD_L")):
        with receiver(context=server) as there:
            url = there.url.replace("http://", "https://")
            with pytest.raises(CallError, match=f"FAILED_PRECONDITION: ConnectError: .*({says})"):
                face.client(url.removesuffix("/hook"), http=face.http()).get(NAME)
