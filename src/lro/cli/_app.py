"""The command and its parts: a command is a module of its own, and an entry of the lists here."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import click

from lro._base.errors import LroError
from lro.cli._breaking import breaking
from lro.cli._ending import INTERRUPTED, Unusable, ending
from lro.cli._lint import lint
from lro.cli._plain import plain
from lro.cli._proto import proto

COMMANDS: Final[Sequence[click.Command]] = (lint, breaking, proto)

LATER: Final[Mapping[str, tuple[str, str]]] = {
    "list": ("lro_client.cli._commands:list_operations", "List operations, newest first."),
    "get": ("lro_client.cli._commands:get", "Print operations as they are now."),
    "wait": (
        "lro_client.cli._commands:wait",
        "Wait until operations are done, and print each when it is.",
    ),
    "watch": (
        "lro_client.cli._commands:watch",
        "Watch operations until all are done: a live table, or in a pipe a line for each change.",
    ),
    "cancel": ("lro_client.cli._commands:cancel", "Ask for operations to be cancelled."),
    "delete": (
        "lro_client.cli._commands:delete",
        "Remove the records of operations; does not stop their work.",
    ),
    "start": ("lro_client.cli._commands:start", "Start an operation, and print it."),
    "completion": (
        "lro_client.cli._commands:completion",
        "Print the script by which a shell completes commands, options and names.",
    ),
}
"""Commands that are loaded when they are called, since they load the client: where, and the help.

They belong to the client, which this package knows nothing of.
"""


class _App(click.Group):
    """Says every error of ours in one line, as a misuse, and loads commands when it must."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with ending():  # the help and the version are printed here
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> object:
        with ending():
            try:
                return super().invoke(ctx)
            except LroError as exc:
                raise Unusable(str(exc)) from exc

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *LATER]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        module, _, name = LATER[cmd_name][0].partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        here = [(one.name or "", one.get_short_help_str(width)) for one in COMMANDS]
        with formatter.section("Check an API"):
            formatter.write_dl(here)
        with formatter.section("Ask a server"):
            formatter.write_dl([(name, text) for name, (_, text) in LATER.items()])


@click.group(cls=_App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lro", prog_name="lro", message="%(prog)s %(version)s")
def app() -> None:
    """Check the long-running methods of an API, and ask a server about its operations.

    Exit status: 0 if all is well, 1 if there are errors (of a check with --strict also warnings),
    2 if the input cannot be used; further ones are told in the help of each command.
    """


for _command in COMMANDS:
    app.add_command(_command)


def _shown(error: click.ClickException, *, helps: bool) -> str:
    written = io.StringIO()
    error.show(written)
    text = written.getvalue()
    if not helps:  # the message is one line; that of no arguments at all is the help
        text = text.replace(click.unstyle(error.message), plain(error.message))
    return "\n".join(map(plain, text.split("\n")))


def run(arguments: Sequence[str] | None) -> int:
    """Run the command and return its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        found: object = app.main(given, prog_name="lro", standalone_mode=False)
    except SystemExit as exc:  # of completion
        return int(exc.code or 0)
    except click.Abort:  # Ctrl-C between two commands
        return INTERRUPTED
    except click.ClickException as exc:
        with contextlib.suppress(OSError):  # nobody can be told
            click.echo(_shown(exc, helps=not given), err=True, nl=False)
        return exc.exit_code
    return found if isinstance(found, int) else 0
