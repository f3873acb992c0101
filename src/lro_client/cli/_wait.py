"""``lro wait``: until operations are done."""

from __future__ import annotations

import functools

import click

from lro_client.cli._connection import Server, server_options
from lro_client.cli._exits import ClientCommand, Exit
from lro_client.cli._following import conclude, handle_of
from lro_client.cli._naming import names_argument, read_names
from lro_client.cli._printing import json_option, print_end
from lro_client.cli._spans import span

timeout_option = click.option(
    "--timeout",
    type=span,
    metavar="SPAN",
    help="Wait so long at most, such as 90, 1.5s, 10m or 2h; then end with 4.",
)

poll_option = click.option(
    "--poll",
    is_flag=True,
    help="Ask for the state again and again; for servers whose WaitOperation does not work.",
)


@click.command("wait", cls=ClientCommand)
@names_argument()
@timeout_option
@poll_option
@json_option
@server_options
def wait(
    server: Server, names: tuple[str, ...], timeout: float | None, poll: bool, as_json: bool
) -> Exit:
    """Wait until operations are done, and print each when it is.

    A NAME is an operation's name, its URL, or a token of a handle.

    Exit status, that of the worst: 0 done with a response, 1 failed, 3 cancelled, 4 still running,
    5 a call failed, 130 interrupted.
    """
    wanted, said = read_names(names, server.prefix)
    with server.connect(said, within=timeout, poll=poll) as link:
        handles = [handle_of(link, name) for name in wanted]
        show = functools.partial(print_end, link=link, as_json=as_json)
        return conclude(handles, link, timeout, show)
