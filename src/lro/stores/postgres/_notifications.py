"""Change notifications between processes: sent by NOTIFY, received by LISTEN."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

import psycopg
from psycopg import Notify, sql

from lro._base.errors import Unavailable
from lro._engine.process import PerProcess
from lro._messages.json_text import dumps, loads
from lro.stores._recurring import RecurringLine
from lro.stores.postgres._connections import INHERITED, BoundedConnection, unavailable

log = logging.getLogger("lro")

PERIOD_SECONDS: Final = 0.01
"""Minimum seconds between two sendings; the first announcement after a silence is sent at once.

A NOTIFY holds a lock, shared by all NOTIFYs of the server, until its commit is on disk.
"""

PAYLOAD_BYTES: Final = 7_900
"""Maximum size of a payload in bytes. NOTIFY accepts fewer than 8,000 bytes."""


NOBODY: Final = ""
"""Sender id that no process has, so that every process receives the announcement."""


class Announcer:
    """Thread that sends announced names, and sleeps while there are none.

    ``send`` is called with payloads. If it raises, the error is logged, and these payloads are
    lost. Each payload begins with ``sender``, by which the subscriptions of the same process
    recognise it and ignore it.
    """

    def __init__(self, send: Callable[[Sequence[str]], None], sender: str) -> None:
        self._send = send
        self._sender = sender
        self._failures = RecurringLine()
        self._changed = threading.Condition(threading.Lock())
        self._names: dict[str, None] = {}
        self._asleep = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def announce(self, name: str) -> None:
        """Send this name soon."""
        with self._changed:
            if self._stopped:
                return
            self._names[name] = None
            if self._thread is None:
                self._thread = self._start()
            elif self._asleep:
                self._changed.notify()

    def stop(self) -> None:
        """Send the remaining names, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _start(self) -> threading.Thread | None:
        thread = threading.Thread(
            target=self._send_until_stopped, name="lro-announcer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread can start while the interpreter ends
            return None
        return thread

    def _send_until_stopped(self) -> None:
        while (names := self._next()) is not None:
            try:
                self._send(list(payloads(self._sender, names)))
            # A lost payload is not fatal: other processes poll every few seconds.
            except Exception as exc:
                if self._failures.is_due():
                    log.warning("%d announcements were not sent: %s", len(names), exc)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, PERIOD_SECONDS)

    def _next(self) -> Sequence[str] | None:
        with self._changed:
            while not self._names:
                if self._stopped:
                    return None
                self._asleep = True
                self._changed.wait()
                self._asleep = False
            names = list(self._names)
            self._names.clear()
            return names


def payloads(sender: str, names: Iterable[str]) -> Iterator[str]:
    """Yield as few payloads as possible; each is a JSON list of the sender's id and names."""
    start = dumps(sender)
    parts, size = [start], len(start)
    for name in names:
        try:
            part = dumps(name)
        except ValueError:  # no record has such a name
            continue
        if len(parts) > 1 and size + len(part) > PAYLOAD_BYTES:
            yield _list(parts)
            parts, size = [start], len(start)
        parts.append(part)
        size += len(part) + 1
    if len(parts) > 1:
        yield _list(parts)


def _list(parts: Sequence[bytes]) -> str:
    return (b"[" + b",".join(parts) + b"]").decode()


class NotifySubscription(PerProcess):
    """Receives notifications of other processes on a channel; ``sender`` is this process's id."""

    def __init__(self, connection: BoundedConnection, channel: str, sender: str) -> None:
        self._connection = connection
        self._sender = sender
        self._names: set[str] = set()
        self._unnamed_changes = False
        self._closed = False
        self._inherited = False
        self._receiving = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        try:
            for file in (connection.fileno(), self._woken):
                self._selector.register(file, selectors.EVENT_READ)
            # The handler gets the notifications that arrive with the reply to a statement.
            connection.add_notify_handler(self._notified)
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)), prepare=False)
        except psycopg.Error as exc:
            self.close()
            raise unavailable(exc) from exc

    def next_changes(self, seconds: float) -> Collection[str] | None:
        """Wait up to ``seconds`` seconds, and return the names that other processes announced.

        None means that any record may have changed.
        """
        end = time.monotonic() + seconds
        with self._receiving:
            while True:
                if self._closed:
                    raise Unavailable("the subscription is closed")
                try:
                    self._read()
                    if self._names or self._unnamed_changes:
                        return self._take()
                    left = end - time.monotonic()
                    if left <= 0:
                        return ()
                    self._selector.select(left)
                except psycopg.Error as exc:
                    raise unavailable(exc) from exc

    def close(self) -> None:
        """End a waiting ``next_changes``, and close the connection."""
        if self._inherited:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # the socket's buffer is full, or it is closed
            self._wake.send(b"x")
        with self._receiving:
            self._selector.close()
            self._connection.close()
            self._wake.close()
            self._woken.close()

    def _read(self) -> None:
        connection = self._connection.pgconn
        connection.consume_input()  # raises if the connection is lost
        while (notice := connection.notifies()) is not None:
            self._add_payload(notice.extra)

    def _notified(self, notice: Notify) -> None:
        self._add_payload(notice.payload.encode())

    def _add_payload(self, payload: bytes) -> None:
        try:
            said = loads(payload)
        except ValueError:
            said = None
        if not isinstance(said, list) or not all(isinstance(word, str) for word in said):
            self._unnamed_changes = (
                True  # another program has sent the notification, so any record may have changed
            )
        elif said[:1] != [self._sender]:
            self._names.update(str(name) for name in said[1:])

    def _take(self) -> Collection[str] | None:
        names, self._names = self._names, set()
        unsure, self._unnamed_changes = self._unnamed_changes, False
        return None if unsure else names

    def _after_fork(self) -> None:
        INHERITED.append((self._connection, self._wake, self._woken, self._selector))
        self._receiving = threading.Lock()
        self._closed = self._inherited = True
