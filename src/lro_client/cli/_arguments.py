"""Arguments of commands: names of operations, and the message that ``start`` sends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import attrs
import click
from click.shell_completion import CompletionItem

from lro import InvalidArgument, Operation, Struct
from lro.types import Json
from lro.wire import loads
from lro_client._addresses import dotted
from lro_client._client.client import Pager
from lro_client._tokens import read_token
from lro_client.cli._connection import (
    Link,
    ServerOptions,
    read_file,
    same_server,
    split_url,
    take_server,
)
from lro_client.cli._terminal import safe_in_shells

F = TypeVar("F", bound=Callable[..., Any])

_COMPLETION_SECONDS: Final = 1.0
_COMPLETIONS: Final = 100


@attrs.frozen
class Named:
    """An operation's name, and its server, which is empty if it was not given with the name."""

    name: str
    server: str = ""


def read_name(text: str, prefix: str) -> Named:
    """Parse a text that names an operation: a name, a URL, a token, or the operation's JSON.

    Raises:
        click.UsageError: The text names no operation, or has a segment such as ``..``.
        InvalidArgument: The text begins like a token, but is not a valid one.
    """
    found = _parsed(text, prefix)
    if not found.name:
        raise click.UsageError(f"{text!r} names no operation")
    check_path(found.name, "a name")
    if dotted(unquote(found.server)):
        raise click.UsageError(f"{text!r:.200} has a server with a segment '.' or '..'")
    return found


def check_path(name: str, what: str) -> None:
    """Refuse a name that changes the path, because the bearer token would be sent elsewhere.

    Raises:
        click.UsageError: A segment of the name is ``.``, ``..``, or empty.
    """
    if dotted(name) or "" in name.split("/"):
        raise click.UsageError(f"{name!r:.200} is not {what}: a segment is '.', '..', or empty")


def _parsed(text: str, prefix: str) -> Named:
    if text.lstrip().startswith("{"):
        printed = _printed_name(text)
        if printed:
            return Named(printed)
        token = read_token(text)
        server = token.server
        if server and "://" not in server:
            server = f"grpc://{server}"  # the address of a gRPC server
        return Named(token.name, server)
    before = f"/{prefix.strip('/')}/".replace("//", "/")
    if "://" in text:
        return _of_url(text, before)
    return Named(text.removeprefix(before) if text.startswith("/") else text)


def _printed_name(text: str) -> str:
    """Return the operation's name from output of ``--json``, or an empty string for other texts."""
    try:
        found = loads(text)
    except ValueError:
        return ""
    name = found.get("name") if isinstance(found, dict) and "lro" not in found else None
    return name if isinstance(name, str) else ""


def _of_url(text: str, before: str) -> Named:
    found = split_url(text)
    if found.scheme.startswith("grpc"):
        base, name = "", found.path.lstrip("/")
    else:
        base, between, name = found.path.partition(before)
        if not between:
            raise click.UsageError(f"{text!r} has no {before!r} before the name: give --prefix")
    return Named(unquote(name), f"{found.scheme}://{found.netloc}{base}")


def read_names(texts: Iterable[str], server: ServerOptions) -> tuple[list[str], str]:
    """Read the distinct names, and their server, which is empty if no name includes a server.

    A name without a server belongs to ``LRO_SERVER``. With ``--server``, such a name may be
    combined with names of any one server.

    Raises:
        click.UsageError: The operations are on different servers, or a text names no operation.
    """
    found = [read_name(text, server.prefix) for text in texts]
    said = next((one.server for one in found if one.server), "")
    servers = {one.server or server.url for one in found if one.server or not server.chosen}
    if len(servers) > 1 and not all(same_server(said, one) for one in servers):
        raise click.UsageError(
            f"these are operations of {len(servers)} servers: use one command for each server"
        )
    return list(dict.fromkeys(one.name for one in found)), said


def complete_names(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ask the server for names that begin with the incomplete word, or return none if it is slow.

    The shell inserts a name without quotes, so names that need quotes are left out.
    """
    try:
        with context.scope(cleanup=False):
            return _names(take_server(context, dict(context.params)), incomplete)
    except Exception:  # shell completion cannot show messages
        return []


def _names(server: ServerOptions, incomplete: str) -> list[CompletionItem]:
    parent, found, _ = incomplete.rpartition("/operations")
    with server.connect(within=_COMPLETION_SECONDS) as link:
        listed = link.client.list(parent if found else "", page_size=_COMPLETIONS)
        operations = operations_of(listed, _COMPLETION_SECONDS)
        return [
            CompletionItem(one.name, help=one.state)
            for one in islice(operations, _COMPLETIONS)
            if one.name.startswith(incomplete) and safe_in_shells(one.name)
        ]


def operations_of(listed: Pager, timeout: float | None) -> Iterator[Operation]:
    """Iterate over a list's operations. All calls together take at most ``timeout`` seconds."""
    for page in listed.pages(timeout):
        yield from page.operations


def names_argument(*, required: bool = True, single: bool = False) -> Callable[[F], F]:
    """Add the argument of a command that takes operations or, with ``single``, one operation."""
    return click.argument(
        "names",
        metavar="NAME" if single else "NAME...",
        nargs=1 if single else -1,
        required=required,
        shell_complete=complete_names,
        callback=(lambda _, __, name: (name,) if name else ()) if single else None,
    )


def read_message(given: str) -> dict[str, Json]:
    """Read the JSON object of an argument: its text, ``@file``, or ``-`` for standard input.

    Raises:
        InvalidArgument: The argument cannot be read, or is not a JSON object.
    """
    named, text = "message", given.encode("utf-8", "surrogateescape")
    if given == "-":
        if sys.stdin is None:
            raise InvalidArgument("-", "standard input is closed")
        named, text = "standard input", sys.stdin.buffer.read()
    elif given.startswith("@"):
        named, text = given[1:], read_file(given[1:])
    try:
        found = loads(text)
    except ValueError as exc:
        raise InvalidArgument(named, f"is not JSON: {exc}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(named, f"must be a JSON object, got {found!r:.80}")
    return found


def message_for(link: Link, target: str, fields: dict[str, Json]) -> object:
    """Make the message that a start sends.

    Raises:
        InvalidArgument: Over gRPC, the descriptors are missing, or lack the method or its message.
    """
    if not link.grpc:
        return Struct(fields)
    if not link.descriptors:
        wanted = "needs --descriptors FILE over gRPC, to know the message of the method"
        raise InvalidArgument("start", wanted)
    name = _request_type(link.descriptors, target)
    try:
        return link.types.codec(name).load(fields, strict=True)
    except InvalidArgument as exc:
        raise InvalidArgument(f"message {name}", str(exc)) from None


def _request_type(descriptors: bytes, target: str) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # needs an extra, as gRPC does

    wanted = target.strip("/").replace("/", ".")
    for file in FileDescriptorSet.FromString(descriptors).file:
        for service in file.service:
            for method in service.method:
                full = ".".join(filter(None, (file.package, service.name, method.name)))
                if full == wanted:
                    return method.input_type.lstrip(".")
    raise InvalidArgument(target, "is not a method of the services in --descriptors")
