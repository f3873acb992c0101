"""What flows ask for, and what they get: calls, pauses, replies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs

from lro import (
    BatchGetOperationsResponse,
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    WaitOperationRequest,
)

R = TypeVar("R")


@attrs.frozen(kw_only=True)
class StartRequest:
    """Starts an operation: ``target`` is the method's path (its full name for a local service)."""

    target: str
    message: object
    request_id: str = ""
    validate_only: bool = False


@attrs.frozen
class BatchGetOperationsRequest:
    """Reads many operations of one collection, which is "operations" or ends so (spec §3.11).

    With ``ended`` alone those that are done matter: the others need not be read.
    """

    collection: str
    names: tuple[str, ...]
    ended: bool = False


@attrs.frozen
class WatchOperationsRequest:
    """Asks to be told of each change of many operations of one collection (spec §3.11).

    With ``ended`` alone those that are done matter: of the others the name will do.
    """

    collection: str
    names: tuple[str, ...]
    ended: bool = False


Request: TypeAlias = (
    GetOperationRequest
    | ListOperationsRequest
    | DeleteOperationRequest
    | CancelOperationRequest
    | WaitOperationRequest
    | StartRequest
    | BatchGetOperationsRequest
    | WatchOperationsRequest
)


@attrs.frozen(kw_only=True)
class Call:
    """Ask the server, for at most ``budget`` seconds; ``headers`` go with the call."""

    request: Request
    budget: float
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def verb(self) -> str:
        """The RPC's name, as errors tell it."""
        return type(self.request).__name__.removesuffix("Request")


@attrs.frozen(kw_only=True)
class Stream:
    """Ask the server, and give ``sink`` what it tells, until it has no more to tell.

    What it tells is an operation, or the name of one that is gone; None is a sign of life.
    ``call.budget`` is how many seconds it may be silent.
    """

    call: Call
    sink: Callable[[Operation | str | None], object]


@attrs.frozen
class Gather:
    """Ask the server all of this at once: a list of replies, and of errors in their places."""

    calls: Sequence[Call]


@attrs.frozen
class Sleep:
    """Do nothing for so many seconds."""

    seconds: float


@attrs.frozen
class Idle:
    """Do nothing for so many seconds, or until there is more to do at this table."""

    seconds: float


@attrs.frozen
class RunBlocking:
    """Call this function, which may block."""

    function: Callable[[], Any]


@attrs.frozen
class Receive:
    """The next thing put into a box; None if there is none for so many seconds (None: ever)."""

    box: Channel
    seconds: float | None


@attrs.frozen
class Emit:
    """Hand this to whoever iterates, then go on."""

    value: Any


@attrs.frozen
class Reply:
    """What the server said, and after how many seconds it recommends to ask again."""

    value: Operation | ListOperationsResponse | BatchGetOperationsResponse | None
    retry_after: float | None = None


class Channel(Protocol):
    """Where one waits for what others find. Nothing that is put into it blocks."""

    def put(self, item: Any) -> None:
        """Add something; whoever waits for it goes on."""
        ...


Step: TypeAlias = Call | Gather | Stream | Sleep | Idle | RunBlocking | Receive | Emit
Flow: TypeAlias = Generator[Step, Any, R]


class Transport(Protocol):
    """Carries calls to a server, blocking.

    One whose ``bounds`` is true keeps to a call's budget by itself, whatever the server does; for
    others a thread is spent on it. One that can carry streams also has a method
    ``stream(call, sink)``, as :class:`lro_client.HttpTransport` does, and one that can carry
    BatchGet a true ``batches``. ``calls_at_once`` is how many waits may have a call each (4), and
    ``address`` the server as tokens and journals write it.
    """

    def send(self, call: Call) -> Reply:
        """The server's reply.

        Raises:
            CallError: The call failed.
        """
        ...

    def close(self) -> None:
        """Free what the transport holds."""
        ...


class AsyncTransport(Protocol):
    """Carries calls to a server, on an event loop."""

    async def send(self, call: Call) -> Reply:
        """As :meth:`Transport.send`."""
        ...

    async def close(self) -> None:
        """As :meth:`Transport.close`."""
        ...


class Enough(Exception):
    """Nobody wants to hear more of a stream."""
