"""The command ``lro schedules``: the periodic jobs of a service, and when they start."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import click

from lro.adapters import Schedule
from lro.cli._output import print_rows
from lro.wire import datetime_text

_HEADINGS: Final = ("name", "method", "timezone", "last_tick", "next_tick", "expression")


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def schedules(target: str, as_json: bool) -> None:
    """Show the schedules of a service from its store.

    Each row has the method that the schedule starts, its last tick (for which an operation was
    started), and its next tick, in the time zone of the schedule, with --json in UTC. If the next
    tick is long past, no process has the schedule.

    The command only reads the store.

    Exit status: 0, also if there are none; 2 if there is no such service, or if the store cannot
    be read.
    """
    from lro.cli._stores import read_shared

    found = read_shared(target).schedules()
    if as_json:
        listed = [dict(zip(_HEADINGS, _cells(one, datetime_text), strict=True)) for one in found]
        click.echo(json.dumps(listed, indent=2))
    elif not found:
        click.echo("no schedules")
    else:
        rows = [_cells(one, functools.partial(_local_text, one.timezone)) for one in found]
        print_rows([_HEADINGS, *([cell or "-" for cell in row] for row in rows)])


def _local_text(timezone: str, moment: datetime) -> str:
    try:
        return moment.astimezone(ZoneInfo(timezone)).isoformat()
    except (KeyError, ValueError, OSError, OverflowError):  # this machine does not know the zone
        return datetime_text(moment)


def _cells(schedule: Schedule, shown: Callable[[datetime], str]) -> tuple[str | None, ...]:
    last = None if schedule.last_tick is None else shown(schedule.last_tick)
    following = shown(schedule.next_tick)
    first = schedule.name, schedule.method, schedule.timezone
    return *first, last, following, schedule.expression
