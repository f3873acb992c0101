"""Helpers of tests that drive a service step by step and read its operations."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

from lro import Handle, Job, Operation, Service
from lro.adapters import Executor
from lro.testing import ManualClock
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

WORK = "acme.work.v1.Works.Work"


def work(service: Service, body: Any = None, name: str = WORK, **options: Any) -> Any:
    """Declare a method that calls ``body``, if any, and returns the request's text."""

    @service.method(name, **options)
    def do(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        if body is not None:
            body(request, job)
        return WorkResponse(request.text)

    return do


def ended(service: Service, operation: Operation | Handle[Any, Any] | str) -> Operation:
    """Return an operation once it is done."""
    name = operation if isinstance(operation, str) else operation.name
    for _ in range(3):  # most services end a Wait after a minute
        found = service.wait(name, timedelta(seconds=PATIENCE))
        if found.done:
            return found
    raise AssertionError(f"{name} has not ended")


def ended_in_turn(service: Service, name: str) -> Operation:
    """Run the maintenance, which claims queued work, until an operation is done; return it."""

    def looked() -> Operation:
        service.run_maintenance()
        return service.get(name)

    return until(looked, lambda found: found.done)


def ended_in_time(service: Service, clock: ManualClock, name: str) -> Operation:
    """Return an operation once it is done; the clock advances only while its work waits."""

    def looked() -> Operation:
        service.run_maintenance()
        due = service.get(name, view="FULL").description.due_time
        if due is not None:
            # Advance by 1 ms at least: after rounding, the clock may be just before the due time.
            clock.advance(max(0.001, (due - clock()).total_seconds()))
        return service.get(name)

    return until(looked, lambda found: found.done)


def recovered(service: Service, clock: ManualClock) -> None:
    """Run the maintenance twice, because it takes two runs to find that a lease has expired."""
    service.run_maintenance()
    clock.advance(1)
    service.run_maintenance()


def unpacked(service: Service, operation: Operation) -> WorkMetadata:
    """Return the metadata of an operation."""
    assert operation.metadata is not None
    return service.types.unpack(operation.metadata, WorkMetadata)


def answer(service: Service, operation: Operation) -> str:
    """Return the text in the response of an operation."""
    assert operation.response is not None, operation
    return service.types.unpack(operation.response, WorkResponse).text


def reason(operation: Operation) -> tuple[int, str]:
    """Return the code and the ErrorInfo reason of an operation's error."""
    assert operation.error is not None, operation
    (info, *_) = operation.error.details
    assert isinstance(info.payload, dict)
    return operation.error.code, str(info.payload["reason"])


def listeners(service: Service) -> int:
    """Return the number of change listeners in this process, to check that none is left."""
    return len(service.edges.runtime.updater.notifier)


def swap(service: Service, executor: Executor) -> None:
    """Replace the executor of a service."""
    object.__setattr__(service.edges.runtime, "executor", executor)  # all parts share the runtime


def abandon(task: asyncio.Task[Any]) -> None:
    """Prevent the warning about a task that is destroyed with its event loop."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]


class Step:
    """A function that pauses in the middle: it sets ``begun`` and then waits for ``go``."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE), "the test did not let the function go on"

    def reached(self) -> None:
        """Wait until the function has paused."""
        assert self.begun.wait(PATIENCE), "the function has not begun"
