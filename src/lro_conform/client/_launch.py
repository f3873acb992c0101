"""Running the command of a client, and reading what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import attrs

from lro_conform._options import UnusableInput

_CHUNK: Final = 64 * 1024
_MAX_OUTPUT: Final = 64 * 1024 * 1024
"""The most that is kept of what a client prints, in bytes."""
_MAX_ERRORS: Final = 16 * 1024

OUTCOMES: Final = ("response", "error", "timeout", "lost", "unsupported")
"""What a client may print as its outcome."""


class ClientProcess(Protocol):
    """A client that runs: what it has printed, and when it last printed anything."""

    @property
    def output(self) -> bytes:
        """What came on standard output until now."""
        ...

    @property
    def errors(self) -> bytes:
        """The end of what came on standard error until now."""
        ...

    @property
    def last_output(self) -> float:
        """When standard output was last written to, by the monotonic clock; 0 if never."""
        ...

    async def wait(self) -> int:
        """Wait for the end of the process; its exit status."""
        ...

    def kill(self) -> None:
        """End the process, and those that it has started."""
        ...


Launch: TypeAlias = Callable[[Mapping[str, str]], Awaitable[ClientProcess]]
"""Starts a client with these environment variables beside those of this process."""


@attrs.frozen
class ClientSaid:
    """What a client printed as its result; the outcome is empty if it printed none."""

    outcome: str = ""
    code: object = None
    message: object = None
    response: object = None


def read_said(output: bytes) -> ClientSaid:
    """The last line that is a JSON object with an outcome."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if not line.lstrip().startswith("{"):
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if found.get("outcome") in OUTCOMES:
            fields = ("outcome", "code", "message", "response")
            return ClientSaid(*(found.get(name) for name in fields))
    return ClientSaid()


@attrs.define(eq=False)
class _Command:
    """A command in a process group of its own."""

    process: asyncio.subprocess.Process
    last_output: float = 0.0
    _output: bytearray = attrs.field(factory=bytearray)
    _errors: bytearray = attrs.field(factory=bytearray)

    @property
    def output(self) -> bytes:
        return bytes(self._output)

    @property
    def errors(self) -> bytes:
        return bytes(self._errors)

    async def wait(self) -> int:
        await asyncio.gather(self._read_output(), self._read_errors())
        return await self.process.wait()

    async def _read_output(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(_CHUNK):
            self.last_output = time.monotonic()
            self._output += chunk[: _MAX_OUTPUT - len(self._output)]

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(_CHUNK):
            self._errors += chunk
            del self._errors[:-_MAX_ERRORS]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def launch_command(command: Sequence[str]) -> Launch:
    """What starts this command. It has no standard input, and a process group of its own."""

    async def launch(variables: Mapping[str, str]) -> ClientProcess:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **variables},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:  # ValueError: a null character
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise UnusableInput(f"{command[0]} cannot be run: {why}") from exc
        return _Command(process)

    return launch
