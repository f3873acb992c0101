"""``lro get``: the state of operations now."""

from __future__ import annotations

import click

from lro_client._errors import CallError
from lro_client.cli._connection import Server, server_options
from lro_client.cli._exits import ClientCommand, Exit, exit_of, sentence, tell, worst
from lro_client.cli._naming import names_argument, read_names
from lro_client.cli._printing import json_option, print_operation


@click.command("get", cls=ClientCommand)
@names_argument()
@click.option(
    "--check", is_flag=True, help="End with the state: 1 failed, 3 cancelled, 4 still running."
)
@json_option
@server_options
def get(server: Server, names: tuple[str, ...], check: bool, as_json: bool) -> Exit:
    """Print operations as they are now.

    A NAME is an operation's name, its URL, or a token of a handle.
    """
    wanted, said = read_names(names, server.prefix)
    exits = []
    with server.connect(said) as link:
        for name in wanted:
            try:
                operation = link.client.get(name)
            except CallError as exc:
                tell(sentence(exc, name))
                exits.append(Exit.CALL_FAILED)
                continue
            print_operation(operation, link, as_json=as_json)
            exits.append(exit_of(operation) if check else Exit.DONE)
    return worst(exits)
