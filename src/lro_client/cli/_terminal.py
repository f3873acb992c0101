"""The terminal of the client's commands: texts, exit codes and signals."""

from __future__ import annotations

import enum
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final

import click

from lro import Operation
from lro.wire import plain
from lro_client._errors import UNTRUSTED, CallError, ClientError, GroupTimeout, PollTimeout

_BEYOND: Final = re.compile(r"[^\n -~]")
_ERASED: Final = "\r\x1b[K"
_SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%+@/-]*", re.ASCII)


def one_line(text: str) -> str:
    """Return a text on one line, without control characters and with single spaces."""
    return plain(" ".join(text.split()))


def plain_json(text: str) -> str:
    """Return equivalent JSON with invisible characters as JSON escapes."""
    return _BEYOND.sub(_escaped, text)


def safe_in_shells(word: str) -> bool:
    """Return True if no shell needs quotes around a word.

    Unsafe characters are quotes, white space, characters that some shell expands, such as ``~``,
    ``=`` and ``:``, and a hyphen at the beginning, which would make the word an option.
    """
    return _SAFE.fullmatch(word) is not None


def _escaped(found: re.Match[str]) -> str:
    if plain(found[0]) == found[0]:
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class StatusLine:
    """A status line on standard error with the number of pending operations.

    It is shown only on terminals that can erase a line. Call :meth:`clear` before other output.
    """

    def __init__(self, wanted: bool) -> None:
        dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        self._drawn = wanted and not dumb and sys.stderr.isatty()

    def show(self, left: int) -> None:
        """Draw the line for this number of operations."""
        if self._drawn and left:
            things = "1 operation" if left == 1 else f"{left} operations"
            click.echo(f"{_ERASED}waiting for {things}", err=True, nl=False)

    def clear(self) -> None:
        """Erase the line."""
        if self._drawn:
            click.echo(_ERASED, err=True, nl=False)

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()


class Exit(enum.IntEnum):
    """The exit statuses of the commands that call a server."""

    DONE = 0
    """An operation is done with a response, or the call succeeded."""
    FAILED = 1
    """An operation ended with an error."""
    MISUSED = 2
    """The command line or a file cannot be used, or an extra is missing."""
    CANCELLED = 3
    """An operation was cancelled."""
    RUNNING = 4
    """An operation is still running."""
    CALL_FAILED = 5
    """A call failed: the server is unavailable, or refused the call."""
    INTERRUPTED = 130
    """The command was interrupted by Ctrl-C. Shells use the same status."""
    CUT_OFF = 141
    """The reader of the output closed the pipe. Shells use the same status."""


_WORST_FIRST: Final = (Exit.CALL_FAILED, Exit.FAILED, Exit.CANCELLED, Exit.RUNNING, Exit.DONE)
_OF_STATE: Final = {
    "SUCCEEDED": Exit.DONE,
    "FAILED": Exit.FAILED,
    "CANCELLED": Exit.CANCELLED,
    "IN_PROGRESS": Exit.RUNNING,
}
_GOING_ON: Final = "lro_client.going_on"
_STARTING: Final = "lro_client.starting"
_ADDRESS: Final = "lro_client.address"
_MAX_NAMES: Final = 10


def exit_of(operation: Operation) -> Exit:
    """Return the exit status for the state of an operation."""
    return _OF_STATE[operation.state]


def worst(exits: Iterable[Exit]) -> Exit:
    """Return the worst of several exit statuses. A failed call is the worst."""
    return min(exits, key=_WORST_FIRST.index, default=Exit.DONE)


class ClientCommand(click.Command):
    """A command whose exit status is the :class:`Exit` that its function returns."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Print one sentence if a call fails. On Ctrl-C, print which operations continue.
        """
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            found: Exit = super().invoke(ctx)
        except ClientError as exc:
            print_error(sentence(exc))
            found = Exit.CALL_FAILED
        except KeyboardInterrupt:
            found = Exit.INTERRUPTED
            print_going_on("interrupted; ")
            if _STARTING in ctx.meta:
                print_error(f"interrupted; {ctx.meta[_STARTING]}")
        ctx.exit(found)


def print_error(text: str) -> None:
    """Print a message without control characters on standard error."""
    click.echo(f"lro: {plain(text)}", err=True)


def sentence(error: ClientError, named: str = "") -> str:
    """Describe an error on one line, with the operation or server concerned."""
    if isinstance(error, PollTimeout):
        last = error.last_error
        why = "" if last is None else f"; the last poll failed: {sentence(last)}"
        names = error.pending if isinstance(error, GroupTimeout) else (error.name,)
        what = plain(names[0]) if len(names) == 1 else f"{len(names)} operations"
        return f"{what} did not end in time{why}"
    text = one_line(str(error))
    if isinstance(error, CallError) and _is_unconnected(error, text):
        text += f" (asked was {click.get_current_context().meta[_ADDRESS]})"
    return f"{plain(named)}: {text}" if named else text


def _is_unconnected(error: CallError, text: str) -> bool:
    return error.http_status is None and (error.passing or bool(UNTRUSTED.search(text)))


def set_address(address: str) -> None:
    """Remember the server's address, for error messages."""
    click.get_current_context().meta[_ADDRESS] = address


def set_going_on(names: Iterable[str]) -> None:
    """Remember which operations continue if the command is interrupted now."""
    click.get_current_context().meta[_GOING_ON] = list(names)


def set_starting(text: str) -> None:
    """Remember the message to print if the command is interrupted now.

    An empty text means that there is no message.
    """
    meta = click.get_current_context().meta
    meta.pop(_STARTING, None)
    if text:
        meta[_STARTING] = text


def print_going_on(why: str = "") -> None:
    """Print which operations continue, and how to wait for them again."""
    names: list[str] = click.get_current_context().meta.get(_GOING_ON, [])
    if not names:
        return
    quoted = [shlex.quote(plain(name)) for name in names[:_MAX_NAMES]]
    more = f" (and {len(names) - len(quoted)} more)" if len(names) > len(quoted) else ""
    goes = "the operation goes" if len(names) == 1 else f"{len(names)} operations go"
    print_error(f"{why}{goes} on; look again with: lro wait {' '.join(quoted)}{more}")
