"""Run what another thread does between any two lines of an action, as a thread switch can."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

_Trace: TypeAlias = "Callable[[FrameType, str, Any], _Trace | None]"


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
        reached = _called_at(line, action, meanwhile)
        if reached:
            yield line
        line += 1


def _called_at(line: int, action: Callable[[], object], meanwhile: Callable[[], object]) -> bool:
    """Call ``action``, and ``meanwhile`` before its line of this number, if it has that line."""
    lines = 0

    def trace(_: FrameType, event: str, __: Any) -> _Trace:
        nonlocal lines
        if event == "line":
            if lines == line:
                meanwhile()  # it is not traced
            lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines > line
