"""The methods of the servers under test, whose functions log what they do.

A line in a log stands for an effect outside the process, which cannot be undone. Each operation has
its own log file.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs

import lro
from tests.chaos.traps import SERVER, Moment, Point, Trap, arm, step_on

FOLDER: Final = "LRO_CHAOS_FOLDER"
"""The environment variable with the folder of the logs."""
TRAP: Final = "LRO_CHAOS_TRAP"
"""The environment variable with the server's trap, for the server's child processes."""
BRIEF_SECONDS: Final = 0.4
"""The seconds for which the record of a brief operation is kept."""
MAX_LOST: Final = 3
"""The number of lost workers after which retryable work still runs again."""


@lro.message("chaos.v1.WorkRequest")
@attrs.frozen
class WorkRequest:
    """A request for ``steps`` pauses of ``pause_ms``; ``end`` may be "refuse" or "stubborn"."""

    text: str = ""
    steps: lro.Int32 = 1
    pause_ms: lro.Int32 = 0
    end: str = ""
    target: str = ""


@lro.message("chaos.v1.WorkMetadata")
@attrs.frozen
class WorkMetadata:
    """The attempt and its current step."""

    text: str = ""
    attempt: lro.Int32 = 0
    step: lro.Int32 = 0


@lro.message("chaos.v1.WorkResponse")
@attrs.frozen
class WorkResponse:
    """The parts of the text in reverse order, and the attempt that made them."""

    parts: Sequence[str] = ()
    attempt: lro.Int32 = 0


class Parts(list[str]):
    """A list whose encoding reaches a trap, which calls ``last`` before it kills the process."""

    def __init__(self, parts: Iterable[str], last: Callable[[], None]) -> None:
        super().__init__(parts)
        self._last = last

    def __iter__(self) -> Iterator[str]:
        step_on(Point.ENCODE, Moment.BEFORE, self._last)
        return super().__iter__()


def answer_to(text: str) -> tuple[str, ...]:
    """Return the parts of the response to a request with this text."""
    return tuple(reversed(text.split("-")))


@attrs.frozen(kw_only=True)
class Effect:
    """A line of the log: what an attempt did, when, and in which process of which server.

    Times are monotonic. ``born`` is the time at which the process started.
    """

    what: str
    attempt: int
    text: str
    pid: int
    server: int
    born: float
    at: float


def note(job: lro.Job[WorkMetadata], text: str, what: str) -> None:
    """Append a line to the operation's log; the line is written when the call returns."""
    effect = Effect(
        what=what,
        attempt=job.attempt,
        text=text,
        pid=os.getpid(),
        server=int(os.environ[SERVER]),
        born=_born(os.getpid()),
        at=time.monotonic(),
    )
    line = json.dumps(attrs.asdict(effect)) + "\n"
    with _path(Path(os.environ[FOLDER]), job.name).open("ab", buffering=0) as log:
        log.write(line.encode())  # one write: a killed process leaves no half line


@functools.cache
def _born(pid: int) -> float:
    # The start is in ticks since boot, when the monotonic clock began. In this file, the name of
    # the program is in parentheses and may contain any characters.
    ticks = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '_')}.log"


def effects(folder: Path, name: str) -> list[Effect]:
    """Return the log of an operation, in the order of its lines."""
    path = _path(folder, name)
    if not path.exists():
        return []
    lines = path.read_text("utf-8").splitlines()
    return [cattrs.structure(json.loads(line), Effect) for line in lines]


def all_effects(folder: Path) -> list[Effect]:
    """Return the logs of all operations."""
    names = [path.stem for path in folder.glob("operations_*.log")]
    return [effect for name in names for effect in effects(folder, name)]


def _steps(
    request: WorkRequest, job: lro.Job[WorkMetadata]
) -> Generator[WorkMetadata | float, None, WorkResponse]:
    """Run the steps and log them; yield metadata to report, or seconds to sleep."""

    def last() -> None:
        note(job, request.text, "died")

    note(job, request.text, "begin")
    try:
        for step in range(request.steps):
            yield WorkMetadata(request.text, job.attempt, step)
            step_on(Point.WORK, Moment.AFTER, last)
            yield request.pause_ms / 1000
    except (lro.Cancelled, asyncio.CancelledError):
        note(job, request.text, "stopped")
        raise
    except lro.errors.LeaseLost:
        note(job, request.text, "fenced")
        if request.end != "stubborn":
            raise
    if request.end == "refuse":
        note(job, request.text, "refused")
        raise lro.StatusError(lro.Code.FAILED_PRECONDITION, "as was asked for")
    note(job, request.text, "end")
    return WorkResponse(Parts(answer_to(request.text), last), job.attempt)


def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Do the work in a thread."""
    steps = _steps(request, job)
    try:
        wanted = next(steps)
        while True:
            try:
                if isinstance(wanted, WorkMetadata):
                    job.report(wanted)
                else:
                    job.sleep(wanted)
            except Exception as exc:
                wanted = steps.throw(exc)
            else:
                wanted = next(steps)
    except StopIteration as end:
        response: WorkResponse = end.value
        return response


async def awork(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Do the work on an event loop."""
    steps = _steps(request, job)
    try:
        wanted = next(steps)
        while True:
            try:
                if isinstance(wanted, WorkMetadata):
                    await job.report_async(wanted)
                else:
                    await job.sleep_async(wanted)
            except (Exception, asyncio.CancelledError) as exc:
                wanted = steps.throw(exc)
            else:
                wanted = next(steps)
    except StopIteration as end:
        response: WorkResponse = end.value
        return response


def once(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Do work that must not run twice."""
    return work(request, job)


def again(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Do work that may run twice."""
    return work(request, job)


def brief(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Do work whose record expires soon."""
    return work(request, job)


def alone(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Do work that needs its target exclusively."""
    return work(request, job)


def declare(
    service: lro.Service, *, awaits: bool = False
) -> dict[str, lro.Method[WorkRequest, WorkResponse, WorkMetadata]]:
    """Register the methods (coroutines if ``awaits`` is set); return them by their short names."""
    alone_on: dict[str, Any] = {"exclusive_target": lambda request: request.target}
    options: dict[Any, dict[str, Any]] = {
        once: {"at_most_once": True},
        again: {"max_lost": MAX_LOST},
        brief: {"max_lost": MAX_LOST, "keep_for": timedelta(seconds=BRIEF_SECONDS)},
        alone: {"at_most_once": True, **alone_on},
    }
    return {
        function.__name__: service.method(f"chaos.v1.Works.{function.__name__.title()}", **more)(
            awork if awaits else function
        )
        for function, more in options.items()
    }


def arm_from_environment() -> None:
    """Set the trap of the server for which this process works."""
    if TRAP in os.environ:
        arm(cattrs.structure(json.loads(os.environ[TRAP]), Trap))


arm_from_environment()
