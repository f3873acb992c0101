"""The steps of a scripted peer, which are the same for HTTP and gRPC."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from lro_conform._codes import RpcCode

JsonObject: TypeAlias = dict[str, Any]


class Verb(enum.StrEnum):
    """The calls of ``google.longrunning.Operations``."""

    GET = "GetOperation"
    WAIT = "WaitOperation"
    CANCEL = "CancelOperation"
    DELETE = "DeleteOperation"
    LIST = "ListOperations"
    OTHER = "another call"
    """A call whose path or method the interface does not have."""


POLLS: Final = (Verb.GET, Verb.WAIT)
"""The verbs with which a client reads the state of one operation."""


@attrs.frozen(kw_only=True)
class Shows:
    """Answer with an operation, given as its JSON, after ``delay`` seconds."""

    operation: JsonObject
    delay: float = 0.0
    headers: Mapping[str, str] = {}
    """Further headers of the reply over HTTP."""


@attrs.frozen(kw_only=True)
class Refuses:
    """Answer with an error of the call."""

    code: RpcCode
    details: tuple[JsonObject, ...] = ()
    headers: Mapping[str, str] = {}
    """Further headers of the reply over HTTP."""
    body: bytes | None = None
    """The body over HTTP, instead of the usual body with code and details."""
    initial: bool = False
    """True to send initial metadata first, over gRPC, instead of only trailers."""

    @property
    def message(self) -> str:
        """The message of the error."""
        return f"this call is refused with {self.code.name}"


@attrs.frozen(kw_only=True)
class Lists:
    """Answer with a page of operations."""

    operations: tuple[JsonObject, ...] = ()
    next_page_token: str = ""


@attrs.frozen
class Acknowledges:
    """Answer with ``google.protobuf.Empty``."""


@attrs.frozen
class Silent:
    """Never answer."""


Special: TypeAlias = Callable[[Any], Awaitable[None]]
"""A function that answers in an invalid way; its argument is the exchange of the protocol."""

Answer: TypeAlias = Shows | Refuses | Lists | Acknowledges | Silent | Special
Script: TypeAlias = Mapping[Verb, Sequence[Answer]]
"""The answers to each verb, in order; the last answer is repeated. A verb without answers is
UNIMPLEMENTED."""

NOT_OFFERED: Final = Refuses(code=RpcCode.UNIMPLEMENTED)


@attrs.define(kw_only=True, eq=False)
class SeenCall:
    """A call that a peer received. Times are in seconds by the monotonic clock."""

    verb: Verb
    at: float
    """The time when the call was received."""
    token: bool
    """True if the call had the bearer token of the run."""
    answered: float | None = None
    """The time when the answer was sent completely; None if it never was."""
    final: bool = False
    """True if the answer had an operation that is done."""


@attrs.define(eq=False)
class Performance:
    """A script that is being played, and the calls received so far."""

    script: Script
    token: str
    clock: Callable[[], float]
    come: Callable[[], object] = lambda: None
    """A function that is called at the first connection."""
    calls: list[SeenCall] = attrs.field(factory=list)
    notes: dict[str, float] = attrs.field(factory=dict)
    """Measurements of special answers, such as the number of bytes that the client read."""
    connected: float | None = None
    """The time of the first connection."""

    def connect(self) -> None:
        """Note that a client has connected."""
        if self.connected is None:
            self.connected = self.clock()
            self.come()

    def take(self, verb: Verb, authorization: str, page_token: str = "") -> tuple[SeenCall, Answer]:
        """Note a call, and return its answer.

        The page token selects the page of a list: the first has no token, the second ``page-1``.
        """
        answers = self.script.get(verb, (NOT_OFFERED,))
        before = sum(one.verb is verb for one in self.calls)
        if page_token:
            number = page_token.removeprefix("page-")
            before = int(number) if number.isdecimal() else len(answers)
        bearer = authorization == f"Bearer {self.token}"
        call = SeenCall(verb=verb, at=self.clock(), token=bearer)
        self.calls.append(call)
        answer = answers[min(before, len(answers) - 1)]
        call.final = isinstance(answer, Shows) and answer.operation.get("done") is True
        return call, answer

    def answered(self, call: SeenCall) -> None:
        """Note that a call was answered."""
        call.answered = self.clock()
