"""Operating-system locks that show at once that a process has ended."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable
from typing import Final

from lro._engine.process import PerProcess

try:
    import fcntl
except ImportError:  # Windows has no such locks: wait for the lease
    fcntl = None  # type: ignore[assignment]

_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)


class WorkerLocks(PerProcess):
    """Keeps a file beside the database for each worker, locked while the worker's process lives.

    The operating system frees the locks of a process however it ends. If the file is missing, or
    the system has no such locks, the process is not assumed to have ended.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def hold(self, owner: str) -> None:
        """Create and lock the file of a worker of this process. Idempotent.

        The file is locked before it gets its name, because an unlocked file means a dead owner.
        """
        if fcntl is None or owner in self._held:
            return
        with self._lock, contextlib.suppress(OSError):
            if owner in self._held:
                return
            name = self._name_of(owner)
            file = os.open(f"{name}-new", _FLAGS | os.O_CREAT, 0o600)
            self._held[owner] = file
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(f"{name}-new", name)
            except OSError:  # the system cannot lock the file
                os.unlink(f"{name}-new")

    def remove(self, owner: str) -> None:
        """Remove the file of a worker that belongs to this process or has ended."""
        with self._lock, contextlib.suppress(OSError):
            self._close(owner)
            os.unlink(self._name_of(owner))

    def is_dead(self, owner: str) -> bool:
        """Return True if the process of a worker is known to have ended."""
        if fcntl is None or owner in self._held:
            return False
        try:
            file = os.open(self._name_of(owner), _FLAGS)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # the process lives, or the system cannot lock the file
            return False
        finally:
            os.close(file)
        return True

    def are_all_held(self, owners: Iterable[str]) -> bool:
        """Return True if all these owners are workers of this process."""
        return all(owner in self._held for owner in owners)

    def close(self) -> None:
        """Release the locks of all workers of this process, which then count as ended."""
        with self._lock:
            for owner in [*self._held]:
                self._close(owner)

    def _close(self, owner: str) -> None:
        file = self._held.pop(owner, None)
        if file is not None:
            os.close(file)

    def _name_of(self, owner: str) -> str:
        digest = hashlib.blake2b(owner.encode(errors="replace"), digest_size=8).hexdigest()
        return f"{self._path}-worker-{digest}"

    def _after_fork(self) -> None:
        # Close the copies in the child. The locks last until the parent closes its copies.
        self._lock = threading.Lock()
        self.close()
