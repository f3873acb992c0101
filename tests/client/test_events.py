"""Event streams as servers and proxies send them (spec §3.11, WHATWG HTML §9.2)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lro
from lro_client import CallError, Routes, UnreadableReply
from lro_client.transports import Call, _http_coding
from lro_client.transports._http_coding import Events, EventTooLarge, HttpCoder
from tests.client.faces import Clock, Face
from tests.client.messages import TYPES, refusal, reply, running, succeeded
from tests.client.test_batches import EVERY, NAMES

EventList = list[tuple[str, bytes]]


def events_of(*chunks: bytes) -> EventList:
    """Return the type and the data of each event in these chunks."""
    events = Events(lambda kind, data: (kind, data))
    return [event for chunk in chunks for event in events.feed(chunk)]


TEXTS = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8)
LINES = st.lists(TEXTS, min_size=1, max_size=3)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    events=st.lists(st.tuples(st.sampled_from(["", "operation", "missing", "new"]), LINES)),
    comments=st.lists(TEXTS, max_size=3),
    end=ENDS,
    spaced=st.booleans(),
    data=st.data(),
)
def test_server_sent_events_are_read_from_any_chunks(
    events: list[tuple[str, list[str]]],
    comments: list[str],
    end: bytes,
    spaced: bool,
    data: st.DataObject,
) -> None:
    """Events are read correctly however the stream is split, and whatever its line ends are.

    Comments, ids and unknown fields are ignored.
    """
    lines: list[str] = []
    colon = ": " if spaced else ":"
    for kind, texts in events:
        lines += [f":{one}" for one in comments]
        lines += [f"event{colon}{kind}"] if kind else []
        # The parser removes one space after the colon, so data that begins with a space needs
        # a second space.
        lines += [f"data{': ' if text.startswith(' ') else colon}{text}" for text in texts]
        lines += ["id: 7", "retry: 1", "colour: red", "nothing", ""]
    whole = end.join(line.encode() for line in lines) + (end if lines else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    # A carriage return at the end of a chunk may be half a line end, so another byte must follow.
    assert events_of(*chunks, b":\n") == [
        (kind, "\n".join(texts).encode()) for kind, texts in events
    ]


MARK = "\ufeff".encode()


@pytest.mark.parametrize(
    ("chunks", "events"),
    [
        # A byte order mark is ignored at the start of the stream, even if split, and nowhere else.
        ([MARK[:1], MARK[1:], b"event: a\ndata: 1\n\n"], [("a", b"1")]),
        ([b":\n", MARK + b"event: a\ndata: 1\n\n"], [("", b"1")]),
        # The type of an event without data does not apply to the next event.
        ([b"event: operation\n\ndata: 1\n\n"], [("", b"1")]),
    ],
)
def test_text_between_server_sent_events_is_ignored(chunks: list[bytes], events: EventList) -> None:
    """Text between the events does not change them."""
    assert events_of(*chunks) == events


@pytest.mark.parametrize(
    "chunks",
    [[b"data: ", b"x" * 60, b"x" * 60], [b"data: " + b"x" * 30 + b"\n"] * 4, [b"data\n" * 101]],
    ids=["one line", "many lines", "empty lines"],
)
def test_event_over_the_size_limit_ends_the_stream(
    chunks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single event above the limit raises EventTooLarge; many small events do not."""
    monkeypatch.setattr(_http_coding, "MAX_EVENT", 100)
    assert len(events_of(*[b"data: 1\n\n"] * 100)) == 100
    with pytest.raises(EventTooLarge, match="larger than 100 bytes"):
        events_of(*chunks)


def test_event_without_an_end_is_unreadable() -> None:
    """EventTooLarge is not retried, because the server would send the same event again."""
    call = Call(request=lro.wire.GetOperationRequest("operations/a"), budget=1.0)
    error = EventTooLarge("an event is larger than 100 bytes")
    with pytest.raises(UnreadableReply, match="larger than 100 bytes") as failed:
        HttpCoder(Routes(), lro.TypeRegistry()).raise_failure(call, error, lambda: "GET /")
    assert not failed.value.passing


def test_encoder_refuses_a_name_that_is_empty() -> None:
    """The encoder refuses an empty name itself, as a transport may be called without a client."""
    call = Call(request=lro.wire.GetOperationRequest(""), budget=1.0)
    with pytest.raises(lro.DeclarationError, match="name: must not be empty"):
        HttpCoder(Routes(), lro.TypeRegistry()).encode(call)


class Server:
    """Answers ``:watch`` and ``:batchGet`` with given functions, and a Get with a success."""

    def __init__(
        self,
        watch: Callable[[httpx.Request], httpx.Response],
        batch: Callable[[httpx.Request], httpx.Response] | None = None,
    ) -> None:
        self.watch, self.batch = watch, batch or (lambda _: httpx.Response(404))
        self.asked: list[str] = []

    @property
    def singles(self) -> int:
        """The number of Get and Wait calls, each for a single operation."""
        return sum(verb in ("get", "wait") for verb in self.asked)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, _, verb = request.url.path.partition(":")
        self.asked.append(verb or ("list" if path.endswith("operations") else "get"))
        if verb == "watch":
            return self.watch(request)
        if verb == "batchGet":
            return self.batch(request)
        if self.asked[-1] == "list":
            return refusal(lro.Code.UNIMPLEMENTED)
        return reply(succeeded(name=path.removeprefix("/v1/")))


def results(face: Face, server: Server, **options: Any) -> Any:
    """Return the results of a group that waits for the operations ``NAMES``."""
    http = face.http(transport=httpx.MockTransport(server))
    client = face.client(http=http, clock=Clock(), **options)
    group = client.group([face.inside(client.operation(name, **TYPES)) for name in NAMES])
    return group.results(timeout=600)


def stream(*events: str, **headers: str) -> httpx.Response:
    """Return a stream that sends these events and then ends."""
    kind = {"content-type": "text/event-stream; charset=utf-8", **headers}
    content = "".join(f"{event}\n\n" for event in events).encode()
    packed = gzip.compress(content) if "content-encoding" in headers else content
    return httpx.Response(200, headers=kind, stream=httpx.ByteStream(packed))


def event_of(state: dict[str, Any]) -> str:
    """Return an event with the state of an operation."""
    return f"event: operation\ndata: {json.dumps(state)}"


ENDS_OF_ALL = [event_of(succeeded(name=name)) for name in NAMES]


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_a_stream_reports_all_operations(coding: str, face: Face) -> None:
    headers = {"content-encoding": coding} if coding else {}
    server = Server(lambda _: stream(*ENDS_OF_ALL, **headers))
    assert results(face, server) == EVERY
    assert server.asked == ["watch"]


def test_unexpected_events_are_ignored(face: Face) -> None:
    """Events of unknown types or other operations, intermediate states and comments are ignored."""
    besides = [
        "event: weather\ndata: rain",
        event_of(succeeded(name="operations/other")),
        ": hello",
    ]
    besides += ['event: missing\ndata: {"name": "operations/other"}', "data: 1"]
    besides += [event_of(running(5, name=name)) for name in NAMES]
    server = Server(lambda _: stream(*besides, *ENDS_OF_ALL))
    assert results(face, server) == EVERY
    assert server.asked == ["watch"]


@pytest.mark.parametrize(
    "event",
    [
        "event: operation\ndata: {",
        "event: operation\ndata: [1]",
        'event: operation\ndata: {"name": 5}',
        "event: missing\ndata: {}",
        "event: missing\ndata: 5",
    ],
)
@pytest.mark.parametrize("earlier", [0, 2])
def test_invalid_event_ends_the_stream(earlier: int, event: str, face: Face) -> None:
    """Events before an invalid event are used; the remaining operations are polled."""
    server = Server(lambda _: stream(*ENDS_OF_ALL[:earlier], event, *ENDS_OF_ALL))
    assert results(face, server) == EVERY
    assert server.asked.count("watch") == 1
    assert server.singles >= len(NAMES) - earlier


def spoilt(content: bytes) -> httpx.Response:
    """Return a stream whose gzip content is corrupt."""
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(content))


@pytest.mark.parametrize(
    "answer",
    [
        lambda: stream(ENDS_OF_ALL[0], f"data: {'x' * 2000}"),
        lambda: spoilt(b"\x1f\x8b\x08 no gzip"),
        lambda: spoilt(b"neither"),
    ],
    ids=["an event that is too large", "spoilt later", "spoilt from the beginning"],
)
def test_unreadable_stream_is_replaced_by_polls(
    answer: Callable[[], httpx.Response], face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a stream is unreadable, the client polls, and every caller gets a result."""
    monkeypatch.setattr(_http_coding, "MAX_EVENT", 1000)
    assert results(face, Server(lambda _: answer())) == EVERY


def test_stream_that_ends_too_early_is_reopened_a_few_times(face: Face) -> None:
    """If a stream ends too early, the client reopens it for the missing operations a few times."""
    streams = iter([stream(ENDS_OF_ALL[0]), stream(*ENDS_OF_ALL[1:])])
    server = Server(lambda _: next(streams))
    assert results(face, server) == EVERY
    assert server.asked == ["watch", "watch"]
    empty = Server(lambda _: stream())
    assert results(face, empty) == EVERY
    assert empty.asked.count("watch") <= 3


@pytest.mark.parametrize(
    "answer",
    [
        reply({"name": "operations"}),
        httpx.Response(200, html="<h1>welcome</h1>"),
        httpx.Response(204),
        refusal(lro.Code.NOT_FOUND),
        refusal(lro.Code.UNIMPLEMENTED),
        refusal(lro.Code.INVALID_ARGUMENT),
        refusal(lro.Code.INTERNAL),
        httpx.Response(404, html="x" * 100_000),
        httpx.Response(405),
        httpx.Response(500),
        httpx.Response(503, headers={"retry-after": "2"}),
        httpx.Response(302, headers={"location": "/elsewhere"}),
    ],
)
def test_server_without_extensions_is_polled_by_single_gets(
    answer: httpx.Response, face: Face
) -> None:
    """If Watch and BatchGet fail in any way, each operation is read alone, and no caller fails."""
    server = Server(lambda _: again(answer), lambda _: again(answer))
    assert results(face, server) == EVERY
    assert server.asked.count("watch") == server.asked.count("batchGet") == 1
    assert server.singles == len(NAMES)


def again(answer: httpx.Response) -> httpx.Response:
    """Return a copy of a response, whose body can be read again."""
    body = httpx.ByteStream(answer.content)
    return httpx.Response(answer.status_code, headers=answer.headers, stream=body)


def test_refusal_of_one_operation_in_a_stream_fails_only_that_one(face: Face) -> None:
    """If the second stream is refused, each operation is read alone, and only one of them fails."""
    answers = iter([stream(*ENDS_OF_ALL[:3]), refusal(lro.Code.PERMISSION_DENIED)])

    class Refusing(Server):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/5"):
                return refusal(lro.Code.PERMISSION_DENIED, "not yours")
            return super().__call__(request)

    with pytest.raises(CallError, match="not yours"):
        results(face, Refusing(lambda _: next(answers)))
