"""Methods whose messages are pydantic models, msgspec Structs or TypedDicts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any, NotRequired

import attrs
import httpx
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

import lro
import lro.grpc
from lro.executors.threads import ThreadExecutor
from lro.protobuf import proto_sources
from lro.stores.memory import MemoryStore
from lro.wsgi import OperationsApp
from lro_client import CallError, Client, DecodingError
from lro_client.transports import LocalTransport
from lro_client.transports.grpc import GrpcTransport
from tests.grpc.serving import on_threads

FIELDS: dict[str, dict[str, Any]] = {
    "Request": {
        "pages": (Annotated[int, pydantic.Field(ge=0), msgspec.Meta(ge=0)], ...),
        "tags": (list[str], ...),
    },
    "Metadata": {
        "done": (int, 0),
        "dataset": (str, ""),
        "create_time": (datetime | None, None),
        "end_time": (datetime | None, None),
        "cancel_requested": (bool, False),
    },
    "Response": {"sheets": (int, ...)},
}
"""The type and default of each field; ``...`` means no default."""


def model(name: str) -> Any:
    """Make the message of this name as a pydantic model."""
    cls = pydantic.create_model(f"Model{name}", **FIELDS[name])
    return lro.message(f"acme.v1.Model{name}")(cls)


def struct(name: str) -> Any:
    """Make the message of this name as a msgspec Struct."""
    fields = [
        (field, kind) if default is ... else (field, kind, default)
        for field, (kind, default) in FIELDS[name].items()
    ]
    return lro.message(f"acme.v1.Struct{name}")(msgspec.defstruct(f"Struct{name}", fields))


@lro.message("acme.v1.DictRequest")
class DictRequest(TypedDict):
    pages: int
    tags: list[str]


@lro.message("acme.v1.DictMetadata")
class DictMetadata(TypedDict):
    done: int
    dataset: NotRequired[str]
    create_time: NotRequired[datetime]
    end_time: NotRequired[datetime]
    cancel_requested: NotRequired[bool]


@lro.message("acme.v1.DictResponse")
class DictResponse(TypedDict):
    sheets: int


@attrs.frozen
class Kind:
    """The three message classes of a method, and a function that reads a field of them."""

    request: Any
    metadata: Any
    response: Any
    get: Callable[[Any, str], Any] = getattr


KINDS = {
    "pydantic": Kind(*map(model, FIELDS)),
    "msgspec": Kind(*map(struct, FIELDS)),
    "TypedDict": Kind(DictRequest, DictMetadata, DictResponse, lambda one, name: one[name]),
}
METHOD = "acme.v1.Works.Do"


class Server:
    """A service with one method, whose work ends once ``gate`` is set."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.gate = threading.Event()
        self.service = lro.Service(MemoryStore(), ThreadExecutor())

        def do(request: Any, job: Any) -> Any:
            job.report(kind.metadata(done=kind.get(request, "pages"), dataset="a"))
            while not self.gate.wait(0.01):
                job.raise_if_cancelled()
            return kind.response(sheets=len(kind.get(request, "tags")))

        kinds = {name: getattr(kind, name) for name in ("request", "response", "metadata")}
        self.method = self.service.method(METHOD, **kinds, indexed_paths=("dataset",))(do)
        self.app = OperationsApp(self.service, starts={"/v1/works:do": self.method})

    @contextlib.contextmanager
    def client(self, transport: str) -> Iterator[tuple[Client, str]]:
        """Yield a client with this transport, and the target of a start."""
        if transport == "local":
            with Client(transport=LocalTransport(self.service)) as client:
                yield client, METHOD
        elif transport == "http":
            wire = httpx.WSGITransport(self.app)
            with (
                httpx.Client(transport=wire, base_url="http://test") as http,
                Client(http=http) as client,
            ):
                yield client, "/v1/works:do"
        else:
            with on_threads(lambda made: lro.grpc.add_to(made, self.service)) as address:
                types = lro.TypeRegistry(DictRequest)
                with Client(transport=GrpcTransport(address, types=types), types=types) as client:
                    yield client, METHOD


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """For each kind of messages, a server whose method has messages of this kind."""
    made = Server(KINDS[request.param])
    yield made
    made.gate.set()
    made.service.close()


@pytest.mark.parametrize("transport", ["http", "grpc", "local"])
def test_a_method_of_every_kind_over_every_transport(server: Server, transport: str) -> None:
    """Over every transport, a client gets the method's classes, with times; filters find fields."""
    kind = server.kind
    with server.client(transport) as (client, target):
        message = kind.request(pages=0, tags=[])
        if kind.request is DictRequest:  # a plain dict has no binary form
            message = lro.TypeRegistry(DictRequest).pack(message, DictRequest)
        handle = client.start(target, message, response=kind.response, metadata=kind.metadata)
        server.gate.set()
        assert handle.result(60) == kind.response(sheets=0)
        metadata = handle.metadata
        assert kind.get(metadata, "done") == 0
        assert kind.get(metadata, "create_time") <= kind.get(metadata, "end_time")
        for wanted, count in (
            ('metadata.dataset = "a"', 1),
            ('metadata.dataset = "b"', 0),
            ("metadata.done < 1 AND response.sheets = 0", 1),
        ):
            assert len(list(client.list(filter=wanted))) == count, wanted


def test_a_cancelled_operation_shows_its_flag(server: Server) -> None:
    kind = server.kind
    with server.client("http") as (client, target):
        message = {"pages": 1, "tags": ["a"]}
        handle = client.start(target, message, response=kind.response, metadata=kind.metadata)
        assert handle.cancel_and_wait(60).state == "CANCELLED"
        assert kind.get(handle.metadata, "cancel_requested") is True


@pytest.mark.parametrize("transport", ["http", "local"])
def test_every_violation_of_a_request_is_in_the_reply(server: Server, transport: str) -> None:
    """A BadRequest lists every invalid field of a request by its path."""
    wrong = {"pages": "many", "tags": ["a", 3], "colour": "red"}
    with server.client(transport) as (client, target):
        with pytest.raises(CallError) as caught:
            client.start(target, wrong)
        assert caught.value.code is lro.Code.INVALID_ARGUMENT
        (bad,) = (one for one in caught.value.details() if isinstance(one, lro.types.BadRequest))
        assert [one.field for one in bad.field_violations] == ["pages", "tags[1]", "colour"]


@pytest.mark.parametrize("transport", ["http", "local"])
def test_a_client_without_classes_gets_dicts(server: Server, transport: str) -> None:
    """A client without message classes gets dicts: the messages' JSON without ``@type``."""
    with server.client(transport) as (client, target):
        handle = client.start(target, {"pages": 3, "tags": ["a"]})
        server.gate.set()
        result = handle.result(60)
        assert result == {"sheets": 1}
        assert handle.metadata is not None
        assert handle.metadata["done"] == 3
        assert "@type" not in handle.metadata
        result["sheets"] = "changed"  # the result is the caller's own copy
        assert client.operation(handle.name).refresh().response.payload == {"sheets": 1}  # type: ignore[union-attr]
        only = client.operation(handle.name, response=server.kind.response)
        assert only.result(60) == server.kind.response(sheets=1)
        assert isinstance(only.metadata, dict)


def test_a_dict_has_no_form_over_grpc(server: Server) -> None:
    """Over gRPC, the error for a dict or for a result without a class says what to do."""
    with server.client("grpc") as (client, target):
        with pytest.raises(lro.DeclarationError, match=r"packed by types\.pack\(message, cls\)"):
            client.start(target, {"pages": 3, "tags": []})
        server.gate.set()
        handle = server.method.start(server.kind.request(pages=1, tags=[]))
        plain = client.operation(handle.name)
        plain.wait(60)
        with pytest.raises(DecodingError, match=r"is in binary form: .*give a class for it"):
            plain.result(60)


def test_the_proto_file_has_the_messages(server: Server) -> None:
    """In the proto file, a required field has the label ``optional``, so that a zero is sent."""
    (text,) = proto_sources(server.service).values()
    required = "int64" if server.kind.request is DictRequest else "optional int64"
    assert f"  {required} pages = 1" in text
    assert "repeated string tags = 2" in text
    behaviour = "optional int64 pages = 1 [(google.api.field_behavior) = REQUIRED];"
    assert (behaviour in text) is (server.kind.request is not DictRequest)
