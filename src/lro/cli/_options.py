"""The options that all checks have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., None])

_OPTIONS: Final = (
    click.option(
        "--allow",
        multiple=True,
        metavar="ENTRY",
        help="Do not report METHOD:CODE, METHOD or *:CODE. May be repeated.",
    ),
    click.option(
        "--allow-file",
        multiple=True,
        metavar="FILE",
        help="A file of such entries, one a line; # begins a comment. May be repeated.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print a JSON list."),
    click.option("--strict", is_flag=True, help="Warnings count too."),
)


def check_options(command: F) -> F:
    """Add the options to the function of a command, in the order in which help shows them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
