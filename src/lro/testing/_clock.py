"""A clock that a check moves, and how a check reports what it found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from lro._base.arguments import check

E = TypeVar("E", bound=Exception)

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""What a new :class:`ManualClock` shows."""


class ManualClock:
    """A clock for tests: ``store = MemoryStore(clock)``, then ``clock.advance(5)``.

    Safe to read and advance from several threads.
    """

    def __init__(self, now: datetime = START) -> None:
        aware = isinstance(now, datetime) and now.tzinfo is not None
        check("now", now, "a datetime with a time zone", fine=aware)
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> datetime:
        """The moment that it shows, in UTC."""
        with self._lock:
            return self._now

    def advance(self, seconds: float = 0, **more: float) -> datetime:
        """Move by these seconds, and ``days=``, ``hours=``, ... as a timedelta takes them."""
        with self._lock:
            self._now += timedelta(seconds=seconds, **more)
            return self._now


def expect(kept: bool, promise: str) -> None:
    """Fail with this text unless the promise was kept. (``assert`` is silent under ``-O``.)"""
    if not kept:
        raise AssertionError(promise)


def same(found: object, wanted: object, what: str) -> None:
    """Fail unless the two are equal."""
    expect(found == wanted, f"{what}: wanted {wanted!r}, found {found!r}")


def refuses(error: type[E], call: Callable[[], object], promise: str) -> E:
    """The error of this class that a call raises; fail if it raises none."""
    try:
        answer = call()
    except error as exc:
        return exc
    raise AssertionError(f"{promise}: wanted {error.__name__}, found {answer!r}")


def together(count: int, call: Callable[[int], object]) -> list[object]:
    """What ``call(0)`` to ``call(count - 1)`` give, or the errors they raise, all begun at once."""
    gate = threading.Barrier(count)
    found: list[object] = [None] * count

    def one(number: int) -> None:
        gate.wait()
        try:
            found[number] = call(number)
        except Exception as exc:
            found[number] = exc

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
