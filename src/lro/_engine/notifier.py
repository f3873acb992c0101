"""Who waits for which name. A ring carries no data: wake up and look."""

from __future__ import annotations

import threading
from collections.abc import Callable

Listener = Callable[[], None]


class Notifier:
    """Wakes listeners by name. Listeners are called by the ringing thread and must be quick."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Begin anew: in a forked process, nobody listens."""
        self._lock = threading.Lock()
        self._listeners: dict[str, list[Listener]] = {}

    def listen(self, name: str, listener: Listener) -> None:
        """Call ``listener`` at every ring for this name, until :meth:`leave`."""
        with self._lock:
            self._listeners.setdefault(name, []).append(listener)

    def leave(self, name: str, listener: Listener) -> None:
        """Stop calling ``listener``."""
        with self._lock:
            listeners = self._listeners.get(name, [])
            if listener in listeners:
                listeners.remove(listener)
            if not listeners:
                self._listeners.pop(name, None)

    def notify(self, name: str) -> None:
        """Something about this name has changed."""
        if name not in self._listeners:  # no lock for the common case: nobody waits
            return
        with self._lock:
            listeners = tuple(self._listeners.get(name, ()))
        for listener in listeners:
            listener()

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def notify_all(self) -> None:
        """Wake everybody."""
        for name in self.names():
            self.notify(name)

    def names(self) -> frozenset[str]:
        """The names that somebody listens for."""
        with self._lock:
            return frozenset(self._listeners)

    def __len__(self) -> int:
        """How many listeners there are."""
        with self._lock:
            return sum(len(listeners) for listeners in self._listeners.values())
