"""``lro breaking``: what a release breaks for callers of long-running methods (spec §8.5)."""

from __future__ import annotations

import click

from lro.cli._inputs import read_allowance_files, read_set
from lro.cli._options import check_options


@click.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="FILE",
    help="Compare only the methods of this file of OLD. May be repeated.",
)
@check_options
@click.pass_context
def breaking(
    context: click.Context,
    old: str,
    new: str,
    targets: tuple[str, ...],
    allow: tuple[str, ...],
    allow_file: tuple[str, ...],
    as_json: bool,
    strict: bool,
) -> None:
    """Compare the long-running methods of two releases.

    OLD and NEW are each a file that protoc --descriptor_set_out or buf build wrote, - for
    standard input, or module:service for a Python service.
    """
    from lro.cli._report import report
    from lro.lint._breaking import compare
    from lro.lint._descriptors import DescriptorSet

    was, now = DescriptorSet(read_set(old), old), DescriptorSet(read_set(new), new)
    chosen = targets or None
    allowed = [*allow, *read_allowance_files(allow_file)]
    findings = compare(was, now, old_targets=chosen, allow=allowed)
    methods = sum(rpc.returns_operation for rpc in was.rpcs("old_targets", chosen))
    context.exit(report(findings, methods=methods, as_json=as_json, strict=strict))
