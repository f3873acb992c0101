"""A caller's mistake raises an error before anything is sent, and never raises a CallError."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import httpx
import pytest
import respx

import lro
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro_client import AsyncClient, CallError, Client, Polling, Retry, Routes, UnreadableReply
from lro_client.filters import field
from lro_client.testing import ScriptedServer
from lro_client.transports import (
    AsyncHttpTransport,
    AsyncLocalTransport,
    HttpTransport,
    LocalTransport,
)
from tests.client.faces import URL, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeRequest,
    ResizeResponse,
    body_of,
    reply,
    running,
)
from tests.client.test_groups import client_of, group_of, plan

TARGET = "/v1/images:resize"
ID = "9A1b2c3d-4e5f-4a6b-8c7d-0e1f2a3b4c5d"


class Model:
    """A class of a library such as pydantic, for which this library has no codec."""

    def model_dump(self) -> dict[str, Any]:
        return {}

    @classmethod
    def model_validate(cls, value: object) -> Model:
        return cls()


Ask = Callable[[Any], object]
"""Makes a mistake with the given client."""


def start(target: Any = TARGET, message: Any = None, **more: Any) -> Ask:
    """Return a call of ``start`` with these arguments; arguments that are not given are valid."""
    options = {"message": {} if message is None else message, **TYPES, **more}
    return lambda client: client.start(target, **options)


def each(verb: str, *values: Any) -> list[Ask]:
    """Return one call of this method for each value."""
    return [lambda client, value=value: getattr(client, verb)(value) for value in values]


def timed(timeout: Any) -> list[Ask]:
    return [
        lambda client: client.wait(NAME, timeout=timeout),
        lambda client: client.operation(NAME, **TYPES).wait(timeout),
        lambda client: client.operation(NAME, **TYPES).result(timeout),
        lambda client: client.operation(NAME, **TYPES).cancel_and_wait(timeout),
        lambda client: client.group([]).wait(timeout=timeout),
        lambda client: client.group([]).results(timeout),
    ]


def updates(every: float) -> Ask:
    """Return a call of ``updates`` with this interval."""
    return lambda client: next(iter(client.operation(NAME, **TYPES).updates(every=every)))


MESSAGES = {
    "must be a message, such as .*, got None": lambda client: client.start(TARGET, None, **TYPES),
    "got 5$": start(message=5),
    "got 'text'": start(message="text"),
    "must be an? .*got": [start(message=[1]), start(message=lro.Duration(5))],
    r"give an instance of it: ResizeRequest\(\.\.\.\)": start(message=ResizeRequest),
    "give types=, a TypeRegistry with a codec factory for it": start(message=Model()),
    "has no JSON": [
        start(message={"a": value}) for value in ("\ud800", {1, 2}, object(), math.nan)
    ],
}
"""Calls with invalid messages, by the error message that each call must raise."""

STARTS = {
    "^response: .*give the class itself: ResizeResponse, got": start(response=ResizeResponse()),
    "put such a value into a field of a message, got": start(response=list[ResizeResponse]),
    r"^metadata: must be a message class, .*lro\.AnyMessage, got <class 'int": start(metadata=int),
    r"^metadata: must be a message class, .*lro\.AnyMessage, got 'Meta'": start(metadata="Meta"),
    "give types=, a TypeRegistry with a codec factory for it, got": start(response=Model),
    "^validate_only: must be True or False, got 'no'": start(validate_only="no"),
    "^target: must be a path such as /v1/images:resize, .*, got ''": start(""),
    "^target: must be a text, got 5": start(5),
    "^target: must begin with a slash": [
        start(target) for target in ("v1/x:start", "@other/x", "ftp://other/x", "//other/x")
    ],
    "^request_id: must be a text of 1 to 128 characters, or a UUID, got 5": start(request_id=5),
    "^request_id: must be a text of 1 to 128 characters, got 129": start(request_id="x" * 129),
    "^request_id: must not have control characters, .*, got U.0000": start(request_id="a\0"),
    "^request_id: must not begin or end with white space, got ' a'": start(request_id=" a"),
    "^request_id: must not be a UUID of zeros only": start(request_id=uuid.UUID(int=0)),
    "widths": start(message=ResizeRequest(widths=("x",))),  # type: ignore[arg-type]
}
"""Calls of ``start`` with other invalid arguments, by the error message that each must raise."""

BAD_NAMES = {
    "^name: must be a text that is not empty": "",
    "^name: must be a.*got None": None,
    "^name: must be a.*got 5": 5,
    "what follows /v1/ in its URL, got 'http://test": f"{URL}/v1/{NAME}",
    "what follows /v1/ in its URL, got 'grpc:": f"grpc://test:1/{NAME}",
    "no segment that is empty, . or .., got 'operations/'": "operations/",
    "^name: must have no segment that is empty, . or .., got 'operations//a'": "operations//a",
    "^name: must have no segment .*'/operations/a'": "/operations/a",
    "^name: must have no segment .*'/'": "/",
    "^name: must have no segment .*'operations/./a'": "operations/./a",
    "^name: must have no segment .*'operations/../admin'": "operations/../admin",
    "^name: must have no segment .*'..'": "..",
}
VERBS = ("get", "cancel", "delete", "wait", "operation")
FUTURE = SimpleNamespace(operation=lro.Operation(name=NAME))
"""Stands for a future of google-api-core, which has the operation as an attribute."""

NAMES: dict[str, Any] = {
    **{
        says: [ask for verb in VERBS for ask in each(verb, name)]
        for says, name in BAD_NAMES.items()
    },
    "name: must be a text that is not empty": each("get", lro.wire.GetOperationRequest("")),
    "; pass its name: operation.name, got Operation": each("get", lro.Operation(name=NAME)),
    "; pass its name: future.operation.name, got": [
        ask for verb in VERBS for ask in each(verb, FUTURE)
    ],
    "must be a name or a GetOperationRequest, got": each(
        "get", lro.wire.CancelOperationRequest(NAME)
    ),
}

FILTERS = (
    *("state() = FAILED", "done=true", "done", "metadata.x:3", "a/b > 5", "a/b AND c", "NOT done"),
    *('name = "operations/a"', "name='operations/a'", "f()", "projects/p/locations"),
)
LISTS = {
    "parent: must be a name": each("list", f"{URL}/v1"),
    "first comes the parent, a text, then the filter": each("list", 5, field("a") == 1),
    "the filter of a request is a text": each(
        "list", lro.wire.ListOperationsRequest(filter=field("a") == 1)
    ),
    "must have no segment that is empty": each("list", "projects//p", "operations/.."),
    r"^parent: .*\(a filter is given as filter=": each("list", *FILTERS),
    "page_size: must be a whole number, got '5'": lambda client: client.list(page_size="5"),
    "page_size: must be a whole number, got True": lambda client: client.list(page_size=True),
    "page_token: must be a text, got 5": [
        lambda client: client.list(page_token=5),
        lambda client: client.list(lro.wire.ListOperationsRequest("", page_token=5)),
    ],
    "name: must be a text, got 5": each("list", lro.wire.ListOperationsRequest(5)),
    "a filter is a text or an Expression": [
        lambda client, wrong=wrong: client.list("", wrong) for wrong in (5, True, None, field("a"))
    ],
    "ListOperationsRequest is the whole request": [
        lambda client, given=given: client.list(lro.wire.ListOperationsRequest(), given)
        for given in ("done = true", field("a") == 1)
    ],
}

TIMES = {
    "a timeout is a timedelta, or seconds as a number": [
        ask for wrong in ("5", True, math.nan, [1]) for ask in timed(wrong)
    ],
    r"timeout: must be an lro\.Duration": each(
        "wait", lro.wire.WaitOperationRequest(NAME, timeout=5)
    ),
    "WaitOperationRequest is the whole request": lambda client: client.wait(
        lro.wire.WaitOperationRequest(NAME), timeout=1
    ),
    "every: must be seconds above 0": [updates(every) for every in (0, -1, math.nan)],
    "seconds|every": updates("5"),
}

OTHERS = {
    "^names?: must be": each("batch_get", NAME, None, [""], [5], [f"{URL}/v1/{NAME}"]),
    "a group is of handles": each("group", [NAME]),
    "group|handles|iterable": each("group", None),
    r"a whole number, got 0\.2": lambda client: client.group([]).wait(0.2),
    "a whole number, got 'x'": lambda client: client.group([]).wait("x"),
}

TABLES: dict[str, dict[str, Any]] = {
    "message": MESSAGES,
    "start": STARTS,
    "name": NAMES,
    "list": LISTS,
    "time": TIMES,
    "others": OTHERS,
}


def unlike(table: dict[str, Any], client: Any) -> dict[str, str]:
    """Return the outcome of each call that did not raise the expected error."""
    wrong = {}
    for says, asks in table.items():
        for number, ask in enumerate(asks if isinstance(asks, list) else [asks]):
            try:
                said = f"no error, but {ask(client)!r}"
            except CallError as exc:
                said = f"a call that failed: {exc}"
            except (TypeError, ValueError) as exc:
                said = str(exc)
            if not re.search(says, said) or re.search("(positional|keyword) arg", said):
                wrong[f"{says} ({number})"] = said
    return wrong


def local_of(face: Face) -> Any:
    """Make a transport to a service in this process."""
    kind = LocalTransport if face.name == "sync" else AsyncLocalTransport
    return face.run(kind, lro.Service(MemoryStore(), InlineExecutor()))


def grpc_of(face: Face, **options: Any) -> Any:
    """Make a gRPC transport to an address without a server."""
    pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    from lro_client.transports.grpc import AsyncGrpcTransport, GrpcTransport

    kind = GrpcTransport if face.name == "sync" else AsyncGrpcTransport
    return face.run(lambda: kind("localhost:1", **options))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_wrong_argument_is_refused_and_sends_nothing(
    table: dict[str, Any], face: Face, server: respx.Router
) -> None:
    """A wrong argument raises TypeError or ValueError with its name and how to correct it."""
    assert unlike(table, face.client()) == {}
    assert not server.calls


OVER_HTTP = {"must be an? .*got", "has no JSON", "^target: must begin with a slash", "widths"}
"""Errors that only HTTP raises, because HTTP sends the message as JSON to a path."""


@pytest.mark.parametrize("transport", [local_of, grpc_of])
def test_argument_errors_are_the_same_over_other_transports(transport: Any, face: Face) -> None:
    """Mistakes that do not depend on HTTP raise the same errors over the other transports."""
    client = face.client("", transport=transport(face))
    for table in TABLES.values():
        common = {says: ask for says, ask in table.items() if says not in OVER_HTTP}
        assert unlike(common, client) == {}


def test_unusual_parents_are_sent_unchanged(face: Face, server: respx.Router) -> None:
    server.get().mock(return_value=reply({}))
    client = face.client()
    for last in ("a b", "YQ==/locations/l", "x.y:z", "p=x", "(x)", "a<b", "o'brien", "p/x/-"):
        assert list(client.list(f"projects/{last}")) == []
        assert server.calls.last.request.url.path == f"/v1/projects/{last}/operations"


@pytest.mark.parametrize("given", [ID, uuid.UUID(ID), "order-17", f"{{{ID}}}", "\u00e9" * 128])
def test_request_id_is_a_uuid_or_any_text(given: Any, face: Face, server: respx.Router) -> None:
    """The client sends a UUID or a text unchanged, in upper or lower case."""
    route = server.post(TARGET).mock(return_value=reply(running()))
    face.client().start(TARGET, {}, **TYPES, request_id=given)
    assert body_of(route.calls.last.request) == {"requestId": str(given)}


CURE = r"must be a UUID of 36 characters here, got 'order-17'; .*NAMESPACE_URL, 'order-17'\)$"


@attrs.frozen
class WithId:
    """A message that has the field of AIP-155 itself."""

    request_id: str = ""


@pytest.mark.parametrize("base", ["https://us-redis.googleapis.com", "https://example.com"])
def test_request_id_for_a_service_of_google_must_be_a_uuid(base: str) -> None:
    google = base.endswith(".googleapis.com")
    other = "https://file.googleapis.com" if not google else "https://example.com"
    for sent, whole in ((base, ""), (other, base)):
        with respx.mock(assert_all_called=False) as server, Client(sent) as client:
            route = server.post(f"{whole or sent}{TARGET}").mock(return_value=reply(running()))
            client.start(f"{whole}{TARGET}", {}, **TYPES, request_id=ID)
            if not google:
                client.start(f"{whole}{TARGET}", {}, **TYPES, request_id="order-17")
            else:
                with pytest.raises(lro.DeclarationError, match=CURE):
                    client.start(f"{whole}{TARGET}", {}, **TYPES, request_id="order-17")
            assert route.call_count == (1 if google else 2)


def test_request_id_of_a_message_with_that_field_must_be_a_uuid(
    face: Face, server: respx.Router
) -> None:
    route = server.post(TARGET).mock(return_value=reply(running()))
    client = face.client()
    client.start(TARGET, WithId(), **TYPES, request_id=ID)
    for message, given in ((WithId(), "order-17"), (WithId("order-17"), "")):
        with pytest.raises(lro.DeclarationError, match=CURE):
            client.start(TARGET, message, **TYPES, request_id=given)
    client.start(TARGET, {"requestId": "order-17"}, **TYPES)
    assert route.call_count == 2


def test_unregistered_class_is_accepted_if_a_factory_has_its_codec(
    face: Face, server: respx.Router
) -> None:
    """An unregistered class may be used if a factory of the registry makes its codec."""

    class Codec:
        python, shape = Model, None

        def dump(self, message: Model) -> lro.types.Json:
            return message.model_dump()

        def load(self, payload: lro.types.Json, *, strict: bool) -> Model:
            return Model.model_validate(payload)

    named = lro.message("acme.v1.Named")(type("Named", (Model,), {}))
    types = lro.TypeRegistry(factories=[lambda cls: Codec() if issubclass(cls, Model) else None])
    server.post(TARGET).mock(return_value=reply(running()))
    client = face.client(types=types)
    assert client.start(TARGET, named(), response=named, metadata=named).name == NAME


def test_metadata_that_grpc_cannot_send_is_refused_with_the_transport(face: Face) -> None:
    for wrong in (("Key", "a"), ("key", "ä"), ("key", b"a"), ("key-bin", "a"), "key", (1, 2)):
        with pytest.raises(lro.DeclarationError, match="metadata: must be pairs of a key in lower"):
            grpc_of(face, metadata=[wrong])
    with pytest.raises(lro.DeclarationError, match=r"got \('authorization',\)$"):  # value hidden
        grpc_of(face, metadata=[("authorization", "Bearer s3cr3t\n")])


BASES = (
    *("", "localhost:8000", "/v1", "ftp://localhost", "gopher://localhost", "http://"),
    *("http://[::1", "http://localhost:99999", "http://localhost:x", "http://localhost/?key=1"),
    *("http://localhost/#/operations", "http://local host", "http://a..b:80", "http://a\nb"),
    *(f"http://{'a' * 64}.example", 5, None),
)


def test_base_url_beside_that_of_http_client_is_refused(face: Face) -> None:
    """A base URL in both our client and its HTTP client is an error, whose text has no password."""
    with pytest.raises(lro.DeclarationError) as refused:
        face.client("http://u:secret@test", http=face.http(base_url="http://u:secret@other"))
    assert str(refused.value) == (
        "base_url: is not that of the HTTP client: leave one of them out, or give a path here"
    )


@pytest.mark.parametrize(
    ("given", "known", "path"),
    [
        ("/api", URL, "/api"),
        (URL, URL, ""),
        (URL + "/", URL, ""),
        (URL, None, ""),
        (URL + "/api", None, "/api"),
        (URL + "/api/", None, "/api"),
        *[(f"{space}{URL}/api{space}", None, "/api") for space in ("\n", " ", "\r\n", "\t")],
    ],
)
def test_base_url_path_is_appended_to_that_of_the_http_client(
    given: str, known: str | None, path: str, face: Face, server: respx.Router
) -> None:
    """A path is appended to the HTTP client's base URL. Giving the same full URL twice is allowed.

    White space around the URL is ignored, because a URL read from a file may end with a newline.
    """
    server.get(f"{path}/v1/{NAME}").mock(return_value=reply(running()))
    options = {} if known is None else {"base_url": known}
    assert face.client(given, http=face.http(**options)).get(NAME).name == NAME


POLICIES = [
    (Polling, "wait", [5, None]),
    (Polling, "jitter", [2, -0.1, True, "0.1"]),
    (Polling, "wait_first", [1, None]),
    (Polling, "hold_seconds", [math.nan, math.inf, -1, "20"]),
    (Polling, "retry", [5, Retry]),
    (Polling, "max_retry_after", [math.nan, -1]),
    (Polling, "connections", [0, 1.5, True]),
    (Retry, "codes", [5, {lro.Code.ABORTED}, frozenset({14})]),
    (Retry, "transport", [1, "yes"]),
    (Retry, "wait", [5, None]),
    (Retry, "attempts", [0, 1.5, True]),
    (Retry, "patience_seconds", [math.nan, -1]),
    (Retry, "max_retry_after", [math.inf, "60"]),
    *((Routes, option, [5]) for option in ("get", "watch", "wait_method")),
]


@pytest.mark.parametrize(("policy", "option", "values"), POLICIES)
def test_option_of_a_policy_is_checked_where_it_is_made(
    policy: Any, option: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(lro.DeclarationError, match=f"^{option}: must be "):
            policy(**{option: value})


OPTIONS: dict[str, Any] = {
    "base_url": BASES,
    "call_seconds": ["30", 0, True, math.inf],
    "polling": [5],
    "retry": [{}],
    "types": [[ResizeRequest]],
    "routes": ["/v1beta/{name=**}"],
    "clock": [5],
    "sleep": [5],
    "http": [URL, httpx.Client, httpx.AsyncClient],
    "transport": [URL],
}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Client, OPTIONS),
        (AsyncClient, OPTIONS),
        (HttpTransport, {"base_url": BASES}),
        (AsyncHttpTransport, {"base_url": BASES}),
    ],
)
def test_option_of_a_client_is_checked_when_it_is_made(make: Any, options: dict[str, Any]) -> None:
    """An option of the wrong type or form raises an error that names the option."""
    for option, values in options.items():
        for value in values:
            with pytest.raises(lro.DeclarationError, match=f"^{option}: must be "):
                make(**{"base_url": URL, option: value})


def test_transport_or_http_client_of_the_other_face_is_refused(face: Face) -> None:
    """If a transport is of the wrong kind, blocking or async, the error names the right class."""
    service = lro.Service(MemoryStore(), InlineExecutor())
    local, kind = (
        (AsyncLocalTransport, httpx.AsyncClient)
        if face.name == "sync"
        else (LocalTransport, httpx.Client)
    )
    transport: Any = face.run(local, service)
    right = "such as LocalTransport" if face.name == "sync" else "such as AsyncLocalTransport"
    with pytest.raises(lro.DeclarationError, match=right):
        face.make("", transport=transport)
    right = r"such as httpx\.Client" if face.name == "sync" else r"such as httpx\.AsyncClient"
    with pytest.raises(lro.DeclarationError, match=f"http: .*{right}"):
        face.make(URL, http=kind(verify=False))


@pytest.mark.parametrize("transport", [LocalTransport, AsyncLocalTransport])
def test_local_transport_takes_a_service_and_a_caller(transport: Any) -> None:
    """A wrong service or caller raises an error when the transport is made."""
    with pytest.raises(lro.DeclarationError, match=r"^service: must be an lro\.Service"):
        transport(None)
    service = lro.Service(MemoryStore(), InlineExecutor())
    wanted = r"^caller: must be a text or a whole number, .*, got 5\.0"
    with service, pytest.raises(lro.DeclarationError, match=wanted):
        transport(service, caller=5.0)


def test_service_refuses_a_filter_in_the_place_of_a_request() -> None:
    service: Any = lro.Service(MemoryStore(), InlineExecutor())
    with pytest.raises(TypeError, match=r"a ListOperationsRequest\(filter=\.\.\.\), got 'done"):
        service.list("done = true")


@pytest.mark.parametrize("offers", [{"batch_get": True}, {"lists": False, "wait": False}])
@pytest.mark.parametrize("bad", ["operations//a", "a//operations/b"])
def test_invalid_name_in_a_reply_fails_only_its_operation(
    bad: str, offers: Any, face: Face
) -> None:
    """If a server returns an invalid name, only the operation of that name fails."""
    server = ScriptedServer(**offers)
    names: list[Any] = plan(server, 9, ends_after=3.0)
    server.operation(bad, ends_after=None)
    given = lro.Operation(name=bad)
    *good, refused = group_of(face, client_of(face, server), [*names, given]).outcomes(60)
    assert good == [ResizeResponse(number) for number in range(9)]
    assert isinstance(refused, UnreadableReply)
    assert "the server gave a name that has no place in a path: " in str(refused)


ROUTES = ("get", "list", "delete", "cancel", "wait", "batch", "watch")


@pytest.mark.parametrize("given", ["get", "list", "wait"])
def test_routes_not_given_take_the_prefix_of_the_given_one(given: str) -> None:
    below = Routes.below("/v1beta")
    routes = Routes(**{given: getattr(below, given)})
    assert routes == below
    assert [getattr(Routes(), verb).removeprefix("/v1/{name=**}") for verb in ROUTES] == [
        *[""] * 3,
        ":cancel",
        ":wait",
        ":batchGet",
        ":watch",
    ]
    assert Routes.below("/v1beta/") == below
    with pytest.raises(lro.InvalidArgument, match="must begin with a slash"):
        Routes.below("v1beta")
    for make in (Client, AsyncClient):
        with pytest.raises(lro.DeclarationError):
            make(URL, routes=Routes(get="v1/{name}"))


def test_routes_of_names_that_are_ids() -> None:
    """A `get` route below a collection also sets the routes of the other verbs and of List."""
    routes = Routes(get="/v1/operations/{name=**}")
    assert (routes.cancel, routes.list) == ("/v1/operations/{name=**}:cancel", "/v1/{name=**}")


def test_other_verbs_use_the_route_of_get(face: Face, server: respx.Router) -> None:
    """If only the route of Get is given, the other verbs use the prefix of that route."""
    server.route(path__startswith="/v1beta/").mock(return_value=reply(running()))
    client = face.client(routes=Routes(get="/v1beta/{name=**}"))
    for verb in (client.get, client.cancel, client.delete, client.wait):
        verb(NAME)
    assert len(server.calls) == 4
