"""Unreadable and empty replies, and which of them are polled again (spec §11.5(2))."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

import lro
from lro_client import CallError, OperationGone, PathNotServed, Polling, Retry, UnreadableReply
from lro_client.testing import ScriptedServer
from lro_client.transports._http_coding import is_truncated
from tests.client.faces import URL, Clock, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeRequest,
    ResizeResponse,
    packed,
    page_of_a_proxy,
    refusal,
    reply,
    running,
    succeeded,
)
from tests.client.test_events import event_of, stream
from tests.client.test_groups import client_of, group_of, plan

PLAIN = Polling(jitter=0.0, wait_first=False)
JSON = {"content-type": "application/json"}
WHOLE = json.dumps(succeeded()).encode()

NEVER = {
    "a byte order mark": b"\xef\xbb\xbf" + WHOLE,
    "a byte order mark, cut": b"\xef\xbb\xbf" + WHOLE[:20],
    "not UTF-8": WHOLE.replace(b"abc", b"\xff"),
    "not UTF-8, cut": WHOLE.replace(b"abc", b"\xff")[:-5],
    "UTF-16": WHOLE.decode().encode("utf-16"),
    "too deep": b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "too deep, without an end": b"[" * 500_000,
    "too many digits": b'{"name": "operations/abc", "a": ' + b"9" * 5000 + b"}",
    "no number": b'{"name": "operations/abc", "a": NaN',
    "two texts": WHOLE + WHOLE,
    "a page": b"<form>",
}


@pytest.mark.parametrize("wait_first", [False, True])
def test_unreadable_reply_that_was_not_cut_is_raised_at_once(
    wait_first: bool, face: Face, clock: Clock, server: respx.Router
) -> None:
    """An unreadable reply that is not truncated is raised at once, not retried."""
    for number, (kind, body) in enumerate(NEVER.items(), 1):
        server.route().mock(return_value=httpx.Response(200, content=body, headers=JSON))
        client = face.client(clock=clock, polling=Polling(wait_first=wait_first))
        with pytest.raises(UnreadableReply, match="the reply is not JSON") as caught:
            client.operation(NAME, **TYPES).result()
        assert not caught.value.passing, kind
        assert clock.sleeps == []
        assert len(server.calls) == number * (2 if wait_first else 1)


ERROR = {"code": 401, "message": "the token has expired", "status": "UNAUTHENTICATED"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(204), "HTTP 204 says nothing of an operation"),
        (httpx.Response(205), "HTTP 205 says nothing of an operation"),
        (reply({"error": ERROR}), "has an error: the token has expired"),
        (reply({"name": NAME, "error": ERROR}), "has an error: the token has expired"),
    ],
)
def test_reply_that_is_not_an_operation_is_raised_at_once(
    answer: httpx.Response, says: str, face: Face, clock: Clock, server: respx.Router
) -> None:
    """A reply without content (RFC 9110 §15.3.5), or with an error but no ``done``, is final."""
    route = server.get().mock(return_value=answer)
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    with pytest.raises(UnreadableReply, match=says) as caught:
        handle.result()
    assert (caught.value.passing, route.call_count) == (False, 1)


TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(TEXTS, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_every_prefix_of_json_counts_as_truncated(
    value: Any, ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    """JSON may be truncated between tokens, in a token, or in a character."""
    whole = json.dumps([value], ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    kept = data.draw(st.integers(0, len(whole) - 1))
    assert is_truncated(whole[:kept])
    assert not is_truncated(whole)
    assert not is_truncated(whole + b"]")


@pytest.mark.parametrize(
    "text",
    [b'{"a" 1', b"[1,,", b'{"a": "\n', b'{"a": "\\x', b"[nope", b"[.", b"[-x", b"[1u12", b"[1.e5"],
)
def test_text_that_cannot_become_json_is_not_truncated(text: bytes) -> None:
    """A text with a mistake before its end is not the beginning of valid JSON."""
    assert not is_truncated(text)


EMPTY = {
    "no body": httpx.Response(200, headers=JSON),
    "blanks": httpx.Response(200, content=b" \n", headers=JSON),
    "no field": reply({}),
    "fields without a value": reply({"name": "", "done": False, "metadata": None}),
}


@pytest.mark.parametrize("timeout", [None, 3600.0])
@pytest.mark.parametrize("answer", EMPTY.values(), ids=EMPTY)
def test_empty_reply_is_retried_three_times(
    answer: httpx.Response,
    timeout: float | None,
    face: Face,
    clock: Clock,
    server: respx.Router,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After four empty replies in a row the error is raised, to avoid polling for ever."""
    route = server.get().mock(return_value=answer)
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    with pytest.raises(UnreadableReply, match="the reply says nothing: it is an ") as caught:
        handle.result(timeout)
    assert (caught.value.empty, caught.value.passing) == (True, True)
    assert (route.call_count, clock.sleeps) == (4, [0.5, 1.0, 2.0])
    assert len(caplog.records) == 4


def test_empty_replies_between_good_ones_are_not_failures(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """A good reply resets the count of empty replies; other failures are not counted."""
    empty, down = EMPTY["no body"], refusal(lro.Code.UNAVAILABLE)
    answers = [empty] * 3 + [reply(running())] + [empty, down] * 3 + [reply(succeeded())]
    server.get().mock(side_effect=answers)
    client = face.client(clock=clock, polling=PLAIN)
    assert client.operation(NAME, **TYPES).result() == ResizeResponse(size_bytes=7)


@pytest.mark.parametrize("way", ["get", "operations", "batchGet", "watch"])
def test_unreadable_reply_in_a_group_fails_only_its_operation(way: str, face: Face) -> None:
    """In a group, only the operation of the unreadable reply fails."""
    names = [f"operations/{number}" for number in range(6)]
    states = [{"name": names[0], "error": ERROR}, *(succeeded(name=one) for one in names[1:])]

    def answer(request: httpx.Request) -> httpx.Response:
        name, _, verb = request.url.path.removeprefix("/v1/").partition(":")
        if way not in (name, verb):
            known = request.method == "GET" and name in names
            found = {} if name == names[0] else succeeded(name=name)
            return reply(found) if known else refusal(lro.Code.UNIMPLEMENTED)
        return stream(*map(event_of, states)) if way == "watch" else reply({"operations": states})

    client = face.client(http=face.http(transport=httpx.MockTransport(answer)), clock=Clock())
    first, *others = group_of(face, client, names).outcomes(60)
    assert isinstance(first, UnreadableReply)
    assert ("the token has expired" in str(first)) == (way != "get")
    assert others == [ResizeResponse(7)] * 5


def test_a_start_must_name_its_operation(face: Face, server: respx.Router) -> None:
    """A start whose reply has no name is an error, because the client could never poll it."""
    server.post().mock(return_value=reply({}))
    with pytest.raises(UnreadableReply, match="in progress without a name"):
        face.client().start("/v1/x:start", ResizeRequest(), **TYPES)


@pytest.mark.parametrize("many", [False, True])
def test_a_reply_that_is_too_large_is_not_fetched_again(
    many: bool, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply over the client's size limit is not retried, and not taken for an overload."""
    monkeypatch.setattr("lro_client.transports.http.MAX_REPLY", 500)
    server = ScriptedServer(lists=False, wait=False)
    names = plan(server, 6)
    server.operation(names[0], ends_after=0.0, response=ResizeResponse(note="x" * 600))
    client = client_of(face, server)
    if many:
        error = group_of(face, client, names).outcomes()[0]
    else:
        with pytest.raises(UnreadableReply) as caught:
            client.operation(names[0], **TYPES).result()
        error = caught.value
    assert isinstance(error, UnreadableReply)
    assert (error.code, error.passing) == (lro.Code.UNKNOWN, False)
    asked = [call for call in server.calls if call.name == names[0]]
    assert [call.verb for call in asked if call.verb == "GetOperation"] == ["GetOperation"]


def test_unreadable_replies_differ_from_unknown_of_a_server(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """A policy that retries UNKNOWN retries UNKNOWN of a server, but not an UnreadableReply."""
    answers = [refusal(lro.Code.UNKNOWN), refusal(lro.Code.UNKNOWN), page_of_a_proxy(200)]
    server.get().mock(side_effect=answers)
    with pytest.raises(CallError) as caught:
        face.client().get(NAME)
    assert not isinstance(caught.value, UnreadableReply)
    retry = Retry(codes=frozenset({lro.Code.UNKNOWN}), transport=True)
    with pytest.raises(UnreadableReply) as unreadable:
        face.client(clock=clock, retry=retry).get(NAME)
    assert (caught.value.code, unreadable.value.code) == (lro.Code.UNKNOWN, lro.Code.UNKNOWN)
    assert unreadable.value.http_status == 200
    assert clock.sleeps == [0.5]


NOWHERE = {
    "our error body": refusal(
        lro.Code.NOT_FOUND,
        "there is nothing at /wrong",
        packed("google.rpc.ErrorInfo", reason="ROUTE_NOT_FOUND", domain="acme.test"),
    ),
    "a page": page_of_a_proxy(404),
    "JSON of a framework": reply({"detail": "there is nothing at /wrong"}, 404),
    "a problem": reply({"title": "Not Found", "detail": "there is nothing at /wrong"}, 404),
    "JSON of Spring": reply({"error": "Not Found", "message": "there is nothing at /wrong"}, 404),
}


GONE = {
    "our error body": refusal(
        lro.Code.NOT_FOUND,
        "no such operation",
        packed("google.rpc.ErrorInfo", reason="OPERATION_NOT_FOUND", domain="acme.test"),
    ),
    "no detail": refusal(lro.Code.NOT_FOUND, "no such operation"),
    "a text": reply({"error": "no such operation"}, 404),
    "a code alone": reply({"error": {"code": 404, "message": "no such operation"}}, 404),
    "a code without words": reply({"code": 5}, 404),
}


@pytest.mark.parametrize("wait_first", [False, True])
@pytest.mark.parametrize("answer", NOWHERE.values(), ids=NOWHERE)
def test_wrong_base_url_is_not_reported_as_a_gone_operation(
    answer: httpx.Response, wait_first: bool, face: Face, clock: Clock, server: respx.Router
) -> None:
    """If the base URL is wrong, the error names the unserved URL and the settings to check."""
    server.route().mock(return_value=answer)
    client = face.client(f"{URL}/wrong", clock=clock, polling=Polling(wait_first=wait_first))
    for ask in (client.operation(NAME, **TYPES).result, lambda: client.get(NAME)):
        with pytest.raises(PathNotServed) as caught:
            ask()
        assert not isinstance(caught.value, OperationGone)
        assert (caught.value.code, caught.value.http_status) == (lro.Code.NOT_FOUND, 404)
        assert f"nothing is served at GET {URL}/wrong/v1/{NAME}: " in str(caught.value)
        assert "look at the name, the client's base URL and routes" in str(caught.value)
        said = "there is nothing at /wrong" if b"/wrong" in answer.content else "is mounted"
        assert str(caught.value).endswith(said)
    assert clock.sleeps == []
    server.route().mock(side_effect=[httpx.ReadError("lost"), answer])
    with pytest.raises(PathNotServed):  # no earlier attempt can have deleted the operation
        client.delete(NAME)
    for gone in GONE.values():  # replies of this library, Google and other servers (spec §11.8)
        server.route().mock(return_value=gone)
        with pytest.raises(OperationGone, match=r"no such operation|HTTP 404"):
            client.operation(NAME, **TYPES).result()
