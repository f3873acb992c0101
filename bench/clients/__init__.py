"""Clients that wait for operations, ours and others, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from bench.measure import Absent
from bench.peer import ROOT

LIMIT_SECONDS: Final = 180.0
"""The time limit of a measurement."""


@attrs.frozen
class Found:
    """A client's results: the time of each result, seconds of CPU, and bytes of memory growth."""

    at: dict[str, float]
    cpu: float
    grown: int
    failed: dict[str, str]


class ClientProcess:
    """The parent's side of a client's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, names: Sequence[str], begins: Sequence[float] = ()) -> Found:
        """Make the client wait for all operations, each from its own start time or from now on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([names, begins]), file=self._process.stdin, flush=True)
        limit = threading.Timer(LIMIT_SECONDS, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        if not line:
            raise Absent(f"has not ended within {LIMIT_SECONDS:.0f} s")
        return Found(**json.loads(line))


@contextlib.contextmanager
def client_process(client: str, way: str, url: str) -> Iterator[ClientProcess]:
    """Run a client in a process of its own, which has finished its imports.

    Raises:
        Absent: The client is not installed here, or takes too long.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.clients", client, way, url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        word = json.loads(process.stdout.readline() or '"it does not start"')
        if word != "ready":
            raise Absent(word)
        yield ClientProcess(process)
    finally:
        process.terminate()
        process.communicate()
