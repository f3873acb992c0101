"""A server written by hand on the stubs of google.longrunning, without lro.

``Operations`` is the gRPC servicer, which stores operations in a dict. ``Gateway`` serves it over
HTTP like a transcoding proxy, with protobuf's own JSON.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import attrs
import grpc
from google.longrunning import operations_pb2_grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Struct
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from lro_conform.server._starts import StartKind

DETAILS: Final = "grpc-status-details-bin"
SECONDS: Final = {StartKind.LONG: 3600.0, StartKind.SOON: 0.02, StartKind.FAIL: 0.0}
START: Final = "/acme.v1.Works/Start"
LONGEST_WAIT: Final = 5.0
FILTERS: Final = {"": None, "done = true": True, "done = false": False}


@attrs.frozen
class Refused(Exception):
    """The error of a call that the server refuses."""

    code: int
    reason: str
    message: str

    @property
    def status(self) -> Status:
        """The status with its ErrorInfo."""
        found = Status(code=self.code, message=self.message)
        found.details.add().Pack(ErrorInfo(reason=self.reason, domain="acme.test"))
        return found


def invalid(message: str) -> Refused:
    """Return the error for an invalid argument."""
    return Refused(Code.INVALID_ARGUMENT, "INVALID", message)


def packed(**fields: Any) -> AnyProto:
    """Return an Any that contains a Struct with these fields."""
    struct, found = Struct(), AnyProto()
    struct.update(fields)
    found.Pack(struct)
    return found


@attrs.define
class Work:
    """An operation, and the time at which its work ends."""

    operation: Any
    ends_at: float
    fails: bool


class Operations(operations_pb2_grpc.OperationsServicer):
    """The servicer. Its work needs no thread: an operation ends at a set time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._works: dict[str, Work] = {}
        self._tokens: dict[str, tuple[str, str, str]] = {}

    def start(self, kind: StartKind) -> pb.Operation:
        """Start an operation."""
        name = f"operations/{secrets.token_urlsafe(12)}"
        operation = pb.Operation(name=name, metadata=packed(kind=str(kind)))
        ends_at = time.monotonic() + SECONDS[kind]
        with self._changed:
            self._works[name] = Work(operation, ends_at, kind is StartKind.FAIL)
        return operation

    async def start_name(self, kind: StartKind) -> str:
        """Start an operation, and return its name; the kit can use this function as a hook."""
        return str(self.start(kind).name)

    def GetOperation(self, request: Any, context: Any) -> Any:
        with self._refusing(context):
            return self._read(request.name)

    def ListOperations(self, request: Any, context: Any) -> Any:
        with self._refusing(context):
            return self._page(request)

    def CancelOperation(self, request: Any, context: Any) -> Any:
        with self._refusing(context):
            operation = self._read(request.name)
            if not operation.done:
                operation.error.CopyFrom(Status(code=Code.CANCELLED, message="cancelled"))
                operation.done = True
                self._changed.notify_all()
            return Empty()

    def DeleteOperation(self, request: Any, context: Any) -> Any:
        with self._refusing(context):
            self._read(request.name)
            del self._works[request.name]
            self._changed.notify_all()
            return Empty()

    def WaitOperation(self, request: Any, context: Any) -> Any:
        seconds = LONGEST_WAIT
        with self._refusing(context):
            if request.HasField("timeout"):
                if request.timeout.seconds < 0 or request.timeout.nanos < 0:
                    raise invalid("the timeout is negative")
                seconds = min(seconds, request.timeout.ToNanoseconds() / 1e9)
            left = context.time_remaining()
            limit = time.monotonic() + min(seconds, LONGEST_WAIT if left is None else left * 0.8)
            while not (operation := self._read(request.name)).done:
                now = time.monotonic()
                if now >= limit:
                    break
                self._changed.wait(min(limit, self._works[request.name].ends_at) - now)
            return operation

    @contextlib.contextmanager
    def _refusing(self, context: Any) -> Iterator[None]:
        try:
            with self._changed:
                yield
        except Refused as exc:
            self.refuse(context, exc)

    def refuse(self, context: Any, error: Refused) -> None:
        """End a call with an error."""
        context.set_trailing_metadata([(DETAILS, error.status.SerializeToString())])
        context.abort(grpc.StatusCode[Code.Name(error.code)], error.message)

    def _read(self, name: str) -> Any:
        if not name.startswith("operations/"):
            raise invalid("this is not the name of an operation")
        work = self._works.get(name)
        if work is None:
            raise Refused(Code.NOT_FOUND, "NOT_FOUND", "there is no such operation")
        operation = work.operation
        if not operation.done and time.monotonic() >= work.ends_at:
            if work.fails:
                operation.error.CopyFrom(Status(code=Code.ABORTED, message="it failed"))
            else:
                operation.response.CopyFrom(packed(answer=42))
            operation.done = True
        return operation

    def _page(self, request: Any) -> Any:
        if request.page_size < 0:
            raise invalid("page_size is negative")
        if request.filter not in FILTERS:
            raise invalid("the filter is not one of done = true and done = false")
        names = sorted(self._works) if request.name == "operations" else []
        wanted = FILTERS[request.filter]
        names = [one for one in names if wanted in (None, self._read(one).done)]
        if request.page_token:
            name, filter, last = self._tokens.get(request.page_token, ("", "?", ""))
            if (name, filter) != (request.name, request.filter):
                raise invalid("the page_token is not of this list")
            names = [one for one in names if one > last]
        size = min(request.page_size or 50, 100)
        page = pb.ListOperationsResponse(operations=[self._read(one) for one in names[:size]])
        if len(names) > size:
            page.next_page_token = secrets.token_urlsafe(16)
            self._tokens[page.next_page_token] = (request.name, request.filter, names[size - 1])
        return page


@contextlib.contextmanager
def serving_handmade(servicer: Operations, interceptors: tuple[Any, ...] = ()) -> Iterator[str]:
    """Serve the servicer over gRPC, with a method that starts operations; yield the address."""

    def start(payload: bytes, context: Any) -> bytes:
        return bytes(servicer.start(StartKind(payload.decode())).SerializeToString())

    handler = grpc.unary_unary_rpc_method_handler(start)
    with ThreadPoolExecutor(24) as pool:
        server = grpc.server(pool, interceptors=interceptors)
        operations_pb2_grpc.add_OperationsServicer_to_server(servicer, server)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("acme.v1.Works", {"Start": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


class Ended(Exception):
    """Ends a call that the servicer aborted; the argument is the status."""


class Context:
    """The parts of a gRPC context that the servicer needs."""

    def __init__(self) -> None:
        self.status = Status()

    def time_remaining(self) -> None:
        """Return None, because there is no deadline."""

    def set_trailing_metadata(self, pairs: Any) -> None:
        """Store the status from the trailing metadata."""
        self.status = Status.FromString(dict(pairs)[DETAILS])

    def abort(self, code: Any, message: str) -> None:
        """End the call."""
        raise Ended(self.status)


HTTP_STATUS: Final = {Code.INVALID_ARGUMENT: 400, Code.NOT_FOUND: 404, Code.UNIMPLEMENTED: 501}
GLOBAL: Final = ("$alt", "alt")


class Gateway:
    """An ASGI application that transcodes for the servicer by the rules of operations.proto.

    These rules do not include WaitOperation, so there is no route for it.
    """

    def __init__(self, servicer: Operations) -> None:
        self._servicer = servicer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, text = self._answer(scope, body)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})

    def _answer(self, scope: Any, body: bytes) -> tuple[int, str]:
        try:
            return 200, json_format.MessageToJson(self._call(scope, body))
        except Ended as exc:
            error = exc.args[0]
        except Refused as exc:
            error = exc.status
        except (json_format.ParseError, UnicodeDecodeError, RecursionError, ValueError) as exc:
            error = invalid(f"the request cannot be read: {type(exc).__name__}").status
        shown = json_format.MessageToDict(error)
        shown |= {"code": HTTP_STATUS[error.code], "status": Code.Name(error.code)}
        return shown["code"], json.dumps({"error": shown})

    def _call(self, scope: Any, body: bytes) -> Any:
        path = unquote(scope["raw_path"].decode(), errors="strict")
        method, servicer = scope["method"], self._servicer
        if path.startswith("/acme/start/"):
            return servicer.start(StartKind(path.rpartition("/")[2]))
        name = path.removeprefix("/v1/")
        known = path.startswith("/v1/operations/")
        match method, known:
            case "GET", _ if path == "/v1/operations":
                return servicer.ListOperations(self._list(scope, name), Context())
            case "GET" | "HEAD", True:
                return servicer.GetOperation(pb.GetOperationRequest(name=name), Context())
            case "DELETE", True:
                return servicer.DeleteOperation(pb.DeleteOperationRequest(name=name), Context())
            case "POST", True if name.endswith(":cancel"):
                request = pb.CancelOperationRequest()
                json_format.Parse(body or b"{}", request, ignore_unknown_fields=True)
                request.name = name.removesuffix(":cancel")
                return servicer.CancelOperation(request, Context())
        raise Refused(Code.NOT_FOUND, "NO_ROUTE", "there is no such path")

    def _list(self, scope: Any, name: str) -> Any:
        query = parse_qsl(scope["query_string"].decode(), keep_blank_values=True)
        given = {key: value for key, value in query if key not in GLOBAL}
        request = json_format.ParseDict(
            given, pb.ListOperationsRequest(), ignore_unknown_fields=True
        )
        request.name = name
        return request
