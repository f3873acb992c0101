"""The exchange of an edge with a caller: the steps of the edge, and the authentication hook.

An exchange is a flow: it yields steps, as the flows of the service's verbs do, and returns the
reply. A host with an event loop runs the flow by ``on_loop``, a host with threads by ``run``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import attrs

from lro._base.errors import StreamsNotSupported
from lro._engine.flow import Flow, FlowStep, InThreads, MayBlock, only
from lro._engine.limits import ReplyReservation
from lro._engine.service import Service
from lro._http.responses import EventStream, HttpReply
from lro._http.routes import WhileConnected
from lro._messages.times import Duration
from lro._model.operation import Operation, WaitOperationRequest

if TYPE_CHECKING:
    from lro._engine.watching import WatchStream

R = TypeVar("R")

Caller: TypeAlias = str | int | Awaitable[str | int | None] | None
Authenticate: TypeAlias = (
    Callable[[Mapping[str, str]], Caller] | Callable[[Mapping[str, str], Any], Caller]
)
"""Hook that returns the caller's name, given the request headers (names in lower case).

If the function has two required arguments, the second is the server's own request object: the scope
under ASGI, the environ under WSGI, with the entries of a framework's middleware. Return None for a
caller without a name; all callers without a name are treated as one caller. Raise
:class:`lro.errors.Unauthenticated` to refuse the call. If the hook returns or raises anything else,
the call fails with INTERNAL, and the reason is logged. Under ASGI, plain functions are called in a
thread and coroutine functions are awaited; WSGI refuses coroutine functions.
"""


@attrs.frozen
class Wait(FlowStep):
    """A step: wait for an operation, as ``Service.wait`` and ``Service.wait_async`` do.

    On an event loop, ``while_connected`` cancels the wait when the caller disconnects. The wait
    lasts for at most ``max_wait`` (spec §4.7). A wait that blocks a thread takes a place in
    ``room``; if all places are taken, the wait ends at once.
    """

    service: Service
    request: WaitOperationRequest
    deadline_seconds: float | None
    caller: str
    while_connected: WhileConnected | None = None
    max_wait: timedelta | None = None
    room: threading.Semaphore | None = None

    def take(self) -> Operation:
        """Block this thread until the wait has ended."""
        if self.room is None:
            return self._begin(self.service.wait, self.max_wait)
        if not self.room.acquire(blocking=False):
            return self._begin(self.service.wait, timedelta(0))
        try:
            return self._begin(self.service.wait, self.max_wait)
        finally:
            self.room.release()

    def take_async(self) -> Awaitable[Operation]:
        """Wait without a thread."""
        waiting = self._begin(self.service.wait_async, self.max_wait)
        return waiting if self.while_connected is None else self.while_connected(waiting)

    def _begin(self, wait: Callable[..., R], most: timedelta | None) -> R:
        self.service.edges.end_waits_at_signals()
        name, asked = self.request.name, self.request.timeout
        timeout: Duration | timedelta | None = asked
        # An invalid timeout is left as it is, so that ``wait`` refuses it.
        if most is not None and (
            asked is None or (asked.valid and asked.total_seconds > most.total_seconds())
        ):
            timeout = most
        return wait(name, timeout, deadline_seconds=self.deadline_seconds, caller=self.caller)


@attrs.frozen
class Watch(FlowStep):
    """A step: watch operations, as ``Service.watch`` does. Only an event loop can run it."""

    service: Service
    names: tuple[str, ...]
    caller: str

    def take(self) -> NoReturn:
        """Refuse the stream.

        Raises:
            StreamsNotSupported: Always: a stream would block the thread while the operations run.
        """
        raise StreamsNotSupported("WatchOperations")

    def take_async(self) -> Awaitable[WatchStream]:
        """Begin the stream."""
        self.service.edges.end_waits_at_signals()
        return self.service.watch(self.names, caller=self.caller)


@attrs.frozen
class Reserve(FlowStep):
    """A step: set bytes aside for a reply, as ``ByteBudget.take`` and ``atake`` do."""

    service: Service
    least: int

    def take(self) -> ReplyReservation:
        """Block this thread until the bytes are free."""
        return self.service.edges.replies.take(self.least, self.service.edges.limits.page_bytes)

    def take_async(self) -> Awaitable[ReplyReservation]:
        """Wait without a thread until the bytes are free."""
        return self.service.edges.replies.atake(self.least, self.service.edges.limits.page_bytes)


Exchange: TypeAlias = Flow[HttpReply | EventStream]
"""The flow that answers a request."""


def in_few_threads(service: Service, make: Callable[[], R]) -> Flow[R]:
    """Make a reply with many operations in one of the few threads for such replies."""
    reply: R = yield InThreads(only(MayBlock(make)), service.edges.replies.threads)
    return reply


def make_large(service: Service, make: Callable[[ReplyReservation], R], least: int) -> Flow[R]:
    """Make a large reply; its bytes are reserved until it is made.

    If other large replies are being made, only ``least`` bytes may be free, and are reserved.
    Otherwise the size limit of a reply is reserved.
    """
    reserved: ReplyReservation = yield Reserve(service, least)
    try:
        return (yield from in_few_threads(service, functools.partial(make, reserved)))
    finally:
        reserved.release()
