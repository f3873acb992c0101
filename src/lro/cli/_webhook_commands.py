"""The commands about webhooks: ``lro webhooks ping`` and ``lro webhooks retry``."""

from __future__ import annotations

import click

from lro._base.errors import InvalidArgument
from lro.cli._commands import read_service


@click.group()
def webhooks() -> None:
    """Try an endpoint, or send again what a service owes."""


@webhooks.command()
@click.argument("url")
@click.option(
    "--secret",
    "given",
    multiple=True,
    required=True,
    envvar="LRO_WEBHOOK_SECRET",
    help="The secret of the endpoint; of several, by each. Other users of this machine can see it,"
    " unless the environment has it as LRO_WEBHOOK_SECRET.",
)
@click.option("--private", is_flag=True, help="Any address and port, and http too.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 60.0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the answer may take.",
)
@click.pass_context
def ping(
    context: click.Context, url: str, given: tuple[str, ...], private: bool, timeout: float
) -> None:
    """Send an event of the type ping to URL, and print what comes back.

    It is signed and sent as webhooks of a service are: over https to a global address.

    Exit status: 0 if the endpoint took it (2xx), 1 if not, 2 if the URL or secret cannot be used.
    """
    from lro._webhooks.pinging import send_ping  # what other commands do not need

    reply = send_ping(url, given, private=private, timeout=timeout)
    click.echo(str(reply))
    context.exit(0 if reply.success else 1)


@webhooks.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.argument("name")
@click.pass_context
def retry(context: click.Context, target: str, name: str) -> None:
    """Send now what is owed for the operation NAME, also what was given up.

    Each notification then has its whole schedule again. What else is due is sent too. What was sent
    once is not owed, and is not sent again.

    Exit status: 0 if nothing is owed any more, 1 if something failed, 2 if there is no such
    operation that has ended.
    """
    from lro._webhooks.service_webhooks import Webhooks

    sends = read_service(target).webhooks
    if not isinstance(sends, Webhooks):
        raise InvalidArgument(target, "has no webhooks of lro.webhooks")
    sends.retry(name)
    sends.run_due()
    left = sends.pending_of(name)
    for id in left:
        click.echo(f"failed: {id or 'the endpoints cannot be looked up'}")
    if not left:
        click.echo("nothing is owed")
    context.exit(1 if left else 0)
