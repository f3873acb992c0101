"""How tests replace clocks and threads, which the whole process uses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest


def patch_threads(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fake: Callable[..., Any]
) -> None:
    """Replace a function for this thread, and for threads that start later.

    Servers that tests share run in older threads: with one test's clock they might sleep for
    minutes after that test.
    """
    real = getattr(owner, name)
    others = {*threading.enumerate()} - {threading.current_thread()}

    def chosen(*args: Any, **options: Any) -> Any:
        return (real if threading.current_thread() in others else fake)(*args, **options)

    monkeypatch.setattr(owner, name, chosen)
