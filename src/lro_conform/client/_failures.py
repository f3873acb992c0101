"""Scenarios of failing polls: retries, their pauses, and errors that end the wait."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any, Final

import attrs

from lro_conform._codes import RpcCode
from lro_conform._sources import aip, operations_proto, rfc
from lro_conform.client._judging import (
    backs_off,
    not_of_operation,
    pauses,
    polls_at_most,
    responds,
    says,
    waits_after,
)
from lro_conform.client._scenario import (
    RESPONSE,
    TYPE_PREFIX,
    ended,
    error_details_proto,
    grpc_guide,
    info,
    must,
    over_http,
    polled,
    running,
    scenario,
    should,
)
from lro_conform.client._steps import Refuses, Silent

_RETRYABLE: Final = aip(194, "Retryable codes")
_NOT_RETRYABLE: Final = aip(194, "Generally non-retryable codes")
_DEADLINE: Final = aip(194, "Non-retryable codes")
_RETRY_AFTER: Final = rfc(9110, "10.2.3")

_FEW_POLLS: Final = 5
"""Maximum number of polls: a client may retry with a new token, and use Get after a Wait."""
_ASKED_SECONDS: Final = 2.0
_AWAY_SECONDS: Final = 0.7

_DELAY: Final = {"@type": TYPE_PREFIX + "google.rpc.RetryInfo", "retryDelay": "2s"}


async def goes_away(exchange: Any) -> None:
    """Cut the connection, and refuse new connections for a while."""
    exchange.peer.listener.go_away(_AWAY_SECONDS)
    await exchange.until_gone()


async def refuses_until(exchange: Any) -> None:
    """Answer 503 over HTTP, with a Retry-After date that is two to three seconds ahead."""
    moment = formatdate(time.time() + _ASKED_SECONDS + 1, usegmt=True)
    refusal = Refuses(code=RpcCode.UNAVAILABLE, headers={"Retry-After": moment})
    await exchange.refuse(refusal)


async def resets(exchange: Any) -> None:
    """Reset the connection instead of answering."""
    exchange.reset_connection()
    await exchange.until_gone()


PASSING: Final = (
    scenario(
        "unavailable-twice",
        polled(*[Refuses(code=RpcCode.UNAVAILABLE)] * 2, ended("unavailable-twice")),
        should(
            "retries.unavailable",
            "A poll that is answered with UNAVAILABLE is retried.",
            _RETRYABLE,
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "unavailable-always",
        polled(Refuses(code=RpcCode.UNAVAILABLE)),
        must(
            "deadlines.unavailable",
            "If all polls are answered with UNAVAILABLE, the client stops at its own timeout.",
            _DEADLINE,
            fails=says("timeout", "lost"),
        ),
        must(
            "pace.unavailable",
            "The client pauses before it polls an unavailable server again.",
            _RETRYABLE,
            fails=pauses,
            unfinished=True,
        ),
        should(
            "pace.unavailable-backs-off",
            "The pauses between polls of an unavailable server grow, or are long from the start.",
            grpc_guide("retry"),
            fails=backs_off,
            unfinished=True,
        ),
        timeout=3.0,
    ),
    scenario(
        "internal-once",
        polled(running("internal-once"), Refuses(code=RpcCode.INTERNAL), ended("internal-once")),
        info(
            "retries.internal",
            "A poll that is answered with INTERNAL is retried.",
            _NOT_RETRYABLE,
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "deadline-exceeded-once",
        polled(
            running("deadline-exceeded-once"),
            Refuses(code=RpcCode.DEADLINE_EXCEEDED),
            ended("deadline-exceeded-once"),
        ),
        must(
            "failures.server-deadline",
            "DEADLINE_EXCEEDED in reply to a poll is not reported as the error of the operation.",
            operations_proto("Operation.error"),
            fails=not_of_operation,
        ),
        info(
            "retries.server-deadline",
            "A poll that is answered with DEADLINE_EXCEEDED is retried.",
            aip(194, "Non-retryable codes"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "restart",
        polled(running("restart"), goes_away, ended("restart")),
        should(
            "retries.restart",
            "If the server restarts, and refuses connections meanwhile, the wait continues.",
            _RETRYABLE,
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "reset",
        polled(running("reset"), resets, ended("reset")),
        should(
            "retries.reset",
            "If a connection is reset before the reply, the wait continues.",
            _RETRYABLE,
            rfc(9110, "9.2.2"),
            fails=responds(RESPONSE),
        ),
    ),
)

FINAL: Final = (
    scenario(
        "not-found",
        polled(running("not-found"), Refuses(code=RpcCode.NOT_FOUND)),
        must(
            "failures.not-found",
            'If the operation is not found any more, the client reports it as "lost".',
            operations_proto("Operation.error"),
            fails=(not_of_operation, says("lost")),
        ),
        should(
            "failures.not-found-at-once",
            "A poll that is answered with NOT_FOUND is not retried again and again.",
            _NOT_RETRYABLE,
            fails=polls_at_most(_FEW_POLLS),
        ),
    ),
    scenario(
        "denied",
        polled(Refuses(code=RpcCode.PERMISSION_DENIED, initial=True)),
        must(
            "failures.denied",
            "If polls are refused with PERMISSION_DENIED, the client stops, and does not report"
            " that the operation has ended.",
            operations_proto("Operation.error"),
            fails=(not_of_operation, says("lost", "timeout"), pauses),
        ),
        should(
            "failures.denied-at-once",
            "A poll that is answered with PERMISSION_DENIED is not retried again and again.",
            _NOT_RETRYABLE,
            fails=(says("lost"), polls_at_most(_FEW_POLLS)),
        ),
    ),
    scenario(
        "unauthenticated",
        polled(Refuses(code=RpcCode.UNAUTHENTICATED, body=b'{"error": "invalid_token"}')),
        must(
            "failures.unauthenticated",
            "If polls are refused with UNAUTHENTICATED (over HTTP with an OAuth error body), "
            "the client stops, and does not report that the operation has ended.",
            rfc(6750, "3.1"),
            fails=(not_of_operation, says("lost", "timeout"), pauses),
        ),
        should(
            "failures.unauthenticated-at-once",
            "A poll that is answered with UNAUTHENTICATED is not retried again and again.",
            _NOT_RETRYABLE,
            fails=(says("lost"), polls_at_most(_FEW_POLLS)),
        ),
    ),
    scenario(
        "call-cancelled",
        polled(running("call-cancelled"), Refuses(code=RpcCode.CANCELLED)),
        must(
            "failures.call-cancelled",
            "If a poll is answered with CANCELLED, the client does not report the operation as "
            "cancelled.",
            operations_proto("CancelOperation"),
            fails=(not_of_operation, says("lost", "timeout")),
        ),
        timeout=3.0,
    ),
)


_WAITS: Final = waits_after(0, _ASKED_SECONDS)

ASKED_PAUSES: Final = (
    scenario(
        "retry-after-503",
        over_http(
            Refuses(code=RpcCode.UNAVAILABLE, headers={"Retry-After": "2"}),
            ended("retry-after-503"),
        ),
        should(
            "retry-after.unavailable",
            "After 503 with Retry-After, the client polls again, but not earlier.",
            _RETRY_AFTER,
            fails=(responds(RESPONSE), _WAITS),
        ),
    ),
    scenario(
        "retry-after-429",
        over_http(
            Refuses(code=RpcCode.RESOURCE_EXHAUSTED, headers={"Retry-After": "2"}),
            ended("retry-after-429"),
        ),
        should(
            "retry-after.too-many",
            "After 429 with Retry-After, the client does not poll again earlier.",
            rfc(6585, "4"),
            _RETRY_AFTER,
            fails=_WAITS,
        ),
        info(
            "retry-after.too-many-retried",
            "After 429 with Retry-After, the client polls again.",
            rfc(6585, "4"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "retry-after-date",
        over_http(refuses_until, ended("retry-after-date")),
        should(
            "retry-after.date",
            "Retry-After may be a date.",
            _RETRY_AFTER,
            fails=(responds(RESPONSE), _WAITS),
        ),
    ),
    scenario(
        "retry-after-pending",
        over_http(
            attrs.evolve(running("retry-after-pending"), headers={"Retry-After": "3"}),
            ended("retry-after-pending"),
        ),
        should(
            "retry-after.pending",
            "If a reply with an operation in progress has a Retry-After, the client does not "
            "poll earlier.",
            _RETRY_AFTER,
            operations_proto("GetOperation"),
            fails=(responds(RESPONSE), waits_after(0, 3.0)),
        ),
    ),
    scenario(
        "retry-after-broken",
        over_http(
            Refuses(code=RpcCode.UNAVAILABLE, headers={"Retry-After": "soon"}),
            ended("retry-after-broken"),
        ),
        should(
            "retry-after.broken",
            "A Retry-After that is neither a number nor a date is ignored.",
            _RETRY_AFTER,
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "retry-after-far",
        over_http(Refuses(code=RpcCode.UNAVAILABLE, headers={"Retry-After": "3600"})),
        must(
            "deadlines.retry-after-far",
            "A Retry-After longer than the client's own timeout does not extend the timeout.",
            _DEADLINE,
            fails=says("timeout", "lost"),
        ),
        timeout=2.0,
    ),
    scenario(
        "retry-info",
        polled(Refuses(code=RpcCode.UNAVAILABLE, details=(_DELAY,)), ended("retry-info")),
        should(
            "retry-after.retry-info",
            "If an error has a RetryInfo, the client does not poll again earlier.",
            error_details_proto("RetryInfo"),
            fails=_WAITS,
        ),
    ),
)

SILENT: Final = (
    scenario(
        "silent",
        polled(running("silent"), Silent()),
        must(
            "deadlines.silent",
            "If a poll is never answered, the client stops at its own timeout.",
            _DEADLINE,
            grpc_guide("deadlines"),
            fails=says("timeout", "lost"),
        ),
        timeout=4.0,  # clients may first poll after a second, and may be slow
    ),
)
