"""``lro lint``: what is wrong with the long-running methods of an API (spec §8.2)."""

from __future__ import annotations

import click

from lro.cli._inputs import read_allowance_files, read_sets
from lro.cli._options import check_options


@click.command()
@click.argument("sources", metavar="DESCRIPTOR_SET...", nargs=-1, required=True)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="FILE",
    help="Examine only this file of the set, such as acme/v1/api.proto. May be repeated.",
)
@check_options
@click.pass_context
def lint(
    context: click.Context,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    allow: tuple[str, ...],
    allow_file: tuple[str, ...],
    as_json: bool,
    strict: bool,
) -> None:
    """Check the operation_info of every long-running method.

    A DESCRIPTOR_SET is a file that protoc --descriptor_set_out or buf build wrote, - for standard
    input, or module:service for a Python service. Several count as one set.
    """
    from lro.cli._report import report
    from lro.lint._descriptors import DescriptorSet
    from lro.lint._lint import examine

    files = DescriptorSet(read_sets(sources), " + ".join(sources))
    chosen = targets or None
    findings = examine(files, targets=chosen, allow=[*allow, *read_allowance_files(allow_file)])
    methods = sum(rpc.returns_operation for rpc in files.rpcs("targets", chosen))
    context.exit(report(findings, methods=methods, as_json=as_json, strict=strict))
