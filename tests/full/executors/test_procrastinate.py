"""The executor from the page on custom adapters, with a real PostgreSQL and Procrastinate workers.

The executor's code comes from that page. The tests serve the page's own service, or a service with
a short lease whose function waits for the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import runpy
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("procrastinate")
pytest.importorskip("psycopg")

import procrastinate
import psycopg

from lro.errors import Unavailable
from lro.testing import REMOTE_CHECKS, RemoteCheck, run_remote_check
from lro_client import Client
from tests.page_programs import DATABASE
from tests.page_texts import DOCS, files
from tests.services.hosts import Host, running
from tests.services.ports import free_port
from tests.services.postgres import PostgresServer, shared_server
from tests.waiting import PATIENCE, joined, until

PAGE: Final = DOCS / "how-to" / "own-adapters.md"
EXECUTOR: Final = "procrastinate_executor.py"
HELD: Final = """
import os
from datetime import timedelta
from pathlib import Path
from typing import TypedDict

import lro
import procrastinate
from lro.stores.postgres import PostgresStore
from procrastinate_executor import ProcrastinateExecutor

URL = "postgresql://localhost/shop"
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))
service = lro.Service(
    PostgresStore(URL, statement_seconds=60.0, connect_seconds=60.0),
    ProcrastinateExecutor(app, URL, timedelta(seconds=1)),
    lease=timedelta(seconds=3),
)


class Gate(TypedDict):
    path: str


class Done(TypedDict):
    process: lro.Int32
    attempt: lro.Int32


@service.method("tests.v1.Works.Hold", path="/v1/works:hold")
def hold(gate: Gate, job: lro.Job) -> Done:
    with open("begun", "a") as file:
        print(os.getpid(), file=file)
    while not Path(gate["path"]).exists():
        job.sleep(0.02)
    return {"process": os.getpid(), "attempt": job.attempt}
"""
"""A service with a function that ends when a file exists."""


class Deployment:
    """A database with Procrastinate's tables, and the modules that servers and workers import."""

    def __init__(self, server: PostgresServer, folder: Path, module: str) -> None:
        self.folder, self.module = folder, module
        name = server.fresh_schema()  # a name that nothing else uses
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        self.url = f"{server.url.rpartition('/')[0]}/{name}"
        for path, text in {**files(PAGE), "held.py": HELD}.items():
            text = text.replace(f"postgresql{DATABASE}", self.url)
            (folder / path).write_text(text, encoding="utf-8")
        with self._procrastinate("schema", "--apply", log="schema.log") as host:
            assert host.end() == 0, host.output

    def _procrastinate(self, *words: str, log: str) -> contextlib.AbstractContextManager[Host]:
        command = ("-W", "ignore", "-m", "procrastinate", f"--app={self.module}.app", *words)
        return running(command, self.folder, log)

    @contextlib.contextmanager
    def worker(self, log: str = "worker.log") -> Iterator[Host]:
        """Start a worker as the documentation does, and wait until it is ready."""
        options = ("--concurrency=4", "--delete-jobs=successful")
        with self._procrastinate("worker", *options, log=log) as host:
            host.says(re.compile("Starting worker on"))
            yield host

    @contextlib.contextmanager
    def served(self) -> Iterator[Client]:
        """Yield a client of a server that runs no work."""
        command = ("-m", "lro.cli", "serve", f"{self.module}:service", "--port", "0")
        with contextlib.ExitStack() as stack:
            host = stack.enter_context(running(command, self.folder, "server.log"))
            yield stack.enter_context(Client(f"http://127.0.0.1:{host.port()}"))

    def begun(self) -> list[int]:
        """Return the IDs of the processes that have called ``hold``, in the order of the calls."""
        file = self.folder / "begun"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return list(connection.execute(statement.encode()))


@pytest.fixture
def page(tmp_path: Path) -> Deployment:
    """The service from the documentation."""
    return Deployment(shared_server(), tmp_path, "resizing")


@pytest.fixture
def held(tmp_path: Path) -> Deployment:
    """The service whose function waits for a file."""
    return Deployment(shared_server(), tmp_path, "held")


def test_executor_of_the_page_is_short() -> None:
    """The page's executor is an example that can be read in a minute, not a library."""
    assert sum(bool(line.strip()) for line in files(PAGE)[EXECUTOR].splitlines()) <= 80


def test_the_page_starts_follows_ends_and_cancels_work(page: Deployment) -> None:
    """The worker stores progress and results; a cancel on the server reaches the worker."""
    with page.served() as client, page.worker() as worker:
        short = client.start("/v1/images:resize", {"width": 64})
        updates = [one.metadata for one in short.updates(timeout=PATIENCE, every=0.01)]
        percents = [one["progressPercent"] for one in updates if "progressPercent" in one]
        assert percents[-1] == 100
        assert any(0 < percent < 100 for percent in percents)
        assert short.result(timeout=PATIENCE) == {"width": 32}

        endless = client.start("/v1/images:resize", {"width": 10**9})
        updates_of_it = endless.updates(timeout=PATIENCE, every=0.01)
        next(one for one in updates_of_it if one.metadata.get("statusMessage") == "resizing")
        assert endless.cancel_and_wait(timeout=PATIENCE).state == "CANCELLED"
        assert worker.stop() == 0
        assert page.sql("SELECT status FROM procrastinate_jobs") == []


def test_work_of_a_killed_worker_is_done_by_another(held: Deployment) -> None:
    """After the lease, the operation's name is sent again; the dead worker's job has no effect."""
    gate = held.folder / "gate"
    with held.served() as client, held.worker() as worker:
        operation = client.start("/v1/works:hold", {"path": str(gate)})
        assert until(held.begun) == [worker.process.pid]
        os.kill(worker.process.pid, signal.SIGKILL)
        with held.worker("second.log") as second:
            until(lambda: len(held.begun()), lambda count: count == 2)
            gate.touch()
            done = {"process": second.process.pid, "attempt": 2}
            assert operation.result(timeout=PATIENCE) == done
            left = "SELECT id FROM procrastinate_jobs WHERE status = 'doing'"
            until(lambda: len(held.sql(left)), lambda count: count == 1)
            held.sql(
                "UPDATE procrastinate_jobs SET status = 'todo' WHERE status = 'doing' RETURNING id"
            )
            until(lambda: held.sql("SELECT id FROM procrastinate_jobs"), lambda rows: rows == [])
            assert len(held.begun()) == 2


def test_names_that_were_lost_are_sent_again(held: Deployment) -> None:
    """If an operation's name is lost, it is sent again; if it arrives twice, the work runs once."""
    gate = held.folder / "gate"
    gate.touch()
    with held.served() as client:
        operation = client.start("/v1/works:hold", {"path": str(gate)})
        lost = held.sql("DELETE FROM procrastinate_jobs RETURNING args")
        assert lost == [({"name": operation.name},)]
        sent = until(lambda: held.sql("SELECT task_name, args FROM procrastinate_jobs"))
        assert sent[0] == ("lro.work", {"name": operation.name})
        held.sql(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
            " SELECT queue_name, task_name, args FROM procrastinate_jobs RETURNING id"
        )
        with held.worker() as worker:
            assert operation.result(timeout=PATIENCE)["process"] == worker.process.pid
            until(lambda: held.sql("SELECT id FROM procrastinate_jobs"), lambda rows: rows == [])
    assert len(held.begun()) == 1


def test_a_cancel_ends_work_that_no_worker_has_begun(held: Deployment) -> None:
    """A cancel ends unclaimed work; the operation's name, still in the queue, has no effect."""
    with held.served() as client:
        operation = client.start("/v1/works:hold", {"path": "never"})
        assert operation.cancel_and_wait(timeout=PATIENCE).state == "CANCELLED"
        with held.worker():
            until(lambda: held.sql("SELECT id FROM procrastinate_jobs"), lambda rows: rows == [])
    assert held.begun() == []


class WorkerThread:
    """A worker of an app, on an event loop in a thread of this process."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self._app.open_async():
            work = self._app.run_worker_async(concurrency=4, install_signal_handlers=False)
            worker = asyncio.create_task(work)
            self._ready.set()
            await self._over.wait()
            worker.cancel()
            await asyncio.wait([worker])

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        joined(self._thread)


def attached(url: str, work: Callable[[str], None]) -> tuple[Any, Any]:
    """Return a Procrastinate app and the documented executor on it."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    executor = runpy.run_path(EXECUTOR)["ProcrastinateExecutor"](app, url)
    executor.attach(work, lambda _: None, lambda: None, lambda: None)
    return app, executor


@pytest.fixture
def make_remote(held: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """A function that makes the documented executor with a worker in this process."""
    monkeypatch.chdir(held.folder)
    with contextlib.ExitStack() as stack:

        def make(work: Callable[[str], None]) -> Any:
            app, executor = attached(held.url, work)
            stack.callback(WorkerThread(app).close)
            return executor

        yield make


@pytest.mark.parametrize("check", REMOTE_CHECKS, ids=lambda check: check.__name__)
def test_executor_passes_the_remote_checks(
    check: RemoteCheck, make_remote: Callable[..., Any]
) -> None:
    run_remote_check(check, make_remote)


def test_start_is_stored_while_the_queue_is_unavailable(held: Deployment, monkeypatch: Any) -> None:
    """If the queue is unavailable, ``send`` raises, and the service sends the stored name later."""
    monkeypatch.chdir(held.folder)
    _, executor = attached(f"postgresql://lro@127.0.0.1:{free_port()}/none", lambda _: None)
    with pytest.raises(Unavailable, match="queue of names"):
        executor.send("operations/a")
    executor.stop()
