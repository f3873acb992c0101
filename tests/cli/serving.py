"""Helpers that write modules with services and serve them by ``lro serve``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

import lro
from lro_client import Client, OperationHandle
from tests.services.hosts import Host, running, until

SERVICE: Final = """
import os
from datetime import timedelta

import attrs
import lro
from lro.asgi import OperationsApp
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.cli.serving import StepsRequest, StepsResponse

{store}
service = lro.Service(
    store,
    ThreadExecutor(4),
    lease=timedelta(seconds={lease}),
    drain=timedelta(seconds={drain_seconds}),
    **{options},
)


@service.method(
    "cli.v1.Works.Work", path="/v1/works:work"{method}
)
def work(request: StepsRequest, job: lro.Job) -> StepsResponse:
    with open("begun", "a") as file:
        print(os.getpid(), file=file)
    while not os.path.exists("go"):
        job.sleep(0.02)
    return StepsResponse(process=os.getpid())


async def fallback(scope, receive, send):
    assert scope["type"] == "http", "no lifespan here"
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"mine"}})


app = OperationsApp(service, starts=True, fallback=fallback)
closed = OperationsApp(service, starts=True, authenticate=lambda headers: headers["x-caller"])
"""

SQLITE: Final = 'store = SQLiteStore("operations.db")'
MEMORY: Final = "store = MemoryStore()"

LINE: Final = re.compile(r"(\S+) is served at (http://\S+:(\d+))(?: and (grpc://\S+))?\n")


@lro.message("cli.v1.StepsRequest")
@attrs.frozen
class StepsRequest:
    """The request of the method ``work``."""

    text: str = ""


@lro.message("cli.v1.StepsResponse")
@attrs.frozen
class StepsResponse:
    """The response of the method ``work``: the ID of the process that ran the work."""

    process: lro.Int32 = 0


def write_service(
    folder: Path,
    store: str = SQLITE,
    *,
    name: str = "work",
    lease: float = 10,
    drain_seconds: float = 10,
    method: str = "",
    **options: object,
) -> None:
    """Write a module with this name and a service with these options."""
    text = SERVICE.format(
        store=store, lease=lease, drain_seconds=drain_seconds, options=options, method=method
    )
    (folder / f"{name}.py").write_text(text)


@attrs.frozen
class Server:
    """A running ``lro serve`` and its URLs."""

    host: Host
    url: str
    grpc: str | None

    @classmethod
    def of(cls, host: Host) -> Server:
        """Read the server's URLs from the line that it prints once it serves."""
        found = host.says(LINE)
        return cls(host, found[2], found[4])

    def start(self, client: Client) -> OperationHandle[StepsResponse, lro.OperationMetadata]:
        """Start an operation of the method ``work``."""
        return client.start(
            "/v1/works:work", StepsRequest(), response=StepsResponse, metadata=lro.OperationMetadata
        )


@contextlib.contextmanager
def lro_serve(folder: Path, *arguments: str, log: str = "server.log") -> Iterator[Server]:
    """Run ``lro serve`` in a folder on a free port and wait until it serves."""
    command = ("-m", "lro.cli", "serve", *arguments, "--port", "0")
    with running(command, folder, log) as host:
        yield Server.of(host)


@contextlib.contextmanager
def at_work(folder: Path, *arguments: str) -> Iterator[tuple[Server, Client, str]]:
    """Run ``lro serve``; yield the server, a client, and the name of a running operation."""
    with lro_serve(folder, *arguments) as server, Client(server.url) as client:
        name = server.start(client).name
        until(lambda: begun(folder) != [])
        yield server, client, name


def begun(folder: Path) -> list[int]:
    """Return the IDs of the processes that have begun an attempt, in the order of the attempts."""
    file = folder / "begun"
    return [int(line) for line in file.read_text().split()] if file.exists() else []
