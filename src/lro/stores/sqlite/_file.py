"""One SQLite file: where it is, how it is opened, and whether it is still the same."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import Final

from lro._base.errors import DeclarationError, Unavailable

_URL: Final = re.compile(r"(?:file|sqlite):|[A-Za-z][A-Za-z0-9+.\-]+:/", re.IGNORECASE)
"""At least two letters: one is a drive of Windows. Two schemes need no slash: ``file::memory:``."""
SEEN_SECONDS: Final = 1.0
"""How long a file that was seen in its place counts as being there; asking costs a read's time."""


class DatabaseFile:
    """What all connections to a file have in common.

    ``busy_seconds`` is how long others' locks are waited for.

    Raises:
        DeclarationError: The path is that of no file.
    """

    def __init__(self, path: str, busy_seconds: float) -> None:
        if path in ("", ":memory:"):
            raise DeclarationError(repr(path), "is no file; use the MemoryStore")
        if os.path.isdir(path):
            raise DeclarationError(path, "is a directory")
        if _URL.match(path):
            raise DeclarationError(path, "is a URL, and a path is wanted, such as 'operations.db'")
        self.path = os.path.abspath(path)
        self.busy_seconds = busy_seconds
        self.closing = threading.Event()
        self._uri = Path(self.path).as_uri()
        self._identity: tuple[int, int] | None = None
        self._seen = 0.0
        self._useless = ""

    def open(self) -> sqlite3.Connection:
        """A new connection. Only the first one makes a file where there is none.

        Raises:
            Unavailable: The store is closed, or the file is not the one that it was.
            sqlite3.Error: It cannot be opened.
        """
        self.check()
        mode = "rwc" if self._identity is None else "rw"
        connection = sqlite3.connect(
            f"{self._uri}?mode={mode}",
            uri=True,
            timeout=self.busy_seconds,
            isolation_level=None,
            check_same_thread=False,  # one thread at a time, not always the same
        )
        try:
            if self._identity is None:
                self._identity = self._found()
            self._look()
        except BaseException:
            connection.close()
            raise
        return connection

    def check(self) -> None:
        """Refuse what comes too late.

        Raises:
            Unavailable: The store is closed, or a fork has made it useless.
        """
        if self.closing.is_set():
            raise Unavailable("the store is closed")
        if self._useless:
            raise Unavailable(self._useless)

    def unmoved(self) -> None:
        """Refuse to go on with a file that is not there any more: what it is told would be lost.

        Raises:
            Unavailable: It was deleted, or another one has taken its place.
        """
        if time.monotonic() - self._seen >= SEEN_SECONDS:
            self._look()

    def renew(self) -> None:
        """Make what threads share anew, in a forked child."""
        closed = self.closing.is_set()
        self.closing = threading.Event()
        if closed:
            self.closing.set()

    def unopened(self, trouble: sqlite3.OperationalError) -> Unavailable:
        """The error for whoever makes the store: with the path, which no caller is told."""
        folder = os.path.dirname(self.path)
        why = str(trouble) if os.path.isdir(folder) else f"there is no directory {folder}"
        return Unavailable(f"{self.path} cannot be opened: {why}")

    def give_up(self, why: str) -> None:
        """Refuse everything from now on, for this reason."""
        self._useless = why

    def _look(self) -> None:
        now = time.monotonic()
        if self._found() != self._identity:
            self._seen = -SEEN_SECONDS
            raise Unavailable("the operations database was deleted or replaced")
        self._seen = now

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
