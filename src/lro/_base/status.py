"""Canonical codes, their HTTP statuses, and ``google.rpc.Status`` (spec §1.3, §5.11, §6.1)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from lro._base.any import Any, unknown_fields


class Code(enum.IntEnum):
    """The seventeen canonical codes (``google.rpc.Code``)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def of(cls, number: int) -> Code:
        """The code with this number; UNKNOWN for a number that is not listed (spec §6.1)."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN

    @property
    def http(self) -> int:
        """The HTTP status of a reply with this code (spec §5.11)."""
        return HTTP_STATUS[self]


HTTP_STATUS: Final[Mapping[Code, int]] = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}

_FROM_HTTP: Final[Mapping[int, Code]] = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    405: Code.UNIMPLEMENTED,
    408: Code.DEADLINE_EXCEEDED,
    409: Code.ABORTED,
    412: Code.FAILED_PRECONDITION,
    413: Code.INVALID_ARGUMENT,
    415: Code.INVALID_ARGUMENT,
    416: Code.OUT_OF_RANGE,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    500: Code.INTERNAL,
    501: Code.UNIMPLEMENTED,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


def code_from_http(http_status: int) -> Code:
    """The code of an error reply that names none itself (spec §11.8(2))."""
    if http_status in _FROM_HTTP:
        return _FROM_HTTP[http_status]
    if 400 <= http_status < 500:
        return Code.FAILED_PRECONDITION
    if 500 <= http_status < 600:
        return Code.INTERNAL
    return Code.UNKNOWN


@attrs.frozen
class Status:
    """``google.rpc.Status``: why something failed.

    ``code`` is a number of :class:`Code` (numbers outside the list are kept as they came),
    ``message`` is English text for developers, ``details`` are packed messages.
    """

    code: int = 0
    message: str = ""
    details: tuple[Any, ...] = ()
    unknown: bytes = unknown_fields()
