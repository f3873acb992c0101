"""Hundreds of starts by a process that is killed repeatedly: each start gives one result."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

import lro
import lro.asgi
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro_client import Client
from tests.services.processes import killed_at_end
from tests.work_messages import WorkRequest, WorkResponse

ROOT = Path(__file__).parents[3]
PATH = "/v1/numbers:square"
KILLS = 5
MINE = uuid.UUID("5d9c3c0e-54a2-4d0b-8f2a-1c1f3f0f8a61")


def serve(folder: str) -> None:
    """Run the server's process: print its port, and serve until it is killed."""
    import uvicorn

    store = SQLiteStore(str(Path(folder) / "operations.db"))
    service = lro.Service(store, ThreadExecutor(2))

    @service.method("acme.math.v1.Math.Square", metadata=lro.Empty)
    def square(request: WorkRequest) -> WorkResponse:
        return WorkResponse(str(request.size**2))

    app = lro.asgi.OperationsApp(service, starts={PATH: square})
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        server.run(sockets=[listening])


def kept(folder: Path) -> dict[int, int]:
    """Return the results that the client has stored so far."""
    file = folder / "results"
    lines = file.read_text().splitlines() if file.exists() else ()
    return {int(number): int(square) for number, square in map(str.split, lines)}


def work(url: str, folder: str, starts: str) -> None:
    """Run the client's process: eight threads start the work of all numbers without a result.

    The request id is made from the number, so a later process finds the operations that this one
    has started.
    """

    def square(number: int) -> None:
        handle = client.start(
            PATH,
            WorkRequest(size=number),
            response=WorkResponse,
            request_id=uuid.uuid5(MINE, str(number)),
        )
        os.write(1, b"started\n")
        found = handle.result(timeout=60).text
        os.write(results, f"{number} {found}\n".encode())
        os.write(1, b"kept\n")

    results = os.open(Path(folder) / "results", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    known = kept(Path(folder))
    missing = [number for number in range(int(starts)) if number not in known]
    with Client(url) as client, ThreadPoolExecutor(8) as threads:
        list(threads.map(square, missing))


@contextlib.contextmanager
def running(program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a function of this module in a process that is killed at the end; yield the process."""
    source = f"import sys; from {__name__} import {program}; {program}(*sys.argv[1:])"
    command = [sys.executable, "-c", source, *arguments]
    with killed_at_end(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, process.stdout


def test_starts_survive_kills_of_the_client(tmp_path: Path) -> None:
    """However often the client is killed, each start makes one operation and gives its result."""
    starts = 400
    pytest.importorskip("uvicorn", reason="uvicorn is needed to serve on a socket")
    chance = random.Random(6)
    left_behind = 0
    with running("serve", str(tmp_path)) as (_, said), contextlib.ExitStack() as stack:
        url = f"http://127.0.0.1:{said.readline().strip()}"
        client = stack.enter_context(Client(url))
        arguments = (url, str(tmp_path), str(starts))
        for _ in range(KILLS):
            with running("work", *arguments) as (process, events):
                for _ in range(chance.randrange(1, 2 * starts // KILLS)):
                    assert events.readline()
                process.send_signal(signal.SIGKILL)
            left_behind += len(list(client.list())) - len(kept(tmp_path))
        with running("work", *arguments) as (process, events):
            assert events.read()
            assert process.wait(240) == 0
        started = list(client.list(page_size=starts))
    assert kept(tmp_path) == {number: number**2 for number in range(starts)}
    assert len(started) == starts
    assert {one.state for one in started} == {"SUCCEEDED"}
    assert left_behind
