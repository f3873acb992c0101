"""Operations on standard output: JSON for programs, lines for pipes, blocks for people."""

from __future__ import annotations

import base64
import json
import sys

import attrs
import click

from lro import Any, Code, LroError, Operation, Status, TypeRegistry
from lro.types import Json
from lro.wire import operation_to_json
from lro_client.cli._connection import Link
from lro_client.cli._terminal import one_line, plain, plain_json
from lro_client.progress import Progress, progress_of
from lro_client.progress._bars import at_the_end, percent_text

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print operations as JSON, one on each line."
)


def print_operation(operation: Operation, link: Link, *, as_json: bool) -> None:
    """Print an operation: all that is known of it to a terminal, one line to a pipe."""
    if as_json:
        print_json(operation, link)
        return
    line = state_line(operation, link)
    if not sys.stdout.isatty():
        click.echo(line.text)
        return
    shown = as_wire(operation, link.types)
    at = "" if operation.done else f"{line.percent} {line.message}".strip()
    for heading, told in (("name", line.name), ("state", line.state), ("progress", at)):
        if told:
            click.echo(f"{heading:<9} {told}")
    for member in ("metadata", "response", "error"):
        if member in shown:
            text = json_text(shown[member], indent=2).replace("\n", "\n" + " " * 10)
            click.echo(f"{member:<9} {text}")


def print_end(operation: Operation, link: Link, *, as_json: bool) -> None:
    """Print an operation that is over, with its response or error, on one line."""
    if as_json:
        print_json(operation, link)
        return
    told = ""
    if isinstance(operation.result, Any):
        told = json_text(as_wire(operation, link.types)["response"])
    elif operation.error is not None:
        told = error_text(operation.error)
    click.echo("\t".join(filter(None, (plain(operation.name), operation.state, told))))


def print_json(operation: Operation, link: Link) -> None:
    """Print an operation as JSON on one line."""
    click.echo(json_text(as_wire(operation, link.types)))


@attrs.frozen(kw_only=True)
class StateLine:
    """The texts of an operation for a line, or for a row of a table."""

    name: str
    state: str
    progress: Progress
    message: str

    @property
    def percent(self) -> str:
        """How far it is; empty where that is not known."""
        fraction = self.progress.fraction
        return "" if fraction is None else percent_text(fraction)

    @property
    def text(self) -> str:
        """The columns, with tabs between them."""
        return "\t".join((self.name, self.state, self.percent, self.message)).rstrip("\t")


def state_line(operation: Operation, link: Link) -> StateLine:
    """Make the texts of an operation, in which nothing controls a terminal."""
    found = progress_of(operation.metadata, link.types) or Progress()
    error = operation.error
    return StateLine(
        name=plain(operation.name),
        state=operation.state,
        progress=at_the_end(found, operation),
        message=one_line(found.message) if error is None else error_text(error),
    )


def error_text(error: Status) -> str:
    """An operation's error on one line."""
    return one_line(f"{Code.of(error.code or Code.UNKNOWN).name}: {error.message}")


def json_text(value: Json, *, indent: int | None = None) -> str:
    """Print JSON as a text in which nothing controls a terminal."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    plain = not encoding.startswith("utf")
    between = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, ensure_ascii=plain, indent=indent, separators=between)
    return plain_json(text)


def as_wire(operation: Operation, types: TypeRegistry) -> dict[str, Json]:
    """The JSON object of an operation.

    A message in binary form of an unknown type is its bytes in base64.
    """
    try:
        return operation_to_json(operation, types)
    except LroError:
        return operation_to_json(_readable(operation, types), types)


def _readable(operation: Operation, types: TypeRegistry) -> Operation:
    result = operation.result
    if isinstance(result, Any):
        result = _in_base64(result, types)
    elif result is not None:
        details = tuple(_in_base64(detail, types) for detail in result.details)
        result = attrs.evolve(result, details=details)
    metadata = operation.metadata
    if metadata is not None:
        metadata = _in_base64(metadata, types)
    return attrs.evolve(operation, metadata=metadata, result=result)


def _in_base64(packed: Any, types: TypeRegistry) -> Any:
    try:
        types.to_json(packed)
    except LroError:
        assert isinstance(packed.payload, bytes)  # a message in JSON can be printed
        return Any(packed.type_url, {"value": base64.b64encode(packed.payload).decode()})
    return packed
