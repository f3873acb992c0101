"""The cost of a stored step, in functions of 50 steps, compared with DBOS' steps.

Each round starts every candidate again, with a process and a database of its own, as in ``peers``;
DBOS is installed as in ``peers``.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Final

from bench.measure import Figure
from bench.peers import Candidate, measured_all, rows

STEPS: Final = 50
ROUNDS: Final = 5

PARSER = argparse.ArgumentParser(prog="python -m bench steps")
PARSER.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")

_EXTRA: Final = ("steps", str(STEPS))
CANDIDATES: Final = (
    *(
        Candidate(label=label, script="lro", where=where, extra=extra, one=10, many=many)
        for where, many in (("memory", 400), ("SQLite", 400), ("PostgreSQL", 400))
        for label, extra in (
            (f"lro, {where}", _EXTRA),
            (f"lro on a loop, {where}", ("loop", *_EXTRA)),
        )
    ),
    Candidate(
        label="DBOS, SQLite",
        script="dbos",
        where="SQLite",
        address="sqlite:///{}",
        extra=_EXTRA,
        one=5,
        many=64,
    ),
    Candidate(
        label="DBOS, PostgreSQL", script="dbos", where="PostgreSQL", extra=_EXTRA, one=5, many=64
    ),
)


def run(options: argparse.Namespace) -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        found = {
            label: [(one / STEPS, many / STEPS) for one, many in pairs]
            for label, pairs in measured_all(stack, CANDIDATES, options.rounds).items()
        }
    measures = ("a step", "steps")
    yield from rows(CANDIDATES, found, lambda one: found[f"lro, {one.where}"], measures)
