"""An asyncio event loop in virtual time."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tests.waiting import PATIENCE

P = ParamSpec("P")
T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the default executor's threads, without a limit in virtual time."""
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:  # only another thread can wake the loop
            return super().select(PATIENCE)
        events = super().select(0)
        if not events:
            self._virtual.now += max(0.0, timeout)
        return events


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual loop; return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a virtual loop."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        run_virtual(test(*arguments, **named))

    return run


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on its own event loop."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run
