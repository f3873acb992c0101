"""Kills of processes that run work in steps: a completed step must not be repeated or lost.

One process at a time works on a store. The process is killed at any time, or by a trap before or
after the commit of a checkpoint. The effect of each run of a step is a line in a log. A step
is completed if the store has its result when the process is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.threads import ThreadExecutor
from tests.chaos.campaign import new_store
from tests.chaos.server import store_at
from tests.chaos.servers import FORKS
from tests.chaos.trapped import trapped
from tests.chaos.traps import SERVER, Moment, Point, Trap, arm
from tests.waiting import PATIENCE, until

LEASE: Final = timedelta(seconds=1)
STEPS: Final = ("fetch", "change", "send")
_SPRING_SECONDS: Final = 3.0
"""The seconds after which a process is killed if its trap has not sprung."""
_LONGEST: Final = 0.02
"""The longest pause before and after the effect of a step, in seconds."""
_MANY: Final = 1_000


@attrs.frozen
class Job:
    """The request: the text with which the result begins."""

    text: str = ""


@attrs.frozen
class Sent:
    """The response: the result of each step, which is the name of the run that completed it."""

    runs: tuple[str, ...] = ()


@attrs.frozen
class Run:
    """A line of the log, about a run of a step; ``before`` is the result of the preceding step."""

    operation: str
    step: str
    run: str
    before: str
    attempt: str
    pid: str
    at: str


@attrs.frozen
class Tally:
    """The results of a campaign."""

    kills: int
    sprung: int
    """The number of kills by a trap."""
    operations: int
    resumed: int
    """The number of operations that took more than one attempt."""
    skipped: int
    """The number of steps that had been completed when their process was killed."""
    again: int
    """The number of interrupted runs of steps, which were repeated."""
    faults: Sequence[str]


def service_on(place: str, log: Path, executor: str) -> tuple[lro.Service, Any]:
    """Return a service on the store at this path or URL, and its method of three steps."""
    loop = executor == "loop"
    service = lro.Service(
        trapped(store_at(place)),
        AsyncioExecutor(4) if loop else ThreadExecutor(4),
        lease=LEASE,
        drain=timedelta(0),
    )
    file, chance = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), random.Random()

    def effect(job: lro.Job[Any], step: str, before: str) -> str:
        run, facts = uuid.uuid4().hex, f"{job.attempt} {os.getpid()} {time.monotonic():.4f}"
        os.write(file, f"{job.name} {step} {run} {before} {facts}\n".encode())  # one write
        return run

    def run(job: lro.Job[Any], step: str, before: str) -> str:
        time.sleep(chance.uniform(0, _LONGEST))
        found = effect(job, step, before)
        time.sleep(chance.uniform(0, _LONGEST))
        return found

    async def arun(job: lro.Job[Any], step: str, before: str) -> str:
        await asyncio.sleep(chance.uniform(0, _LONGEST))
        found = effect(job, step, before)
        await asyncio.sleep(chance.uniform(0, _LONGEST))
        return found

    def three(request: Job, job: lro.Job[lro.OperationMetadata]) -> Sent:
        runs = [request.text]
        for step in STEPS:
            runs.append(job.step(step, run, job, step, runs[-1]))
        return Sent(tuple(runs))

    async def athree(request: Job, job: lro.Job[lro.OperationMetadata]) -> Sent:
        runs = [request.text]
        for step in STEPS:
            runs.append(await job.step_async(step, arun, job, step, runs[-1]))
        return Sent(tuple(runs))

    function: Any = athree if loop else three
    options = {"max_lost": _MANY, "max_attempts": _MANY}
    return service, service.method("acme.v1.Letters.Send", **options)(function)


def live(
    place: str, folder: Path, executor: str, seed: int, armed: bool, ready: Connection
) -> None:
    """Start operations and run them until the process is killed."""
    chance = random.Random(seed)
    os.setpgid(0, 0)
    os.environ[SERVER] = str(os.getpid())
    if armed:
        moment = chance.choice((Moment.BEFORE, Moment.AFTER))
        arm(Trap(point=Point.CHECKPOINT, moment=moment, count=chance.randint(1, 20)))
    service, method = service_on(place, folder / "log", executor)
    with service:
        ready.send(True)
        for number in range(sys.maxsize):
            method.start(Job(str(number)))
            time.sleep(chance.uniform(0, 0.1))


def step_trial(kind: str, executor: str, folder: Path, kills: int, seed: int) -> Tally:
    """Kill ``kills`` processes that run work in steps, and find completed steps that ran again."""
    chance, place, log = random.Random(seed), new_store(kind, folder), folder / "log"
    log.touch()
    faults: list[str] = []
    completed: dict[tuple[str, str], str] = {}
    sprung = 0
    with contextlib.closing(store_at(place)) as reader:
        for number in range(kills):
            armed = number % 2 == 0
            sprung += _killed(place, folder, executor, seed * _MANY + number, armed, chance)
            for name in {run.operation for run in _runs(log)}:
                for step, packed in reader.checkpoints(name).items():
                    faults += _differing(completed, name, step, str(packed.payload))
    at_kills = dict(completed)
    service, _ = service_on(place, log, executor)
    with service:
        names = [*_names(service)]
        with contextlib.suppress(AssertionError):
            until(lambda: all(service.get(name).done for name in names))
        resumed = 0
        for name in names:
            operation = service.get(name)
            resumed += service.store.get(name).attempt > 1
            if operation.response is None:
                faults.append(f"{name}: did not succeed: {operation}")
                continue
            sent = service.types.unpack(operation.response, Sent)
            for step, run in zip(STEPS, sent.runs[1:], strict=True):
                faults += _differing(completed, name, step, run)
    found = [*_judged(_runs(log), completed)]
    return Tally(
        kills=kills,
        sprung=sprung,
        operations=len(names),
        resumed=resumed,
        skipped=len(at_kills),
        again=sum(isinstance(one, Run) for one in found),
        faults=[*faults, *(one for one in found if isinstance(one, str))],
    )


def _killed(
    place: str, folder: Path, executor: str, seed: int, armed: bool, chance: random.Random
) -> bool:
    """Start a process and wait until it is dead; return whether its trap killed it."""
    receiver, ready = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=live, args=(place, folder, executor, seed, armed, ready))
    process.start()
    ready.close()
    try:
        assert wait([receiver, process.sentinel], PATIENCE)
        receiver.close()
        process.join(_SPRING_SECONDS if armed else chance.uniform(0, 0.6))
        if process.exitcode is None:
            process.kill()
            process.join(PATIENCE)
            return False
        assert process.exitcode == -signal.SIGKILL, "it has ended by itself"
        return True
    finally:
        process.kill()


def _differing(
    completed: dict[tuple[str, str], str], name: str, step: str, run: str
) -> Iterator[str]:
    """Record the run that completed a step; yield a fault if another run had completed the step."""
    if completed.setdefault((name, step), run) != run:
        yield f"{name}: the result of {step} has changed"


def _names(service: lro.Service) -> Iterator[str]:
    """Yield the names of all operations."""
    token = None
    while token != "":
        page = service.list(lro.wire.ListOperationsRequest(page_size=_MANY, page_token=token or ""))
        yield from (operation.name for operation in page.operations)
        token = page.next_page_token


def _runs(log: Path) -> list[Run]:
    return [Run(*line.split(" ")) for line in log.read_text().splitlines()]


def _judged(runs: Sequence[Run], completed: Mapping[tuple[str, str], str]) -> Iterator[str | Run]:
    """Yield each fault, and each run that was interrupted.

    The last run of a step must be the one that completed the step. Each run must have got the
    result of the run that completed the preceding step.
    """
    of_step: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        of_step[run.operation, run.step].append(run)
        place = STEPS.index(run.step)
        if place and run.before != completed.get((run.operation, STEPS[place - 1])):
            yield f"{run.operation}: {run.step} began before the step before it was completed"
    for (name, step), several in of_step.items():
        yield from several[:-1]
        if several[-1].run != completed.get((name, step)):
            all_runs = "".join(f"\n    {run}" for run in several)
            yield f"{name}: {step} was done again after it was completed: {all_runs}"
    for name, step in completed.keys() - of_step.keys():
        yield f"{name}: {step} was completed and never done"
