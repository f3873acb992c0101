"""Call a server over gRPC: grpcio sends bytes, which this module parses. Needs extra ``grpc``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import attrs

from lro.errors import MissingExtra
from lro_conform._checks import GRPC
from lro_conform._codes import CODES
from lro_conform.server._answers import Answer

try:
    import grpc
    import grpc.aio
    from google.longrunning import operations_proto_pb2 as pb
    from google.protobuf.message import DecodeError, Message
    from google.rpc.status_pb2 import Status as StatusProto
except ImportError as exc:
    raise MissingExtra("judging over gRPC", "grpc") from exc

MAX_REPLY: Final = 16 * 1024 * 1024
"""Maximum size of a reply in bytes."""

_SERVICE: Final = "/google.longrunning.Operations/"
_DETAILS: Final = "grpc-status-details-bin"
_OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", MAX_REPLY),
    ("grpc.use_local_subchannel_pool", 1),
)
_REQUESTS: Final = {
    "get": ("GetOperation", pb.GetOperationRequest, pb.Operation),
    "list": ("ListOperations", pb.ListOperationsRequest, pb.ListOperationsResponse),
    "cancel": ("CancelOperation", pb.CancelOperationRequest, None),
    "delete": ("DeleteOperation", pb.DeleteOperationRequest, None),
    "wait": ("WaitOperation", pb.WaitOperationRequest, pb.Operation),
}


@attrs.define(kw_only=True)
class GrpcTarget:
    """A server at ``HOST:PORT``, with TLS if ``secure``; headers are sent as metadata."""

    transport: str = attrs.field(default=GRPC, init=False)
    address: str
    secure: bool = False
    headers: Sequence[tuple[str, str]] = ()
    call_seconds: float = 10.0
    log: list[Answer] = attrs.field(factory=list)
    _channel: grpc.aio.Channel = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.secure:
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(self.address, credentials, _OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(self.address, _OPTIONS)

    async def get(self, name: str) -> Answer:
        return await self._ask("get", name=name)

    async def list(
        self,
        parent: str,
        *,
        page_size: int | None = None,
        page_token: str | None = None,
        filter: str | None = None,
    ) -> Answer:
        given = {"page_size": page_size, "page_token": page_token, "filter": filter}
        fields = {key: value for key, value in given.items() if value is not None}
        return await self._ask("list", name=parent or "operations", **fields)

    async def cancel(self, name: str) -> Answer:
        return await self._ask("cancel", name=name)

    async def delete(self, name: str) -> Answer:
        return await self._ask("delete", name=name)

    async def wait(self, name: str, timeout: float | None = None) -> Answer:
        return await self._ask("wait", name=name, **wait_fields(timeout))

    async def get_with(self, name: str, more: bytes) -> Answer:
        """Call GetOperation, with these bytes appended to the request."""
        payload = pb.GetOperationRequest(name=name).SerializeToString() + more
        return await self.ask("GetOperation", payload, rpc="get", reply=pb.Operation)

    async def wait_within(self, name: str, *, timeout: float, seconds: float) -> Answer:
        """Call WaitOperation with a timeout, and with a deadline of ``seconds``.

        The call is not logged, because the deadline is so short that a slow network may exceed it.
        """
        request = pb.WaitOperationRequest(name=name, **wait_fields(timeout))
        found = await self.ask(
            "WaitOperation",
            request.SerializeToString(),
            rpc="wait",
            reply=pb.Operation,
            call=f"WaitOperation within a deadline of {seconds:g} s",
            seconds=seconds,
        )
        self.log.remove(found)
        return found

    async def aclose(self) -> None:
        await self._channel.close()

    async def _ask(self, rpc: str, **fields: Any) -> Answer:
        method, kind, reply = _REQUESTS[rpc]
        request: Message = kind(**fields)
        sent = ", ".join(f"{key}={value!r}" for key, value in fields.items())
        return await self.ask(
            method,
            request.SerializeToString(),
            rpc=rpc,
            reply=reply,
            call=f"{method}({ascii(sent)[1:-1][:_LONGEST]})",
        )

    async def ask(
        self,
        method: str,
        payload: bytes,
        *,
        rpc: str = "",
        reply: type[Message] | None = None,
        call: str = "",
        seconds: float | None = None,
    ) -> Answer:
        """Call a method of the service with these bytes, within a deadline.

        ``reply`` is the message class of the reply; None means an empty message.
        """
        limit = seconds if seconds is not None else self.call_seconds
        caller: Any = self._channel.unary_unary(_SERVICE + method)
        metadata = [(name.lower(), value) for name, value in self.headers]
        began, fields = time.monotonic(), {}
        try:
            fields = _read(await caller(payload, timeout=limit, metadata=metadata), reply)
        except grpc.aio.AioRpcError as exc:
            fields = _refused(exc)
        answer = Answer(
            call=call or method,
            rpc=rpc,
            code=fields.pop("code", ""),
            foreign=not rpc,
            began=began,
            ended=time.monotonic(),
            **fields,
        )
        self.log.append(answer)
        return answer


_LONGEST: Final = 200


def wait_fields(timeout: float | None) -> dict[str, Any]:
    """Return the fields of a WaitOperationRequest without the name; ``timeout`` may be negative."""
    if timeout is None:
        return {}
    request = pb.WaitOperationRequest()
    micros = round(timeout * 1e6)
    seconds = int(micros / 1_000_000)  # towards zero: a Duration's parts have the same sign
    request.timeout.seconds = seconds
    request.timeout.nanos = (micros - seconds * 1_000_000) * 1000
    return {"timeout": request.timeout}


def _read(payload: bytes, kind: type[Message] | None) -> dict[str, Any]:
    if kind is None:
        return {"code": "OK", "body": {"bytes": payload.hex()} if payload else {}}
    try:
        message: Any = kind.FromString(payload)
    except DecodeError:
        return {"code": "OK", "fault": f"bytes that are not a {kind.DESCRIPTOR.full_name}"}
    if isinstance(message, pb.Operation):
        return {"code": "OK", "body": _operation(message)}
    found = {"operations": [_operation(one) for one in message.operations]}
    return {"code": "OK", "body": {**found, "nextPageToken": message.next_page_token}}


def _operation(message: Any) -> dict[str, Any]:
    """Return an Operation as JSON, with the bytes of its packed messages.

    Maps have no order in binary form, so equal messages may differ in the order of their bytes. The
    bytes are sorted, so that equal messages stay equal.
    """
    found: dict[str, Any] = {"name": message.name, "done": message.done}
    for field in ("metadata", "response"):
        if message.HasField(field):
            found[field] = _any(getattr(message, field))
    if message.HasField("error"):
        found["error"] = _status(message.error)
    return found


def _any(packed: Any) -> dict[str, Any]:
    return {"@type": packed.type_url, "bytes": bytes(sorted(packed.value)).hex()}


def _status(status: Any) -> dict[str, Any]:
    details = [_detail(one) for one in status.details]
    return {"code": status.code, "message": status.message, "details": details}


def _detail(packed: Any) -> dict[str, Any]:
    from google.rpc.error_details_pb2 import ErrorInfo

    found = _any(packed)
    info = ErrorInfo()
    if packed.Is(ErrorInfo.DESCRIPTOR):
        try:
            packed.Unpack(info)
        except DecodeError:
            return found
        return {**found, "reason": info.reason, "domain": info.domain}
    return found


def _refused(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    number: int = error.code().value[0]
    code = CODES[number]
    message = error.details() or ""
    found: dict[str, Any] = {"code": code, "error": {"code": number, "message": message}}
    pairs = [*(error.trailing_metadata() or ()), *(error.initial_metadata() or ())]
    packed = [value for key, value in pairs if key == _DETAILS]
    if not packed and code in _LOCAL:
        return {"fault": f"no reply ({code}: {ascii(message)[1:-1][:_LONGEST]})", "lost": True}
    if packed:
        found |= _details(packed, number, message)
    return found


_LOCAL: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
"""Codes that come from the server or, without a reply, from grpcio; the source is not known."""


def _details(packed: list[Any], number: int, message: str) -> dict[str, Any]:
    if len(packed) > 1:
        return {"trailer": f"{_DETAILS} stands {len(packed)} times"}
    try:
        status = StatusProto.FromString(packed[0])
    except DecodeError:
        return {"trailer": f"{_DETAILS} is not a google.rpc.Status"}
    found = _status(status)
    problem = ""
    if status.code != number:
        problem = f"{_DETAILS} has code {status.code}, but grpc-status is {number}"
    elif status.message != message:
        problem = f"{_DETAILS} has another message than grpc-message"
    return {"error": found, "trailer": problem}
