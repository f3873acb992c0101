"""``lro watch``: operations while they run, in a live table or line by line."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import islice
from typing import Final

import click

from lro import Operation
from lro_client.cli._connection import Link, Server, server_options
from lro_client.cli._exits import ClientCommand, Exit, tell
from lro_client.cli._following import Handle, conclude, handle_of
from lro_client.cli._naming import check_path, names_argument, read_names
from lro_client.cli._printing import json_option, print_json, state_line
from lro_client.cli._table import LiveTable, live_here
from lro_client.cli._wait import poll_option, timeout_option

_PAGE: Final = 1000
"""As many as with one call, at most."""


@click.command("watch", cls=ClientCommand)
@names_argument(required=False)
@click.option("--filter", "wanted", metavar="FILTER", help="Those that match this AIP-160 filter.")
@click.option("--parent", metavar="PARENT", default="", help="Where the filter looks for them.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=1000,
    show_default=True,
    help="With --filter, watch so many at most, the newest.",
)
@timeout_option
@poll_option
@json_option
@server_options
def watch(
    server: Server,
    names: tuple[str, ...],
    wanted: str | None,
    parent: str,
    limit: int,
    timeout: float | None,
    poll: bool,
    as_json: bool,
) -> Exit:
    """Watch operations until all are done: a live table, or in a pipe a line for each change.

    A NAME is an operation's name, its URL, or a token of a handle. With --filter, those are
    watched that match when it begins.

    Exit status: that of lro wait.
    """
    if bool(names) == (wanted is not None):
        raise click.UsageError("give either names or --filter")
    found, said = read_names(names, server.prefix)
    if parent:
        check_path(parent, "a parent")
    with server.connect(said, within=timeout, poll=poll) as link:
        handles = [handle_of(link, name) for name in found]
        if wanted is not None:
            handles = _matching(link, parent, wanted, limit)
        return watch_all(handles, link, timeout, as_json=as_json)


def _matching(link: Link, parent: str, wanted: str, limit: int) -> list[Handle]:
    listed = link.client.list(parent, wanted, page_size=min(limit + 1, _PAGE))
    found = list(islice(listed, limit + 1))
    if not found:
        tell("no operation matches")
    if len(found) > limit:
        tell(f"more than {limit} match: only {limit} are watched; give --limit for more")
    return [handle_of(link, one) for one in found[:limit]]


def watch_all(
    handles: Sequence[Handle], link: Link, timeout: float | None, *, as_json: bool
) -> Exit:
    """Show operations while they run; the worst end of all."""
    if not as_json and live_here():
        with LiveTable([handle.name for handle in handles], link) as table:
            return conclude(handles, link, timeout, table.show, curious=True, lose=table.lose)
    show = functools.partial(print_json if as_json else _print_line, link=link)
    return conclude(handles, link, timeout, show, curious=True)


def _print_line(operation: Operation, link: Link) -> None:
    click.echo(state_line(operation, link).text)
