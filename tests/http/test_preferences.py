"""``Prefer`` on starts, and the status 202 (RFC 7240, RFC 9110 §15.3.3, spec §9.8)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import attrs
import httpx
import pytest

import lro
from lro import asgi, wsgi
from lro._http.requests import NO_PREFERENCES, Preferences, read_preferences
from lro.executors.threads import ThreadExecutor
from lro.http import OperationsEdge, Start, on_loop
from lro.stores.memory import MemoryStore
from lro_client import Client
from tests.http import servers
from tests.http.counting_service import CountService, ask, build, headers_of
from tests.http.test_asgi import GONE, Line, part, serve
from tests.http.test_asgi import scope_of as asgi_scope
from tests.waiting import until, until_async
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

PATH = "/v1/things:count"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        # Examples of RFC 7240 §1, §2, §4.1 and §4.3, and of its errata.
        ("respond-async, wait=10", Preferences(10, True)),
        ("respond-async, wait=100, handling=lenient", Preferences(100, True)),
        ("return=minimal", NO_PREFERENCES),
        ("foo; some-parameter, wait=3", Preferences(3)),
        ('foo; some-parameter=""; x, wait=4', Preferences(4)),
        ('return=minimal; foo="some parameter", wait=6', Preferences(6)),
        # Letter case, spaces, quotes, parameters, empty values.
        ("Respond-Async , WAIT = 7", Preferences(7, True)),
        ('wait="8"', Preferences(8)),
        ('wait="\\8"', Preferences(8)),
        ('wait=9; exact="a, wait=1"; ;', Preferences(9)),
        ('respond-async="";x=y,,\t,wait=0012', Preferences(12, True)),
        ('foo="a, wait=3", wait=4', Preferences(4)),
        ("wait=0", Preferences(0)),
        # Of several values, the first is used.
        ("wait=1, wait=2, respond-async, respond-async=no", Preferences(1, True)),
        ("wait=never, wait=2", NO_PREFERENCES),
        # Malformed preferences are ignored.
        *[(header, NO_PREFERENCES) for header in ("", "wait", "wait=", "wait=1 2", "wait=\u0663")],
        *[(header, NO_PREFERENCES) for header in ('wait="3', "respond-async=yes")],
        ('=, ;, wait="1"2, (x), wait=5', Preferences(5)),
        ("wait=" + "9" * 10_000, Preferences(999_999_999)),
    ],
)
def test_prefer_header_is_read_as_the_rfc_says(header: str, wanted: Preferences) -> None:
    """Letter case and quotes do not matter; of several values, the first is used."""
    assert read_preferences(header) == wanted


@contextlib.contextmanager
def serving_work(kind: str, *, accepted: bool = False, **options: Any) -> Iterator[Any]:
    """Serve work that ends once ``end`` is set; yield the service and ways to call it.

    Work with a size ends as soon as a caller waits for the work.
    """
    service = lro.Service(MemoryStore(), ThreadExecutor(4), **options)
    end = threading.Event()

    @service.method("acme.v1.Works.Do", path="/v1/works:do")
    def do(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        while not end.is_set() and not (request.size and service.edges.waiters.waits):
            job.sleep(0.001)
        return WorkResponse()

    made: Callable[..., Any] = asgi.OperationsApp if kind == "asgi" else wsgi.OperationsApp
    inside: Any = servers.asgi_inside if kind == "asgi" else servers.wsgi_inside
    with service, inside(made(service, starts=True, accepted=accepted)) as call:

        def post(prefer: str | None = None, body: Any = None) -> httpx.Response:
            headers = {} if prefer is None else {"prefer": prefer}
            reply: httpx.Response = call("POST", "/v1/works:do", json=body or {}, headers=headers)
            return reply

        try:
            yield SimpleNamespace(service=service, post=post, end=end, call=call)
        finally:
            end.set()


KINDS = pytest.mark.parametrize("kind", ["asgi", "wsgi"])


@KINDS
@pytest.mark.parametrize(
    ("accepted", "prefer", "status", "applied"),
    [
        (False, None, 200, None),
        (True, None, 202, None),
        (False, "respond-async", 200, "respond-async"),
        (True, "respond-async", 202, "respond-async"),
        (False, "wait=0", 200, "wait=0"),
        (True, "wait=0", 202, "wait=0"),
        (False, "respond-async, wait=0", 202, "respond-async, wait=0"),
        (False, "wait=x, return=minimal", 200, None),
        (True, "wait=x", 202, None),
    ],
)
def test_start_that_is_not_done_is_answered_202(
    kind: str, accepted: bool, prefer: str | None, status: int, applied: str | None
) -> None:
    """A start that is not done gets 202 and its path, if the edge or the caller asks for 202."""
    with serving_work(kind, accepted=accepted) as at:
        reply = at.post(prefer)
        assert (reply.status_code, reply.headers.get("preference-applied")) == (status, applied)
        name = reply.json()["name"]
        assert reply.headers["operation-id"] == name.rpartition("/")[2]
        assert reply.headers["retry-after"] == "1"
        location = f"/v1/{name}" if status == 202 else None
        assert reply.headers.get("location") == location
        assert at.call("GET", f"/v1/{name}").json()["name"] == name


@KINDS
@pytest.mark.parametrize("prefer", ["wait=60", "respond-async, wait=60", "wait=99999999999"])
def test_start_that_prefers_to_wait_returns_the_finished_operation(kind: str, prefer: str) -> None:
    """One call starts the work and waits for it, at most for the longest wait of the edge."""
    with serving_work(kind, accepted=True) as at:
        reply = at.post(prefer, {"size": 1})
        assert (reply.status_code, reply.json()["done"]) == (200, True)
        applied = {"asgi": "wait=60", "wsgi": "wait=20"}
        assert reply.headers["preference-applied"] == applied[kind]
        assert not {"location", "retry-after"} & {*reply.headers}
        assert reply.headers["operation-id"]


@KINDS
def test_start_that_prefers_to_wait_returns_at_the_limit(kind: str) -> None:
    """A start returns after the longest wait, which Preference-Applied states; work continues."""
    with serving_work(kind, max_wait=timedelta(milliseconds=1)) as at:
        reply = at.post("respond-async, wait=5")
        assert (reply.status_code, "done" in reply.json()) == (202, False)
        assert reply.headers["preference-applied"] == "respond-async, wait=0"


def test_operation_that_is_done_at_once_is_answered_200() -> None:
    """An operation that is already done gets 200; the result of a dry run has no path."""
    with serving_work("asgi", accepted=True) as at:
        at.end.set()
        reply = at.post("respond-async, wait=60", {"validateOnly": True})
        assert (reply.status_code, reply.json()["done"]) == (200, True)
        assert reply.headers["preference-applied"] == "wait=60"
        assert not {"location", "operation-id"} & {*reply.headers}


def refuse_wait(caller: str, verb: str, name: str) -> bool:
    return verb != "WaitOperation"


def fail_at_wait(caller: str, verb: str, name: str) -> bool:
    if verb == "WaitOperation":
        raise KeyError("a defect")
    return True


@KINDS
@pytest.mark.parametrize(
    "options",
    [{"verbs": ["CancelOperation"]}, {"authorize": refuse_wait}, {"authorize": fail_at_wait}],
    ids=["switched off", "refused", "failed"],
)
def test_start_of_a_caller_who_may_not_wait_returns_at_once(
    kind: str, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller who may not wait gets the present state; unexpected errors of hooks are logged."""
    with serving_work(kind, **options) as at, caplog.at_level(logging.ERROR):
        reply = at.post("respond-async, wait=60", {"size": 1})
        assert (reply.status_code, "done" in reply.json()) == (202, False)
        assert reply.headers["preference-applied"] == "respond-async"
    assert ("KeyError" in caplog.text) == (options.get("authorize") is fail_at_wait)


@KINDS
@pytest.mark.parametrize("why", ["too many wait", "the service stops"])
def test_start_returns_at_once_if_no_further_wait_is_allowed(kind: str, why: str) -> None:
    """If no further wait is allowed, the reply has the present state, and is no error."""
    with serving_work(kind, limits=lro.Limits(waits=1)) as at, ThreadPoolExecutor(1) as pool:
        if why == "the service stops":
            at.service.edges.end_waits()
        else:
            waiting = pool.submit(at.service.wait, at.post().json()["name"])
            until(lambda: at.service.edges.waiters.waits)
        reply = at.post("wait=60")
        assert (reply.status_code, "done" in reply.json()) == (200, False)
        assert "preference-applied" not in reply.headers
        at.end.set()
        assert why == "the service stops" or waiting.result(60).done


def test_starts_that_wait_on_an_event_loop_use_no_thread(counting: CountService) -> None:
    """Starts that wait on an event loop are coroutines, so threads do not limit their number."""
    app = asgi.OperationsApp(counting.service, starts={PATH: counting.count})

    async def start_many() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            headers = {"prefer": "wait=60"}
            calls = [client.post(PATH, json={"steps": 1}, headers=headers) for _ in range(200)]
            replies = asyncio.gather(*calls)
            await until_async(
                lambda: counting.service.edges.waiters.waiting, lambda found: found == 200
            )
            for one in counting.service.list(
                lro.wire.ListOperationsRequest(page_size=500)
            ).operations:
                counting.finish(one.name)
            return await replies

    assert all(reply.json()["done"] for reply in asyncio.run(start_many()))
    assert counting.service.edges.waiters.waits == 0


def test_caller_who_leaves_ends_the_wait_and_not_the_operation(counting: CountService) -> None:
    """If the caller disconnects, the wait ends without a reply, but the operation continues."""
    app = asgi.OperationsApp(counting.service, starts={PATH: counting.count})

    async def leave() -> Any:
        await until_async(lambda: counting.service.edges.waiters.waiting)
        return GONE

    line = Line([part(b"{}")], leave)
    asyncio.run(app(scope_of(PATH, headers=[(b"prefer", b"wait=60")]), line.receive, line.send))
    (operation,) = counting.service.list(lro.wire.ListOperationsRequest()).operations
    assert (line.sent, operation.done, counting.service.edges.waiters.waits) == ([], False, 0)
    counting.finish(operation.name)


def test_start_cancelled_by_the_server_ends_its_wait(counting: CountService) -> None:
    """If the server cancels a start, its wait ends, and no thread continues the wait."""
    edge = OperationsEdge(counting.service, starts={PATH: counting.count})

    async def cancel() -> None:
        asked = attrs.evolve(ask("POST", PATH, b"{}"), headers={"prefer": "wait=60"})
        call = asyncio.create_task(on_loop(edge.exchange(asked)))
        await until_async(lambda: counting.service.edges.waiters.waiting)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancel())
    (operation,) = counting.service.list(lro.wire.ListOperationsRequest()).operations
    assert (operation.done, counting.service.edges.waiters.waits) == (False, 0)
    counting.finish(operation.name)


scope_of = functools.partial(asgi_scope, "POST")


@pytest.mark.parametrize(
    ("mount", "scope"),
    [
        ("", scope_of(PATH)),
        ("/api", scope_of("/api" + PATH, root_path="/api")),
        # A proxy has removed the part before the mount point, or the whole mount point.
        ("/api", scope_of(PATH, root_path="/api")),
        ("/api", scope_of(PATH, root_path="/api/")),
        ("/out/in", scope_of("/in" + PATH, root_path="/out/in", app_root_path="/out")),
        ("/out/in", scope_of("/out/in" + PATH, root_path="/out/in", app_root_path="/out")),
        # Names that need escapes, and one that a browser would take for a host.
        (
            "/a%20b",
            {**scope_of("/a b" + PATH, root_path="/a b"), "raw_path": b"/a%20b/v1/things:count"},
        ),
        ("/%C3%BC", scope_of(PATH, root_path="/ü")),
        ("/evil.example", scope_of(PATH, root_path="//evil.example")),
    ],
)
def test_location_has_the_asgi_mount(mount: str, scope: Any) -> None:
    """Location has the mount point, which servers pass as ``root_path`` and ``app_root_path``."""
    counting = build()
    app = asgi.OperationsApp(counting.service, starts={PATH: counting.count}, accepted=True)
    status, headers, body = serve(app, scope, part(b"{}")).reply
    assert status == 202, body
    assert headers[b"location"].decode() == f"{mount}/v1/{body['name']}"


@pytest.mark.parametrize(
    ("mount", "environ"),
    [
        ("", {}),
        ("/api", {"SCRIPT_NAME": "/api"}),
        ("/api", {"SCRIPT_NAME": "/api", "RAW_URI": "/api/v1/things:count"}),
        ("/api", {"SCRIPT_NAME": "/api", "RAW_URI": "/v1/things:count"}),
        ("/%C3%BC", {"SCRIPT_NAME": "/ü".encode().decode("latin-1")}),
    ],
)
def test_location_has_the_wsgi_script_name(mount: str, environ: Mapping[str, str]) -> None:
    """Under WSGI, Location begins with SCRIPT_NAME, whatever the raw path is."""
    counting = build()
    app = wsgi.OperationsApp(counting.service, starts={PATH: counting.count}, accepted=True)
    made = servers.environ_of_wsgiref("POST", PATH) | dict(environ)
    begun: list[Any] = []
    body = b"".join(app(made, lambda *args: begun.append(args)))
    (status, headers), name = begun[0], json.loads(body)["name"]
    assert status == "202 Accepted"
    assert dict(headers)["Location"] == f"{mount}/v1/{name}"


def test_mount_is_unknown_if_the_path_was_rewritten() -> None:
    scope = scope_of("/api", root_path="/api")
    asked = asgi.request_of(scope, asgi.raw_path(scope))
    assert (asked.path, asked.mount(asked)) == ("/", None)
    asked = wsgi.request_of(servers.environ_of_wsgiref("POST", PATH))
    elsewhere = attrs.evolve(asked, path="/v1/other")
    assert (asked.mount(asked), asked.mount(elsewhere)) == ("", None)


def test_location_has_the_parent(counting: CountService) -> None:
    """Location has the percent-encoded parent; if its path is not served, there is no Location."""
    for parent, parents in (("projects/a b", ["projects/*"]), ("shelves/a", [])):
        start = Start(counting.count, parent=lambda request, parent=parent: parent)
        options: Any = {"accepted": True, "parents": parents}
        edge = OperationsEdge(counting.service, starts={PATH: start}, **options)
        reply = edge.handle(ask("POST", PATH, {}))
        headers = headers_of(reply)
        place = f"/v1/projects/a%20b/operations/{headers['operation-id']}" if parents else None
        assert (reply.status, headers.get("location")) == (202, place)


def test_our_client_accepts_202() -> None:
    """The client accepts a 202, and preferences in its own headers."""
    with serving_work("wsgi", accepted=True) as at:
        wire = httpx.WSGITransport(wsgi.OperationsApp(at.service, starts=True, accepted=True))
        for prefer in ("respond-async", "wait=60"):
            headers = {"prefer": prefer}
            with (
                httpx.Client(transport=wire, base_url="http://here", headers=headers) as http,
                Client(http=http) as client,
            ):
                started = client.start("/v1/works:do", WorkRequest(size=1), response=WorkResponse)
                assert started.done == (prefer != "respond-async")
                assert started.result(timeout=60) == WorkResponse()
