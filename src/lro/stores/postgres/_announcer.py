"""Telling other processes what has changed: gathered, and outside of all that writes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from lro._messages.json_text import dumps

log = logging.getLogger("lro")

PERIOD_SECONDS: Final = 0.01
"""Announcements are not sent more often; the first one after a silence is sent at once.

A NOTIFY takes a lock that all of the server's NOTIFYs share, until its commit is on disk.
"""

PAYLOAD_BYTES: Final = 7_900
"""NOTIFY carries less than 8,000 bytes."""


class Announcer:
    """Sends names by one thread of its own, which sleeps while nothing is announced.

    ``send`` is given payloads; what it raises is logged, and those announcements are lost.
    ``sender`` stands in each payload, so that its own ears know it.
    """

    def __init__(self, send: Callable[[Sequence[str]], None], sender: str) -> None:
        self._send = send
        self._sender = sender
        self._changed = threading.Condition(threading.Lock())
        self._names: dict[str, None] = {}
        self._asleep = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def announce(self, name: str) -> None:
        """Have this name sent soon."""
        with self._changed:
            if self._stopped:
                return
            self._names[name] = None
            if self._thread is None:
                self._thread = self._begun()
            elif self._asleep:
                self._changed.notify()

    def stop(self) -> None:
        """Send what is left, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _begun(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._live, name="lro-announcer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            return None
        return thread

    def _live(self) -> None:
        while (names := self._next()) is not None:
            try:
                self._send(list(payloads(self._sender, names)))
            except Exception as exc:  # those who wait look again by themselves before long
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
    """As few texts as possible that carry these names, each a JSON list after the sender's id."""
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
