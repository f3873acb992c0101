"""The command ``lro``: the commands of this package, and the commands that entry points add.

A distribution adds a command by an entry point of the group ``lro.commands``, whose object is a
``click.Command``. An added command is loaded only when it is called, so ``lro --help`` and the
other commands do not wait for its imports. The short help text of an added command is read from the
command's source.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from lro.cli._commands import breaking, lint, openapi, proto
from lro.cli._output import INTERRUPTED, Unusable, exit_statuses
from lro.cli._schedule_commands import schedules
from lro.cli._service_commands import purge, schema, serve, worker
from lro.cli._webhook_commands import webhooks
from lro.cli._worker_commands import pause, resume, workers
from lro.errors import LroError
from lro.wire import plain

GROUP: Final = "lro.commands"
"""The group of entry points that add commands."""

_DISTRIBUTION: Final = "lro"
"""The distribution whose commands have their own section in the help."""


def added_commands() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points that add commands, by name; those of this distribution come first.

    If two entry points have the same name, the first is used. No entry point can replace a command
    of this package.
    """
    found: dict[str, importlib.metadata.EntryPoint] = {}
    entries = importlib.metadata.entry_points(group=GROUP)
    for entry in sorted(entries, key=lambda one: (not _is_own(one), one.name)):
        if entry.name not in app.commands:
            found.setdefault(entry.name, entry)
    return found


def _is_own(entry: importlib.metadata.EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == _DISTRIBUTION


def _load(entry: importlib.metadata.EntryPoint) -> click.Command:
    """Return the command of an entry point, or a command that fails with the loading error."""
    try:
        found: object = entry.load()
        if not isinstance(found, click.Command):
            raise TypeError(f"{entry.value} is {type(found).__name__}, not a click.Command")
    except (Exception, SystemExit) as exc:  # a module of another distribution can raise anything
        return _failing(entry, exc)
    return found


def _failing(entry: importlib.metadata.EntryPoint, error: BaseException) -> click.Command:
    distribution = entry.dist.name if entry.dist is not None else entry.module
    why = f"the command {entry.name} of {distribution} cannot be loaded: "
    why += str(error) if isinstance(error, LroError) else f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError) and entry.extras:
        extras = ",".join(sorted(entry.extras))
        why += f"; it needs an extra: pip install '{distribution}[{extras}]'"

    def fail(_: tuple[str, ...]) -> None:
        raise Unusable(why) from error

    return click.Command(
        entry.name,
        callback=fail,
        params=[click.Argument(["_"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        help=f"Cannot be loaded. {why}",
    )


def short_help(entry: importlib.metadata.EntryPoint) -> str:
    """Return the first paragraph of a command's docstring, without importing its module.

    The result is empty if the source or the docstring cannot be found.
    """
    try:
        tree = ast.parse(_source(entry.module))
    except Exception:  # the distribution may be incomplete
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry.attr:
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            return " ".join(text.partition("\n\n")[0].split())
    return ""


def _source(module: str) -> bytes:
    """Return the source of a module, without importing its package."""
    names = module.split(".")
    found = importlib.util.find_spec(names[0])
    for end in range(2, len(names) + 1):
        places = found.submodule_search_locations if found is not None else None
        found = importlib.machinery.PathFinder.find_spec(".".join(names[:end]), places)
    assert found is not None
    assert found.origin is not None
    with open(found.origin, "rb") as file:
        return file.read()


class _App(click.Group):
    """The group of commands, which loads added commands, and prints library errors in one line."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with exit_statuses():  # help and version are printed here
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> object:
        with exit_statuses():
            try:
                return super().invoke(ctx)
            except LroError as exc:
                raise Unusable(str(exc)) from exc

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *added_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        here = super().get_command(ctx, cmd_name)
        if here is not None:
            return here
        entry = added_commands().get(cmd_name)
        return None if entry is None else _load(entry)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        added = added_commands()
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        own = {
            title: {str(one.name): one.get_short_help_str(width) for one in commands}
            for title, commands in (("Check an API", _CHECKING), ("Run a service", _RUNNING))
        }
        texts = {name: short_help(one) for name, one in added.items()}
        server = {name: texts[name] for name, one in added.items() if _is_own(one)}
        others = {name: text for name, text in texts.items() if name not in server}
        for title, rows in own.items():
            _write_section(formatter, title, rows)
        _write_section(formatter, "Call a server", server)
        _write_section(formatter, "Commands of other packages", others)


def _write_section(formatter: click.HelpFormatter, title: str, rows: Mapping[str, str]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(list(rows.items()))


_CHECKING: Final = (lint, breaking, proto, openapi)
_RUNNING: Final = (*(serve, worker, workers, pause, resume, schedules, schema, purge, webhooks),)


@click.group(
    cls=_App,
    commands=[*_CHECKING, *_RUNNING],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="lro", prog_name="lro", message="%(prog)s %(version)s")
def app() -> None:
    """Check the long-running methods of an API, run a service, and call a server.

    Exit status: 0 if all is well, 1 if there are errors (with --strict also warnings), 2 if the
    input cannot be used. The help of each command has more.
    """


def _error_text(error: click.ClickException, *, helps: bool) -> str:
    written = io.StringIO()
    error.show(written)
    text = written.getvalue()
    if not helps:  # without arguments, the text is the help, whose lines are kept
        text = text.replace(click.unstyle(error.message), plain(error.message))
    return "\n".join(map(plain, text.split("\n")))


def run(arguments: Sequence[str] | None) -> int:
    """Run the command and return its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        found: object = app.main(given, prog_name="lro", standalone_mode=False)
    except SystemExit as exc:  # raised by shell completion
        return int(exc.code or 0)
    except click.Abort:  # Ctrl-C at a prompt
        return INTERRUPTED
    except click.ClickException as exc:
        with contextlib.suppress(OSError):  # standard error is closed
            click.echo(_error_text(exc, helps=not given), err=True, nl=False)
        return exc.exit_code
    return found if isinstance(found, int) else 0
