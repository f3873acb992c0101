"""Mistakes of the caller: raised before anything is sent, and never as a call that failed."""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import Any

import attrs
import httpx
import pytest
import respx

import lro
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro_client import (
    AsyncClient,
    AsyncHttpTransport,
    AsyncLocalTransport,
    CallError,
    Client,
    HttpTransport,
    Journal,
    LocalTransport,
    Polling,
    Retry,
    Routes,
)
from lro_client.testing import ScriptedServer
from tests.client.faces import URL, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeRequest,
    ResizeResponse,
    body_of,
    reply,
    running,
    succeeded,
)
from tests.client.test_groups import client_of, group_of, plan

TARGET = "/v1/images:resize"
ID = "9A1b2c3d-4e5f-4a6b-8c7d-0e1f2a3b4c5d"


class Model:
    """A class of a library that this one does not know."""

    def model_dump(self) -> dict[str, Any]:
        return {}

    @classmethod
    def model_validate(cls, value: object) -> Model:
        return cls()


@attrs.frozen
class Mistake:
    """An argument, and what the sentence says."""

    make: Any
    says: str


START = {
    "None": Mistake(lambda: None, "message: must be a message, such as .*, got None"),
    "a number": Mistake(lambda: 5, "got 5$"),
    "a text": Mistake(lambda: "text", "got 'text'"),
    "a class": Mistake(lambda: ResizeRequest, r"give an instance of it: ResizeRequest\(\.\.\.\)"),
    "of another library": Mistake(Model, "give types=, a TypeRegistry with a codec factory for it"),
}


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize("mistake", START.values(), ids=START)
def test_a_message_of_no_class_of_messages(
    mistake: Mistake, journaled: bool, face: Face, server: respx.Router, tmp_path: Any
) -> None:
    """The sentence names the way out; nothing is sent or noted."""
    with Journal(tmp_path / "pending.db") as journal:
        client = face.client(journal=journal if journaled else None)
        with pytest.raises(ValueError, match=mistake.says) as caught:
            client.start(TARGET, mistake.make(), **TYPES)
        assert isinstance(caught.value, lro.DeclarationError)
        assert journal.pending() == []
    assert not server.calls


def test_a_start_that_cannot_be_sent_is_not_in_the_journal(face: Face, tmp_path: Any) -> None:
    """Nothing was started that the next process could find."""
    with Journal(tmp_path / "pending.db") as journal:
        client = face.client(journal=journal)
        with pytest.raises(lro.DeclarationError, match="target: must begin with a slash"):
            client.start("images:resize", ResizeRequest(), **TYPES)
        assert journal.pending() == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"response": ResizeResponse()}, "^response: .*give the class itself: ResizeResponse, got"),
        ({"response": list[ResizeResponse]}, "put such a value into a field of a message, got"),
        ({"metadata": int}, r"^metadata: must be a message class, .*lro\.Any, got <class 'int"),
        ({"metadata": "Meta"}, r"^metadata: must be a message class, .*lro\.Any, got 'Meta'"),
        ({"response": Model}, "give types=, a TypeRegistry with a codec factory for it, got"),
        ({"validate_only": "no"}, "validate_only: must be True or False, got 'no'"),
        ({"target": ""}, "target: must be a path such as /v1/images:resize, .*, got ''"),
        ({"request_id": 5}, "request_id: must be a UUID of 36 characters, not all zero, got 5"),
        ({"request_id": "abc"}, "got 'abc'"),
        ({"request_id": uuid.UUID(int=0)}, "must be a UUID"),
        ({"request_id": f"{{{ID}}}"}, "must be a UUID"),
        ({"request_id": ID.replace("-", "")}, "must be a UUID"),
        ({"target": 5}, "target: must be a text, got 5"),
    ],
)
def test_other_arguments_of_a_start(
    more: dict[str, Any], says: str, face: Face, server: respx.Router
) -> None:
    """Each is named."""
    arguments = {"target": TARGET, "message": {}, **TYPES, **more}
    with pytest.raises(lro.DeclarationError, match=says):
        face.client().start(**arguments)
    assert not server.calls


NAMES = {
    "empty": Mistake(lambda: "", "name: must be a text that is not empty"),
    "None": Mistake(lambda: None, "name: must be a.*got None"),
    "a URL": Mistake(lambda: f"{URL}/v1/{NAME}", "what follows /v1/ in its URL, got 'http://test"),
    "a URL of gRPC": Mistake(lambda: f"grpc://test:1/{NAME}", "what follows /v1/ in its URL"),
    "no id": Mistake(lambda: "operations/", "no segment that is empty, . or .., got 'operations/'"),
    "an empty segment": Mistake(
        lambda: "operations//a", "^name: must have no segment that is empty"
    ),
    "a dot": Mistake(lambda: "operations/./a", "^name: must have no segment that is empty"),
}


@pytest.mark.parametrize("verb", ["get", "cancel", "delete", "wait", "operation"])
@pytest.mark.parametrize("mistake", NAMES.values(), ids=NAMES)
def test_a_name_that_is_not_valid(
    mistake: Mistake, verb: str, face: Face, server: respx.Router
) -> None:
    """Every verb refuses it, with a sentence that says what a name is."""
    options = TYPES if verb == "operation" else {}
    with pytest.raises(lro.DeclarationError, match=mistake.says):
        getattr(face.client(), verb)(mistake.make(), **options)
    assert not server.calls


def test_whole_requests_are_checked_too(face: Face, server: respx.Router) -> None:
    """Their names, and that they are those of the verb."""
    client = face.client()
    with pytest.raises(lro.DeclarationError, match="name: must be a text that is not empty"):
        client.get(lro.GetOperationRequest(""))
    with pytest.raises(lro.DeclarationError, match="must be a name or a GetOperationRequest"):
        client.get(lro.CancelOperationRequest(NAME))
    assert not server.calls


def test_arguments_of_a_list(face: Face, server: respx.Router) -> None:
    """A parent is no URL, a size a number, a token a text."""
    client = face.client()
    for arguments, says in (
        ({"request": f"{URL}/v1"}, "parent: must be a name"),
        ({"request": "projects//p"}, "parent: must have no segment that is empty"),
        ({"page_size": "5"}, "page_size: must be a whole number, got '5'"),
        ({"page_token": 5}, "page_token: must be a text, got 5"),
        ({"page_size": True}, "page_size: must be a whole number, got True"),
        ({"request": lro.ListOperationsRequest(5)}, "name: must be a text, got 5"),
        (
            {"request": lro.ListOperationsRequest("", page_token=5)},
            "page_token: must be a text, got 5",
        ),
    ):
        with pytest.raises(lro.DeclarationError, match=says):
            client.list(**arguments)
    assert not server.calls


@pytest.mark.parametrize(
    "text",
    [
        "state() = FAILED",
        "done=true",
        "done",
        "metadata.x:3",
        'name = "operations/a"',
        "name='operations/a'",
        "a/b > 5",
        "a/b AND c",
        "NOT done",
        "f()",
        "projects/p/locations",
    ],
)
def test_a_filter_in_the_place_of_the_parent(text: str, face: Face, server: respx.Router) -> None:
    """The sentence says where it belongs."""
    with pytest.raises(lro.DeclarationError, match=r"^parent: .*\(a filter is given as filter="):
        face.client().list(text)
    assert not server.calls


@pytest.mark.parametrize(
    "parent",
    [
        "projects/a b",
        "projects/YQ==/locations/l",
        "projects/x.y:z",
        "projects/p=x",
        "projects/(x)",
        "projects/a<b",
        "projects/o'brien",
        "projects/p/locations/-",
    ],
)
def test_parents_that_look_odd(parent: str, face: Face, server: respx.Router) -> None:
    """They are asked for as they are."""
    server.get().mock(return_value=reply({}))
    assert list(face.client().list(parent)) == []
    assert server.calls.last.request.url.path == f"/v1/{parent}/operations"


@pytest.mark.parametrize("given", [ID, uuid.UUID(ID)])
def test_request_ids(given: Any, face: Face, server: respx.Router) -> None:
    """A UUID, or the text of one in either case."""
    route = server.post(TARGET).mock(return_value=reply(running()))
    face.client().start(TARGET, {}, **TYPES, request_id=given)
    assert body_of(route.calls.last.request) == {"requestId": str(given)}


def test_a_class_that_declares_its_name_and_has_a_codec(face: Face, server: respx.Router) -> None:
    """A registry whose factories take it need not know it before."""

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


def test_a_timeout_that_is_not_valid(face: Face, server: respx.Router) -> None:
    """It is raised before the call."""
    client = face.client()
    for wrong in ("5", True, math.nan):
        with pytest.raises(TypeError, match="a timeout is a timedelta, or seconds as a number"):
            client.wait(NAME, timeout=wrong)
    request = lro.WaitOperationRequest(NAME, timeout=5)  # type: ignore[arg-type]
    with pytest.raises(lro.DeclarationError, match=r"timeout: must be an lro\.Duration"):
        client.wait(request)
    handle = client.operation(NAME, **TYPES)
    for verb in (handle.wait, handle.result, handle.cancel_and_wait):
        with pytest.raises(TypeError, match="a timeout is a timedelta"):
            verb("5")
    assert not server.calls


def bare_handle(client: Any) -> Any:
    """A handle as the face gives it, without what makes it block."""
    handle = client.operation(NAME)
    return getattr(handle, "target", handle)


def local_of(face: Face) -> Any:
    """A transport to a service in this process."""
    kind = LocalTransport if face.name == "sync" else AsyncLocalTransport
    return face.run(kind, lro.Service(MemoryStore(), InlineExecutor()))


def grpc_of(face: Face, **options: Any) -> Any:
    """A transport to where no server is."""
    pytest.importorskip("grpc")
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    from lro_client.transports.grpc import AsyncGrpcTransport, GrpcTransport

    kind = GrpcTransport if face.name == "sync" else AsyncGrpcTransport
    return face.run(lambda: kind("localhost:1", **options))


REACHES_NO_SERVER = {
    "http": lambda face: {},
    "local": lambda face: {"transport": local_of(face)},
    "grpc": lambda face: {"transport": grpc_of(face)},
}
"""How a client asks a server that never gets a call."""

MISTAKES = {
    "a message that is a class": lambda client: client.start(TARGET, ResizeRequest, **TYPES),
    "a message that is a number": lambda client: client.start(TARGET, 5, **TYPES),
    "a response that is a message": lambda client: client.start(
        TARGET, ResizeRequest(), response=ResizeResponse(), metadata=dict
    ),
    "a metadata class that is none": lambda client: client.start(
        TARGET, ResizeRequest(), response=dict, metadata=int
    ),
    "an empty target": lambda client: client.start("", ResizeRequest(), **TYPES),
    "a target that is no text": lambda client: client.start(None, ResizeRequest(), **TYPES),
    "a request id that is none": lambda client: client.start(
        TARGET, ResizeRequest(), request_id="x", **TYPES
    ),
    "an operation without a name": lambda client: client.operation("", **TYPES),
    "an operation of a class that is none": lambda client: client.operation(NAME, response="R"),
    "an empty name": lambda client: client.get(""),
    "a name that is none": lambda client: client.cancel(5),
    "a name of None": lambda client: client.delete(None),
    "a parent that is none": lambda client: client.list(5),
    "a filter that is none": lambda client: client.list("", 5),
    "a page size that is a text": lambda client: client.list(page_size="5"),
    "a timeout that is a text": lambda client: client.wait(NAME, timeout="5"),
    "a timeout in a request": lambda client: client.wait(lro.WaitOperationRequest(NAME, timeout=5)),
    "a handle's timeout": lambda client: client.operation(NAME).result("5"),
    "a handle's bool as timeout": lambda client: client.operation(NAME).wait(True),
    "a pause that is a text": lambda client: list(client.operation(NAME).updates(every="5")),
    "no pause": lambda client: list(client.operation(NAME).updates(every=0)),
    "one name to describe": lambda client: client.describe(NAME),
    "nothing to describe": lambda client: client.describe(None),
    "a group of nothing": lambda client: client.group(None),
    "a group of names": lambda client: client.group([NAME]),
    "a count of a group": lambda client: client.group([bare_handle(client)]).wait("x"),
    "a group's timeout": lambda client: client.group([bare_handle(client)]).results("x"),
    "pending without a journal": lambda client: list(client.pending(**TYPES)),
}


@pytest.mark.parametrize("transport", REACHES_NO_SERVER)
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_the_same_over_every_transport(
    mistake: Any, transport: str, face: Face, server: respx.Router
) -> None:
    """A TypeError or a ValueError, never a CallError of a call that was not made."""
    client = (
        face.client("", **REACHES_NO_SERVER[transport](face))
        if transport != "http"
        else face.client()
    )
    with pytest.raises((TypeError, ValueError)) as caught:
        mistake(client)
    assert "argument" not in str(caught.value)  # as Python says of a wrong call
    assert not server.calls


@pytest.mark.parametrize(
    "metadata",
    [[("Key", "a")], [("key", "ä")], [("key", b"a")], [("key-bin", "a")], ["key"], [(1, 2)]],
)
def test_metadata_that_grpc_cannot_send(metadata: Any, face: Face) -> None:
    """It is refused with the transport, not by each call."""
    with pytest.raises(
        lro.DeclarationError, match="metadata: must be pairs of a key in lower case"
    ):
        grpc_of(face, metadata=metadata)


BASES = [
    "",
    "localhost:8000",
    "/v1",
    "ftp://localhost",
    "http://",
    "http://[::1",
    "http://localhost:99999",
    "http://localhost:x",
    "http://localhost/?key=1",
    5,
    None,
]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("make", [Client, AsyncClient, HttpTransport, AsyncHttpTransport])
def test_a_base_url_that_is_not_valid(make: Any, base: Any) -> None:
    """It is seen when the client is made."""
    with pytest.raises(lro.DeclarationError, match="base_url: must be "):
        make(base_url=base)


def test_base_url_beside_that_of_http_client_is_refused(face: Face) -> None:
    """One of the two would be ignored. The error shows no passwords in them."""
    with pytest.raises(lro.DeclarationError) as refused:
        face.client("http://u:secret@test", http=face.http(base_url="http://u:secret@other"))
    assert str(refused.value) == (
        "base_url: is not that of the HTTP client: leave one of them out, or give a path here"
    )


@pytest.mark.parametrize(("given", "path"), [("/api", "/api"), (URL, ""), (URL + "/", "")])
def test_a_base_url_that_the_http_client_knows(
    given: str, path: str, face: Face, server: respx.Router
) -> None:
    """A path alone goes below it; the same one again is no other."""
    server.get(f"{path}/v1/{NAME}").mock(return_value=reply(running()))
    assert face.client(given, http=face.http(base_url=URL)).get(NAME).name == NAME


@pytest.mark.parametrize(
    ("policy", "option", "value"),
    [
        *((Polling, "wait", value) for value in (5, None)),
        *((Polling, "jitter", value) for value in (2, -0.1, True, "0.1")),
        *((Polling, "wait_first", value) for value in (1, None)),
        *((Polling, "hold_seconds", value) for value in (math.nan, math.inf, -1, "20")),
        *((Polling, "retry", value) for value in (5, Retry)),
        *((Polling, "max_retry_after", value) for value in (math.nan, -1)),
        *((Polling, "connections", value) for value in (0, 1.5, True)),
        *((Retry, "codes", value) for value in (5, {lro.Code.ABORTED}, frozenset({14}))),
        *((Retry, "transport", value) for value in (1, "yes")),
        *((Retry, "wait", value) for value in (5, None)),
        *((Retry, "attempts", value) for value in (0, 1.5, True)),
        *((Retry, "patience_seconds", value) for value in (math.nan, -1)),
        *((Retry, "max_retry_after", value) for value in (math.inf, "60")),
        *((Routes, option, 5) for option in ("get", "watch", "wait_method")),
    ],
)
def test_an_option_of_a_policy_of_the_wrong_type(policy: Any, option: str, value: object) -> None:
    """Where it is made, not in the middle of a wait."""
    with pytest.raises(lro.DeclarationError) as refused:
        policy(**{option: value})
    assert str(refused.value).startswith(f"{option}: must be ")


@pytest.mark.parametrize("timeout", [10**400, 1e300], ids=["int", "float"])
def test_a_timeout_beyond_all_numbers(timeout: float, face: Face, server: respx.Router) -> None:
    """A long one is none."""
    server.route().mock(return_value=reply(succeeded()))
    assert face.client().operation(NAME, **TYPES).result(timeout).size_bytes == 7


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("call_seconds", "30"),
        ("call_seconds", 0),
        ("call_seconds", True),
        ("call_seconds", float("inf")),
        ("polling", 5),
        ("retry", {}),
        ("types", [ResizeRequest]),
        ("journal", "pending.db"),
        ("routes", "/v1beta/{name=**}"),
        ("clock", 5),
        ("sleep", 5),
        ("http", URL),
        ("http", httpx.Client),
        ("http", httpx.AsyncClient),
        ("transport", URL),
    ],
)
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_options_of_a_client(make: Any, option: str, value: Any) -> None:
    """Each is checked by its type when the client is made."""
    with pytest.raises(lro.DeclarationError, match=f"^{option}: must be "):
        make(URL, **{option: value})


def test_transports_of_the_other_client() -> None:
    """They are refused when the client is made, with the name of the right one."""
    with lro.Service(MemoryStore(), ThreadExecutor()) as service:
        local, aside = LocalTransport(service), AsyncLocalTransport(service)
        with pytest.raises(lro.DeclarationError, match="such as AsyncLocalTransport"):
            AsyncClient(transport=local)  # type: ignore[arg-type]  # the mistake
        with pytest.raises(lro.DeclarationError, match="calls block, such as LocalTransport"):
            Client(transport=aside)  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize("transport", [LocalTransport, AsyncLocalTransport])
def test_local_transport_takes_a_service_and_a_caller(transport: Any) -> None:
    """Other arguments are refused where they are given."""
    with pytest.raises(lro.DeclarationError, match=r"^service: must be an lro\.Service"):
        transport(None)
    service = lro.Service(MemoryStore(), ThreadExecutor())
    with service, pytest.raises(lro.DeclarationError, match=r"^caller: must be a text, got 5"):
        transport(service, caller=5)


def test_http_clients_of_the_other_client() -> None:
    """The same."""

    async def main() -> None:
        async with httpx.AsyncClient() as aside:
            with pytest.raises(lro.DeclarationError, match=r"http: .*such as httpx\.Client"):
                Client(URL, http=aside)  # type: ignore[arg-type]  # the mistake

    asyncio.run(main())
    with (
        httpx.Client() as http,
        pytest.raises(lro.DeclarationError, match=r"http: .*such as httpx\.AsyncClient"),
    ):
        AsyncClient(URL, http=http)  # type: ignore[arg-type]  # the mistake


def test_a_filter_in_the_place_of_a_request() -> None:
    """The service says what it takes."""
    with (
        lro.Service(MemoryStore(), ThreadExecutor()) as service,
        pytest.raises(
            TypeError, match=r"takes a ListOperationsRequest\(filter=\.\.\.\), got 'done"
        ),
    ):
        service.list("done = true")  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize("offers", [{"batch_get": True}, {"lists": False, "wait": False}])
@pytest.mark.parametrize("bad", ["operations//a", "a//operations/b"])
def test_one_bad_name_of_forty_ends_no_other(bad: str, offers: Any, face: Face) -> None:
    """A server may give it. Its outcome is the refusal; the others have theirs."""
    server = ScriptedServer(**offers)
    names: list[Any] = plan(server, 40, ends_after=3.0)
    server.operation(bad, ends_after=None)
    given = lro.Operation(name=bad)
    *good, refused = group_of(face, client_of(face, server), [*names, given]).outcomes(60)
    assert good == [ResizeResponse(number) for number in range(40)]
    assert isinstance(refused, lro.DeclarationError)
    assert not isinstance(refused, CallError)


VERBS = ("get", "list", "delete", "cancel", "wait", "batch", "describe", "watch")


@pytest.mark.parametrize("given", ["get", "list", "wait"])
def test_routes_that_are_not_given_have_the_prefix_of_the_one_that_is(given: str) -> None:
    """One path for a version is enough."""
    below = Routes.below("/v1beta")
    routes = Routes(**{given: getattr(below, given)})
    assert routes == below
    assert [getattr(Routes(), verb).removeprefix("/v1/{name=**}") for verb in VERBS] == [
        *[""] * 3,
        ":cancel",
        ":wait",
        ":batchGet",
        ":describe",
        ":watch",
    ]


def test_routes_of_names_that_are_ids() -> None:
    """What takes a name has it below the collection; what takes the collection does not."""
    routes = Routes(get="/v1/operations/{name=**}")
    assert (routes.cancel, routes.list) == ("/v1/operations/{name=**}:cancel", "/v1/{name=**}")


def test_every_verb_goes_where_get_goes(face: Face, server: respx.Router) -> None:
    """With the path of Get alone."""
    server.route(path__startswith="/v1beta/").mock(return_value=reply(running()))
    client = face.client(routes=Routes(get="/v1beta/{name=**}"))
    for verb in (client.get, client.cancel, client.delete, client.wait):
        verb(NAME)
    assert len(server.calls) == 4
