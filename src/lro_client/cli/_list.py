"""``lro list``: the operations of a parent."""

from __future__ import annotations

import sys
from itertools import islice

import click

from lro_client.cli._connection import Server, server_options
from lro_client.cli._exits import ClientCommand, Exit
from lro_client.cli._naming import check_path
from lro_client.cli._printing import json_option, print_json, state_line
from lro_client.cli._table import listed


@click.command("list", cls=ClientCommand)
@click.argument("parent", default="")
@click.option("--filter", "wanted", metavar="FILTER", default="", help="An AIP-160 filter.")
@click.option(
    "--page-size", type=click.IntRange(min=1), metavar="N", help="So many with each call at most."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Print so many at most.")
@json_option
@server_options
def list_operations(
    server: Server,
    parent: str,
    wanted: str,
    page_size: int | None,
    limit: int | None,
    as_json: bool,
) -> Exit:
    """List operations, newest first.

    PARENT is that of the names, such as projects/p; without it, those that have none.
    """
    if parent:
        check_path(parent, "a parent")
    with server.connect() as link:
        size = page_size or min(limit or 0, 1000)
        found = islice(link.client.list(parent, wanted, page_size=size), limit)
        if as_json:
            for operation in found:
                print_json(operation, link)
        elif sys.stdout.isatty():
            listed(found, link)
        else:
            for operation in found:
                click.echo(state_line(operation, link).text)
    return Exit.DONE
