"""Status monitors in all states, and all errors (Azure's REST guidelines, OASIS repeatability).

The expected values follow the guidelines' section "Long-running operations and jobs".
"""

from __future__ import annotations

import json
import logging
import re
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

import lro
from lro import Code, asgi, wsgi
from lro.asgi import EdgeApp
from lro.azure import AzureEdge
from lro.executors.threads import ThreadExecutor
from lro.http import HttpRequest, Start
from tests.azure.works import APPS, PATH, MakeMedia, TranscodeRequest, each_kind
from tests.http.counting_service import CountService, Wrapped, ask, build
from tests.http.servers import asgi_inside
from tests.waiting import until

UUID = "0b9f5d0e-6a0e-4f0a-9a53-0d3a6f6f7c11"
OLD = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sat, 06 Nov 9999 08:49:37 GMT")  # old or future
DATES = {"createdAt", "lastUpdatedAt", "expiresAt"}


def monitor(reply: httpx.Response) -> dict[str, Any]:
    """Return the body of a monitor without its dates, after a check of their form."""
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    body: dict[str, Any] = reply.json()
    for name in DATES & {*body}:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body.pop(name))
    return body


def check_error(reply: httpx.Response, status: int, code: str, canonical: Code) -> dict[str, Any]:
    """Check what every error reply must have, and return the error object."""
    assert reply.status_code == status, reply.text
    (body,) = reply.json().values()
    assert reply.headers["x-ms-error-code"] == body["code"] == code
    assert body["message"]
    assert body["innererror"] == {"code": canonical.name}
    assert {*body} <= {"code", "message", "target", "details", "innererror"}
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    error: dict[str, Any] = body
    return error


# -- states -----------------------------------------------------------------------------------


@each_kind
def test_start_is_answered_202_with_the_monitor(make_media: MakeMedia) -> None:
    """The reply to a start has the monitor's absolute URL, with the API version and the id."""
    media = make_media()
    reply = media.start("wait", f"{PATH}?api-version=2026-11-01")
    body = monitor(reply)
    assert reply.status_code == 202
    url = f"http://here/v1/operations/{body['id']}?api-version=2026-11-01"
    assert reply.headers["operation-location"] == url
    assert reply.headers["operation-id"] == body["id"]
    assert reply.headers["retry-after"] == "1"
    assert "location" not in reply.headers
    assert body["status"] in ("NotStarted", "Running")
    assert media.call("GET", url).status_code == 200


def test_unfinished_operation_is_not_started_or_running(make_media: MakeMedia) -> None:
    """An unfinished operation has no expiry, and has metadata once a worker runs it."""
    media = make_media({"executor": ThreadExecutor(1)})
    started = [media.start("wait") for _ in range(2)]
    assert {*started[1].json()} == {"id", "status", "createdAt", "lastUpdatedAt"}
    until(lambda: media.service.get(f"operations/{started[0].json()['id']}").metadata)
    for one, more in zip(
        started,
        ({"status": "Running", "metadata": {"percent": 40}}, {"status": "NotStarted"}),
        strict=True,
    ):
        reply = media.call("GET", one.headers["operation-location"])
        assert monitor(reply) == {"id": one.json()["id"], **more}
        assert (reply.status_code, reply.headers["retry-after"]) == (200, "1")


def test_cancel_of_running_outside_work_is_answered_202(make_media: MakeMedia) -> None:
    """A cancel of work that is done outside and has not stopped yet is answered 202."""
    media = make_media()
    method = media.service.declare(
        "media.v1.Videos.Elsewhere", request=TranscodeRequest, response=lro.Empty
    )
    name = method.start(TranscodeRequest()).name
    worker = media.service.reporter(name)
    assert worker.report(lro.OperationMetadata(progress_percent=1))
    reply = media.call("POST", f"/v1/{name}:cancel")
    assert (reply.status_code, reply.headers["retry-after"]) == (202, "1")
    assert worker.cancel_requested
    body = media.call("GET", f"/v1/{name}").json()
    assert body == reply.json()
    assert body["status"] == "NotStarted"  # no worker of this library has started it
    assert body["kind"] == "media.v1.Videos.Elsewhere"
    assert worker.acknowledge_cancel()
    body = media.call("GET", f"/v1/{name}").json()
    assert (body["status"], body["error"]["code"]) == ("Canceled", "CANCELLED")


@each_kind
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", None),
        ("refused", ("SOURCE_NO_VIDEO", "the source is no video", "FAILED_PRECONDITION")),
        ("violations", ("INVALID_ARGUMENT", "it is wrong", "INVALID_ARGUMENT")),
        ("odd reason", ("NotFound", "NOT_FOUND", "NOT_FOUND")),
        # Only the log shows what failed.
        ("broken", ("METHOD_FAILED", "the method failed with an internal error", "INTERNAL")),
    ],
)
def test_ended_operation_is_answered_200(
    make_media: MakeMedia, source: str, error: tuple[str, str, str] | None
) -> None:
    """A GET of an ended operation is answered 200, whatever its outcome, without Retry-After."""
    reply = make_media().ended(source)
    body = monitor(reply)
    assert (reply.status_code, "retry-after" in reply.headers) == (200, False)
    assert body.pop("id")
    wanted: dict[str, Any] = {"metadata": {"percent": 40}}
    if error is None:
        wanted |= {"status": "Succeeded", "result": {"uri": "b.mp4"}}
    else:
        code, message, inner = error
        shown = {"code": code, "message": message, "innererror": {"code": inner}}
        wanted |= {"status": "Failed", "error": shown}
    if source == "violations":
        wanted["error"]["details"] = [
            {"code": "BadArgument", "target": "source", "message": "is not a video"},
            {"code": "BadArgument", "target": "width", "message": "is odd"},
        ]
    assert body == wanted
    assert DATES < {*reply.json()}


def test_result_that_is_not_an_object_has_its_json_form(make_media: MakeMedia) -> None:
    """A well-known type has its own JSON form; a method without a response has no result."""
    media = make_media()

    @media.service.method("media.v1.Videos.Name")
    def name(request: TranscodeRequest, job: lro.Job[lro.Struct]) -> lro.types.StringValue:
        job.report(lro.Struct({"percent": 50}))
        return lro.types.StringValue("ann")

    @media.service.method("media.v1.Videos.Forget")
    def forget(request: TranscodeRequest) -> None: ...

    named, forgotten = (one.start(TranscodeRequest()).name for one in (name, forget))
    for one in (named, forgotten):
        media.service.wait(one)
    body = media.call("GET", f"/v1/{named}").json()
    assert (body["result"], body["metadata"]) == ("ann", {"percent": 50})
    body = media.call("GET", f"/v1/{forgotten}").json()
    assert (body["status"], body["kind"]) == ("Succeeded", "media.v1.Videos.Forget")
    assert "result" not in body


@each_kind
def test_cancel_is_answered_202_and_200_after_the_end(make_media: MakeMedia) -> None:
    """The cancel of an operation that is done is answered 200, and changes nothing."""
    media = make_media()
    started = media.start("wait")
    url = f"/v1/operations/{started.json()['id']}"
    reply = media.call("POST", f"{url}:cancel?api-version=1")
    assert (reply.status_code, reply.json()["id"]) in (
        (202, started.json()["id"]),
        (200, started.json()["id"]),
    )
    if reply.status_code == 202:
        assert reply.headers["retry-after"] == "1"
    assert reply.headers["operation-location"] == f"http://here{url}?api-version=1"
    media.service.wait(f"operations/{started.json()['id']}")
    again = media.call("POST", f"{url}:cancel", json={})
    assert (again.status_code, again.json()["status"]) == (200, "Canceled")
    assert again.json()["error"]["innererror"] == {"code": "CANCELLED"}
    assert again.json() == media.call("GET", url).json()
    assert "retry-after" not in again.headers


def test_validate_only_starts_nothing(make_media: MakeMedia) -> None:
    media = make_media()
    reply = media.call("POST", PATH, json={"validateOnly": True})
    assert (reply.status_code, reply.json()) == (200, {"id": "", "status": "Succeeded"})
    assert "operation-location" not in reply.headers


# -- URLs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "headers", "wanted"),
    [
        ("https://api.example.com/media/", {"host": "inner"}, "https://api.example.com/media"),
        ("", {"host": "API.example.com:8443"}, "http://api.example.com:8443"),
        ("", {"host": "[::1]:80"}, "http://[::1]"),
    ],
)
def test_url_of_the_monitor_is_absolute(base_url: str, headers: Any, wanted: str) -> None:
    """The host in the monitor's URL comes from ``base_url`` or from the request."""
    counting = build()
    edge = AzureEdge(counting.service, starts={"/v1/x": counting.count}, base_url=base_url)
    replied = dict(edge.handle(ask("POST", "/v1/x", {}, **headers)).headers)
    operation = replied["operation-id"]
    assert replied["operation-location"] == f"{wanted}/v1/operations/{operation}"


def test_url_of_the_monitor_has_mount_and_parent(counting: CountService) -> None:
    """The monitor's URL has mount and parent, percent-encoded; without a route there is no URL."""
    start = Start(counting.count, parent=lambda request: request.headers["x-parent"])
    edge = AzureEdge(counting.service, starts={"/v1/x": start}, parents=["projects/*"])

    def started(parent: str) -> dict[str, str]:
        headers = {"host": "h", "x-parent": parent}
        request = HttpRequest(method="POST", path="/v1/x", headers=headers, mount=lambda _: "/m")
        return dict(edge.handle(request).headers)

    headers = started("projects/a b")
    assert headers["operation-location"] == (
        f"http://h/m/v1/projects/a%20b/operations/{headers['operation-id']}"
    )
    assert "operation-location" not in started("shelves/a")


@pytest.mark.parametrize("host", ["", "a/b", "user@host", "a b", "x" * 400])
def test_start_without_a_valid_host_is_refused(host: str, counting: CountService) -> None:
    """A start without a valid host is refused, as its caller could not find the monitor."""
    edge = AzureEdge(counting.service, starts={"/v1/x": counting.count})
    reply = edge.handle(ask("POST", "/v1/x", {}, host=host))
    assert (reply.status, dict(reply.headers)["x-ms-error-code"]) == (400, "MALFORMED_REQUEST")
    assert counting.service.list(lro.wire.ListOperationsRequest()).operations == ()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "MissingApiVersionParameter"),
        ("?api-version=", "MissingApiVersionParameter"),
        ("?api-version=2020-01-01", "UnsupportedApiVersionValue"),
        ("?api-version=2026-11-01&api-version=2026-11-01", "MALFORMED_REQUEST"),
        ("?api-version=%ff", "MALFORMED_REQUEST"),
        ("?api-version=2026-11-01&x=1", "MALFORMED_REQUEST"),
    ],
)
def test_api_version_that_is_not_served_is_refused(
    make_media: MakeMedia, query: str, code: str
) -> None:
    """Every call without one of the served API versions is refused."""
    media = make_media(api_versions=["2026-11-01", "2026-12-01-preview"])
    for method, path in [
        ("POST", PATH),
        ("GET", "/v1/operations/x"),
        ("POST", "/v1/operations/x:cancel"),
    ]:
        body = {"json": {}} if method == "POST" else {}
        reply = media.call(method, path + query, **body)
        check_error(reply, 400, code, Code.INVALID_ARGUMENT)
    reply = media.start(url=f"{PATH}?%61pi-version=2026-11-01&alt=json")
    assert reply.headers["operation-location"].endswith("?api-version=2026-11-01")


def test_api_version_that_a_url_cannot_have_is_refused(make_media: MakeMedia) -> None:
    """Without a list of versions, only a version that could not be part of a URL is refused."""
    reply = make_media().start(url=f"{PATH}?api-version=1%0d%0aX:y")
    error = check_error(reply, 400, "UnsupportedApiVersionValue", Code.INVALID_ARGUMENT)
    assert "supported api-versions" not in error["message"]


# -- repeats ----------------------------------------------------------------------------------


def sent(hours: float = 0) -> str:
    """Return the HTTP date of this number of hours ago."""
    return format_datetime(datetime.now(UTC) - timedelta(hours=hours), usegmt=True)


@pytest.mark.parametrize("identifier", [UUID, "order-17", UUID.upper()])
def test_repeated_start_is_answered_with_the_same_operation(
    make_media: MakeMedia, identifier: str
) -> None:
    """An id in either header identifies a start; a different start with the same id is refused."""
    media = make_media()
    headers = {"repeatability_request_id": identifier, "repeatability_first_sent": sent()}
    first = media.start("wait", **headers)
    again = media.start("wait", **headers)
    third = media.start("wait", operation_id=identifier)
    for reply in (first, again):
        assert (reply.status_code, reply.headers["repeatability-result"]) == (202, "accepted")
    assert first.json()["id"] == again.json()["id"] == third.json()["id"]
    assert first.json()["id"] != identifier
    assert "repeatability-result" not in third.headers
    other = media.start("other", **headers)
    check_error(other, 400, "REQUEST_ID_CONFLICT", Code.INVALID_ARGUMENT)
    assert other.headers["repeatability-result"] == "rejected"
    assert media.start("wait").json()["id"] != first.json()["id"]


@pytest.mark.parametrize(
    "date",
    [
        *("", "yesterday", "Sun, 31 Feb 2026 00:00:00 GMT", "Sun, 06 Foo 1994 08:49:37 GMT"),
        *("Sun, 06 Nov 1994 ::::::88 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", *OLD),
    ],
)
def test_start_first_sent_over_24_hours_ago_is_refused(make_media: MakeMedia, date: str) -> None:
    """A start first sent over 24 hours ago is refused: its first operation may be forgotten."""
    media = make_media()
    reply = media.start(repeatability_request_id=UUID, repeatability_first_sent=date)
    old = (412, "FAILED_PRECONDITION", Code.FAILED_PRECONDITION)
    check_error(reply, *(old if date in OLD else MALFORMED))
    assert reply.headers["repeatability-result"] == "rejected"
    assert media.service.list(lro.wire.ListOperationsRequest()).operations == ()
    for fine in (sent(23), sent(-0.05)):
        assert media.start(repeatability_request_id=UUID, repeatability_first_sent=fine).is_success


# -- errors of calls --------------------------------------------------------------------------


NONE = (404, "OPERATION_NOT_FOUND", Code.NOT_FOUND)
MALFORMED = (400, "MALFORMED_REQUEST", Code.INVALID_ARGUMENT)
NO_METHOD = (405, "HTTP_METHOD_NOT_ALLOWED", Code.UNIMPLEMENTED)
JSON = {"content-type": "application/json"}
SITE = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}


@each_kind
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "wanted"),
    [
        *(
            ("GET", f"/v1/operations{path}", None, {}, NONE)
            for path in ("/none", "/a%2Fb", "/a/b", "/-", "/%00", "", "/x:watch")
        ),
        ("POST", "/v1/operations/-:cancel", b"", JSON, NONE),
        ("GET", "/v1/other", None, {}, (404, "ROUTE_NOT_FOUND", Code.NOT_FOUND)),
        ("GET", "/v1/operations/x?a=b", None, {}, MALFORMED),
        ("DELETE", "/v1/operations/x", None, {}, NO_METHOD),
        ("GET", PATH, None, {}, NO_METHOD),
        ("POST", PATH, b'{"x"', JSON, MALFORMED),
        ("POST", PATH, b"[]", JSON, MALFORMED),
        *(
            ("POST", PATH, body, headers, (status, code, Code.INVALID_ARGUMENT))
            for body, headers, status, code in (
                (b'{"width": "x"}', JSON, 400, "INVALID_ARGUMENT"),
                (b'{"requestId": " x"}', JSON, 400, "INVALID_REQUEST_ID"),
                (b'{"pad": "%s"}' % (b"x" * 2000), JSON, 413, "REQUEST_TOO_LARGE"),
                (b"{}", {"content-type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
            )
        ),
        ("POST", PATH, b"{}", SITE, (403, "CROSS_SITE_REQUEST", Code.PERMISSION_DENIED)),
    ],
)
def test_refused_call_has_its_code_in_body_and_header(
    make_media: MakeMedia,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    wanted: tuple[int, str, Code],
) -> None:
    """A refused call has its error code in the body and in a header."""
    reply = make_media(max_body=1000).call(method, path, content=body, headers=headers)
    error = check_error(reply, *wanted)
    assert ("allow" in reply.headers) == (wanted[0] == 405)
    if wanted[1] == "INVALID_ARGUMENT":
        assert error["target"] == "width"
        assert [one["target"] for one in error["details"]] == ["width"]


def test_start_on_a_busy_target_or_full_queue_is_refused(make_media: MakeMedia) -> None:
    media = make_media({"executor": ThreadExecutor(1), "limits": lro.Limits(backlog=1)})
    assert media.start("target").status_code == 202
    check_error(media.start("target"), 409, "TARGET_BUSY", Code.ABORTED)
    replies = [media.start("wait") for _ in range(3)]
    check_error(replies[-1], 429, "RESOURCE_EXHAUSTED", Code.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (lro.errors.Unavailable("later"), 503, Code.UNAVAILABLE),
        # Azure's clients retry a 503.
        (lro.StatusError(Code.DEADLINE_EXCEEDED, "later"), 503, Code.DEADLINE_EXCEEDED),
        (lro.errors.PermissionDenied("not you"), 403, Code.PERMISSION_DENIED),
        (lro.errors.Unauthenticated("a token is needed"), 401, Code.UNAUTHENTICATED),
        (lro.StatusError(Code.INTERNAL, "a secret"), 500, Code.INTERNAL),
        (lro.errors.MethodNotSupported("Start"), 501, Code.UNIMPLEMENTED),
    ],
)
def test_start_that_a_hook_refuses_is_forbidden(
    make_media: MakeMedia, error: lro.LroError, status: int, code: Code
) -> None:
    """If a hook refuses a start, the caller gets the hook's error, but not an internal text."""

    def refuse(caller: str, verb: str, name: str) -> bool:
        raise error

    reply = make_media({"authorize": refuse}, authenticate=lambda headers: "ann").start()
    why = "METHOD_NOT_SUPPORTED" if status == 501 else code.name
    shown = check_error(reply, status, why, code)
    assert "secret" not in shown["message"]
    assert ("www-authenticate" in reply.headers) == (status == 401)


def test_operation_of_another_caller_is_not_found(make_media: MakeMedia) -> None:
    """A call for another caller's operation gets the same reply as for an unknown operation."""

    def authorize(caller: str, verb: str, name: str) -> bool:
        return caller != "eve" or verb.startswith("media")

    def authenticate(headers: Any) -> str:
        return str(headers.get("x-user", ""))

    for options in ({"owner_only": True}, {"authorize": authorize}):
        media = make_media(options, authenticate=authenticate)
        identifier = media.start("wait", x_user="ann").json()["id"]
        for method, verb in (("GET", ""), ("POST", ":cancel")):
            texts = []
            for one in (identifier, "x" * len(identifier)):
                url = f"/v1/operations/{one}{verb}"
                reply = media.call(method, url, headers={"x-user": "eve"})
                check_error(reply, 404, "OPERATION_NOT_FOUND", Code.NOT_FOUND)
                texts.append(reply.text.replace(one, "ID"))
            assert texts[0] == texts[1]
        url = f"/v1/operations/{identifier}"
        assert media.call("GET", url, headers={"x-user": "ann"}).status_code == 200


def test_start_is_answered_though_its_caller_may_not_read_it(make_media: MakeMedia) -> None:
    """A caller who may start but not read gets a monitor with the facts known without a read."""

    def authorize(caller: str, verb: str, name: str) -> bool:
        return verb != "GetOperation"

    media = make_media({"authorize": authorize}, authenticate=lambda headers: "ann")
    reply = media.start("wait")
    assert (reply.status_code, reply.json()["status"]) == (202, "Running")
    cancelled = media.call("POST", f"/v1/operations/{reply.json()['id']}:cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "Running")


def test_stored_start_succeeds_though_the_store_then_fails() -> None:
    """If the store fails after it has stored a start, the start is still answered 202."""
    broken = threading.Event()

    def away() -> None:
        if broken.is_set():
            raise lro.errors.Unavailable("the store is away")

    counting = build(Wrapped(away, "get"))
    edge = AzureEdge(counting.service, starts={"/v1/x": counting.count})
    broken.set()
    reply = edge.handle(ask("POST", "/v1/x", {}, host="here"))
    assert (reply.status, json.loads(reply.body)["status"]) == (202, "Running")
    polled = edge.handle(ask("GET", f"/v1/operations/{json.loads(reply.body)['id']}"))
    assert (polled.status, dict(polled.headers)["retry-after"]) == (503, "1")


def test_head_and_options_are_answered(make_media: MakeMedia) -> None:
    """The reply to HEAD is the reply to GET without the body, for errors too."""
    media = make_media()
    url = f"/v1/operations/{media.start('wait').json()['id']}"
    head = media.call("HEAD", url)
    assert (head.status_code, head.content) == (200, b"")
    missing = media.call("HEAD", "/v1/operations/none")
    assert (missing.status_code, missing.content) == (404, b"")
    assert missing.headers["x-ms-error-code"] == "OPERATION_NOT_FOUND"
    allowed = media.call("OPTIONS", url)
    assert (allowed.status_code, allowed.headers["allow"]) == (204, "GET, HEAD, OPTIONS")


def test_too_many_headers_are_refused(counting: CountService) -> None:
    """If there are too many headers, none is read, so the reply has no repeatability result."""
    app = EdgeApp(AzureEdge(counting.service, starts={"/v1/x": counting.count}))
    headers = [(f"x-{number}", "1") for number in range(1100)]
    headers += [("repeatability-request-id", UUID)]
    with asgi_inside(app) as call:
        reply = call("POST", "/v1/x", json={}, headers=headers)
    check_error(reply, 400, "MALFORMED_REQUEST", Code.INVALID_ARGUMENT)
    assert "repeatability-result" not in reply.headers


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("base_url", "api.example.com"),
        ("base_url", "ftp://api.example.com"),
        ("base_url", "https://api.example.com?x"),
        ("base_url", "https://user@api.example.com"),
        ("base_url", "https://api.example.com//x"),
        ("base_url", None),
        ("api_versions", "2026-11-01"),
        ("api_versions", ["a b"]),
        ("poll_seconds", 0),
    ],
)
def test_option_of_the_wrong_form_is_refused(option: str, value: Any) -> None:
    """An option of the wrong form raises an error when the edge is made."""
    with pytest.raises(lro.DeclarationError, match=option):
        AzureEdge(build().service, **{option: value})


def test_edge_without_authenticate_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An edge without ``authenticate`` logs one warning, when it is made."""
    with caplog.at_level(logging.WARNING, "lro"):
        AzureEdge(build().service, authenticate=lambda headers: None)
        assert caplog.text == ""
        AzureEdge(build().service)
    assert "AzureEdge has no authenticate" in caplog.text


@pytest.mark.parametrize("kind", list(APPS))
def test_other_paths_reach_the_fallback(kind: str, counting: CountService) -> None:
    """The fallback may be another application of the service, which has the same operations."""
    application, inside = APPS[kind]
    plain = {"asgi": asgi.OperationsApp, "wsgi": wsgi.OperationsApp}[kind](counting.service)
    app = application(AzureEdge(counting.service, starts={"/v1/x": counting.count}), plain)
    with inside(app) as call:
        name = f"operations/{call('POST', '/v1/x', json={}).json()['id']}"
        found = call("POST", "/v1/operations:batchGet", json={"names": [name]}).json()
        assert found["operations"] == [{"name": name}]
