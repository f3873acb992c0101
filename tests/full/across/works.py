"""The work of the races: functions that record their progress in a file that all processes map.

The functions use only their request, so that any executor can run them: in a thread, on an event
loop or in another process.
"""

from __future__ import annotations

import asyncio
import functools
import mmap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lro import Cancelled, Job
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NOT_STARTED: Final = 0
RUNNING: Final = 1
RETURNED: Final = 2
STOPPED: Final = 3


class Traces:
    """The progress of each piece of work, by number, in memory that all processes share."""

    def __init__(self, path: Path, size: int = 0) -> None:
        with path.open("a+b") as file:
            if size:
                file.truncate(2 * size)
            self._bytes = mmap.mmap(file.fileno(), 0)
        self.path = path

    def __getitem__(self, number: int) -> int:
        """Return the progress: NOT_STARTED, RUNNING, RETURNED or STOPPED."""
        return self._bytes[2 * number]

    def __setitem__(self, number: int, what: int) -> None:
        self._bytes[2 * number] = what

    def begin(self, number: int) -> None:
        self[number] = RUNNING
        self._bytes[2 * number + 1] += 1

    def begun(self, number: int) -> int:
        """Return how often this piece of work has begun."""
        return self._bytes[2 * number + 1]


@functools.cache
def traces_at(path: str) -> Traces:
    """Return the traces in this file, which each process maps once."""
    return Traces(Path(path))


def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Pause ``steps`` times for ``step`` seconds; if cancelled, stop after ``stopping`` seconds."""
    plan: Mapping[str, Any] = request.rest
    traces = traces_at(plan["traces"])
    traces.begin(request.size)
    try:
        for _ in range(plan["steps"]):
            job.sleep(plan["step"])
        job.raise_if_cancelled()
    except Cancelled:
        time.sleep(plan["stopping"])  # the work cleans up
        traces[request.size] = STOPPED
        raise
    traces[request.size] = RETURNED
    return WorkResponse(str(request.size))


async def awork(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Do the same as ``work`` in a coroutine, which is cancelled during a pause."""
    plan: Mapping[str, Any] = request.rest
    traces = traces_at(plan["traces"])
    traces.begin(request.size)
    try:
        for _ in range(plan["steps"]):
            await asyncio.sleep(plan["step"])
    except asyncio.CancelledError:
        await asyncio.sleep(plan["stopping"])
        traces[request.size] = STOPPED
        raise
    traces[request.size] = RETURNED
    return WorkResponse(str(request.size))
