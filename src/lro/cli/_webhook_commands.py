"""The commands for webhooks: ``lro webhooks ping`` and ``lro webhooks retry``."""

from __future__ import annotations

import click

from lro.cli._commands import read_service
from lro.errors import InvalidArgument


@click.group()
def webhooks() -> None:
    """Test an endpoint, or send pending notifications of a service again."""


@webhooks.command()
@click.argument("url")
@click.option(
    "--secret",
    "given",
    multiple=True,
    required=True,
    envvar="LRO_WEBHOOK_SECRET",
    help="Sign with this secret of the endpoint; may be repeated. Other users of this machine can"
    " see it, unless it comes from the environment as LRO_WEBHOOK_SECRET.",
)
@click.option("--private", is_flag=True, help="Allow any address and port, and http.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 60.0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long for the answer.",
)
@click.pass_context
def ping(
    context: click.Context, url: str, given: tuple[str, ...], private: bool, timeout: float
) -> None:
    """Send an event of the type ping to URL, and print the answer.

    It is signed and sent like webhooks of a service: over https to a global address.

    Exit status: 0 if the endpoint took it (2xx), 1 if not, 2 if the URL or secret cannot be used.
    """
    from lro._webhooks.pinging import send_ping  # not needed by other commands

    reply = send_ping(url, given, private=private, timeout=timeout)
    click.echo(str(reply))
    context.exit(0 if reply.success else 1)


@webhooks.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.argument("name")
@click.pass_context
def retry(context: click.Context, target: str, name: str) -> None:
    """Send the pending notifications of the operation NAME now, also those that were given up.

    Each of them begins its retry schedule again. Other notifications that are due are sent too.
    A notification that was delivered is not sent again.

    Exit status: 0 if none is pending, 1 if one failed, 2 if there is no such operation that has
    ended.
    """
    from lro._webhooks.service_webhooks import Webhooks

    sends = read_service(target).edges.webhooks
    if not isinstance(sends, Webhooks):
        raise InvalidArgument(target, "has no webhooks of lro.webhooks")
    sends.retry(name)
    sends.run_due()
    left = sends.pending_of(name)
    for id in left:
        click.echo(f"failed: {id or 'the endpoints cannot be looked up'}")
    if not left:
        click.echo("nothing is pending")
    context.exit(1 if left else 0)
