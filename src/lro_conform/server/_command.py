"""The command that judges a server."""

from __future__ import annotations

import click

from lro_conform._options import Reporting, report_options


@click.command("server")
@report_options
@click.pass_context
def server(ctx: click.Context, reporting: Reporting) -> None:
    """Judge a server of google.longrunning."""
    ctx.exit(reporting.list([]))
