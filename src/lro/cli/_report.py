"""Findings as text for people, or as JSON for programs; and the exit status."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from textwrap import indent, wrap
from typing import Final

import attrs
import click
from rich.console import Console
from rich.text import Text

from lro.cli._plain import plain
from lro.lint import Finding, Severity

_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_HEADINGS: Final = ("where", "method", "code", "what")


def report(findings: Sequence[Finding], *, methods: int, as_json: bool, strict: bool) -> int:
    """Print the findings among so many methods.

    Returns:
        1 if there is an error, or anything at all under ``strict``; else 0.
    """
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in findings], indent=2))
    else:
        if sys.stdout.isatty():
            _print_blocks(findings)
        elif findings:
            _print_lines(findings)
        click.echo(_summary(findings, methods))
    return int(any(strict or one.severity is Severity.ERROR for one in findings))


def _print_blocks(findings: Sequence[Finding]) -> None:
    """For a terminal: only sentences are broken, and that between words."""
    console = Console(highlight=False)
    for one in findings:
        heading = Text(f"  {plain(one.method)} ")
        heading.append(one.code, _COLOURS[one.severity])
        if place := _where(one):
            console.print(Text(plain(place)), soft_wrap=True)
        console.print(heading, soft_wrap=True)
        told = wrap(
            plain(one.message),
            max(console.width - 4, 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
        console.print(Text(indent("\n".join(told), "    ")), soft_wrap=True)


def _print_lines(findings: Sequence[Finding]) -> None:
    """For pipes and logs: one line each, in columns, with nothing behind the last."""
    rows = [_HEADINGS, *((_where(one), one.method, one.code, one.message) for one in findings)]
    shown = [[plain(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for *columns, what in shown:
        padded = [text.ljust(width) for text, width in zip(columns, widths, strict=False)]
        click.echo(" ".join([*padded, what]))


def _where(finding: Finding) -> str:
    """``file:line:column``, as far as it is known: editors and CI find the place by it."""
    known = (finding.file, finding.line, finding.column)
    return ":".join(str(part) for part in known if part)


def _summary(findings: Sequence[Finding], methods: int) -> str:
    counts = Counter(one.severity for one in findings)
    told = [_counted(counts[one], str(one)) for one in Severity if counts[one]]
    return f"{', '.join(told) or 'no findings'} in {_counted(methods, 'long-running method')}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
