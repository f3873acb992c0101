"""A program that ends with its service open while work runs, for the tests of exits."""

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

import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from tests.places import Place
from tests.work_messages import WorkRequest


def note(folder: str, line: str) -> None:
    """Append a line to the log in this folder."""
    with open(os.path.join(folder, "log"), "a", encoding="utf-8") as log:
        log.write(line + "\n")


def nap(request: WorkRequest, job: lro.Job) -> None:
    """Sleep, unless the process is about to end; the request's text is the folder of the log."""
    note(request.text, "begun")
    job.sleep(request.size / 1000)
    note(request.text, "ended")


async def anap(request: WorkRequest, job: lro.Job) -> None:
    """Do the same as ``nap`` on an event loop."""
    note(request.text, "begun")
    await asyncio.sleep(request.size / 1000)
    note(request.text, "ended")


EXECUTORS: Final[dict[str, Callable[[], Any]]] = {
    "threads": lambda: ThreadExecutor(2),
    "asyncio": AsyncioExecutor,
    "processes": lambda: ProcessExecutor(2),
}


def main(
    place: Place, executor: str, folder: str, drain: str, nap_seconds: str, ending: str
) -> None:
    """Start two naps and print their names; after a line of input, end in the given way."""
    store = place.open()
    service: lro.Service
    if ending == "registered":  # closing needs handlers that are registered later
        atexit.register(lambda: service.close())
    service = lro.Service(store, EXECUTORS[executor](), drain=timedelta(seconds=float(drain)))
    function = anap if executor == "asyncio" else nap
    method = service.method("acme.v1.Naps.Nap")(function)
    nap_milliseconds = round(1000 * float(nap_seconds))
    names = [method.start(WorkRequest(folder, nap_milliseconds)).name for _ in range(2)]
    if ending == "asked":
        # Callers wait and poll in threads that are never joined.
        for name in names:
            threading.Thread(target=ask, args=(service, name), daemon=True).start()
    print(*names, flush=True)
    sys.stdin.readline()
    if ending == "exit":
        sys.exit(3)
    if ending == "forked":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about a fork while threads run
            child = os.fork()
        if child == 0:
            sys.exit()  # the child does not use the service, and ends first
        os.waitpid(child, 0)


def ask(service: lro.Service, name: str) -> None:
    """Read and await the operation repeatedly until the service is closed."""
    while True:
        try:
            service.get(name)
            service.wait(name, 0.01)
        except lro.errors.Unavailable:
            time.sleep(0.001)


if __name__ == "__main__":
    main(Place(*sys.argv[1:4]), *sys.argv[4:])
