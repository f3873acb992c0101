"""The options that ``lro conform`` has for servers and for clients alike."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import click

from lro_conform._checks import Check, ConformanceReport, Level
from lro_conform._report import (
    FORMATS,
    as_json,
    as_junit,
    as_text,
    list_as_json,
    list_as_text,
    select,
)


class UnusableInput(click.ClickException):
    """What was given cannot be used, or the peer cannot be reached."""

    exit_code = 2


@attrs.frozen(kw_only=True)
class Reporting:
    """Which checks are wanted, and how they are reported."""

    level: Level
    only: tuple[str, ...]
    listing: bool
    format: str
    output: Path | None
    strict: bool
    verbose: bool

    def chosen(self, checks: Iterable[Check]) -> list[Check]:
        """The checks that are wanted.

        Raises:
            click.UsageError: ``--only`` names no check.
        """
        try:
            return select(checks, level=self.level, only=self.only)
        except ValueError as exc:
            raise click.UsageError(str(exc)) from exc

    def list(self, checks: Iterable[Check]) -> int:
        """Print the wanted checks, and return the exit status.

        Raises:
            click.UsageError: ``--only`` names no check, or the format is JUnit's.
        """
        if self.format == "junit":
            raise click.UsageError("--list prints human or json")
        shown = list_as_json if self.format == "json" else list_as_text
        self._print(shown(self.chosen(checks)))
        return 0

    def write(self, report: ConformanceReport) -> int:
        """Print the report or write it to the file, and return the exit status."""
        match self.format:
            case "json":
                text = as_json(report, strict=self.strict)
            case "junit":
                text = as_junit(report, strict=self.strict)
            case _:
                styled = self.output is None and sys.stdout.isatty()
                text = as_text(report, strict=self.strict, verbose=self.verbose, styled=styled)
        self._print(text)
        return report.exit_status(strict=self.strict)

    def _print(self, text: str) -> None:
        if self.output is None:
            click.echo(text, nl=False)
            return
        try:
            self.output.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise UnusableInput(f"{self.output}: {exc.strerror}") from exc


_OPTIONS = (
    click.option(
        "--level",
        type=click.Choice([str(one) for one in Level]),
        default=str(Level.INFO),
        show_default=True,
        help="Judge by checks down to this level.",
    ),
    click.option("--only", multiple=True, metavar="ID", help="Judge by these alone; or an area."),
    click.option("--list", "listing", is_flag=True, help="List the checks, and judge nothing."),
    click.option(
        "--format", type=click.Choice(FORMATS), default="human", show_default=True, help="Output."
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write to this file.",
    ),
    click.option("--strict", is_flag=True, help="Let failed shoulds count like failed musts."),
    click.option("-v", "--verbose", is_flag=True, help="Show also what did not fail."),
)


F = TypeVar("F", bound=Callable[..., Any])


def report_options(function: F) -> F:
    """Give a command the options of :class:`Reporting`, as its argument ``reporting``."""

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        own = {one.name: given.pop(one.name) for one in attrs.fields(Reporting)}
        own["level"] = Level(own["level"])
        return function(*args, reporting=Reporting(**own), **given)

    for option in reversed(_OPTIONS):
        called = option(called)
    return cast(F, called)
