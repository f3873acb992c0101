"""Messages of a ``multiprocessing`` connection, read as they come."""

from __future__ import annotations

import os
from typing import Final

_CHUNK: Final = 1 << 20
_SHORT: Final = 4
_LONG: Final = 8
"""Bytes of the two forms of a length: four, signed; after a -1 there, eight."""


class Inbox:
    """The next message, as far as it has come.

    ``recv_bytes`` would wait for its end, which a child that is stopped or dies in the midst of it
    never sends.
    """

    def __init__(self) -> None:
        self._begin()

    def take(self, descriptor: int) -> bytes | None:
        """Read what is there; the message, if that was the rest of it.

        Raises:
            EOFError: Nothing more will come.
        """
        found = os.read(descriptor, min(self._left, _CHUNK))
        if not found:
            raise EOFError
        self._bytes += found
        self._left -= len(found)
        if self._left == 0 and self._in_length:
            self._measure()
        if self._left or self._in_length:
            return None
        whole = bytes(self._bytes)
        self._begin()
        return whole

    def _begin(self) -> None:
        self._bytes = bytearray()
        self._left = _SHORT
        self._in_length = True

    def _measure(self) -> None:
        length = int.from_bytes(self._bytes, "big", signed=len(self._bytes) == _SHORT)
        self._bytes.clear()
        self._in_length = length < 0
        self._left = _LONG if length < 0 else length
