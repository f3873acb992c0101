"""The command that judges a client."""

from __future__ import annotations

import logging
import os

import click

from lro_conform._checks import GRPC, HTTP
from lro_conform._options import Reporting, report_options, run_judging
from lro_conform.client._launch import launch_command
from lro_conform.client._running import CLIENT_CHECKS, judge_client


@click.command("client", context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--http", "http", is_flag=True, help="Judge the client over HTTP (the default).")
@click.option("--grpc", "grpc", is_flag=True, help="Judge it over gRPC; with --http over both.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=4 * (os.cpu_count() or 1),
    help="Maximum number of processes at once.  [default: four for each processor]",
)
@report_options
@click.pass_context
def client(
    ctx: click.Context,
    command: tuple[str, ...],
    http: bool,
    grpc: bool,
    jobs: int,
    reporting: Reporting,
) -> None:
    """Judge a client of google.longrunning: lro conform client -- COMMAND.

    COMMAND is run once for each scenario, with these variables: LRO_CONFORM_URL (over HTTP) or
    LRO_CONFORM_TARGET (over gRPC) is the server, LRO_CONFORM_OPERATION an operation's name,
    LRO_CONFORM_TASK the task (wait, cancel, list or delete), LRO_CONFORM_TIMEOUT its timeout in
    seconds, LRO_CONFORM_TOKEN a bearer token to send. COMMAND must print one line of JSON, such as
    {"outcome": "error", "code": 5, "message": "..."}; the other outcomes are response, timeout,
    lost (a call failed for good) and unsupported (the task).
    """
    transports = tuple(name for name, wanted in ((HTTP, http or not grpc), (GRPC, grpc)) if wanted)
    checks = [one for one in CLIENT_CHECKS if not one.transports.isdisjoint(transports)]
    if reporting.listing:
        ctx.exit(reporting.list(checks))
    if not command:
        raise click.UsageError("give the command that runs the client, after --")
    chosen = reporting.chosen(checks)
    # grpcio logs each disconnected client, which many scenarios cause.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    reporting.check_output()
    report = run_judging(
        judge_client(
            launch_command(command),
            chosen,
            target=_one_line(" ".join(command)),
            transports=transports,
            jobs=jobs,
        )
    )
    ctx.exit(reporting.write(report))


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
