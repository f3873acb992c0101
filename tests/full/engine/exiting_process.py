"""A process that ends with its service open, while work runs: for the tests of that."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import attrs

import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore


@lro.message("acme.v1.NapRequest")
@attrs.frozen
class NapRequest:
    """How long to nap, and the folder of the log."""

    seconds: float = 0.0
    folder: str = ""


@lro.message("acme.v1.NapMetadata")
@attrs.frozen
class NapMetadata:
    """Metadata without fields."""


@lro.message("acme.v1.NapResponse")
@attrs.frozen
class NapResponse:
    """Nothing comes of a nap."""


def note(folder: str, line: str) -> None:
    """Append a line to the log."""
    with open(os.path.join(folder, "log"), "a", encoding="utf-8") as log:
        log.write(line + "\n")


def nap(request: NapRequest, job: lro.Job[NapMetadata]) -> NapResponse:
    """Sleep, unless the process is to end."""
    note(request.folder, "begun")
    job.sleep(request.seconds)
    note(request.folder, "ended")
    return NapResponse()


async def anap(request: NapRequest, job: lro.Job[NapMetadata]) -> NapResponse:
    """The same on an event loop."""
    note(request.folder, "begun")
    await asyncio.sleep(request.seconds)
    note(request.folder, "ended")
    return NapResponse()


def postgres(url: str) -> Any:
    """A store in this schema of a server; its driver may not be installed."""
    from lro.stores.postgres import PostgresStore

    address, _, schema = url.partition("#")
    return PostgresStore(address, schema=schema, statement_seconds=60.0)


STORES: Final[dict[str, Callable[[str], Any]]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": SQLiteStore,
    "postgres": postgres,
}
EXECUTORS: Final[dict[str, Callable[[], Any]]] = {
    "threads": lambda: ThreadExecutor(2),
    "asyncio": AsyncioExecutor,
    "processes": lambda: ProcessExecutor(2),
}


def main(
    store: str, place: str, executor: str, folder: str, drain: str, nap_seconds: str, ending: str
) -> None:
    """Start two naps, name them, and end in this way when there is a line to read."""
    made = STORES[store](place)
    service: lro.Service
    if ending == "registered":  # before anything that closing needs is made
        atexit.register(lambda: service.close())
    service = lro.Service(made, EXECUTORS[executor](), drain=timedelta(seconds=float(drain)))
    function = anap if executor == "asyncio" else nap
    method = service.method("acme.v1.Naps.Nap")(function)
    names = [method.start(NapRequest(float(nap_seconds), folder)).name for _ in range(2)]
    if ending == "asked":
        # Callers wait and ask in threads that are never joined.
        for name in names:
            threading.Thread(target=ask, args=(service, name), daemon=True).start()
    print(*names, flush=True)
    sys.stdin.readline()
    if ending == "exit":
        sys.exit(3)
    if ending == "forked":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            sys.exit()  # a process that has not used it, which ends first
        os.waitpid(child, 0)


def ask(service: lro.Service, name: str) -> None:
    """Ask for an operation in all ways, until the service is closed."""
    while True:
        try:
            service.get(name)
            service.wait(name, 0.01)
        except lro.errors.Unavailable:
            time.sleep(0.001)


if __name__ == "__main__":
    main(*sys.argv[1:])
