"""The reporter: how work that is done elsewhere reports on its operation (spec §2, §3)."""

from __future__ import annotations

from lro._base.arguments import check_instance, check_text
from lro._base.errors import (
    Cancelled,
    LeaseLost,
    LroError,
    MessageTooLarge,
    NotApplied,
    OperationNotFound,
)
from lro._base.status import AnyMessage, Status
from lro._engine.events import MetadataReported
from lro._engine.method_spec import MethodSpec
from lro._engine.runtime import RecordUpdater
from lro._messages.wellknown import Empty
from lro._model.operation import Change, State, end, report


class Reporter:
    """Lets work that is done outside this library report on its operation, and end it.

    Each method returns False if the call came too late: the operation has ended, was deleted, or
    has expired (spec §2.3, §2.7, §2.8). Messages may be passed packed or not.

    Raises (each method):
        DeclarationError: A message is not of the class that the method declares.
        EncodingError: A message cannot be encoded.
    """

    def __init__(self, name: str, updater: RecordUpdater, spec: MethodSpec, domain: str) -> None:
        self.name = name
        self._updater = updater
        self._spec = spec
        self._domain = domain

    def report(self, metadata: object) -> bool:
        """Replace the metadata of the operation.

        Raises:
            MessageTooLarge: The metadata have more bytes than the service keeps; nothing changes.
        """
        change = report(self._metadata(metadata), None, self._updater.store.now())
        if not self._apply(change):
            return False
        reported = MetadataReported(name=self.name, method=self._spec.full_name, attempt=0)
        self._updater.events.emit(reported)
        return True

    def complete(self, response: object, *, metadata: object | None = None) -> bool:
        """End the operation with a response; ``metadata`` replaces the metadata.

        Raises:
            MessageTooLarge: The response has more bytes than the service keeps, so the operation
                has ended with INTERNAL. Or the metadata have too many bytes; then nothing changes.
        """
        return self._end(self._pack("response", response, self._spec.response), metadata)

    def fail(
        self, error: Status | LroError, *, metadata: object | None = None, domain: str = ""
    ) -> bool:
        """End the operation with an error.

        Raises:
            InvalidArgument: The error's code is not from 1 to 16.
            DeclarationError: ``error`` is not an error, or the domain is not a text.
            MessageTooLarge: As for :meth:`complete`.
            EncodingError: A detail of the error has no JSON form; nothing changes.
        """
        check_instance("error", error, (Status, LroError), "a Status or an LroError")
        check_text("domain", domain)
        if isinstance(error, LroError):
            error = self._spec.types.status_of(error, domain or self._domain)
        return self._end(error, metadata)

    def finish(self, *, metadata: object | None = None) -> bool:
        """End the operation without a result (spec §2.5)."""
        return self._end(None, metadata)

    def acknowledge_cancel(self, *, metadata: object | None = None) -> bool:
        """End the operation as cancelled, after a request to cancel.

        Raises:
            CancellationNotRequested: No caller has requested a cancellation.
        """
        cancelled = self._spec.types.status_of(Cancelled(), self._domain)
        return self._end(cancelled, metadata, acknowledge=True)

    @property
    def cancel_requested(self) -> bool:
        """True if a caller has requested that the work stop."""
        try:
            return self._updater.store.get(self.name).cancel_requested
        except OperationNotFound:
            return False

    def _pack(self, role: str, message: object, cls: type) -> AnyMessage:
        if isinstance(message, self._spec.instances[cls]):
            return self._spec.types.pack(message, cls)
        check_instance(role, message, AnyMessage, f"a {cls.__name__}, or one packed")
        return self._spec.types.pack(message)

    def _metadata(self, message: object) -> AnyMessage:
        packed = self._pack("metadata", message, self._spec.metadata)
        return self._spec.limits.check_metadata(packed)

    def _end(
        self,
        result: AnyMessage | Status | None,
        metadata: object | None,
        *,
        acknowledge: bool = False,
    ) -> bool:
        last = None if metadata is None else self._metadata(metadata)
        too_large = None
        try:
            self._spec.limits.check_result(result)
        except MessageTooLarge as exc:
            result, too_large = self._spec.types.status_of(exc, self._domain), exc
        applied = self._apply(
            end(
                result,
                now=self._updater.store.now(),
                keep_for=self._spec.keep_for,
                metadata=last,
                acknowledge=acknowledge,
            )
        )
        if applied and too_large is not None:
            raise too_large
        return applied

    def _apply(self, change: Change) -> bool:
        try:
            after = self._updater.apply(self.name, change, self._spec.stamp)
        except (NotApplied, LeaseLost, OperationNotFound):
            return False
        if after is not None and after.done:
            self._updater.events.tracer.refresh()  # this may be the first event of the process
            self._updater.events.emit_end(after)
        # If the change removed the record, a caller had deleted it: the result is dropped
        # (spec §2.7).
        return after is not None and after.state is not State.HIDDEN


class LateReporter(Reporter):
    """The reporter of an operation that is gone: the classes of its messages are not known."""

    def _pack(self, role: str, message: object, cls: type) -> AnyMessage:  # noqa: ARG002
        return self._spec.types.pack(Empty())  # any message comes too late
