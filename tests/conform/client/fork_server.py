"""Launches an adapter by forking a process that has already imported all modules."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from lro_conform.client._launch import Launch

_CHUNK = 64 * 1024
_PROGRAM = Path(__file__).with_name("forking.py")


@attrs.define(eq=False)
class ForkedClient:
    """A client in a forked process; the process has ended once both pipes are closed."""

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


async def reading(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(descriptor))
    return reader


@contextlib.contextmanager
def fork_server(adapter: str, *others: str) -> Iterator[Launch]:
    """Yield a function that launches an adapter; ``others`` are modules to import beforehand."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(_PROGRAM), str(theirs.fileno()), adapter, *others]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()

    async def launch(variables: Mapping[str, str]) -> ForkedClient:
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        socket.send_fds(ours, [json.dumps(dict(variables)).encode()], [to_out, to_err])
        os.close(to_out)
        os.close(to_err)
        loop = asyncio.get_running_loop()
        number = int(await loop.run_in_executor(None, ours.recv, 64))
        return ForkedClient(number, await reading(out), await reading(err))

    lock = asyncio.Lock()

    async def one_by_one(variables: Mapping[str, str]) -> ForkedClient:
        async with lock:
            return await launch(variables)

    try:
        yield one_by_one
    finally:
        ours.close()
        process.wait()
