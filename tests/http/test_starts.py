"""Starts over HTTP (spec §9, §5.9, §5.12)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import attrs
import pytest

import lro
from lro import Code
from lro.adapters import Observer, OperationStarted
from lro.errors import HttpMethodNotAllowed
from lro.executors.threads import ThreadExecutor
from lro.http import (
    HttpReply,
    HttpRequest,
    OperationsEdge,
    Start,
    answer,
    answer_async,
    on_loop,
    run,
)
from lro.stores.memory import MemoryStore
from lro.webhooks import Endpoint
from tests.http.counting_service import (
    DOMAIN,
    URL,
    CountMetadata,
    CountRequest,
    CountResponse,
    CountService,
    ask,
    build,
    check_error,
    details_of,
    headers_of,
)
from tests.recording_notifier import RecordingNotifier

PATH = "/v1/things:count"
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


START_OPTIONS = frozenset({"parent", "metadata", "notify", "raw"})


def edge_for(service: lro.Service, method: Any, path: Any = PATH, **options: Any) -> OperationsEdge:
    """Make an edge that serves one start; options are passed to the start or the edge."""
    mine = {name: options.pop(name) for name in START_OPTIONS & {*options}}
    return OperationsEdge(service, starts={path: Start(method, **mine)}, **options)


def edge_of(counting: CountService, **options: Any) -> OperationsEdge:
    return edge_for(counting.service, counting.count, **options)


def post(body: Any, **headers: str) -> HttpRequest:
    return ask("POST", PATH, body, **headers)


def started(reply: HttpReply) -> Mapping[str, Any]:
    """Check that the reply is successful, and return its operation."""
    assert reply.status == 200, reply.body
    operation: Mapping[str, Any] = json.loads(reply.body)
    return operation


def names(counting: CountService) -> list[str]:
    page = counting.service.list(lro.wire.ListOperationsRequest())
    return [operation.name for operation in page.operations]


@pytest.mark.parametrize("content_type", ["application/json", "APPLICATION/JSON; v=1", ""])
def test_json_body_starts_an_operation(content_type: str, counting: CountService) -> None:
    """A start is answered at once; its reply must not be cached, and has a polling interval."""
    body = {"steps": 2, "label": "ü", "requestId": None, "validate_only": None}
    reply = edge_of(counting, poll_seconds=3).handle(post(body, content_type=content_type))
    name = started(reply)["name"]
    assert names(counting) == [name]
    assert headers_of(reply)["retry-after"] == "3"
    assert headers_of(reply)["cache-control"] == "no-store"
    assert headers_of(reply)["x-content-type-options"] == "nosniff"
    request = counting.service.store.request(name)
    assert counting.service.types.unpack(request, CountRequest) == CountRequest(2, "ü")


def test_application_sets_parent_metadata_and_owner_of_a_start() -> None:
    """The application sets the operation's parent, first metadata and owner."""
    counting = build(owner_only=True)
    edge = edge_of(
        counting,
        parent=lambda request: f"projects/{request.headers['x-project']}",
        metadata=lambda message: CountMetadata(percent=message.steps),
        authenticate=lambda headers: headers["x-user"],
    )
    operation = started(edge.handle(post({"steps": 5}, x_project="p", x_user="ann")))
    assert operation["name"].startswith("projects/p/operations/")
    assert operation["metadata"] == {"@type": URL + "acme.v1.CountMetadata", "percent": 5}
    assert counting.service.get(operation["name"], caller="ann").name == operation["name"]
    with pytest.raises(lro.errors.OperationNotFound):
        counting.service.get(operation["name"], caller="eve")


def test_application_makes_webhook_endpoints_from_the_request() -> None:
    """The application makes endpoints from the request, for instance from its query."""
    counting = build(webhooks=RecordingNotifier())

    def notify(request: HttpRequest) -> list[Endpoint]:
        urls = parse_qs(request.query).get("callback", [])
        return [Endpoint(url=url) for url in urls]

    edge = edge_of(counting, notify=notify)
    asked = ask("POST", f"{PATH}?callback=https://a.test/done", {"steps": 1})
    for request, kept in ((asked, '["https://a.test/done"]'), (post({"steps": 1}), "")):
        name = started(edge.handle(request))["name"]
        assert counting.service.store.get(name).notify == kept
    wrong = edge_of(counting, notify=lambda request: ["https://a.test/done"])
    check_error(wrong.handle(post({"steps": 1})), 400, Code.INVALID_ARGUMENT, "INVALID_ARGUMENT")


@pytest.mark.parametrize("spelling", ["requestId", "request_id"])
def test_repeated_start_with_a_request_id_returns_the_same_operation(
    spelling: str, counting: CountService
) -> None:
    """A repeated request id returns the same operation; with another request, it is a conflict."""
    edge = edge_of(counting)
    first = started(edge.handle(post({"steps": 1, spelling: UUID})))
    said = {"requestId": None, "steps": 1, spelling: UUID.upper()}
    again = started(edge.handle(ask("POST", f"{PATH}?alt=json&key=k", said)))
    assert (first, names(counting)) == (again, [first["name"]])
    other = edge.handle(post({"steps": 2, spelling: UUID}))
    check_error(other, 400, Code.INVALID_ARGUMENT, "REQUEST_ID_CONFLICT")


@pytest.mark.parametrize("spelling", ["validateOnly", "validate_only"])
def test_validate_only_stores_nothing(spelling: str, counting: CountService) -> None:
    """A dry run makes all checks and returns a finished operation, but stores nothing (§9.7)."""
    reply = edge_of(counting).handle(post({"steps": 1, spelling: True}))
    assert started(reply) == {"done": True, "response": {"@type": URL + "google.protobuf.Empty"}}
    assert "retry-after" not in headers_of(reply)
    assert names(counting) == []
    bad = edge_of(counting).handle(post({"steps": "x", spelling: True}))
    check_error(bad, 400, Code.INVALID_ARGUMENT, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("body", "reason", "field"),
    [
        ({"colour": 1}, "INVALID_ARGUMENT", "colour"),
        ({"steps": "many"}, "INVALID_ARGUMENT", "steps"),
        ({"steps": 2**31}, "INVALID_ARGUMENT", "steps"),
        ({"label": 1}, "INVALID_ARGUMENT", "label"),
        ({"label": "\ud800"}, "MALFORMED_REQUEST", "body"),
        ({"requestId": 1}, "INVALID_ARGUMENT", "request_id"),
        ({"requestId": "1\n"}, "INVALID_REQUEST_ID", "request_id"),
        ({"requestId": "1" * 129}, "INVALID_REQUEST_ID", "request_id"),
        (b'{"requestId": "1\\u0000"}', "INVALID_REQUEST_ID", "request_id"),
        ({"requestId": UUID, "request_id": UUID}, "INVALID_ARGUMENT", "request_id"),
        ({"validateOnly": 1}, "INVALID_ARGUMENT", "validate_only"),
        ([], "MALFORMED_REQUEST", "body"),
        (b"{", "MALFORMED_REQUEST", "body"),
        (b'{"steps":1,"steps":1}', "MALFORMED_REQUEST", "body"),
    ],
)
def test_invalid_body_starts_nothing_and_names_the_field(
    body: Any, reason: str, field: str
) -> None:
    """Unknown fields, wrong types and bad JSON start nothing, and the error names the field.

    Observers are notified of the refused start, although it has no valid request message.
    """
    starts = Starts()
    counting = build(observers=[starts])
    reply = edge_of(counting).handle(post(body))
    check_error(reply, 400, Code.INVALID_ARGUMENT, reason)
    (violation,) = details_of(reply.body)["BadRequest"]["fieldViolations"]
    assert violation["field"] == field
    assert names(counting) == []
    assert starts.seen == [("refused", "INVALID_ARGUMENT")]


class Starts(Observer):
    """An observer that records the outcome of each start."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def started(self, event: OperationStarted) -> None:
        self.seen.append((event.outcome, event.error_type))


@pytest.mark.parametrize("kind", ["application/a+json; x=" + "a" * 99, "a/JSON;charset=latin-1"])
@pytest.mark.parametrize("rest", ["", '"a": 1, "a": 2, ', '"a": NaN, '])
def test_validate_only_is_read_from_a_body_that_the_application_reads(kind: str, rest: str) -> None:
    """``validateOnly`` is read from JSON of any media type; malformed JSON is an error."""
    counting = build()
    body = f'{{{rest}"validateOnly": true}}'.encode()
    asked = attrs.evolve(post({}), headers={"content-type": kind}, body=body)
    with pytest.raises(lro.errors.MalformedRequest) if rest else contextlib.nullcontext():
        steps = OperationsEdge(counting.service).start(asked, counting.count, CountRequest(1))
        assert not run(steps)[0].name
    raw = edge_of(counting, raw=lambda *_: CountRequest(1)).handle(attrs.evolve(asked, path=PATH))
    assert (raw.status, b"name" in raw.body) == (400 if rest else 200, False)
    assert not counting.service.list(lro.wire.ListOperationsRequest()).operations


def test_body_without_media_type_that_is_not_json_has_no_library_fields() -> None:
    counting = build()
    asked = attrs.evolve(post({}), headers={}, body=b"steps=3")
    steps = OperationsEdge(counting.service).start(asked, counting.count, CountRequest(1))
    assert run(steps)[0].name


@lro.message("acme.v1.OwnRequest")
@attrs.frozen
class OwnRequest:
    """A request that declares the standard fields itself, as AIP-155 and AIP-163 describe."""

    steps: lro.Int32 = 0
    request_id: str = ""
    validate_only: bool = False


def test_request_id_of_the_message_prevents_a_repeated_start(counting: CountService) -> None:
    """If the message's own request id is repeated, nothing is started; the work sees the id."""
    edge = edge_for(counting.service, counting.declare("acme.v1.Things.Own", request=OwnRequest))
    name = started(edge.handle(post({"steps": 1, "requestId": UUID})))["name"]
    assert started(edge.handle(post({"steps": 1, "request_id": UUID})))["name"] == name
    packed = counting.service.store.request(name)
    assert counting.service.types.unpack(packed, OwnRequest) == OwnRequest(1, UUID)
    assert started(edge.handle(post({"validate_only": True})))["done"] is True


def test_request_id_of_the_message_must_be_a_uuid(counting: CountService) -> None:
    """A field ``request_id`` of the message is that of AIP-155, and the error says the cure."""
    edge = edge_for(counting.service, counting.declare("acme.v1.Things.Own", request=OwnRequest))
    reply = edge.handle(post({"requestId": "order-17"}))
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["details"][0]["reason"]) == (400, "INVALID_REQUEST_ID")
    assert error["message"].endswith("uuid.uuid5(uuid.NAMESPACE_URL, 'order-17')")


@pytest.mark.parametrize("key", ["order-17", '"order-17"', " order-17 "])
def test_header_is_the_request_id_of_a_body_without_one(key: str, counting: CountService) -> None:
    """``Idempotency-Key`` counts as ``requestId``, plain or in the quotes of RFC 8941."""
    edge = edge_of(counting)
    name = started(edge.handle(post({"steps": 1}, idempotency_key=key)))["name"]
    for body, headers in (
        ({"steps": 1}, {"idempotency_key": "order-17"}),
        ({"steps": 1, "requestId": "order-17"}, {}),
        ({"steps": 1, "requestId": "order-17"}, {"idempotency_key": key}),
    ):
        assert started(edge.handle(post(body, **headers)))["name"] == name
    assert started(edge.handle(post({"steps": 1})))["name"] != name
    other = edge.handle(post({"steps": 2}, idempotency_key=key))
    check_error(other, 400, Code.INVALID_ARGUMENT, "REQUEST_ID_CONFLICT")


def test_header_is_the_request_id_in_an_endpoint_of_the_application(counting: CountService) -> None:
    edge, asked = OperationsEdge(counting.service), post({}, idempotency_key="order-17")
    first, second = (
        run(edge.start(asked, counting.count, CountRequest(1)))[0].name for _ in range(2)
    )
    assert first == second


def test_uuid_in_header_and_body_may_differ_in_case(counting: CountService) -> None:
    edge = edge_of(counting)
    asked = post({"steps": 1, "requestId": UUID}, idempotency_key=UUID.upper())
    assert started(edge.handle(asked))["name"]


def test_other_request_id_in_the_body_is_refused_with_both(counting: CountService) -> None:
    reply = edge_of(counting).handle(
        post({"steps": 1, "requestId": "order-18"}, idempotency_key="order-17")
    )
    error = check_error(reply, 400, Code.INVALID_ARGUMENT, "INVALID_REQUEST_ID")
    assert "'order-17'" in error["message"]
    assert "'order-18'" in error["message"]
    assert names(counting) == []


@pytest.mark.parametrize("key", ["", " ", '""', "x" * 129, "a\x85b"])
def test_invalid_header_starts_nothing_and_is_named(key: str) -> None:
    starts = Starts()
    counting = build(observers=[starts])
    reply = edge_of(counting).handle(post({"steps": 1}, idempotency_key=key))
    error = check_error(reply, 400, Code.INVALID_ARGUMENT, "INVALID_REQUEST_ID")
    assert error["message"].startswith("Idempotency-Key: must ")
    assert names(counting) == []
    assert starts.seen == [("refused", "INVALID_ARGUMENT")]


def test_header_must_be_a_uuid_for_a_message_with_a_request_id(counting: CountService) -> None:
    edge = edge_for(counting.service, counting.declare("acme.v1.Things.Own", request=OwnRequest))
    reply = edge.handle(post({"steps": 1}, idempotency_key="order-17"))
    error = check_error(reply, 400, Code.INVALID_ARGUMENT, "INVALID_REQUEST_ID")
    assert error["message"].endswith("uuid.uuid5(uuid.NAMESPACE_URL, 'order-17')")
    first, second = (
        started(edge.handle(post({"steps": 1}, idempotency_key=UUID)))["name"] for _ in range(2)
    )
    assert first == second


def test_any_text_is_a_request_id(counting: CountService) -> None:
    edge = edge_of(counting)
    first, same, other = (
        started(edge.handle(post({"steps": 1, "requestId": text})))["name"]
        for text in ("Bestellung 17 \u2713", "Bestellung 17 \u2713", "bestellung 17 \u2713")
    )
    assert first == same != other


# -- bodies that are not JSON -----------------------------------------------------------------


def read_image(media: str, body: bytes) -> CountRequest | None:
    if not media.startswith("image/"):
        return None
    if not body:
        raise lro.InvalidArgument("image", "must not be empty")
    return CountRequest(len(body), media)


def test_raw_body_of_another_media_type_is_read_by_the_application(counting: CountService) -> None:
    """The application reads the bodies of media types that its ``raw`` function accepts."""
    for kind in ("image/png", "IMAGE/PNG; name=x"):
        reply = edge_of(counting, raw=read_image).handle(post(b"\x89PNG\xff", content_type=kind))
        packed = counting.service.store.request(started(reply)["name"])
        assert counting.service.types.unpack(packed, CountRequest) == CountRequest(5, "image/png")


def test_json_is_accepted_beside_raw_bodies() -> None:
    """A path for raw bodies also takes JSON, with or without a media type, up to the same size."""
    edge = edge_of(build(), raw=read_image, max_body=20)
    for body, kind, status, reason in (
        (b'{"steps": 1}', "application/json", 200, ""),
        (b'{"steps": 1}', "", 200, ""),
        (b"x" * 20, "image/png", 200, ""),
        (b"x" * 21, "image/png", 413, "REQUEST_TOO_LARGE"),
        (b"<x/>", "text/xml", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"", "image/png", 400, "INVALID_ARGUMENT"),
    ):
        reply = edge.handle(post(body, content_type=kind))
        if status == 200:
            started(reply)
        else:
            check_error(reply, status, Code.INVALID_ARGUMENT, reason)


@pytest.mark.parametrize(
    ("kind", "length", "status"),
    [
        *[("application/json", "12", 400), ("application/json", "0", 200)],
        *[("text/plain", "12", 415), ("text/plain", "0", 200)],
        *[("multipart/form-data; boundary=b", length, 415) for length in ("60", "")],
    ],
)
def test_body_already_read_by_the_application_is_refused(
    kind: str, length: str, status: int
) -> None:
    """A start whose body is already read is refused, as defaults would replace its values."""
    reply = edge_of(build()).handle(post(b"", content_type=kind, content_length=length))
    assert reply.status == status


# -- methods, targets, limits -----------------------------------------------------------------


def test_start_path_allows_only_post() -> None:
    """A start's path allows OPTIONS and POST only; HEAD has no body (spec §5.7(4))."""
    edge = edge_of(build())
    assert isinstance(edge.route("GET", PATH), HttpMethodNotAllowed)
    options = edge.handle(ask("OPTIONS", PATH))
    assert (options.status, headers_of(options)["allow"]) == (204, "OPTIONS, POST")
    for method in ("GET", "DELETE", "post"):
        reply = edge.handle(ask(method, PATH))
        check_error(reply, 405, Code.UNIMPLEMENTED, "HTTP_METHOD_NOT_ALLOWED")
        assert headers_of(reply)["allow"] == "OPTIONS, POST"
    assert edge.handle(ask("HEAD", PATH)).body == b""


def test_start_on_a_busy_target_is_aborted(counting: CountService) -> None:
    """A start is ABORTED while other work holds its exclusive target (spec §9.5)."""
    target = lambda request: f"things/{request.steps}"  # noqa: E731
    edge = edge_for(counting.service, declare(counting, "Lock", exclusive_target=target))
    started(edge.handle(post({"steps": 1})))
    started(edge.handle(post({"steps": 2})))
    check_error(edge.handle(post({"steps": 1})), 409, Code.ABORTED, "TARGET_BUSY")


def test_start_on_a_full_queue_gets_429_and_stores_nothing() -> None:
    """A start on a full queue gets 429 with RetryInfo and Retry-After, and no record is stored."""
    go = threading.Event()
    limits = lro.Limits(backlog=1)
    service = lro.Service(
        MemoryStore(), ThreadExecutor(1), maintenance=False, domain=DOMAIN, limits=limits
    )

    def wait(request: CountRequest, job: lro.Job[CountMetadata]) -> CountResponse:
        go.wait()
        return CountResponse()

    edge = edge_for(service, service.method("acme.v1.Things.Wait")(wait))
    with service:
        for _ in range(2):
            started(edge.handle(post({})))
        reply = edge.handle(post({}))
        check_error(reply, 429, Code.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED")
        assert headers_of(reply)["retry-after"] == "1"
        assert details_of(reply.body)["RetryInfo"]["retryDelay"] == "1s"
        assert len(service.list(lro.wire.ListOperationsRequest()).operations) == 2
        go.set()
    check_error(edge.handle(post({})), 503, Code.UNAVAILABLE, "UNAVAILABLE")


def test_operation_that_ends_within_the_start_is_returned_done(counting: CountService) -> None:
    """If the work ends within the call, the reply is done, and has no polling interval (§9.8)."""

    def quick(request: CountRequest) -> CountResponse:
        return CountResponse(total=request.steps)

    method = counting.service.method("acme.v1.Things.Quick", metadata=CountMetadata)(quick)
    reply = edge_for(counting.service, method).handle(post({"steps": 9}))
    assert started(reply)["response"] == {"@type": URL + "acme.v1.CountResponse", "total": 9}
    assert "retry-after" not in headers_of(reply)


# -- endpoints that the application writes itself ---------------------------------------------


def test_answer_returns_the_started_operation(counting: CountService) -> None:
    """A hand-written endpoint replies with the operation that it started."""
    reply = answer(counting.service, lambda: counting.count.start(CountRequest(1)), 5)
    body, status, headers = reply.parts
    assert (json.loads(body), status) == ({"name": names(counting)[0]}, 200)
    assert headers == {
        "content-type": "application/json; charset=utf-8",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "operation-id": names(counting)[0].removeprefix("operations/"),
        "retry-after": "5",
    }


def test_answer_returns_the_error_of_a_refused_start() -> None:
    """Our refusal becomes an error reply, but another library's exception is raised unchanged.

    For instance, a framework's 422 does not become INTERNAL.
    """

    def start(error: Exception) -> lro.Operation:
        raise error

    service = build().service
    reply = answer(service, lambda: start(lro.errors.TargetBusy("x")))
    check_error(reply, 409, Code.ABORTED, "TARGET_BUSY")
    with pytest.raises(KeyError):
        answer(service, lambda: start(KeyError("theirs")))


def test_answer_accepts_an_awaited_start(counting: CountService) -> None:
    """An awaited start returns the operation, or its error."""

    async def main() -> list[int]:
        started = await answer_async(counting.service, counting.count.start_async(CountRequest(1)))
        counting.service.close()
        refused = await answer_async(counting.service, counting.count.start_async(CountRequest(1)))
        return [started.status, refused.status]

    assert asyncio.run(main()) == [200, 503]


OWN_PATH, BATCH = "/v2/own:path", "BatchGetOperations"


def declare(counting: CountService, name: str, **options: Any) -> lro.Method[Any, Any, Any]:
    """Declare a method with the counting messages and another name."""
    return counting.declare(f"acme.other.Things.{name}", options=lro.Options(**options))


def test_starts_are_served_at_the_paths_of_the_dict(counting: CountService) -> None:
    own = declare(counting, "Count", path=OWN_PATH)
    count = Start(counting.count, metadata=lambda request: CountMetadata(percent=7))
    starts = {PATH: counting.count, "/v1/a:b": own, "/c": count}
    edge = OperationsEdge(counting.service, starts=starts)
    for path in (PATH, "/v1/a:b", "/c"):
        started(edge.handle(ask("POST", path, {})))
    for path in (OWN_PATH, "/v1/a", "/any/thing", "/"):
        check_error(edge.handle(ask("POST", path, {})), 404, Code.NOT_FOUND, "ROUTE_NOT_FOUND")
    assert len(names(counting)) == 3


def test_all_methods_that_have_a_path_are_served_there(counting: CountService) -> None:
    """``starts=True`` serves only methods that have ``path=`` and are declared before the edge."""
    declare(counting, "Count", path=OWN_PATH)
    edge = OperationsEdge(counting.service, starts=True)
    declare(counting, "Later", path="/v1/later")
    started(edge.handle(ask("POST", OWN_PATH, {})))
    none = OperationsEdge(counting.service)
    for one, path in ((edge, PATH), (edge, "/v1/later"), (none, OWN_PATH)):
        check_error(one.handle(ask("POST", path, {})), 404, Code.NOT_FOUND, "ROUTE_NOT_FOUND")


def test_path_that_is_served_twice_is_refused(counting: CountService) -> None:
    """If a path is served twice, the error names its first use; a dict can choose one method."""
    one = declare(counting, "One", path=OWN_PATH)
    declare(counting, "Two", path=OWN_PATH)
    count = counting.count
    cases: list[tuple[Any, str, str, str]] = [
        ({"/v1/operations:batchGet": count}, "/v1/operations:batchGet", "Count", BATCH),
        ({"/v1/operations/x:cancel": count}, "/v1/operations/x:cancel", "Count", "CancelOperation"),
        ({"/v1/a:b": one, "/v1/%61:b": count}, "/v1/%61:b", "Count", one.full_name),
        (True, OWN_PATH, "Two", one.full_name),
    ]
    for starts, path, name, other in cases:
        wanted = rf"^starts: '{path}' cannot start acme.*Things.{name}: it is served as {other}$"
        with pytest.raises(lro.DeclarationError, match=wanted):
            OperationsEdge(counting.service, starts=starts)
    started(edge_for(counting.service, one, OWN_PATH).handle(ask("POST", OWN_PATH, {})))


def test_start_with_a_query_is_refused(counting: CountService) -> None:
    """A start with a query is refused, so that no field in the query is overlooked (spec §5.8)."""
    edge = edge_of(counting)
    for query in ("validateOnly=true", "requestId=a", "nonsense=1", "alt=proto", "%zz", "name=x"):
        reply = edge.handle(ask("POST", f"{PATH}?{query}", {}))
        check_error(reply, 400, Code.INVALID_ARGUMENT, "MALFORMED_REQUEST")
    assert names(counting) == []


def test_path_of_a_start_may_have_a_get_of_the_interface(counting: CountService) -> None:
    """A path may have a GET of the interface and a POST that starts operations."""
    edge = OperationsEdge(counting.service, starts={"/v1/operations": counting.count})
    started(edge.handle(ask("POST", "/v1/operations", {})))
    assert edge.handle(ask("GET", "/v1/operations")).status == 200


def read_nothing(request: CountRequest) -> CountResponse:
    """A function that is not a method."""
    return CountResponse()


async def awaited(*_: object) -> str:
    """A coroutine function, which nothing awaits."""
    return "projects/p"


def leave(*_: object) -> Any:
    """Raise an exception that would end the server, or one of its threads."""
    raise SystemExit


class Leaving(ValueError):
    """An exception whose text cannot be read."""

    __str__ = __repr__ = leave  # type: ignore[assignment]


def refuse(*_: object) -> None:
    """Raise an error whose text cannot be read."""
    raise Leaving


@pytest.mark.parametrize(
    ("wrong", "function"),
    [
        ("validate", leave),
        ("validate", refuse),
        ("validate", lambda *_: Leaving()),
        *[(option, leave) for option in ("exclusive_target", "parent", "metadata", "raw")],
    ],
)
def test_function_that_raises_system_exit_fails_its_own_call_only(
    wrong: str, function: Callable[..., Any]
) -> None:
    """On an event loop SystemExit would stop the server; the caller gets INTERNAL instead.

    This also holds if reading the text of a result or error raises SystemExit.
    """
    counting = build()
    of_method = {wrong: function} if wrong in ("validate", "exclusive_target") else {}
    method = declare(counting, "Leave", **of_method)
    options = {} if of_method else {wrong: function}
    edge = edge_for(counting.service, method, **options)
    request = post(b"{}", content_type="application/json")

    for reply in (edge.handle(request), asyncio.run(on_loop(edge.exchange(request)))):
        assert isinstance(reply, HttpReply)
        check_error(reply, 500, Code.INTERNAL, "INTERNAL")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"path": "v1/things"},
            "starts: must be a path such as /v1/images:resize, got 'v1/things'"
            " (it must begin with a slash)",
        ),
        ({"path": "/v1/a b"}, "starts: must be a path such as /v1/images:resize, got '/v1/a b' ("),
        (
            {"path": "/v1/*"},
            "starts: a wildcard must be in a variable, such as {name=things/*}, got",
        ),
        *[
            ({"starts": wrong}, "starts: must be True, False, or a dict of paths, each with a")
            for wrong in (None, 1, ["/v1/a"], "/v1/a")
        ],
        *[
            ({"starts": {PATH: wrong}}, "method: must be a method: decorate the function with")
            for wrong in (read_nothing, "acme.v1.Things.Count", None)
        ],
        ({"parent": "projects/p"}, "parent: must be a function, got 'projects/p'"),
        ({"metadata": CountMetadata()}, "metadata: must be a function, got "),
        ({"raw": True}, "raw: must be a function, got True"),
        ({"starts": True}, "starts: is True, but no method of the service has been declared"),
        ({"parent": awaited}, "parent: must be a plain function, which no event loop awaits"),
        ({"max_body": "1"}, "max_body: must be a whole number from 1 to 1099511627776, got '1'"),
        ({"poll_seconds": 1.5}, "poll_seconds: must be a whole number from 1, got 1.5"),
        ({"trusted_origins": "https://a.example"}, "trusted_origins: must be several texts"),
    ],
)
def test_wrong_options_are_refused_at_construction(options: Any, sentence: str) -> None:
    """The message about a wrong option names the option and its valid values."""
    counting = build()
    make: Callable[..., object] = functools.partial(edge_of, counting)
    if "starts" in options:
        make = functools.partial(OperationsEdge, counting.service)
    with pytest.raises(lro.DeclarationError) as refused:
        make(**options)
    assert str(refused.value).startswith(sentence)
