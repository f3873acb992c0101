"""What a scripted server is told: how operations go, and what goes wrong."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

import attrs

from lro import Any, Code, Operation, Status, TypeRegistry
from lro.types import Json, declared_name

Scripted: TypeAlias = object
"""A message of any class, an ``lro.Any``, or the JSON object of one with its ``@type``."""

TICK_SECONDS: Final = 1e-9
"""The clock adds up many floats: an end that is hit exactly must not be missed."""


@attrs.define(kw_only=True)
class ServerCall:
    """A call that came: ``at`` so many seconds after the server was made, for this ``name``.

    ``verb`` is the RPC's name, such as GetOperation, or Start. ``hold`` is how many seconds a Wait
    asked to be held (None: it did not say, or is no Wait), ``status`` the HTTP status of the
    answer, 0 for none.
    """

    at: float
    verb: str
    name: str
    hold: float | None = None
    status: int = 0


@attrs.frozen(kw_only=True)
class Fault:
    """What is wrong with an answer.

    ``error`` is what the HTTP library raises instead, for instance ``httpx.ConnectError``.
    ``status`` and ``body`` replace the answer's: a status alone comes with the interface's error
    body (spec §5.12), a body alone with 200. ``headers`` are added. ``keep`` cuts the body after
    so many bytes. The answer comes ``seconds`` later; a call that does not wait so long times out.
    """

    status: int | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    error: Callable[[str], Exception] | None = None
    keep: int | None = None
    seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Rule:
    """When a fault happens: for this verb, these numbers of its calls, in this span of time."""

    fault: Fault
    verb: str
    calls: Collection[int] | None
    since: float
    until: float

    def applies(self, call: ServerCall, earlier: list[ServerCall]) -> bool:
        """Whether it happens to a call; ``earlier`` are all calls before it."""
        if self.verb not in ("", call.verb) or not self.since <= call.at < self.until:
            return False
        number = 1 + sum(1 for one in earlier if self.verb in ("", one.verb))
        return self.calls is None or number in self.calls


@attrs.define(kw_only=True)
class Script:
    """How one operation goes: see :meth:`ScriptedServer.operation`."""

    name: str
    began: float
    ends_after: float | None
    response: Scripted | None
    metadata: Scripted | Callable[[float], Scripted | None] | None
    error: Status | None
    gone_after: float
    cancels_after: float | None
    retry_after: str
    deleted: bool = False
    cancelled: bool = False

    def gone(self, now: float) -> bool:
        """Whether the server does not know it (any more)."""
        return self.deleted or now - self.began >= self.gone_after - TICK_SECONDS

    def over(self, now: float) -> bool:
        """Whether it has ended."""
        return self.ends_after is not None and now - self.began >= self.ends_after - TICK_SECONDS

    def changes(self, now: float) -> float:
        """Seconds until it ends or is gone, whichever is next; infinite for neither."""
        moments = (self.gone_after, self.ends_after if self.ends_after is not None else math.inf)
        coming = [self.began + one - now for one in moments]
        return min((one for one in coming if one > TICK_SECONDS), default=math.inf)

    def cancel(self, now: float) -> None:
        """Ask it to stop."""
        if self.cancels_after is None:
            return
        ends_after = now - self.began + self.cancels_after
        if self.ends_after is None or ends_after < self.ends_after - TICK_SECONDS:
            self.ends_after, self.cancelled = ends_after, True

    def state(self, now: float, types: TypeRegistry) -> Operation:
        """What the server says of it at this moment."""
        elapsed, done = now - self.began, self.over(now)
        if done and self.ends_after is not None:
            elapsed = self.ends_after
        metadata = self.metadata(elapsed) if callable(self.metadata) else self.metadata
        result: Any | Status | None = None
        if done and self.cancelled:
            result = Status(Code.CANCELLED, "cancelled")
        elif done:
            result = self.error or packed(self.response, types)
        return Operation(name=self.name, metadata=packed(metadata, types), done=done, result=result)


def packed(message: Scripted | None, types: TypeRegistry) -> Any | None:
    """A message as an Any; a class without a full name gets one of the package ``scripted``."""
    if message is None:
        return None
    if isinstance(message, dict):
        found: dict[str, Json] = message
        return types.from_json(found)
    cls: typing.Any = type(message)
    if not isinstance(message, Any) and not types.knows(cls):
        named = declared_name(cls) or hasattr(cls, "DESCRIPTOR")
        types.register(cls, None if named else f"scripted.{cls.__name__}")
    return types.pack(message)
