"""Scenarios over HTTP: truncated, endless or misleading replies, and replies of other services."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from lro_conform._sources import aip, operations_proto, protojson, rfc
from lro_conform.client._http_peer import HttpExchange
from lro_conform.client._judging import (
    ClientRun,
    calls_at_most,
    invents_nothing,
    keeps_token,
    responds,
    says,
)
from lro_conform.client._scenario import (
    RESPONSE,
    ended,
    info,
    must,
    operation,
    over_http,
    running,
    scenario,
    should,
)
from lro_conform.client._steps import Special

_JSON: Final = {"Content-Type": "application/json"}
_HTML: Final = {"Content-Type": "text/html"}
_PAGE: Final = b"<!DOCTYPE html><html><body>Please log in.</body></html>"
_MEGABYTE: Final = 1024 * 1024
_HUGE: Final = 64 * _MEGABYTE
_SLOW_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_DRIP_SECONDS: Final = 0.05
_DEPTH: Final = 20_000
_MAX_REDIRECTS: Final = 60
_DEADLINE: Final = aip(194, "Non-retryable codes")
_RETRYABLE: Final = aip(194, "Retryable codes")
_TRUNCATED: Final = rfc(9112, "8")


def _replies(body: bytes, headers: Mapping[str, str] = _JSON, *, status: int = 200) -> Special:

    async def answer(exchange: HttpExchange) -> None:
        await exchange.send(status, body, headers)

    return answer


def _body(name: str) -> bytes:
    return json.dumps(ended(name).operation).encode()


def _cuts(name: str) -> Special:

    async def answer(exchange: HttpExchange) -> None:
        await exchange.send(200, _body(name), cut=20)
        exchange.close()

    return answer


async def _closes(exchange: HttpExchange) -> None:
    exchange.close()


async def _drips(exchange: HttpExchange) -> None:
    await exchange.write(_SLOW_HEAD + b"Content-Length: 1000000\r\n\r\n")
    while True:
        await exchange.write(b" ")
        await asyncio.sleep(_DRIP_SECONDS)


def _floods(name: str) -> Special:

    async def answer(exchange: HttpExchange) -> None:
        body = _body(name)
        length = f"Content-Length: {_HUGE + len(body)}\r\n\r\n"
        await exchange.write(_SLOW_HEAD + length.encode())
        blanks = b" " * _MEGABYTE
        for number in range(_HUGE // _MEGABYTE):
            await exchange.write(blanks)
            exchange.peer.played.notes["megabytes"] = number + 1
        await exchange.write(body)

    return answer


def _hints(name: str) -> Special:

    async def answer(exchange: HttpExchange) -> None:
        await exchange.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
        await exchange.send(200, _body(name))

    return answer


def _redirects(*, elsewhere: bool) -> Special:

    async def answer(exchange: HttpExchange) -> None:
        base = exchange.peer.elsewhere if elsewhere else exchange.peer.address
        target = f"{base}/v1/{exchange.peer.name}"
        await exchange.send(307, b"", {"Location": target})

    return answer


def _text_done(name: str) -> bytes:
    decoy = RESPONSE | {"resourceName": "images/not-this"}
    return json.dumps(operation(name) | {"done": "false", "response": decoy}).encode()


def _nested(name: str) -> bytes:
    deep = '{"a":' * _DEPTH + "1" + "}" * _DEPTH
    return _body(name).replace(
        b'"requestId": "r-1"', b'"requestId": "r-1", "deep": ' + deep.encode()
    )


def _stops_reading(run: ClientRun) -> str | None:
    taken = run.notes.get("megabytes", 0.0)
    whole = _HUGE / _MEGABYTE
    return f"it took {taken:.0f} megabytes of blanks" if taken >= whole else None


CUT: Final = (
    scenario(
        "cut-body",
        over_http(running("cut-body"), _cuts("cut-body"), ended("cut-body")),
        must(
            "spoilt.cut-body",
            "A body that is shorter than its Content-Length is not accepted as complete.",
            _TRUNCATED,
            fails=(invents_nothing(RESPONSE), says("response", "lost", "timeout")),
        ),
        should(
            "retries.cut-body",
            "If a connection is closed within the body, the wait continues.",
            _RETRYABLE,
            rfc(9110, "9.2.2"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "closed",
        over_http(running("closed"), _closes, ended("closed")),
        should(
            "retries.closed",
            "If a connection is closed without a reply, the wait continues.",
            rfc(9112, "9.3.1"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "proxy-errors",
        over_http(
            running("proxy-errors"),
            _replies(_PAGE, _HTML, status=502),
            _replies(_PAGE, _HTML, status=504),
            ended("proxy-errors"),
        ),
        should(
            "retries.proxy",
            "If a proxy answers with an HTML page and 502 or 504, the wait continues.",
            rfc(9110, "15.6.3"),
            _RETRYABLE,
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "empty-body",
        over_http(running("empty-body"), _replies(b""), ended("empty-body")),
        must(
            "spoilt.empty-body",
            "An empty body is not read as a result of the operation.",
            protojson(),
            fails=(invents_nothing(RESPONSE), says("response", "lost")),
        ),
    ),
    scenario(
        "truncated",
        over_http(running("truncated"), _replies(_body("truncated")[:-30]), ended("truncated")),
        must(
            "spoilt.truncated",
            "Truncated JSON is not read as an operation.",
            rfc(8259, "2"),
            fails=(invents_nothing(RESPONSE), says("response", "lost")),
        ),
    ),
)

ENDLESS: Final = (
    scenario(
        "drip",
        over_http(running("drip"), _drips),
        must(
            "deadlines.drip",
            "If a body arrives byte by byte, the client stops at its own timeout.",
            _DEADLINE,
            fails=says("timeout", "lost"),
        ),
        timeout=2.0,
    ),
    scenario(
        "huge",
        over_http(_floods("huge")),
        must(
            "deadlines.huge",
            f"A body of {_HUGE // _MEGABYTE} megabytes does not make the client exceed its"
            " timeout, and is not read as another result.",
            _DEADLINE,
            fails=invents_nothing(RESPONSE),
        ),
        info(
            "spoilt.huge",
            f"The client stops reading a body before {_HUGE // _MEGABYTE} megabytes.",
            rfc(9110, "17.5"),
            fails=_stops_reading,
        ),
        timeout=5.0,
    ),
    scenario(
        "redirect-loop",
        over_http(_redirects(elsewhere=False)),
        should(
            "redirects.loop",
            "A redirect to itself is not followed endlessly.",
            rfc(9110, "15.4"),
            fails=(calls_at_most(_MAX_REDIRECTS), says("lost", "timeout")),
        ),
        timeout=3.0,
    ),
)

MISLEADING: Final = (
    scenario(
        "login-page",
        over_http(_replies(_PAGE, _HTML)),
        must(
            "spoilt.page",
            "An HTML page with 200 is not read as an operation.",
            protojson(),
            fails=says("lost", "timeout"),
        ),
        timeout=3.0,
    ),
    scenario(
        "text-done",
        over_http(_replies(_text_done("text-done")), ended("text-done")),
        must(
            "spoilt.text-done",
            'The string "false" is not read as true.',
            protojson(),
            operations_proto("Operation.done"),
            fails=(invents_nothing(RESPONSE), says("response", "lost")),
        ),
    ),
    scenario(
        "no-object",
        over_http(_replies(b"null"), _replies(b"[]"), ended("no-object")),
        must(
            "spoilt.no-object",
            "JSON that is not an object is not read as an operation.",
            protojson(),
            fails=(invents_nothing(RESPONSE), says("response", "lost")),
        ),
    ),
    scenario(
        "deep",
        over_http(_replies(_nested("deep")), ended("deep")),
        must(
            "spoilt.deep",
            f"Metadata with {_DEPTH} levels neither crashes the client nor disables its timeout.",
            rfc(8259, "9"),
            fails=(invents_nothing(RESPONSE), says("response", "lost")),
        ),
    ),
    scenario(
        "plain-text",
        over_http(_replies(_body("plain-text"), {"Content-Type": "text/plain"})),
        must(
            "spoilt.content-type",
            'An operation that is sent as text/plain is reported correctly, or as "lost".',
            rfc(9110, "8.3"),
            fails=(invents_nothing(RESPONSE), says("response", "lost")),
        ),
    ),
    scenario(
        "early-hints",
        over_http(running("early-hints"), _hints("early-hints")),
        must(
            "spoilt.informational",
            "An informational response before the final one is skipped.",
            rfc(9110, "15.2"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "redirect",
        over_http(_redirects(elsewhere=True)),
        must(
            "redirects.token",
            "The client does not send its bearer token to another server after a redirect.",
            rfc(6750, "5.3"),
            rfc(9110, "15.4"),
            fails=keeps_token,
        ),
        elsewhere=ended("redirect"),
        timeout=3.0,
    ),
)
