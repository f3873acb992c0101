"""The edge as a WSGI application, call by call (PEP 3333)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import pytest

from lro import DeclarationError
from lro.wsgi import OperationsApp
from tests.http.counting_service import begun, build
from tests.http.servers import environ_of_wsgiref
from tests.waiting import until


def environ_of(method: str, path: str, body: bytes = b"", **more: Any) -> dict[str, Any]:
    """Return the environ of a request; ``path`` is raw, and also the default of REQUEST_URI."""
    return {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "REQUEST_URI": path,
        "QUERY_STRING": "",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        **more,
    }


def serve(app: Any, environ: dict[str, Any]) -> tuple[str, dict[str, str], Any]:
    """Return the status line, headers and parsed body of the reply."""
    said: list[Any] = []
    chunks: Iterable[bytes] = app(environ, lambda *args: said.extend(args))
    status, headers = said
    assert len(dict(headers)) == len(headers)
    return status, dict(headers), json.loads(b"".join(chunks) or b"null")


def reason(body: Any) -> str:
    """Return the reason of an error body."""
    found: str = body["error"]["details"][0]["reason"]
    return found


def test_reply_has_status_headers_and_body() -> None:
    """The reply has a status line, headers in WSGI's spelling, and a body."""
    counting, name = begun()
    status, headers, body = serve(OperationsApp(counting.service), environ_of("GET", f"/v1/{name}"))
    assert (status, body) == ("200 OK", {"name": name})
    assert headers == {
        "Content-Type": "application/json; charset=utf-8",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Retry-After": "1",
        "Content-Length": str(len(json.dumps(body, separators=(",", ":")))),
    }


def test_head_and_options_have_no_body() -> None:
    """A HEAD reply has the length of the GET reply, even for a bad request; a 204 has none."""
    app = OperationsApp(build().service)
    for more in ({}, {"CONTENT_LENGTH": "junk"}):
        got = serve(app, environ_of("GET", "/v1/operations/x", **more))
        assert serve(app, environ_of("HEAD", "/v1/operations/x", **more)) == (*got[:2], None)
    status, headers, body = serve(app, environ_of("OPTIONS", "/v1/operations/x"))
    assert (status, body, "Content-Length" in headers) == ("204 No Content", None, False)


def test_header_names_with_underscores_are_those_with_hyphens() -> None:
    """WSGI has one variable for X-Caller and x_caller, so a proxy must drop both names."""
    seen: list[str] = []

    def authenticate(headers: Any) -> None:
        seen.append(headers["x-caller"])

    app = OperationsApp(build().service, authenticate=authenticate)
    for line in ("X-Caller: ann", "x_caller: eve"):
        serve(app, environ_of_wsgiref("GET", "/v1/operations", line))
    assert seen == ["ann", "eve"]


def test_hook_that_needs_a_second_argument_gets_the_environ() -> None:
    """A hook with a second parameter gets the environ, in which a middleware may put a caller."""
    seen: list[str] = []

    def authenticate(headers: Any, environ: Any) -> None:
        seen.append(environ["REMOTE_USER"])

    app = OperationsApp(build().service, authenticate=authenticate)
    serve(app, environ_of("GET", "/v1/operations", REMOTE_USER="ann"))
    assert seen == ["ann"]


def test_query_headers_and_body_are_passed_on() -> None:
    """All parts of a request reach the edge; hooks get header names in lower case."""
    seen: dict[str, str] = {}

    def authenticate(headers: Any) -> str:
        seen.update(headers)
        return "ann"

    app = OperationsApp(build().service, authenticate=authenticate)
    environ = environ_of(
        "POST",
        "/v1/operations/x:wait",
        b"{",
        QUERY_STRING="alt=json",
        CONTENT_TYPE="application/json",
        HTTP_X_SERVER_TIMEOUT="5",
    )
    assert reason(serve(app, environ)[2]) == "MALFORMED_REQUEST"
    kind = {"content-type": "application/json", "content-length": "1"}
    assert seen == {**kind, "x-server-timeout": "5"}


@pytest.mark.parametrize(
    ("length", "body", "status"),
    [
        ("12", b'{"name": ""}', "404"),
        *[(length, b'{"name": ""}', "400") for length in ("5", "13")],
        ("50", b"", "400"),
        *[(length, b"{", "404") for length in ("0", "", None, "0" * 5000)],
        *[(length, b" " * 101, "413") for length in ("101", "9" * 5000)],
        *[(length, b"{}", "400") for length in ("-1", "+2", "٢", "²", "junk")],
    ],
)
def test_body_must_have_its_content_length(length: str | None, body: bytes, status: str) -> None:
    """The body must have the length in the header, within the limit; invalid lengths are refused.

    A truncated body could become another request: an empty one is a start with defaults.
    """
    app = OperationsApp(build().service, max_body=100)
    environ = environ_of("POST", "/v1/operations/x:cancel", body, CONTENT_LENGTH=length)
    found, _, shown = serve(app, environ)
    assert found[:3] == status, shown
    assert environ["wsgi.input"].tell() <= 101
    if length in ("-1", "junk"):
        assert shown["error"]["details"][1]["fieldViolations"][0]["field"] == "Content-Length"


@pytest.mark.parametrize(
    ("length", "size", "status"),
    [
        *[("", 100, "404"), ("", 101, "413"), ("", 10_000, "413")],
        *[("50", 0, "400"), ("50", 2, "400"), ("50", 50, "404"), ("101", 101, "413")],
        ("junk", 2, "400"),
    ],
)
def test_terminated_stream_is_read_without_a_content_length(
    length: str, size: int, status: str
) -> None:
    """If the server marks the end of the stream, as for chunks, no length is needed.

    The stream also ends if the connection breaks, which only a given length reveals.
    """
    app = OperationsApp(build().service, max_body=100)
    environ = environ_of("POST", "/v1/operations/x:cancel", b" " * size, CONTENT_LENGTH=length)
    environ["wsgi.input_terminated"] = True
    assert serve(app, environ)[0][:3] == status
    assert environ["wsgi.input"].tell() <= 101


class Broken(io.BytesIO):
    """A stream whose connection was lost."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise ConnectionResetError("gone")


def test_body_that_breaks_off_gets_400() -> None:
    """A body whose stream fails is the caller's fault, and gets 400."""
    environ = environ_of("POST", "/v1/operations/x:cancel", b"{}")
    environ["wsgi.input"] = Broken()
    status, _, body = serve(OperationsApp(build().service), environ)
    assert (status, reason(body)) == ("400 Bad Request", "MALFORMED_REQUEST")


@pytest.mark.parametrize(
    ("more", "resource"),
    [
        ({}, "operations/ü%2Fb"),
        ({"REQUEST_URI": "/v1/operations/%C3%BC%2Fb?a=b"}, "operations/ü%2Fb"),
        ({"REQUEST_URI": ""}, "operations/ü/b"),
        ({"REQUEST_URI": "/rewritten"}, "operations/ü/b"),
        ({"REQUEST_URI": "http://here/v1/operations/%C3%BC%2Fb"}, "operations/ü/b"),
        ({"SCRIPT_NAME": "/api", "prefix": "/api"}, "operations/ü%2Fb"),
        ({"SCRIPT_NAME": "/\xc3\xbc", "prefix": "/%c3%bc"}, "operations/ü%2Fb"),
        ({"SCRIPT_NAME": "/cut/off"}, "operations/ü%2Fb"),
    ],
)
def test_raw_path_is_read_below_the_mount(more: dict[str, Any], resource: str) -> None:
    """The raw path is used if it equals PATH_INFO once the mount point is removed."""
    path = "/v1/operations/%C3%BC%2Fb"
    environ = environ_of("GET", path)
    environ["REQUEST_URI"] = more.pop("prefix", "") + path
    status, _, body = serve(OperationsApp(build().service), {**environ, **more})
    assert (status[:3], body["error"]["details"][1]["resourceName"]) == ("404", resource)


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    """Bytes that are not UTF-8 are refused in path and query, with or without a raw path."""
    app = OperationsApp(build().service)
    for more in ({}, {"REQUEST_URI": ""}):
        status, _, body = serve(app, environ_of("GET", "/v1/operations/%ff", **more))
        assert (status[:3], reason(body)) == ("400", "MALFORMED_REQUEST")
    environ = environ_of("GET", "/v1/operations", QUERY_STRING="filter=\xff")
    assert serve(app, environ)[0][:3] == "400"


def test_path_info_beyond_latin_1_is_used_unchanged() -> None:
    """Text beyond Latin-1 cannot be undecoded bytes, so the edge uses it unchanged."""
    environ = environ_of("GET", quote("/v1/operations/日"), PATH_INFO="/v1/operations/日")
    body = serve(OperationsApp(build().service), environ)[2]
    assert body["error"]["details"][1]["resourceName"] == "operations/日"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/operations", "200"),
        ("PUT", "/v1/operations", "405"),
        ("GET", "/v1/operations/x", "404"),
        ("GET", "/images", "299"),
        ("POST", "/%zz", "299"),
    ],
)
def test_fallback_gets_paths_that_are_not_served(method: str, path: str, status: str) -> None:
    """The fallback gets every request whose path is not one of the routes, with an unread body."""

    def other(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        assert environ["wsgi.input"].read() == b"{}"
        start_response("299 Other", [])
        return []

    counting = build()
    starts = {"/v1/counts:start": counting.count}
    app = OperationsApp(counting.service, starts=starts, fallback=other)
    assert serve(app, environ_of(method, path, b"{}"))[0][:3] == status


@pytest.mark.parametrize(
    ("options", "asked", "lasts"),
    [
        ({}, None, 20),
        ({}, "21.5s", 20),
        ({}, "7s", 7),
        ({"max_wait": timedelta(seconds=45)}, None, 45),
        ({"max_wait": timedelta(seconds=45)}, "46s", 45),
        ({"max_wait": timedelta(0)}, "7s", 0),
    ],
)
def test_wait_ends_before_servers_stop_the_process(
    options: dict[str, Any], asked: str | None, lasts: float
) -> None:
    """A Wait lasts at most 20 s, or ``max_wait``, since gunicorn kills a busy worker after 30 s."""
    counting, name = begun()
    service: Any = counting.service
    waited = service.wait
    limits = []

    def wait(name: str, timeout: Any, **more: Any) -> Any:
        found = timeout.total_seconds  # a method of a timedelta, a property of a Duration
        limits.append(found() if callable(found) else found)
        return waited(name, timedelta(0), **more)

    service.wait = wait
    body = b"" if asked is None else json.dumps({"timeout": asked}).encode()
    app = OperationsApp(counting.service, **options)
    status, _, reply = serve(app, environ_of("POST", f"/v1/{name}:wait", body))
    assert (status, "done" in reply) == ("200 OK", False)
    assert limits == [lasts]


@pytest.mark.parametrize(
    ("options", "lasts", "lines"),
    [({}, 1, 1), ({"max_wait": timedelta(seconds=45)}, 45, 0), ({"max_wait": timedelta(0)}, 0, 0)],
)
def test_wait_in_a_process_with_one_thread_is_short(
    options: dict[str, Any], lasts: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A wait blocks all other calls of such a process, so it lasts 1 s; a log line says so once."""
    counting, name = begun()
    service: Any = counting.service
    waited, limits = service.wait, []

    def wait(name: str, timeout: timedelta, **more: Any) -> Any:
        limits.append(timeout.total_seconds())
        return waited(name, timedelta(0), **more)

    service.wait = wait
    starts = {"/v1/counts:start": counting.count}
    app = OperationsApp(counting.service, starts=starts, **options)
    alone = {"wsgi.multithread": False}
    for _ in range(2):
        assert "done" not in serve(app, environ_of("POST", f"/v1/{name}:wait", **alone))[2]
    wanted = alone | {"HTTP_PREFER": "wait=50"}
    _, headers, _ = serve(app, environ_of("POST", "/v1/counts:start", b"{}", **wanted))
    assert headers["Preference-Applied"] == f"wait={lasts:g}"
    assert limits[:2] == [lasts, lasts]
    told = [line for line in caplog.messages if "answers one call at a time" in line]
    assert len(told) == lines


@pytest.mark.parametrize("options", [{}, {"max_waiting": 0}, {"max_waiting": 1}])
def test_wait_over_max_waiting_returns_at_once(options: dict[str, Any]) -> None:
    """Waiting calls leave threads for others: three wait by default (spec §4.7, §4.8)."""
    counting, name = begun()
    app = OperationsApp(counting.service, **options)
    waiters = counting.service.edges.waiters
    count = options.get("max_waiting", 3)

    def wait(timeout: str = "50s") -> tuple[str, dict[str, str], Any]:
        body = json.dumps({"timeout": timeout}).encode()
        return serve(app, environ_of("POST", f"/v1/{name}:wait", body))

    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(wait) for _ in range(count)]
        until(lambda: waiters.open, lambda number: number == count)
        assert wait()[::2] == ("200 OK", {"name": name})
        assert reason(wait("-1s")[2]) == "INVALID_TIMEOUT"
        counting.service.delete(name)
        assert {call.result()[0] for call in waiting} <= {"404 Not Found"}
    assert waiters.open == 0


def test_wait_and_the_wait_for_bytes_end_before_servers_stop_the_process() -> None:
    """The reply to a Wait may wait for bytes too; gunicorn kills a sync worker after 30 s."""
    app = OperationsApp(build().service)
    replies = app.edge.service.edges.replies
    assert app.edge.max_wait.total_seconds() + replies.WAIT_SECONDS <= 27
    assert (
        replies.WAIT_SECONDS > replies.SLOW_SECONDS
    )  # a slow reader is cut off before the next reply is refused


def test_wait_with_invalid_timeout_is_refused() -> None:
    """The limit of the edge does not replace a timeout that is not valid (spec §4.2)."""
    counting, name = begun()
    environ = environ_of("POST", f"/v1/{name}:wait", b'{"timeout": "-1s"}')
    status, _, reply = serve(OperationsApp(counting.service), environ)
    assert (status, reason(reply)) == ("400 Bad Request", "INVALID_TIMEOUT")


def test_longest_wait_of_service_bounds_that_of_edge() -> None:
    """The edge's ``max_wait`` cannot exceed that of the service."""
    service = build(max_wait=timedelta(seconds=5)).service
    given: list[Any] = [{}, {"max_wait": timedelta(seconds=45)}]
    for options in given:
        assert OperationsApp(service, **options).edge.max_wait == timedelta(seconds=5)
    with pytest.raises(DeclarationError, match=r"^max_wait: must be a timedelta from zero"):
        OperationsApp(service, max_wait=-timedelta(seconds=1))
    with pytest.raises(DeclarationError, match=r"^max_waiting: must be a whole number from 0, got"):
        OperationsApp(service, max_waiting=-1)
