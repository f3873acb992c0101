"""Methods as the application holds them: start operations; report on those done elsewhere."""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine
from typing import Generic, Protocol, TypeVar, overload

from lro._base.any import Any
from lro._base.arguments import check_instance, check_text
from lro._base.errors import LeaseLost, LroError, MessageTooLarge, NotApplied, OperationNotFound
from lro._base.status import Code, Status
from lro._engine.hooks import Flow, verb
from lro._engine.job import Job
from lro._engine.method_spec import MethodSpec
from lro._engine.record_updater import RecordUpdater
from lro._engine.starting import Starter
from lro._model.operation import Operation
from lro._model.record import State
from lro._model.transitions import Change, end, report

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")


class Method(Generic[Req, Resp, Meta]):
    """A method that returns an Operation. ``Service.method`` and ``Service.declare`` make it."""

    def __init__(self, spec: MethodSpec, starter: Starter) -> None:
        self.spec = spec
        self._starter = starter

    @property
    def full_name(self) -> str:
        """``package.Service.Method``."""
        return self.spec.full_name

    @verb
    def start(
        self,
        request: Req,
        *,
        request_id: str = "",
        parent: str = "",
        metadata: Meta | None = None,
        target: str = "",
        caller: str = "",
        validate_only: bool = False,
    ) -> Flow[Operation]:
        """Store a new operation, have its work begun, and return it at once.

        ``request_id``: a UUID that makes a repeated start harmless for 24 hours (spec §9.1).
        ``parent``: the resource whose operation it is, such as ``projects/p``. ``metadata``: what
        callers see before the first report. ``target``: a resource that the work needs alone; by
        default what the method's option says. ``validate_only``: check everything, start nothing.

        Raises:
            InvalidArgument: The request is refused, the request id malformed or used otherwise.
            TargetBusy: Another operation works on the target.
            ResourceExhausted: The queue is full; nothing was stored.
            Unavailable: The store or executor cannot be reached, or the service is stopping.
            PermissionDenied: The ``authorize`` hook refuses it.
            HookFailed: The ``authorize`` hook, or ``validate``, does not answer as it must.
        """
        return (
            yield from self._starter.start(
                self.spec,
                request,
                request_id=request_id,
                parent=parent,
                metadata=metadata,
                target=target,
                caller=caller,
                validate_only=validate_only,
            )
        )


class MethodDecorator(Protocol):
    """Turns a function into a :class:`Method` of the classes in its annotations."""

    @overload
    def __call__(
        self, function: Callable[[Req, Job[Meta]], Coroutine[typing.Any, typing.Any, Resp]]
    ) -> Method[Req, Resp, Meta]: ...
    @overload
    def __call__(self, function: Callable[[Req, Job[Meta]], Resp]) -> Method[Req, Resp, Meta]: ...
    @overload
    def __call__(
        self, function: Callable[[Req], Coroutine[typing.Any, typing.Any, Resp]]
    ) -> Method[Req, Resp, typing.Any]: ...
    @overload
    def __call__(self, function: Callable[[Req], Resp]) -> Method[Req, Resp, typing.Any]: ...


class Reporter:
    """The worker's side of an operation whose work is done outside this library.

    Each report is applied or not: False means that it came too late, the operation being over,
    deleted or expired (spec §2.3, §2.7, §2.8). A message may also come packed.

    Raises (each of them):
        DeclarationError: A message is not of the class that the method declares.
        EncodingError: It cannot be encoded.
    """

    def __init__(self, name: str, updater: RecordUpdater, spec: MethodSpec) -> None:
        self.name = name
        self._updater = updater
        self._spec = spec

    def report(self, metadata: object) -> bool:
        """Replace the metadata.

        Raises:
            MessageTooLarge: It has more bytes than the service keeps; nothing changes.
        """
        return self._apply(report(self._metadata(metadata), None, self._updater.store.now()))

    def complete(self, response: object, *, metadata: object | None = None) -> bool:
        """End the operation with a response, and maybe the last metadata.

        Raises:
            MessageTooLarge: The response has more bytes than the service keeps: the operation has
                ended with INTERNAL. Or the metadata has: nothing changes.
        """
        return self._end(self._pack("response", response, self._spec.response), metadata)

    def fail(
        self, error: Status | LroError, *, metadata: object | None = None, domain: str = ""
    ) -> bool:
        """End the operation with an error.

        Raises:
            InvalidArgument: The error's code is not from 1 to 16.
            DeclarationError: It is no error, or the domain no text.
            MessageTooLarge: As for :meth:`complete`.
        """
        check_instance("error", error, (Status, LroError), "a Status or an LroError")
        check_text("domain", domain)
        if isinstance(error, LroError):
            error = self._spec.types.status_of(error, domain)
        return self._end(error, metadata)

    def finish(self, *, metadata: object | None = None) -> bool:
        """End the operation without a result (spec §2.5)."""
        return self._end(None, metadata)

    def acknowledge_cancel(self, *, metadata: object | None = None) -> bool:
        """End the operation as cancelled, because that was asked for.

        Raises:
            CancellationNotRequested: Nobody asked.
        """
        cancelled = Status(Code.CANCELLED, "the operation was cancelled")
        return self._end(cancelled, metadata, acknowledge=True)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for the work to stop."""
        try:
            return self._updater.store.get(self.name).cancel_requested
        except OperationNotFound:
            return False

    def _pack(self, role: str, message: object, cls: type) -> Any:
        check_instance(role, message, (cls, Any), f"a {cls.__name__}, or one packed")
        return self._spec.types.pack(message)

    def _metadata(self, message: object) -> Any:
        packed = self._pack("metadata", message, self._spec.metadata)
        return self._spec.limits.check_metadata(packed)

    def _end(
        self, result: Any | Status | None, metadata: object | None, *, acknowledge: bool = False
    ) -> bool:
        last = None if metadata is None else self._metadata(metadata)
        too_large = None
        try:
            self._spec.limits.check_result(result)
        except MessageTooLarge as exc:
            result, too_large = self._spec.types.status_of(exc, ""), exc
        applied = self._apply(
            end(
                result,
                now=self._updater.store.now(),
                expiry=self._spec.expiry,
                metadata=last,
                acknowledge=acknowledge,
            )
        )
        if too_large is not None:
            raise too_large
        return applied

    def _apply(self, change: Change) -> bool:
        try:
            after = self._updater.apply(self.name, change, self._spec.stamp)
        except (NotApplied, LeaseLost, OperationNotFound):
            return False
        # A record that a change removes was deleted before: its result is dropped (spec §2.7).
        return after is not None and after.state is not State.HIDDEN
