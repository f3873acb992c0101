"""The command ``lro schedules``: which periodic jobs a service has, and when they are started."""

from __future__ import annotations

import json
from typing import Final

import click

from lro._messages.times import datetime_text
from lro._schedules.schedule import Schedule
from lro.cli._output import print_rows

_HEADINGS: Final = ("name", "method", "timezone", "last_tick", "next_tick", "expression")


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def schedules(target: str, as_json: bool) -> None:
    """Show the schedules of a service, as its store knows them.

    Of each: the method that it starts, and in UTC its last tick, for which an operation was
    started, and its next one. A next tick that is long past: no process has the schedule.

    This only reads the store, and starts nothing.

    Exit status: 0, also if there are none; 2 if there is no such service, or if the store cannot
    be read.
    """
    from lro.cli._stores import read_shared

    found = read_shared(target).schedules()
    if as_json:
        click.echo(
            json.dumps([dict(zip(_HEADINGS, _cells(one), strict=True)) for one in found], indent=2)
        )
    elif not found:
        click.echo("no schedules")
    else:
        print_rows([_HEADINGS, *([cell or "-" for cell in _cells(one)] for one in found)])


def _cells(schedule: Schedule) -> tuple[str | None, ...]:
    last = None if schedule.last_tick is None else datetime_text(schedule.last_tick)
    following = datetime_text(schedule.next_tick)
    first = schedule.name, schedule.method, schedule.timezone
    return *first, last, following, schedule.expression
