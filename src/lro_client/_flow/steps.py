"""The steps that flows yield, and what they get for them: calls, pauses, replies."""

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
    """Starts an operation: ``target`` is the method's path (its full name for a local service)."""

    target: str
    message: object
    request_id: str = ""
    validate_only: bool = False


@attrs.frozen
class BatchGetOperationsRequest:
    """Reads many operations of one collection, which is "operations" or ends so (spec §3.11).

    With ``ended`` only those that are done matter: the others need not be read.
    """

    collection: str
    names: tuple[str, ...]
    ended: bool = False


@attrs.frozen
class WatchOperationsRequest:
    """Watches many operations of one collection for changes (spec §3.11).

    With ``ended`` only those that are done matter: of the others the name is enough.
    """

    collection: str
    names: tuple[str, ...]
    ended: bool = False


STARTS: Final = (StartRequest, RerunOperationRequest)
"""The requests that each begin an operation, unless one with their request id has done so."""

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
    """Ask the server, for at most ``budget`` seconds; ``headers`` go with the call.

    ``view`` is that of Get, List and BatchGet (spec §3.11).
    """

    request: Request
    budget: float
    headers: Mapping[str, str] = attrs.field(factory=dict)
    view: View = "BASIC"

    @property
    def verb(self) -> str:
        """The RPC's name, as errors give it."""
        return type(self.request).__name__.removesuffix("Request")


@attrs.frozen(kw_only=True)
class Stream:
    """Ask the server, and give ``sink`` each item of its stream until that ends.

    An item is an operation, or the name of one that is gone; None is a sign of life.
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
    """Pause the flow."""

    seconds: float


@attrs.frozen
class SleepUntilWoken:
    """Pause the flow until the time is over or the registry has more to do."""

    seconds: float


@attrs.frozen
class Receive:
    """The next item of a channel; None if none comes within ``seconds`` (None: no limit)."""

    box: Channel
    seconds: float | None


@attrs.frozen
class YieldValue:
    """Give this value to the iterator of the flow."""

    value: Any


@attrs.frozen
class Reply:
    """What the server said, and after how many seconds it recommends to ask again."""

    value: Operation | ListOperationsResponse | BatchGetOperationsResponse | None
    retry_after: float | None = None


class Channel(Protocol):
    """Items from other threads or tasks for one receiver. ``put`` never blocks."""

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


class StopStream(Exception):
    """Raised by a sink that needs no more of a stream."""
