"""Findings as a table for people, or as JSON for programs; and the exit status."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lro.cli._plain import plain
from lro.lint import Finding, Severity

_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_PIPE_WIDTH: Final = 1000
"""Columns where no terminal sets a width: logs and pipes get one line a finding."""


def report(findings: Sequence[Finding], *, methods: int, as_json: bool, strict: bool) -> int:
    """Print the findings among so many methods.

    Returns:
        1 if there is an error, or anything at all under ``strict``; else 0.
    """
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in findings], indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        if findings:
            console.print(_table(findings))
        console.print(_summary(findings, methods), highlight=False)
    return int(any(strict or one.severity is Severity.ERROR for one in findings))


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("where", "method", "code", "what"):
        table.add_column(heading, overflow="fold")
    for one in findings:
        code = Text(one.code, _COLOURS[one.severity])
        told = [Text(plain(text)) for text in (_where(one), one.method, one.message)]
        table.add_row(*told[:2], code, told[2])
    return table


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
