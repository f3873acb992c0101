"""The cost of a stored step, in functions of 50 steps, compared with DBOS' steps.

Each round starts every candidate again, with a process and a database of its own, as in ``peers``;
DBOS is installed as in ``peers``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.peers import Candidate, Places, interpreter, measured, spread
from bench.peers.queues import Failed

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

Figures = list[tuple[float, float]]
"""For each round: seconds per step, in functions one after the other and in many at once."""


def run(options: argparse.Namespace) -> Iterator[str]:
    figures: dict[str, Figures] = {candidate.label: [] for candidate in CANDIDATES}
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        places = Places(stack)
        home = Path(os.environ.get("LRO_BENCH_PEERS") or places.folder())
        for _ in range(options.rounds):
            for candidate in CANDIDATES:
                if candidate.label in failed:
                    continue
                try:
                    python = interpreter(candidate.script, home)
                    log = places.folder() / "errors.txt"
                    one, many = measured(candidate, python, places.new(candidate.where), log)
                    figures[candidate.label].append((one / STEPS, many / STEPS))
                except Failed as exc:
                    failed[candidate.label] = str(exc)
    yield f"{'':<28} {'a step, ms':<26} {'steps a second':<26} ours / it: step, rate"
    for candidate in CANDIDATES:
        label = candidate.label
        yield f"{label:<28} {failed[label] if label in failed else _row(candidate, figures)}"


def _row(candidate: Candidate, figures: dict[str, Figures]) -> str:
    found = figures[candidate.label]
    shown = [
        spread([one * 1e3 for one, _ in found], ".3f"),
        spread([1 / many for _, many in found], ",.0f"),
    ]
    if not candidate.ours:
        pairs = list(zip(figures[f"lro, {candidate.where}"], found, strict=False))
        if pairs:
            step = statistics.median(ours[0] / its[0] for ours, its in pairs)
            rate = statistics.median(its[1] / ours[1] for ours, its in pairs)
            shown.append(f"{step:.2f}, {rate:.1f}")
    return " ".join(f"{one:<26}" for one in shown).rstrip()
