"""Campaigns: many trials, some of them at the same time, and a table of their results."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs

from tests.chaos.stalls import Stalls
from tests.chaos.verdict import Verdict
from tests.chaos.world import Ground
from tests.services.postgres import shared_server
from tests.waiting import PATIENCE


@attrs.frozen
class Cell:
    """A cell of the test matrix: a row, a kind of store and a kind of executor."""

    row: str
    store: str
    executor: str


@attrs.define
class Tally:
    """The results of a cell's trials."""

    runs: int = 0
    violations: list[str] = attrs.field(factory=list)
    spans: list[float] = attrs.field(factory=list)
    late_writes: int = 0

    def add(self, seed: int, verdict: Verdict) -> None:
        """Add the verdict of a trial."""
        self.runs += 1
        self.violations += [f"seed {seed}: {violation}" for violation in verdict.violations]
        self.spans += verdict.seconds_to_truth
        self.late_writes += verdict.late_writes


Trial = Callable[[Ground, Cell, int], Awaitable[Verdict]]


@attrs.frozen(kw_only=True)
class Campaign:
    """Trials of many cells; each trial has its own store.

    ``at_once`` trials run at the same time, and after ``seconds`` no new trial begins. The folder
    of a trial with a violation is kept.
    """

    trial: Trial
    lease: float = 1.0
    margin: float = PATIENCE
    broker: str = ""
    at_once: int = 4
    seconds: float = 1e9
    _stalls: Stalls = attrs.field(factory=Stalls, init=False)

    async def run(
        self, trials: Sequence[tuple[int, Cell]], report: Callable[[str], None] = print
    ) -> dict[Cell, Tally]:
        """Run these trials in their order until the time is up."""
        tallies = {cell: Tally() for _, cell in trials}
        waiting = iter(trials)
        end = time.monotonic() + self.seconds
        folder = Path(tempfile.mkdtemp(prefix="lro-chaos-"))

        async def work() -> None:
            for seed, cell in waiting:
                if time.monotonic() > end:
                    return
                verdict = await self._one(folder, cell, seed)
                tallies[cell].add(seed, verdict)
                for violation in verdict.violations:
                    report(f"{cell.row}, {cell.store}, {cell.executor}, {seed}: {violation}")

        watching = asyncio.create_task(self._stalls.watch())
        await asyncio.gather(*(work() for _ in range(self.at_once)))
        watching.cancel()
        if not any(path.is_dir() for path in folder.iterdir()):
            shutil.rmtree(folder)
        return tallies

    async def _one(self, folder: Path, cell: Cell, seed: int) -> Verdict:
        place = folder / f"{cell.row}-{cell.store}-{cell.executor}-{seed}".replace(" ", "-")
        place.mkdir()
        ground = Ground(
            folder=place,
            store=new_store(cell.store, place),
            executor=cell.executor,
            lease=self.lease,
            margin=self.margin,
            stalls=self._stalls,
            broker=f"{self.broker}#{place.name}",
        )
        try:
            verdict = await self.trial(ground, cell, seed)
        except Exception as exc:  # an error that stops a trial is a violation, too
            verdict = Verdict((f"the trial failed: {exc!r}",))
        if not verdict.violations:
            shutil.rmtree(place)
            return verdict
        found = (*verdict.violations, f"the logs are in {place}")
        return attrs.evolve(verdict, violations=found)


def new_store(kind: str, folder: Path) -> str:
    """Return the path of a new SQLite file, or a PostgreSQL URL with a new schema after a ``#``."""
    if kind == "sqlite":
        return f"{folder}/operations.db"
    return f"{shared_server().url}#{shared_server().fresh_schema()}"


def table(tallies: dict[Cell, Tally]) -> str:
    """Format the tallies as a Markdown table."""
    lines = [
        "| point | store | executor | runs | violations | longest time to the truth, s |",
        "|---|---|---|---|---|---|",
    ]
    for cell, tally in tallies.items():
        longest = f"{max(tally.spans):.2f}" if tally.spans else ""
        found = len(tally.violations)
        lines.append(
            f"| {cell.row} | {cell.store} | {cell.executor} | {tally.runs} | {found} | {longest} |"
        )
    return "\n".join(lines)
