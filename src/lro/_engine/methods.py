"""The methods of a service: what is declared, what starts them, and reports on work elsewhere."""

from __future__ import annotations

import logging
import typing
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Generic, Protocol, TypeVar, overload

from lro._base.any import Any
from lro._base.arguments import check_instance, check_text
from lro._base.errors import (
    DeclarationError,
    LeaseLost,
    LroError,
    MessageTooLarge,
    NotApplied,
    OperationNotFound,
)
from lro._base.status import Code, Status
from lro._engine.hooks import Flow, verb
from lro._engine.job import Job
from lro._engine.limits import Limits
from lro._engine.method_spec import MethodSpec, Options
from lro._engine.notifier import RecordUpdater
from lro._engine.runtime import Runtime
from lro._engine.starting import Starter
from lro._filters.indexes import Indexes
from lro._messages.registry import TypeRegistry
from lro._model.method_names import FINDINGS, OperationInfoRegistry
from lro._model.operation import Operation, OperationInfo
from lro._model.record import State
from lro._model.transitions import Change, end, report

log = logging.getLogger("lro")

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")


class Methods:
    """The methods that a service declares, by full name.

    ``keep_for`` and ``limits`` are those of methods that say nothing else.
    """

    def __init__(
        self, runtime: Runtime, types: TypeRegistry, *, keep_for: timedelta, limits: Limits
    ) -> None:
        self.types = types
        self.infos = OperationInfoRegistry()
        self.indexes = Indexes(types)
        self.specs: dict[str, MethodSpec] = {}
        self._runtime = runtime
        self._keep_for = keep_for
        self._limits = limits

    def register(
        self,
        full_name: str,
        function: Callable[..., object] | None,
        options: Options,
        *,
        request: type | None,
        response: type | None,
        metadata: type | None,
    ) -> MethodSpec:
        """Declare a method, in this process and at the store and executor.

        Raises:
            DeclarationError: The method or a message class cannot be declared so.
            Unavailable: There is an index to be made, and the store cannot be reached.
        """
        spec = MethodSpec.build(
            full_name,
            function,
            request=request,
            response=response,
            metadata=metadata,
            options=options,
            types=self.types,
            keep_for=self._keep_for,
            indexes=self.indexes,
            limits=self._limits,
        )
        if options.indexed_paths:
            self.make_indexes()
        if function is not None:
            self._runtime.executor.admit(spec)
        info = OperationInfo("." + spec.info.response_type, "." + spec.info.metadata_type)
        for finding in self.infos.register(full_name, info):
            log.info("%s: %s: %s (AIP-151)", full_name, finding, FINDINGS[finding])
        self.specs[full_name] = spec
        return spec

    def index_callers(self) -> None:
        """Have the store find operations by their caller."""
        self.indexes.declare_caller()
        self.make_indexes()

    def make_indexes(self) -> None:
        """Have the store make the indexes that the methods declare."""
        self._runtime.store.index(self.indexes.keys)

    def spec(self, full_name: str) -> MethodSpec:
        """Return what is declared of a method.

        Raises:
            DeclarationError: No such method is declared.
        """
        if full_name not in self.specs:
            raise DeclarationError(full_name, "is not declared by this service")
        return self.specs[full_name]

    def check_own(self, spec: MethodSpec) -> None:
        """Do nothing for a method of this service.

        Raises:
            DeclarationError: Another service declares it, maybe under the same name.
        """
        if self.specs.get(spec.full_name) is not spec:
            raise DeclarationError(spec.full_name, "is not declared by this service")

    def reporter(self, name: str) -> Reporter:
        """See ``Service.reporter``."""
        try:
            method = self._runtime.store.get(name).method
        except OperationNotFound:
            method = next(iter(self.specs), "")
        return Reporter(name, self._runtime.updater, self.spec(method))


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
            DeclarationError: ``error`` is not an error, or the domain not a text.
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
            CancellationNotRequested: That was not asked for.
        """
        cancelled = Status(Code.CANCELLED, "the operation was cancelled")
        return self._end(cancelled, metadata, acknowledge=True)

    @property
    def cancel_requested(self) -> bool:
        """Whether the work was asked to stop."""
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
                keep_for=self._spec.keep_for,
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
