"""Django's own tasks as operations: results, progress, errors, cancellation, signals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

import lro

django = pytest.importorskip("django", minversion="6.0")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_project")
django.setup()

from django.tasks import TaskResultStatus, default_task_backend  # noqa: E402
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist  # noqa: E402
from django.tasks.signals import task_enqueued, task_finished, task_started  # noqa: E402

from tests.integrations import django_tasks as tasks  # noqa: E402
from tests.integrations.django_project import counting, service  # noqa: E402


def ended(result: Any) -> Any:
    """Wait until the task has ended and return its refreshed result."""
    assert service.edges.waiters.wait(result.id, 60).done
    result.refresh()
    return result


@pytest.fixture
def held() -> Iterator[Any]:
    """The result of a running task."""
    tasks.BEGUN.clear()
    tasks.GO_ON.clear()
    yield tasks.hold.enqueue(label="it")
    tasks.GO_ON.set()


@pytest.mark.parametrize("task", [tasks.add, tasks.add_awaited])
def test_task_runs_and_gives_its_value(task: Any) -> None:
    """The result of a task has the return value, times, arguments and worker."""
    result = task.enqueue(1, other=2)
    assert (result.args, result.kwargs) == ([1], {"other": 2})
    done = ended(result)
    assert (done.status, done.return_value, done.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 1)
    assert done.enqueued_at <= done.started_at <= done.finished_at
    assert done.worker_ids == [service.edges.work.owner]
    assert task.get_result(result.id).return_value == 3


def test_task_is_enqueued_in_a_coroutine() -> None:
    assert ended(asyncio.run(tasks.add.aenqueue(1, 2))).return_value == 3


def test_failure_names_the_exception_and_hides_its_text(caplog: pytest.LogCaptureFixture) -> None:
    """A failed task's result names the exception; its text and traceback are only in the log."""
    result = ended(tasks.fail.enqueue())
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is KeyError
    assert "secret" not in error.traceback
    assert "secret" in caplog.text


def test_progress_is_seen_and_a_cancel_arrives(held: Any) -> None:
    """The ID of a task's result names an operation that shows progress and can be cancelled."""
    assert tasks.BEGUN.wait(60)
    payload: Any = service.get(held.id).metadata.payload
    assert (payload["progressPercent"], payload["statusMessage"]) == (50, "half of it")
    held.refresh()
    assert held.status == TaskResultStatus.RUNNING
    service.cancel(held.id)
    done = ended(held)
    assert done.status == TaskResultStatus.FAILED
    assert done.errors[0].traceback.startswith("CANCELLED: ")


def test_task_that_takes_the_context_runs(held: Any) -> None:
    assert tasks.BEGUN.wait(60)
    tasks.GO_ON.set()
    assert ended(held).return_value == "it"


def test_signals_are_sent() -> None:
    seen: list[tuple[str, Any]] = []

    def hear(signal: Any, task_result: Any, **_: Any) -> None:
        seen.append((names[signal], task_result.status))

    names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}
    for signal in names:
        signal.connect(hear)
    try:
        ended(tasks.add.enqueue(1, 2))
        ended(tasks.fail.enqueue())
    finally:
        for signal in names:
            signal.disconnect(hear)
    assert ("finished", TaskResultStatus.SUCCESSFUL) in seen
    assert ("finished", TaskResultStatus.FAILED) in seen
    assert [name for name, _ in seen].count("enqueued") == 2
    assert ("started", TaskResultStatus.RUNNING) in seen


def test_missing_task_result_is_not_found() -> None:
    """An unknown name, or an operation of another method, raises TaskResultDoesNotExist."""
    for name in ("operations/unknown", counting.name.start(lro.Struct()).name):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(name)


def test_unsupported_task_option_is_refused() -> None:
    """A task with a priority raises InvalidTask."""
    with pytest.raises(InvalidTask):
        tasks.add.using(priority=5)
