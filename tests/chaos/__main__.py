"""Long runs of the chaos tests: ``python -m tests.chaos kill --seeds 10 --stores sqlite``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.chaos.campaign import Campaign, Cell, Trial, table
from tests.chaos.freeze import FROZEN, freeze_trial
from tests.chaos.kill import ROWS, kill_trial
from tests.chaos.locks import LOCKS, lock_trial, spans
from tests.chaos.loops import loop_trial
from tests.chaos.outage import outage_trial
from tests.chaos.steps import step_trial
from tests.chaos.verdict import Verdict
from tests.chaos.webhooks import webhook_trial
from tests.chaos.world import Ground
from tests.services.redis import redis_server

MARGIN_SECONDS = 2.0
"""The seconds after a lease's end within which callers must see the state of lost work."""


def _kill(options: argparse.Namespace) -> int:
    return _run(
        options, kill_trial, options.rows.split(","), lambda row, _, how: ROWS[row].fits(how)
    )


def _fence(options: argparse.Namespace) -> int:
    def fits(row: str, store: str, executor: str) -> bool:
        # A server frozen in a transaction would hold the lock of the SQLite file. `locks` tests
        # such a lock.
        return executor != "celery" and (row, store) != ("frozen within a transaction", "sqlite")

    return _run(options, freeze_trial, options.rows.split(","), fits)


def _store(options: argparse.Namespace) -> int:
    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        return await outage_trial(ground, cell, seed, options.seconds)

    return _run(options, trial, ["the store goes away"])


def _locks(options: argparse.Namespace) -> int:
    lengths = spans(options.lease)
    if options.leases:
        lengths = [float(one) * options.lease for one in options.leases.split(",")]

    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        return await lock_trial(ground, seed, cell.row, lengths[seed % len(lengths)])

    options.seeds *= len(lengths)  # each length is run with a different seed
    return _run(options, trial, options.rows.split(","), lambda row, on, _: LOCKS[row] == on)


def _loops(options: argparse.Namespace) -> int:
    return _run(options, loop_trial, ["crash loop"])


def _webhooks(options: argparse.Namespace) -> int:
    faults = 0
    for store in options.stores.split(","):
        with tempfile.TemporaryDirectory(prefix="lro-hooks-") as folder:
            found = webhook_trial(store, Path(folder), options.kills, options.first)
        faults += len(found.faults) + (found.operations == 0)
        for fault in found.faults:
            print(f"{store}: {fault}")
        print(
            f"{store}: {found.kills} processes killed, {found.sprung} of them by traps;"
            f" {found.operations} operations {dict(found.ends)}; {found.events} events,"
            f" {found.repeats} of them sent again; {len(found.faults)} violations"
        )
    return int(faults > 0)


def _steps(options: argparse.Namespace) -> int:
    faults = 0
    for store in options.stores.split(","):
        for executor in options.executors.split(","):
            with tempfile.TemporaryDirectory(prefix="lro-steps-") as folder:
                found = step_trial(store, executor, Path(folder), options.kills, options.first)
            faults += len(found.faults) + (found.resumed == 0 or found.skipped == 0)
            for fault in found.faults:
                print(f"{store}, {executor}: {fault}")
            print(
                f"{store}, {executor}: {found.kills} processes killed, {found.sprung} of them by"
                f" traps; {found.operations} operations of three steps, {found.resumed} of them"
                f" resumed; {found.skipped} completed steps, {found.again} interrupted ones that"
                f" ran again; {len(found.faults)} violations"
            )
    return int(faults > 0)


def _run(
    options: argparse.Namespace,
    trial: Trial,
    rows: Sequence[str],
    fits: Callable[[str, str, str], bool] = lambda *_: True,
) -> int:
    cells = [
        Cell(row, store, executor)
        for row in rows
        for store in options.stores.split(",")
        for executor in options.executors.split(",")
        if fits(row, store, executor)
    ]
    with contextlib.ExitStack() as stack:
        broker = _broker(stack) if "celery" in options.executors.split(",") else ""
        campaign = Campaign(
            trial=trial,
            broker=broker,
            lease=options.lease,
            margin=options.margin,
            at_once=1 if options.run is _store else options.at_once,
            seconds=options.minutes * 60,
        )
        seeds = range(options.first, options.first + options.seeds)
        tallies = asyncio.run(campaign.run([(seed, cell) for seed in seeds for cell in cells]))
    print(table(tallies))
    violations = sum(len(tally.violations) for tally in tallies.values())
    if options.run is _fence:
        late = sum(tally.late_writes for tally in tallies.values())
        print(f"\n{late} late writes, each refused, counted and logged")
        violations += late == 0
    return int(violations > 0)


def _broker(stack: contextlib.ExitStack) -> str:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lro-redis-")))
    return stack.enter_context(redis_server(folder)).url


OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "seeds": (10, "trials of each cell"),
    "first": (0, "the first seed"),
    "stores": ("sqlite,postgres", "on which stores"),
    "executors": ("threads,processes,celery", "with which executors; loop is one, too"),
    "minutes": (1e6, "begin nothing after so long"),
    "lease": (1.0, "in seconds"),
}
COMMANDS: Final[dict[str, tuple[Any, str, dict[str, tuple[Any, str]]]]] = {
    "kill": (_kill, "kill servers at named points", {"rows": (",".join(ROWS), "where")}),
    "fence": (_fence, "freeze servers for three leases", {"rows": (",".join(FROZEN), "where")}),
    "store": (
        _store,
        "take the store away, again and again",
        {
            "seconds": (120.0, "the length of a trial"),
            "seeds": (1, "trials of each cell"),
            "lease": (15.0, "in seconds; it outlasts every outage, as the usual one does"),
            "executors": ("threads", "with which executors"),
        },
    ),
    "locks": (
        _locks,
        "lock what servers work on",
        {
            "rows": (",".join(LOCKS), "what is locked"),
            "leases": ("", "for how many leases, such as 1.5,2; else for half to 4"),
            "seeds": (1, "trials of each length"),
            "lease": (3.0, "in seconds"),
            "executors": ("threads", "with which executors"),
        },
    ),
    "loops": (
        _loops,
        "servers that live shorter than their leases",
        {"lease": (4.0, "in seconds"), "executors": ("threads,processes", "with which executors")},
    ),
    "steps": (
        _steps,
        "kill processes that do work in steps",
        {"kills": (200, "for each store"), "executors": ("threads,loop", "with which executors")},
    ),
    "webhooks": (_webhooks, "kill processes that send webhooks", {"kills": (60, "for each store")}),
}


def main(arguments: Sequence[str], *, margin: float = MARGIN_SECONDS, at_once: int = 4) -> int:
    """Run a command; return 1 if there was a violation, or if the trials tested nothing."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    commands = parser.add_subparsers(required=True)
    for name, (run, text, own) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run, margin=margin, at_once=at_once)
        for option, (default, says) in (OPTIONS | own).items():
            command.add_argument(f"--{option}", type=type(default), default=default, help=says)
    options = parser.parse_args(arguments)
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit stops all servers
    sys.exit(main(sys.argv[1:]))
