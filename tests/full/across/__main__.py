"""The long versions of these tests: ``python -m tests.full.across ids|cancel|wait|records``."""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lro._engine.change_listener import LOOK_AGAIN_SECONDS
from tests.full.across.parties import Apart, Inside, Party
from tests.full.across.races import delays, identical_starts, report_races, work_races
from tests.full.across.works import Traces
from tests.places import Place
from tests.services.postgres import shared_server

STORES: Final = ("memory", "sqlite", "postgres")
METHODS: Final = {"threads": "work", "asyncio": "awork", "processes": "work"}


def place_of(kind: str, folder: Path) -> Place:
    """Return the place of a new, empty database of this kind."""
    if kind == "postgres":
        return Place(kind, shared_server().url, shared_server().fresh_schema())
    return Place(kind, str(folder / "operations.db"))


@contextlib.contextmanager
def parties_on(
    store: str, executors: Sequence[str] = ("threads",) * 3, size: int = 1
) -> Iterator[tuple[list[Party], Traces]]:
    """Start a process per executor on a new database, and make traces for ``size`` pieces of work.

    A store in memory has a single service, in this process.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        traces = Traces(folder / "traces", size)
        if store == "memory":
            inside = stack.enter_context(contextlib.closing(Inside(Place(store), executors[0])))
            yield [inside] * len(executors), traces
            return
        place = place_of(store, folder)
        made = [Apart(place, kind) for kind in executors]
        yield [stack.enter_context(contextlib.closing(party)) for party in made], traces


def ids(options: argparse.Namespace) -> None:
    """Run rounds of a hundred identical concurrent starts."""
    for store in options.store:
        with parties_on(store, size=options.rounds) as (three, traces), timed(store, "starts"):
            asked = three[:1] if store == "memory" else three
            print(dict(identical_starts(asked, options.rounds, traces)), end="")


def cancel(options: argparse.Namespace) -> None:
    """Race each of ``count`` cancellations against a completion."""
    for store in options.store:
        for executor in options.executor:
            kinds = executor, "threads", "threads"
            with parties_on(store, kinds, options.count) as (three, traces), timed(store, executor):
                found = work_races(three, METHODS[executor], traces, range(options.count))
                print(dict(found), end="")
        with parties_on(store) as (three, _), timed(store, "reports"):
            print(dict(report_races(three, options.count)), end="")


def wait(options: argparse.Namespace) -> None:
    """Measure how soon waits return after an end in another process, even without notifications."""
    for store in options.store:
        if store == "memory":  # no other process can write to memory
            continue
        with parties_on(store) as (three, _):
            for deaf in (False, True):
                what = "every announcement lost" if deaf else "announced"
                with timed(store, what):
                    found = sorted(delays(three, options.rounds, deaf, options.look_again))
                    middle, late = found[len(found) // 2], found[int(0.99 * len(found))]
                    print(
                        f"{len(found)} waiters: p50 {middle * 1e3:.1f} ms,"
                        f" p99 {late * 1e3:.1f} ms, last {found[-1] * 1e3:.1f} ms",
                        end="",
                    )


def records(options: argparse.Namespace) -> None:
    """Run random sequences of store calls on all stores, and compare the results."""
    from tests.full.across.test_records import run_traces

    with timed("all", "stores"):
        run_traces(options.examples, derandomize=options.fixed, database=None)
        print(f"{options.examples} traces", end="")


@contextlib.contextmanager
def timed(store: str, what: str) -> Iterator[None]:
    """Print the store, what is timed, and the seconds that the block takes, on one line."""
    began = time.monotonic()
    print(f"{store:<9} {what:<10} ", end="", flush=True)
    yield
    print(f"  {time.monotonic() - began:.1f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run its command."""
    parser = argparse.ArgumentParser(prog="python -m tests.full.across", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for run, option, number in (
        (ids, "--rounds", 1000),
        (cancel, "--count", 5000),
        (wait, "--rounds", 50),
        (records, "--examples", 1000),
    ):
        command = commands.add_parser(run.__name__, help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument(option, type=int, default=number)
        command.add_argument("--store", nargs="*", default=STORES, choices=STORES)
        command.add_argument("--look-again", type=float, default=LOOK_AGAIN_SECONDS)
        command.add_argument("--fixed", action="store_true", help="the same traces in each run")
        command.add_argument("--executor", nargs="*", default=METHODS, choices=METHODS)
    options = parser.parse_args(arguments)
    logging.getLogger("lro").setLevel(logging.ERROR)
    options.run(options)


if __name__ == "__main__":
    main()
