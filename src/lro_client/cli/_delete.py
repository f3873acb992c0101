"""``lro delete``: remove the records of operations."""

from __future__ import annotations

import click

from lro_client.cli._cancel import tell_each
from lro_client.cli._connection import Server, server_options
from lro_client.cli._exits import ClientCommand, Exit, worst
from lro_client.cli._naming import names_argument, read_names


@click.command("delete", cls=ClientCommand)
@names_argument()
@server_options
def delete(server: Server, names: tuple[str, ...]) -> Exit:
    """Remove the records of operations; does not stop their work.

    A NAME is an operation's name, its URL, or a token of a handle.
    """
    wanted, said = read_names(names, server.prefix)
    with server.connect(said) as link:
        _, exits = tell_each(link.client.delete, wanted)
    return worst(exits)
