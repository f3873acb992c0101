"""The steps that flows yield, such as calls and pauses, and the replies that they get."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import attrs

from lro import Operation
from lro.wire import (
    BatchGetOperationsResponse,
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    RerunOperationRequest,
    View,
    WaitOperationRequest,
)

R = TypeVar("R")


@attrs.frozen(kw_only=True)
class StartRequest:
    """Starts an operation; ``target`` is the path of the method, or its full name locally."""

    target: str
    message: object
    request_id: str = ""
    validate_only: bool = False


@attrs.frozen
class BatchGetOperationsRequest:
    """Reads many operations of one collection, which is "operations" or ends so (spec §3.11).

    With ``ended``, the caller only needs the operations that are done.
    """

    collection: str
    names: tuple[str, ...]
    ended: bool = False


@attrs.frozen
class WatchOperationsRequest:
    """Watches many operations of one collection for changes (spec §3.11).

    With ``ended``, the caller only needs the operations that are done, and names of others.
    """

    collection: str
    names: tuple[str, ...]
    ended: bool = False


STARTS: Final = (StartRequest, RerunOperationRequest)
"""The requests that start an operation."""

Request: TypeAlias = (
    GetOperationRequest
    | ListOperationsRequest
    | DeleteOperationRequest
    | CancelOperationRequest
    | WaitOperationRequest
    | StartRequest
    | RerunOperationRequest
    | BatchGetOperationsRequest
    | WatchOperationsRequest
)


@attrs.frozen(kw_only=True)
class Call:
    """A call of at most ``budget`` seconds, with ``headers``.

    ``view`` is that of Get, List and BatchGet (spec §3.11).
    """

    request: Request
    budget: float
    headers: Mapping[str, str] = attrs.field(factory=dict)
    view: View = "BASIC"

    @property
    def verb(self) -> str:
        """The name of the RPC, as it stands in errors."""
        return type(self.request).__name__.removesuffix("Request")


@attrs.frozen(kw_only=True)
class Stream:
    """A streaming call; ``sink`` gets each item until the stream ends.

    An item is an operation, or the name of one that is gone; None is a sign of life.
    ``call.budget`` is the maximum number of seconds without an item.
    """

    call: Call
    sink: Callable[[Operation | str | None], object]


@attrs.frozen
class Gather:
    """Several calls at once; the outcome is a list of replies and errors, in the same order."""

    calls: Sequence[Call]


@attrs.frozen
class Sleep:
    """A pause."""

    seconds: float


@attrs.frozen
class SleepUntilWoken:
    """A pause that ends early when the registry has more to do."""

    seconds: float


@attrs.frozen
class Receive:
    """Receives an item of a channel, or None after ``seconds`` without one (None: no limit)."""

    box: Channel
    seconds: float | None


@attrs.frozen
class YieldValue:
    """Gives a value to whoever iterates over the flow."""

    value: Any


@attrs.frozen
class Reply:
    """The server's reply, and the seconds after which it recommends the next call."""

    value: Operation | ListOperationsResponse | BatchGetOperationsResponse | None
    retry_after: float | None = None


class Channel(Protocol):
    """A queue from other threads or tasks to one receiver. ``put`` never blocks."""

    def put(self, item: Any, /) -> None:
        """Add an item, and wake the receiver."""
        ...


Step: TypeAlias = Call | Gather | Stream | Sleep | SleepUntilWoken | Receive | YieldValue
Flow: TypeAlias = Generator[Step, Any, R]


class Transport(Protocol):
    """Carries calls to a server, blocking.

    Three attributes and a method are optional. If ``bounds`` is true, the transport keeps to the
    budget of a call by itself; otherwise a thread is spent on each call. ``batches`` is true if it
    can carry BatchGet. ``calls_at_once`` is the number of waits that can have a call of their own
    (4). ``address`` is the server, as tokens write it. A method ``stream(call, sink)``, as
    ``HttpTransport`` has it, carries streams.
    """

    def send(self, call: Call) -> Reply:
        """Make a call, and return the server's reply.

        Raises:
            CallError: The call failed.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class AsyncTransport(Protocol):
    """Carries calls to a server, on an event loop."""

    async def send(self, call: Call) -> Reply:
        """Make a call, as :meth:`Transport.send` does."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class StopStream(Exception):
    """Raised by a sink that needs no more of a stream."""
