"""Convert errors to errors of A2A (A2A 3.3.2, 5.4).

Errors that the protocol defines become exceptions of the SDK. The SDK cannot send the statuses of
all other errors, such as 409, 429 or 503. Over HTTP, our reply with that status replaces the SDK's
reply; over gRPC, the call is aborted with the status.
"""

from __future__ import annotations

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

from lro import Code, Service, Status
from lro.asgi import Receive
from lro.errors import MethodNotSupported, UnsupportedMediaType, got
from lro.http import MAX_DETAILS, HttpReply, detail_of, error_reply, public_error
from lro.types import BadRequest, TypeRegistry
from lro.wire import dumps

CALL: Final = "lro.call"
"""The key of the :class:`A2ACall` in the state of an SDK call context."""


@attrs.define(eq=False)
class A2ACall:
    """A call whose caller is known, and its result.

    Over HTTP, ``receive`` returns when the caller has disconnected, and ``refusal`` replaces the
    reply of the SDK. ``error`` is the exception that was raised for the SDK.
    """

    caller: str
    receive: Receive | None = None
    reached: bool = False
    """True once the SDK has read the request and calls the handler."""
    refusal: HttpReply | None = None
    error: A2AError | None = None


def task_not_found(task_id: str) -> TaskNotFoundError:
    """Return the error for a task that is missing or hidden (A2A 13.1)."""
    return TaskNotFoundError(message=f"there is no task {got(task_id)}")


async def refuse(
    error: Exception, context: ServerCallContext, service: Service, asked: str
) -> NoReturn:
    """Raise the SDK's exception for an error, or abort the call of gRPC."""
    call: A2ACall | None = context.state.get(CALL)
    shown = await _shown(error, context, service, asked, call)
    if call is not None:
        call.error = shown
    raise shown from None


async def _shown(
    error: Exception, context: ServerCallContext, service: Service, asked: str, call: A2ACall | None
) -> A2AError:
    if isinstance(error, A2AError):
        return error
    if isinstance(error, MethodNotSupported):
        return UnsupportedOperationError(message=str(error))
    if isinstance(error, UnsupportedMediaType):
        return ContentTypeNotSupportedError(message=str(error))
    public = public_error(error, service.types, service.domain, asked=asked)
    status = public.status
    rpc = context.state.get("grpc_context")
    if status.code == Code.INVALID_ARGUMENT:
        return _invalid_params(status, service.types, over_grpc=rpc is not None)
    if rpc is not None:
        from lro.grpc import refusal  # a gRPC call implies that the extra grpc is installed

        said = refusal(public.error, service, asked=asked)
        rpc.set_trailing_metadata(said.trailers)
        await rpc.abort(said.code, said.message)
    if call is not None:
        call.refusal = error_reply(public.error, service.types, service.domain, asked=asked)
    return InternalError(message=status.message)


def _invalid_params(status: Status, types: TypeRegistry, *, over_grpc: bool) -> InvalidParamsError:
    """Return the SDK's error for invalid fields, with texts cut to the usual length."""
    bad = detail_of(status, types, BadRequest) or BadRequest()
    found = [{"field": one.field, "message": one.description} for one in bad.field_violations]
    message, room = status.message, MAX_DETAILS
    if over_grpc:
        from lro.grpc import MAX_MESSAGE, clipped

        message, room = clipped(message), MAX_MESSAGE - 200
    wrong = []
    for one in found:
        room -= len(dumps({**one}))
        if room >= 0:
            wrong.append(one)
    return InvalidParamsError(message=message, data={"errors": wrong})
