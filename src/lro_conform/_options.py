"""The options of ``lro conform`` that are the same for servers and clients."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
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

T = TypeVar("T")


class UnusableInput(click.ClickException):
    """An input cannot be used, or the peer cannot be reached."""

    exit_code = 2


@attrs.frozen(kw_only=True)
class Reporting:
    """The selected checks, and the form of the report."""

    level: Level
    only: tuple[str, ...]
    listing: bool
    format: str
    output: Path | None
    strict: bool
    verbose: bool

    def chosen(self, checks: Iterable[Check]) -> list[Check]:
        """Return the selected checks.

        Raises:
            click.UsageError: ``--only`` names no check.
        """
        try:
            return select(checks, level=self.level, only=self.only)
        except ValueError as exc:
            raise click.UsageError(str(exc)) from exc

    def list(self, checks: Iterable[Check]) -> int:
        """Print the selected checks, and return the exit status.

        Raises:
            click.UsageError: ``--only`` names no check, or the format is JUnit.
        """
        if self.format == "junit":
            raise click.UsageError("--list prints human or json")
        shown = list_as_json if self.format == "json" else list_as_text
        self._print(shown(self.chosen(checks)))
        return 0

    def check_output(self) -> None:
        """Check that the output file can be written, before a run that may take minutes.

        Raises:
            UnusableInput: The file cannot be written.
        """
        if self.output is not None:
            try:
                new = not self.output.exists()
                self.output.open("a").close()
                if new:  # a failed run must not leave an empty file
                    self.output.unlink()
            except OSError as exc:
                raise UnusableInput(f"{self.output}: {exc.strerror}") from exc

    def write(self, report: ConformanceReport) -> int:
        """Print the report, or write the report to the file; return the exit status."""
        match self.format:
            case "json":
                text = as_json(report, strict=self.strict)
            case "junit":
                text = as_junit(report, strict=self.strict)
            case _:
                styled = self.output is None and sys.stdout.isatty() and not _plain()
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


def _plain() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def run_judging(judging: Coroutine[Any, Any, T]) -> T:
    """Run a judge, and return its result.

    SIGTERM ends the judge and its processes as Ctrl-C does, with the exit status 143.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(judging)
    return asyncio.run(_until_terminated(judging))


async def _until_terminated(judging: Coroutine[Any, Any, T]) -> T:
    task, loop = asyncio.ensure_future(judging), asyncio.get_running_loop()
    # Only cancel: an exception from the handler could leave a new process unrecorded.
    loop.add_signal_handler(signal.SIGTERM, task.cancel, _TERMINATED)
    try:
        return await task
    except asyncio.CancelledError as exc:
        if exc.args == (_TERMINATED,):
            raise SystemExit(_TERMINATED) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


_TERMINATED = 128 + signal.SIGTERM

_OPTIONS = (
    click.option(
        "--level",
        type=click.Choice([str(one) for one in Level]),
        default=str(Level.INFO),
        show_default=True,
        help="Run the checks of this level and of stricter levels.",
    ),
    click.option("--only", multiple=True, metavar="ID", help="Run only these checks or areas."),
    click.option("--list", "listing", is_flag=True, help="List the checks, but do not run them."),
    click.option(
        "--format", type=click.Choice(FORMATS), default="human", show_default=True, help="Output."
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write to this file.",
    ),
    click.option("--strict", is_flag=True, help="A failed SHOULD check also fails the run."),
    click.option("-v", "--verbose", is_flag=True, help="Also show checks that did not fail."),
)


F = TypeVar("F", bound=Callable[..., Any])


def report_options(function: F) -> F:
    """Add the options of :class:`Reporting`, and pass them as the argument ``reporting``."""

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        own = {one.name: given.pop(one.name) for one in attrs.fields(Reporting)}
        own["level"] = Level(own["level"])
        return function(*args, reporting=Reporting(**own), **given)

    for option in reversed(_OPTIONS):
        called = option(called)
    return cast(F, called)
