"""Wait until other threads or processes meet a condition, with a generous time limit."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_starved: defaultdict[str, list[int]] = defaultdict(list)
"""For each number of a thread, how long each thread with this number had waited when last seen."""

PATIENCE: Final = 120.0
"""The seconds after which a condition that has not been met is an error."""

PAUSE_SECONDS: Final = 0.005
"""The pause between two checks of a condition, in seconds."""


def until(look: Callable[[], T], holds: Callable[[T], object] = bool) -> T:
    """Call ``look`` until ``holds`` is true for its result, and return that result.

    ``until(lambda: server.running)`` waits for a true value;
    ``until(lambda: len(seen), lambda count: count == 3)`` shows the last count on failure.

    Raises:
        AssertionError: The condition was not met within ``PATIENCE``; the text has the last result.
    """
    end = time.monotonic() + PATIENCE
    while not holds(seen := look()):
        check_time(end, look, seen)
        time.sleep(PAUSE_SECONDS)
    return seen


async def until_async(look: Callable[[], T], holds: Callable[[T], object] = bool) -> T:
    """Wait as ``until`` does, but let the event loop run between two checks.

    Raises:
        AssertionError: The condition was not met within ``PATIENCE``; the text has the last result.
    """
    end = time.monotonic() + PATIENCE
    while not holds(seen := look()):
        check_time(end, look, seen)
        await asyncio.sleep(PAUSE_SECONDS)
    return seen


def threads_from_now(name: str) -> Callable[[], list[threading.Thread]]:
    """Return a function that lists live threads with this name that start after this call."""
    others = {*threading.enumerate()}
    return lambda: [one for one in {*threading.enumerate()} - others if one.name.startswith(name)]


def joined(thread: threading.Thread) -> None:
    """Wait until a thread has ended.

    Raises:
        AssertionError: The thread still runs after ``PATIENCE``.
    """
    thread.join(PATIENCE)
    assert not thread.is_alive(), f"{thread} still runs after {PATIENCE:g} s"


def starved_seconds() -> float:
    """Return the seconds for which this process's threads were ready but got no CPU; 0 if unknown.

    Threads that an earlier call has seen count, even if they have ended. On a busy machine, calls
    take longer by this time, so a test of durations adds it to its bound.
    """
    for figures in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            waited, known = int(figures.read_text().split()[1]), _starved[figures.parent.name]
            if known and known[-1] <= waited:
                known.pop()
            known.append(waited)  # after that of another thread, which had the same number
    return sum(map(sum, _starved.values())) / 1e9


def check_time(end: float, look: Callable[[], object], seen: object) -> None:
    """Fail if it is later than ``end``, with the source and the last result of ``look``."""
    if time.monotonic() > end:
        try:
            code = inspect.getsource(look).strip()
        except (OSError, TypeError):
            code = repr(look)
        raise AssertionError(f"still not so after {PATIENCE:g} s; seen last: {seen!r}\n{code}")
