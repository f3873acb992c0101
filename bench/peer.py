"""The other process of the benches: ``python -m bench.peer KIND WHERE SCHEMA``.

Each line of its standard input is a command.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lro
from bench.start_to_result import Progress, Request, RunResponse
from lro.executors.inline import InlineExecutor

ROOT = Path(__file__).resolve().parent.parent
CHANNEL = "floor"
Place = tuple[str, str, str]
"""The kind of a store, its path or URL, and its schema."""

FLOOR_TABLE = "CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value BIGINT)"


def open_store(kind: str, where: str, schema: str) -> Any:
    """Open a store of this kind, at a file path or at a URL with a schema."""
    if kind == "memory":
        from lro.stores.memory import MemoryStore

        return MemoryStore()
    if kind == "sqlite":
        from lro.stores.sqlite import SQLiteStore

        return SQLiteStore(where)
    from lro.stores.postgres import PostgresStore

    return PostgresStore(where, schema=schema)


def declared(store: Any, *, maintenance: bool = False) -> tuple[lro.Service, Any]:
    """Return a service on a store, and its method, whose work is done outside the service."""
    service = lro.Service(store, InlineExecutor(), maintenance=maintenance)
    method = service.declare(
        "bench.v1.Bench.Run", request=Request, response=RunResponse, metadata=Progress
    )
    return service, method


class Peer:
    """The commands of this process; each returns a time of the clock that all processes share."""

    def __init__(self, kind: str, where: str, schema: str) -> None:
        self._store = open_store(kind, where, schema)
        self._notify_others, self._store.notify_others = self._store.notify_others, self._committed
        self._service, _ = declared(self._store)
        self._at = 0.0
        if kind == "sqlite":
            self._file = sqlite3.connect(f"{where}.floor", isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute(FLOOR_TABLE)
        else:
            import psycopg

            self._connection = psycopg.connect(where, autocommit=True)
            self._connection.execute(FLOOR_TABLE)

    def _committed(self, name: str) -> None:
        self._at = time.monotonic()
        self._notify_others(name)

    def end(self, name: str) -> float:
        """End an operation, and return the time of the commit."""
        self._service.reporter(name).complete(RunResponse(1))
        return self._at

    def listen(self, name: str) -> float:
        """Wait for an operation in a thread, so that this process listens for changes."""
        threading.Thread(target=self._service.wait, args=(name,), daemon=True).start()
        return time.monotonic()

    def commit(self, value: str) -> float:
        """Commit to a bare SQLite file, and return the time of the commit."""
        self._file.execute("INSERT OR REPLACE INTO kept VALUES ('x', ?)", (value,))
        return time.monotonic()

    def notify(self, payload: str) -> float:
        """Send a bare NOTIFY, and return the time at which sending began."""
        began = time.monotonic()
        self._connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
        return began


@contextmanager
def peer(kind: str, where: str, schema: str) -> Iterator[Any]:
    """Run a :class:`Peer` process, and yield the function ``command("end", name)``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.peer", kind, where, schema],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def command(verb: str, word: str) -> float:
        print(verb, word, file=stdin, flush=True)
        return float(stdout.readline())

    try:
        yield command
    finally:
        stdin.close()
        process.wait()
        stdout.close()


def main(kind: str, where: str, schema: str) -> None:
    """Run the commands that arrive on standard input."""
    this = Peer(kind, where, schema)
    for line in sys.stdin:
        verb, word = line.split()
        print(getattr(this, verb)(word), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
