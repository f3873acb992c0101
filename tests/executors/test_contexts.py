"""Work runs in a context of its own: it sees no context variables of another operation."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, Final

import pytest

from lro import Service
from lro.adapters import Executor
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.executors.process_methods import SEEN, context, context_async
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

CLASSES: Final[Any] = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
NAME: Final = "acme.v1.Works.Context"


def celery_eager(_: int) -> Executor:
    """Work is done as a worker of Celery does it, where it is sent."""
    celery = pytest.importorskip("celery")
    from lro.executors.celery import CeleryExecutor

    app = celery.Celery("contexts", broker="memory://")
    app.conf.task_always_eager = True
    return CeleryExecutor(app)


@pytest.mark.parametrize("function", [context, context_async])
@pytest.mark.parametrize(
    "make",
    [lambda _: InlineExecutor(), celery_eager, ThreadExecutor, AsyncioExecutor, ProcessExecutor],
)
def test_work_sees_no_context_of_a_start_or_of_other_work(
    make: Callable[[int], Executor], function: Any
) -> None:
    """Of neither: the caller of the start sets one, and work in the same place another."""

    def start_three() -> list[str]:
        SEEN.set("by the caller")
        handles = [method.start(WorkRequest()) for _ in range(3)]
        return [handle.result(PATIENCE).text for handle in handles]

    with Service(MemoryStore(), make(1)) as service:
        method = service.method(NAME, **CLASSES)(function)
        assert contextvars.copy_context().run(start_three) == ["", "", ""]


def test_work_on_the_loop_of_its_start_sees_no_context_of_it() -> None:
    async def start_three() -> list[str]:
        SEEN.set("by the caller")
        service = Service(MemoryStore(), AsyncioExecutor(1, loop="running"))
        method = service.method(NAME, **CLASSES)(context_async)
        handles = [await method.start_async(WorkRequest()) for _ in range(3)]
        seen = [(await handle.result_async(PATIENCE)).text for handle in handles]
        await asyncio.to_thread(service.close)
        return seen

    assert asyncio.run(start_three()) == ["", "", ""]
