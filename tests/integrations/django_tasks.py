"""Tasks of the Django project, which the backend finds by the paths of their functions."""

from __future__ import annotations

import threading
from typing import Any

from django.tasks import task

BEGUN, GO_ON = threading.Event(), threading.Event()


@task
def add(one: int, other: int) -> int:
    """The sum."""
    return one + other


@task
async def add_awaited(one: int, other: int) -> int:
    """The sum, by a coroutine."""
    return one + other


@task
def fail() -> None:
    """Raises what Django's users expect to find in the result."""
    raise KeyError("secret")


@task(takes_context=True)
def hold(context: Any, label: str) -> str:
    """Runs until the test lets it go on."""
    context.progress(0.5, f"half of {label}")
    BEGUN.set()
    while not GO_ON.wait(0.01):
        context.progress(0.5, f"half of {label}")
    return label
