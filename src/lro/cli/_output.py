"""The output of a command: findings, and the exit status."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import indent, wrap
from typing import TYPE_CHECKING, Final

import attrs
import click
from click.exceptions import Exit

from lro.wire import plain

if TYPE_CHECKING:
    from lro.lint import Finding

_COLOURS: Final = {"error": "red", "warning": "yellow"}
"""For each severity, the worst first, the colour in which a finding's code is printed."""

_HEADINGS: Final = ("where", "method", "code", "what")
_MAX_PADDED: Final = 120
"""The largest width of a column; a longer text makes only its own line longer."""

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as in shells."""
BROKEN_PIPE: Final = 141
"""The exit status if the reader of the output has closed the pipe, as in shells."""


class Unusable(click.ClickException):
    """The input cannot be used, or does not exist."""

    exit_code = 2


@contextlib.contextmanager
def exit_statuses() -> Iterator[None]:
    """Flush the output, and turn interrupts and errors of the system into exit statuses.

    Raises:
        Exit: The exit status is :data:`INTERRUPTED` or :data:`BROKEN_PIPE`.
        Unusable: A file or stream cannot be read or written.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _discard_output()
        raise Exit(BROKEN_PIPE) from None
    except OSError as exc:
        _discard_output()
        about = "" if exc.filename is None else f"{exc.filename}: "
        raise Unusable(f"input or output failed: {about}{exc.strerror or exc}") from exc


def _discard_output() -> None:
    # Otherwise the interpreter flushes again at exit, and prints an error.
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def report(findings: Sequence[Finding], *, methods: int, as_json: bool, strict: bool) -> int:
    """Print the findings of a check that examined this number of methods.

    Returns:
        1 if there is an error, or with ``strict`` any finding; otherwise 0.
    """
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in findings], indent=2))
    else:
        if sys.stdout.isatty():
            _print_blocks(findings)
        elif findings:
            _print_lines(findings)
        click.echo(_summary(findings, methods))
    return int(any(strict or one.severity == "error" for one in findings))


def _print_blocks(findings: Sequence[Finding]) -> None:
    """Print findings on a terminal, with only their messages wrapped, between words."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for one in findings:
        heading = Text(f"  {plain(one.method)} ")
        heading.append(one.code, _COLOURS[str(one.severity)])
        if place := _where(one):
            console.print(Text(plain(place)), soft_wrap=True)
        console.print(heading, soft_wrap=True)
        lines = wrap(
            plain(one.message),
            max(console.width - 4, 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
        console.print(Text(indent("\n".join(lines), "    ")), soft_wrap=True)


def _print_lines(findings: Sequence[Finding]) -> None:
    """Print findings to a pipe or a log, each on one line, in columns."""
    rows = [(_where(one), one.method, str(one.code), one.message) for one in findings]
    print_rows([_HEADINGS, *rows])


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print each row on one line, in columns; the last column is not padded."""
    shown = [[plain(text) for text in row] for row in rows]
    widths = [min(max(map(len, column)), _MAX_PADDED) for column in zip(*shown, strict=True)]
    for *columns, last in shown:
        padded = [text.ljust(width) for text, width in zip(columns, widths, strict=False)]
        click.echo(" ".join([*padded, last]))


def _where(finding: Finding) -> str:
    """Return ``file:line:column``, a form that editors and CI read, without the unknown parts."""
    known = (finding.file, finding.line, finding.column)
    return ":".join(str(part) for part in known if part)


def _summary(findings: Sequence[Finding], methods: int) -> str:
    counts = Counter(str(one.severity) for one in findings)
    shown = [_counted(counts[kind], kind) for kind in _COLOURS if counts[kind]]
    return f"{', '.join(shown) or 'no findings'} in {_counted(methods, 'long-running method')}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
