"""The command and its parts: a command is a module of its own, and an entry of ``COMMANDS``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from lro._errors import LroError
from lro.cli._breaking import breaking
from lro.cli._lint import lint
from lro.cli._proto import proto

COMMANDS: Final[Sequence[click.Command]] = (lint, breaking, proto)


class _App(click.Group):
    """Says every error of ours in one line, as a misuse."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LroError as exc:
            raise Unusable(str(exc)) from exc


class Unusable(click.ClickException):
    """What was given cannot be used, or is not there."""

    exit_code = 2


@click.group(cls=_App, context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Check the long-running methods of an API, or print those of a Python service.

    Exit status: 0 if all is well, 1 if there are errors (with --strict also warnings), 2 if the
    input cannot be used.
    """


for _command in COMMANDS:
    app.add_command(_command)


def run(arguments: Sequence[str] | None) -> int:
    """Run the command and return its exit status."""
    given = None if arguments is None else list(arguments)
    try:
        app.main(given, prog_name="lro")
    except SystemExit as exc:  # click ends so in every case
        return int(exc.code or 0)
