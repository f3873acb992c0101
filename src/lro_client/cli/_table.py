"""Operations as a table: that of a list, and the live one that is drawn while they run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Final

import attrs
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lro import Operation
from lro_client.cli._connection import Link
from lro_client.cli._printing import StateLine, state_line
from lro_client.cli._terminal import plain
from lro_client.progress import Estimate, create_time_of
from lro_client.progress._bars import span_text

_COLOURS: Final = {
    "IN_PROGRESS": "cyan",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
}
_BAR_WIDTH: Final = 20
_MESSAGE_LENGTH: Final = 200
_FRAMES_A_SECOND: Final = 4


def listed(operations: Iterable[Operation], link: Link) -> None:
    """Print operations as a table."""
    table = _table("name", "state", "done", "age", "message")
    for operation in operations:
        line = state_line(operation, link)
        table.add_row(
            Text(line.name),
            _state(line.state),
            Text(line.percent),
            Text(_shown_span(_age(operation, link))),
            _message(line),
        )
    Console().print(table)


@attrs.define
class _Row:
    name: str
    began: float
    estimate: Estimate
    line: StateLine | None = None
    ended: float | None = None
    lost: bool = False


class LiveTable:
    """The table of operations that are being watched; drawn while it is entered."""

    def __init__(self, names: Iterable[str], link: Link) -> None:
        self._link = link
        now = time.monotonic()
        self._rows = {name: _Row(name, now, Estimate()) for name in names}
        self._live: AbstractContextManager[Live] = Live(
            get_renderable=self._drawn, refresh_per_second=_FRAMES_A_SECOND
        )

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, operation: Operation) -> None:
        """Draw this state of one of the operations from now on."""
        now = time.monotonic()
        # An operation that the server gives another name than was asked for has its own row.
        row = self._rows.setdefault(operation.name, _Row(operation.name, now, Estimate()))
        if row.line is None:
            age = _age(operation, self._link)
            if age is not None:
                row.began = now - age
                row.estimate.add(0.0, row.began)
        line = state_line(operation, self._link)
        row.estimate.add(line.progress.fraction)
        row.line = line
        if operation.done and row.ended is None:
            row.ended = now

    def lose(self, name: str) -> None:
        """Draw from now on that the state of this operation is not known any more."""
        self._rows[name].lost = True

    def _drawn(self) -> Table:
        table = _table("name", "state", "", "done", "age", "left", "message")
        now = time.monotonic()
        for row in self._rows.values():
            line = row.line
            if line is None or row.lost:
                table.add_row(Text(plain(row.name)), Text("not known" if row.lost else "..."))
                continue
            left = None if row.ended is not None else row.estimate.seconds_left
            table.add_row(
                Text(line.name),
                _state(line.state),
                _bar(line),
                Text(line.percent),
                Text(_shown_span((row.ended or now) - row.began)),
                Text(_shown_span(left)),
                _message(line),
            )
        return table


def can_redraw() -> bool:
    """Whether the terminal can draw a table over the one before."""
    return not Console().is_dumb_terminal


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        # Names are copied from here, so they stay whole as long as anything else can give way.
        shown = Text(heading, no_wrap=True, overflow="ellipsis")
        table.add_column(shown, no_wrap=heading not in ("", "message"), overflow="fold")
    return table


def _state(state: str) -> Text:
    return Text(state, _COLOURS[state])


def _bar(line: StateLine) -> ProgressBar | Text:
    fraction = line.progress.fraction
    if fraction is None:
        return Text("")
    return ProgressBar(total=1.0, completed=fraction, width=_BAR_WIDTH)


def _message(line: StateLine) -> Text:
    told = line.message
    short = told if len(told) <= _MESSAGE_LENGTH else f"{told[: _MESSAGE_LENGTH - 1]}…"
    return Text(short, no_wrap=True, overflow="ellipsis")


def _age(operation: Operation, link: Link) -> float | None:
    """The seconds since it began by this machine's clock; None if the metadata has no time."""
    began = create_time_of(operation.metadata, link.types)
    return None if began is None else max((datetime.now(UTC) - began).total_seconds(), 0.0)


def _shown_span(seconds: float | None) -> str:
    return "" if seconds is None else span_text(seconds)
