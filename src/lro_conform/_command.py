"""The command ``lro conform``, which judges servers, and ``lro conform client`` for clients."""

from __future__ import annotations

import click

_CLIENT = "client"


class _Conform(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (_CLIENT, "server"):
            args = ["server", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name == _CLIENT:
            from lro_conform.client._command import client

            return client
        from lro_conform.server._command import server

        return server


@click.command(cls=_Conform)
def conform() -> None:
    """Judge a server of google.longrunning, or a client: lro conform client -- COMMAND."""
