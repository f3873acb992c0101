"""Run the user's commands (start hooks and clients), which may print endlessly, hang or fork."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final, cast

import attrs

_STDOUT: Final = 1
_LINGER_SECONDS: Final = 0.2
"""Seconds to read output after the command ended, if its children still have the pipe open."""
_KILLED_SECONDS: Final = 5.0
"""Seconds to read output after the children were killed too."""


@attrs.define(eq=False)
class RunningCommand(asyncio.SubprocessProtocol):
    """A command in its own session, and the last ``most`` bytes of its output."""

    most: int
    last_output: float = 0.0
    """Time of the last write to standard output, by the monotonic clock; 0 if never."""
    printed: int = 0
    """Number of bytes that the command has written to standard output."""
    _kept: dict[int, bytearray] = attrs.field(factory=dict)
    _exited: asyncio.Event = attrs.field(factory=asyncio.Event)
    _closed: asyncio.Event = attrs.field(factory=asyncio.Event)
    _killed: bool = False
    _transport: asyncio.SubprocessTransport = attrs.field(init=False)
    _number: int = attrs.field(init=False)

    @property
    def exited(self) -> bool:
        """True if the command has ended."""
        return self._exited.is_set()

    @property
    def output(self) -> bytes:
        """The end of the standard output so far."""
        return bytes(self._kept.get(_STDOUT, b""))

    @property
    def errors(self) -> bytes:
        """The end of the standard error so far, unless it is inherited."""
        return bytes(self._kept.get(2, b""))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._number = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDOUT:
            self.last_output = time.monotonic()
            self.printed += len(data)
        kept = self._kept.setdefault(fd, bytearray())
        kept += data
        del kept[: -self.most]

    def process_exited(self) -> None:
        self._exited.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed.set()

    async def wait(self) -> int:
        """Wait for the end of the command, not of its children, and return its status."""
        await self._exited.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_SECONDS if self._killed else _LINGER_SECONDS):
                await self._closed.wait()
        status = self._transport.get_returncode()
        self._transport.close()
        return status or 0

    def kill(self) -> None:
        """Kill the command, and its children that are still in its process group."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._number, signal.SIGKILL)


async def run_command(
    words: Sequence[str], variables: Mapping[str, str], *, most: int, errors: bool = False
) -> RunningCommand:
    """Start a command with the environment of this process and these variables.

    It has no standard input. Standard error is kept if ``errors`` is true, otherwise inherited.

    Raises:
        OSError: The command cannot be run.
        ValueError: A word contains a null character.
    """
    starting = asyncio.get_running_loop().subprocess_exec(
        lambda: RunningCommand(most),
        *words,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if errors else None,
        start_new_session=True,
    )
    began = asyncio.ensure_future(starting)
    try:
        _, command = await asyncio.shield(began)
    except asyncio.CancelledError:  # otherwise asyncio would hang, or leave a process behind
        _, command = await began
        command.kill()
        await command.wait()
        raise
    return command
