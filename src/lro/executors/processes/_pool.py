"""The children of one executor: lent for a task, taken back, ended."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import Final

from lro._engine.forks import after_fork
from lro.executors.processes._process import LEAVE_SECONDS, ChildProcess

_pools: Final[weakref.WeakSet[ChildPool]] = weakref.WeakSet()


class ChildPool:
    """Children that wait for work, the last used first, and those that are at it.

    Each is ended after ``recycle`` calls; None: never.
    """

    def __init__(self, recycle: int | None) -> None:
        self._recycle = recycle
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        after_fork(self, ChildPool._reset_after_fork)
        _pools.add(self)

    def take(self) -> ChildProcess:
        """A child that waits for a call; if need be, a new one.

        Raises:
            OSError: It cannot be started.
        """
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return self._start()
            if process.alive:
                return process
            self._end(process)  # it was killed meanwhile

    def give_back(self, process: ChildProcess, *, spoilt: bool) -> None:
        """Keep a child for the next task, or end it if it is of no more use."""
        with self._lock:
            used_up = self._recycle is not None and process.calls >= self._recycle
            if not (spoilt or used_up or self._closed):
                self._idle.append(process)
                return
        process.shut_down()
        self._end(process)

    def close(self) -> None:
        """Have the idle children end, now, and the others when they are taken back."""
        with self._lock:
            self._closed = True
            leaving = [*self._idle]
        for process in leaving:
            process.shut_down()

    def reap(self, seconds: float) -> None:
        """Wait at most ``seconds`` seconds for the idle children to end, then kill them."""
        until = time.monotonic() + seconds
        with self._lock:
            leaving, self._idle = self._idle, []
        for process in leaving:
            self._end(process, max(0.0, until - time.monotonic()))

    def kill(self) -> None:
        """End all children at once, whatever they do."""
        with self._lock:
            everybody = [*self._all]
        for process in everybody:
            process.kill()
        for process in everybody:
            process.wait()

    def _start(self) -> ChildProcess:
        process = ChildProcess()
        with self._lock:
            self._all.add(process)
        return process

    def _end(self, process: ChildProcess, seconds: float = LEAVE_SECONDS) -> None:
        process.reap(seconds)
        with self._lock:
            self._all.discard(process)

    def _reset_after_fork(self) -> None:
        # In a forked process: the children are the parent's.
        for process in self._all:
            process.detach()
        self._lock = threading.Lock()
        self._idle, self._all = [], set()


def _kill_all() -> None:
    # The process is ending: what works for it must not go on without it.
    for pool in list(_pools):
        pool.kill()


atexit.register(_kill_all)
