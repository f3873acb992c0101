"""A backend for Django's tasks (``django.tasks``, since Django 6): each result is an operation.

``TASKS = {"default": {"BACKEND": "lro.integrations.django.tasks.TaskBackend"}}`` makes tasks
durable: they survive restarts, and can be listed, watched and cancelled as operations of the
project's service. The id of a result is the operation's name.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from django.core.exceptions import ImproperlyConfigured
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError as _exc:
    raise ImproperlyConfigured(f"{__name__} needs Django 6 or newer") from _exc

from lro import Code, Job, Method, State, Status
from lro.adapters import Record
from lro.errors import Cancelled, LeaseLost, OperationNotFound, StatusError
from lro.integrations.django._operations import service
from lro.types import ErrorInfo, Int32, full_name, message

__all__ = ["RunMetadata", "RunRequest", "RunResponse", "TaskBackend"]

log: logging.Logger = logging.getLogger("lro")

METHOD: Final = "django.tasks.v1.Tasks.Run"
"""The full name of the method that runs tasks; each of its operations is a task's result."""

_FAILED: Final = "TASK_FAILED"
_STATUSES: Final = {
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}


@message("django.tasks.v1.RunRequest")
@attrs.frozen
class RunRequest:
    """The task to run, as the dotted path of its function, and the alias of its backend."""

    task: str = ""
    backend: str = ""


@message("django.tasks.v1.RunMetadata")
@attrs.frozen
class RunMetadata:
    """The arguments of a task, the workers that have run it, and its progress."""

    task: str = ""
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = attrs.field(factory=dict)
    worker_ids: tuple[str, ...] = ()
    progress_percent: Int32 | None = None
    status_message: str = ""


@message("django.tasks.v1.RunResponse")
@attrs.frozen
class RunResponse:
    """The value that a task has returned."""

    value: object = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext(TaskContext):  # type: ignore[misc]  # Django ships no types
    """The context of a task that runs as an operation, for tasks with ``takes_context=True``."""

    job: Job[RunMetadata]

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the fraction done, from 0 to 1, and a status text.

        Raises:
            Cancelled, LeaseLost: As for :meth:`lro.Job.report`.
        """
        before = self.job.metadata or RunMetadata()
        percent = round(100 * fraction)
        self.job.report(attrs.evolve(before, progress_percent=percent, status_message=message))


class TaskBackend(BaseTaskBackend):  # type: ignore[misc]  # Django ships no types
    """Runs tasks as operations of the service that the setting ``LRO`` names."""

    supports_async_task = True
    supports_get_result = True

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store the task, so that a worker runs it; return the task's result in its present state.

        Raises:
            ResourceExhausted: The queue of the service is full.
            Unavailable: The store cannot be reached.
        """
        self.validate_task(task)
        path = task.module_path
        given = RunMetadata(path, tuple(normalize_json(list(args))), normalize_json(dict(kwargs)))
        started = run_method().start(RunRequest(path, self.alias), metadata=given)
        result = self.get_result(started.name)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result with this id.

        Raises:
            TaskResultDoesNotExist: There is no such result.
        """
        try:
            record = service().store.get(result_id)
        except OperationNotFound:
            raise TaskResultDoesNotExist(result_id) from None
        if record.method != METHOD or not record.visible(service().store.now()):
            raise TaskResultDoesNotExist(result_id)
        return self._result(record)

    def _result(self, record: Record) -> Any:
        types, operation = service().types, record.operation
        assert record.metadata is not None  # every start sets metadata
        given = types.unpack(record.metadata, RunMetadata)
        running = TaskResultStatus.RUNNING if record.start_time else TaskResultStatus.READY
        result = TaskResult(
            task=import_string(given.task),
            id=record.name,
            status=_STATUSES.get(record.state, running),
            enqueued_at=record.create_time,
            started_at=record.start_time,
            finished_at=record.end_time,
            last_attempted_at=record.start_time,
            args=list(given.args),
            kwargs=given.kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=list(given.worker_ids),
        )
        if operation.error is not None:
            result.errors.append(_error(operation.error))
        elif operation.response is not None:
            value = types.unpack(operation.response, RunResponse).value
            object.__setattr__(result, "_return_value", value)
        return result


def _error(status: Status) -> Any:
    for packed in status.details:
        if packed.type_name == full_name(ErrorInfo):
            info = service().types.unpack(packed, ErrorInfo)
            if info.reason == _FAILED:
                return _said(info.metadata["exception"], status.message)
    return _said("lro.StatusError", f"{Code.of(status.code).name}: {status.message}")


def _said(path: str, text: str) -> Any:
    return TaskError(exception_class_path=path, traceback=text)


@functools.cache
def run_method() -> Method[RunRequest, RunResponse, RunMetadata]:
    """Return the method that runs tasks; the first call declares it at the project's service."""
    declare: Any = service().method(METHOD)
    method: Method[RunRequest, RunResponse, RunMetadata] = declare(run)
    return method


def run(request: RunRequest, job: Job[RunMetadata]) -> RunResponse:
    """Run a task.

    Raises:
        StatusError: The task failed. The worker's log has the traceback.
    """
    from django.tasks import task_backends

    backend = task_backends[request.backend]
    given = job.metadata or RunMetadata(request.task)
    worker_ids = (*given.worker_ids, service().edges.work.owner)
    job.report(attrs.evolve(given, worker_ids=worker_ids))
    result = backend.get_result(job.name)
    task_started.send(type(backend), task_result=result)
    context = [OperationContext(task_result=result, job=job)] if result.task.takes_context else []
    try:
        value = normalize_json(result.task.call(*context, *given.args, **given.kwargs))
    except (Cancelled, LeaseLost):
        raise
    except Exception as exc:
        path = f"{type(exc).__module__}.{type(exc).__qualname__}"
        log.exception("%s: the task %s failed", job.name, request.task)
        _finished(backend, result, TaskResultStatus.FAILED)
        info = ErrorInfo(reason=_FAILED, domain=service().domain, metadata={"exception": path})
        text = f"{request.task} failed with {path}; the log of the worker has the traceback"
        raise StatusError(Code.UNKNOWN, text, (info,)) from exc
    _finished(backend, result, TaskResultStatus.SUCCESSFUL)
    return RunResponse(value)


def _finished(backend: Any, result: Any, status: Any) -> None:
    object.__setattr__(result, "status", status)
    task_finished.send(type(backend), task_result=result)
