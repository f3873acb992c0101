"""``python -m bench [NAME ...]``: all benches, or the named ones. See docs/explanation/speed.md.

A name may be abbreviated if it stays unique: ``start`` for ``start_to_result``. Options come last,
and only with one name: ``python -m bench watched --help``.
"""

from __future__ import annotations

import importlib
import itertools
import os
import platform
import sys
from typing import Final

NAMES: Final = (
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
    "in_process",
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


def chosen(names: list[str]) -> list[str]:
    """Return the benches that the names mean, in the given order; without names, all."""
    found = []
    for name in names:
        meant = [one for one in NAMES if one.startswith(name)]
        if len(meant) != 1:
            raise SystemExit(f"{name}: no such bench; there are {', '.join(NAMES)}")
        found += meant
    return found or list(NAMES)


def main(arguments: list[str]) -> None:
    """Run the named benches, with their options."""
    names = list(itertools.takewhile(lambda one: not one.startswith("-"), arguments))
    options = arguments[len(names) :]
    benches = chosen(names)
    modules = {name: importlib.import_module(f"bench.{name}") for name in benches}
    parsers = {name: getattr(module, "PARSER", None) for name, module in modules.items()}
    if options and (len(benches) != 1 or parsers[benches[0]] is None):
        raise SystemExit(f"{' '.join(options)}: options go with one bench that has some")
    asked = {name: parser.parse_args(options) for name, parser in parsers.items() if parser}
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"CPython {platform.python_version()}, {platform.machine()}, {load}")
    print("ours / floor = ratio, the median of some rounds (the lowest to the highest)")
    for name in benches:
        module = modules[name]
        print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        for line in module.run(asked[name]) if name in asked else module.run():
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
