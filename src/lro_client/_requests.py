"""Arguments of the verbs as request messages, for both faces."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Final, TypeVar

import attrs

from lro import Duration, ListOperationsRequest, TypeRegistry, WaitOperationRequest
from lro_client import _arguments
from lro_client._flow.steps import StartRequest
from lro_client.filters import Expression

R = TypeVar("R")

_EVER_SECONDS: Final = 1e8
"""A timeout of three years is none: clocks do not take much longer ones."""


def named(cls: type[R], request: str | R) -> R:
    """The request of a verb that takes a name, or the whole request (spec §3.8).

    Raises:
        DeclarationError: It is neither, or the name is none.
    """
    whole: Any = cls(request) if isinstance(request, str) else request  # type: ignore[call-arg]  # of a name
    wanted = f"a name or a {cls.__name__}"
    _arguments.check("name", request, wanted, fine=isinstance(whole, cls))
    _arguments.check_name(whole.name)
    found: R = whole
    return found


def starting(
    types: TypeRegistry,
    target: str,
    message: object,
    request_id: object,
    validate_only: bool,
) -> StartRequest:
    """The request of a start.

    Raises:
        DeclarationError: An argument is not of its type, or the message of no class of messages.
    """
    _arguments.check("target", target, "a text", fine=isinstance(target, str))
    _arguments.check_message(message, types)
    _arguments.check_request_id(request_id)
    return StartRequest(
        target=target, message=message, request_id=str(request_id), validate_only=validate_only
    )


def listing(
    request: str | ListOperationsRequest,
    wanted: str | Expression,
    page_size: int,
    page_token: str,
) -> ListOperationsRequest:
    """The request of a list, of the operations that match ``wanted``."""
    if not isinstance(wanted, str | Expression):
        raise TypeError(
            f"a filter is a text or an Expression of lro_client.filters, not {wanted!r}"
        )
    text = str(wanted)
    for name, value, cls in (("page_size", page_size, int), ("page_token", page_token, str)):
        wanted_type = "a whole number" if cls is int else "a text"
        _arguments.check(name, value, wanted_type, fine=isinstance(value, cls))
    if isinstance(request, ListOperationsRequest):
        _alone("ListOperationsRequest", text or page_size or page_token)
        if not isinstance(request.filter, str):
            raise TypeError(f"the filter of a request is a text: str({request.filter!r})")
        return request
    if not isinstance(request, str):
        raise TypeError(f"first comes the parent, a text, then the filter; got {request!r}")
    _arguments.check_parent(request)
    return ListOperationsRequest(
        name=request, filter=text, page_size=page_size, page_token=page_token
    )


def waiting(
    request: str | WaitOperationRequest, timeout: timedelta | float | None
) -> WaitOperationRequest:
    """The request of a wait; ``timeout`` in seconds or as a timedelta."""
    found = named(WaitOperationRequest, request)
    if found is request:
        _alone("WaitOperationRequest", timeout is not None)
        return found
    if timeout is None:
        return found
    seconds(timeout)
    span = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    return attrs.evolve(found, timeout=Duration.from_timedelta(span))


def _alone(cls: str, more: object) -> None:
    if more:
        raise TypeError(f"a {cls} is the whole request: set its fields instead of arguments")


def seconds(timeout: timedelta | float | None) -> float | None:
    """A timeout in seconds; None for none.

    Raises:
        TypeError: It is neither a timedelta nor a number.
    """
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or math.isnan(timeout):
        raise TypeError(f"a timeout is a timedelta, or seconds as a number, not {timeout!r}")
    return timeout if timeout < _EVER_SECONDS else None
