"""Observers of a client's starts and results, for a client without a journal."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from lro import Operation
from lro_client._errors import CallError
from lro_client._flow.single import FlowConfig
from lro_client._flow.steps import Flow, StartRequest
from lro_client._tracing import Trace


@attrs.frozen(kw_only=True)
class KnownOperation:
    """An operation, and what this client knows of its start.

    ``request_id`` is that of the start, if a journal knows it; ``error`` says why there is no
    operation.
    """

    operation: Operation
    request_id: str = ""
    trace: Trace | None = None
    error: Exception | None = None


class StartObserver:
    """Observes one start; this one keeps nothing. Its methods run as part of the start's flow."""

    def __init__(self, request: StartRequest) -> None:
        self.request = request
        """What to send."""
        self.request_id = ""
        """The id by which the journal knows the start."""

    def failed(self, _error: CallError, /) -> None:
        """Take in a failed attempt."""

    def dropped(self) -> Flow[None]:
        """Take in that the start was given up."""
        yield from ()

    def named(self, _name: str, /) -> Flow[None]:
        """Take in the name of the operation, empty if it has none."""
        yield from ()


class ClientObserver:
    """Observes all starts and results of a client; this one keeps nothing."""

    def begin(
        self, request: StartRequest, _response: type | None, _metadata: type | None, /
    ) -> Flow[StartObserver]:
        """Take in a start that is about to be sent."""
        yield from ()
        return StartObserver(request)

    def taken(self, _name: str, _request_id: str, _within: float, /) -> Flow[None]:
        """Take in that the caller is about to get the result of an operation."""
        yield from ()

    def taking(self, _name: str, _request_id: str, /) -> Callable[[], object]:
        """Take in that a future is about to get the result; call what is returned after that."""
        return lambda: None

    def pending(
        self, _config: FlowConfig, _response: type | None, _metadata: type | None, /
    ) -> Flow[None]:
        """Emit a ``KnownOperation`` for each start whose result was not taken.

        Raises:
            ValueError: There is no journal.
        """
        yield from ()
        raise ValueError("the client has no journal: give it one, as in Client(url, journal=...)")
