"""Tasks of the Django project; the backend finds them by their functions' import paths."""

from __future__ import annotations

import threading
from typing import Any

from django.tasks import task

BEGUN, GO_ON = threading.Event(), threading.Event()


@task
def add(one: int, other: int) -> int:
    """Return the sum."""
    return one + other


@task
async def add_awaited(one: int, other: int) -> int:
    """Return the sum, as a coroutine function."""
    return one + other


@task
def fail() -> None:
    """Raise an error whose text must stay secret."""
    raise KeyError("secret")


@task(takes_context=True)
def hold(context: Any, label: str) -> str:
    """Report progress again and again until the test sets ``GO_ON``."""
    context.progress(0.5, f"half of {label}")
    BEGUN.set()
    while not GO_ON.wait(0.01):
        context.progress(0.5, f"half of {label}")
    return label
