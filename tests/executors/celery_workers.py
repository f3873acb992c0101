"""Real Celery workers: separate processes, which a test can kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from lro import Operation
from lro.wire import ListOperationsRequest
from tests.executors import celery_app
from tests.service_steps import unpacked
from tests.waiting import PATIENCE, joined, until
from tests.work_messages import WorkMetadata, WorkRequest


class Worker:
    """A process of ``celery worker`` for this module, with two slots in a pool of a given kind."""

    def __init__(self, pool: str, settings: str, module: str) -> None:
        options = ["--pool", pool, "--concurrency", "2", "--loglevel", "INFO"]
        options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", module, "worker", *options],
            env={**os.environ, celery_app.SETTINGS: settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def says(self, text: str, times: int = 1) -> None:
        """Return when the worker has logged at least this many lines with this text."""
        until(lambda: (self.count(text), *self._said), lambda seen: seen[0] >= times)

    def count(self, text: str) -> int:
        """Return how many lines with this text the worker has logged."""
        return sum(text in line for line in self._said)

    def end(self, how: signal.Signals) -> int:
        """Send this signal to the worker and return its exit code."""
        self.process.send_signal(how)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Kill the worker if it is still running."""
        if self.process.poll() is None:
            self.end(signal.SIGKILL)
        joined(self._reader)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.append(line)


class Harness:
    """A broker, a store and a queue; this process is the web server, and tests start workers."""

    def __init__(
        self, broker: str, directory: Path, redelivery: float = 1.0, store: str = "", **options: Any
    ) -> None:
        self.directory = directory
        self.queue = f"queue-{directory.name}"
        store = store or str(directory / "operations.db")
        settings = broker, store, self.queue, str(redelivery)
        self._settings = "|".join(settings)
        self.app, self.service = celery_app.build(*settings, **options)

    @contextlib.contextmanager
    def worker(self, pool: str, module: str = celery_app.__name__) -> Iterator[Worker]:
        """Start a worker and wait until it is ready; kill it after the block if it still runs."""
        worker = Worker(pool, self._settings, module)
        try:
            worker.says("ready.")
            yield worker
        finally:
            worker.close()

    def start(self, method: str, text: str, **options: Any) -> str:
        """Start an operation and return its name."""
        request = WorkRequest(text=text)
        return self.service.start(f"acme.v1.Works.{method}", request, **options).name

    def gate(self, name: str) -> Path:
        """Return the path of a file that does not exist yet."""
        return self.directory / name

    def begun(self, name: str, attempt: int = 1) -> WorkMetadata:
        """Wait until the function reports in this attempt, and return the metadata."""

        def look() -> WorkMetadata | None:
            found = self.service.get(name)
            assert not found.done, found
            return None if found.metadata is None else unpacked(self.service, found)

        found = until(look, lambda seen: seen is not None and seen.percent == attempt)
        assert found is not None
        return found

    def stored(self) -> list[Operation]:
        return list(self.service.list(ListOperationsRequest(name="operations")).operations)

    def close(self) -> None:
        """Close the service of the web server."""
        self.service.close(timedelta())
