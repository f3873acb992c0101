"""Server-sent events, as the Watch extension sends them (spec §3.11, WHATWG HTML §9.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

E = TypeVar("E")

MAX_EVENT: Final = 32 * 1024 * 1024
"""The largest event that is read, in bytes."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event is larger than :data:`MAX_EVENT`."""


class Events(Generic[E]):
    """Makes events of chunks: ``read`` is given the type and the data of each."""

    def __init__(self, read: Callable[[str, bytes], E | None]) -> None:
        self._read = read
        self._rest = bytearray()
        self._kind = ""
        self._data: list[bytes] = []
        self._size = 0
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[E]:
        """The events that are complete with this chunk.

        Raises:
            EventTooLarge: An event has no end within :data:`MAX_EVENT` bytes.
        """
        self._rest += chunk
        if b"\n" not in chunk and b"\r" not in chunk:
            self._check()
            return
        # A carriage return at the end may be half a line's end.
        whole, held = bytes(self._rest), b""
        if whole.endswith(b"\r"):
            whole, held = whole[:-1], b"\r"
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = bytearray(rest + held)
        for line in lines:
            if not self._begun:  # which a stream may begin with, and which is no part of a name
                self._begun, line = True, line.removeprefix(_BYTE_ORDER_MARK)
            event = self._line(line)
            if event is not None:
                yield event
        self._check()

    def _check(self) -> None:
        if len(self._rest) + self._size > MAX_EVENT:
            raise EventTooLarge(f"an event is larger than {MAX_EVENT} bytes")

    def _line(self, line: bytes) -> E | None:
        if not line:
            return self._end()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1  # a line without data takes its room too
        elif field == b"event":
            self._kind = value.decode("utf-8", "replace")
        return None

    def _end(self) -> E | None:
        kind, data = self._kind, self._data
        self._kind, self._data, self._size = "", [], 0
        return self._read(kind, b"\n".join(data)) if data else None
