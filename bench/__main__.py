"""``python -m bench [NAME ...]``: all benches, or the named ones. See docs/explanation/speed.md.

A name may be abbreviated if it stays unique: ``start`` for ``start_to_result``. The options of a
bench come last, and only with its name: ``python -m bench watched --help``.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

from bench import pages, report
from bench.measure import HEAD, MISSING, Figure

NAMES: Final = (
    "counts",
    "start_to_result",
    "stores",
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


def measured(name: str, module: Any, asked: argparse.Namespace | None) -> list[Figure]:
    """Run a bench, and print its rows."""
    print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}\n{HEAD}", flush=True)
    rows = []
    for row in module.run() if asked is None else module.run(asked):
        print(row, flush=True)
        rows.append(row)
    return rows


def run(benches: list[str], options: list[str], targets: list[Path]) -> report.Rows:
    """Run benches, and put the rows of each into files when it is over."""
    modules = {name: importlib.import_module(f"bench.{name}") for name in benches}
    parsers = {name: getattr(module, "PARSER", None) for name, module in modules.items()}
    if options and (len(benches) != 1 or parsers[benches[0]] is None):
        raise SystemExit(f"{' '.join(options)}: options go with one bench that has some")
    asked = {name: parser.parse_args(options) for name, parser in parsers.items() if parser}
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"CPython {platform.python_version()}, {platform.machine()}, {load}")
    found: report.Rows = {}
    for name, module in modules.items():
        MISSING.clear()
        found[name] = measured(name, module, asked.get(name))
        for text in MISSING:
            print(f"not measured: {text}", flush=True)
        for path in targets:
            report.save(path, name, found[name], whole=not options and not MISSING)
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
