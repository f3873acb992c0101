"""Hearing what other processes announce: one connection that listens."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Collection

import psycopg
from psycopg import Notify, sql

from lro._base.errors import Unavailable
from lro._engine.forks import after_fork
from lro._messages.json_text import loads
from lro.stores.postgres._link import LEAKED, BoundedConnection, unavailable


class NotifySubscription:
    """Hears the announcements on a channel, but not those of ``sender``, its own process."""

    def __init__(self, link: BoundedConnection, channel: str, sender: str) -> None:
        self._link = link
        self._sender = sender
        self._names: set[str] = set()
        self._unsure = False
        self._closed = False
        self._inherited = False
        self._hearing = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        try:
            link.add_notify_handler(self._note)  # for those that come with the answer
            link.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)), prepare=False)
        except psycopg.Error as exc:
            self.close()
            raise unavailable(exc) from exc
        after_fork(self, NotifySubscription._forked)

    def next_changes(self, seconds: float) -> Collection[str] | None:
        """The names that others have announced; none when the seconds are over."""
        end = time.monotonic() + seconds
        with self._hearing:
            while True:
                if self._closed:
                    raise Unavailable("the ear is closed")
                try:
                    self._read()
                    if self._names or self._unsure:
                        return self._take()
                    left = end - time.monotonic()
                    if left <= 0:
                        return ()
                    self._wait(left)
                except psycopg.Error as exc:
                    raise unavailable(exc) from exc

    def close(self) -> None:
        """End a ``next_changes`` that is waiting, and the connection."""
        if self._inherited:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # it is full, or closed already
            self._wake.send(b"x")
        with self._hearing:
            self._link.close()
            self._wake.close()
            self._woken.close()

    def _wait(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            for file in (self._link.fileno(), self._woken):
                selector.register(file, selectors.EVENT_READ)
            selector.select(seconds)

    def _read(self) -> None:
        connection = self._link.pgconn
        connection.consume_input()  # raises where the connection is lost
        while (notice := connection.notifies()) is not None:
            self._understand(notice.extra)

    def _note(self, notice: Notify) -> None:
        self._understand(notice.payload.encode())

    def _understand(self, payload: bytes) -> None:
        try:
            said = loads(payload)
        except ValueError:
            said = None
        if not isinstance(said, list) or not all(isinstance(word, str) for word in said):
            self._unsure = True  # somebody else speaks here; it may mean something
        elif said[:1] != [self._sender]:
            self._names.update(str(name) for name in said[1:])

    def _take(self) -> Collection[str] | None:
        names, self._names = self._names, set()
        unsure, self._unsure = self._unsure, False
        return None if unsure else names

    def _forked(self) -> None:
        LEAKED.append((self._link, self._wake, self._woken))
        self._hearing = threading.Lock()
        self._closed = self._inherited = True
