"""The command that judges a client."""

from __future__ import annotations

import click

from lro_conform._options import Reporting, report_options


@click.command("client")
@report_options
@click.pass_context
def client(ctx: click.Context, reporting: Reporting) -> None:
    """Judge a client of google.longrunning."""
    ctx.exit(reporting.list([]))
