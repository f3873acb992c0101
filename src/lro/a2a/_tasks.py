"""Operations as tasks of A2A: their states, artifacts and events (A2A 4.1, 4.2)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import attrs
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from lro import Operation, State
from lro._bridge import JSON_TYPE, has_value
from lro.http import with_stand_ins
from lro.types import AnyMessage, Json, TypeRegistry
from lro.wire import parse_name, status_to_json

CANCEL_REQUESTED: Final = "cancellation requested"
RESPONSE: Final = "response"
"""The id of the only artifact."""

_STATES: Final = {
    State.SUCCEEDED.value: TaskState.TASK_STATE_COMPLETED,
    State.FAILED.value: TaskState.TASK_STATE_FAILED,
    State.CANCELLED.value: TaskState.TASK_STATE_CANCELED,
}

FILTERS: Final = {
    TaskState.TASK_STATE_SUBMITTED: "state() = IN_PROGRESS",
    TaskState.TASK_STATE_WORKING: "state() = IN_PROGRESS",
    TaskState.TASK_STATE_COMPLETED: "state() = SUCCEEDED",
    TaskState.TASK_STATE_FAILED: "state() = FAILED",
    TaskState.TASK_STATE_CANCELED: "state() = CANCELLED",
}
"""The filter for the operations in each task state; tasks of operations have no other states."""


def state_of(operation: Operation) -> TaskState:
    """Return the state of an operation as a task (A2A 4.1.3)."""
    if operation.state == State.IN_PROGRESS:
        begun = operation.description.start_time is not None
        return TaskState.TASK_STATE_WORKING if begun else TaskState.TASK_STATE_SUBMITTED
    return _STATES[operation.state]


def status_time(operation: Operation) -> datetime:
    """Return the time of the last change, in whole milliseconds (A2A 5.6.1)."""
    moment = operation.description.update_time
    assert moment is not None
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def moment_of(stamp: Timestamp) -> datetime:
    """Convert a timestamp of protobuf.

    Raises:
        ValueError, OverflowError: The time is not within the years 1 to 9999.
    """
    return stamp.ToDatetime(tzinfo=UTC)


@attrs.frozen
class TaskWriter:
    """Convert operations to tasks; metadata keys begin with ``domain``, the service's domain."""

    types: TypeRegistry
    domain: str

    def task(self, operation: Operation, *, artifacts: bool = True, alone: bool = True) -> Task:
        """Convert an operation to a task without history; ``alone`` if it is a reply's only task.

        An ErrorInfo replaces a message that cannot be printed.

        Raises:
            MessageUnreadable: The task is ``alone``, and its response cannot be printed.
        """
        operation = self._readable(operation, alone=alone)
        task_id = parse_name(operation.name).id
        task = Task(
            id=task_id,
            context_id=task_id,
            status=self._status(operation, task_id),
            metadata=self._metadata(operation),
        )
        artifact = self._artifact(operation) if artifacts else None
        if artifact is not None:
            task.artifacts.append(artifact)
        return task

    def events(self, operation: Operation) -> list[TaskArtifactUpdateEvent | TaskStatusUpdateEvent]:
        """Return the events of a change: the artifact first, since the final status ends a stream.

        Raises:
            MessageUnreadable: As for :meth:`task`.
        """
        operation = self._readable(operation, alone=True)
        task_id = parse_name(operation.name).id
        found: list[TaskArtifactUpdateEvent | TaskStatusUpdateEvent] = []
        artifact = self._artifact(operation)
        if artifact is not None:
            found.append(
                TaskArtifactUpdateEvent(
                    task_id=task_id, context_id=task_id, artifact=artifact, last_chunk=True
                )
            )
        found.append(
            TaskStatusUpdateEvent(
                task_id=task_id,
                context_id=task_id,
                status=self._status(operation, task_id),
                metadata=self._metadata(operation),
            )
        )
        return found

    def _readable(self, operation: Operation, *, alone: bool) -> Operation:
        types = self.types
        return with_stand_ins(operation, types, types.to_json, self.domain, alone=alone)

    def _status(self, operation: Operation, task_id: str) -> TaskStatus:
        parts = []
        error = operation.error
        if error is not None:
            # The message is for people, the Status for programs.
            parts = [Part(text=error.message), self._data(status_to_json(error, self.types))]
        elif operation.description.cancel_requested and not operation.done:
            parts = [Part(text=CANCEL_REQUESTED)]
        status = TaskStatus(state=state_of(operation))
        status.timestamp.FromDatetime(status_time(operation))
        if parts:
            status.message.CopyFrom(
                Message(
                    message_id=f"{task_id}-status",
                    role=Role.ROLE_AGENT,
                    task_id=task_id,
                    context_id=task_id,
                    parts=parts,
                )
            )
        return status

    def _artifact(self, operation: Operation) -> Artifact | None:
        response = operation.response
        if response is None or not has_value(response):
            return None
        part = self._data(self._payload(response))
        part.metadata["@type"] = response.type_url
        return Artifact(artifact_id=RESPONSE, name=RESPONSE, parts=[part])

    def _payload(self, response: AnyMessage) -> Json:
        shown = self.types.to_json(response)
        assert isinstance(shown, dict)
        shown.pop("@type", None)
        return shown

    def _metadata(self, operation: Operation) -> Struct:
        found: dict[str, Json] = {f"{self.domain}/method": operation.description.method}
        metadata = operation.metadata
        if metadata is not None:
            found[f"{self.domain}/metadata"] = self.types.to_json(metadata)
        return ParseDict(found, Struct())

    @staticmethod
    def _data(value: Json) -> Part:
        any_value: Any = value  # ParseDict takes any JSON value, though annotated for objects
        return Part(data=ParseDict(any_value, Value()), media_type=JSON_TYPE)
