"""Retries of single calls: which calls, after what delays, how often (spec §11.5(1), (4), (5))."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import respx
import tenacity

import lro
from lro_client import NO_RETRY, CallError, Retry
from lro_client.waits import wait_exponential
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, page_of_a_proxy, refusal, reply, running

VERBS: dict[str, Callable[[Any], Any]] = {
    "get": lambda client: client.get(NAME),
    "list": lambda client: list(client.list()),
    "wait": lambda client: client.wait(NAME),
    "cancel": lambda client: client.cancel(NAME),
    "delete": lambda client: client.delete(NAME),
}

UNAVAILABLE = refusal(lro.Code.UNAVAILABLE)


def retry_info(delay: str) -> dict[str, str]:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


@pytest.mark.parametrize(
    ("retry", "failures", "pauses"),
    [
        (Retry(), 2, [0.5, 1.0]),
        (Retry(), 5, [0.5, 1.0, 2.0, 4.0]),  # no attempts are left
        (Retry(attempts=None), 7, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
        (Retry(attempts=None, patience_seconds=3.0), 4, [0.5, 1.0, 2.0]),
        (NO_RETRY, 1, []),
    ],
)
def test_unavailable_call_is_retried_with_doubling_delays(
    retry: Retry, failures: int, pauses: list[float], face: Face, server: respx.Router
) -> None:
    """Each verb is retried with doubling delays, as often and as long as the policy allows."""
    fails = failures > len(pauses)
    for kind, ask in VERBS.items():
        clock = Clock()
        server.route().mock(side_effect=[UNAVAILABLE] * failures + [reply(running())])
        with pytest.raises(CallError, match="UNAVAILABLE") if fails else contextlib.nullcontext():
            ask(face.client(clock=clock, retry=retry))
        assert clock.sleeps == pauses, kind
    assert len(server.calls) == len(VERBS) * (len(pauses) + 1)


def test_connection_failures_and_proxy_pages_count_as_unavailable(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """Failures to connect, lost connections, and a proxy's 502 and 503 pages are retried."""
    faults: list[Any] = [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadError("reset"),
        httpx.WriteError("reset"),
        httpx.RemoteProtocolError("disconnected"),
        httpx.ProxyError("no"),
        httpx.ReadError("[SSL: WRONG_VERSION_NUMBER] within a conversation"),
        ssl.SSLError("[SSL: BAD_RECORD_TYPE] as httpx leaves it on an event loop"),
        ConnectionResetError("reset"),
        page_of_a_proxy(502),
        page_of_a_proxy(503),
    ]
    client = face.client(clock=clock)
    for fault in faults:
        server.get().mock(side_effect=[fault, reply(running())])
        assert client.get(NAME).name == NAME, fault
    assert clock.sleeps == [0.5] * len(faults)


FINAL: list[tuple[Any, lro.Code]] = [
    *[
        (refusal(code, "as it is"), code)
        for code in lro.Code
        if code not in (lro.Code.OK, lro.Code.UNAVAILABLE)
    ],
    (page_of_a_proxy(408), lro.Code.DEADLINE_EXCEEDED),
    (page_of_a_proxy(429), lro.Code.RESOURCE_EXHAUSTED),
    (page_of_a_proxy(500), lro.Code.INTERNAL),
    (page_of_a_proxy(504), lro.Code.DEADLINE_EXCEEDED),
    (httpx.ReadTimeout("slow"), lro.Code.DEADLINE_EXCEEDED),
    (httpx.PoolTimeout("full"), lro.Code.DEADLINE_EXCEEDED),
    (httpx.DecodingError("bad gzip"), lro.Code.UNKNOWN),
    (httpx.TooManyRedirects("loop"), lro.Code.UNKNOWN),
    (httpx.UnsupportedProtocol("no scheme"), lro.Code.INVALID_ARGUMENT),
    (httpx.LocalProtocolError("bad header"), lro.Code.INVALID_ARGUMENT),
    (UnicodeError("a host with an empty label"), lro.Code.INVALID_ARGUMENT),
]


def test_other_faults_are_final_for_a_single_call(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """Some failures that a wait retries are final for a single call, unless the policy differs."""
    client = face.client(clock=clock)
    for number, (fault, code) in enumerate(FINAL, 1):
        route = server.get().mock(side_effect=[fault])
        with pytest.raises(CallError, match="GetOperation failed with ") as caught:
            client.get(NAME)
        assert caught.value.code is code, fault
        assert route.call_count == number
        if isinstance(fault, Exception):
            assert caught.value.__cause__ is fault
            assert caught.value.http_status is None


def test_transport_error_message_has_class_and_text(face: Face, server: respx.Router) -> None:
    """The message has the class and the text of the error. Errors of httpx2 are recognized too."""
    connect_error = type("ConnectError", (type("RequestError", (Exception,), {}),), {})
    for fault, text in (
        (httpx.ConnectError("refused"), "UNAVAILABLE: ConnectError: refused"),
        (connect_error("refused"), "UNAVAILABLE: ConnectError: refused"),
        (
            httpx.ReadTimeout(""),
            r"DEADLINE_EXCEEDED: ReadTimeout \(GET http://test/v1/operations/abc\)$",
        ),
    ):
        server.get().mock(side_effect=fault)
        with pytest.raises(CallError, match=text):
            face.client(retry=NO_RETRY).get(NAME)


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (refusal(lro.Code.UNAVAILABLE, "no", retry_info("3s")), 3.0),
        (refusal(lro.Code.UNAVAILABLE, "no", retry_info("0.100s")), 0.5),
        (refusal(lro.Code.UNAVAILABLE, "no", retry_info("-3s")), 0.5),
        (refusal(lro.Code.UNAVAILABLE, "no", retry_info("soon")), 0.5),
        (refusal(lro.Code.UNAVAILABLE, "no", {"@type": retry_info("")["@type"]}), 0.5),
        (refusal(lro.Code.UNAVAILABLE, retry_after="4"), 4.0),
        (refusal(lro.Code.UNAVAILABLE, "no", retry_info("3s"), retry_after="4"), 4.0),
        (refusal(lro.Code.UNAVAILABLE, "no", retry_info("5s"), retry_after="4"), 5.0),
        (refusal(lro.Code.UNAVAILABLE, retry_after="0"), 0.5),
        (refusal(lro.Code.UNAVAILABLE, retry_after="soon"), 0.5),
        (page_of_a_proxy(503, retry_after="7"), 7.0),
    ],
)
def test_server_delay_lengthens_the_pause(
    answer: httpx.Response, pause: float, face: Face, clock: Clock, server: respx.Router
) -> None:
    """RetryInfo and Retry-After can only lengthen the policy's pause; the longer one is used."""
    server.get().mock(side_effect=[answer, reply(running())])
    face.client(clock=clock).get(NAME)
    assert clock.sleeps == [pause]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(lro.Code.UNAVAILABLE, "no", retry_info("315576000000s")),
        refusal(lro.Code.UNAVAILABLE, "no", retry_after="61"),
    ],
)
def test_retry_after_over_a_minute_ends_a_single_call(
    answer: httpx.Response, face: Face, clock: Clock, server: respx.Router
) -> None:
    """A single call sleeps for at most a minute, unless the policy allows more."""
    server.get().mock(side_effect=[answer, answer, reply(running())])
    with pytest.raises(CallError) as caught:
        face.client(clock=clock).get(NAME)
    assert caught.value.retry_after > 60
    assert clock.sleeps == []
    face.client(clock=clock, retry=Retry(max_retry_after=None)).get(NAME)
    assert clock.sleeps == [caught.value.retry_after]


def test_custom_policy_sets_codes_pauses_and_attempts(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """A policy sets the codes, pauses and attempts. Any wait of tenacity can be used."""
    retry = Retry(
        codes=frozenset({lro.Code.ABORTED}),
        wait=tenacity.wait_fixed(3) + wait_exponential(1.0, 2.0),
        attempts=3,
    )
    route = server.get().mock(return_value=refusal(lro.Code.ABORTED))
    with pytest.raises(CallError):
        face.client(clock=clock, retry=retry).get(NAME)
    assert (route.call_count, clock.sleeps) == (3, [4.0, 5.0])


def test_unreadable_reply_is_retried_by_a_transport_policy(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """With ``transport`` set, single calls also retry a proxy's page and a truncated reply."""
    cut = httpx.Response(200, text='{"name":', headers={"content-type": "application/json"})
    server.get().mock(side_effect=[page_of_a_proxy(500), cut, reply(running())])
    client = face.client(clock=clock, retry=Retry(transport=True))
    assert client.get(NAME).name == NAME
    server.get().mock(return_value=refusal(lro.Code.INTERNAL))
    with pytest.raises(CallError, match="INTERNAL"):
        client.get(NAME)
    assert clock.sleeps == [0.5, 1.0]


def test_not_found_of_a_repeated_delete_is_success(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """NOT_FOUND after a repeated delete means that an earlier attempt succeeded (§11.5(5)).

    NOT_FOUND is an error of a first delete. It is also an error of any cancel, because nothing
    shows that a cancellation was requested.
    """
    lost, missing = httpx.ReadError("lost"), refusal(lro.Code.NOT_FOUND)
    client = face.client(clock=clock)
    server.route().mock(side_effect=[lost, missing])
    assert client.delete(NAME) is None
    for verb, answers in ((client.delete, [missing]), (client.cancel, [UNAVAILABLE, missing])):
        server.route().mock(side_effect=answers)
        with pytest.raises(CallError, match="NOT_FOUND"):
            verb(NAME)


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, 65.0), (0, 5.0), (30, 35.0), (-30, 5.0), (10**9, 86_405.0)]
)
def test_each_attempt_has_call_seconds_and_a_wait_its_hold(
    timeout: float | None, seconds: float, face: Face, server: respx.Router
) -> None:
    """Each attempt may take ``call_seconds``; a Wait may also take its hold time."""
    route = server.post().mock(return_value=reply(running()))
    face.client(call_seconds=5.0).wait(NAME, timeout=timeout)
    assert route.calls.last.request.extensions["timeout"]["read"] == seconds
