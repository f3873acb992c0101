"""Output of the client's commands: lines, JSON and tables of operations."""

from __future__ import annotations

import base64
import functools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import chain
from typing import Final

import attrs
import click
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lro import AnyMessage, Code, LroError, Operation, OperationDescription, Status, TypeRegistry
from lro.types import Json
from lro.wire import operation_to_json, plain
from lro_client._errors import CallError
from lro_client.cli._connection import Link
from lro_client.cli._terminal import one_line, plain_json
from lro_client.progress import Estimate, Progress, create_time_of, progress_of
from lro_client.progress._bars import at_the_end, percent_text, span_text

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print operations as JSON, one on each line."
)


def full_operations(names: Sequence[str], link: Link) -> Mapping[str, Operation]:
    """Read operations in the FULL view, by name. Return none if the server lacks that view."""
    try:
        found = link.client.batch_get(names, view="FULL").operations
    except (CallError, LroError):  # the caller may still be allowed to use Get
        return {}
    return {one.name: one for one in found}


def full_list(
    parent: str, wanted: str, page_size: int, timeout: float | None, link: Link
) -> Iterator[Operation]:
    """List operations in the FULL view, or in the BASIC view if the server has no other."""
    listed = functools.partial(link.client.list, parent, wanted, page_size=page_size)
    pages = listed(view="FULL").pages(timeout)
    try:
        first = next(pages)
    except CallError as exc:
        if exc.code not in (Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED):
            raise
        pages = listed().pages(timeout)
        first = next(pages)
    for page in chain((first,), pages):
        yield from page.operations


def print_operation(operation: Operation, link: Link, *, as_json: bool) -> None:
    """Print an operation in full to a terminal, and on one line to a pipe.

    An operation in the FULL view is printed in full to a pipe too.
    """
    if as_json:
        print_json(operation, link)
        return
    description = operation.description
    if not description.state and not sys.stdout.isatty():
        print_line(operation, link)
        return
    line = state_line(operation, link)
    shown = as_wire(operation, link.types)
    at = "" if operation.done else f"{line.percent} {line.message}".strip()
    rows = [("name", line.name), ("state", line.state), ("progress", at)]
    if description.state:
        rows += _described_rows(description)
    for heading, text in rows:
        if text:
            click.echo(f"{heading:<9} {text}")
    for member in ("metadata", "response", "error"):
        if member in shown:
            text = json_text(shown[member], indent=2).replace("\n", "\n" + " " * 10)
            click.echo(f"{member:<9} {text}")


def _described_rows(description: OperationDescription) -> list[tuple[str, str]]:
    began, priority = description.create_time, description.priority
    worker = f"process {description.worker_pid} on {plain(description.worker_host)}"
    failures = [
        f"{one.attempt} at {_moment(one.time)}: {one_line(f'{one.error}: {one.text}')}"
        for one in description.failures
    ]
    return [
        ("method", plain(description.method)),
        ("age", "" if began is None else _shown_span(_seconds_since(began))),
        ("due", _moment(description.due_time)),
        ("begin by", _moment(description.begin_before)),
        ("priority", str(priority or "")),
        ("attempt", str(description.attempt or "")),
        ("failed", str(description.failed_attempts or "")),
        ("lost", str(description.lost_attempts or "")),
        ("worker", worker if description.worker_pid else ""),
        ("origin", plain(description.origin)),
        ("rerun", f"started again as {plain(description.rerun)}" if description.rerun else ""),
        ("cancel", "requested" if description.cancel_requested else ""),
        *(("failure", text) for text in failures),
    ]


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(" ", "seconds")


def print_line(operation: Operation, link: Link) -> None:
    """Print an operation on one line: its progress, response or error."""
    if operation.done:
        print_end(operation, link, as_json=False)
    else:
        click.echo(state_line(operation, link).text)


def print_end(operation: Operation, link: Link, *, as_json: bool) -> None:
    """Print an ended operation, with its response or error, on one line."""
    if as_json:
        print_json(operation, link)
        return
    result = ""
    if isinstance(operation.result, AnyMessage):
        result = json_text(as_wire(operation, link.types)["response"])
    elif operation.error is not None:
        result = error_text(operation.error)
    click.echo("\t".join(filter(None, (plain(operation.name), operation.state, result))))


def print_json(operation: Operation, link: Link) -> None:
    """Print an operation as JSON on one line."""
    click.echo(json_text(as_wire(operation, link.types)))


@attrs.frozen(kw_only=True)
class StateLine:
    """The texts that show an operation, in a line or a table row."""

    name: str
    state: str
    progress: Progress
    message: str

    @property
    def percent(self) -> str:
        """Return the progress, or an empty string if it is not known."""
        fraction = self.progress.fraction
        return "" if fraction is None else percent_text(fraction)

    @property
    def text(self) -> str:
        """The columns, separated by tabs."""
        return "\t".join((self.name, self.state, self.percent, self.message)).rstrip("\t")


def state_line(operation: Operation, link: Link) -> StateLine:
    """Make the texts that show an operation, without control characters."""
    found = progress_of(operation.metadata, link.types) or Progress()
    error = operation.error
    return StateLine(
        name=plain(operation.name),
        state=operation.state,
        progress=at_the_end(found, operation),
        message=one_line(found.message) if error is None else error_text(error),
    )


def _listed_line(operation: Operation, link: Link) -> StateLine:
    """Make the texts that show an operation in a list, where work that waits has its own state.

    Only an operation in the FULL view says when its waiting work is due.
    """
    line, due = state_line(operation, link), operation.description.due_time
    if operation.done or due is None:
        return line
    message = f"due {_moment(due)} {line.message}".rstrip()
    return attrs.evolve(line, state="WAITING", message=message)


def print_listed(operations: Iterable[Operation], link: Link) -> None:
    """Print each operation on a line, as :func:`print_table` does in a table."""
    for operation in operations:
        click.echo(_listed_line(operation, link).text)


def error_text(error: Status) -> str:
    """Return an operation's error on one line."""
    return one_line(f"{Code.of(error.code or Code.UNKNOWN).name}: {error.message}")


def json_text(value: Json, *, indent: int | None = None) -> str:
    """Return JSON as text without control characters."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    plain = not encoding.startswith("utf")
    between = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, ensure_ascii=plain, indent=indent, separators=between)
    return plain_json(text)


def as_wire(operation: Operation, types: TypeRegistry) -> dict[str, Json]:
    """Return the JSON object of an operation.

    A binary message of an unknown type is shown as its bytes in base64.
    """
    try:
        return operation_to_json(operation, types)
    except LroError:
        return operation_to_json(_readable(operation, types), types)


def _readable(operation: Operation, types: TypeRegistry) -> Operation:
    result = operation.result
    if isinstance(result, AnyMessage):
        result = _in_base64(result, types)
    elif result is not None:
        details = tuple(_in_base64(detail, types) for detail in result.details)
        result = attrs.evolve(result, details=details)
    metadata = operation.metadata
    if metadata is not None:
        metadata = _in_base64(metadata, types)
    return attrs.evolve(operation, metadata=metadata, result=result)


def _in_base64(packed: AnyMessage, types: TypeRegistry) -> AnyMessage:
    try:
        types.to_json(packed)
    except LroError:
        assert isinstance(packed.payload, bytes)  # only binary messages cannot be printed
        return AnyMessage(packed.type_url, {"value": base64.b64encode(packed.payload).decode()})
    return packed


_COLOURS: Final = {
    "IN_PROGRESS": "cyan",
    "WAITING": "blue",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
}
_BAR_WIDTH: Final = 20
_NARROW_BAR: Final = 8
_USUAL: Final = 80
_WHOLE: Final = ("name", "state")
"""The headings of columns that are never shortened: users copy the names."""
_WIDE: Final = 100
"""The least width of a terminal with wide bars, in columns."""
_SHORTENED: Final = ("", "method", "message")
"""The headings of the columns that are shortened in a narrow terminal."""
_MESSAGE_LENGTH: Final = 200
_FRAMES_A_SECOND: Final = 4


def print_table(operations: Iterable[Operation], link: Link) -> None:
    """Print operations as a table, with their methods if they are in the FULL view."""
    found = [*operations]
    methods = any(operation.description.method for operation in found)
    table = _table("name", *(("method",) if methods else ()), "state", "done", "age", "message")
    for operation in found:
        line = _listed_line(operation, link)
        table.add_row(
            Text(line.name),
            *([_short(short_method(operation.description.method))] if methods else []),
            _state(line.state),
            Text(line.percent),
            Text(_shown_span(_age(operation, link, operation))),
            _message(line),
        )
    console = Console()
    _keep_whole(table, *_WHOLE, *(("method",) if console.width >= _USUAL else ()))
    console.print(table, crop=False)


@attrs.define
class _Row:
    name: str
    began: float
    estimate: Estimate
    line: StateLine | None = None
    ended: float | None = None
    lost: bool = False


class LiveTable:
    """A table of watched operations, which is drawn inside its ``with`` block."""

    def __init__(self, names: Iterable[str], link: Link) -> None:
        self._link = link
        self._full: Mapping[str, Operation] | None = None
        now = time.monotonic()
        self._rows = {name: _Row(name, now, Estimate()) for name in names}
        # A new console: rich's shared console may not know the terminal's current width.
        self._console = Console()
        self._live: AbstractContextManager[Live] = Live(
            console=self._console, get_renderable=self._drawn, refresh_per_second=_FRAMES_A_SECOND
        )

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, operation: Operation) -> None:
        """Draw an operation with this state from now on."""
        now = time.monotonic()
        # If the server returns an operation under a different name, that name gets its own row.
        row = self._rows.setdefault(operation.name, _Row(operation.name, now, Estimate()))
        if row.line is None:
            if self._full is None:  # only after a reply, since the server may be unavailable
                self._full = full_operations(list(self._rows), self._link)
            age = _age(operation, self._link, self._full.get(operation.name, operation))
            if age is not None:
                row.began = now - age
                row.estimate.add(0.0, row.began)
        line = state_line(operation, self._link)
        row.estimate.add(line.progress.fraction)
        row.line = line
        if operation.done and row.ended is None:
            row.ended = now

    def lose(self, name: str) -> None:
        """Draw the state of this operation as unknown from now on."""
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
                _bar(line, _BAR_WIDTH if self._console.width >= _WIDE else _NARROW_BAR),
                Text(line.percent),
                Text(_shown_span((row.ended or now) - row.began)),
                Text(_shown_span(left)),
                _message(line),
            )
        _keep_whole(table, *_WHOLE)
        return table


def can_redraw() -> bool:
    """Return True if the terminal can redraw a table."""
    return not Console().is_dumb_terminal


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for heading in headings:
        shown = Text(heading, no_wrap=True, overflow="ellipsis")
        table.add_column(shown, no_wrap=heading not in _SHORTENED, overflow="fold")
    return table


def _keep_whole(table: Table, *headings: str) -> None:
    """Do not shorten the columns with these headings in a narrow terminal."""
    for column in table.columns:
        if str(column.header) in headings:
            column.no_wrap = True
            column.min_width = max((cell_len(str(cell)) for cell in column.cells), default=0)


def short_method(full_name: str) -> str:
    """Return the name of a method without its package: ``Images.Resize``."""
    return ".".join(plain(full_name).split(".")[-2:])


def _state(state: str) -> Text:
    return Text(plain(state), _COLOURS.get(state, ""))


def _bar(line: StateLine, width: int) -> ProgressBar | Text:
    fraction = line.progress.fraction
    if fraction is None:
        return Text("")
    return ProgressBar(total=1.0, completed=fraction, width=width)


def _message(line: StateLine) -> Text:
    text = line.message
    return _short(text if len(text) <= _MESSAGE_LENGTH else f"{text[: _MESSAGE_LENGTH - 1]}…")


def _short(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _age(operation: Operation, link: Link, full: Operation) -> float | None:
    """Return the seconds since the creation by this machine's clock, or None if it is not known."""
    began = full.description.create_time or create_time_of(operation.metadata, link.types)
    return None if began is None else _seconds_since(began)


def _seconds_since(began: datetime) -> float:
    return max((datetime.now(UTC) - began).total_seconds(), 0.0)


def _shown_span(seconds: float | None) -> str:
    return "" if seconds is None else span_text(seconds)
