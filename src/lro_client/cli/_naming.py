"""Which operations a command is about: names, URLs and tokens; and their completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import attrs
import click
from click.shell_completion import CompletionItem

from lro_client._tokens import dotted, read_token
from lro_client.cli._connection import Server, split_url, take_server
from lro_client.cli._plain import safe_in_shells

F = TypeVar("F", bound=Callable[..., Any])

_COMPLETION_SECONDS: Final = 1.0
_COMPLETIONS: Final = 100


@attrs.frozen
class Named:
    """An operation's name, and the server that was said with it; empty for none."""

    name: str
    server: str = ""


def read_name(text: str, prefix: str) -> Named:
    """The operation that a name, a full URL, a token, or an operation in JSON says.

    Raises:
        click.UsageError: It says none, or one that leads elsewhere.
        InvalidArgument: It begins as a token does, and is none.
    """
    found = _said(text, prefix)
    if not found.name:
        raise click.UsageError(f"{text!r} names no operation")
    check_path(found.name, "a name")
    if dotted(unquote(found.server)):
        raise click.UsageError(f"{text!r:.200} has a server with a segment '.' or '..'")
    return found


def check_path(name: str, what: str) -> None:
    """Refuse a name that leads elsewhere: the bearer token would go along.

    Raises:
        click.UsageError: A segment of it is ``.``, ``..``, or empty.
    """
    if dotted(name) or "" in name.split("/"):
        raise click.UsageError(f"{name!r:.200} is not {what}: a segment is '.', '..', or empty")


def _said(text: str, prefix: str) -> Named:
    if text.lstrip().startswith("{"):
        printed = _printed_name(text)
        if printed:
            return Named(printed)
        token = read_token(text)
        server = token.server
        if server and "://" not in server:
            server = f"grpc://{server}"  # an address as gRPC has it
        return Named(token.name, server)
    before = f"/{prefix.strip('/')}/".replace("//", "/")
    if "://" in text:
        return _of_url(text, before)
    return Named(text.removeprefix(before) if text.startswith("/") else text)


def _printed_name(text: str) -> str:
    """The name of an operation as ``--json`` prints it; empty for what is none."""
    try:
        found = json.loads(text)
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


def read_names(texts: Iterable[str], prefix: str) -> tuple[list[str], str]:
    """The names, each once, and the server that they say; empty if they say none.

    Raises:
        click.UsageError: They say different ones, or one says nothing.
    """
    found = [read_name(text, prefix) for text in texts]
    servers = {one.server for one in found if one.server}
    if len(servers) > 1:
        raise click.UsageError(
            f"these are operations of {len(servers)} servers: ask each by itself"
        )
    return list(dict.fromkeys(one.name for one in found)), servers.pop() if servers else ""


def complete_names(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names of operations that begin so, asked of the server; none if that takes long.

    A name goes into the command line as it is: only those are given that are plain words there.
    """
    try:
        with context.scope(cleanup=False):
            return _names(take_server(context, dict(context.params)), incomplete)
    except Exception:  # a shell that completes has no place for messages
        return []


def _names(server: Server, incomplete: str) -> list[CompletionItem]:
    parent, found, _ = incomplete.rpartition("/operations")
    with server.connect(within=_COMPLETION_SECONDS) as link:
        listed = link.client.list(parent if found else "", page_size=_COMPLETIONS)
        return [
            CompletionItem(one.name, help=one.state)
            for one in islice(listed, _COMPLETIONS)
            if one.name.startswith(incomplete) and safe_in_shells(one.name)
        ]


def names_argument(*, required: bool = True) -> Callable[[F], F]:
    """The argument of a command that takes one or more operations."""
    return click.argument(
        "names", metavar="NAME...", nargs=-1, required=required, shell_complete=complete_names
    )
