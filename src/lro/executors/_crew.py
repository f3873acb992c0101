"""The threads of an executor: started at the first need, and anew in a forked child."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lro._base.errors import Unavailable
from lro._engine.forks import after_fork

log = logging.getLogger("lro")


class WorkerThreads:
    """``size`` daemon threads that each call ``live``.

    None is started before :meth:`muster`: an executor that a server makes before it forks has no
    thread to lose, and one that is made and never used costs none.
    """

    def __init__(self, size: int, name: str, live: Callable[[], None]) -> None:
        self.size = size
        self._name = name
        self._live = live
        self._lock = threading.Lock()
        self._there = False
        after_fork(self, WorkerThreads._disband)

    def ensure_started(self) -> None:
        """See to it that the threads are there.

        Raises:
            Unavailable: Not one can be started: the process has too many, or is ending.
        """
        with self._lock:
            if not self._there:
                self._start()
                self._there = True

    def _start(self) -> None:
        for number in range(self.size):
            thread = threading.Thread(target=self._live, name=f"{self._name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:
                if number == 0:
                    raise Unavailable(f"no thread can be started: {exc}") from exc
                log.warning("%d threads instead of %d: %s", number, self.size, exc)
                return

    def _disband(self) -> None:
        self._lock = threading.Lock()
        self._there = False
