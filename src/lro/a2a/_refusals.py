"""Errors of a service as A2A says them (A2A 3.3.2, 5.4).

What the protocol has an error for becomes that one, which each server of the SDK writes. All other
errors have a status of their own, such as 409, 429 or 503, which the SDK cannot say: over HTTP the
reply is put in place of the SDK's, and over gRPC the call is ended.
"""

from __future__ import annotations

import contextlib
from typing import Final, NoReturn

import attrs
from a2a.server.context import ServerCallContext
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.any_pb2 import Any as AnyProto
from google.rpc.status_pb2 import Status as StatusProto

from lro._base.errors import InvalidArgument, MethodNotSupported, UnsupportedMediaType, got
from lro._base.status import Code
from lro._engine.service import Service
from lro._http.responses import HttpReply, error_reply, public_error

CALL: Final = "lro.call"
"""Where the state of a call has its :class:`HttpRefusal`."""


@attrs.define(eq=False)
class HttpRefusal:
    """A call over HTTP, and what is to be answered in place of the SDK's reply."""

    refusal: HttpReply | None = None


def task_not_found(task_id: str) -> TaskNotFoundError:
    """The error for a task that is not there, or that the caller may not see (A2A 13.1)."""
    return TaskNotFoundError(message=f"there is no task {got(task_id)}")


async def refuse(
    error: Exception, context: ServerCallContext, service: Service, asked: str
) -> NoReturn:
    """Raise what a caller is answered in place of an error.

    It is an error of the SDK, or over gRPC maybe what ends the call.
    """
    if isinstance(error, A2AError):
        raise error
    if isinstance(error, MethodNotSupported):
        raise UnsupportedOperationError(message=str(error)) from None
    if isinstance(error, UnsupportedMediaType):
        raise ContentTypeNotSupportedError(message=str(error)) from None
    public = public_error(error, service.types, service.domain, asked=asked)
    status = public.status
    if isinstance(public.error, InvalidArgument) and status.code == Code.INVALID_ARGUMENT:
        wrong = [
            {"field": one.field, "message": one.description} for one in public.error.violations
        ]
        raise InvalidParamsError(message=status.message, data={"errors": wrong}) from None
    call: HttpRefusal | None = context.state.get(CALL)
    if call is not None:
        call.refusal = error_reply(public.error, service.types, service.domain, asked=asked)
    rpc = context.state.get("grpc_context")
    if rpc is not None:
        made = StatusProto(code=int(status.code), message=status.message)
        with contextlib.suppress(Exception):  # details may be anything that an application made
            for detail in status.details:
                value = service.types.binary_payload(detail)
                made.details.append(AnyProto(type_url=detail.type_url, value=value))
        from grpc import StatusCode  # of the extra grpc, without which there is no such call

        rpc.set_trailing_metadata((("grpc-status-details-bin", made.SerializeToString()),))
        code = next(one for one in StatusCode if one.value[0] == status.code)
        await rpc.abort(code, status.message)
    raise InternalError(message=status.message) from None
