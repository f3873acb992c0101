"""The gRPC edge: accepted and refused requests, and replies (spec §12)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf import struct_pb2, wrappers_pb2
from google.rpc import error_details_pb2, status_pb2

import grpc
import lro
import lro.grpc
from lro.errors import MessageUnreadable
from lro.executors.inline import InlineExecutor
from lro.grpc._messages import OperationWriter
from lro.protobuf import operation_from_proto
from lro.stores.memory import MemoryStore
from lro.types import ErrorInfo
from tests.grpc.serving import serving
from tests.http.counting_service import CountMetadata, CountRequest, CountService, build
from tests.waiting import PATIENCE

OPERATIONS = "/google.longrunning.Operations/"
COUNT = "/acme.v1.Things/Count"
VERBS = [f"{OPERATIONS}{verb}" for verb in ("GetOperation", "ListOperations", "DeleteOperation")]
VERBS += [f"{OPERATIONS}{verb}" for verb in ("CancelOperation", "WaitOperation")]


@attrs.frozen
class Refused:
    """An error reply: code, message and status."""

    code: grpc.StatusCode
    message: str
    status: status_pb2.Status

    @property
    def info(self) -> Any:
        info = error_details_pb2.ErrorInfo()
        assert self.status.details[0].Unpack(info)
        return info


def ask(address: str, path: str, payload: bytes = b"", **metadata: Any) -> Any:
    """Call the server; return the reply's bytes or the error."""
    sent = [(key.replace("_", "-"), value) for key, value in metadata.items()]
    with grpc.insecure_channel(address) as channel:
        try:
            return channel.unary_unary(path)(payload, metadata=sent, timeout=PATIENCE)
        except grpc.RpcError as error:
            call: Any = error
            trailers = dict(call.trailing_metadata())
            status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
            return Refused(call.code(), call.details(), status)


def asked(address: str, path: str, payload: bytes, **metadata: Any) -> Any:
    """Call the server; return the operation in the reply."""
    return pb.Operation.FromString(ask(address, path, payload, **metadata))


def get(name: str) -> bytes:
    """Return a Get request for this operation in binary form."""
    return bytes(pb.GetOperationRequest(name=name).SerializeToString())


def binary(message: object) -> bytes:
    """Return a message in binary form."""
    types = lro.TypeRegistry(type(message))
    return types.binary_payload(types.pack(message))


def request(**fields: Any) -> bytes:
    """Return a CountRequest in binary form."""
    return binary(CountRequest(**fields))


def test_bytes_that_are_not_a_message_are_an_invalid_argument(kind: str) -> None:
    """A request that is not a message or is too large gets INVALID_ARGUMENT (spec §1.7(6))."""
    wrong = [*((path, b"\xff") for path in (*VERBS, COUNT)), (VERBS[0], b"\x07")]
    with serving(kind, build().service, max_request=100) as address:
        for path, payload in (*wrong, (COUNT, b"\x12\x05x")):
            refused = ask(address, path, payload)
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.info.reason == "MALFORMED_REQUEST"
            assert refused.message.startswith(f"{len(payload)} bytes are not a ")
            assert refused.message.endswith(" in binary form")
        for path in (*VERBS, COUNT):  # refused before parsing, as over HTTP (spec §5.9(4))
            refused = ask(address, path, b"\x0a" + b"\x65" + b"x" * 101)
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.info.reason == "REQUEST_TOO_LARGE"
            assert refused.message == "request: must have at most 100 bytes"


def test_unknown_fields_are_tolerated(kind: str, counting: CountService) -> None:
    """Requests with fields that the server does not know are accepted."""
    with serving(kind, counting.service) as address:
        for path in (*VERBS, COUNT):
            payload = get(counting.start())
            if path.endswith("WaitOperation"):
                payload += b"\x12\x00"  # a timeout of zero
            if path in (VERBS[1], COUNT):
                payload = b""
            assert isinstance(ask(address, path, payload + b"\xa2\x06\x01x"), bytes)


def test_path_that_no_service_has_is_unimplemented(kind: str) -> None:
    """A call to a path that no service has is UNIMPLEMENTED."""
    others = ("/acme/v1.Things/Count", "/acme.v1.Things/Other", "/acme.v1.Things.Count", "/x")
    with serving(kind, build().service) as address:
        for path in others:
            assert ask(address, path).code is grpc.StatusCode.UNIMPLEMENTED


def test_server_may_serve_only_operations(kind: str) -> None:
    """With ``methods=False`` only the Operations service is served."""
    with serving(kind, build().service, methods=False) as address:
        assert ask(address, COUNT).code is grpc.StatusCode.UNIMPLEMENTED
        assert isinstance(ask(address, VERBS[1]), bytes)


def test_method_declared_later_is_served_with_a_large_start(
    kind: str, counting: CountService
) -> None:
    """A method declared after ``add_to`` is served; a large start is parsed in a thread."""
    with serving(kind, counting.service) as address:
        counting.declare("Later.Count")
        for size in (10, 100_000):
            started = asked(address, "/Later/Count", request(label="x" * size))
            assert counting.service.get(started.name) == lro.Operation(name=started.name)


def test_parent_and_metadata_of_a_start_are_computed(kind: str, counting: CountService) -> None:
    """StartMethod's functions compute parent and first metadata from the request."""

    def parent(message: CountRequest, metadata: Mapping[str, str]) -> str:
        return f"projects/{message.label}-{metadata['x-project']}"

    first = lambda message: CountMetadata(percent=message.steps)  # noqa: E731
    start = lro.grpc.StartMethod(method=counting.count, parent=parent, metadata=first)
    with serving(kind, counting.service, methods=[start]) as address:
        started = asked(address, COUNT, request(steps=5, label="a"), x_project="b")
    assert started.name.startswith("projects/a-b/operations/")
    packed = counting.service.types.pack(CountMetadata(5))
    assert counting.service.get(started.name).metadata == packed


def test_method_of_another_service_is_refused() -> None:
    """``add_to`` refuses another service's method, even if its name is also declared here."""
    start = lro.grpc.StartMethod(method=build().count)
    for service in (build().service, lro.Service(MemoryStore(), InlineExecutor())):
        with (
            service,
            pytest.raises(lro.DeclarationError, match=r"acme\.v1\.Things\.Count: is not declared"),
            serving("threads", service, methods=[start]),
        ):
            pass


def test_hook_gets_the_metadata_and_as_second_argument_the_context(kind: str) -> None:
    """``authenticate`` gets the call's metadata, with repeated keys joined and no binary keys.

    The context knows the peer, even in a Wait for which no thread is free.
    """
    seen: list[Any] = []

    def authenticate(metadata: Mapping[str, str], context: Any) -> None:
        seen.extend([metadata, context.peer()])

    with (
        serving(kind, build().service, authenticate=authenticate, max_waiting=0) as address,
        grpc.insecure_channel(address) as channel,
    ):
        sent = (("x-a", "1"), ("x-a", "2"), ("b-bin", b"\x00"))
        for verb in VERBS:
            with contextlib.suppress(grpc.RpcError):
                channel.unary_unary(verb)(b"", metadata=sent, timeout=PATIENCE)
    assert seen[0]["x-a"] == "1, 2"
    assert not [key for key in seen[0] if key.endswith("-bin")]
    assert [peer[:15] for peer in seen[1::2]] == ["ipv4:127.0.0.1:"] * len(VERBS)


@lro.message("acme.v1.OwnRequest")
@attrs.frozen
class OwnRequest:
    """A request that has the fields of AIP-155 and AIP-163 itself."""

    request_id: str = ""
    validate_only: bool = False


@lro.message("acme.v1.OddRequest")
@attrs.frozen
class OddRequest:
    """A request whose ``request_id`` is not a str."""

    request_id: int = 0


def own(cls: type, seen: Callable[[Any], None]) -> lro.Service:
    """Make a service with a method for this request class, validated by ``seen``."""
    counting = build()
    counting.declare("acme.v1.Owns.Start", request=cls, options=lro.Options(validate=seen))
    return counting.service


def test_request_id_and_validate_only_of_the_request_are_honoured(kind: str) -> None:
    """A message's own ``request_id`` and ``validate_only`` count, and the method sees them."""
    seen: list[OwnRequest] = []
    service = own(OwnRequest, seen.append)
    message = OwnRequest("00000000-0000-0000-0000-000000000007")
    with serving(kind, service) as address:
        found = [asked(address, "/acme.v1.Owns/Start", binary(message)) for _ in "ab"]
        checked = asked(address, "/acme.v1.Owns/Start", binary(OwnRequest("", True)))
    assert found[0].name == found[1].name != ""
    assert (checked.name, checked.done) == ("", True)
    assert seen == [message, message, OwnRequest("", True)]


def test_request_id_of_another_type_is_refused(kind: str) -> None:
    with serving(kind, own(OddRequest, lambda _: None)) as address:
        refused = ask(address, "/acme.v1.Owns/Start", binary(OddRequest(5)))
    assert refused.message == "request_id: must be a str, got 5"


def test_method_may_use_generated_protobuf_classes(kind: str) -> None:
    """A method's messages may be generated protobuf classes."""
    service = build().service
    seen: list[Any] = []
    service.declare(
        "acme.v1.Names.Name",
        request=struct_pb2.Struct,
        response=wrappers_pb2.StringValue,
        metadata=struct_pb2.Struct,
        options=lro.Options(validate=seen.append),
    )
    sent = struct_pb2.Struct()
    sent.update({"a": 1.5})
    with serving(kind, service) as address:
        started = asked(address, "/acme.v1.Names/Name", sent.SerializeToString())
        assert service.reporter(started.name).complete(wrappers_pb2.StringValue(value="x"))
        found = asked(address, VERBS[0], get(started.name))
    value = wrappers_pb2.StringValue()
    assert found.response.Unpack(value)
    assert (seen, value.value) == ([sent], "x")


@lro.message("a.v1.One")
@attrs.frozen
class One:
    """A message in a.v1, which imports nothing."""


@lro.message("b.v1.Two")
@attrs.frozen
class Two:
    """A message in b.v1, which imports a.v1."""

    one: One | None = None


@lro.message("a.v1.Three")
@attrs.frozen
class Three:
    """A message in a.v1, which imports b.v1, so that the imports are circular."""

    two: Two | None = None


def test_circular_imports_are_refused() -> None:
    """``add_to`` refuses messages whose proto files would import each other."""
    service = build().service
    for cls in (One, Two, Three):
        service.types.register(cls)
    with pytest.raises(lro.DeclarationError, match="imports itself"), serving("threads", service):
        pass


def test_errors_have_no_details_after_a_late_circular_import(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If circular imports appear after ``add_to``, errors lose their details, and a log says so."""
    service = build().service
    with serving(kind, service) as address:
        for cls in (One, Two, Three):
            service.types.register(cls)
        refused = ask(address, VERBS[0], get("operations/none"))
    assert refused.code is grpc.StatusCode.NOT_FOUND
    assert (refused.status.code, len(refused.status.details)) == (5, 0)
    assert "the details of the error of google.longrunning.Operations/GetOperation" in caplog.text


def test_message_and_details_are_cut_to_the_trailer_limit(kind: str) -> None:
    """Message and details are cut to a size that clients accept; code and reason are kept."""
    with serving(kind, build().service) as address:
        for character in ("x", "ä", "\N{GRINNING FACE}", "%"):
            name = "operations/" + character * 1010
            refused = ask(address, VERBS[0], get(name))
            assert refused.code is grpc.StatusCode.NOT_FOUND
            assert refused.status.message == refused.message
            assert len(refused.message.encode()) <= 2000
            assert (name in refused.message) == (character == "x")
            assert refused.status.ByteSize() <= 4000
            assert refused.info.reason == "OPERATION_NOT_FOUND"
            assert ("name" in refused.info.metadata) == (character != "\N{GRINNING FACE}")


def test_defects_are_logged_once_and_refusals_are_not(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect is logged once with its cause; a refused request is not logged."""

    def break_it(request: CountRequest) -> None:
        raise ZeroDivisionError("secret")

    with serving(kind, own(CountRequest, break_it)) as address:
        caplog.set_level(logging.INFO)
        assert ask(address, VERBS[0]).code is grpc.StatusCode.INVALID_ARGUMENT
        assert caplog.records == []
        refused = ask(address, "/acme.v1.Owns/Start")
    assert (refused.code, refused.message) == (
        grpc.StatusCode.INTERNAL,
        "the server failed internally",
    )
    assert [record.name for record in caplog.records] == ["lro"]
    assert "acme.v1.Owns.Start ended with INTERNAL" in caplog.text
    assert "ZeroDivisionError: secret" in caplog.text


def test_encoded_small_operations_are_cached() -> None:
    """A small operation is encoded once; large, copied and long unused operations are not."""
    types = lro.TypeRegistry(CountMetadata)
    writer = OperationWriter(types, "acme")
    small = lro.Operation(name="operations/a", metadata=types.pack(CountMetadata(percent=1)))
    large = lro.Operation(name="operations/" + "x" * 20_000)
    written = writer.operation(small)
    assert writer.operation(small) is written
    assert writer.operation(large) is not writer.operation(large)
    again = writer.operation(attrs.evolve(small))
    assert (again is written, again) == (False, written)
    for number in range(1100):
        writer.operation(lro.Operation(name=f"operations/{number}"))
    assert writer.operation(small) is not written


def test_message_without_a_class_is_not_an_empty_result() -> None:
    """An ErrorInfo replaces a message without a class; Get of a result fails (spec §1.14(3))."""
    types = lro.TypeRegistry()
    writer = OperationWriter(types, "acme")
    gone = lro.AnyMessage("x/acme.v1.Gone", {"pages": 1})
    known = lro.Operation(name="operations/a", metadata=gone)
    info = ErrorInfo("MESSAGE_UNREADABLE", "acme", {"type_name": "acme.v1.Gone"})
    for operation in (known, attrs.evolve(known, metadata=None, done=True, result=gone)):
        (written,) = writer.operations([operation])
        shown = operation_from_proto(pb.Operation.FromString(written))
        assert types.unpack_any(shown.metadata or shown.response or lro.AnyMessage()) == info
        if operation is known:
            assert writer.operation(operation) == written
            continue
        with pytest.raises(MessageUnreadable, match=r"'acme\.v1\.Gone'"):
            writer.operation(operation)
