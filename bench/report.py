"""The rows of runs: kept in a file of JSON, compared with an older run, and as tables of pages."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.measure import Figure, amount

ROOT: Final = Path(__file__).resolve().parent.parent
KEPT: Final = ROOT / "bench" / "figures.json"
MOST_GROWTH: Final = 1.05
"""How much a counted figure may grow."""

Rows = dict[str, list[Figure]]
"""The rows of each bench."""


def about() -> dict[str, str]:
    """Return what a reader has to know about a run."""
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%s"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "date": f"{datetime.date.today()}",
        "commit": found.stdout.strip(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "cores": f"{os.cpu_count()}",
    }


def load(path: Path) -> dict[str, Any]:
    """Return what a file has about each bench: an empty dictionary if the file does not exist."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def rows_of(path: Path) -> Rows:
    """Return the rows in a file."""
    return {name: [Figure(**row) for row in kept["rows"]] for name, kept in load(path).items()}


def save(path: Path, name: str, rows: Sequence[Figure], *, whole: bool) -> None:
    """Put the rows of a bench into a file; unless they are all, the file keeps its other rows."""
    found = load(path)
    old = [] if whole or name not in found else rows_of(path)[name]
    new = {row.key: row for row in rows}
    merged = {row.key: row for row in old} | new
    facts = about()
    if merged.keys() != new.keys():  # the other rows are those of older runs
        facts = {key: _both(found[name][key], value) for key, value in facts.items()}
    found[name] = facts | {"rows": [row.to_json() for row in merged.values()]}
    parts = []
    for bench, kept in sorted(found.items()):
        head = json.dumps({key: value for key, value in kept.items() if key != "rows"})
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in kept["rows"])
        parts.append(f'"{bench}": {head[:-1]}, "rows": [\n{lines}\n]}}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _both(old: str, new: str) -> str:
    return " / ".join(dict.fromkeys([*old.split(" / "), new]))


def grown(old: Rows, new: Rows) -> Iterator[str]:
    """Yield a sentence about each counted figure that has grown too much."""
    for name, before, after in _pairs(old, new):
        if before is not None and after.exact and after.ours > before.ours * MOST_GROWTH:
            yield (
                f"{name}.{after.key} has grown from {amount(before.ours)} to {amount(after.ours)}"
                f" {after.unit}: find out why. If it has to be so, `python3 run.py bench --"
                f" {name} --save` puts the new figure into bench/figures.json."
            )


def compared(old: Rows, new: Rows) -> Iterator[str]:
    """Yield a line about each row: its value before and after, and what has become slower."""
    yield f"{'':<58}{'old':>11} {'new':>11} {'change':>8}"
    for name, before, after in _pairs(old, new):
        title = f"{name}.{after.key}"
        if before is None:
            yield f"{title:<58}{'':>11} {amount(after.value):>11}      new"
            continue
        change = after.value / before.value - 1 if before.value else 0.0
        low, high = before.spread
        beyond = after.worse(after.value, low if after.more_is_better else high)
        mark = "  SLOWER" if beyond else ""
        values = f"{amount(before.value):>11} {amount(after.value):>11} {change:>+8.1%}{mark}"
        yield f"{title:<58}{values}" if len(title) < 58 else f"{title}\n{'':<58}{values}"


def _pairs(old: Rows, new: Rows) -> Iterator[tuple[str, Figure | None, Figure]]:
    for name, rows in new.items():
        before = {row.key: row for row in old.get(name, ())}
        for row in rows:
            yield name, before.get(row.key), row
