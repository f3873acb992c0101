"""The commands ``lro workers``, ``pause`` and ``resume``: the processes that run work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import click

from lro.adapters import WaitingWork, Worker, WorkerState
from lro.cli._output import print_rows
from lro.wire import datetime_text, plain

_HEADINGS: Final = ("host", "pid", "state", "runs", "version", "seen", "methods")
_WRAPPED: Final = ("host", "methods")
_UNITS: Final = ((120, 1, "s"), (7200, 60, "m"), (float("inf"), 3600, "h"))
"""For each unit of time: the span below which it is used, its length in seconds, and its name."""
_COLOURS: Final = {
    WorkerState.LOST: "red",
    WorkerState.OVERDUE: "yellow",
    WorkerState.SILENT: "yellow",
    WorkerState.WORKING: "green",
}


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.option(
    "--all", "everyone", is_flag=True, help="Show processes too that run no work, or are lost."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def workers(target: str, everyone: bool, as_json: bool) -> None:
    """Show the processes that run the work of a service, from its store.

    Each row has the host, the number of running operations and the largest number, the release of
    lro, and the time since the process was last seen. A process with work renews its lease three
    times within it, an idle process once a minute. A process that was silent for a minute and two
    leases is shown only with --all.

    Standard error has the number of waiting operations of each method and the time since the first
    was due, the number of those that are due later, methods that no live worker declares, and
    paused methods.

    The command only reads the store.

    Exit status: 0, also if there are none; 2 if there is no such service, or if the store cannot
    be read.
    """
    from lro.cli._stores import read_shared

    service = read_shared(target)
    for method, paused_at in service.paused().items():
        span = _short_span((service.store.now() - paused_at).total_seconds())
        click.echo(f"{plain(method)}: paused, for {span}", err=True)
    found, now = service.workers(all=everyone), service.store.now()
    nobodys = {work.method for work in service.stranded()}
    remote = service.edges.runtime.executor.redelivery is not None
    for work in service.store.waiting():
        why = "no live worker declares it; " if work.method in nobodys else ""
        click.echo(f"{plain(work.method)}: {why}{_waiting_text(work, now, remote)}", err=True)
    if as_json:
        click.echo(json.dumps([_as_json(one, now) for one in found], indent=2))
    elif not found:
        click.echo("no workers")
    elif sys.stdout.isatty():
        _print_table(found, now)
    else:
        _print_lines(found, now)


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.argument("method", metavar="METHOD")
def pause(target: str, method: str) -> None:
    """Stop all processes from beginning work of a method, until lro resume.

    METHOD is its full name, such as acme.v1.Images.Resize. Starts are still accepted, and wait.
    Running work continues. The pause is in the store, and survives restarts.

    Exit status: 0, also if it is paused already; 2 if there is no such service or method, or if
    the store cannot be used.
    """
    from lro.cli._stores import read_shared

    service = read_shared(target)
    service.pause(method)
    names = {method, *(old for old, new in service.edges.renamed.items() if new == method)}
    count = sum(work.count for work in service.store.waiting() if work.method in names)
    click.echo(f"{plain(method)}: paused; operations that wait: {count}")


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.argument("method", metavar="METHOD")
def resume(target: str, method: str) -> None:
    """Let processes begin work of a paused method again.

    METHOD is its full name, such as acme.v1.Images.Resize.

    Exit status: 0, also if it is not paused; 2 if there is no such service or method, or if the
    store cannot be used.
    """
    from lro.cli._stores import read_shared

    service = read_shared(target)
    was_paused = service.edges.renamed.get(method, method) in service.paused()
    service.resume(method)
    click.echo(f"{plain(method)}: {'resumed' if was_paused else 'was not paused'}")


def _waiting_text(work: WaitingWork, now: datetime, remote: bool) -> str:
    """Tell how many operations wait, and how many of a method are due later.

    With a ``remote`` executor, the later ones include operations that were sent to the broker.
    """
    span, later = (work.due_time - now).total_seconds(), work.count - work.due
    parts = []
    if work.due:
        parts.append(f"{work.due} {'waits' if work.due == 1 else 'wait'}, for {_short_span(-span)}")
    if later:
        verb = "is" if later == 1 else "are"
        text = f"{later} {verb} {'due later or sent to the broker' if remote else 'due later'}"
        parts.append(text if work.due or span <= 0 else f"{text}, the first in {_short_span(span)}")
    return "; ".join(parts)


def _as_json(worker: Worker, now: datetime) -> dict[str, Any]:
    return {
        "owner": worker.owner,
        "host": worker.host,
        "pid": worker.pid,
        "state": str(WorkerState.of(worker, now)),
        "running": worker.running,
        "capacity": worker.capacity,
        "methods": [*worker.methods],
        "version": worker.version,
        "start_time": datetime_text(worker.start_time),
        "seen_time": datetime_text(worker.seen_time),
        "alive_until": datetime_text(worker.alive_until),
        "lost": worker.lost,
    }


def _print_table(found: Sequence[Worker], now: datetime) -> None:
    """Print workers on a terminal, with only the host and the methods wrapped."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in _HEADINGS:
        table.add_column(heading, no_wrap=heading not in _WRAPPED, overflow="fold")
    for worker in found:
        state = WorkerState.of(worker, now)
        cells = dict(zip(_HEADINGS, _cells(worker, now, "\n"), strict=True))
        shown = {name: Text(text) for name, text in cells.items()}
        shown["state"].stylize(_COLOURS.get(state, ""))
        table.add_row(*shown.values())
    Console(highlight=False).print(table)


def _print_lines(found: Sequence[Worker], now: datetime) -> None:
    """Print workers to a pipe or a log, each on one line, in columns whose texts have no spaces."""
    print_rows([_HEADINGS, *(_cells(one, now, ",") for one in found)])


def _cells(worker: Worker, now: datetime, between: str) -> tuple[str, ...]:
    """Return the texts of a row; ``between`` separates the methods."""
    methods = worker.methods
    if between == "\n":  # a table: without packages, which take the most room
        methods = [".".join(name.split(".")[-2:]) for name in methods]
    runs = str(worker.running)
    if worker.capacity is not None:
        runs += f"/{worker.capacity}"
    return (
        plain(worker.host) or "-",
        str(worker.pid),
        str(WorkerState.of(worker, now)),
        runs,
        plain(worker.version) or "-",
        _short_span((now - worker.seen_time).total_seconds()),
        between.join(map(plain, methods)) or "-",
    )


def _short_span(seconds: float) -> str:
    """Format a time span in one unit, rounded down: ``119s``, ``119m``, ``23h``."""
    unit, name = next((unit, name) for end, unit, name in _UNITS if seconds < end)
    return f"{max(0, int(seconds / unit))}{name}"
