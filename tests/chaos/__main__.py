"""The long form of the chaos tests: ``python -m tests.chaos kill --seeds 10 --stores sqlite``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.campaign import Campaign, Cell, Trial, table
from tests.chaos.freeze import freeze_trial
from tests.chaos.kill import ROWS, kill_trial
from tests.chaos.locks import LOCKS, lock_trial, spans
from tests.chaos.loops import loop_trial
from tests.chaos.outage import crash, lock, outage_trial
from tests.chaos.transactions import POINTS, transaction_trial
from tests.chaos.verdict import Verdict
from tests.chaos.webhooks import webhook_trial
from tests.chaos.world import Ground
from tests.services.postgres import shared_server
from tests.services.redis import redis_server

MARGIN_SECONDS = 2.0
"""How long after the end of its lease the truth about lost work may take."""

FROZEN = ("frozen for three leases", "frozen within a transaction")


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; the exit status: 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    commands = parser.add_subparsers(required=True)
    kill = commands.add_parser("kill", help="kill servers at named points")
    _common(kill)
    kill.add_argument("--rows", default=",".join(ROWS), help="which rows of the matrix")
    kill.set_defaults(run=_kill)
    fence = commands.add_parser("fence", help="freeze servers for three leases")
    _common(fence)
    fence.add_argument("--rows", default=",".join(FROZEN), help="frozen where")
    fence.set_defaults(run=_fence)
    store = commands.add_parser("store", help="take the store away, again and again")
    _common(store)
    store.add_argument("--seconds", type=float, default=120, help="the length of a trial")
    store.add_argument("--longest", type=float, default=5, help="the longest outage, in seconds")
    store.set_defaults(run=_store, seeds=1, lease=15.0, executors="threads", at_once=1)
    locks = commands.add_parser("locks", help="lock what servers work on, for half to 4 leases")
    _common(locks)
    locks.add_argument("--rows", default=",".join(LOCKS), help="what is locked")
    locks.add_argument("--every", type=float, default=0.5, help="the steps of its length, seconds")
    locks.set_defaults(run=_locks, seeds=1, lease=3.0, executors="threads")
    loops = commands.add_parser("loops", help="servers that live shorter than their leases")
    _common(loops)
    loops.set_defaults(run=_loops, lease=4.0, executors="threads,processes")
    within = commands.add_parser("transactions", help="kill between insert, commit and claim")
    _common(within)
    within.add_argument("--rows", default=",".join(POINTS), help="where")
    within.set_defaults(run=_transactions, executors="threads")
    hooks = commands.add_parser("webhooks", help="kill processes that send webhooks")
    hooks.add_argument("--kills", type=int, default=60, help="for each store")
    hooks.add_argument("--first", type=int, default=0, help="the seed")
    hooks.add_argument("--stores", default="sqlite,postgres")
    hooks.set_defaults(run=_webhooks)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all servers are stopped
    status: int = options.run(options)
    return status


def _common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seeds", type=int, default=10, help="trials of each cell")
    add("--first", type=int, default=0, help="the first seed")
    add("--stores", default="sqlite,postgres")
    add("--executors", default="threads,processes,celery")
    add("--minutes", type=float, default=1e6, help="begin nothing after so long")
    add("--lease", type=float, default=1.0, help="in seconds")
    add("--at-once", type=int, default=4, help="how many trials run together")
    add("--keep", action="store_true", help="keep the folders of what went wrong")


def _kill(options: argparse.Namespace) -> int:
    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        return await kill_trial(ground, ROWS[cell.row], seed)

    return _run(options, trial, options.rows.split(","), lambda row, _, how: ROWS[row].fits(how))


def _fence(options: argparse.Namespace) -> int:
    late = 0

    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        nonlocal late
        frozen = await freeze_trial(ground, seed, within=cell.row == FROZEN[1])
        late += frozen.late_writes
        return frozen.verdict

    def fits(row: str, store: str, executor: str) -> bool:
        # Within a transaction it would hold the lock of the SQLite file: see the other command.
        return executor != "celery" and (row, store) != (FROZEN[1], "sqlite")

    status = _run(options, trial, options.rows.split(","), fits)
    print(f"\n{late} late writes, each refused, counted and logged")
    return status


def _store(options: argparse.Namespace) -> int:
    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        path = ground.store.partition(":///")[2]
        longest = options.longest
        outages = (
            crash(shared_server(), longest) if cell.store == "postgres" else lock(path, longest)
        )
        found = await outage_trial(ground, seed, options.seconds, outages)
        print(
            f"{cell.store}: away {found.outages} times; {found.operations} operations,"
            f" {found.unanswered} calls unanswered; a Wait was answered at most"
            f" {found.longest_overrun:.2f} s after its limit"
        )
        return found.verdict

    return _run(options, trial, ["the store goes away"])


def _locks(options: argparse.Namespace) -> int:
    lengths = spans(options.lease, options.every)

    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        return await lock_trial(ground, seed, cell.row, lengths[seed % len(lengths)])

    options.seeds *= len(lengths)  # each length is a seed
    return _run(options, trial, options.rows.split(","), lambda row, on, _: LOCKS[row] == on)


def _loops(options: argparse.Namespace) -> int:
    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        return await loop_trial(ground, seed)

    return _run(options, trial, ["crash loop"])


def _webhooks(options: argparse.Namespace) -> int:
    faults = 0
    for store in options.stores.split(","):
        with tempfile.TemporaryDirectory(prefix="lro-hooks-") as folder:
            found = webhook_trial(_place(store, folder), Path(folder), options.kills, options.first)
        faults += len(found.faults)
        for fault in found.faults:
            print(f"{store}: {fault}")
        print(
            f"{store}: {found.kills} processes killed, {found.sprung} of them by traps;"
            f" {found.operations} operations {dict(found.ends)}; {found.events} events,"
            f" {found.repeats} of them sent again; {len(found.faults)} violations"
        )
    return int(faults > 0)


def _place(store: str, folder: str) -> str:
    if store == "postgres":
        return f"{shared_server().url}#{shared_server().fresh_schema()}"
    return f"{folder}/rows.db"


def _transactions(options: argparse.Namespace) -> int:
    runs, faults = 0, 0
    for seed in range(options.first, options.first + options.seeds):
        for point in options.rows.split(","):
            for store in options.stores.split(","):
                with tempfile.TemporaryDirectory(prefix="lro-rows-") as folder:
                    found = transaction_trial(_place(store, folder), Path(folder), point, seed)
                runs += 1
                faults += len(found)
                for fault in found:
                    print(f"{store}, {point}, seed {seed}: {fault}")
    print(f"{runs} processes killed, {faults} violations")
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
        campaign = _campaign(options, trial, broker)
        seeds = range(options.first, options.first + options.seeds)
        tallies = asyncio.run(campaign.run([(seed, cell) for seed in seeds for cell in cells]))
    print(table(tallies))
    return int(any(tally.violations for tally in tallies.values()))


def _campaign(options: argparse.Namespace, trial: Trial, broker: str) -> Campaign:
    return Campaign(
        trial=trial,
        broker=broker,
        lease=options.lease,
        margin=MARGIN_SECONDS,
        at_once=options.at_once,
        seconds=options.minutes * 60,
        keep=options.keep,
    )


def _broker(stack: contextlib.ExitStack) -> str:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lro-redis-")))
    return stack.enter_context(redis_server(folder)).url


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
