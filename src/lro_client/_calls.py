"""What flows ask for, and what they get: calls, pauses, replies."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any as Anything
from typing import Protocol, TypeAlias, TypeVar

import attrs

from lro import (
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


Request: TypeAlias = (
    GetOperationRequest
    | ListOperationsRequest
    | DeleteOperationRequest
    | CancelOperationRequest
    | WaitOperationRequest
    | StartRequest
)


@attrs.frozen(kw_only=True)
class Call:
    """Ask the server.

    ``budget`` bounds the call, in seconds; ``hard`` says that it must hold whatever the server
    does, for which the blocking driver pays with a thread.
    """

    request: Request
    budget: float
    hard: bool = False

    @property
    def verb(self) -> str:
        """The RPC's name, as errors tell it."""
        return type(self.request).__name__.removesuffix("Request")


@attrs.frozen
class Pause:
    """Do nothing for so many seconds."""

    seconds: float


@attrs.frozen
class Show:
    """Hand this to whoever iterates, then go on."""

    value: Anything


@attrs.frozen
class Reply:
    """What the server said, and after how many seconds it recommends to ask again."""

    value: Operation | ListOperationsResponse | None
    retry_after: float | None = None


Step: TypeAlias = Call | Pause | Show
Flow: TypeAlias = Generator[Step, Anything, R]


class Transport(Protocol):
    """Carries calls to a server, blocking."""

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
