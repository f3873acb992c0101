"""Run what another thread does between any two lines of an action, as a thread switch can."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

_Trace: TypeAlias = "Callable[[FrameType, str, Any], _Trace | None]"


class Interrupt(KeyboardInterrupt):
    """The error by which :func:`interrupted` interrupts an action."""


def interleaved(
    pair: Callable[[], tuple[Callable[[], object], Callable[[], object]]],
) -> Iterator[int]:
    """Call an action once for each of its lines, and ``meanwhile`` before that line.

    ``pair`` returns a new action and a new ``meanwhile`` for each line. Neither may wait for a lock
    that the other one holds. After each action, its line number is yielded: check the outcome then.
    """
    line, reached = 0, True
    while reached:
        action, meanwhile = pair()
        reached = _called_at(line, "line", action, meanwhile)
        if reached:
            yield line
        line += 1


def interrupted(make: Callable[[], Callable[[], object]]) -> Iterator[int]:
    """Interrupt an action once at each call of a function, where Python also handles signals.

    ``make`` returns a new action for each call. After each action, the number of the call is
    yielded: check the outcome then.
    """
    call, reached = 0, True
    while reached:
        try:
            reached = _called_at(call, "call", make(), _interrupt)
        except Interrupt:
            yield call
        call += 1


def _interrupt() -> None:
    raise Interrupt


def _called_at(
    place: int, kind: str, action: Callable[[], object], meanwhile: Callable[[], object]
) -> bool:
    """Call ``action``, and ``meanwhile`` before its event of this number, if it has that event."""
    events = 0

    def trace(_: FrameType, event: str, __: Any) -> _Trace:
        nonlocal events
        if event == kind:
            if events == place:
                meanwhile()  # it is not traced
            events += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return events > place
