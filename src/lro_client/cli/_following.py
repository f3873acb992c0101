"""Show the changes or the ends of several operations as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import attrs

from lro import AnyMessage, Operation
from lro_client._client.client import OperationHandle
from lro_client._client.handles import Update
from lro_client._errors import CallError, ClientError, PollTimeout
from lro_client.cli._connection import Link
from lro_client.cli._terminal import (
    Exit,
    StatusLine,
    exit_of,
    print_error,
    print_going_on,
    sentence,
    set_going_on,
    worst,
)

Handle: TypeAlias = OperationHandle[AnyMessage, AnyMessage]
Show: TypeAlias = Callable[[Operation], None]
Lose: TypeAlias = Callable[[str], None]
Judge: TypeAlias = Callable[[Operation], Exit]


def handle_of(link: Link, operation: Operation | str) -> Handle:
    """Make a handle whose messages stay packed."""
    return link.client.operation(operation, response=AnyMessage, metadata=AnyMessage)


@attrs.frozen
class _Account:
    """The exit status of each operation so far, and the callbacks that show it."""

    show: Show
    lose: Lose
    judge: Judge
    exits: dict[str, Exit]
    status: StatusLine
    shown: dict[str, Operation] = attrs.field(factory=dict)

    def seen(self, operation: Operation, name: str) -> None:
        self._note(name, self.judge(operation))
        if self.shown.get(name) != operation:
            self.shown[name] = operation
            self.status.clear()
            self.show(operation)
        self.say_left()

    def lost(self, name: str, error: Exception) -> None:
        if not isinstance(error, ClientError):
            raise error
        self._note(name, Exit.CALL_FAILED)
        self.lose(name)
        self.status.clear()
        print_error(sentence(error, name))
        self.say_left()

    def say_left(self) -> None:
        self.status.show(sum(known is Exit.RUNNING for known in self.exits.values()))

    def _note(self, name: str, found: Exit) -> None:
        # Done before any output: from here on, an interrupt reports which operations continue.
        self.exits[name] = found
        set_going_on(name for name, known in self.exits.items() if known is Exit.RUNNING)


def conclude(
    handles: Sequence[Handle],
    link: Link,
    timeout: float | None,
    show: Show,
    *,
    changes: bool = False,
    lose: Lose = lambda _: None,
    judge: Judge = exit_of,
) -> Exit:
    """Wait for operations. Show each when it ends, and report each that cannot be waited for.

    With ``changes``, show each change too. Without it, a status line shows the number of operations
    that are left. ``lose`` is called with the name of an operation that cannot be waited for.
    ``judge`` returns the exit status for a state.

    Returns:
        The worst exit status of all operations.
    """
    until = None if timeout is None else time.monotonic() + timeout
    exits = {handle.name: Exit.RUNNING for handle in handles}
    try:
        with StatusLine(not changes) as status:
            account = _Account(show, lose, judge, exits, status)
            _follow(handles, link, until, account, changes=changes)
    except PollTimeout as exc:
        print_error(sentence(exc))
        print_going_on()
    return worst(exits.values())


def _follow(
    handles: Sequence[Handle], link: Link, until: float | None, account: _Account, *, changes: bool
) -> None:
    set_going_on(account.exits)
    account.say_left()
    waiting = _looked_at(handles, account, until, changes=changes)
    left = None if until is None else max(until - time.monotonic(), 0.0)
    for update in _updates(waiting, link, left, changes=changes):
        if update.error is None or update.done:
            account.seen(update.operation, update.name)
        else:
            account.lost(update.name, update.error)


def _looked_at(
    handles: Sequence[Handle], account: _Account, until: float | None, *, changes: bool
) -> list[Handle]:
    """Read the first operation once, and return the handles that are left to wait for.

    A wait keeps retrying while a server is unavailable, but a mistyped URL must fail at once.
    """
    waiting: list[Handle] = []
    for handle in handles:
        known = handle.operation != Operation(name=handle.name)  # known from a list or a start
        in_time = until is None or time.monotonic() < until
        if not known and in_time and handle is handles[0]:
            try:
                handle.refresh()
            except CallError as exc:
                account.lost(handle.name, exc)
                if exc.passing:
                    return []
                continue
            known = True
        if known and changes:
            account.seen(handle.operation, handle.name)
        if not (known and changes and handle.done):
            waiting.append(handle)
    return waiting


def _updates(
    handles: Sequence[Handle], link: Link, timeout: float | None, *, changes: bool
) -> Iterator[Update[AnyMessage]]:
    group = link.client.group(handles)
    if changes:
        yield from group.updates(timeout)
        return
    for handle in group.as_completed(timeout):
        yield Update(handle, handle.operation)
