"""HTTP and gRPC answer a request with the same result, error code and details (spec §12.4)."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import product
from typing import Any
from urllib.parse import quote, urlencode

import attrs
import httpx
import pytest

pytest.importorskip("uvicorn")

from google.longrunning import operations_proto_pb2 as pb
from google.protobuf import empty_pb2, json_format
from google.rpc.status_pb2 import Status as StatusProto

import grpc
import lro
import lro.asgi
import lro.wire
from lro.protobuf import operation_from_proto, status_from_proto
from tests.grpc.serving import serving
from tests.http.counting_service import (
    CountMetadata,
    CountRequest,
    CountResponse,
    CountService,
    Wrapped,
    build,
)
from tests.http.servers import HOST, uvicorn_serving
from tests.waiting import PATIENCE

START = "/acme.v1.Things.Count"
REPLIES = {
    "GetOperation": pb.Operation,
    "ListOperations": pb.ListOperationsResponse,
    "DeleteOperation": empty_pb2.Empty,
    "CancelOperation": empty_pb2.Empty,
    "WaitOperation": pb.Operation,
}
Fields = dict[str, Any]


@attrs.frozen
class Asked:
    """One request: a verb (or Start), the JSON fields of its message, and the caller."""

    verb: str
    fields: Fields
    caller: str = "ann"


@attrs.frozen
class Place:
    """A service, and functions that call it over HTTP, gRPC on threads and gRPC on asyncio."""

    counting: CountService
    ways: Mapping[str, Callable[[Asked], Any]]


# -- calls over HTTP and gRPC -------------------------------------------------------------------


def by_http(client: httpx.Client, asked: Asked) -> Any:
    """Call over HTTP; return the reply's JSON, or the error's code, message and details."""
    fields = dict(asked.fields)
    headers = {"x-caller": asked.caller}
    if asked.verb == "Start":
        reply = client.post(START, json=fields, headers=headers)
    elif asked.verb == "ListOperations":
        parent = fields.pop("name", "")
        path = f"/v1/{quote(parent)}/operations" if parent else "/v1/operations"
        query = urlencode({key: json_text(value) for key, value in fields.items()})
        reply = client.get(f"{path}?{query}", headers=headers)
    else:
        method, suffix = {
            "GetOperation": ("GET", ""),
            "DeleteOperation": ("DELETE", ""),
            "CancelOperation": ("POST", ":cancel"),
            "WaitOperation": ("POST", ":wait"),
        }[asked.verb]
        path = f"/v1/{quote(fields.pop('name'))}{suffix}"
        body = {"json": fields} if method == "POST" else {}
        reply = client.request(method, path, headers=headers, **body)  # type: ignore[arg-type]
    value = reply.json()
    if reply.status_code == 200:
        return value
    error = value["error"]
    return [error["status"], error["message"], error["details"]]


def json_text(value: Any) -> str:
    """Return a value as text for a query string."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def by_grpc(channel: Any, counting: CountService, asked: Asked) -> Any:
    """Call over gRPC; return the same values as ``by_http``."""
    types = counting.service.types
    if asked.verb == "Start":
        path = "/" + "/".join(counting.count.full_name.rsplit(".", 1))
        payload, reply = start_payload(asked.fields, types), None
    else:
        path = f"/google.longrunning.Operations/{asked.verb}"
        fields = {**asked.fields}
        # Older generated classes lack returnPartialSuccess, so it is sent as bytes (spec §1.6).
        more = b"\x28\x01" if fields.pop("returnPartialSuccess", False) else b""
        request = json_format.ParseDict(fields, getattr(pb, f"{asked.verb}Request")())
        payload = request.SerializeToString() + more
        reply = REPLIES[asked.verb]
    try:
        metadata = (("x-caller", asked.caller), ("blob-bin", b"\x00"))
        found = channel.unary_unary(path)(payload, metadata=metadata, timeout=PATIENCE)
    except grpc.RpcError as exc:
        proto = StatusProto.FromString(dict(exc.trailing_metadata())["grpc-status-details-bin"])
        status = status_from_proto(proto)
        assert (exc.code().value[0], exc.details()) == (status.code, status.message)
        details = [types.to_json(detail) for detail in status.details]
        return [exc.code().name, status.message, details]
    message = (reply or pb.Operation).FromString(found)
    if isinstance(message, pb.Operation):
        return lro.wire.operation_to_json(operation_from_proto(message), types)
    if isinstance(message, pb.ListOperationsResponse):
        page = {}
        if message.operations:
            page["operations"] = [
                lro.wire.operation_to_json(operation_from_proto(one), types)
                for one in message.operations
            ]
        return page | ({"nextPageToken": "..."} if message.next_page_token else {})
    return {}


def start_payload(fields: Fields, types: lro.TypeRegistry) -> bytes:
    """Return the binary form of a start: its message, then the start's options."""
    options = pytest.importorskip("lro._messages.protobuf.binary")
    beside = options.StartOptions(
        fields.get("requestId", ""), bool(fields.get("validateOnly", False))
    )
    own = {k: v for k, v in fields.items() if k not in ("requestId", "validateOnly")}
    packed = types.pack(types.load(own, CountRequest))
    written: bytes = types.binary_payload(packed) + options.write_options(beside)
    return written


# -- the services -------------------------------------------------------------------------------


def authenticate(headers: Mapping[str, str]) -> str:
    """Return the caller's name; without a name, or for ``mallory``, raise an error."""
    assert not any(name.endswith("-bin") for name in headers)
    caller = headers.get("x-caller", "")
    if not caller:
        raise lro.errors.Unauthenticated("say who you are")
    if caller == "mallory":
        raise ZeroDivisionError("secret")
    return caller


def authorize(caller: str, verb: str, name: str) -> None:
    """Refuse the caller ``bob``."""
    if caller == "bob":
        raise lro.errors.PermissionDenied("not bob")


def refuse(request: CountRequest) -> Any:
    """Validate a request: its label chooses an error to raise or a value to return."""
    refused: dict[str, Exception] = {
        "unnamed": lro.InvalidArgument("label", "must not be 'unnamed'"),
        "full": lro.errors.ResourceExhausted("too much to do"),
        "secret": ZeroDivisionError("secret"),
        "negative": ValueError("steps must not be negative"),
        "data loss": lro.StatusError(lro.Code.DATA_LOSS, "secret", why="LOST"),
        "help": lro.StatusError(
            lro.Code.OUT_OF_RANGE,
            "no",
            (lro.types.Help(links=()), lro.types.LocalizedMessage("de", "nein")),
        ),
    }
    if request.label in refused:
        raise refused[request.label]
    return {"no": False, "reason": "secret", "yes": True}.get(request.label)


def plain() -> CountService:
    """Make a counting service in which everything works."""
    counting = build(authorize=authorize)
    alone = lambda request: "it" if request.label == "busy" else ""  # noqa: E731
    options = lro.Options(validate=refuse, exclusive_target=alone)
    method = counting.declare("acme.v1.Things.Measure", options=options)
    for _ in range(3):
        counting.start("projects/many")
    return CountService(counting.service, method)


def raising(error: Exception) -> CountService:
    """Make a counting service whose store raises this error."""

    def fail() -> None:
        raise error

    return build(Wrapped(fail, "get", "list", "delete", "update", "insert"))


SERVICES: Mapping[str, Callable[[], CountService]] = {
    "plain": plain,
    "only Get": lambda: build(verbs=[]),
    "private": lambda: build(owner_only=True),
    "away": lambda: raising(lro.errors.Unavailable("the store is away")),
    "broken": lambda: raising(ZeroDivisionError("secret")),
}


@pytest.fixture(scope="module")
def places() -> Iterator[Callable[[str], Place]]:
    made: dict[str, Place] = {}
    with contextlib.ExitStack() as stack:

        def place(name: str) -> Place:
            if name not in made:
                made[name] = stack.enter_context(served(SERVICES[name]()))
            return made[name]

        yield place


@contextlib.contextmanager
def served(counting: CountService) -> Iterator[Place]:
    """Serve a counting service with uvicorn and both kinds of gRPC server."""
    service = counting.service
    app = lro.asgi.OperationsApp(
        service, starts={START: counting.count}, parents=["projects/*"], authenticate=authenticate
    )
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(uvicorn_serving(app))
        client = stack.enter_context(httpx.Client(base_url=f"http://{HOST}:{port}", verify=False))
        ways: dict[str, Callable[[Asked], Any]] = {"http": lambda asked: by_http(client, asked)}
        for kind in ("threads", "asyncio"):
            address = stack.enter_context(serving(kind, service, authenticate=authenticate))
            channel = stack.enter_context(grpc.insecure_channel(address))
            ways[kind] = lambda asked, channel=channel: by_grpc(channel, counting, asked)
        yield Place(counting, ways)


# -- the table --------------------------------------------------------------------------------

Prepare = Callable[[CountService], Fields]
MISSING = "operations/none"
ID = str(uuid.UUID(int=5))


def named(name: str, **more: Any) -> Prepare:
    """Prepare a request with the name of an operation, or of a parent."""
    return lambda counting: {"name": name, **more}


def fresh(**more: Any) -> Prepare:
    """Prepare a request for a new operation."""
    return lambda counting: {"name": counting.start(metadata=CountMetadata(percent=7)), **more}


def ended(end: Callable[[Any], object]) -> Prepare:
    """Prepare a request for an operation that ``end`` has ended."""

    def prepare(counting: CountService) -> Fields:
        name = counting.start()
        assert end(counting.service.reporter(name))
        return {"name": name}

    return prepare


def failing(reporter: Any) -> Any:
    """End an operation with an error that has details."""
    error = lro.StatusError(lro.Code.ABORTED, "not now", (lro.types.RetryInfo(),), "LATER")
    return reporter.fail(error, metadata=CountMetadata(percent=3))


def cancelled(counting: CountService) -> Fields:
    """Prepare a request for a cancelled operation."""
    name = counting.start()
    counting.service.cancel(name)
    assert counting.service.reporter(name).acknowledge_cancel()
    return {"name": name}


def of_ann(counting: CountService) -> Fields:
    """Prepare a request for an operation of ``ann``."""
    return {"name": counting.start(caller="ann")}


def again(counting: CountService) -> Fields:
    """Prepare a start whose request ID was used for another request."""
    counting.count.start(CountRequest(steps=1), request_id=ID, caller="ann")
    return {"steps": 2, "requestId": ID}


def busy(counting: CountService) -> Fields:
    """Prepare a start on a target that another operation occupies."""
    with contextlib.suppress(lro.errors.TargetBusy):
        counting.count.start(CountRequest(label="busy"))
    return {"label": "busy"}


Get, List, Delete, Cancel, Wait = REPLIES
ONES = (Get, Delete, Cancel, Wait)
WRONG: list[tuple[str, Any]] = [("pageSize", -1), ("pageToken", "x"), ("filter", "done =")]
WRONG += [("filter", "nothing = 1"), ("returnPartialSuccess", True)]
TABLE: list[tuple[str, str, Prepare]] = [
    ("plain", Get, fresh()),
    ("plain", Get, ended(lambda r: r.complete(CountResponse(total=9)))),
    ("plain", Get, ended(lambda r: r.finish())),
    ("plain", Get, ended(failing)),
    ("plain", Get, cancelled),
    ("plain", List, named("projects/many", pageSize=2)),
    ("plain", List, named("projects/many", pageSize=2, filter="done = false")),
    ("plain", List, named("projects/none")),
    *[("plain", List, named("projects/p", **{key: value})) for key, value in WRONG],
    ("plain", Delete, fresh()),
    ("plain", Cancel, fresh()),
    ("plain", Cancel, cancelled),
    ("plain", Wait, fresh(timeout="0s")),
    ("plain", Wait, fresh(timeout="0.010s")),
    ("plain", Wait, fresh(timeout="-1s")),
    ("plain", Wait, named(MISSING, timeout="-1s")),
    ("plain", Wait, ended(lambda r: r.complete(CountResponse(total=9)))),
    ("private", Get, of_ann),
    ("private", List, named("projects/p")),
    *[("plain", verb, named("operations/-")) for verb in ONES],
    *[(at, verb, named(MISSING)) for at, verb in product(SERVICES, ONES) if at != "private"],
    *[(at, List, named("projects/p")) for at in ("only Get", "away", "broken")],
    *[
        ("plain", "Start", lambda _, fields=fields: fields)  # type: ignore[misc]
        for fields in (
            {"steps": 3, "label": "x"},
            {"requestId": ID.upper().replace("5", "6")},
            {"requestId": str(uuid.UUID(int=0))},
            {"requestId": str(uuid.UUID(int=0)), "validateOnly": True},
            {"validateOnly": True},
            {"label": "unnamed"},
            {"label": "unnamed", "validateOnly": True},
            {"label": "full"},
            {"label": "secret"},
            {"label": "data loss"},
            {"label": "help"},
        )
    ],
    ("plain", "Start", again),
    ("plain", "Start", busy),
    ("away", "Start", lambda _: {}),
    ("broken", "Start", lambda _: {}),
]
CALLERS = {"": "UNAUTHENTICATED", "bob": "PERMISSION_DENIED", "mallory": "INTERNAL"}


def anonymous(found: Any, name: str) -> Any:
    """Replace the operation's name and the page token in an answer with placeholders."""
    text = json.dumps(found, sort_keys=True)
    name = name if name != MISSING else ""
    name = name or (found.get("name", "") if isinstance(found, dict) else "")
    if isinstance(found, dict) and "nextPageToken" in found:
        text = json.dumps({**found, "nextPageToken": "..."}, sort_keys=True)
    return json.loads(text.replace(name, "NAME") if name else text)


@pytest.mark.parametrize(
    ("where", "verb", "prepare"), TABLE, ids=[f"{n}-{w}-{v}" for n, (w, v, _) in enumerate(TABLE)]
)
def test_grpc_and_http_give_equal_results(
    where: str, verb: str, prepare: Prepare, places: Callable[[str], Place]
) -> None:
    """Called with equal requests, HTTP and both gRPC servers give equal results or errors."""
    place = places(where)
    found = {}
    for way, ask in place.ways.items():
        fields = prepare(place.counting)
        found[way] = anonymous(ask(Asked(verb, fields)), fields.get("name", ""))
    assert found["threads"] == found["http"]
    assert found["asyncio"] == found["http"]
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize("verb", [*REPLIES, "Start"])
def test_grpc_and_http_refuse_callers_alike(verb: str, places: Callable[[str], Place]) -> None:
    """If a hook refuses a caller or fails, HTTP and gRPC reply with the same error."""
    name = {List: {"name": "projects/p"}, "Start": {}}
    for caller, wanted in CALLERS.items():
        asked = Asked(verb, name.get(verb, {"name": MISSING}), caller)
        found = [ask(asked) for ask in places("plain").ways.values()]
        assert [one[0] for one in found] == [wanted] * 3
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("verb", ["WaitOperation", "Start"])
def test_stopping_service_refuses_alike_in_all_ways(verb: str) -> None:
    """While the service stops, HTTP and gRPC refuse Wait and starts: UNAVAILABLE and RetryInfo."""
    counting = build()
    fields = {"name": counting.start()} if verb == "WaitOperation" else {}
    with served(counting) as place:
        counting.service.edges.end_waits()
        counting.service.edges.work.stop(timedelta())
        found = [ask(Asked(verb, fields)) for ask in place.ways.values()]
    code, message, details = found[0]
    assert (code, message) == ("UNAVAILABLE", "the service is stopping")
    assert details[1]["retryDelay"] == "1s"
    assert found[0] == found[1] == found[2]


def test_refusal_by_validate_is_the_same_in_all_ways(places: Callable[[str], Place]) -> None:
    """If ``validate`` raises ValueError or returns False, a start fails with INVALID_ARGUMENT."""
    internal = ["INTERNAL", "the server failed internally"]
    for way in places("plain").ways.values():
        found = [way(Asked("Start", {"label": label}))[:2] for label in ("negative", "no")]
        assert found == [
            ["INVALID_ARGUMENT", "request: steps must not be negative"],
            ["INVALID_ARGUMENT", "request: is refused by the method"],
        ]
        for label in ("reason", "secret"):
            assert way(Asked("Start", {"label": label}))[:2] == internal
        assert "name" in way(Asked("Start", {"label": "yes"}))


def test_a_request_id_is_one_for_all_ways(places: Callable[[str], Place]) -> None:
    """A start over HTTP, repeated over gRPC with its request ID, returns the same operation."""
    asked = Asked("Start", {"steps": 4, "requestId": str(uuid.UUID(int=99))})
    found = [ask(asked)["name"] for ask in places("plain").ways.values()]
    assert len(set(found)) == 1


def test_request_id_of_any_text_is_refused_over_grpc_with_the_cure(
    places: Callable[[str], Place],
) -> None:
    """Over HTTP any text is a request id. Over gRPC only a UUID is, as in AIP-155."""
    asked = Asked("Start", {"steps": 4, "requestId": "order-17"})
    http, *others = places("plain").ways.values()
    assert http(asked)["name"] == http(asked)["name"]
    for way in others:
        status, message, (info, *_) = way(asked)
        assert (status, info["reason"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST_ID")
        assert message.startswith("request_id: must be a UUID of 36 characters here, got")
        assert message.endswith("uuid.uuid5(uuid.NAMESPACE_URL, 'order-17')")
