"""Hundreds of starts of a process that is killed again and again: each has one result."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeAlias

import attrs
import pytest

import lro
import lro.asgi
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro_client import Client, Journal, OperationHandle
from tests.services.processes import killed_at_end

ROOT = Path(__file__).parents[3]
PATH = "/v1/numbers:square"
KILLS = 5


@lro.message("acme.math.v1.SquareRequest")
@attrs.frozen
class SquareRequest:
    number: lro.Int32 = 0


@lro.message("acme.math.v1.SquareResponse")
@attrs.frozen
class SquareResponse:
    number: lro.Int32 = 0
    square: lro.Int32 = 0


def serve(folder: str) -> None:
    """The server's process: says its port, and serves until it is killed."""
    import uvicorn

    store = SQLiteStore(str(Path(folder) / "operations.db"))
    service = lro.Service(store, ThreadExecutor(2))

    @service.method("acme.math.v1.Math.Square", metadata=lro.Empty)
    def square(request: SquareRequest) -> SquareResponse:
        return SquareResponse(request.number, request.number**2)

    app = lro.asgi.OperationsApp(service, starts={PATH: square})
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        server.run(sockets=[listening])


def kept(folder: Path) -> list[tuple[int, int]]:
    """The results so far."""
    file = folder / "results"
    text = file.read_text() if file.exists() else ""
    return [(int(number), int(square)) for number, square in map(str.split, text.splitlines())]


Handle: TypeAlias = OperationHandle[SquareResponse, lro.Empty]


@attrs.frozen
class Plan:
    """What a client's process has to do; it prints a line for each step that it has done."""

    url: str
    folder: Path
    starts: int

    def missing(self, journal: Journal) -> list[int]:
        """The numbers that were neither begun nor collected."""
        known = {json.loads(entry.message).get("number", 0) for entry in journal.pending()}
        known |= {number for number, _ in kept(self.folder)}
        return [number for number in range(self.starts) if number not in known]

    def keep(self, operation: lro.Operation) -> None:
        """Keep a result. After a crash before it is collected it comes once more, and not never."""
        assert operation.response is not None
        found = lro.TypeRegistry(SquareResponse).unpack(operation.response, SquareResponse)
        with (self.folder / "results").open("ab", buffering=0) as results:
            results.write(b"%d %d\n" % (found.number, found.square))

    def print_step(self, event: str) -> None:
        os.write(1, event.encode() + b"\n")


def work(url: str, folder: str, starts: str) -> None:
    """The process of a blocking client, with eight threads."""
    plan = Plan(url, Path(folder), int(starts))

    def new(number: int) -> None:
        handle = client.start(
            PATH, SquareRequest(number), response=SquareResponse, metadata=lro.Empty
        )
        plan.print_step("started")
        collect(handle)

    def collect(handle: Handle) -> None:
        plan.keep(handle.wait())
        handle.result()
        plan.print_step("collected")

    with Journal(plan.folder / "pending.db") as journal, Client(url, journal=journal) as client:
        missing = plan.missing(journal)
        with ThreadPoolExecutor(8) as threads:
            pending = client.pending(response=SquareResponse, metadata=lro.Empty)
            doing = [threads.submit(collect, handle) for handle in pending]
            doing += [threads.submit(new, number) for number in missing]
        for one in doing:
            one.result()


@contextlib.contextmanager
def running(program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process that runs a function of this module, killed in the end; it, and its output."""
    source = f"import sys; from {__name__} import {program}; {program}(*sys.argv[1:])"
    command = [sys.executable, "-c", source, *arguments]
    with killed_at_end(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, process.stdout


def test_starts_survive_kills(tmp_path: Path) -> None:
    """Killed at random moments, with a few starts on their way each time (issue 6)."""
    starts = 400
    pytest.importorskip("uvicorn", reason="uvicorn is needed to serve on a socket")
    chance = random.Random(6)
    left_behind = []
    with running("serve", str(tmp_path)) as (_, said):
        url = f"http://127.0.0.1:{said.readline().strip()}"
        arguments = (url, str(tmp_path), str(starts))
        for _ in range(KILLS):
            with running("work", *arguments) as (process, events):
                for _ in range(chance.randrange(1, 2 * starts // KILLS)):
                    assert events.readline()
                process.send_signal(signal.SIGKILL)
            with Journal(tmp_path / "pending.db") as journal:
                left_behind += journal.pending()
        with running("work", *arguments) as (process, events):
            assert events.read()
            assert process.wait(240) == 0
        with Client(url) as client:
            started = list(client.list(page_size=starts))
    assert sorted(set(kept(tmp_path))) == [(number, number**2) for number in range(starts)]
    assert len(started) == starts
    assert {one.state for one in started} == {"SUCCEEDED"}
    assert left_behind
    with Journal(tmp_path / "pending.db") as journal:
        assert journal.pending() == []
