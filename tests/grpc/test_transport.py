"""The client's gRPC transports: the requests they send, the errors they raise (spec §11)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest import mock

import attrs
import pytest
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf import struct_pb2
from google.rpc.status_pb2 import Status as StatusProto

import grpc
import grpc.aio
import lro
from lro.protobuf import status_to_proto
from lro_client import CallError, Polling, Retry, UnreadableReply
from lro_client.transports import Call, Reply
from lro_client.transports._grpc_coding import GrpcCoder
from lro_client.transports.grpc import AsyncGrpcTransport, GrpcTransport
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, TYPES, OwnRequest, ResizeRequest
from tests.grpc.odd import Answer, Odd, odd_server, refusing, replying, sending
from tests.grpc.serving import HOST
from tests.services.proxy import proxy_to
from tests.waiting import PATIENCE, until_async

ID = "9a1b2c3d-4e5f-4a6b-8c7d-0e1f2a3b4c5d"
GET = "/google.longrunning.Operations/GetOperation"
Code = grpc.StatusCode
STRUCTS = {"response": lro.Struct, "metadata": lro.Struct}


def transport(face: Face, target: Any, **options: Any) -> Any:
    """Make the blocking or the async transport, as ``face`` says."""
    return {"sync": GrpcTransport, "async": AsyncGrpcTransport}[face.name](target, **options)


Asking = Callable[..., tuple[Odd, Any]]


@pytest.fixture
def asking(face: Face) -> Iterator[Asking]:
    """A function that makes a server with scripted answers and a client without retries."""
    with contextlib.ExitStack() as servers:

        def make(*answers: Answer, send: Any = None, **options: Any) -> tuple[Odd, Any]:
            odd = servers.enter_context(odd_server(*answers))
            options.setdefault("retry", Retry(codes=frozenset()))
            made = transport(face, odd.address, **(send or {}))
            return odd, face.client(transport=made, **options)

        yield make


def details_of(code: lro.Code, *details: Any, text: str = "no") -> bytes:
    """Return a serialized status with details, for the trailer of an error."""
    types = lro.TypeRegistry()
    status = lro.Status(code, text, tuple(types.pack(detail) for detail in details))
    return status_to_proto(status, types).SerializeToString()


def failure(client: Any, verb: str = "get", *args: Any) -> CallError:
    """Call a verb of the client, which must fail, and return the error."""
    with pytest.raises(CallError) as caught:
        getattr(client, verb)(*(args or (NAME,)))
    return caught.value


def test_call_sends_metadata_routing_header_and_message(asking: Asking) -> None:
    """A call sends the user's metadata, the message, and the encoded name as a routing header."""
    said = pb.Operation(name=NAME).SerializeToString()
    odd, client = asking(
        *[sending(said)] * 4, sending(b""), send={"metadata": [("x-a", "1"), ("b-bin", b"\x01")]}
    )
    client.get("projects/ä b/operations/x:y%")
    client.cancel("operations/c")
    client.delete("operations/d")
    client.wait(NAME, timeout=2)
    list(client.list("", "done = true", page_size=3))
    list(client.list("projects/p"))
    paths = [path.rpartition("/")[2].removesuffix("Operation") for path, _, _ in odd.calls]
    assert paths == ["Get", "Cancel", "Delete", "Wait", "ListOperations", "ListOperations"]
    routed = [sent.get("x-goog-request-params") for _, _, sent in odd.calls]
    assert routed == [
        "name=projects/%C3%A4%20b/operations/x%3Ay%25",
        "name=operations/c",
        "name=operations/d",
        f"name={NAME}",
        None,
        "name=projects/p",
    ]
    assert all((sent["x-a"], sent["b-bin"]) == ("1", b"\x01") for _, _, sent in odd.calls)
    waited = pb.WaitOperationRequest.FromString(odd.calls[3][1])
    assert (waited.name, waited.timeout.seconds) == (NAME, 2)
    listed = pb.ListOperationsRequest.FromString(odd.calls[4][1])
    assert (listed.filter, listed.page_size) == ("done = true", 3)


@pytest.mark.parametrize("target", ["acme.v1.Images.Resize", "/acme.v1.Images/Resize"])
def test_start_goes_by_full_name_or_path(target: str, asking: Asking) -> None:
    """A start's target is a method's full name or path; its options are added as fields."""
    odd, client = asking(replying(name=NAME))
    for options in ({}, {"request_id": ID}, {"validate_only": True}):
        client.start(target, ResizeRequest(source="a"), **TYPES, **options)
    assert [path for path, _, _ in odd.calls] == ["/acme.v1.Images/Resize"] * 3
    plain, with_id, checking = [payload for _, payload, _ in odd.calls]
    assert plain == b"\x0a\x01a"
    assert with_id == plain + b"\xf2\x7f\x24" + ID.encode()
    assert checking == plain + b"\xf8\x7f\x01"


@lro.message("acme.v1.HalfRequest")
@attrs.frozen
class HalfRequest:
    """A request with ``validate_only``, but without ``request_id``."""

    validate_only: bool = False


@attrs.frozen
class OddRequest:
    """A request whose field ``request_id`` is not a str."""

    request_id: int = 0


def test_request_with_an_id_field_gets_the_id_there(asking: Asking) -> None:
    """A start sets ``request_id`` and ``validate_only`` in its message if the class has them."""
    odd, client = asking(replying(name=NAME))
    client.start("a.B.C", OwnRequest(), **TYPES, request_id=ID, validate_only=True)
    client.start("a.B.C", OwnRequest(ID), **TYPES)
    client.start("a.B.C", HalfRequest(), **TYPES, request_id=ID, validate_only=True)
    assert [payload for _, payload, _ in odd.calls] == [
        b"\x0a\x24" + ID.encode() + b"\x10\x01",
        b"\x0a\x24" + ID.encode(),
        b"\x08\x01\xf2\x7f\x24" + ID.encode(),
    ]


def test_protobuf_request_is_sent(asking: Asking) -> None:
    odd, client = asking(replying(name=NAME))
    message = struct_pb2.Value(number_value=1.5)
    client.start("a.B.C", message, **TYPES)
    assert odd.calls[0][1] == message.SerializeToString()


def test_request_that_cannot_be_encoded_is_not_sent(asking: Asking) -> None:
    odd, client = asking(replying())
    for target in ("Resize", "", "acme.v1/Images.Resize", "/v1/images:resize", "/a/b/c"):
        with pytest.raises(lro.DeclarationError, match=r"^target: must be"):
            client.start(target, ResizeRequest(), **TYPES)
    with pytest.raises(lro.DeclarationError, match=r"^request: .*surrogates"):
        client.get("operations/\ud800")
    with pytest.raises(lro.DeclarationError, match=r"^message: must be a message, such as "):
        client.start("a.B.C", object(), **TYPES)
    with pytest.raises(lro.DeclarationError, match=r"over gRPC, where a dict has no form"):
        client.start("a.B.C", {"source": "a.png"}, **TYPES)
    with pytest.raises(lro.DeclarationError, match=r"^message: the message type 'a.Unknown'"):
        client.start("a.B.C", lro.AnyMessage("x/a.Unknown", {"source": "a.png"}), **TYPES)
    with pytest.raises(lro.DeclarationError, match=r"^request_id: "):
        client.start("a.B.C", OddRequest(), **TYPES, request_id=ID)
    assert odd.calls == []


def test_invalid_target_is_refused(face: Face) -> None:
    """An invalid address or metadata is refused when the transport is made."""
    with pytest.raises(lro.DeclarationError, match=r"^metadata: must be pairs of a key"):
        transport(face, "here:50051", metadata=[("b-bin", "no bytes")])
    with pytest.raises(lro.DeclarationError, match=r"^target: .* got 'grpc://here:50051'"):
        transport(face, "grpc://here:50051")


def test_method_that_is_not_served_is_named(asking: Asking) -> None:
    _, client = asking(refusing(Code.UNIMPLEMENTED, "Method not found!"))
    with pytest.raises(CallError, match=r"method not found: /a\.B/C"):
        client.start("a.B.C", ResizeRequest(), **TYPES)


def test_trailer_gives_message_details_and_delay(asking: Asking) -> None:
    """An error has the message, details and retry delay of the trailer."""
    info = lro.types.ErrorInfo(reason="FULL", domain="acme.test")
    retry = lro.types.RetryInfo(retry_delay=timedelta(seconds=7))
    trailer = details_of(lro.Code.RESOURCE_EXHAUSTED, info, retry, text="später")
    _, client = asking(refusing(Code.RESOURCE_EXHAUSTED, "other words", trailer))
    error = failure(client)
    assert (error.code, error.status.message) == (lro.Code.RESOURCE_EXHAUSTED, "später")
    assert error.details() == (info, retry)
    assert (error.retry_after, error.passing, error.http_status) == (7, False, None)


def test_error_without_details_has_code_and_message_of_grpc(asking: Asking) -> None:
    """If the trailer is missing or unusable, an error has no details (spec §12.2)."""
    trailers = (None, b"\xff", details_of(lro.Code.ABORTED, lro.types.ErrorInfo("A", "b")), b"")
    _, client = asking(*(refusing(Code.FAILED_PRECONDITION, "not now", one) for one in trailers))
    for _ in trailers:
        error = failure(client)
        assert (error.code, error.status.message) == (lro.Code.FAILED_PRECONDITION, "not now")
        assert (error.status.details, error.retry_after, error.passing) == ((), None, False)


def test_codes_are_mapped_one_to_one(asking: Asking) -> None:
    """Each gRPC code keeps its number; without a trailer, two codes count as transient."""
    codes = [code for code in Code if code is not Code.OK]
    answers = []
    for code in codes:
        trailer = StatusProto(code=code.value[0], message="words").SerializeToString()
        answers += [refusing(code, "words"), refusing(code, "words", trailer)]
    _, client = asking(*answers)
    for code in codes:
        passing = code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
        for wanted in (passing, False):
            error = failure(client)
            assert (error.status, error.passing) == (lro.Status(code.value[0], "words"), wanted)


def test_delay_that_no_clock_can_sleep_is_cut(asking: Asking) -> None:
    """An enormous delay in RetryInfo is limited; without a delay, ``retry_after`` is None."""
    for detail, wanted in [
        (lro.types.RetryInfo(retry_delay=timedelta(days=99_999)), 1e9),
        (lro.types.RetryInfo(), None),
    ]:
        trailer = details_of(lro.Code.UNAVAILABLE, detail)
        _, client = asking(refusing(Code.UNAVAILABLE, "no", trailer))
        assert failure(client).retry_after == wanted


def test_call_without_server_is_unavailable(face: Face) -> None:
    """A refused connection is UNAVAILABLE and transient (``passing``)."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        address = f"{HOST}:{probe.getsockname()[1]}"
        client = face.client(transport=transport(face, address), retry=Retry(codes=frozenset()))
        error = failure(client)
    assert (error.code, error.passing) == (lro.Code.UNAVAILABLE, True)


def test_port_without_tls_is_final(asking: Asking) -> None:
    """A TLS call to a port without TLS fails with an error that is not retried."""
    _, client = asking(send={"credentials": grpc.ssl_channel_credentials()})
    error = failure(client)
    assert (error.code, error.passing) == (lro.Code.FAILED_PRECONDITION, False)


def test_a_call_has_a_deadline(asking: Asking) -> None:
    """Without a reply, a call fails at ``call_seconds``, which the server gets as its deadline."""
    over, left = threading.Event(), []

    def hang(context: Any) -> bytes:
        left.append(context.time_remaining())
        over.wait(PATIENCE)
        return b""

    _, client = asking(hang, call_seconds=0.1)
    try:
        while not left:  # the first calls may expire before they reach the server
            error = failure(client)
            assert (error.code, error.passing) == (lro.Code.DEADLINE_EXCEEDED, True)
            assert error.status.message == "no complete answer within 0.1 s"
    finally:
        over.set()
    assert left[0] < 1


def test_deadline_enforced_by_grpcio_has_the_same_error(face: Face) -> None:
    """If grpcio enforces the deadline of a call, the error has our message."""
    over = threading.Event()
    with odd_server(lambda _: bytes(over.wait(PATIENCE) * 0)) as odd:
        made = transport(face, odd.address)
        call = Call(request=lro.wire.GetOperationRequest(NAME), budget=0.05)
        with pytest.raises(CallError, match=r"no complete answer within 0\.05 s") as caught:
            face.run(made.send, call)
        assert caught.value.passing
        over.set()
        face.run(made.close)


def test_reply_that_is_not_the_message_is_unknown(asking: Asking) -> None:
    """A reply that is not the expected message is an UNKNOWN error, which is not transient.

    A reply with an unfinished operation without a name is such an error too.
    """
    _, client = asking(sending(b"\xff"), sending(b"\xff"), sending(b""))
    for call, why in (
        (lambda: client.get(NAME), "the reply is not what was asked for"),
        (lambda: list(client.list()), "the reply is not what was asked for"),
        (
            lambda: client.start("acme.v1.Images.Resize", ResizeRequest(), **STRUCTS),
            "an operation in progress without a name",
        ),
    ):
        with pytest.raises(CallError, match=why) as caught:
            call()
        assert (caught.value.code, caught.value.passing) == (lro.Code.UNKNOWN, False)


def test_reply_that_is_too_large_is_an_error(asking: Asking) -> None:
    options = [("grpc.max_receive_message_length", 1000)]
    _, client = asking(replying(name="x" * 1001), send={"options": options})
    error = failure(client)
    assert isinstance(error, UnreadableReply)
    assert (error.code, error.passing) == (lro.Code.UNKNOWN, False)
    # ``result`` fails at once too: it does not retry for ten minutes.
    with pytest.raises(UnreadableReply, match="the reply is too large"):
        client.operation(NAME, **TYPES).result()


@pytest.mark.parametrize("who", ["", "SERVER: "])
def test_start_that_is_too_large_has_the_error_of_the_server(who: str, asking: Asking) -> None:
    """If the server refuses a large start, the error is RESOURCE_EXHAUSTED, not UnreadableReply."""
    text = f"{who}Received message larger than max (9 vs. 8)"
    _, client = asking(refusing(Code.RESOURCE_EXHAUSTED, text))
    with pytest.raises(CallError, match="RESOURCE_EXHAUSTED") as caught:
        client.start("a.B.C", ResizeRequest(), **TYPES)
    assert not isinstance(caught.value, UnreadableReply)


def test_empty_reply_is_retried_three_times(asking: Asking) -> None:
    """After an empty reply, the client asks three more times, then raises UnreadableReply."""
    odd, client = asking(sending(b""), clock=Clock(), polling=Polling(wait_first=False))
    with pytest.raises(UnreadableReply, match="says nothing: it is an operation without any"):
        client.operation(NAME, **TYPES).result()
    assert len(odd.calls) == 4


def test_unknown_fields_are_kept(asking: Asking) -> None:
    """An operation keeps the fields of a newer server that this client does not know."""
    _, client = asking(sending(pb.Operation(name=NAME).SerializeToString() + b"\xa2\x06\x01x"))
    assert client.get(NAME).unknown == b"\xa2\x06\x01x"


def test_channel_of_the_user_is_used(face: Face) -> None:
    """A transport uses the channel that it is given, and its close leaves the channel open."""
    with odd_server(replying(name=NAME)) as odd:
        module: Any = grpc if face.name == "sync" else grpc.aio
        channel = face.run(lambda: module.insecure_channel(odd.address))
        for _ in range(2):
            made = transport(face, channel)
            assert face.client(transport=made).get(NAME).name == NAME
            face.run(made.close)
        face.run(channel.close)
    assert len(odd.calls) == 2


def test_closed_transport_raises_its_own_error(face: Face) -> None:
    """A closed transport, used before or not, raises an error that says so."""
    with odd_server(replying(name=NAME)) as odd:
        for uses in (0, 1):
            made = transport(face, odd.address)
            client = face.client(transport=made)
            for _ in range(uses):
                assert client.get(NAME).name == NAME
            for _ in range(2):
                face.run(made.close)
                assert "the client was closed" in str(failure(client))


def test_a_connection_that_dies_silently_is_replaced(face: Face) -> None:
    """After a call without a reply, the next call uses a new connection."""
    module: Any = grpc if face.name == "sync" else grpc.aio
    make = mock.patch.object(module, "insecure_channel", wraps=module.insecure_channel)
    done = odd_server(replying(name=NAME, done=True))
    with make as making, done as odd, proxy_to(int(odd.address.rpartition(":")[2])) as proxy:
        made = transport(face, f"{HOST}:{proxy.port}")
        again = Retry(codes=frozenset({lro.Code.DEADLINE_EXCEEDED}), attempts=2)
        client = face.client(transport=made, retry=again, call_seconds=3.0)
        for _ in range(2):
            assert client.get(NAME).done
            proxy.forget()
        face.run(made.close)
    assert dict(making.call_args.args[1])["grpc.client_idle_timeout_ms"] == 60_000


def test_calls_on_a_replaced_channel_still_complete() -> None:
    """Calls on a replaced connection still complete if the server was only slow."""
    over = threading.Event()

    def hold(context: Any) -> bytes:
        over.wait(PATIENCE)
        return replying(name=NAME)(context)

    async def main(odd: Odd) -> None:
        made = AsyncGrpcTransport(odd.address)
        get, seconds = lro.wire.GetOperationRequest(NAME), PATIENCE
        held = asyncio.ensure_future(made.send(Call(request=get, budget=seconds)))
        await until_async(lambda: odd.calls)
        with pytest.raises(CallError, match="no complete answer"):
            await made.send(Call(request=get, budget=1.0))
        assert (await made.send(Call(request=get, budget=seconds))).value
        assert not held.done()
        over.set()
        assert (await held).value
        await made.close()

    with odd_server(hold, hold, replying(name=NAME)) as odd:
        asyncio.run(main(odd))


def test_call_uses_the_credentials_of_the_channel(face: Face) -> None:
    odd = Odd([replying(name=NAME)])
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((odd,))
        port = server.add_secure_port(f"{HOST}:0", grpc.local_server_credentials())
        server.start()
        made = transport(face, f"{HOST}:{port}", credentials=grpc.local_channel_credentials())
        try:
            assert face.client(transport=made).get(NAME).name == NAME
            face.run(made.close)
        finally:
            server.stop(None).wait()


def test_channel_closed_during_a_call_raises_call_error(face: Face) -> None:
    """A call on a closed channel raises a CallError, not CancelledError."""
    module: Any = grpc if face.name == "sync" else grpc.aio
    channel = face.run(lambda: module.insecure_channel("127.0.0.1:1"))
    made = transport(face, channel)
    face.run(channel.close)
    with pytest.raises(CallError):
        face.run(made.send, Call(request=lro.wire.GetOperationRequest(NAME), budget=5.0))


def test_call_cancelled_by_grpcio_raises_call_error() -> None:
    """A call that grpcio cancels raises CallError; a cancelled task raises CancelledError."""

    class Channel:
        """A channel that has the same callable for each path."""

        def __init__(self, call: Any) -> None:
            self.call = call

        def unary_unary(self, path: str) -> Any:
            return self.call

    async def cancelled(*arguments: Any, **options: Any) -> bytes:
        raise asyncio.CancelledError

    async def waits(*arguments: Any, **options: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def main() -> None:
        call = Call(request=lro.wire.GetOperationRequest(NAME), budget=5.0)
        with pytest.raises(CallError, match="the channel was closed during the call"):
            await AsyncGrpcTransport(Channel(cancelled)).send(call)  # type: ignore[arg-type]
        task = asyncio.ensure_future(AsyncGrpcTransport(Channel(waits)).send(call))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_ok_without_a_message_is_unreadable() -> None:
    """An OK without a message raises an empty UnreadableReply, except for a cancel."""
    coder = GrpcCoder((), lro.TypeRegistry())
    with pytest.raises(UnreadableReply, match="it is OK without a message") as caught:
        coder.decode(Call(request=lro.wire.GetOperationRequest(NAME), budget=1.0), None)
    assert caught.value.empty
    cancel = Call(request=lro.wire.CancelOperationRequest(NAME), budget=1.0)
    assert coder.decode(cancel, None) == Reply(None)
