"""The gaps that the security page admits: each test shows that the gap is real."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lro
from lro.asgi import EdgeApp
from lro.console import ConsoleEdge
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.executors.process_methods import environment
from tests.http.servers import asgi_inside
from tests.service_steps import Step
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = "acme.work.v1.Works.Work"
CLASSES: Any = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}


def keep(service: lro.Service, text: str) -> None:
    """Run a method whose metadata contains the text."""

    @service.method(METHOD)
    def note(request: WorkRequest, job: lro.Job[WorkMetadata]) -> None:
        job.report(WorkMetadata(note=request.text))

    note.start(WorkRequest(text))


def dump(path: Path) -> str:
    with closing(sqlite3.connect(path)) as plain:
        return "\n".join(plain.iterdump())


@pytest.mark.parametrize("fails", [False, True])
def test_request_is_in_the_store_until_the_work_succeeds(tmp_path: Path, *, fails: bool) -> None:
    """The store has the request until the work succeeds or, after a failure, until the delete."""
    path, step = tmp_path / "operations.db", Step()
    with lro.Service(SQLiteStore(path), ThreadExecutor(1)) as service:

        @service.method(METHOD)
        def forget(request: WorkRequest) -> None:
            step()
            if fails:
                raise lro.StatusError(lro.Code.INTERNAL, "why")

        handle = forget.start(WorkRequest("hunter2"))
        step.reached()
        assert "hunter2" in dump(path)
        assert "hunter2" not in str(service.get(handle.name))
        step.go.set()
        handle.wait(PATIENCE)
        assert ("hunter2" in dump(path)) is fails
        service.delete(handle.name)
        assert "hunter2" not in dump(path)


def test_child_process_has_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRO_TEST_SECRET", "hunter2")
    with lro.Service(MemoryStore(), ProcessExecutor(1)) as service:
        method = service.method(METHOD, **CLASSES)(environment)
        assert method.start(WorkRequest("LRO_TEST_SECRET")).result(PATIENCE).text == "hunter2"


def test_filter_can_compare_redacted_values() -> None:
    """A caller who may list can test guesses of a redacted value with a filter."""

    def redact(operation: dict[str, Any]) -> dict[str, Any]:
        operation["metadata"].pop("note")
        return operation

    with lro.Service(MemoryStore(), InlineExecutor()) as service:
        keep(service, "hunter2")
        app = EdgeApp(ConsoleEdge(service, redact=redact, authenticate=lambda headers: "ann"))
        with asgi_inside(app) as call:
            for guess, found in (("another", 0), ("hunter2", 1)):
                options = {"filter": f'metadata.note = "{guess}"'}
                reply = call("GET", "/v1/operations", params=options)
                assert reply.status_code == 200
                assert len(reply.json().get("operations", ())) == found
                assert "hunter2" not in reply.text


def test_stream_continues_after_its_caller_loses_permission() -> None:
    allowed = [True]
    service = lro.Service(
        MemoryStore(), InlineExecutor(), authorize=lambda caller, verb, name: allowed[0]
    )

    async def watch() -> list[bool]:
        outside = service.declare(METHOD, **CLASSES)
        name = (await outside.start_async(WorkRequest())).name
        seen = []
        async for change in await service.watch([name], caller="ann"):
            seen.append(str(change))
            if len(seen) == 1:
                allowed[0] = False
                service.reporter(name).complete(WorkResponse("secret"))
        return ["secret" in text for text in seen]

    assert asyncio.run(watch()) == [False, True]
    with pytest.raises(lro.errors.PermissionDenied):
        service.get("operations/a", caller="ann")
    service.close()
