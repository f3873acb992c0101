"""Arguments of the verbs as request messages, for both faces."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from lro import Duration, ListOperationsRequest, WaitOperationRequest
from lro_client.filters import Expression

R = TypeVar("R")

_EVER_SECONDS: Final = 1e8
"""A timeout of three years is none: clocks do not take much longer ones."""


def named(cls: Callable[[str], R], request: str | R) -> R:
    """The request of a verb that takes a name, or the whole request (spec §3.8)."""
    return cls(request) if isinstance(request, str) else request


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
    if isinstance(request, ListOperationsRequest):
        _alone("ListOperationsRequest", text or page_size or page_token)
        if not isinstance(request.filter, str):
            raise TypeError(f"the filter of a request is a text: str({request.filter!r})")
        return request
    if not isinstance(request, str):
        raise TypeError(f"first comes the parent, a text, then the filter; got {request!r}")
    return ListOperationsRequest(
        name=request, filter=text, page_size=page_size, page_token=page_token
    )


def waiting(
    request: str | WaitOperationRequest, timeout: timedelta | float | None
) -> WaitOperationRequest:
    """The request of a wait; ``timeout`` in seconds or as a timedelta."""
    if isinstance(request, WaitOperationRequest):
        _alone("WaitOperationRequest", timeout is not None)
        return request
    if timeout is None:
        return WaitOperationRequest(request)
    span = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    return WaitOperationRequest(request, Duration.from_timedelta(span))


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
