"""Server-sent events: the stream in which a watcher over HTTP gets operations (spec §3.11)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final

import attrs

from lro._base.errors import LroError, Unavailable
from lro._http.responses import GUARDS, HttpReply
from lro._messages.json_text import dumps
from lro._messages.registry import TypeRegistry
from lro._model.enum_numbers import with_enum_numbers
from lro._model.json import operation_to_json
from lro._model.operation import Operation

if TYPE_CHECKING:
    from lro._engine.budget import ReplyReservation
    from lro._engine.watching import WatchStream
    from lro._model.operation import Sighting

log = logging.getLogger("lro")

HEADERS: Final = (
    ("content-type", "text/event-stream; charset=utf-8"),
    *GUARDS,
    ("x-accel-buffering", "no"),  # or nginx keeps events back until it has a buffer full
)
HEARTBEAT: Final = b":\n\n"
"""A comment, so that no proxy on the way takes a quiet connection for a dead one."""

HEARTBEAT_SECONDS: Final = 10.0
_CHUNK: Final = 64 * 1024
"""Bytes after which events are sent on, even if further ones are ready."""


@attrs.frozen(eq=False)
class EventStream:
    """A reply that goes on: its headers, and the pieces of its body as they come.

    The sender closes ``events``, which frees what the stream holds.
    """

    headers: tuple[tuple[str, str], ...]
    events: AsyncGenerator[bytes, None]
    status: int = 200
    held: Callable[[], ReplyReservation | None] = lambda: None
    """The bytes that the piece at hand is made of, which a slow reader holds."""

    @property
    def headless(self) -> HttpReply:
        """The reply to HEAD: the same without a body, which has not begun."""
        return HttpReply(self.status, self.headers)


def event_stream(
    watching: WatchStream,
    types: TypeRegistry,
    *,
    enum_numbers: bool = False,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> EventStream:
    """The reply that sends operations for as long as they are watched."""

    def shown(operation: Operation) -> Operation:
        return with_enum_numbers(operation, types) if enum_numbers else operation

    pieces = _pieces(watching, _Writer(types, shown), heartbeat_seconds)
    return EventStream(HEADERS, pieces, held=lambda: watching.reservation)


async def _pieces(
    watching: WatchStream, writer: _Writer, heartbeat_seconds: float
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(watching.batches(heartbeat_seconds)) as batches:
        with contextlib.suppress(Unavailable):  # the service stops, and so does the stream
            async for batch in batches:
                piece = b"" if batch else HEARTBEAT
                for one in batch:
                    piece += writer.event(one)
                    if len(piece) >= _CHUNK:
                        yield piece
                        piece = b""
                if piece:
                    yield piece


class _Writer:
    """Writes events, each with its position."""

    def __init__(self, types: TypeRegistry, shown: Callable[[Operation], Operation]) -> None:
        self._types = types
        self._shown = shown
        self._position = 0

    def event(self, one: Sighting) -> bytes:
        """The event of a sighting; nothing of an operation that cannot be printed."""
        if isinstance(one, Operation):
            try:
                data = dumps(operation_to_json(self._shown(one), self._types))
            except LroError as exc:  # a poll reports it; the stream goes on
                log.error("%s cannot be printed, and is left out of a stream: %s", one.name, exc)
                return b""
            kind = b"operation"
        else:
            data, kind = dumps({"name": one.name}), b"missing"
        self._position += 1
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self._position, kind, data)
