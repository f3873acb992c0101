"""Rules for every reply of a run, judged after all other rules."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, Final

from lro_conform._checks import HTTP, Level
from lro_conform._codes import CODES, HTTP_STATUSES
from lro_conform._sources import aip, code_proto, operations_proto, protojson, rfc, status_proto
from lro_conform._strict_json import read_json, repeated, shown
from lro_conform.server._answers import DEFECTS, Answer, WireReply, operation_problem, result_of
from lro_conform.server._bench import Bench, Facts, NotJudged, NotOffered, RuleBook
from lro_conform.server._starts import StartKind

RULES: Final = RuleBook()
HTTP_RULES: Final = RuleBook(frozenset({HTTP}))
MUST, SHOULD, INFO = Level.MUST, Level.SHOULD, Level.INFO


async def _some_calls(bench: Bench) -> None:
    """Make sure that the log has operations in progress and done, a page, and a refusal.

    If other rules were judged before, the log already has these replies.
    """
    lists, waits = (functools.partial(bench.need, rpc) for rpc in ("list", "wait"))
    for ask in (bench.long, bench.finished, lists, bench.whole_page, waits):
        with contextlib.suppress(NotJudged, NotOffered):  # the calls in the log are judged anyway
            await ask()
    if not any(one.refused and not one.foreign for one in bench.log):
        with contextlib.suppress(NotJudged):
            await bench.target.get(await bench.unknown())


async def _errors(bench: Bench, foreign: bool = False) -> list[Answer]:
    """Return the refusals of calls of the interface, or with ``foreign`` of all requests.

    Raises:
        NotJudged: No call was refused.
    """
    await _some_calls(bench)
    found = [
        one
        for one in bench.log
        if one.code and one.code != "OK" and (foreign or not one.foreign) and one.rpc != "start"
    ]
    if not found:
        raise NotJudged("no call was refused")
    return found


async def _replies(bench: Bench) -> list[tuple[Answer, WireReply]]:
    await _some_calls(bench)
    return [(one, one.http) for one in bench.log if one.http is not None and not one.foreign]


def _first(answers: list[Answer], problem: Callable[[Answer], str]) -> Iterator[str]:
    found = [(one, why) for one in answers if (why := problem(one))]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"{found[0][0]}: {found[0][1]}{more}"


@RULES(
    "states.final",
    "An operation that was done in one reply is done in all later replies.",
    MUST,
    operations_proto("Operation.done"),
    operations_proto("Operation.result"),
)
async def states_final(bench: Bench) -> Facts:
    await bench.finished()
    ends: dict[str, tuple[Answer, Mapping[str, Any]]] = {}
    seen = sorted(bench.seen(), key=lambda one: one[0].ended)
    for answer, body in seen:
        if body.get("done") is True:
            ends.setdefault(str(body.get("name")), (answer, body))
    for answer, body in seen:
        name = str(body.get("name"))
        if answer.rpc == "start" or name not in ends:
            continue
        end, final = ends[name]
        if answer.began >= end.ended and result_of(body) != result_of(final):
            yield f"{shown(name)} had {shown(result_of(final))}, then {answer}"
            return


@RULES(
    "result.none-before-done",
    "An operation that is not done has neither error nor response.",
    MUST,
    operations_proto("Operation.result"),
)
async def result_none_before_done(bench: Bench) -> Facts:
    await bench.target.get(await bench.long())
    await _some_calls(bench)
    for body in bench.bodies():
        given = {"error", "response"} & set(body)
        if body.get("done") is not True and given:
            yield f"done is not set, but {' and '.join(sorted(given))}: {shown(body)}"
            return


@RULES(
    "result.one-when-done",
    "An operation that is done does not have both an error and a response.",
    MUST,
    operations_proto("Operation.result"),
)
async def result_one_when_done(bench: Bench) -> Facts:
    await bench.finished()
    await _some_calls(bench)
    for body in bench.bodies():
        if body.get("done") is True and {"error", "response"} <= set(body):
            yield f"done, with both: {shown(body)}"
            return


@RULES(
    "result.error-code",
    "The error of an operation has a code of google.rpc.Code that is not 0.",
    MUST,
    operations_proto("Operation.error"),
    code_proto("OK"),
)
async def result_error_code(bench: Bench) -> Facts:
    try:
        await bench.ended(StartKind.FAIL)
    except NotJudged:
        await bench.cancelled()
    await _some_calls(bench)
    for body in bench.bodies():
        error = body.get("error")
        code = error.get("code") if isinstance(error, Mapping) else None
        if error is not None and (isinstance(code, bool) or code not in range(1, len(CODES))):
            yield f"error.code is {shown(code)}"
            return


@RULES(
    "any.types",
    "Metadata, response and details of errors have a type URL with a slash.",
    MUST,
    operations_proto("Operation.metadata"),
)
async def any_types(bench: Bench) -> Facts:
    try:
        await bench.finished()
    except NotJudged as exc:
        bench.note(f"only of operations in progress: {exc}")
    await _some_calls(bench)
    for body in bench.bodies():
        for where, packed in _packed(body):
            url = packed.get("@type") if isinstance(packed, Mapping) else None
            if not isinstance(url, str) or "/" not in url or url.endswith("/"):
                yield f"the @type of {where} is {shown(url)}"
                return


def _packed(body: Mapping[str, Any]) -> list[tuple[str, object]]:
    found = [(key, body[key]) for key in ("metadata", "response") if key in body]
    error = body.get("error")
    details = error.get("details", []) if isinstance(error, Mapping) else []
    return found + [("a detail", one) for one in (details if isinstance(details, list) else [])]


@RULES(
    "any.metadata-type",
    "The type of an operation's metadata does not change.",
    MUST,
    aip(151, "Backwards compatibility"),
    aip(151, "Guidance"),
)
async def any_metadata_type(bench: Bench) -> Facts:
    await bench.finished()
    await _some_calls(bench)
    with contextlib.suppress(NotJudged, NotOffered):  # operations in lists count too
        await bench.need("list")
        await bench.target.list(await bench.parent_name())
    types: dict[str, set[str]] = {}
    for body in bench.bodies():
        metadata = body.get("metadata")
        if isinstance(metadata, Mapping):
            types.setdefault(str(body.get("name")), set()).add(str(metadata.get("@type")))
    if not types:
        raise NotOffered("no operation has metadata")
    for name, found in types.items():
        if len(found) > 1:
            yield f"{shown(name)} had {' and '.join(map(shown, sorted(found)))}"


@RULES(
    "states.goes-on",
    "An operation does not end as cancelled if no call has cancelled it.",
    MUST,
    operations_proto("Operation.done"),
)
async def states_goes_on(bench: Bench) -> Facts:
    await _some_calls(bench)
    for fact in bench.ended_alone[:1]:
        yield fact


@RULES("robust.answers", "Every request is answered in time.", MUST, rfc(9110, "3.4"))
async def robust_answers(bench: Bench) -> Facts:
    await _some_calls(bench)
    for fact in _first(bench.log, lambda one: "without a reply" if one.lost else ""):
        yield fact


@RULES(
    "replies.readable",
    "Each successful reply is the response message of its method; over HTTP it is one JSON "
    "object in UTF-8.",
    MUST,
    operations_proto("Operations"),
    protojson(),
    rfc(8259, "8.1"),
)
async def replies_readable(bench: Bench) -> Facts:
    await _some_calls(bench)
    for fact in _first(bench.log, lambda one: "" if one.lost or one.redirected else one.fault):
        yield fact


@RULES(
    "errors.no-defect",
    "No call of the interface is answered with UNKNOWN, INTERNAL or DATA_LOSS.",
    MUST,
    code_proto("INTERNAL"),
    aip(193, "Guidance"),
)
async def errors_no_defect(bench: Bench) -> Facts:
    await _some_calls(bench)
    calls = [one for one in bench.log if not one.foreign]
    for fact in _first(calls, lambda one: one.code if one.code in DEFECTS else ""):
        yield fact


@RULES(
    "errors.message",
    "Each error has a message.",
    MUST,
    aip(193, "google.rpc.Status"),
    status_proto("Status.message"),
)
async def errors_message(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        message = one.error.get("message")
        return "" if isinstance(message, str) and message else f"message is {shown(message)}"

    for fact in _first(await _errors(bench), problem):
        yield fact


@RULES("errors.no-internals", "Messages of errors show no stack trace.", MUST, aip(193, "Guidance"))
async def errors_no_internals(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        text = str(one.error.get("message"))
        if one.http is not None:
            text += one.http.body[:20_000].decode("utf-8", "replace")
        return "it shows a stack trace" if _TRACE.search(text) else ""

    for fact in _first(await _errors(bench, foreign=True), problem):
        yield fact


_TRACE: Final = re.compile(
    r"Traceback \(most recent|File \\?\"[^\"\\]+\\?\", line \d|\bat [\w.$]+\([\w]+\.java:\d+\)"
    r"|goroutine \d+ \[|\bat .+ \(.+\.[jt]s:\d+:\d+\)"
)


def _details(answer: Answer) -> list[Any]:
    details = answer.error.get("details", [])
    return details if isinstance(details, list) else [details]


def _types(answer: Answer) -> list[str]:
    found = [one.get("@type") if isinstance(one, Mapping) else None for one in _details(answer)]
    return [one.rpartition("/")[2] if isinstance(one, str) else "" for one in found]


@RULES(
    "errors.detail-types",
    "Each item in an error's details has a type URL.",
    MUST,
    status_proto("Status.details"),
    protojson("Any"),
)
async def errors_detail_types(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        return "a detail has no @type" if "" in _types(one) else ""

    for fact in _first(await _errors(bench), problem):
        yield fact


@RULES(
    "errors.details-once",
    "An error's details have each type at most once.",
    MUST,
    aip(193, "Uniqueness"),
)
async def errors_details_once(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        twice = repeated(name for name in _types(one) if name)
        return f"{shown(min(twice))} stands there more than once" if twice else ""

    for fact in _first(await _errors(bench), problem):
        yield fact


@RULES(
    "errors.error-info",
    "Each error has an ErrorInfo with a reason in UPPER_SNAKE_CASE and a domain.",
    MUST,
    aip(193, "ErrorInfo payload"),
)
async def errors_error_info(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        named = zip(_types(one), _details(one), strict=True)
        infos = [detail for name, detail in named if name == "google.rpc.ErrorInfo"]
        if not infos:
            return "there is no ErrorInfo"
        reason, domain = infos[0].get("reason"), infos[0].get("domain")
        if not isinstance(reason, str) or len(reason) > 63 or not _REASON.fullmatch(reason):
            return f"the reason is {shown(reason)}"
        return "" if isinstance(domain, str) and domain else f"the domain is {shown(domain)}"

    for fact in _first(await _errors(bench), problem):
        yield fact


_REASON: Final = re.compile(r"[A-Z][A-Z0-9_]+[A-Z0-9]")


@HTTP_RULES(
    "errors.envelope",
    "The body of each error of the interface is {error: {code, message, status}}, with the "
    "right types.",
    MUST,
    aip(193, "JSON representation"),
)
async def errors_envelope(bench: Bench) -> Facts:
    for fact in _first(await _errors(bench), _envelope_problem):
        yield fact


@HTTP_RULES(
    "errors.envelope-everywhere",
    "Errors of other requests, such as those for an unknown path, have the same form.",
    SHOULD,
    aip(193, "JSON representation"),
)
async def errors_envelope_everywhere(bench: Bench) -> Facts:
    await bench.http.ask("GET", f"{bench.http.prefix}/lro-conform/unknown")
    foreign = [one for one in await _errors(bench, foreign=True) if one.foreign]
    for fact in _first(foreign, _envelope_problem):
        yield fact


def _envelope_problem(one: Answer) -> str:
    if not one.error:
        return "the body has no error that is an object"
    code, status = one.error.get("code"), one.error.get("status")
    if not isinstance(status, str) or status not in HTTP_STATUSES:
        return f"error.status is {shown(status)}, which is not a name of google.rpc.Code"
    if isinstance(code, bool) or not isinstance(code, int):
        return f"error.code is {shown(code)}"
    return ""


@HTTP_RULES(
    "errors.code",
    "error.code is the HTTP status of the reply.",
    MUST,
    aip(193, "JSON representation"),
)
async def errors_code(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        code, status = one.error.get("code"), one.http.status if one.http else None
        return f"error.code is {shown(code)}" if one.error and code != status else ""

    for fact in _first(await _errors(bench), problem):
        yield fact


@HTTP_RULES(
    "errors.mapping",
    "The HTTP status of an error is the one that its code maps to.",
    MUST,
    code_proto("Code"),
)
async def errors_mapping(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        named = one.error.get("status")
        if not isinstance(named, str) or named not in HTTP_STATUSES or one.http is None:
            return ""
        own = one.http.status in _OWN_STATUSES and named != "OK"
        wrong = one.http.status != HTTP_STATUSES[named] and not own
        return f"{named} is mapped to {HTTP_STATUSES[named]}" if wrong else ""

    for fact in _first(await _errors(bench, foreign=True), problem):
        yield fact


_OWN_STATUSES: Final = frozenset({405, 413, 414, 415, 431})
"""HTTP statuses to which no code is mapped."""


@HTTP_RULES(
    "http.content-type",
    "Replies of the interface are application/json, in UTF-8 if a charset is named.",
    SHOULD,
    rfc(9110, "8.3"),
    rfc(8259, "8.1"),
)
async def http_content_type(bench: Bench) -> Facts:
    for answer, reply in await _replies(bench):
        kind, _, parameters = reply.headers.get("content-type", "").lower().partition(";")
        charset = re.search(r"charset=\"?([^\";\s]+)", parameters)
        wrong = charset is not None and charset[1] not in ("utf-8", "utf8")
        if kind.strip() != "application/json" or wrong:
            found = reply.headers.get("content-type")
            yield f"{answer.call} answered {reply.status} with Content-Type {shown(found)}"
            return


@HTTP_RULES(
    "http.no-store",
    "No reply of the interface lets a cache store an operation that may still change.",
    SHOULD,
    rfc(9111, "4.2"),
    rfc(9111, "5.2.2"),
)
async def http_no_store(bench: Bench) -> Facts:
    for answer, reply in await _replies(bench):
        control = reply.headers.get("cache-control", "").lower()
        age = re.search(r"(?:max-age|s-maxage)=\"?0*([1-9]\d*)", control)
        if answer.ok and not answer.done and age and not re.search(r"no-store|no-cache", control):
            yield f"{answer.call}: Cache-Control {shown(control)}"
            return


@HTTP_RULES(
    "http.retry-after",
    "A Retry-After is a number of seconds, or an HTTP date in the current format.",
    MUST,
    rfc(9110, "10.2.3"),
    rfc(9110, "5.6.7"),
    optional=True,
)
async def http_retry_after(bench: Bench) -> Facts:
    found = [(one, reply.headers.get("retry-after")) for one, reply in await _replies(bench)]
    given = [(one, value) for one, value in found if value is not None]
    if not given:
        raise NotOffered("no reply has the header Retry-After")
    for answer, value in given:
        if not re.fullmatch(r"\d+", value, re.ASCII) and not _is_date(value):
            yield f"{answer.call}: Retry-After {shown(value)}"
            return


def _is_date(value: str) -> bool:
    try:
        return value == format_datetime(parsedate_to_datetime(value), usegmt=True)
    except (ValueError, OverflowError):
        return False


@HTTP_RULES(
    "http.poll-interval",
    "A reply with an operation in progress recommends a polling interval in Retry-After.",
    INFO,
    operations_proto("GetOperation"),
    rfc(9110, "10.2.3"),
)
async def http_poll_interval(bench: Bench) -> Facts:
    await _some_calls(bench)
    running = [one for one in bench.log if one.ok and one.rpc == "get" and not one.done]
    if not running:
        raise NotJudged("no operation in progress was read")
    if not any(one.http is not None and "retry-after" in one.http.headers for one in running):
        yield f"none of {len(running)} replies has the header"


@HTTP_RULES(
    "auth.challenge",
    "A reply with 401 has the header WWW-Authenticate.",
    MUST,
    rfc(9110, "15.5.2"),
    optional=True,
)
async def auth_challenge(bench: Bench) -> Facts:
    if bench.http.headers:
        path = bench.http.list_path(await bench.parent_name())
        await bench.http.ask("GET", path, rpc="list", anonymous=True)
    found = [one for one in bench.log if one.http is not None and one.http.status == 401]
    if not found:
        raise NotOffered("no reply had the status 401")
    for answer in found:
        if answer.http is not None and "www-authenticate" not in answer.http.headers:
            yield f"{answer} without the header WWW-Authenticate"
            return


@HTTP_RULES(
    "json.strict",
    "JSON has no duplicate keys, no NaN, and no numbers that parsers cannot represent.",
    MUST,
    rfc(8259, "4"),
    rfc(8259, "6"),
)
async def json_strict(bench: Bench) -> Facts:
    await _some_calls(bench)
    for fact in _first(bench.log, lambda one: one.notes[0] if one.notes else ""):
        yield fact


_FIELDS: Final = {
    "get": {"name", "metadata", "done", "error", "response"},
    "list": {"operations", "nextPageToken", "unreachable"},
}


@HTTP_RULES(
    "json.fields",
    "Messages have only the fields of their types, named in lowerCamelCase.",
    MUST,
    protojson(),
    operations_proto("Operation"),
)
async def json_fields(bench: Bench) -> Facts:
    await _some_calls(bench)
    bodies = [body for body in bench.bodies() if body]
    pages = [one.body for one in bench.log if one.ok and one.rpc == "list"]
    for kind, messages in (("get", bodies), ("list", pages)):
        for body in messages:
            more = sorted(set(body) - _FIELDS[kind])
            if more:
                yield f"the field {shown(more[0])} in {shown(body)}"
                return


@HTTP_RULES(
    "json.types",
    "The fields of operations have the right JSON types: done, for instance, is true or false.",
    MUST,
    protojson(),
    operations_proto("Operation"),
)
async def json_types(bench: Bench) -> Facts:
    await _some_calls(bench)
    for body in bench.bodies():
        problem = operation_problem(body)
        error = body.get("error")
        code = error.get("code", 0) if isinstance(error, Mapping) else 0
        if not problem and (isinstance(code, bool) or not isinstance(code, int)):
            problem = f"error.code is {shown(code)}"
        if problem:
            yield f"{problem}: {shown(body)}"
            return


@HTTP_RULES(
    "json.large-numbers",
    "Integers beyond 2^53 are strings, as ProtoJSON writes 64-bit integers.",
    SHOULD,
    protojson("int64"),
    rfc(8259, "6"),
)
async def json_large_numbers(bench: Bench) -> Facts:
    await _some_calls(bench)
    for body in bench.bodies():
        if any(abs(number) > 2**53 for number in _integers(body)):
            yield f"a number in {shown(body)}"
            return


def _integers(value: object) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    inside = value.values() if isinstance(value, Mapping) else value
    if isinstance(inside, Iterable) and not isinstance(inside, str):
        for one in inside:
            yield from _integers(one)


@HTTP_RULES(
    "json.utf8",
    "Bodies of errors are JSON in UTF-8.",
    MUST,
    rfc(8259, "8.1"),
    aip(193, "JSON representation"),
)
async def json_utf8(bench: Bench) -> Facts:
    def problem(one: Answer) -> str:
        if one.http is None or not one.http.body:
            return "the body is empty"
        try:
            read_json(one.http.body)
        except ValueError as exc:
            return f"the body is not JSON: {shown(str(exc))}"
        return ""

    for fact in _first(await _errors(bench), problem):
        yield fact


@HTTP_RULES(
    "json.retry-info",
    "The delay of a RetryInfo is a Duration.",
    MUST,
    protojson("Duration"),
    optional=True,
)
async def json_retry_info(bench: Bench) -> Facts:
    await _some_calls(bench)
    delays = [
        one.get("retryDelay")
        for answer in bench.log
        for one in _details(answer)
        if isinstance(one, Mapping) and str(one.get("@type")).endswith("/google.rpc.RetryInfo")
    ]
    if not delays:
        raise NotOffered("no error has a RetryInfo")
    for delay in delays:
        if not isinstance(delay, str) or not re.fullmatch(r"\d+(\.\d{1,9})?s", delay, re.ASCII):
            yield f"retryDelay is {shown(delay)}"
            return
