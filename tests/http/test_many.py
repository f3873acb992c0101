"""BatchGet, Watch and views over HTTP: routes, bodies, errors, events (spec §3.11, §5, §6)."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import lro
from lro import Code, wsgi
from lro.asgi import OperationsApp
from lro.azure import AzureEdge
from lro.http import VERBS, HttpReply, OperationsEdge
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.wire import RouteTable, default_routes, extension_routes
from tests.http.counting_service import (
    NOW,
    CountMetadata,
    CountRequest,
    CountService,
    Phase,
    Wrapped,
    ask,
    begun,
    build,
    check_error,
    details_of,
    edge_of,
    headers_of,
)
from tests.http.servers import environ_of_wsgiref
from tests.http.test_asgi import GONE, Line, part, scope_of, serve
from tests.http.test_operations_edge import refuse_caller
from tests.waiting import PATIENCE

BATCH, WATCH = "/v1/operations:batchGet", "/v1/operations:watch"
FULL = "/v1/operations:batchGet?view=FULL"
PARENT = "/v1/projects/p/operations"
EACH = pytest.mark.parametrize(
    "path", [BATCH, FULL, WATCH, PARENT + ":batchGet", PARENT + ":watch"]
)


def prefix_of(path: str) -> str:
    """Return the prefix of the operation names in a collection."""
    return "projects/p/operations/" if path.startswith(PARENT) else "operations/"


def answer(counting: CountService, path: str, body: Any, **options: Any) -> HttpReply:
    """Return the edge's reply to a POST on an event loop; the reply must not be a stream."""
    line = serve(
        OperationsApp(counting.service, parents=["projects/*"], **options),
        scope_of("POST", path),
        part(body if isinstance(body, bytes) else json.dumps(body).encode()),
    )
    start, end = line.sent
    headers = tuple((k.decode(), v.decode()) for k, v in start["headers"])
    headers = tuple(each for each in headers if each[0] != "content-length")
    reply = HttpReply(start["status"], headers, end["body"])
    if not path.endswith(":watch"):  # without a loop, the reply is the same
        assert edge_of(counting, **options).handle(ask("POST", path, body)) == reply
    return reply


# -- routes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "rpc", "name"),
    [
        ("POST", BATCH, "BatchGetOperations", "operations"),
        ("POST", PARENT + ":batchGet", "BatchGetOperations", "projects/p"),
        ("GET", "/v1/operations/a/b:watch", "WatchOperations", "operations/a/b"),
        ("GET", WATCH, "WatchOperations", "operations"),
        ("GET", PARENT + "/a:watch", "WatchOperations", "projects/p/operations/a"),
        ("GET", "/v1/operations/a%3Awatch", "GetOperation", "operations/a:watch"),
        ("GET", "/v1/operations/a:b:watch", "WatchOperations", "operations/a:b"),
        ("GET", "/v1/operations/a:Watch", "GetOperation", "operations/a:Watch"),
    ],
)
def test_extension_routes_take_the_name_from_the_path(
    method: str, path: str, rpc: str, name: str
) -> None:
    """A path ends with its verb, so an id that ends like a verb must be escaped."""
    table = RouteTable((*default_routes(["projects/*"]), *extension_routes(["projects/*"])))
    found = table.find(method, path)
    assert (found.rpc, found.bindings) == (rpc, {"name": name})


def test_405_and_options_list_the_allowed_methods() -> None:
    """Every caller gets the allowed methods, in a 405 and for OPTIONS (spec §5.7(4))."""

    edge = edge_of(build(), authenticate=refuse_caller)
    for path, allow in {
        "/v1/operations/x": "DELETE, GET, HEAD, OPTIONS",
        BATCH: "OPTIONS, POST",
        WATCH: "GET, HEAD, OPTIONS, POST",
        "/v1/operations/a:watch": "GET, HEAD, OPTIONS",
        PARENT + ":watch": "OPTIONS, POST",
    }.items():
        options = edge.handle(ask("OPTIONS", path))
        wanted = {"allow": allow, "cache-control": "no-store", "x-content-type-options": "nosniff"}
        assert (options.status, headers_of(options), options.body) == (204, wanted, b"")
        refused = edge.handle(ask("PUT", path))
        check_error(refused, 405, Code.UNIMPLEMENTED, "HTTP_METHOD_NOT_ALLOWED")
        assert headers_of(refused)["allow"] == allow


# -- BatchGet ---------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", ["", "projects/p"])
@pytest.mark.parametrize("view", ["", "?view=BASIC", "?view=FULL"])
def test_batch_reply_has_the_order_of_the_request(
    view: str, parent: str, counting: CountService
) -> None:
    """A BatchGet reply has the missing names, and each operation once, as Get returns it."""
    first = counting.start(parent, metadata=CountMetadata(percent=1))
    second = counting.start(parent)
    counting.finish(second)
    path = f"/v1/{parent}/operations" if parent else "/v1/operations"
    missing = second[:-3] + "xyz"
    reply = answer(counting, f"{path}:batchGet{view}", {"names": [second, missing, first, second]})
    assert (reply.status, headers_of(reply)["cache-control"]) == (200, "no-store")
    value = json.loads(reply.body)
    edge = edge_of(counting)
    wanted = [json.loads(edge.handle(ask("GET", f"/v1/{n}{view}")).body) for n in (second, first)]
    assert value == {"operations": wanted, "missing": [missing]}
    listed = json.loads(edge.handle(ask("GET", path + view)).body)["operations"]
    assert sorted(listed, key=itemgetter("name")) == sorted(wanted, key=itemgetter("name"))
    descriptions = [one.pop("description", None) for one in wanted]
    assert wanted == [json.loads(edge.handle(ask("GET", f"/v1/{n}")).body) for n in (second, first)]
    if view != "?view=FULL":
        assert descriptions == [None, None]
        return
    moment = "2030-01-02T03:04:05Z"
    running = {
        "state": "IN_PROGRESS",
        "method": "acme.v1.Things.Count",
        "createTime": moment,
        "updateTime": moment,
    }
    over = {**running, "state": "SUCCEEDED", "endTime": moment}
    over["expireTime"] = descriptions[0]["expireTime"]
    assert descriptions == [over, running]


@pytest.mark.parametrize("call", [("GET", "/v1/operations/a"), ("GET", "/v1/operations")])
@pytest.mark.parametrize("view", ["full", "2", "FULL&view=FULL", "OPERATION_VIEW_FULL"])
def test_view_that_does_not_exist_is_refused_by_the_edge(
    call: tuple[str, str], view: str, counting: CountService
) -> None:
    """An unknown view is refused; an empty one means BASIC, and other verbs have no views."""
    method, path = call
    edge = edge_of(counting)
    refused = edge.handle(ask(method, f"{path}?view={view}"))
    check_error(refused, 400, Code.INVALID_ARGUMENT, "MALFORMED_REQUEST")
    name = counting.start()
    plain = edge.handle(ask("GET", f"/v1/{name}"))
    assert edge.handle(ask("GET", f"/v1/{name}?view=")) == plain
    for other in (f"/v1/{name}:wait", f"/v1/{name}:cancel", WATCH):
        refused = edge.handle(ask("POST", f"{other}?view=FULL", {"names": [name]}))
        check_error(refused, 400, Code.INVALID_ARGUMENT, "MALFORMED_REQUEST")


def test_large_operation_is_returned_with_its_view(counting: CountService) -> None:
    """A large operation is read again, in the requested view, once its reply has memory."""
    method = counting.declare("acme.v1.Things.Spell", response=lro.types.StringValue)
    name = method.start(CountRequest()).name
    counting.service.reporter(name).complete(lro.types.StringValue("x" * 200_000))
    value = json.loads(edge_of(counting).handle(ask("GET", f"/v1/{name}?view=FULL")).body)
    assert len(value["response"]["value"]) == 200_000
    assert value["description"]["method"] == "acme.v1.Things.Spell"


def steps_taken(flow: Any, step: Any, until: str = "") -> Any:
    """Take the steps of a flow up to a step of a class; return that step, or the flow's result."""
    try:
        while type(step).__name__ != until:
            try:
                answer = step.take()
            except lro.LroError as exc:
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value
    return step


def kept(text: str) -> int:
    """Return the number of operations in memory whose response is this text."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) is lro.Operation]
    return sum(one.response is not None and one.response.payload == text for one in found)


@pytest.mark.parametrize(
    ("edge", "method", "target"),
    [
        (OperationsEdge, "GET", "/v1/{}"),
        (OperationsEdge, "GET", "/v1/{}?view=FULL"),
        (OperationsEdge, "POST", "/v1/{}:wait"),
        (OperationsEdge, "POST", "/v1/{}:rerun"),
        (OperationsEdge, "POST", "/v1/things:spell"),
        (AzureEdge, "GET", "/v1/{}"),
        (AzureEdge, "POST", "/v1/things:spell"),
    ],
)
def test_large_operation_is_not_kept_until_its_reply_has_memory(
    edge: type[OperationsEdge], method: str, target: str, tmp_path: Path
) -> None:
    """A call that waits for memory keeps no operation; the operation is read again."""
    counting = build(
        SQLiteStore(tmp_path / "operations.db", clock=lambda: NOW), verbs=[*VERBS, "RerunOperation"]
    )
    text = f"{edge} {method} {target}" + "x" * 4_100_000  # too large for the cache of the store
    failures = ["once"] if target.endswith(":rerun") else []

    @counting.service.method("acme.v1.Things.Spell", path="/v1/things:spell")
    def spell(request: CountRequest) -> lro.types.StringValue:
        if failures:
            raise ValueError(failures.pop())
        return lro.types.StringValue(text)

    path = target.format(spell.start(CountRequest()).name)
    request = ask(method, path, b"{}" if method == "POST" else b"", host="things.example")
    flow = edge(counting.service, starts=True).exchange(request)
    step = steps_taken(flow, flow.send(None), "Reserve")
    assert kept(text) == 0
    assert text in str(json.loads(steps_taken(flow, step).body))
    counting.service.close()


def descriptions_of(reply: HttpReply) -> list[Any]:
    """Return the descriptions of the operations in a reply."""
    return [one["description"] for one in json.loads(reply.body)["operations"]]


def retrying(**options: Any) -> tuple[CountService, str]:
    """Make a counting service, and an operation whose first attempt failed; return its name."""
    counting = build(**options)

    @counting.service.method("acme.v1.Things.Fail", retry=lro.Retry(jitter=0))
    def fail(request: CountRequest) -> None:
        raise ConnectionError("<b>away</b>")

    return counting, fail.start(CountRequest(), priority=5, expires=timedelta(hours=1)).name


def test_errors_of_attempts_are_shown_to_operators_only() -> None:
    """All callers see times and counts of attempts; errors need a verb that is off by default."""

    def authorize(caller: str, verb: str, name: str) -> bool:
        return verb != "InspectOperation" or caller == "operator"

    inspecting = {"verbs": (*VERBS, "InspectOperation"), "authorize": authorize}
    for options, callers in (({}, ["operator"]), (inspecting, ["ann", "operator"])):
        counting, name = retrying(**options)
        for caller in callers:
            body = {"names": [name]}
            reply = answer(counting, FULL, body, authenticate=lambda _, who=caller: who)
            (found,) = descriptions_of(reply)
            failures = found.pop("failures", None)
            told = bool(options) and caller == "operator"
            moment = "2030-01-02T03:04:05Z"
            failed = {"attempt": 1, "time": moment, "error": "ConnectionError"}
            assert failures == ([{**failed, "text": "<b>away</b>"}] if told else None)
            times = dict.fromkeys(("createTime", "startTime", "updateTime"), moment)
            assert found == {
                **times,
                "state": "IN_PROGRESS",
                "method": "acme.v1.Things.Fail",
                "attempt": 1,
                "failedAttempts": 1,
                "dueTime": "2030-01-02T03:04:06Z",
                "priority": 5,
            }


def test_view_has_expiry_of_waiting_work_and_origin_of_a_rerun() -> None:
    """A FULL view contains the expiry of work that has not begun, and the origin of a rerun."""
    counting, _ = retrying()
    minute = timedelta(minutes=1)
    late = counting.service.start(
        "acme.v1.Things.Fail", CountRequest(), delay=minute, expires=minute
    )
    failed = counting.start()
    assert counting.service.reporter(failed).fail(lro.Status(Code.INTERNAL, "why"))
    again = counting.service.rerun(failed).name
    reply = answer(counting, FULL, {"names": [late.name, again]})
    waiting, rerun = descriptions_of(reply)
    assert rerun["origin"] == failed
    reply = answer(counting, FULL, {"names": [failed]})
    assert descriptions_of(reply)[0]["rerun"] == again
    due, before = "2030-01-02T03:05:05Z", "2030-01-02T03:06:05Z"
    assert (waiting["dueTime"], waiting["beginBefore"]) == (due, before)


BODIES = [
    (b"", "MALFORMED_REQUEST", "names"),
    (b"[]", "MALFORMED_REQUEST", "body"),
    ({"names": None}, "MALFORMED_REQUEST", "names"),
    ({"names": []}, "MALFORMED_REQUEST", "names"),
    ({"names": "operations/a"}, "MALFORMED_REQUEST", "names"),
    ({"names": {"a": "operations/a"}}, "MALFORMED_REQUEST", "names"),
    ({"names": ["operations/a", 1]}, "MALFORMED_REQUEST", "names[1]"),
    ({"names": ["operations/a"], "name": "operations"}, "MALFORMED_REQUEST", "name"),
    ({"name": "operations/a"}, "MALFORMED_REQUEST", "name"),
    ({"names": ["operations/a"] * 1001}, "MALFORMED_REQUEST", "names"),
    ({"names": [""]}, "INVALID_OPERATION_NAME", "names[0]"),
    ({"names": ["operations/-"]}, "INVALID_OPERATION_NAME", "names[0]"),
    ({"names": ["/v1/operations/a"]}, "INVALID_OPERATION_NAME", "names[0]"),
    ({"names": ["projects/q/operations/a"]}, "INVALID_PARENT", "names[0]"),
]


@pytest.mark.parametrize("path", [BATCH, PARENT + ":watch"])
@pytest.mark.parametrize(("body", "reason", "field"), BODIES)
def test_hostile_body_is_refused_with_its_field(
    path: str, body: Any, reason: str, field: str
) -> None:
    """An invalid body gets 400 with the wrong field, and the store is not called."""
    counting = build(Wrapped(pytest.fail, "find"))
    if path.startswith(PARENT) and isinstance(body, dict) and isinstance(body.get("names"), list):
        body = json.loads(json.dumps(body).replace('"operations/', '"projects/p/operations/'))
    error = check_error(answer(counting, path, body), 400, Code.INVALID_ARGUMENT, reason)
    (violation,) = details_of({"error": error})["BadRequest"]["fieldViolations"]
    assert violation["field"] == field


@EACH
def test_names_of_another_collection_are_refused(path: str) -> None:
    """All names must be in the collection of the path, which a proxy may have checked (§3.11)."""
    counting = build(Wrapped(pytest.fail, "find"))
    mine = f"{prefix_of(path)}a"
    for other in ("operations/a", "projects/p/operations/a", "projects/p/x/y/operations/a"):
        if other != mine:
            reply = answer(counting, path, {"names": [mine, other]})
            error = check_error(reply, 400, Code.INVALID_ARGUMENT, "INVALID_PARENT")
            assert "names[1]" in error["message"]


@EACH
def test_body_of_other_media_type_or_too_long_is_refused(path: str) -> None:
    """A body of another media type gets 415, and a long one 413; neither is parsed."""
    edge = edge_of(build(), max_body=1000)
    for headers, size, status, reason in (
        ({"content_type": "text/plain"}, 1, 415, "UNSUPPORTED_MEDIA_TYPE"),
        ({}, 2000, 413, "REQUEST_TOO_LARGE"),
    ):
        reply = edge.handle(ask("POST", path, {"names": ["operations/" + "a" * size]}, **headers))
        check_error(reply, status, Code.INVALID_ARGUMENT, reason)


@EACH
def test_names_in_the_query_are_refused(path: str) -> None:
    """Names in the query are refused, because they must be in the body (spec §5.8(1))."""
    reply = edge_of(build()).handle(ask("POST", path + "?names=operations/a", {"names": ["x"]}))
    check_error(reply, 400, Code.INVALID_ARGUMENT, "MALFORMED_REQUEST")


@EACH
def test_calls_for_many_operations_are_checked_in_the_specified_order(path: str) -> None:
    """Calls are checked in the order supported, authenticated, well-formed, permitted (§3.1(5))."""
    said: list[str] = []

    def authenticate(_: object) -> str:
        said.append("who")
        raise lro.errors.Unauthenticated

    reply = answer(build(verbs=["ListOperations"]), path, b"{", authenticate=authenticate)
    check_error(reply, 501, Code.UNIMPLEMENTED, "METHOD_NOT_SUPPORTED")
    assert said == []
    reply = answer(build(), path, b"{", authenticate=authenticate)
    check_error(reply, 401, Code.UNAUTHENTICATED, "UNAUTHENTICATED")

    def authorize(caller: str, verb: str, name: str) -> None:
        said.append(f"{caller} {verb} {name}")
        raise lro.errors.PermissionDenied("not yours")

    counting = build(authorize=authorize)
    name, other = (f"{prefix_of(path)}{one}" for one in "ab")
    body = {"names": [name, other]}
    said.clear()
    reply = answer(counting, path, {**body, "x": 1}, authenticate=lambda _: "ann")
    check_error(reply, 400, Code.INVALID_ARGUMENT, "MALFORMED_REQUEST")
    assert said == []
    reply = answer(counting, path, body, authenticate=lambda _: "ann")
    error = check_error(reply, 403, Code.PERMISSION_DENIED, "PERMISSION_DENIED")
    assert set(said) == {f"ann GetOperation {name}"}
    assert details_of({"error": error})["ErrorInfo"]["metadata"] == {"name": name}
    assert error["message"] == f"{name}: not yours"


def away() -> None:
    """Fail like a store that cannot be reached."""
    raise lro.errors.Unavailable("the database is away")


@EACH
def test_unavailable_store_is_answered_503(path: str) -> None:
    """If the store is unavailable, the 503 has Retry-After, and no stream begins."""
    reply = answer(build(Wrapped(away, "find")), path, {"names": [f"{prefix_of(path)}a"]})
    check_error(reply, 503, Code.UNAVAILABLE, "UNAVAILABLE")


# -- Watch ------------------------------------------------------------------------------------


def events_of(pieces: bytes) -> list[tuple[str, Any]]:
    """Return the kind and data of each event, after checking that the ids count from 1."""
    found = []
    for block in pieces.decode().removesuffix("\n\n").split("\n\n"):
        if block == ":":
            found.append(("comment", None))
            continue
        number, kind, data = block.split("\n")
        position = 1 + sum(kind != "comment" for kind, _ in found)
        assert number == f"id: {position}"
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


class Stream(Line):
    """A connection whose caller acts after each event, and may disconnect."""

    def __init__(self, body: bytes, *acts: Callable[[], object]) -> None:
        super().__init__([part(body)], self._leave)
        self._acts = list(acts)
        self._gone = asyncio.Event()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message.get("body") and self._acts and self._acts.pop(0)() == "leave":
            self._gone.set()

    async def _leave(self) -> Any:
        await self._gone.wait()
        return GONE

    @property
    def events(self) -> list[tuple[str, Any]]:
        return events_of(b"".join(message["body"] for message in self.sent[1:]))


def follow(
    counting: CountService,
    names: list[str],
    *acts: Callable[[], object],
    target: str = WATCH,
    **options: Any,
) -> Stream:
    """Read a stream to its end, and return the connection."""
    path, _, query = target.partition("?")
    method = "POST" if names else "GET"
    stream = Stream(json.dumps({"names": names}).encode() if names else b"", *acts)
    app = OperationsApp(counting.service, parents=["projects/*"], **options)
    scope = scope_of(method, path, query_string=query.encode())
    asyncio.run(asyncio.wait_for(app(scope, stream.receive, stream.send), PATIENCE))
    return stream


def test_stream_sends_snapshots_changes_and_its_end(counting: CountService) -> None:
    """A stream has the first states, then changes, then its end; headers prevent buffering."""
    first, second = counting.start(metadata=CountMetadata(percent=1)), counting.start()
    stream = follow(
        counting,
        [first, "operations/none", second],
        lambda: counting.service.reporter(first).report(CountMetadata(percent=2)),
        lambda: counting.finish(first),
        lambda: counting.service.delete(second),
    )
    start = stream.sent[0]
    assert (start["status"], dict(start["headers"])) == (
        200,
        {
            b"content-type": b"text/event-stream; charset=utf-8",
            b"cache-control": b"no-store",
            b"x-content-type-options": b"nosniff",
            b"x-accel-buffering": b"no",
        },
    )
    kinds = [(kind, data["name"]) for kind, data in stream.events]
    assert kinds == [
        ("operation", first),
        ("missing", "operations/none"),
        ("operation", second),
        ("operation", first),
        ("operation", first),
        ("missing", second),
    ]
    shown = [data for _, data in stream.events]
    assert [one["metadata"]["percent"] for one in (shown[0], shown[3], shown[4])] == [1, 2, 2]
    assert [one.get("done", False) for one in shown] == [False] * 4 + [True, False]
    assert shown[1] == {"name": "operations/none"}
    assert stream.sent[-1] == {"type": "http.response.body", "body": b""}
    assert counting.service.edges.waiters.watching == 0


@pytest.mark.parametrize("parent", ["", "projects/p"])
def test_watch_by_get_streams_one_operation(parent: str) -> None:
    """A GET watches one operation, and on request has enum values as numbers."""
    counting, name = begun(parent, metadata=CountMetadata(phase=Phase.COUNTING))
    for query, phase in (("", "COUNTING"), ("?$alt=json;enum-encoding=int", 1)):
        stream = follow(counting, [], lambda: "leave", target=f"/v1/{name}:watch{query}")
        ((kind, data),) = stream.events
        assert (kind, data["name"], data["metadata"]["phase"]) == ("operation", name, phase)
    counting.finish(name)
    ((_, data),) = follow(counting, [], target=f"/v1/{name}:watch").events
    assert data["done"] is True


@pytest.mark.parametrize("path", [WATCH, "/v1/operations/-:watch"])
def test_watch_of_a_collection_as_a_name_is_refused(path: str) -> None:
    """A watch of a collection as a name is refused, because no operation has this name."""
    status, _, body = serve(OperationsApp(build().service), scope_of("GET", path)).reply
    assert (status, details_of(body)["ErrorInfo"]["reason"]) == (400, "INVALID_OPERATION_NAME")


def test_head_of_a_stream_leaves_no_watch() -> None:
    """HEAD of a stream returns its headers and no body, and no watch is left."""
    counting, name = begun()
    start, end = serve(OperationsApp(counting.service), scope_of("HEAD", f"/v1/{name}:watch")).sent
    assert dict(start["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert (start["status"], end["body"], counting.service.edges.waiters.watching) == (200, b"", 0)


def test_stream_without_events_sends_comments() -> None:
    """While there is no event, the stream sends comments."""
    counting, name = begun()
    acts = (lambda: None, lambda: None, lambda: counting.finish(name))
    stream = follow(counting, [name], *acts, heartbeat_seconds=0.01)
    kinds = [kind for kind, _ in stream.events]
    assert kinds[:3] == ["operation", "comment", "comment"]
    assert kinds[-1] == "operation"


def test_heartbeats_are_every_15_seconds_at_least() -> None:
    """Heartbeats must be at most 15 s apart; longer intervals are refused."""
    for seconds in (0, -1, 15.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="at most 15"):
            edge_of(build(), heartbeat_seconds=seconds)


def test_broken_connection_frees_its_stream() -> None:
    """If the connection breaks, the server gets the original error, and no watch is left."""
    counting, name = begun()

    def snap() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        follow(counting, [name], snap)
    assert counting.service.edges.waiters.watching == 0


def test_closing_service_ends_its_streams(counting: CountService) -> None:
    """If the service closes, its streams end normally."""
    stream = follow(counting, [counting.start()], counting.service.close)
    assert stream.sent[-1] == {"type": "http.response.body", "body": b""}


def test_large_operations_are_sent_piece_by_piece(counting: CountService) -> None:
    """Each large operation is sent on its own, without waiting for the next operation."""
    names = [counting.start() for _ in "abc"]
    for name in names:
        assert counting.service.reporter(name).fail(lro.StatusError(Code.ABORTED, "x" * 40_000))
    stream = follow(counting, names)
    assert [data["name"] for _, data in stream.events] == names
    pieces = [message["body"] for message in stream.sent[1:] if message["body"]]
    assert [len(piece) > 40_000 for piece in pieces] == [True, True]


@pytest.mark.parametrize("query", ["", "?$alt=json;enum-encoding=int"])
def test_message_of_an_unknown_type_hides_no_operation(query: str) -> None:
    """A message of an unknown type is an ErrorInfo in lists; Get and Wait fail (spec §1.14(3))."""
    store = MemoryStore(lambda: NOW)
    counting = build(store)
    good, bad = counting.start(), counting.start()
    counting.finish(good)
    counting.finish(bad)
    unknown = lro.AnyMessage("x/unknown.Type", b"\x08")
    store.update(bad, lambda record: record.next_version(result=unknown))
    watched = [data for _, data in follow(counting, [bad, good], target=WATCH + query).events]
    edge = edge_of(counting)
    asked = ask("POST", BATCH + query, {"names": [bad, good]}), ask("GET", "/v1/operations" + query)
    batch, page = (json.loads(edge.handle(one).body)["operations"] for one in asked)
    assert watched == batch == sorted(page, key=lambda one: one["name"] != bad)
    assert [one["name"] for one in batch] == [bad, good]
    for verb, more in (("GET", ""), ("POST", ":wait")):
        error = check_error(
            edge.handle(ask(verb, f"/v1/{bad}{more}{query}")),
            400,
            Code.FAILED_PRECONDITION,
            "MESSAGE_UNREADABLE",
        )
        assert batch[0]["response"] == error["details"][0]
        assert batch[0]["response"]["metadata"] == {"type_name": "unknown.Type"}


def test_watch_under_wsgi_is_refused_with_501() -> None:
    """Under WSGI, Watch is refused with 501 and the reason (spec §3.11)."""
    counting, name = begun()
    edge = edge_of(counting)
    for request in (ask("GET", f"/v1/{name}:watch"), ask("POST", WATCH, {"names": [name]})):
        error = check_error(edge.handle(request), 501, Code.UNIMPLEMENTED, "METHOD_NOT_SUPPORTED")
        assert "would hold a thread" in error["message"]
    statuses: list[str] = []
    environ = environ_of_wsgiref("GET", f"/v1/{name}:watch")
    list(wsgi.OperationsApp(counting.service)(environ, lambda status, _: statuses.append(status)))
    assert statuses == ["501 Not Implemented"]
