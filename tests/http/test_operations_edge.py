"""The five verbs over HTTP, and all their errors (spec §5, §6)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import attrs
import pytest

import lro
from lro import Code
from lro.http import Authenticate, HttpReply, HttpRequest, error_reply
from tests.http.counting_service import (
    DOMAIN,
    URL,
    CountMetadata,
    CountRequest,
    CountService,
    Wrapped,
    ask,
    begun,
    build,
    check_error,
    details_of,
    edge_of,
    headers_of,
)

VERBS: Mapping[str, Callable[[str], HttpRequest]] = {
    "GetOperation": lambda name: ask("GET", f"/v1/{name}"),
    "DeleteOperation": lambda name: ask("DELETE", f"/v1/{name}"),
    "CancelOperation": lambda name: ask("POST", f"/v1/{name}:cancel"),
    "WaitOperation": lambda name: ask("POST", f"/v1/{name}:wait", {"timeout": "0s"}),
    "ListOperations": lambda name: ask("GET", f"/v1/{name.rpartition('/')[0]}"),
}
ONES = [verb for verb in VERBS if verb != "ListOperations"]
EACH_VERB = pytest.mark.parametrize("verb", VERBS)
EACH_ONE = pytest.mark.parametrize("verb", ONES)


def json_of(reply: HttpReply) -> Any:
    """Check the headers of a successful reply (spec §5.10, §5.14), and return its body."""
    headers = headers_of(reply)
    assert reply.status == 200
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    return json.loads(reply.body)


# -- good replies -----------------------------------------------------------------------------


@pytest.mark.parametrize("parent", ["", "projects/p"])
def test_every_verb_answers_through_the_life_of_an_operation(
    parent: str, counting: CountService
) -> None:
    """Every verb answers while the operation runs, after its end and after its deletion."""
    edge = edge_of(counting, poll_seconds=7)
    name = counting.start(parent, metadata=CountMetadata(percent=1))
    running = {"name": name, "metadata": {"@type": URL + "acme.v1.CountMetadata", "percent": 1}}
    for verb in ("GetOperation", "WaitOperation"):
        reply = edge.handle(VERBS[verb](name))
        assert json_of(reply) == running
        assert headers_of(reply)["retry-after"] == "7"
    assert json_of(edge.handle(VERBS["ListOperations"](name))) == {"operations": [running]}
    assert json_of(edge.handle(VERBS["CancelOperation"](name))) == {}
    counting.finish(name)
    for verb in ("GetOperation", "WaitOperation"):
        reply = edge.handle(VERBS[verb](name))
        assert json_of(reply)["response"] == {"@type": URL + "acme.v1.CountResponse", "total": 3}
        assert "retry-after" not in headers_of(reply)
    assert json_of(edge.handle(VERBS["DeleteOperation"](name))) == {}
    assert edge.handle(VERBS["GetOperation"](name)).status == 404
    assert json_of(edge.handle(VERBS["ListOperations"](name))) == {}


@pytest.mark.parametrize(
    "request_",
    [
        VERBS["GetOperation"]("operations/x"),
        VERBS["ListOperations"]("operations/x"),
        VERBS["ListOperations"]("projects/p/operations/x"),
        ask("GET", "/v1/nothing"),
        ask("GET", "/v1/operations/x:wait"),
        ask("GET", "/v1/operations?pageSize=x"),
    ],
)
def test_head_is_get_without_a_body(request_: HttpRequest) -> None:
    """HEAD has the status and headers of GET, with the length, for errors too."""
    edge = edge_of(build())
    got = edge.handle(request_)
    head = edge.handle(attrs.evolve(request_, method="HEAD"))
    assert (head.status, head.body) == (got.status, b"")
    if got.status != 405:
        assert headers_of(head) == {**headers_of(got), "content-length": str(len(got.body))}


# -- errors of every verb ---------------------------------------------------------------------


def refuse_caller(headers: Mapping[str, str]) -> str:
    raise lro.errors.Unauthenticated


@EACH_ONE
@pytest.mark.parametrize("name", ["operations/nope", "operations/a/b", "projects/p/operations/x"])
def test_name_without_record_is_not_found(verb: str, name: str) -> None:
    """A valid name without a record is NOT_FOUND, with the resource in the details."""
    reply = edge_of(build()).handle(VERBS[verb](name))
    error = check_error(reply, 404, Code.NOT_FOUND, "OPERATION_NOT_FOUND")
    details = details_of(reply.body)
    assert details["ErrorInfo"]["metadata"] == {"name": name}
    assert details["ResourceInfo"] == {
        "@type": URL + "google.rpc.ResourceInfo",
        "resourceType": "google.longrunning.Operation",
        "resourceName": name,
    }
    assert name in error["message"]


@EACH_ONE
@pytest.mark.parametrize("bad", ["operations/..", "operations/a/-", "operations/%00", "x" * 2000])
def test_malformed_name_is_refused_before_the_store_is_asked(verb: str, bad: str) -> None:
    """A malformed name is INVALID_ARGUMENT, and the store is not called."""
    name = f"operations/{bad}" if bad[0] == "x" else bad
    reply = edge_of(build(Wrapped(explode, "get", "update"))).handle(VERBS[verb](name))
    check_error(reply, 400, Code.INVALID_ARGUMENT, "INVALID_OPERATION_NAME")
    violation = details_of(reply.body)["BadRequest"]["fieldViolations"][0]
    assert violation["field"] == "name"
    assert violation["description"]


def test_caller_set_by_a_framework_is_not_authenticated_again() -> None:
    """If a framework has set the caller, only ``authorize`` is called, with that caller."""
    seen: list[str] = []
    counting = build(authorize=lambda caller, *_: seen.append(caller))
    edge = edge_of(counting, authenticate=refuse_caller)
    request = attrs.evolve(ask("GET", "/v1/operations"), caller="ann")
    assert (edge.handle(request).status, seen) == (200, ["ann"])


class AnyName(str):
    """A text that claims to equal every text, like a class that ignores letter case."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)


def test_caller_name_with_its_own_eq_sees_only_its_own_operations() -> None:
    """Callers are compared as plain texts, whatever ``__eq__`` of their class returns."""
    counting = build(owner_only=True)
    name = counting.count.start(CountRequest(), caller="bob").name
    edge = edge_of(counting, authenticate=lambda headers: AnyName("ann"))
    for caller in (None, AnyName("ann")):
        assert edge.handle(attrs.evolve(ask("GET", f"/v1/{name}"), caller=caller)).status == 404


@pytest.mark.parametrize(
    ("error", "challenge"),
    [
        (lro.errors.Unauthenticated(), "Bearer"),
        (lro.errors.Unauthenticated("who?", 'Basic realm="things"'), 'Basic realm="things"'),
        (lro.errors.Unauthenticated("who?", "B" * 1000), "B" * 1000),
        (lro.StatusError(Code.UNAUTHENTICATED, "who?"), "Bearer"),
    ],
)
def test_unauthenticated_reply_has_a_challenge(error: lro.LroError, challenge: str) -> None:
    """Every 401 has a challenge, by default Bearer (RFC 9110 §11.6.1); no other reply has one."""

    def authenticate(headers: Mapping[str, str]) -> str:
        if "x-user" in headers:
            return headers["x-user"]
        raise error

    edge = edge_of(build(), authenticate=authenticate)
    reply = edge.handle(ask("GET", "/v1/operations/x"))
    check_error(reply, 401, Code.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert headers_of(reply)["www-authenticate"] == challenge
    found = edge.handle(ask("GET", "/v1/operations/x", x_user="ann"))
    assert "www-authenticate" not in headers_of(found)


def leave(_: object) -> str:
    """Raise an exception that would stop a server."""
    raise SystemExit


@pytest.mark.parametrize(
    "challenge", ["", " ", "Bearer ", "Bearer\r\nx: y", "Bär", "B" * 1001, None, b"Bearer", leave]
)
def test_challenge_that_no_header_can_hold_is_refused(
    challenge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A challenge that is no valid header is refused; if a subclass returns one, Bearer is sent."""
    with pytest.raises(ValueError, match="challenge: must be printable ASCII, 1 to 1000 char"):
        lro.errors.Unauthenticated("who?", challenge)

    class Expired(lro.errors.Unauthenticated):
        def __getattribute__(self, name: str) -> Any:
            if name != "challenge":
                return super().__getattribute__(name)
            return challenge(self) if challenge is leave else challenge

    reply = error_reply(Expired(), lro.TypeRegistry(), DOMAIN, asked="GET /v1/x")
    check_error(reply, 401, Code.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert headers_of(reply)["www-authenticate"] == "Bearer"
    assert "the challenge of the error of GET /v1/x cannot be described" in caplog.text


@EACH_VERB
def test_calls_are_checked_in_order(verb: str) -> None:
    """Calls are checked: supported, authenticated, well-formed, permitted, existing (§3.1(5))."""
    asked: list[str] = []

    def authenticate(headers: Mapping[str, str]) -> str:
        asked.append("authenticate")
        return "ann"

    def authorize(caller: str, verb: str, name: str) -> None:
        asked.append(f"{caller} {verb} {name}")

    name = "projects/p/operations/x"
    subject = "projects/p" if verb == "ListOperations" else name
    counting = build(Wrapped(lambda: asked.append("store"), "get", "page"), authorize=authorize)
    edge = edge_of(counting, authenticate=authenticate)
    assert edge.handle(attrs.evolve(VERBS[verb](name), query="colour=red")).status == 400
    assert asked == ["authenticate"]
    edge.handle(VERBS[verb](name))
    assert asked[1:] == ["authenticate", f"ann {verb} {subject}", "store"]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "GetOperation"])
@pytest.mark.parametrize("query", ["", "colour=red"])
def test_disabled_verb_is_unimplemented(verb: str, query: str) -> None:
    """A disabled verb is refused before the caller is authenticated (spec §3.9)."""
    edge = edge_of(build(verbs=["GetOperation"]), authenticate=refuse_caller)
    for name in ("operations/x", "operations/.."):
        reply = edge.handle(attrs.evolve(VERBS[verb](name), query=query, body=b"\xff"))
        check_error(reply, 501, Code.UNIMPLEMENTED, "METHOD_NOT_SUPPORTED")
        assert details_of(reply.body)["ErrorInfo"]["metadata"] == {"method": verb}


@EACH_VERB
def test_unavailable_store_gives_503_with_a_time_to_retry_after(verb: str) -> None:
    """If the store cannot be reached, the error is UNAVAILABLE with the time for a retry."""
    for delay, header in ((2.5, "3"), (1, "1"), (0, "1"), (3600, "3600"), (0.001, "1")):
        span = timedelta(seconds=delay)

        def away(span: timedelta = span) -> None:
            raise lro.errors.Unavailable("the store is restarting", span)

        edge = edge_of(build(Wrapped(away, "get", "update", "page")))
        reply = edge.handle(VERBS[verb]("operations/x"))
        check_error(reply, 503, Code.UNAVAILABLE, "UNAVAILABLE")
        assert headers_of(reply)["retry-after"] == header
        wanted = lro.TypeRegistry().dump(lro.Duration.from_timedelta(span))
        assert details_of(reply.body)["RetryInfo"]["retryDelay"] == wanted


def explode() -> None:
    raise RuntimeError("password=hunter2 at /srv/secret.db")


@EACH_VERB
def test_defect_is_internal_and_discloses_nothing(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After an unexpected exception, the log has its text, but the reply has only a code."""
    edge = edge_of(build(Wrapped(explode, "get", "update", "page")))
    reply = edge.handle(VERBS[verb]("operations/x"))
    error = check_error(reply, 500, Code.INTERNAL, "INTERNAL")
    assert error["message"] == "the server failed internally"
    assert b"hunter2" not in reply.body
    assert b"secret" not in reply.body
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert "hunter2" in caplog.text
    assert "/v1/operations" in record.getMessage()


# -- errors of routes, queries, bodies and headers --------------------------------------------


def post(verb: str, body: Any = b"", **headers: str) -> HttpRequest:
    return ask("POST", f"/v1/operations/x:{verb}", body, **headers)


def get(target: str) -> HttpRequest:
    return ask("GET", f"/v1/{target}")


NOT_ALLOWED = "HTTP_METHOD_NOT_ALLOWED"
ALLOWED = "DELETE, GET, HEAD, OPTIONS"
PLACES = {"method": "PUT", "path": "/v1/operations/x", "allow": ALLOWED}
UNIMPLEMENTED, DEADLINE = Code.UNIMPLEMENTED, "DEADLINE_EXCEEDED"
OTHER: list[tuple[HttpRequest, int, Code, str, str, Mapping[str, str] | None]] = [
    (ask("GET", "/v2/x"), 404, Code.NOT_FOUND, "ROUTE_NOT_FOUND", "", {"path": "/v2/x"}),
    (get("operations/x/"), 404, Code.NOT_FOUND, "ROUTE_NOT_FOUND", "", None),
    (ask("PUT", "/v1/operations/x"), 405, UNIMPLEMENTED, NOT_ALLOWED, ALLOWED, PLACES),
    (ask("post", "/v1/operations/x:wait"), 405, UNIMPLEMENTED, NOT_ALLOWED, "OPTIONS, POST", None),
    (
        *(get("operations?returnPartialSuccess=true"), 501, UNIMPLEMENTED),
        *("PARTIAL_SUCCESS_NOT_SUPPORTED", "", None),
    ),
    *[
        (post("wait", x_server_timeout=text), 504, Code.DEADLINE_EXCEEDED, DEADLINE, "", None)
        for text in ("0", "0.0", " 0 ", "000")
    ],
]
"""Requests, with the status, code, reason, Allow header and metadata of the error."""


@pytest.mark.parametrize(("request_", "http", "code", "reason", "allow", "facts"), OTHER)
def test_refusal_has_status_code_reason_and_facts(
    request_: HttpRequest, http: int, code: Code, reason: str, allow: str, facts: Any
) -> None:
    """A refused route, method or deadline gets its status and reason; a wrong method gets Allow."""
    reply = edge_of(build()).handle(request_)
    check_error(reply, http, code, reason)
    assert headers_of(reply).get("allow", "") == allow
    if facts is not None:
        assert details_of(reply.body)["ErrorInfo"]["metadata"] == facts


FORMS = ("-1", "", " ", "1e3", "1s", "+1", ".5", "1.", "inf", "nan", "١", "1,2", "\xff")
JUNK = ("text/plain", "application/json; charset=utf-16", ";;=\x01\xff/")
INVALID = [
    *[(get(f"operations/{path}"), 400, "", "path") for path in ("%zz", "%ff", "\udcff")],
    (get("operations?filter=%"), 400, "", "query"),
    (get("operations?pageSize=-1"), 400, "INVALID_PAGE_SIZE", "page_size"),
    (get("operations?pageSize=ten"), 400, "INVALID_PAGE_SIZE", "page_size"),
    (get("operations?pageToken=abc"), 400, "INVALID_PAGE_TOKEN", "page_token"),
    (get("operations?filter=a+AND"), 400, "INVALID_FILTER", "filter"),
    (get("projects/-/operations"), 400, "INVALID_PARENT", "name"),
    *[
        (post(verb, {}, content_type=kind), 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type")
        for verb, kind in zip(("cancel", "wait", "wait"), JUNK, strict=True)
    ],
    (post("cancel", b"{"), 400, "", "body"),
    (post("cancel", {"force": True}), 400, "", "force"),
    *[
        (post("wait", {"timeout": value}), 400, "INVALID_TIMEOUT", "timeout")
        for value in (5, "-1s", "1.s", "1m")
    ],
    (post("wait", {"Timeout": "1s"}), 400, "", "Timeout"),
    (post("wait", {"name": 1}), 400, "", "name"),
    (post("wait", {"name": "operations/y"}), 400, "", "name"),
    (post("wait", b" " * 1_048_577), 413, "REQUEST_TOO_LARGE", "body"),
    *[
        (post("wait", x_server_timeout=text), 400, "INVALID_TIMEOUT", "X-Server-Timeout")
        for text in FORMS
    ],
    (post("wait", {"timeout": "-1s"}, x_server_timeout="0"), 400, "INVALID_TIMEOUT", "timeout"),
]
"""Requests, with the status, reason (default MALFORMED_REQUEST) and field of the error."""


@pytest.mark.parametrize(("request_", "status", "reason", "field"), INVALID)
def test_invalid_argument_names_its_field(
    request_: HttpRequest, status: int, reason: str, field: str
) -> None:
    """Each invalid argument gets its status, reason and field."""
    reply = edge_of(build()).handle(request_)
    check_error(reply, status, Code.INVALID_ARGUMENT, reason or "MALFORMED_REQUEST")
    (violation,) = details_of(reply.body)["BadRequest"]["fieldViolations"]
    assert violation["field"] == field


def test_deadline_header_is_read() -> None:
    """X-Server-Timeout is a decimal number of any size."""
    counting, name = begun()
    counting.finish(name)
    for text in ("2.5", "0.001", "60", " 5 ", "9" * 400, "007.5"):
        request = ask("POST", f"/v1/{name}:wait", x_server_timeout=text)
        assert json_of(edge_of(counting).handle(request))["done"] is True


def test_deadline_header_bounds_the_wait() -> None:
    """A shorter X-Server-Timeout replaces the body's timeout, and causes no error (spec §4.4)."""
    counting, name = begun()
    request = ask("POST", f"/v1/{name}:wait", {"timeout": "30s"}, x_server_timeout="0.02")
    assert json_of(edge_of(counting).handle(request)) == {"name": name}


# -- errors of the application ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "http", "code", "reason"),
    [
        (lro.StatusError(Code.ABORTED, "again"), 409, Code.ABORTED, "ABORTED"),
        (lro.StatusError(Code.ALREADY_EXISTS, "x", why="MINE"), 409, Code.ALREADY_EXISTS, "MINE"),
        (lro.StatusError(Code.OUT_OF_RANGE, "far"), 400, Code.OUT_OF_RANGE, "OUT_OF_RANGE"),
        (lro.Cancelled(), 499, Code.CANCELLED, "CANCELLED"),
        (lro.errors.TargetBusy("a"), 409, Code.ABORTED, "TARGET_BUSY"),
    ],
)
def test_error_of_a_hook_reaches_the_caller(
    error: lro.LroError, http: int, code: Code, reason: str
) -> None:
    """The caller gets the error that the hook raises."""
    assert check_error(raising(error), http, code, reason)["message"] == str(error)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN, Code.DATA_LOSS])
def test_hook_error_with_an_internal_code_is_sent_without_its_message(
    code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    """For internal codes, the reply keeps the reason of the error, but no message or details."""
    detail = lro.types.DebugInfo(detail="disk 7")
    reply = raising(lro.StatusError(code, "disk 7 at fault", (detail,), why="DISK"))
    assert check_error(reply, 500, code, "DISK")["message"] == "the server failed internally"
    assert list(details_of(reply.body)) == ["ErrorInfo"]
    assert "disk 7" in caplog.text


def test_error_with_code_ok_becomes_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """An error with the code OK is a mistake of the application, and is never a success."""
    check_error(raising(lro.StatusError(Code.OK, "fine")), 500, Code.UNKNOWN, "UNKNOWN")
    assert "fine" in caplog.text


def test_metadata_or_detail_of_unknown_type_does_not_fail_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An ErrorInfo replaces unknown metadata, and unknown details are left out (§1.14(3))."""
    counting, name = begun(metadata=lro.AnyMessage(URL + "acme.v1.Secret", b"\0"))
    error = lro.StatusError(Code.NOT_FOUND, "no", (lro.AnyMessage(URL + "acme.v1.Secret", b"\0"),))
    counting.service.reporter(name).fail(error)
    for verb in ("GetOperation", "WaitOperation", "ListOperations"):
        shown = json_of(edge_of(counting).handle(VERBS[verb](name)))
        (shown,) = shown.get("operations", [shown])
        assert shown["metadata"]["reason"] == "MESSAGE_UNREADABLE"
        assert shown["metadata"]["metadata"] == {"type_name": "acme.v1.Secret"}
        assert [one["reason"] for one in shown["error"]["details"]] == ["NOT_FOUND"]
    assert caplog.text.count("messages of the type acme.v1.Secret cannot be shown") == 1


def raising(error: Exception) -> HttpReply:
    def authenticate(headers: Mapping[str, str]) -> str:
        raise error

    hook: Authenticate = authenticate
    return edge_of(build(), authenticate=hook).handle(VERBS["GetOperation"]("operations/x"))


def test_status_499_has_a_phrase() -> None:
    """The status 499, which the standard library does not know, has a phrase."""
    assert HttpReply(499, ()).status_line == "499 Client Closed Request"
    assert HttpReply(404, ()).status_line == "404 Not Found"
