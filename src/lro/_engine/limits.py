"""Limits of what a service holds for callers and workers, and the sizes of messages."""

from __future__ import annotations

import typing
from typing import Final

import attrs

from lro._base.any import Any
from lro._base.arguments import check, check_count
from lro._base.errors import MessageTooLarge
from lro._base.status import Status
from lro._messages.json_text import dumps

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_FIELD: Final = 32
"""More bytes than a number, true, false or null of JSON takes, with its quotes and commas."""


@attrs.frozen(kw_only=True)
class Limits:
    """What a service holds at most for its callers and workers (docs/reference/limits.md).

    The defaults protect a server with 512 MB of memory. Sizes are bytes: of a message in JSON or,
    where it is kept in binary form, of that.

    ``metadata_bytes`` and ``response_bytes`` bound one message of an operation; ``response_bytes``
    also an error with its details. ``page_bytes`` bounds a page of List, a reply to BatchGet, and
    what a stream of Watch is sent at once; each has one operation at least. ``replies_bytes``
    bounds all of these together, from when they are read until they are sent. ``waits`` and
    ``streams`` bound the calls of Wait and Watch that are held at once, ``watched`` the operations
    in all streams. The bounds "per caller" are for callers whom ``authenticate`` has named.

    Raises:
        DeclarationError: A number is not one from 1, or ``replies_bytes`` is below ``page_bytes``.
    """

    metadata_bytes: int = 256 * _KIB
    response_bytes: int = 4 * _MIB
    page_bytes: int = 8 * _MIB
    replies_bytes: int = 16 * _MIB
    waits: int = 20_000
    waits_per_caller: int = 10_000
    streams: int = 1_000
    streams_per_caller: int = 500
    watched: int = 200_000

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Limits):
            check_count(field.name, getattr(self, field.name))
        wanted = f"at least page_bytes, which is {self.page_bytes}"
        enough = self.replies_bytes >= self.page_bytes
        check("replies_bytes", self.replies_bytes, wanted, fine=enough)

    @property
    def least_bytes(self) -> int:
        """How many bytes are set aside for a page at least, even where many are read at once."""
        return max(1, min(self.page_bytes, self.replies_bytes // 16))

    def check_metadata(self, packed: Any) -> Any:
        """The same message, if it is small enough to be the metadata of an operation.

        Raises:
            MessageTooLarge: It is not.
        """
        _check(packed.type_name, packed, self.metadata_bytes, "metadata_bytes")
        return packed

    def check_result(self, result: Any | Status | None) -> None:
        """Do nothing for a result that is small enough.

        Raises:
            MessageTooLarge: It is not.
        """
        if isinstance(result, Any):
            _check(result.type_name, result, self.response_bytes, "response_bytes")
        elif result is not None:
            size = len(result.message.encode("utf-8", "surrogatepass"))
            size += sum(map(size_of, result.details))
            if size > self.response_bytes:
                name = "google.rpc.Status"
                raise MessageTooLarge(name, size, self.response_bytes, "response_bytes")


DEFAULT_LIMITS: Final = Limits()


def _check(name: str, packed: Any, limit: int, setting: str) -> None:
    if not _surely_within(packed, limit):
        size = size_of(packed)
        if size > limit:
            raise MessageTooLarge(name, size, limit, setting)


def size_of(packed: Any) -> int:
    """The bytes of a packed message; 0 of one that has no JSON text, which the store refuses."""
    payload = packed.payload
    if isinstance(payload, bytes):
        return len(payload)
    try:
        return len(dumps(payload))
    except (ValueError, TypeError):
        return 0


def _surely_within(packed: Any, limit: int) -> bool:
    """Whether a message is so plain and short that its text need not be made to know its size."""
    payload: typing.Any = packed.payload
    if payload.__class__ is not dict:
        return False
    size = 2
    for key, value in payload.items():
        kind = value.__class__
        if kind is str:
            size += 6 * len(value)  # \u0000 is the longest form of a character
        elif kind is int:
            size += value.bit_length()
        elif kind is not float and kind is not bool and value is not None:
            return False
        size += 6 * len(key) + _FIELD
    return size <= limit
