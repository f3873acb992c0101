"""Running the command of a client, and reading what it prints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import attrs

from lro_conform._options import UnusableInput
from lro_conform._processes import run_command
from lro_conform._strict_json import read_json

_MAX_OUTPUT: Final = 64 * 1024 * 1024
"""The most that is kept of what a client prints, in bytes: the end of it."""

OUTCOMES: Final = ("response", "error", "timeout", "lost", "unsupported")
"""The outcomes that a client may print."""


class ClientProcess(Protocol):
    """A client that runs: what it has printed, and when it last printed anything."""

    @property
    def output(self) -> bytes:
        """The end of what came on standard output until now."""
        ...

    @property
    def errors(self) -> bytes:
        """The end of what came on standard error until now."""
        ...

    @property
    def last_output(self) -> float:
        """Time of the last write to standard output, by the monotonic clock; 0 if never."""
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
    """The result that a client printed; the outcome is empty if it printed none."""

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
            found, _ = read_json(line.encode())
        except ValueError:
            continue
        assert isinstance(found, dict)  # of a text that begins so
        if found.get("outcome") in OUTCOMES:
            said = map(found.get, ("code", "message", "response"))
            return ClientSaid(found["outcome"], *said)
    return ClientSaid()


def launch_command(command: Sequence[str]) -> Launch:
    """Return a function that starts this command without standard input, in a process group."""

    async def launch(variables: Mapping[str, str]) -> ClientProcess:
        try:
            return await run_command(command, variables, most=_MAX_OUTPUT, errors=True)
        except (OSError, ValueError) as exc:  # ValueError: a null character
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise UnusableInput(f"{command[0]} cannot be run: {why}") from exc

    return launch
