"""Starts within a transaction: each executor does the work after the commit."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from lro import Service
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.executors.process_methods import echo
from tests.service_steps import answer, ended
from tests.work_messages import WorkRequest

METHOD = "acme.v1.Works.Echo"


def committed(service, method, path):
    """The name of an operation that a transaction has committed."""
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
        name = service.start(method, WorkRequest("abc"), within=connection).name
        connection.commit()
    return name


@pytest.mark.parametrize("executor", [InlineExecutor, ThreadExecutor, ProcessExecutor])
def test_executor_of_this_process_does_the_work_after_the_commit(executor, tmp_path):
    path = tmp_path / "operations.db"
    made = executor() if executor is InlineExecutor else executor(1)
    with Service(SQLiteStore(path), made) as service:
        service.method(METHOD)(echo)
        name = committed(service, METHOD, path)
        assert answer(service, ended(service, name)) == "abc 0"


def test_event_loop_does_the_work_after_the_commit(tmp_path):
    path = tmp_path / "operations.db"

    async def use():
        with Service(SQLiteStore(path), AsyncioExecutor()) as service:

            @service.method(METHOD)
            async def work(request: WorkRequest) -> WorkRequest:
                await asyncio.sleep(0)
                return request

            with contextlib.closing(sqlite3.connect(path)) as connection:
                operation = await work.start_async(WorkRequest("abc"), within=connection)
                connection.commit()
            found = await service.wait_async(operation.name, 60)
            assert service.types.unpack(found.response, WorkRequest) == WorkRequest("abc")

    asyncio.run(use())
