"""Launches adapters as forks of one process that has imported what they need."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import attrs

from lro_conform.client._launch import Launch

_CHUNK = 64 * 1024
_HERE = str(Path(__file__).parent)
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("pytest", "httpx", "lro.types", "lro_client", "lro_client.transports.grpc", "grpc.aio"),
        *("google.api_core.operations_v1", "google.api_core.operation", "requests"),
        "tests.conform.client.fork_server",
    ]
)


@attrs.define(eq=False)
class ForkedClient:
    """A fork, which ends when both of its pipes do."""

    number: int
    outs: asyncio.StreamReader
    errs: asyncio.StreamReader
    output: bytes = b""
    errors: bytes = b""
    last_output: float = 0.0

    async def wait(self) -> int:
        async def read() -> None:
            while chunk := await self.outs.read(_CHUNK):
                self.output += chunk
                self.last_output = time.monotonic()

        _, self.errors = await asyncio.gather(read(), self.errs.read())
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.number, signal.SIGKILL)


async def reading(pipe: Connection) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    file = os.fdopen(os.dup(pipe.fileno()), "rb")
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    pipe.close()
    return reader


def perform(adapter: str, variables: Mapping[str, str], *pipes: Connection) -> None:
    """Be the process of a client."""
    os.setsid()
    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    os.environ.update(variables)
    sys.path.insert(0, _HERE)
    importlib.import_module(adapter).main()


def forks_of(adapter: str) -> Launch:
    """What launches an adapter of this folder."""

    async def launch(variables: Mapping[str, str]) -> ForkedClient:
        out, err = (_FORKS.Pipe(duplex=False) for _ in range(2))
        process = _FORKS.Process(target=perform, args=(adapter, dict(variables), out[1], err[1]))
        process.start()
        for _, written in (out, err):
            written.close()
        return ForkedClient(process.pid or 0, await reading(out[0]), await reading(err[0]))

    return launch
