"""Replace clocks and thread functions, which the whole process uses, in a test's own threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest


def patch_threads(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fake: Callable[..., Any]
) -> None:
    """Replace a function for this thread, and for threads that start later.

    Older threads keep the real function, because they run servers that tests share: with one test's
    clock such a server might sleep for minutes after the test.
    """
    real = getattr(owner, name)
    others = {*threading.enumerate()} - {threading.current_thread()}

    def chosen(*args: Any, **options: Any) -> Any:
        return (real if threading.current_thread() in others else fake)(*args, **options)

    monkeypatch.setattr(owner, name, chosen)
