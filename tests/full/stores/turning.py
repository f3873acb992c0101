"""A service whose methods log each begin and end to a file; ``python -m`` runs a worker process.

Each line is appended in one write, so that lines of several processes do not mix. The times come
from ``time.monotonic``, which all processes on a machine share.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from lro.adapters import Store
from lro.executors.threads import ThreadExecutor
from tests.places import Place
from tests.services.processes import killed_at_end
from tests.waiting import until

LEASE: Final = timedelta(seconds=2)
AT_ONCE: Final = 3
RATE: Final = (20, timedelta(seconds=1))
RETRY: Final = lro.Retry(
    attempts=20,
    on=ConnectionError,
    first_pause=timedelta(seconds=1),
    max_pause=timedelta(seconds=15),
)


class Turning:
    """The service and its methods, by the last part of their names; it may have no workers.

    A request has a ``key`` and the ``seconds`` that the work takes. ``dependency`` is the port to
    which ``Calls`` connects.
    """

    def __init__(
        self, store: Store, workers: int, events: Path, dependency: int = 0, retry: Any = RETRY
    ) -> None:
        executor = ThreadExecutor(workers) if workers else None
        self.service = lro.Service(store, executor, lease=LEASE, drain=timedelta(0))
        self._events = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def key(request: lro.Struct) -> str:
            return str(request.fields["key"])

        def work(request: lro.Struct, job: lro.Job) -> None:
            self._note("begin", request, job)
            job.sleep(float(str(request.fields["seconds"])))
            self._note("end", request, job)

        def call(request: lro.Struct, job: lro.Job) -> None:
            self._note("begin", request, job)
            try:
                socket.create_connection(("127.0.0.1", dependency), 1).close()
            finally:
                self._note("end", request, job)

        options: dict[str, dict[str, Any]] = {
            "Three": {"concurrency": AT_ONCE},
            "Apart": {"concurrency": 1, "concurrency_key": key},
            "Rated": {"rate": RATE},
            "Fair": {"concurrency_key": key},
            "Plain": {},
        }
        self.methods = {
            name: self.service.method(
                f"acme.v1.Turning.{name}", max_lost=50, max_attempts=99, **one
            )(work)
            for name, one in options.items()
        }
        self.methods["Calls"] = self.service.method(
            "acme.v1.Turning.Calls", retry=retry, max_lost=50, max_attempts=99
        )(call)

    def start(self, method: str, keys: Sequence[object], seconds: float = 0.0) -> list[str]:
        """Start an operation for each key, and return the operations' names."""
        requests = [lro.Struct({"key": key, "seconds": seconds}) for key in keys]
        return [one.name for one in self.methods[method].start_many(requests)]

    def _note(self, what: str, request: lro.Struct, job: lro.Job) -> None:
        words = what, time.monotonic(), os.getpid(), job.name, job.attempt, request.fields["key"]
        os.write(self._events, (" ".join(map(str, words)) + "\n").encode())


@attrs.frozen
class Call:
    """A call of a method's function; ``ended`` is None if its process was killed meanwhile."""

    name: str
    attempt: int
    key: str
    process: int
    began: float
    ended: float | None


def calls_in(events: Path) -> list[Call]:
    """Return the logged calls, sorted by begin time."""
    found: dict[tuple[str, str], Call] = {}
    for line in events.read_text().splitlines():
        what, at, process, name, attempt, key = line.split(" ")
        if what == "begin":
            found[name, attempt] = Call(name, int(attempt), key, int(process), float(at), None)
        else:
            found[name, attempt] = attrs.evolve(found[name, attempt], ended=float(at))
    return sorted(found.values(), key=lambda call: call.began)


class Crew:
    """Worker processes that can be killed and replaced; ``killed`` has the time of each kill."""

    def __init__(self, place: Place, workers: int, events: Path, dependency: int = 0) -> None:
        self._command = [sys.executable, "-m", "tests.full.stores.turning", place.kind]
        self._command += [place.where, place.schema, str(workers), str(events), str(dependency)]
        self._events = events
        self._all = ExitStack()
        self._live: list[subprocess.Popen[str]] = []
        self.killed: dict[int, float] = {}

    def add(self) -> None:
        """Start a worker process."""
        process = killed_at_end(self._command, stdin=subprocess.PIPE)
        self._live.append(self._all.enter_context(process))

    def replace(self) -> None:
        """Kill a process that is in a call, and start another process."""
        process = until(self._busy)
        assert process is not None
        self._live.remove(process)
        process.kill()
        process.wait()
        self.killed[process.pid] = time.monotonic()
        self.add()

    def _busy(self) -> subprocess.Popen[str] | None:
        busy = {call.process for call in calls_in(self._events) if call.ended is None}
        return next((one for one in self._live if one.pid in busy), None)

    def close(self) -> None:
        """Kill all processes."""
        self._all.close()


@contextmanager
def crew(
    place: Place, processes: int, workers: int, events: Path, dependency: int = 0
) -> Iterator[Crew]:
    """Run ``processes`` processes, each with ``workers`` workers."""
    made = Crew(place, workers, events, dependency)
    try:
        for _ in range(processes):
            made.add()
        yield made
    finally:
        made.close()


def most_at_once(calls: Sequence[Call], killed: dict[int, float]) -> int:
    """Return the highest number of calls at one time; a killed call ends at the kill."""
    steps = []
    for call in calls:
        end = killed.get(call.process, float("inf")) if call.ended is None else call.ended
        steps += [(call.began, 1), (end, -1)]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def most_within(moments: Sequence[Any], span: Any) -> int:
    """Return the highest number of moments in any span; a span excludes its first moment."""
    found, first, ordered = 0, 0, sorted(moments)
    for last, moment in enumerate(ordered):
        while ordered[first] <= moment - span:
            first += 1
        found = max(found, last - first + 1)
    return found


def wait_for(ready: Callable[[], bool], seconds: float) -> bool:
    """Wait until ``ready()`` is true, for at most ``seconds``; return its last result."""
    end = time.monotonic() + seconds
    while not ready() and time.monotonic() < end:
        time.sleep(0.01)
    return ready()


def main(kind: str, where: str, schema: str, workers: str, events: str, dependency: str) -> None:
    """Run a worker until the standard input ends."""
    store = Place(kind, where, schema).open()
    with Turning(store, int(workers), Path(events), int(dependency)).service:
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
