"""How a command ends: its exit status, and one sentence for every way in which it can fail."""

from __future__ import annotations

import contextlib
import enum
import io
import os
import shlex
import sys
from collections.abc import Iterable
from typing import Any as Anything
from typing import Final

import click

from lro import Operation
from lro_client._errors import CallError, ClientError, GroupTimeout, PollTimeout
from lro_client.progress._fields import one_line


class Exit(enum.IntEnum):
    """The exit statuses of the commands that ask a server."""

    DONE = 0
    """Done with a response, or the call did what it was asked to."""
    FAILED = 1
    """An operation ended with an error."""
    MISUSED = 2
    """The command line or a file cannot be used, or an extra is missing."""
    CANCELLED = 3
    """An operation was cancelled."""
    RUNNING = 4
    """An operation is still running."""
    CALL_FAILED = 5
    """A call failed: the server is away, or refused."""
    INTERRUPTED = 130
    """Ctrl-C, as shells have it."""
    CUT_OFF = 141
    """Whoever read the output has stopped reading, as shells have it."""


_WORST_FIRST: Final = (Exit.CALL_FAILED, Exit.FAILED, Exit.CANCELLED, Exit.RUNNING, Exit.DONE)
_OF_STATE: Final = {
    "SUCCEEDED": Exit.DONE,
    "FAILED": Exit.FAILED,
    "CANCELLED": Exit.CANCELLED,
    "IN_PROGRESS": Exit.RUNNING,
}
_GOING_ON: Final = "lro_client.going_on"
_ADDRESS: Final = "lro_client.address"
_NAMED_AT_MOST: Final = 10


def exit_of(operation: Operation) -> Exit:
    """What the state of an operation means for the exit status."""
    return _OF_STATE[operation.state]


def worst(exits: Iterable[Exit]) -> Exit:
    """The status of several operations: that of the worst, a failed call first."""
    return min(exits, key=_WORST_FIRST.index, default=Exit.DONE)


class ClientCommand(click.Command):
    """A command that ends with the :class:`Exit` which its function returns."""

    def invoke(self, ctx: click.Context) -> Anything:
        """Run it; no error of a call, and no end of a pipe, becomes a traceback."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            found: Exit = super().invoke(ctx)
            sys.stdout.flush()
        except ClientError as exc:
            tell(sentence(exc))
            found = Exit.CALL_FAILED
        except KeyboardInterrupt:
            found = Exit.INTERRUPTED
            tell_going_on("interrupted; ")
        except BrokenPipeError:
            found = Exit.CUT_OFF
            _write_nowhere()
        ctx.exit(found)


def tell(text: str) -> None:
    """A message for people, on standard error."""
    click.echo(f"lro: {text}", err=True)


def sentence(error: ClientError, named: str = "") -> str:
    """An error on one line, with the operation or the server that it is about."""
    if isinstance(error, PollTimeout):
        last = error.last_error
        why = "" if last is None else f"; the last poll failed: {sentence(last)}"
        names = error.pending if isinstance(error, GroupTimeout) else (error.name,)
        what = one_line(names[0]) if len(names) == 1 else f"{len(names)} operations"
        return f"{what} did not end in time{why}"
    told = one_line(str(error))
    if isinstance(error, CallError) and error.passing and error.http_status is None:
        context = click.get_current_context()
        told += f" (asked was {context.meta[_ADDRESS]})"
    return f"{one_line(named)}: {told}" if named else told


def set_address(address: str) -> None:
    """Remember which server is asked, for messages."""
    click.get_current_context().meta[_ADDRESS] = address


def set_going_on(names: Iterable[str]) -> None:
    """Remember which operations go on if the command is interrupted now."""
    click.get_current_context().meta[_GOING_ON] = list(names)


def tell_going_on(why: str = "") -> None:
    """Say that the operations which were waited for go on, and how to look at them again."""
    names: list[str] = click.get_current_context().meta.get(_GOING_ON, [])
    if not names:
        return
    told = [shlex.quote(one_line(name)) for name in names[:_NAMED_AT_MOST]]
    more = f" (and {len(names) - len(told)} more)" if len(names) > len(told) else ""
    goes = "the operation goes" if len(names) == 1 else f"{len(names)} operations go"
    tell(f"{why}{goes} on; look again with: lro wait {' '.join(told)}{more}")


def _write_nowhere() -> None:
    # What is still to be written at exit would fail again, with a message of the interpreter.
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
