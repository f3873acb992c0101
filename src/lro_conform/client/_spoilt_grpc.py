"""Scenarios over gRPC: reset streams, incomplete replies, and HTML pages of proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lro_conform._checks import GRPC
from lro_conform._sources import aip, grpc_doc, rfc
from lro_conform.client._frames import StreamError
from lro_conform.client._judging import invents_nothing, not_of_operation, responds, says
from lro_conform.client._scenario import (
    RESPONSE,
    ended,
    grpc_guide,
    must,
    over_grpc,
    running,
    scenario,
    should,
)
from lro_conform.client._steps import Shows, Verb

if TYPE_CHECKING:
    from lro_conform.client._grpc_peer import GrpcExchange

_LARGE: Final = 5 * 1024 * 1024
"""Size of a reply in bytes: larger than gRPC libraries accept by default."""
_RETRYABLE: Final = aip(194, "Retryable codes")
_DEADLINE: Final = aip(194, "Non-retryable codes")
_LARGE_RESPONSE: Final = {**RESPONSE, "description": "x" * _LARGE}


async def _refuses_stream(exchange: GrpcExchange) -> None:
    await exchange.reset(StreamError.REFUSED_STREAM)


async def _cancels_stream(exchange: GrpcExchange) -> None:
    await exchange.reset(StreamError.CANCEL)


async def _goes(exchange: GrpcExchange) -> None:
    await exchange.goaway()


async def _bad_gateway(exchange: GrpcExchange) -> None:
    await exchange.page_of_proxy(502)


async def _login_page(exchange: GrpcExchange) -> None:
    await exchange.page_of_proxy(200)


async def _garbage(exchange: GrpcExchange) -> None:
    await exchange.message(b"\xff\xff\xff\xff this is not a message")


async def _no_trailers(exchange: GrpcExchange) -> None:
    await exchange.message(b"", trailers=False)


async def _no_message(exchange: GrpcExchange) -> None:
    await exchange.no_message()


STREAMS: Final = (
    scenario(
        "refused-stream",
        over_grpc(running("refused-stream"), _refuses_stream, ended("refused-stream")),
        should(
            "retries.refused-stream",
            "If a stream is reset with REFUSED_STREAM, the wait continues.",
            rfc(9113, "8.7"),
            grpc_doc("Errors"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "reset-stream",
        over_grpc(running("reset-stream"), _cancels_stream, ended("reset-stream")),
        must(
            "spoilt.reset-stream",
            "If a stream is reset with CANCEL, the client does not report the operation as "
            "cancelled.",
            grpc_doc("Errors"),
            fails=(not_of_operation, says("response", "lost", "timeout")),
        ),
        timeout=4.0,
    ),
    scenario(
        "goaway",
        over_grpc(running("goaway"), _goes, ended("goaway")),
        should(
            "retries.goaway",
            "If the server sends a GOAWAY that excludes the call, the wait continues.",
            rfc(9113, "6.8"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "bad-gateway",
        over_grpc(running("bad-gateway"), _bad_gateway, ended("bad-gateway")),
        should(
            "retries.proxy-of-grpc",
            "If a proxy answers with an HTML page and 502, which gRPC maps to UNAVAILABLE, the "
            "wait continues.",
            grpc_doc("Responses"),
            _RETRYABLE,
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "mute",
        {GRPC: {Verb.GET: ()}},
        must(
            "deadlines.mute",
            "If a connection is accepted but nothing is sent on it, the client stops at its own"
            " timeout.",
            _DEADLINE,
            grpc_guide("deadlines"),
            fails=says("timeout", "lost"),
        ),
        timeout=2.0,
        mute=True,
    ),
)

REPLIES: Final = (
    scenario(
        "page-for-grpc",
        over_grpc(_login_page),
        must(
            "spoilt.page-for-grpc",
            "An HTML page with 200 is not read as an operation.",
            grpc_doc("Responses"),
            fails=(not_of_operation, says("lost", "timeout")),
        ),
        timeout=3.0,
    ),
    scenario(
        "garbage",
        over_grpc(_garbage),
        must(
            "spoilt.garbage",
            "Bytes that are not a message are not read as an operation.",
            grpc_doc("Responses"),
            fails=(not_of_operation, says("lost", "timeout")),
        ),
        timeout=3.0,
    ),
    scenario(
        "no-message",
        over_grpc(_no_message),
        must(
            "spoilt.no-message",
            "OK without a message is not read as an operation.",
            grpc_doc("Responses"),
            fails=(not_of_operation, says("lost", "timeout")),
        ),
        timeout=3.0,
    ),
    scenario(
        "no-trailers",
        over_grpc(_no_trailers),
        must(
            "spoilt.no-trailers",
            "An empty message without a status is not read as an operation.",
            grpc_doc("Responses"),
            fails=(not_of_operation, says("lost", "timeout")),
        ),
        timeout=3.0,
    ),
    scenario(
        "large",
        over_grpc(Shows(operation=ended("large", response=_LARGE_RESPONSE).operation)),
        must(
            "spoilt.large",
            'A reply of 5 MiB is reported correctly, or as "lost".',
            grpc_doc("Responses"),
            fails=(invents_nothing(_LARGE_RESPONSE), says("response", "lost", "timeout")),
        ),
        timeout=5.0,
    ),
)
