"""The console on real servers: its files, its endpoints, and the calls that its API allows."""

from __future__ import annotations

import gzip
import importlib.metadata
import logging
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import attrs
import httpx
import pytest

import lro
from lro import asgi, wsgi
from lro.console import Console, ConsoleEdge, ConsoleOptions, page_files
from lro.errors import DeclarationError, Unavailable
from lro.http import VERBS, HttpRequest
from lro.stores.sqlite import SQLiteStore
from tests.console.serving import (
    PATIENCE,
    SECURE,
    SERVERS,
    authenticate,
    console,
    counting,
    cutting_proxy,
)
from tests.engine.engine_parts import once, raising
from tests.http.servers import HOST, uvicorn_serving, waitress_serving
from tests.integrations.counting import ANN, BOB, Counting, CountRequest

NAMED: Any = {"authenticate": authenticate}


@pytest.fixture
def made() -> Iterator[Counting]:
    """Return a service whose operations wait until the test sets ``go``."""
    found = counting()
    yield found
    found.go.set()
    found.service.close()


def hashed(name: str) -> str:
    """Return the name under which a file is served, which includes a hash."""
    stem, _, suffix = name.rpartition(".")
    pattern = rf"/{stem}\.[0-9a-f]{{16}}\.{suffix}"
    (found,) = (path for path in page_files() if re.fullmatch(pattern, path))
    return found[1:]


@pytest.mark.parametrize("kind", SERVERS)
def test_page_and_files_come_with_their_headers(kind: str) -> None:
    """The console's page is revalidated at each load; its other files are cached for a year."""
    with console(kind) as client:
        page = client.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.headers["cache-control"] == "no-cache"
        for name in ("console.js", "console.css"):
            assert f'"{hashed(name)}"' in page.text
            file = client.get(f"/{hashed(name)}")
            assert file.status_code == 200
            assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert file.headers["content-encoding"] == "gzip"
            assert dict(SECURE).items() <= dict(file.headers).items()
        assert SECURE.items() <= dict(page.headers).items()
        assert "camera=()" in page.headers["permissions-policy"]


def test_unchanged_page_is_answered_with_304(kind: str) -> None:
    """A request with the page's ETag gets 304; the page's headers name who may frame the page."""
    with console(kind, frame=("self", "https://portal.example.com")) as client:
        policy = client.get("/").headers["content-security-policy"]
        assert "frame-ancestors 'self' https://portal.example.com;" in policy
        tag = client.get("/").headers["etag"]
        again = client.get("/", headers={"if-none-match": f'"x",{tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert client.get("/", headers={"if-none-match": '"x"'}).status_code == 200


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        *[(accepted, True) for accepted in ("gzip", "br, GZIP;q=0.5")],
        *[(accepted, False) for accepted in ("gzip;q=0", "gzip; q=0.0", "br", "")],
    ],
)
def test_file_is_compressed_if_gzip_is_accepted(accepted: str, packed: bool) -> None:
    file = page_files()["/"]
    reply = file.reply({"accept-encoding": accepted})
    assert (("content-encoding", "gzip") in reply.headers) is packed
    assert (gzip.decompress(reply.body) if packed else reply.body) == file.content
    assert ("vary", "accept-encoding") in reply.headers


def test_unknown_paths_and_methods_are_refused(kind: str) -> None:
    """A console's errors have a message and security headers; HEAD and OPTIONS work as usual."""
    with console(kind) as client:
        head = client.head("/session")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 100
        options = client.options("/")
        assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
        for method, path, status in (
            ("POST", "/", 405),
            ("DELETE", "/session", 405),
            ("GET", "/console.0000000000000000.js", 404),
            ("GET", "/v1/elsewhere", 404),
            ("GET", "/%zz", 400),
        ):
            refused = client.request(method, path)
            assert (refused.status_code, path) == (status, path)
            assert refused.json()["error"]["message"]
            assert SECURE.items() <= dict(refused.headers).items()


def test_session_lists_versions_verbs_and_methods(kind: str) -> None:
    """The session lists versions, verbs, and methods with the fields that filters may use."""
    links = {"trace": "https://t.example/{trace_id}"}
    with console(kind, **NAMED, title="Images", links=links) as c:
        assert c.get("/session").status_code == 401
        found = c.get("/session", headers=ANN).json()
        listed = c.get(f"/{found['api']}/operations", headers=ANN)
    assert listed.json() == {}
    watches = kind != "waitress"
    assert found["watches"] is watches
    assert ("WatchOperations" in found["verbs"]) is watches
    (count,) = (one for one in found["methods"] if one["name"] == "acme.v1.Things.Count")
    assert count == {
        "name": "acme.v1.Things.Count",
        "request": "acme.v1.CountRequest",
        "response": "acme.v1.CountResponse",
        "metadata": "acme.v1.CountMetadata",
        "path": "/v1/things:count",
        "concurrency": None,
        "rate": None,
        "timeLimit": None,
        "keepFor": "2592000s",
        "attempts": 1,
        "begins": "at least once",
        "paused": None,
        "fields": [
            {"path": "metadata.percent", "type": "int"},
            {"path": "metadata.phase", "type": "enum"},
            {"path": "response.total", "type": "int"},
            {"path": "response.quality", "type": "enum"},
        ],
    }
    assert found.pop("version") == importlib.metadata.version("lro")
    del found["methods"], found["verbs"], found["watches"]
    assert found == {
        "title": "Images",
        "caller": "ann",
        "api": "v1",
        "parents": [""],
        "actions": ["cancel", "delete"],
        "statistics": True,
        "cancelSupport": "COOPERATIVE",
        "refreshSeconds": 5,
        "links": links,
    }


@lro.message("acme.v1.Deep")
@attrs.frozen
class Deep:
    """A message that has fields of many kinds."""

    below: Deep | None = None
    labels: dict[str, str] = attrs.field(factory=dict)
    many: tuple[Deep, ...] = ()
    bag: lro.Struct | None = None


_OWN: Any = {f"b{n}": attrs.field(default=None, type="Wide | None") for n in range(60)}
Wide = lro.message("acme.v1.Wide")(attrs.make_class("Wide", _OWN, bases=(Deep,), frozen=True))


def test_method_without_a_path_shows_none_and_limits_for_each_key_say_so() -> None:
    """The session has the path of the option only, and the limits of a method with a key."""
    made = counting()
    limits: Any = {"concurrency": 1, "rate": (10, timedelta(minutes=1))}

    @made.service.method("acme.v1.Deeps.Turn", concurrency_key=str, **limits)
    def turn(request: lro.Empty) -> lro.Empty: ...

    with console("uvicorn", made) as client:
        methods = client.get("/session").json()["methods"]
    (shown,) = (one for one in methods if one["name"] == "acme.v1.Deeps.Turn")
    assert (shown["path"], shown["concurrency"]) == (None, "1 for each key")
    assert shown["rate"] == "10 in 60s for each key"


def test_fields_of_a_deep_message_are_bounded() -> None:
    """Fields of a recursive message are listed a few levels deep, and at most 100 in total."""
    made = counting()
    options: Any = {"time_limit": timedelta(seconds=1.5), "concurrency": 2}
    classes: Any = {"response": Wide, "metadata": lro.Struct}

    @made.service.method("acme.v1.Deeps.Dig", **classes, **options)
    def dig_in(request: lro.Empty) -> Any: ...

    with console("uvicorn", made) as client:
        methods = client.get("/session").json()["methods"]
    (dig,) = (one for one in methods if one["name"] == "acme.v1.Deeps.Dig")
    assert (dig["timeLimit"], dig["concurrency"]) == ("1.500s", "2")
    assert {"path": "response.below.labels", "type": "map of text"} in dig["fields"]
    assert {"path": "response.bag", "type": "struct"} in dig["fields"]
    assert len(dig["fields"]) <= 100


def test_operations_are_served_below_the_console(kind: str, made: Counting) -> None:
    """The page can list, read, cancel, await and delete an operation below its own path."""
    name = made.count.start(CountRequest(steps=-1), caller="ann").name
    with console(kind, made, **NAMED) as client:
        client.headers.update(ANN)
        assert [one["name"] for one in client.get("/v1/operations").json()["operations"]] == [name]
        asked = {"names": [name]}
        full = client.post("/v1/operations:batchGet?view=FULL", json=asked).json()
        assert full["operations"][0]["description"]["state"] == "IN_PROGRESS"
        assert client.post(f"/v1/{name}:cancel", json={}).status_code == 200
        made.go.set()
        assert client.post(f"/v1/{name}:wait", json={"timeout": "20s"}).json()["done"]
        assert client.delete(f"/v1/{name}").status_code == 200
        assert client.get(f"/v1/{name}").status_code == 404


def test_paused_method_is_shown_with_the_time(kind: str, made: Counting) -> None:
    """The session has the time of a method's pause, or no time if the store is unavailable."""
    made.service.pause("acme.v1.Things.Count")
    with console(kind, made) as client:
        (since,) = made.service.paused().values()
        shown = client.get("/session").json()["methods"][0]["paused"]
        assert datetime.fromisoformat(shown) == since
        store: Any = made.service.store
        once(store, "paused", raising(Unavailable("away")))
        assert client.get("/session").json()["methods"][0]["paused"] is None


def test_actions_are_logged_with_the_caller(
    made: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    """Each action is logged with the caller's name, which cannot add lines to the log."""
    names = [made.count.start(CountRequest(steps=-1)).name for _ in range(2)]
    with (
        caplog.at_level(logging.INFO, "lro"),
        console("uvicorn", made, authenticate=lambda headers: headers.get("x-who")) as client,
    ):
        named: Any = {"x-who": b"ann\xa0"}
        client.post(f"/v1/{names[0]}:cancel", headers=named)
        client.delete(f"/v1/{names[1]}")
    lines = [one.getMessage() for one in caplog.records if "in the console" in one.getMessage()]
    assert lines == [
        f"{names[0]}: 'ann\\xa0' asked in the console to cancel it",
        f"{names[1]}: a caller without a name deleted it in the console",
    ]


def test_rerun_is_offered_and_logged_if_the_service_offers_it(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A rerun is offered and logged if the service has the verb and the console allows it."""
    made = counting(verbs=(*VERBS, "RerunOperation"))
    name = made.count.start(CountRequest(steps=-1)).name
    with caplog.at_level(logging.INFO, "lro"), console(kind, made) as client:
        assert client.get("/session").json()["actions"] == ["cancel", "delete", "rerun"]
        refused = client.post(f"/v1/{name}:rerun", json={})
        assert (refused.status_code, "in progress" in refused.text) == (400, True)
        assert not [one for one in caplog.records if "again in the console" in one.getMessage()]
        made.service.reporter(name).fail(lro.Status(lro.Code.INTERNAL, "why"))
        again = client.post(f"/v1/{name}:rerun", json={}).json()["name"]
        assert client.get(f"/v1/{again}").status_code == 200
        (line,) = [one for one in caplog.records if "again in the console" in one.getMessage()]
        assert line.getMessage().startswith(f"{name}: a caller without a name started it")
    made = counting(verbs=(*VERBS, "RerunOperation"))
    with console(kind, made, actions=("cancel",)) as client:
        assert client.post(f"/v1/{name}:rerun", json={}).status_code == 403


COUNT = "acme.v1.Things.Count"
PAUSING = (*VERBS, "PauseMethod")


def test_methods_are_paused_and_resumed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A caller whom ``authorize`` allows can pause and resume a method; each call is logged."""
    asked = []

    def authorize(caller: str, verb: str, name: str) -> bool:
        asked.append((caller, verb, name))
        return verb != "PauseMethod" or caller == "ann"

    made = counting(verbs=PAUSING, authorize=authorize)
    with caplog.at_level(logging.INFO, "lro"), console(kind, made, **NAMED) as client:
        assert client.get("/session", headers=ANN).json()["actions"][-1] == "pause"
        assert client.get("/tally", headers=ANN).json()["paused"] == []
        assert client.post("/pause", json={"method": COUNT}).status_code == 401
        assert client.post("/pause", json={"method": COUNT}, headers=BOB).status_code == 403
        assert made.service.paused() == {}
        assert client.post("/pause", json={"method": COUNT}, headers=ANN).json() == {}
        assert ("ann", "PauseMethod", COUNT) in asked
        since = made.service.paused()[COUNT]
        (shown,) = client.get("/tally", headers=ANN).json()["paused"]
        assert shown["method"] == COUNT
        assert datetime.fromisoformat(shown["since"]) == since
        assert client.post("/resume", json={"method": COUNT}, headers=BOB).status_code == 403
        assert client.post("/resume", json={"method": COUNT}, headers=ANN).json() == {}
        assert made.service.paused() == {}
        assert client.get("/tally", headers=ANN).json()["paused"] == []
    lines = [one.getMessage() for one in caplog.records if "in the console" in one.getMessage()]
    assert lines == [f"{COUNT}: 'ann' {what} it in the console" for what in ("paused", "resumed")]


def test_wrong_pause_is_refused(kind: str) -> None:
    """An invalid pause request is refused with the reason and the usual headers."""
    with console(kind, counting(verbs=PAUSING)) as client:
        for body, said in (
            ({"method": "acme.v1.Things.Cuont"}, "is not declared by this service"),
            ({"method": 7}, "method: must be text"),
            ({}, "is not declared by this service"),
            ({"method": COUNT, "for": "1h"}, "for: is not a field of this call"),
            ([], "body: "),
        ):
            refused = client.post("/pause", json=body)
            assert (refused.status_code, said in refused.text) == (400, True), refused.text
            assert SECURE.items() <= dict(refused.headers).items()
        assert client.get("/pause").status_code == 405
        assert client.get("/pause").headers["allow"] == "OPTIONS, POST"
        assert client.options("/resume").headers["allow"] == "OPTIONS, POST"
        assert client.get("/tally").json()["paused"] == []


def test_pause_needs_both_service_and_console(made: Counting) -> None:
    """A pause needs the service's verb, the console's action, and the consent of ``allow``."""
    wanted: Any = {"method": COUNT}
    with console("uvicorn", made) as client:
        assert "pause" not in client.get("/session").json()["actions"]
        assert client.post("/pause", json=wanted).status_code == 501
    with console("uvicorn", counting(verbs=PAUSING), actions=("cancel",)) as client:
        refused = client.post("/pause", json=wanted)
        assert (refused.status_code, "does not pause methods" in refused.text) == (403, True)
    asked = []

    def allow(caller: str, action: str, name: str) -> bool:
        asked.append((action, name))
        return not name

    with console("uvicorn", counting(verbs=PAUSING), actions=("pause",), allow=allow) as client:
        assert client.get("/session").json()["actions"] == ["pause"]
        assert client.post("/resume", json=wanted).status_code == 403
    assert asked == [("pause", ""), ("pause", COUNT)]


def test_read_only_console_refuses_actions_in_its_api(kind: str, made: Counting) -> None:
    """A console without actions has no buttons, and refuses the calls of the actions."""
    name = made.count.start(CountRequest(steps=-1)).name
    with console(kind, made, actions=()) as client:
        session = client.get("/session").json()
        assert session["actions"] == []
        assert not {"CancelOperation", "DeleteOperation"} & set(session["verbs"])
        for refused in (client.post(f"/v1/{name}:cancel"), client.delete(f"/v1/{name}")):
            assert refused.status_code == 403
            assert "this console does not" in refused.json()["error"]["message"]
        assert "done" not in client.get(f"/v1/{name}").json()


def test_allow_hook_decides_for_each_caller_and_operation(made: Counting) -> None:
    """The hook ``allow`` decides on each call and each button; for a button, the name is empty."""
    mine, other = (made.count.start(CountRequest(steps=-1)).name for _ in range(2))
    asked = []

    async def allow(caller: str, action: str, name: str) -> bool:
        asked.append((caller, action, name))
        return caller == "ann" and action == "cancel" and name in ("", mine)

    with console("uvicorn", made, **NAMED, allow=allow) as client:
        assert client.get("/session", headers=ANN).json()["actions"] == ["cancel"]
        assert client.get("/session", headers=BOB).json()["actions"] == []
        assert asked[0] == ("ann", "cancel", "")
        assert client.post(f"/v1/{other}:cancel", headers=ANN).status_code == 403
        assert client.post(f"/v1/{mine}:cancel", headers=BOB).status_code == 403
        assert client.delete(f"/v1/{mine}", headers=ANN).status_code == 403
        assert client.post(f"/v1/{mine}:cancel", headers=ANN).status_code == 200


def hide(operation: dict[str, Any]) -> dict[str, Any]:
    """Remove the percentage from the metadata of the argument, which is changed in place."""
    operation.get("metadata", {}).pop("percent", None)
    return operation


def test_every_call_is_redacted(made: Counting) -> None:
    """Replies of Get, List, BatchGet, Wait and Watch are redacted; the record is not changed."""
    made.count.start(CountRequest(steps=3)).result(timeout=20)
    found = made.service.list(lro.wire.ListOperationsRequest("operations")).operations[0]
    with console("uvicorn", made, redact=hide) as client:
        path, names = f"/v1/{found.name}", {"names": [found.name]}
        texts = [
            client.get(path).text,
            client.get("/v1/operations").text,
            client.post("/v1/operations:batchGet", json=names).text,
            client.get(f"{path}?view=FULL").text,
            client.post(f"{path}:wait", json={}).text,
            client.post("/v1/operations:watch", json=names).text,
        ]
    assert '"method":"acme.' in texts[3]
    for text in texts:
        assert found.name in text
        assert "percent" not in text
    again = made.service.get(found.name)
    assert again.metadata is not None
    assert again.metadata.payload == {"percent": 50}


@pytest.mark.parametrize("wrong", [None, "raises"])
def test_redaction_that_fails_shows_nothing(wrong: Any, made: Counting) -> None:
    """If the ``redact`` hook fails, a call fails with 500, and a stream omits the operation."""
    made.count.start(CountRequest(steps=3)).result(timeout=20)
    found = made.service.list(lro.wire.ListOperationsRequest("operations")).operations[0]

    def redact(operation: dict[str, Any]) -> Any:
        if wrong == "raises":
            raise ValueError(operation["name"])
        return wrong

    with console("uvicorn", made, redact=redact) as client:
        for call in (client.get(f"/v1/{found.name}"), client.get("/v1/operations")):
            assert call.status_code == 500
            assert "percent" not in call.text
        assert "data:" not in client.post("/v1/operations:watch", json={"names": [found.name]}).text


def test_session_has_the_parents_that_the_caller_may_list(kind: str) -> None:
    """The session lists the parents that the caller may list, except patterns."""

    def authorize(caller: str, verb: str, name: str) -> bool:
        return caller == "ann" and name != "projects/b"

    made = counting(authorize=authorize)
    with console(kind, made, **NAMED, parents=["projects/a", "projects/b", "shelves/*"]) as client:
        assert client.get("/session", headers=ANN).json()["parents"] == ["", "projects/a"]
        assert client.get("/session", headers=BOB).status_code == 403
        assert client.get("/v1/projects/a/operations", headers=ANN).json() == {}
        assert client.get("/v1/shelves/x/operations", headers=ANN).json() == {}


def test_console_has_buttons_only_for_verbs_of_the_service() -> None:
    """The console has no buttons for verbs that the service does not offer."""
    with console("uvicorn", counting(verbs=("ListOperations", "CancelOperation"))) as client:
        session = client.get("/session").json()
        assert session["actions"] == ["cancel"]
        assert session["verbs"] == ["GetOperation", "ListOperations", "CancelOperation"]
        assert not session["watches"]


def test_cross_site_requests_are_refused(kind: str) -> None:
    """Cross-site requests are refused unless their origin is trusted."""
    made = counting(verbs=PAUSING)
    name = made.count.start(CountRequest(steps=-1)).name
    with console(kind, made, **NAMED, trusted_origins=["https://portal.example.com"]) as client:
        client.headers.update(ANN)
        for headers in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site", "origin": "https://evil.example"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
        ):
            for path in (f"/v1/{name}:cancel", "/v1/operations:batchGet"):
                refused = client.post(path, headers=headers)
                assert refused.status_code == 403
                assert "CROSS_SITE_REQUEST" in refused.text
            assert client.delete(f"/v1/{name}", headers=headers).status_code == 403
            refused = client.post("/pause", headers=headers, json={"method": COUNT})
            assert (refused.status_code, "CROSS_SITE_REQUEST" in refused.text) == (403, True)
        trusted = {"sec-fetch-site": "cross-site", "origin": "https://portal.example.com"}
        assert client.post(f"/v1/{name}:cancel", headers=trusted).status_code == 200
        assert client.post("/pause", headers=trusted, json={"method": COUNT}).status_code == 200


@pytest.mark.parametrize("kind", SERVERS)
def test_links_work_below_a_mount_and_a_proxy(kind: str) -> None:
    """The page's relative links work below a mount and a proxy, with or without a final slash."""
    with (
        console(kind, path="/in/console", **NAMED) as direct,
        cutting_proxy(direct.base_url.port or 0, "/a/b") as port,
        httpx.Client(base_url=f"http://{HOST}:{port}", timeout=PATIENCE) as client,
    ):
        moved = client.get("/a/b/in/console?x=1")
        assert (moved.status_code, moved.headers["location"]) == (307, "./console/?x=1")
        at = urljoin("/a/b/in/console", moved.headers["location"])
        (script,) = re.findall(r'src="(console\.[0-9a-f]+\.js)"', client.get(at).text)
        assert client.get(urljoin(at, script)).headers["content-type"].startswith("text/javascript")
        session = client.get(urljoin(at, "session"), headers=ANN).json()
        assert client.get(urljoin(at, f"{session['api']}/operations"), headers=ANN).json() == {}


@pytest.mark.parametrize(
    ("query", "sent"),
    [("a=%C3%A9&b='\"", "a=%C3%A9&b='\""), ("\u0130 b", "%C4%B0%20b"), ("\udcff", "%FF")],
)
def test_redirect_to_the_slash_escapes_the_query(query: str, sent: str) -> None:
    """A redirect escapes characters that would break the header, and keeps existing escapes."""
    made = counting()
    edge = ConsoleEdge(made.service, path="/console", **NAMED)
    moved = edge.handle(HttpRequest(method="GET", path="/console", query=query))
    made.service.close()
    assert (moved.status, dict(moved.headers)["location"]) == (307, f"./console/?{sent}")
    assert ConsoleEdge(made.service).path_at("/", "/a\udcff") == "a%FF"  # the path of a mount


def test_mounted_console_redirects_to_its_slash() -> None:
    dispatcher = pytest.importorskip("werkzeug.middleware.dispatcher")
    made = counting()
    inner: Any = asgi.EdgeApp(ConsoleEdge(made.service))

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, "root_path": "/ops ü"}, receive, send)

    under = dispatcher.DispatcherMiddleware(None, {"/ops": wsgi.EdgeApp(ConsoleEdge(made.service))})
    with made.service:
        ways = ((uvicorn_serving, mounted, "/ops%20ü"), (waitress_serving, under, "/ops"))
        for serve, app, path in ways:
            with serve(app) as port:
                at = f"http://{HOST}:{port}{path}"
                assert httpx.get(at, timeout=PATIENCE).status_code == 307
                assert "<html" in httpx.get(at, follow_redirects=True, timeout=PATIENCE).text
                assert httpx.get(f"{at}/session", timeout=PATIENCE).json()["title"] == "Operations"


def test_other_paths_reach_the_wrapped_application(kind: str) -> None:
    """Only the console's path and the paths below it belong to the console."""
    made = counting()
    other = {"uvicorn": asgi, "hypercorn": asgi, "waitress": wsgi}[kind]
    fallback = other.OperationsApp(made.service)
    with console(kind, made, path="/console", fallback=fallback, **NAMED) as client:
        assert client.get("/v1/operations").json() == {}
        assert client.get("/console/v1/operations").status_code == 401
        assert client.get("/console/unknown").status_code == 404
        assert client.get("/session").status_code == 404
        assert client.get("/").status_code == 404
        assert client.get("/console", follow_redirects=True).status_code == 200
        assert client.get("/consoles/").status_code == 404


WRONG: Any = [
    ({"actions": ("start",)}, "actions"),
    ({"actions": "cancel"}, "actions"),
    ({"title": ""}, "title"),
    ({"refresh_seconds": 0}, "refresh_seconds"),
    ({"links": {"trace": "javascript:alert(1)"}}, "links"),
    ({"links": {"elsewhere": "https://x.example"}}, "links"),
    ({"links": 7}, "links"),
    ({"links": {"logs": "https://x.example/{traceid}"}}, "links.*{trace_id} and {name}.*{traceid}"),
    ({"frame": ["*"]}, "frame"),
    ({"frame": ["https://x.example/path"]}, "frame"),
    *(({name: 7}, name) for name in ("redact", "allow", "path")),
    *(({"path": path}, "path") for path in ("console", "/a//b")),
    ({"parents": ["/x"]}, "parents"),
]


async def allow_all(caller: str, action: str, name: str) -> bool:
    return True


def test_wrong_option_of_the_console_is_refused_at_construction() -> None:
    """A wrong console option raises an error when the application is made, not at a request."""
    made = counting()
    for options, named in WRONG:
        with pytest.raises(DeclarationError, match=named):
            ConsoleEdge(made.service, **options)
    for app in (asgi.EdgeApp, wsgi.EdgeApp):
        with pytest.raises(DeclarationError, match="fallback"):
            app(ConsoleEdge(made.service), 7)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="allow"):  # this hook needs an event loop
        wsgi.EdgeApp(ConsoleEdge(made.service, allow=allow_all))
    with pytest.raises(DeclarationError, match="path"):
        Console("")
    made.service.close()


def test_wrong_console_declaration_is_refused_at_construction() -> None:
    """A wrong option of ``Console`` raises an error before an integration uses the object."""
    shared = [one for one in WRONG if one[0].keys() <= ConsoleOptions.__optional_keys__]
    assert len(shared) > 8
    for options, named in shared:
        with pytest.raises(DeclarationError, match=f"Console, {named}"):
            Console("/console", **options)
    unknown: Any = {"titel": "Counts"}
    with pytest.raises(DeclarationError, match=r"titel: Console has no such option.*title"):
        Console(**unknown)
    assert Console(allow=lambda *_: True, title="Counts").options["title"] == "Counts"


def test_service_with_owners_needs_authentication(tmp_path: Path) -> None:
    """A console of a service with owners needs authentication, and hides other callers' work."""
    made = counting(owner_only=True, store=SQLiteStore(tmp_path / "operations.db"))
    with pytest.raises(DeclarationError, match="authenticate"):
        ConsoleEdge(made.service)
    made.count.start(CountRequest(steps=1), caller="ann").result(timeout=20)
    with console("uvicorn", made, **NAMED) as client:
        assert len(client.get("/v1/operations", headers=ANN).json()["operations"]) == 1
        assert client.get("/v1/operations", headers=BOB).json() == {}
        assert client.get("/tally", headers=ANN).status_code == 403
        assert not client.get("/session", headers=ANN).json()["statistics"]
