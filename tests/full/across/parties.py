"""Services in this process or in other processes, called by the race tests."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeAlias

import attrs

from tests.full.across.service_host import SWITCH_SECONDS, Harness, asked
from tests.places import Place
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]


class Inside:
    """A service in this process; its verbs run in threads."""

    def __init__(self, place: Place, executor: str = "threads") -> None:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._harness = Harness(place, executor)
        self._threads = ThreadPoolExecutor(64)

    def ask(self, verb: str, **arguments: Any) -> Future[Any]:
        """Call a verb in another thread."""
        return self._threads.submit(asked, self._harness, verb, arguments)

    def do(self, verb: str, **arguments: Any) -> Any:
        """Call a verb in the current thread."""
        return asked(self._harness, verb, arguments)

    def close(self) -> None:
        """Close the service."""
        self._threads.shutdown()
        self._harness.leave()
        sys.setswitchinterval(self._interval)


class Apart:
    """A service in another process, called through its standard streams."""

    def __init__(self, place: Place, executor: str = "threads") -> None:
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.full.across.service_host",
                executor,
                *attrs.astuple(place),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def ask(self, verb: str, **arguments: Any) -> Future[Any]:
        """Send a call, and return a future of its result."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = future
            self._stdin.write(json.dumps([number, verb, arguments]) + "\n")
            self._stdin.flush()
        return future

    def do(self, verb: str, **arguments: Any) -> Any:
        """Send a call, and wait for its result."""
        return self.ask(verb, **arguments).result(4 * PATIENCE)

    def close(self) -> None:
        """Close the process's input, which ends the process."""
        self._stdin.close()
        try:
            assert self._process.wait(PATIENCE) == 0
        finally:
            self._process.kill()
            self._reader.join()

    def _read(self, answers: IO[str]) -> None:
        with answers:
            for line in answers:
                number, answer, error = json.loads(line)
                future = self._asked.pop(number)
                if error is None:
                    future.set_result(answer)
                else:
                    future.set_exception(AssertionError(*error))
        for future in self._asked.values():
            future.set_exception(AssertionError("the process has ended"))


Party: TypeAlias = Inside | Apart
"""A service whose verbs a test can call."""
