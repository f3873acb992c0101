"""Translate operations and errors to results and errors of MCP."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, cast

import attrs

from lro import Code, Operation, OperationMetadata, State, Status
from lro._bridge import failed_by_service, has_value, rfc3339
from lro.errors import InvalidRequestId, LroError, OperationNotFound, RequestIdConflict
from lro.http import detail_of, internal_error, operation_reply_json, public_error
from lro.mcp import _wire as wire
from lro.types import WRAPPED_TYPES, Json, RetryInfo, TypeRegistry
from lro.wire import dumps, parse_name, status_to_json

_MILLISECOND: Final = timedelta(milliseconds=1)
_MOST_METADATA: Final = 1000
"""Maximum number of characters of metadata in a text for a model."""
_NO_TASK: Final = "task not found: there is no operation with this id"
"""The message for missing and for hidden operations, which callers must not tell apart."""
_CODES: Final = {
    Code.UNAUTHENTICATED: wire.INVALID_REQUEST,
    Code.UNIMPLEMENTED: wire.METHOD_NOT_FOUND,
    Code.INVALID_ARGUMENT: wire.INVALID_PARAMS,
    Code.NOT_FOUND: wire.INVALID_PARAMS,
    Code.ALREADY_EXISTS: wire.INVALID_PARAMS,
    Code.PERMISSION_DENIED: wire.INVALID_PARAMS,
    Code.FAILED_PRECONDITION: wire.INVALID_PARAMS,
    Code.OUT_OF_RANGE: wire.INVALID_PARAMS,
}
"""The error code of MCP for each of these codes; all other codes become INTERNAL_ERROR."""
_FOR_THE_MODEL: Final = frozenset(
    code for code, number in _CODES.items() if number == wire.INVALID_PARAMS
) | {Code.ABORTED, Code.RESOURCE_EXHAUSTED}
"""Codes of errors that become the tool's result, as a model can correct its call or try again."""


@attrs.frozen
class Translation:
    """Translates the operations and errors of one service.

    ``poll_seconds`` is the recommended polling interval. ``read_tool`` and ``cancel_tool`` are the
    tools that read and cancel an operation.
    """

    types: TypeRegistry
    domain: str
    poll_seconds: int
    read_tool: str
    cancel_tool: str

    def created(self, found: Operation) -> wire.Result:
        """Return the result of a call that started an operation."""
        return wire.created(self._task(found, "working"))

    def detailed(self, found: Operation) -> wire.Result:
        """Return the result of a request for a task."""
        meta: dict[str, Json] = {}
        shown = operation_reply_json(found, self.types, self.domain, alone=True)
        if "metadata" in shown:
            dumps(shown["metadata"])  # raises if the SDK could not send the metadata
            meta[self._key("metadata")] = shown["metadata"]
        if not found.done:
            return wire.detailed(self._task(found, "working"), {}, meta)
        if found.state == State.CANCELLED:
            return wire.detailed(self._task(found, "cancelled"), {}, meta)
        try:
            outcome, status = wire.completed(self.result(found)), "completed"
        except wire.ToolsRefusal as exc:
            outcome, status = wire.failed(exc), "failed"
        return wire.detailed(self._task(found, status), outcome, meta)

    def _task(self, found: Operation, status: str) -> wire.Result:
        known, ttl = found.description, None
        created, updated = known.create_time, known.update_time
        assert created is not None
        assert updated is not None
        # A record expires some time after the operation ends, so before the end the TTL is unknown.
        if known.expire_time is not None:
            ttl = (known.expire_time - created) // _MILLISECOND
        message = "" if found.done else self._progress(found)[1]
        if known.cancel_requested and not found.done:
            message = "cancellation requested"
        return wire.task(
            parse_name(found.name).id,
            status,
            created_at=rfc3339(created),
            updated_at=rfc3339(updated),
            ttl_ms=ttl,
            poll_ms=self.poll_seconds * 1000,
            message=message,
        )

    def result(self, operation: Operation) -> wire.Result:
        """Return the result of a tool whose operation is done.

        Raises:
            ToolsRefusal: The operation failed by a fault of the service.
        """
        result = operation.result
        if isinstance(result, Status):
            status = self._printed(result)
            if failed_by_service(result, self.types, self.domain):
                raise wire.ToolsRefusal(wire.INTERNAL_ERROR, result.message, status)
            meta: dict[str, Json] = {self._key("status"): status}
            return wire.tool_result(result.message, is_error=True, meta=meta)
        if result is None or not has_value(result):
            return wire.tool_result("")
        packed = cast("dict[str, Json]", self.types.to_json(result))
        meta = {self._key("response-type"): packed.pop("@type")}
        value: Json = packed["value"] if result.type_name in WRAPPED_TYPES else packed
        return wire.tool_result(dumps(value).decode(), value, meta=meta)

    def pending(self, operation: Operation) -> wire.Result:
        """Return the result while the work continues, for a model whose client has no tasks."""
        operation_id = parse_name(operation.name).id
        kind, said = self._progress(operation)
        known = f" Its {kind}: {said}." if said else ""
        text = (
            f"The work goes on as operation {operation_id}.{known} Call the tool {self.read_tool}"
            f' with {{"id": "{operation_id}"}} for its result, or {self.cancel_tool} to stop it.'
        )
        return wire.tool_result(text, {"operation": operation_id})

    def stopped(self, operation: Operation) -> wire.Result:
        """Return the result of a request to cancel an operation."""
        operation_id = parse_name(operation.name).id
        if operation.state == State.CANCELLED:
            return wire.tool_result(f"Operation {operation_id} was cancelled.")
        if operation.done:
            return self.result(operation)
        text = (
            f"Operation {operation_id} was asked to stop, but goes on for now. Call the tool"
            f' {self.read_tool} with {{"id": "{operation_id}"}} for how it ends.'
        )
        return wire.tool_result(text, {"operation": operation_id})

    def _progress(self, operation: Operation) -> tuple[str, str]:
        """Return "progress" or "metadata" and the text of either, empty if nothing is known."""
        if operation.metadata is None:
            return "progress", ""
        try:
            fields = cast("dict[str, Json]", self.types.to_json(operation.metadata))
            if operation.metadata.type_name != self.types.name_of(OperationMetadata):
                fields.pop("@type", None)
                text = dumps(fields).decode()
                return "metadata", text if 2 < len(text) <= _MOST_METADATA else ""
        except (LroError, ValueError, TypeError):  # the metadata have no JSON form
            return "metadata", ""
        said = [f"{fields['progressPercent']} % done"] if "progressPercent" in fields else []
        said += [str(fields["statusMessage"])] if "statusMessage" in fields else []
        return "progress", ", ".join(said)

    def tool_error(self, error: Exception, asked: str) -> wire.Result:
        """Return the result of a tool call that failed to start or read an operation.

        Raises:
            ToolsRefusal: The model cannot correct the error, so the client gets it.
        """
        if isinstance(error, OperationNotFound):
            return wire.tool_result(_NO_TASK, is_error=True)
        status = self._status(error, asked)
        meant = not isinstance(error, InvalidRequestId | RequestIdConflict)
        if (
            status.code not in _FOR_THE_MODEL or not meant
        ):  # request ids are chosen by the client, not by its model
            raise self._refusal(status)
        text = status.message
        retry = detail_of(status, self.types, RetryInfo)
        if retry is not None and retry.retry_delay is not None:
            text += f" (try again in {retry.retry_delay.total_seconds():g} s)"
        meta = {self._key("status"): self._printed(status)}
        return wire.tool_result(text, is_error=True, meta=meta)

    def refusal(self, error: Exception, asked: str) -> wire.ToolsRefusal:
        """Return the error of MCP for a call that failed."""
        if isinstance(error, OperationNotFound):
            return wire.ToolsRefusal(wire.INVALID_PARAMS, _NO_TASK)
        try:
            return self._refusal(self._status(error, asked))
        except Exception as exc:  # the application's details can raise anything
            fault = internal_error(exc, self.types, self.domain, asked=asked)
            return self._refusal(fault.status)

    def _status(self, error: Exception, asked: str) -> Status:
        return public_error(error, self.types, self.domain, asked=asked).status

    def _refusal(self, status: Status) -> wire.ToolsRefusal:
        code = _CODES.get(Code(status.code), wire.INTERNAL_ERROR)
        return wire.ToolsRefusal(code, status.message, self._printed(status))

    def _printed(self, status: Status) -> Json:
        """Return a Status in JSON, checked so that the SDK can send it.

        Raises:
            EncodingError, ValueError, TypeError: A detail has no JSON form.
        """
        shown = status_to_json(status, self.types)
        dumps(shown)
        return shown

    def _key(self, name: str) -> str:
        return f"{self.domain}/{name}"


def request_id_key(domain: str) -> str:
    """Return the key of ``_meta`` for the request id of a start."""
    return f"{domain}/request-id"
