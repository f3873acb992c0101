"""The steps that flows yield, such as calls and pauses, and the replies that they get."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import attrs

from lro import Operation
from lro.types import ByFields
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


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StartRequest(ByFields):
    """Starts an operation. ``target`` is the path or, without HTTP, the full name of a method."""

    target: str
    message: object
    request_id: str = ""
    validate_only: bool = False


@attrs.frozen(eq=False, repr=False)
class BatchGetOperationsRequest(ByFields):
    """Reads many operations of one collection (spec §3.11), whose name ends in "operations".

    With ``ended``, the caller only needs the operations that are done.
    """

    collection: str
    names: tuple[str, ...]
    ended: bool = False


@attrs.frozen(eq=False, repr=False)
class WatchOperationsRequest(ByFields):
    """Watches many operations of one collection for changes (spec §3.11).

    With ``ended``, the caller needs no more than the name of an operation that is not done.
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


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Call(ByFields):
    """A call of at most ``budget`` seconds, with ``headers``.

    ``view`` is the view that Get, List and BatchGet ask for (spec §3.11).
    """

    request: Request
    budget: float
    headers: Mapping[str, str] = attrs.field(factory=dict)
    view: View = "BASIC"

    @property
    def verb(self) -> str:
        """The name of the RPC, as used in error messages."""
        return type(self.request).__name__.removesuffix("Request")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Stream:
    """A streaming call. ``sink`` gets each item until the stream ends.

    An item is an operation, the name of a missing operation, or None for a keep-alive.
    ``call.budget`` is the maximum number of seconds without an item.
    """

    call: Call
    sink: Callable[[Operation | str | None], object]


@attrs.frozen(eq=False, repr=False)
class Gather:
    """Several calls at once. The outcome is a list of replies and errors, in the calls' order."""

    calls: Sequence[Call]


@attrs.frozen(eq=False, repr=False)
class Sleep:
    """A pause."""

    seconds: float


@attrs.frozen(eq=False, repr=False)
class SleepUntilWoken:
    """A pause that ends early if the registry gets more work."""

    seconds: float


@attrs.frozen(eq=False, repr=False)
class Receive:
    """Receives an item from a channel, or None if no item comes within ``seconds``.

    If ``seconds`` is None, the time is not limited.
    """

    box: Channel
    seconds: float | None


@attrs.frozen(eq=False, repr=False)
class YieldValue:
    """Passes a value to the code that iterates over the flow."""

    value: Any


@attrs.frozen(eq=False, repr=False)
class Reply(ByFields):
    """The server's reply, and the recommended pause before the next call, in seconds."""

    value: Operation | ListOperationsResponse | BatchGetOperationsResponse | None
    retry_after: float | None = None


class Channel(Protocol):
    """A queue for items from other threads or tasks to one receiver. ``put`` never blocks."""

    def put(self, item: Any, /) -> None:
        """Add an item, and wake the receiver."""
        ...


Step: TypeAlias = Call | Gather | Stream | Sleep | SleepUntilWoken | Receive | YieldValue
Flow: TypeAlias = Generator[Step, Any, R]


class Transport(Protocol):
    """Sends calls to a server, and blocks until the reply.

    Some members are optional. If ``bounds`` is true, the transport enforces the budget of each
    call itself. Otherwise each call runs in a separate thread. ``batches`` is true if BatchGet is
    supported. ``calls_at_once`` is the maximum number of waits that get their own call (default:
    4). Further waits share calls. ``address`` is the server's address as written in tokens. The
    method ``stream(call, sink)`` supports streams, as ``HttpTransport.stream`` does.
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
    """Sends calls to a server from an event loop."""

    async def send(self, call: Call) -> Reply:
        """Make a call, as :meth:`Transport.send` does."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class StopStream(Exception):
    """Raised by a sink that needs no further items of a stream."""
