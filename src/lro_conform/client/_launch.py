"""Run the command of a client, and read its output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import attrs

from lro_conform._options import UnusableInput
from lro_conform._processes import run_command
from lro_conform._strict_json import read_json

_MAX_OUTPUT: Final = 64 * 1024 * 1024
"""Maximum number of bytes of a client's output that are kept, from its end."""

OUTCOMES: Final = ("response", "error", "timeout", "lost", "unsupported")
"""The outcomes that a client may print."""


class ClientProcess(Protocol):
    """A running client: its output, and the time of its last output."""

    @property
    def output(self) -> bytes:
        """The end of the standard output so far."""
        ...

    @property
    def errors(self) -> bytes:
        """The end of the standard error so far."""
        ...

    @property
    def last_output(self) -> float:
        """Time of the last write to standard output, by the monotonic clock; 0 if never."""
        ...

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit status."""
        ...

    def kill(self) -> None:
        """Kill the process, and the processes that it started."""
        ...


Launch: TypeAlias = Callable[[Mapping[str, str]], Awaitable[ClientProcess]]
"""A function that starts a client with the environment of this process and these variables."""


@attrs.frozen
class ClientSaid:
    """The result that a client printed; the outcome is empty if it printed none."""

    outcome: str = ""
    code: object = None
    message: object = None
    response: object = None


def read_said(output: bytes) -> ClientSaid:
    """Return the result in the last line that is a JSON object with an outcome."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if not line.lstrip().startswith("{"):
            continue
        try:
            found, _ = read_json(line.encode())
        except ValueError:
            continue
        assert isinstance(found, dict)  # the text begins with a brace
        if found.get("outcome") in OUTCOMES:
            said = map(found.get, ("code", "message", "response"))
            return ClientSaid(found["outcome"], *said)
    return ClientSaid()


def launch_command(command: Sequence[str]) -> Launch:
    """Return a function that starts this command in a process group, without standard input."""

    async def launch(variables: Mapping[str, str]) -> ClientProcess:
        try:
            return await run_command(command, variables, most=_MAX_OUTPUT, errors=True)
        except (OSError, ValueError) as exc:  # ValueError: a null character
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise UnusableInput(f"{command[0]} cannot be run: {why}") from exc

    return launch
