"""Many trials, some at once; what came of them, as a table."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import attrs

from tests.chaos.servers import PATIENCE, ForkServer, fork_server
from tests.chaos.stalls import Stalls
from tests.chaos.verdict import Verdict
from tests.chaos.world import Ground
from tests.services.postgres import shared_server


@attrs.frozen
class Cell:
    """A cell of the matrix."""

    row: str
    store: str
    executor: str


@attrs.define
class Tally:
    """What came of the trials of a cell."""

    runs: int = 0
    violations: list[str] = attrs.field(factory=list)
    spans: list[float] = attrs.field(factory=list)

    def add(self, seed: int, verdict: Verdict) -> None:
        """Count a trial."""
        self.runs += 1
        self.violations += [f"seed {seed}: {violation}" for violation in verdict.violations]
        self.spans += verdict.seconds_to_truth


Trial = Callable[[Ground, Cell, int], Awaitable[Verdict]]


@attrs.frozen(kw_only=True)
class Campaign:
    """Trials of many cells, each on a store of its own.

    ``at_once`` trials run together; after ``seconds`` no further one begins. ``keep``: the folders
    of trials that have found something stay.
    """

    trial: Trial
    lease: float = 1.0
    margin: float = PATIENCE
    broker: str = ""
    at_once: int = 4
    seconds: float = 1e9
    keep: bool = False
    _stalls: Stalls = attrs.field(factory=Stalls, init=False)

    async def run(
        self, trials: Sequence[tuple[int, Cell]], report: Callable[[str], None] = print
    ) -> dict[Cell, Tally]:
        """Run cells with seeds, in this order, for as long as there is time."""
        tallies = {cell: Tally() for _, cell in trials}
        waiting = iter(trials)
        end = time.monotonic() + self.seconds
        async with _folder(self.keep) as folder, fork_server(folder / "fork_server.log") as made:

            async def work() -> None:
                for seed, cell in waiting:
                    if time.monotonic() > end:
                        return
                    verdict = await self._one(made, folder, cell, seed)
                    tallies[cell].add(seed, verdict)
                    for violation in verdict.violations:
                        report(f"{cell.row}, {cell.store}, {cell.executor}, {seed}: {violation}")

            watching = asyncio.create_task(self._stalls.watch())
            await asyncio.gather(*(work() for _ in range(self.at_once)))
            watching.cancel()
        return tallies

    async def _one(self, made: ForkServer, folder: Path, cell: Cell, seed: int) -> Verdict:
        place = folder / f"{cell.row}-{cell.store}-{cell.executor}-{seed}".replace(" ", "-")
        place.mkdir()
        ground = Ground(
            fork_server=made,
            folder=place,
            store=_store_url(cell.store, place),
            executor=cell.executor,
            lease=self.lease,
            margin=self.margin,
            stalls=self._stalls,
            broker=f"{self.broker}#{place.name}",
        )
        try:
            verdict = await self.trial(ground, cell, seed)
        except Exception as exc:  # what keeps a trial from its end is found too
            verdict = Verdict((f"the trial failed: {exc!r}",))
        if self.keep and verdict.violations:
            (place / "violations.txt").write_text("\n".join(verdict.violations), "utf-8")
        else:
            shutil.rmtree(place)
        return verdict


def _store_url(kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder}/operations.db"
    server = shared_server()
    return f"{server.url}#{server.fresh_schema()}"


def table(tallies: dict[Cell, Tally]) -> str:
    """The tallies as a table in Markdown."""
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


@contextlib.asynccontextmanager
async def _folder(keep: bool) -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lro-chaos-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        elif not any(path.is_dir() for path in folder.iterdir()):
            shutil.rmtree(folder)
