"""``python -m bench [NAME ...]``: all benches, or the named ones. See docs/explanation/speed.md.

A name may be abbreviated if it stays unique: ``start`` for ``start_to_result``. The options of a
bench come last, and only with its name: ``python -m bench watched --help``.

Most take a few minutes; these take longer, unless options or variables divide them: ``lists`` and
``sweep`` (``LRO_BENCH_STORES=sqlite``), ``console --stores``, ``http_start --connections 32``,
``excess --seconds 1``, ``watched --operations 1000 --rounds 1``, ``peers --rows queue``, ``steps
--rounds 1``. With ``--save``, such a run keeps the other rows of its bench.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import platform
import sys
from pathlib import Path
from typing import Final

from bench import pages, report
from bench.measure import HEAD, MISSING, Absent, Figure

NAMES: Final = (
    "counts",
    "start_to_result",
    "stores",
    "threads",
    "lists",
    "sweep",
    "across",
    "queue",
    "peers",
    "steps",
    "http_get",
    "http_start",
    "in_flight",
    "flood",
    "servers",
    "grpc_get",
    "wake",
    "excess",
    "watched",
    "polls",
    "codec",
    "lint",
    "imports",
    "observed",
    "console",
    "browser",
    "recovery",
)

NARROWING: Final = ("LRO_BENCH_LISTS", "LRO_BENCH_STORES", "LRO_BENCH_SWEEP")
"""Variables that change what a bench measures; its other rows are kept, as with options."""

PARSER: Final = argparse.ArgumentParser(
    prog="python -m bench", description=__doc__, allow_abbrev=False, add_help=False
)
PARSER.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to a file")
PARSER.add_argument(
    "--save", action="store_true", help="keep the rows in bench/figures.json and in the pages"
)
PARSER.add_argument("--pages", action="store_true", help="only make the tables of the pages again")
PARSER.add_argument("--compare", type=Path, metavar="OLD", help="show what has changed since a run")
PARSER.add_argument("--with", type=Path, metavar="NEW", help="compare this run; run no bench")


def chosen(names: list[str]) -> list[str]:
    """Return the benches that the names mean, in the given order; without names, all."""
    found = []
    for name in names:
        meant = [one for one in NAMES if one.startswith(name)]
        if len(meant) != 1:
            raise SystemExit(f"{name}: no such bench; there are {', '.join(NAMES)}")
        found += meant
    return found or list(NAMES)


def measured(name: str, options: list[str]) -> list[Figure]:
    """Run a bench, and print its rows; what it lacks goes into ``MISSING``."""
    rows: list[Figure] = []
    MISSING.clear()
    try:
        module = importlib.import_module(f"bench.{name}")
        parser = getattr(module, "PARSER", None)
        if options and parser is None:
            parser = argparse.ArgumentParser(prog=f"python -m bench {name}")
            parser.error(f"it has no options: {' '.join(options)}")
        print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}\n{HEAD}", flush=True)
        for row in module.run(parser.parse_args(options)) if parser else module.run():
            print(row, flush=True)
            rows.append(row)
    except (ImportError, Absent) as exc:
        MISSING.append(f"{name}: {exc}")
    for text in MISSING:
        print(f"not measured: {text}", flush=True)
    return rows


def run(benches: list[str], options: list[str], targets: list[Path]) -> report.Rows:
    """Run benches, and put the rows of each into files when it is over."""
    if options and len(benches) != 1:
        raise SystemExit(f"{' '.join(options)}: options go with one bench that has some")
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"CPython {platform.python_version()}, {platform.machine()}, {load}")
    narrowed = bool(options) or any(name in os.environ for name in NARROWING)
    found: report.Rows = {}
    for name in benches:
        found[name] = measured(name, options)
        for path in targets if found[name] else ():
            report.save(path, name, found[name], whole=not narrowed and not MISSING)
        if report.KEPT in targets:
            pages.write()
    return found


def main(arguments: list[str]) -> None:
    """Run the named benches with their options, or read a run, and compare it."""
    asked, rest = PARSER.parse_known_args(arguments)
    names = list(itertools.takewhile(lambda one: not one.startswith("-"), rest))
    if {"-h", "--help"} & set(rest) and not names:
        raise SystemExit(PARSER.format_help())
    if asked.pages:
        print("\n".join(map(str, pages.write())))
        return
    benches = chosen(names)
    targets = [path for path in (asked.json, report.KEPT if asked.save else None) if path]
    old = report.rows_of(asked.compare) if asked.compare else {}
    new = vars(asked)["with"]
    if new is None:
        found = run(benches, rest[len(names) :], targets)
    else:
        found = {name: rows for name, rows in report.rows_of(new).items() if name in benches}
    if asked.compare:
        print(f"\ncompared with {asked.compare}")
        print("\n".join(report.compared(old, found)))
        if faults := list(report.grown(old, found)):
            raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main(sys.argv[1:])
