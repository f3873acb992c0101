"""Scenarios of results of operations, of unusual but valid replies, and of waits."""

from __future__ import annotations

from typing import Final

from lro_conform._checks import GRPC, HTTP
from lro_conform._codes import RpcCode
from lro_conform._sources import aip, code_proto, operations_proto, protojson, status_proto
from lro_conform.client._judging import (
    backs_off,
    fails_with,
    if_called,
    invents_nothing,
    not_early,
    only_reads,
    pauses,
    polls_at_most,
    quiet_after_end,
    responds,
    says,
)
from lro_conform.client._scenario import (
    RESPONSE,
    TYPE_PREFIX,
    ended,
    error_of,
    info,
    must,
    operation,
    over_http,
    polled,
    running,
    scenario,
    should,
)
from lro_conform.client._steps import JsonObject, Refuses, Script, Shows, Verb

_OTHER: Final[JsonObject] = {
    "@type": TYPE_PREFIX + "google.rpc.LocalizedMessage",
    "locale": "de",
    "message": "a message of another type",
}
_EMPTY: Final[JsonObject] = {"@type": RESPONSE["@type"]}
_UNKNOWN: Final[JsonObject] = {"@type": TYPE_PREFIX + "acme.example.v9.NotKnownYet", "some": 1}
_KNOWN: Final[JsonObject] = {
    "@type": TYPE_PREFIX + "google.rpc.ErrorInfo",
    "reason": "IMAGE_TOO_LARGE",
    "domain": "acme.example",
}
_GROWN: Final[JsonObject] = {**RESPONSE, "newDetail": {"of": ["a", "later", "version"]}}
_FEW_POLLS: Final = 30
_RESULT: Final = operations_proto("Operation.result")
_DONE: Final = operations_proto("Operation.done")
_NAME: Final = operations_proto("Operation.name")
_WAIT: Final = operations_proto("WaitOperation")

ORDINARY: Final = (
    scenario(
        "runs",
        polled(*(running("runs", f"r-{one}") for one in (3, 5, 1)), ended("runs"), running("runs")),
        must(
            "results.response",
            "When the operation is done, the client reports its response without changing a "
            "character.",
            operations_proto("Operation.response"),
            protojson(),
            fails=responds(RESPONSE),
        ),
        should(
            "results.quiet-after-end",
            "The client does not poll again after a reply in which the operation is done.",
            _DONE,
            fails=quiet_after_end,
        ),
        must(
            "results.reads-only",
            "A client that only waits neither cancels nor deletes the operation.",
            operations_proto("CancelOperation"),
            fails=only_reads,
            unfinished=True,
        ),
        must(
            "waits.unimplemented",
            "If WaitOperation is answered with UNIMPLEMENTED, the client polls instead.",
            _WAIT,
            fails=if_called(Verb.WAIT, responds(RESPONSE)),
            optional=True,
        ),
    ),
    scenario(
        "done-at-once",
        polled(ended("done-at-once")),
        must(
            "results.done-at-once",
            "An operation that is done at the first poll is reported with its response.",
            _DONE,
            fails=(responds(RESPONSE), polls_at_most(3)),
        ),
    ),
    scenario(
        "empty-response",
        polled(ended("empty-response", response=_EMPTY)),
        must(
            "results.empty-response",
            "A response whose fields all have their default values is a success.",
            _RESULT,
            protojson(),
            fails=responds(_EMPTY),
        ),
    ),
)

BROKEN_RESULTS: Final = (
    scenario(
        "neither",
        polled(Shows(operation=operation("neither", done=True))),
        must(
            "results.neither",
            "If an operation is done with neither error nor response, the client does not "
            "invent a response.",
            _RESULT,
            fails=invents_nothing(),
        ),
    ),
    scenario(
        "both",
        over_http(ended("both", error={"code": 13, "message": "broken"}, response=RESPONSE)),
        must(
            "results.both",
            "An operation with both an error and a response, which is not allowed, is not "
            "reported as a success.",
            _RESULT,
            fails=says("error", "lost"),
        ),
    ),
    scenario(
        "result-before-done",
        polled(
            Shows(operation=operation("result-before-done", response=_OTHER)),
            ended("result-before-done"),
        ),
        must(
            "results.only-done-counts",
            "The client continues until done is true, whatever other fields are set.",
            _DONE,
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "other-type",
        polled(ended("other-type", response=_OTHER)),
        must(
            "results.other-type",
            "A response that does not have the declared type is not decoded as that type: the "
            "client reports an error, or the message with its actual type.",
            aip(151, "Backwards compatibility"),
            fails=invents_nothing(_OTHER),
        ),
    ),
)

ERRORS: Final = (
    scenario(
        "error-details",
        polled(running("error-details"), error_of("error-details", 3, "bad", _UNKNOWN, _KNOWN)),
        must(
            "errors.code-and-message",
            "An operation that ends with an error is reported as an error, with code and message,"
            " whatever details it has.",
            status_proto(),
            fails=fails_with(3, message="bad"),
        ),
    ),
    scenario(
        "error-not-found",
        polled(error_of("error-not-found", 5, "the image is not there")),
        must(
            "errors.not-found",
            'An operation that ended with NOT_FOUND is reported as failed, not as "lost".',
            operations_proto("Operation.error"),
            fails=fails_with(5, message="the image"),
        ),
    ),
    scenario(
        "error-unavailable",
        polled(error_of("error-unavailable", 14, "a part was down")),
        must(
            "errors.unavailable",
            "An operation that ended with UNAVAILABLE is not polled again.",
            _DONE,
            fails=(fails_with(14, message="a part"), polls_at_most(3)),
        ),
    ),
    scenario(
        "error-unknown-code",
        polled(error_of("error-unknown-code", 99, "of the future")),
        must(
            "errors.unknown-code",
            "An error with an unlisted code is reported with that code, or as UNKNOWN.",
            status_proto("Status.code"),
            code_proto("UNKNOWN"),
            fails=fails_with(99, 2),
        ),
    ),
    scenario(
        "error-code-zero",
        polled(error_of("error-code-zero", 0, "all was not well")),
        must(
            "errors.code-zero",
            "An operation with an error whose code is 0 is not reported as a success.",
            _RESULT,
            fails=fails_with(0, 2),
        ),
    ),
)

_RENAMED: Final = "projects/4711/locations/here/operations/renamed"

ODD_ANSWERS: Final = (
    scenario(
        "unknown-fields",
        polled(ended("unknown-fields", response=_GROWN, newField={"a": [1, None]})),
        must(
            "odd.unknown-fields",
            "Fields that a later version of the server adds do not hide the result.",
            aip(180, "Adding components"),
            fails=responds(RESPONSE, _GROWN),
        ),
    ),
    scenario(
        "unknown-metadata",
        polled(
            Shows(operation=operation("unknown-metadata", metadata=_UNKNOWN)),
            ended("unknown-metadata", response=RESPONSE, metadata=_UNKNOWN),
        ),
        should(
            "odd.unknown-metadata",
            "Metadata of a type that the client does not know does not hide the result.",
            operations_proto("Operation.metadata"),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "no-metadata",
        over_http(
            Shows(operation=operation("no-metadata", metadata=None, error=None, response=None)),
            ended("no-metadata", response=RESPONSE, metadata=None, error=None),
        ),
        must(
            "odd.null-fields",
            "A field that is null in JSON is read as not set.",
            protojson(),
            fails=responds(RESPONSE),
        ),
    ),
    scenario(
        "renamed",
        polled(
            Shows(operation=operation("renamed") | {"name": _RENAMED}),
            Shows(operation=ended("renamed").operation | {"name": _RENAMED}),
        ),
        should(
            "odd.other-name",
            "An answer to GetOperation that spells the name in another way, such as with the"
            " number of the project, is accepted.",
            _NAME,
            fails=responds(RESPONSE),
        ),
    ),
)


def _held(*answers: Shows | Refuses, last: Shows) -> dict[str, Script]:
    return {one: {Verb.WAIT: answers, Verb.GET: (last,)} for one in (HTTP, GRPC)}


WAITS: Final = (
    scenario(
        "never",
        polled(running("never")),
        must(
            "deadlines.never-done",
            "If the operation does not end, the client stops at its own timeout, and reports "
            "the timeout.",
            aip(194, "Non-retryable codes"),
            fails=says("timeout"),
        ),
        should(
            "deadlines.not-early",
            "The client does not give up before its timeout while polls are answered.",
            operations_proto("GetOperation"),
            fails=not_early,
        ),
        must(
            "deadlines.no-cancel",
            "A client whose timeout has passed does not cancel or delete the operation unasked.",
            operations_proto("CancelOperation"),
            fails=only_reads,
            unfinished=True,
        ),
        must(
            "pace.pauses",
            "The client pauses between polls.",
            operations_proto("GetOperation"),
            fails=pauses,
            unfinished=True,
        ),
        should(
            "pace.backs-off",
            "The pauses grow, or are long from the start.",
            operations_proto("GetOperation"),
            fails=backs_off,
            unfinished=True,
        ),
        info(
            "pace.rate",
            f"While nothing changes, the client makes at most {_FEW_POLLS} polls in 3 s.",
            operations_proto("GetOperation"),
            fails=polls_at_most(_FEW_POLLS),
            unfinished=True,
        ),
        timeout=3.0,
    ),
    scenario(
        "held",
        _held(Shows(operation=ended("held").operation, delay=0.5), last=running("held")),
        must(
            "waits.held",
            "A client that calls WaitOperation takes the result from the reply.",
            _WAIT,
            fails=if_called(Verb.WAIT, responds(RESPONSE)),
            optional=True,
        ),
        info(
            "waits.used",
            "The client calls WaitOperation if the server supports it.",
            _WAIT,
            fails=if_called(Verb.WAIT),
            optional=True,
        ),
        timeout=3.0,
    ),
    scenario(
        "wait-at-once",
        _held(running("wait-at-once"), last=running("wait-at-once")),
        must(
            "waits.at-once",
            "If WaitOperation returns at once, the client does not conclude that the operation "
            "is done, and pauses before it calls again.",
            _WAIT,
            fails=if_called(Verb.WAIT, says("timeout"), pauses),
            optional=True,
        ),
        timeout=2.0,
    ),
    scenario(
        "wait-not-found",
        _held(
            Refuses(code=RpcCode.NOT_FOUND, body=b"<html>404</html>"), last=ended("wait-not-found")
        ),
        should(
            "waits.not-found",
            "A client polls if the server has no route for WaitOperation and answers NOT_FOUND.",
            _WAIT,
            fails=if_called(Verb.WAIT, responds(RESPONSE)),
            optional=True,
        ),
    ),
)
