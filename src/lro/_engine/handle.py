"""The handle that a start returns to the application: the operation, typed by its method.

The application reads its own operation through the handle. So no hook is called, the limits for
callers do not apply, and the handle can use verbs that are switched off for callers.
"""

from __future__ import annotations

import typing
from datetime import timedelta
from typing import Final, Generic, TypeVar

from lro._base.errors import DeclarationError, WaitTimeout, WorkCancelled, WorkFailed
from lro._base.status import AnyMessage, Code, Status
from lro._engine.access import Access
from lro._engine.flow import Flow, blocking, flow_of, on_loop, read
from lro._engine.job import event_loop_runs
from lro._engine.local_work import LocalWork
from lro._engine.method_spec import MethodSpec
from lro._engine.store_port import Store
from lro._engine.waiting import Waiters, timeout_seconds
from lro._messages.times import Duration
from lro._model.operation import Operation, Record

Resp = TypeVar("Resp")
Meta = TypeVar("Meta")

_HOLDS_UP_LOOP: Final = (
    "handle.{0} would hold up the event loop that runs in this thread: "
    "use `await handle.{0}_async(...)` in an async function"
)


class HandleCalls:
    """The calls that the handles of one service make."""

    def __init__(self, store: Store, work: LocalWork, waiters: Waiters, access: Access) -> None:
        self.waiters = waiters
        self.access = access
        self._store = store
        self._work = work

    def begin_here(self) -> None:
        """Tell the executor that the service is used in this thread."""
        self._work.runtime.executor.begin_here()

    def read(self, name: str) -> Flow[Record]:
        """Return the record of an operation.

        Raises:
            OperationNotFound: The operation was deleted, or has expired.
        """
        return (yield from read(self._store, name)).require_visible(self._store.now())

    def cancel(self, name: str) -> Flow[None]:
        """Request the cancellation of an operation.

        Raises:
            OperationNotFound: The operation was deleted, or has expired.
        """
        yield from self._work.cancel((yield from self.read(name)), caller="")


class Handle(Generic[Resp, Meta]):
    """A started operation, for the code that started it.

    The properties show the last state that was read, which is at first the state at the start. The
    methods read the store again. Threads can share a handle. ``operation`` is the operation as
    callers see it.
    """

    __slots__ = ("__weakref__", "_calls", "_operation", "_spec")

    def __init__(self, operation: Operation, spec: MethodSpec, calls: HandleCalls) -> None:
        self._operation = operation
        self._spec = spec
        self._calls = calls

    @property
    def operation(self) -> Operation:
        """The last state read, as callers see it, with packed messages."""
        return self._operation

    @property
    def name(self) -> str:
        """The operation's name; empty if the start only checked the request."""
        return self._operation.name

    @property
    def done(self) -> bool:
        """True if the last state read is final."""
        return self._operation.done

    @property
    def metadata(self) -> Meta | None:
        """The metadata of the last state read; None while there is none.

        Raises:
            InvalidArgument: Another version of the method stored metadata of another class.
        """
        return typing.cast(Meta, self._unpacked(self._operation.metadata, self._spec.metadata))

    @blocking
    def refresh(self) -> Flow[Operation]:
        """Read the current state, and return it.

        Raises:
            OperationNotFound: The operation was deleted, or has expired.
            Unavailable: The store cannot be reached.
            DeclarationError: Nothing was started: the start had ``validate_only=True``.
        """
        record = yield from self._calls.read(self._started())
        return self._seen(record.operation)

    async def refresh_async(self) -> Operation:
        """Read the current state as :meth:`refresh` does, without blocking."""
        return await on_loop(flow_of(self.refresh)())

    def wait(self, timeout: Duration | timedelta | float | None = None) -> Operation:
        """Block until the operation is done, and return its final state, whatever the outcome.

        ``timeout`` is a timedelta or seconds from now; None waits without a limit.

        Raises:
            WaitTimeout: The timeout expired; the operation continues. This is a ``TimeoutError``.
            OperationNotFound: The operation was deleted, or has expired.
            InvalidTimeout: The timeout is negative or not a span of time.
            Unavailable: The store cannot be reached, or the service is stopping.
            DeclarationError: Nothing was started: the start had ``validate_only=True``.
            RuntimeError: The operation is not done, and the call would block the event loop that
                runs in this thread. Await :meth:`wait_async` instead.
        """
        return self._wait(timeout, "wait")

    async def wait_async(self, timeout: Duration | timedelta | float | None = None) -> Operation:
        """Wait as :meth:`wait` does, without blocking a thread.

        Raises:
            WaitTimeout, OperationNotFound, InvalidTimeout, Unavailable, DeclarationError: As
                for :meth:`wait`.
        """
        name, limit = self._started(), timeout_seconds(timeout)
        if not self._operation.done:
            self._seen(await self._calls.waiters.until_done_async(name, limit))
        return self._over(limit)

    def result(self, timeout: Duration | timedelta | float | None = None) -> Resp:
        """Wait as :meth:`wait` does, then return the response.

        The response is None if the operation ended without one (:meth:`lro.Reporter.finish`).

        Raises:
            WorkFailed: The operation ended with an error.
            WorkCancelled: The operation was cancelled.
            WaitTimeout, OperationNotFound, InvalidTimeout, Unavailable, DeclarationError,
                RuntimeError: As for :meth:`wait`.
            InvalidArgument: Another version of the method stored a response of another class.
        """
        return self._result(self._wait(timeout, "result"))

    async def result_async(self, timeout: Duration | timedelta | float | None = None) -> Resp:
        """Return the response as :meth:`result` does, without blocking a thread.

        Raises:
            WorkFailed, WorkCancelled, WaitTimeout, OperationNotFound,
                InvalidTimeout, Unavailable, DeclarationError, InvalidArgument: As for
                :meth:`result`.
        """
        return self._result(await self.wait_async(timeout))

    @blocking
    def cancel(self) -> Flow[None]:
        """Request cancellation; the operation shows later whether the work stopped (spec §2.6).

        Raises:
            OperationNotFound: The operation was deleted, or has expired.
            Unavailable: The store cannot be reached.
            DeclarationError: Nothing was started: the start had ``validate_only=True``.
        """
        return self._calls.cancel(self._started())

    async def cancel_async(self) -> None:
        """Request cancellation as :meth:`cancel` does, without blocking."""
        await on_loop(flow_of(self.cancel)())

    def __repr__(self) -> str:
        return f"<Handle {self.name!r} {self._operation.state}>"

    def _wait(self, timeout: Duration | timedelta | float | None, verb: str) -> Operation:
        name, limit = self._started(), timeout_seconds(timeout)
        if not self._operation.done:
            if event_loop_runs():
                raise RuntimeError(_HOLDS_UP_LOOP.format(verb))
            self._seen(self._calls.waiters.until_done(name, limit))
        return self._over(limit)

    def _started(self) -> str:
        """Return the name of the operation, and tell the executor where the handle is used.

        Raises:
            DeclarationError: Nothing was started.
        """
        self._calls.begin_here()
        if not self.name:
            text = "the start only checked the request, so there is no operation"
            raise DeclarationError("validate_only", text)
        return self.name

    def _seen(self, operation: Operation) -> Operation:
        if not self._operation.done:  # a final state never changes (spec §2.9)
            self._operation = operation
        return self._operation

    def _over(self, limit: float) -> Operation:
        if not self._operation.done:
            raise WaitTimeout(self.name, limit)
        return self._operation

    def _result(self, operation: Operation) -> Resp:
        result = operation.result
        if isinstance(result, Status):
            error = WorkCancelled if result.code == Code.CANCELLED else WorkFailed
            raise error(operation.name, result, self._spec.types.details_of(result))
        return typing.cast(Resp, self._unpacked(result, self._spec.response))

    def _unpacked(self, packed: AnyMessage | None, cls: type) -> object:
        if packed is None or cls is AnyMessage:  # the method declares that any class is allowed
            return packed
        return self._spec.types.unpack(packed, cls)
