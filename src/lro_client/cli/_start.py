"""``lro start``: call a method that returns an operation."""

from __future__ import annotations

import functools
import uuid
from urllib.parse import unquote

import click

from lro import Any
from lro_client._tokens import dotted
from lro_client.cli._connection import Link, Server, server_options, split_url
from lro_client.cli._exits import ClientCommand, Exit, set_going_on, set_starting, tell
from lro_client.cli._following import Handle, conclude
from lro_client.cli._messages import message_for, read_message
from lro_client.cli._printing import json_option, print_end, print_operation
from lro_client.cli._wait import poll_option, timeout_option
from lro_client.cli._watch import watch_all


@click.command("start", cls=ClientCommand)
@click.argument("target")
@click.argument("message", metavar="[JSON | @FILE | -]", default="{}")
@click.option(
    "--request-id",
    metavar="UUID",
    default="",
    help="Starts nothing twice under this id, which lets a lost call be repeated; auto makes one.",
)
@click.option("--wait", "waits", is_flag=True, help="Wait until it is done, and print it.")
@click.option("--watch", "watches", is_flag=True, help="Show its progress until it is done.")
@click.option("--validate-only", is_flag=True, help="Only check whether it could be started.")
@timeout_option
@poll_option
@json_option
@server_options
def start(
    server: Server,
    target: str,
    message: str,
    request_id: str,
    waits: bool,
    watches: bool,
    validate_only: bool,
    timeout: float | None,
    poll: bool,
    as_json: bool,
) -> Exit:
    """Start an operation, and print it.

    TARGET is the path of a method such as /v1/images:resize, or its URL; over gRPC its full name
    such as acme.v1.Images.Resize, which needs --descriptors.

    Exit status: 0 once it is started; with --wait or --watch that of lro wait.
    """
    if waits and watches:
        raise click.UsageError("give either --wait or --watch")
    fields = read_message(message)
    path, said = _read_target(target)
    if request_id == "auto":
        request_id = str(uuid.uuid4())
        tell(f"the request id is {request_id}")
    with server.connect(said, poll=poll) as link:
        set_starting("" if validate_only else _perhaps_started(request_id))
        handle = link.client.start(
            path,
            message_for(link, path, fields),
            response=Any,
            metadata=Any,
            request_id=request_id,
            validate_only=validate_only,
        )
        set_starting("")
        set_going_on([] if handle.done else [handle.name])
        return _shown(handle, link, timeout, waits=waits, watches=watches, as_json=as_json)


def _shown(
    handle: Handle,
    link: Link,
    timeout: float | None,
    *,
    waits: bool,
    watches: bool,
    as_json: bool,
) -> Exit:
    if watches:
        return watch_all([handle], link, timeout, as_json=as_json)
    if waits:
        show = functools.partial(print_end, link=link, as_json=as_json)
        return conclude([handle], link, timeout, show)
    print_operation(handle.operation, link, as_json=as_json)
    return Exit.DONE


def _read_target(target: str) -> tuple[str, str]:
    """The method, and the server where a URL says it."""
    path, said = target, ""
    if "://" in target:
        found = split_url(target)
        path = found.path + (f"?{found.query}" if found.query else "")
        said = f"{found.scheme}://{found.netloc}"
    if dotted(unquote(path.partition("?")[0])):
        raise click.UsageError(f"{target!r:.200} is no method: a segment is '.' or '..'")
    return path, said


def _perhaps_started(request_id: str) -> str:
    if request_id:
        again = f"the same command with --request-id {request_id} starts nothing twice"
        return f"the operation may have been started: {again}"
    return "the operation may have been started: look for it with: lro list"
