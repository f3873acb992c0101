"""Calls of the application's functions: what one raises ends its own call, and no server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lro._base.errors import interrupts
from lro._base.faults import HookFailed

R = TypeVar("R")


def contained(name: str, function: Callable[..., R], *arguments: object) -> R:
    """What a function of the application returns.

    Only the function itself is called within: an exception that a signal handler raises elsewhere,
    such as SystemExit, is to end the program.

    Raises:
        HookFailed: It raised what would stop a server.
    """
    try:
        return function(*arguments)
    except BaseException as exc:
        if passes(exc):
            raise
        raise failed(name, exc) from exc


def failed(name: str, error: BaseException) -> HookFailed:
    """The error that tells what a function of this name has raised."""
    failure = HookFailed(name, f"raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


def passes(error: BaseException) -> bool:
    """Whether an error is one that no server ends of, or the program is to end by."""
    return isinstance(error, Exception) or interrupts(error)
