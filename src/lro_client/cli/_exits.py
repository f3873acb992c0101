"""How a command ends: its exit status, and one sentence for each way in which it can fail."""

from __future__ import annotations

import enum
import io
import shlex
import sys
from collections.abc import Iterable
from typing import Any, Final

import click

from lro import Operation
from lro_client._errors import CallError, ClientError, GroupTimeout, PollTimeout
from lro_client.cli._terminal import one_line, plain


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
    """The reader of the output has stopped reading, as shells have it."""


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
    """The exit status that the state of an operation stands for."""
    return _OF_STATE[operation.state]


def worst(exits: Iterable[Exit]) -> Exit:
    """The status of several operations: that of the worst, a failed call first."""
    return min(exits, key=_WORST_FIRST.index, default=Exit.DONE)


class ClientCommand(click.Command):
    """A command that ends with the :class:`Exit` which its function returns."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command: an error of a call becomes one sentence, Ctrl-C says what goes on."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            found: Exit = super().invoke(ctx)
        except ClientError as exc:
            tell(sentence(exc))
            found = Exit.CALL_FAILED
        except KeyboardInterrupt:
            found = Exit.INTERRUPTED
            tell_going_on("interrupted; ")
            if _STARTING in ctx.meta:
                tell(f"interrupted; {ctx.meta[_STARTING]}")
        ctx.exit(found)


def tell(text: str) -> None:
    """Print a message on standard error, in which nothing controls a terminal."""
    click.echo(f"lro: {plain(text)}", err=True)


def sentence(error: ClientError, named: str = "") -> str:
    """Describe an error on one line, with the operation or the server that it is about."""
    if isinstance(error, PollTimeout):
        last = error.last_error
        why = "" if last is None else f"; the last poll failed: {sentence(last)}"
        names = error.pending if isinstance(error, GroupTimeout) else (error.name,)
        what = plain(names[0]) if len(names) == 1 else f"{len(names)} operations"
        return f"{what} did not end in time{why}"
    told = one_line(str(error))
    if isinstance(error, CallError) and error.passing and error.http_status is None:
        context = click.get_current_context()
        told += f" (asked was {context.meta[_ADDRESS]})"
    return f"{plain(named)}: {told}" if named else told


def set_address(address: str) -> None:
    """Remember which server is asked, for messages."""
    click.get_current_context().meta[_ADDRESS] = address


def set_going_on(names: Iterable[str]) -> None:
    """Remember which operations go on if the command is interrupted now."""
    click.get_current_context().meta[_GOING_ON] = list(names)


def set_starting(text: str) -> None:
    """Remember what to print if the command is interrupted now; empty for nothing."""
    meta = click.get_current_context().meta
    meta.pop(_STARTING, None)
    if text:
        meta[_STARTING] = text


def tell_going_on(why: str = "") -> None:
    """Print that the operations go on that the command waited for, and how to wait again."""
    names: list[str] = click.get_current_context().meta.get(_GOING_ON, [])
    if not names:
        return
    told = [shlex.quote(plain(name)) for name in names[:_MAX_NAMES]]
    more = f" (and {len(names) - len(told)} more)" if len(names) > len(told) else ""
    goes = "the operation goes" if len(names) == 1 else f"{len(names)} operations go"
    tell(f"{why}{goes} on; look again with: lro wait {' '.join(told)}{more}")
