"""``lro cancel``: ask for the work of operations to stop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import click

from lro import Operation
from lro_client._errors import CallError
from lro_client.cli._connection import Server, server_options
from lro_client.cli._exits import ClientCommand, Exit, exit_of, sentence, tell, worst
from lro_client.cli._following import conclude, handle_of
from lro_client.cli._naming import names_argument, read_names
from lro_client.cli._printing import json_option, print_end
from lro_client.cli._wait import timeout_option


@click.command("cancel", cls=ClientCommand)
@names_argument()
@click.option("--wait", "waits", is_flag=True, help="Wait until they are over, and print them.")
@timeout_option
@json_option
@server_options
def cancel(
    server: Server, names: tuple[str, ...], waits: bool, timeout: float | None, as_json: bool
) -> Exit:
    """Ask for operations to be cancelled.

    A NAME is an operation's name, its URL, or a token of a handle. With --wait, the status is 0
    for one that was cancelled, or was done before that.
    """
    wanted, said = read_names(names, server.prefix)
    with server.connect(said, within=timeout) as link:
        asked, exits = tell_each(link.client.cancel, wanted)
        if waits:
            handles = [handle_of(link, name) for name in asked]
            show = functools.partial(print_end, link=link, as_json=as_json)
            exits.append(conclude(handles, link, timeout, show, judge=_exit_of))
    return worst(exits)


def _exit_of(operation: Operation) -> Exit:
    found = exit_of(operation)
    return Exit.DONE if found is Exit.CANCELLED else found  # as it was asked to be


def tell_each(verb: Callable[[str], None], names: Iterable[str]) -> tuple[list[str], list[Exit]]:
    """Call a verb for each name, and tell of each failure: for which it worked, and how it went."""
    worked, exits = [], []
    for name in names:
        try:
            verb(name)
        except CallError as exc:
            tell(sentence(exc, name))
            exits.append(Exit.CALL_FAILED)
        else:
            worked.append(name)
            exits.append(Exit.DONE)
    return worked, exits
