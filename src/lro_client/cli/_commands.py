"""The commands: list, get, wait, watch, cancel, delete, start, rerun, completion."""

from __future__ import annotations

import functools
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import attrs
import click
from click.shell_completion import get_completion_class

from lro import AnyMessage, Code, Operation
from lro.wire import View
from lro_client._addresses import dotted
from lro_client._errors import CallError
from lro_client.cli._arguments import (
    check_path,
    message_for,
    names_argument,
    operations_of,
    read_message,
    read_names,
)
from lro_client.cli._connection import Link, ServerOptions, server_options, span, split_url
from lro_client.cli._following import Handle, conclude, handle_of
from lro_client.cli._printing import (
    full_list,
    full_operations,
    json_option,
    print_end,
    print_json,
    print_line,
    print_listed,
    print_operation,
    print_table,
    state_line,
)
from lro_client.cli._terminal import (
    ClientCommand,
    Exit,
    exit_of,
    print_error,
    sentence,
    set_going_on,
    set_starting,
    worst,
)

F = TypeVar("F", bound=Callable[..., object])

_AT_ONCE: Final = 8
"""Maximum number of concurrent calls for the operations that match a filter."""
_MAX_LIMIT: Final = 1_000_000_000
_MAX_PAGE: Final = 1000
"""Maximum number of operations in one page."""


_timeout = functools.partial(click.option, "--timeout", type=span, metavar="SPAN")
_timeout_option = _timeout(
    help="Wait at most this long, such as 90, 1.5s, 10m or 2h; then exit with 4."
)

_poll_option = click.option(
    "--poll",
    is_flag=True,
    help="Poll with GetOperation; for servers whose WaitOperation does not work.",
)


@click.command("list", cls=ClientCommand)
@click.argument("parent", default="")
@click.option("--filter", "wanted", metavar="FILTER", default="", help="An AIP-160 filter.")
@click.option("--waiting", is_flag=True, help="List only work that waits; for servers of lro.")
@click.option(
    "--page-size", type=click.IntRange(min=1), metavar="N", help="Ask for at most N with each call."
)
@click.option("--limit", type=click.IntRange(1, _MAX_LIMIT), metavar="N", help="Print at most N.")
@_timeout(help="Take at most this long, such as 90, 1.5s, 10m or 2h; then exit with 5.")
@json_option
@server_options
def list_operations(
    server: ServerOptions,
    parent: str,
    wanted: str,
    waiting: bool,
    page_size: int | None,
    limit: int | None,
    timeout: float | None,
    as_json: bool,
) -> Exit:
    """List operations, newest first.

    PARENT is the parent of the names, such as projects/p; by default, names without a parent.
    """
    if parent:
        check_path(parent, "a parent")
    if waiting:
        wanted = f"({wanted}) AND waiting()" if wanted.strip() else "waiting()"
    with server.connect(within=timeout) as link:
        size = page_size or min(limit or 0, 1000)
        in_terminal = sys.stdout.isatty()
        if (in_terminal or waiting) and not as_json:
            found = islice(full_list(parent, wanted, size, timeout, link), limit)
            (print_table if in_terminal else print_listed)(found, link)
            return Exit.DONE
        listed = link.client.list(parent, wanted, page_size=size)
        for operation in islice(operations_of(listed, timeout), limit):
            if as_json:
                print_json(operation, link)
            else:
                click.echo(state_line(operation, link).text)
    return Exit.DONE


@click.command("get", cls=ClientCommand)
@names_argument()
@click.option(
    "--check", is_flag=True, help="Exit with the state: 1 failed, 3 cancelled, 4 still running."
)
@click.option(
    "--view",
    type=click.Choice(["BASIC", "FULL"], case_sensitive=False),
    default="BASIC",
    help="FULL also prints method, times and attempts, even to a pipe and as JSON.",
)
@json_option
@server_options
def get(
    server: ServerOptions, names: tuple[str, ...], check: bool, view: View, as_json: bool
) -> Exit:
    """Print operations as they are now.

    A NAME is an operation's name, its URL, or a token of a handle.
    """
    wanted, said = read_names(names, server)
    exits = []
    with server.connect(said) as link:
        found: Mapping[str, Operation] = {}
        if view == "BASIC" and sys.stdout.isatty() and not as_json:
            found = full_operations(wanted, link)
        for name in wanted:
            try:
                operation = found.get(name) or link.client.get(name, view=view)
            except CallError as exc:
                print_error(sentence(exc, name))
                exits.append(Exit.CALL_FAILED)
                continue
            print_operation(operation, link, as_json=as_json)
            exits.append(exit_of(operation) if check else Exit.DONE)
    return worst(exits)


@click.command("wait", cls=ClientCommand)
@names_argument()
@_timeout_option
@_poll_option
@json_option
@server_options
def wait(
    server: ServerOptions, names: tuple[str, ...], timeout: float | None, poll: bool, as_json: bool
) -> Exit:
    """Wait until operations are done, and print each when it is done.

    A NAME is an operation's name, its URL, or a token of a handle.

    Exit status, of the worst operation: 0 done with a response, 1 failed, 3 cancelled, 4 still
    running, 5 a call failed, 130 interrupted.
    """
    wanted, said = read_names(names, server)
    with server.connect(said, within=timeout, poll=poll) as link:
        handles = [handle_of(link, name) for name in wanted]
        show = functools.partial(print_end, link=link, as_json=as_json)
        return conclude(handles, link, timeout, show)


@click.command("watch", cls=ClientCommand)
@names_argument(required=False)
@click.option(
    "--filter", "wanted", metavar="FILTER", help="Watch all that match an AIP-160 filter."
)
@click.option("--parent", metavar="PARENT", default="", help="Apply the filter to this parent.")
@click.option(
    "--limit",
    type=click.IntRange(1, _MAX_LIMIT),
    metavar="N",
    default=1000,
    show_default=True,
    help="With --filter, watch at most N, the newest.",
)
@_timeout_option
@_poll_option
@json_option
@server_options
def watch(
    server: ServerOptions,
    names: tuple[str, ...],
    wanted: str | None,
    parent: str,
    limit: int,
    timeout: float | None,
    poll: bool,
    as_json: bool,
) -> Exit:
    """Watch operations until all are done: a live table, or in a pipe a line for each change.

    A NAME is an operation's name, its URL, or a token of a handle. With --filter, the command
    watches the operations that match when it begins.

    Exit status: as for lro wait.
    """
    if bool(names) == (wanted is not None):
        raise click.UsageError("give either names or --filter")
    found, said = read_names(names, server)
    if parent:
        check_path(parent, "a parent")
    with server.connect(said, within=timeout, poll=poll) as link:
        handles = [handle_of(link, name) for name in found]
        if wanted is not None:
            began = time.monotonic()
            handles = _matching(link, parent, wanted, limit, timeout)
            if timeout is not None:
                timeout = max(timeout + began - time.monotonic(), 0.0)
        return _watch_all(handles, link, timeout, as_json=as_json)


def _matching(
    link: Link, parent: str, wanted: str, limit: int, timeout: float | None
) -> list[Handle]:
    listed = link.client.list(parent, wanted, page_size=min(limit + 1, _MAX_PAGE))
    found = list(islice(operations_of(listed, timeout), limit + 1))
    if not found:
        print_error("no operation matches")
    if len(found) > limit:
        print_error(f"more than {limit} match: only {limit} are watched; give --limit for more")
    return [handle_of(link, one) for one in found[:limit]]


def _watch_all(
    handles: Sequence[Handle], link: Link, timeout: float | None, *, as_json: bool
) -> Exit:
    """Show operations while they run, and return the worst exit status."""
    if not as_json and sys.stdout.isatty():
        from lro_client.cli._printing import LiveTable, can_redraw  # loads rich

        if can_redraw():
            with LiveTable([handle.name for handle in handles], link) as table:
                return conclude(handles, link, timeout, table.show, changes=True, lose=table.lose)
    show = functools.partial(print_json if as_json else print_line, link=link)
    return conclude(handles, link, timeout, show, changes=True)


_filter_options = (
    click.option(
        "--filter", "wanted", metavar="FILTER", help="All that match this AIP-160 filter."
    ),
    click.option("--parent", metavar="PARENT", default="", help="Apply the filter to this parent."),
    click.option("--yes", "sure", is_flag=True, help="With --filter, do not ask for confirmation."),
)


def _with_filter(command: F) -> F:
    """Add the options of a command that takes either names or a filter."""
    for option in reversed(_filter_options):
        command = option(command)
    return command


@click.command("cancel", cls=ClientCommand)
@names_argument(required=False)
@_with_filter
@click.option("--wait", "waits", is_flag=True, help="Wait until they have ended, and print them.")
@_timeout_option
@json_option
@server_options
def cancel(
    server: ServerOptions,
    names: tuple[str, ...],
    wanted: str | None,
    parent: str,
    sure: bool,
    waits: bool,
    timeout: float | None,
    as_json: bool,
) -> Exit:
    """Ask for operations to be cancelled.

    A NAME is an operation's name, its URL, or a token of a handle. With --filter, the command
    cancels all operations in progress that match; it shows their number and asks first. With
    --wait, the exit status is 0 for operations that were cancelled, or were done before.
    """
    found, said = _read_chosen(names, server, wanted, parent)
    with server.connect(said, within=timeout) as link:
        if wanted is None:
            asked, exits = _call_each(link.client.cancel, found)
        else:
            matching = _all_matching(link, parent, wanted, timeout)
            open_ones = [operation.name for operation in matching if not operation.done]
            asked, exits = _call_all(
                link.client.cancel, open_ones, "cancel", "asked to stop", sure=sure
            )
        if waits:
            handles = [handle_of(link, name) for name in asked]
            show = functools.partial(print_end, link=link, as_json=as_json)
            exits.append(conclude(handles, link, timeout, show, judge=_exit_as_asked))
    return worst(exits)


def _exit_as_asked(operation: Operation) -> Exit:
    found = exit_of(operation)
    return Exit.DONE if found is Exit.CANCELLED else found


def _call_each(verb: Callable[[str], None], names: Iterable[str]) -> tuple[list[str], list[Exit]]:
    """Call a verb for each name, and report each failure.

    Returns:
        The names for which the call succeeded, and the exit status of each call.
    """
    worked, exits = [], []
    for name in names:
        try:
            verb(name)
        except CallError as exc:
            print_error(sentence(exc, name))
            exits.append(Exit.CALL_FAILED)
        else:
            worked.append(name)
            exits.append(Exit.DONE)
    return worked, exits


@click.command("delete", cls=ClientCommand)
@names_argument(required=False)
@_with_filter
@server_options
def delete(
    server: ServerOptions, names: tuple[str, ...], wanted: str | None, parent: str, sure: bool
) -> Exit:
    """Remove the records of operations, without stopping their work.

    A NAME is an operation's name, its URL, or a token of a handle. With --filter, the command
    deletes all operations that match; it shows their number and asks first.
    """
    found, said = _read_chosen(names, server, wanted, parent)
    with server.connect(said) as link:
        if wanted is None:
            _, exits = _call_each(link.client.delete, found)
        else:
            matching = [one.name for one in _all_matching(link, parent, wanted, None)]
            _, exits = _call_all(link.client.delete, matching, "delete", "deleted", sure=sure)
    return worst(exits)


def _read_chosen(
    names: tuple[str, ...], server: ServerOptions, wanted: str | None, parent: str
) -> tuple[Sequence[str], str]:
    """Return the given names, and the server if the names include it.

    Raises:
        click.UsageError: Names and a filter were given, or neither, or the filter is empty.
    """
    if bool(names) == (wanted is not None):
        raise click.UsageError("give either names or --filter")
    if wanted is not None and not wanted.strip():
        raise click.UsageError("the filter is empty; 'name:*' matches all operations")
    if parent:
        check_path(parent, "a parent")
    return read_names(names, server)


def _all_matching(
    link: Link, parent: str, wanted: str, timeout: float | None
) -> Iterator[Operation]:
    return operations_of(link.client.list(parent, wanted, page_size=_MAX_PAGE), timeout)


def _call_all(
    verb: Callable[[str], None], names: Sequence[str], action: str, done: str, *, sure: bool
) -> tuple[list[str], list[Exit]]:
    """Ask for confirmation, then call a verb for all these names, several at once.

    Returns:
        The same as :func:`_call_each`, but operations that no longer exist have no exit status.

    Raises:
        click.UsageError: Confirmation is needed, but there is no terminal.
    """
    print_error(f"to {action}: {len(names)}")
    if not names:
        return [], []
    if not sure:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask at: give --yes")
        if not click.confirm(f"{action.capitalize()} them?", err=True):
            return [], []

    def call(name: str) -> CallError | None:
        try:
            verb(name)
        except CallError as exc:
            return exc
        return None

    worked, exits = [], []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for name, error in zip(names, threads.map(call, names), strict=True):
            if error is None:
                worked.append(name)
                exits.append(Exit.DONE)
            elif error.code is not Code.NOT_FOUND:
                print_error(sentence(error, name))
                exits.append(Exit.CALL_FAILED)
    refused = exits.count(Exit.CALL_FAILED)
    print_error(f"{done}: {len(worked)}" + (f"; left out: {refused}" if refused else ""))
    return worked, exits


_request_id_option = click.option(
    "--request-id",
    metavar="ID",
    default="",
    help="A text under which work starts only once, so calls can be retried; auto makes a UUID.",
)
_follow_options = (
    click.option("--wait", "waits", is_flag=True, help="Wait until it is done, and print it."),
    click.option("--watch", "watches", is_flag=True, help="Show its progress until it is done."),
    _timeout_option,
    _poll_option,
    json_option,
)


@attrs.frozen
class FollowOptions:
    """The options for showing the operations that a command has started."""

    waits: bool
    watches: bool
    timeout: float | None
    poll: bool
    as_json: bool


def _with_follow(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, and pass them to its function as the argument ``follow``."""

    @functools.wraps(command)
    def with_follow(**given: Any) -> Any:
        names = [field.name for field in attrs.fields(FollowOptions)]
        follow = FollowOptions(*map(given.pop, names))
        if follow.waits and follow.watches:
            raise click.UsageError("give either --wait or --watch")
        return command(follow=follow, **given)

    made: Callable[..., Any] = with_follow
    for option in reversed(_follow_options):
        made = option(made)
    return made


@click.command("start", cls=ClientCommand)
@click.argument("target")
@click.argument("message", metavar="[JSON | @FILE | -]", default="{}")
@_request_id_option
@click.option("--validate-only", is_flag=True, help="Only check whether it could be started.")
@_with_follow
@server_options
def start(
    server: ServerOptions,
    target: str,
    message: str,
    request_id: str,
    validate_only: bool,
    follow: FollowOptions,
) -> Exit:
    """Start an operation, and print it.

    TARGET is the path of a method such as /v1/images:resize, or its URL; over gRPC its full name
    such as acme.v1.Images.Resize, which needs --descriptors.

    Exit status: 0 once the operation is started; with --wait or --watch as for lro wait.
    """
    fields = read_message(message)
    path, said = _read_target(target)
    request_id = _read_request_id(request_id)
    with server.connect(said, poll=follow.poll) as link:
        set_starting("" if validate_only else _perhaps_started(request_id))
        handle = link.client.start(
            path,
            message_for(link, path, fields),
            response=AnyMessage,
            metadata=AnyMessage,
            request_id=request_id,
            validate_only=validate_only,
        )
        set_starting("")
        set_going_on([] if handle.done else [handle.name])
        return _shown([handle], link, follow)


@click.command("rerun", cls=ClientCommand)
@names_argument(required=False, single=True)
@_with_filter
@_request_id_option
@_with_follow
@server_options
def rerun(
    server: ServerOptions,
    names: tuple[str, ...],
    wanted: str | None,
    parent: str,
    sure: bool,
    request_id: str,
    follow: FollowOptions,
) -> Exit:
    """Start the work of an operation that has ended again, and print the new operation.

    NAME is the name of an operation that has failed or was cancelled, its URL, or a token of a
    handle. Servers offer this only to callers whom they trust. With --filter, the command reruns
    all failed or cancelled operations that match and were not rerun before; it shows their number
    and asks first. A repeated rerun starts nothing: it prints the operation of the first rerun.

    Exit status: 0 once the operation is started; with --wait or --watch as for lro wait.
    """
    found, said = _read_chosen(names, server, wanted, parent)
    if wanted is not None and request_id:
        raise click.UsageError("--request-id is for one name: with --filter each has its own")
    request_id = _read_request_id(request_id)
    with server.connect(said, poll=follow.poll) as link:
        if wanted is None:
            set_starting("it may have been started again: the same command starts nothing twice")
            handles = [handle_of(link, link.client.rerun(found[0], request_id=request_id))]
            exits = [Exit.DONE]
        else:
            matching = full_list(parent, wanted, _MAX_PAGE, follow.timeout, link)
            ended = [one.name for one in matching if one.error and not one.description.rerun]
            set_starting("some may have been started: the same command starts none of them twice")
            handles, exits = _rerun_all(link, ended, sure=sure)
        set_starting("")
        set_going_on(handle.name for handle in handles if not handle.done)
        shown = _shown(handles, link, follow)
    return worst([*exits, shown])


def _rerun_all(link: Link, names: Sequence[str], *, sure: bool) -> tuple[list[Handle], list[Exit]]:
    made: dict[str, Operation] = {}

    def call(name: str) -> None:
        made[name] = link.client.rerun(name)

    worked, exits = _call_all(call, names, "rerun", "started again", sure=sure)
    return [handle_of(link, made[name]) for name in worked], exits


def _shown(handles: Sequence[Handle], link: Link, follow: FollowOptions) -> Exit:
    if follow.watches:
        return _watch_all(handles, link, follow.timeout, as_json=follow.as_json)
    if follow.waits:
        show = functools.partial(print_end, link=link, as_json=follow.as_json)
        return conclude(handles, link, follow.timeout, show)
    for handle in handles:
        print_operation(handle.operation, link, as_json=follow.as_json)
    return Exit.DONE


def _read_request_id(given: str) -> str:
    """Return the request id of a start. Print an id that is made here."""
    if given != "auto":
        return given
    made = str(uuid.uuid4())
    print_error(f"the request id is {made}")
    return made


def _read_target(target: str) -> tuple[str, str]:
    """Return the method, and the server if the target is a URL."""
    path, said = target, ""
    if "://" in target:
        found = split_url(target)
        path = found.path + (f"?{found.query}" if found.query else "")
        said = f"{found.scheme}://{found.netloc}"
    if dotted(unquote(path.partition("?")[0])):
        raise click.UsageError(f"{target!r:.200} is not a method: a segment is '.' or '..'")
    return path, said


def _perhaps_started(request_id: str) -> str:
    if request_id:
        again = f"the same command with --request-id {shlex.quote(request_id)} starts nothing twice"
        return f"the operation may have been started: {again}"
    return "the operation may have been started: look for it with: lro list"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options and names.

    For bash, add this to ~/.bashrc: eval "$(lro completion bash)"; for zsh the same with zsh in
    ~/.zshrc; for fish: lro completion fish > ~/.config/fish/completions/lro.fish. Names of
    operations are completed if LRO_SERVER or --server names a server.
    """
    root = context.find_root()
    name = root.info_name or "lro"
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    made = get_completion_class(shell)
    assert made is not None  # click.Choice allows only shells that click supports
    click.echo(made(root.command, {}, name, variable).source())
