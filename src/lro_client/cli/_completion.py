"""``lro completion``: the script by which a shell completes the command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options and names.

    For bash, add this to ~/.bashrc: eval "$(lro completion bash)"; for zsh the same with zsh in
    ~/.zshrc; for fish: lro completion fish > ~/.config/fish/completions/lro.fish. Names of
    operations are completed where LRO_SERVER or --server names a server.
    """
    root = context.find_root()
    name = root.info_name or "lro"
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    made = get_completion_class(shell)
    assert made is not None  # the choice has only shells that click knows
    click.echo(made(root.command, {}, name, variable).source())
