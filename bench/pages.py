"""The tables of pages, which are made from ``bench/figures.json``.

A page has ``<!-- figures: PATTERN ... -->`` before a table and ``<!-- end -->`` after it. A pattern
selects rows by their names, such as ``http_start.sqlite*``; after the word ``targets``, only rows
that have a target.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from bench.measure import Figure, amount, spread
from bench.report import KEPT, ROOT, Rows, load, rows_of

_BLOCK: Final = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOT_YET: Final = "*Not measured yet.*"


def pages() -> Iterator[Path]:
    """Yield the pages that may have tables."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def write() -> list[Path]:
    """Make all tables again, and return the pages that have changed."""
    changed = []
    for page in pages():
        text = page.read_text()
        if (new := rendered(text, rows_of(KEPT), load(KEPT))) != text:
            page.write_text(new)
            changed.append(page)
    return changed


def rendered(text: str, rows: Rows, about: Mapping[str, Any]) -> str:
    """Return the text of a page with new tables."""

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_table(match[2].split(), rows, about)}\n\n{match[3]}"

    return _BLOCK.sub(block, text)


def without_tables(text: str) -> str:
    """Return the text of a page without the tables that are made."""
    return _BLOCK.sub("", text)


def tables(text: str) -> str:
    """Return only the tables that are made."""
    return "\n".join(match[0] for match in _BLOCK.finditer(text))


def _table(patterns: Sequence[str], rows: Rows, about: Mapping[str, Any]) -> str:
    chosen = [
        (name, row)
        for pattern in patterns
        for name in rows
        for row in rows[name]
        if fnmatchcase(f"{name}.{row.key}", pattern)
    ]
    if patterns[0] == "targets":
        chosen = [(name, row) for name, row in chosen if row.target is not None]
        return _lines(("bench", *_HEAD), [(name, *_cells(row)) for name, row in chosen])
    if not chosen:
        return _NOT_YET
    found = list(dict.fromkeys(row for _, row in chosen))
    lines = _wide(found) if len({row.measure for row in found}) > 1 else _long(found)
    runs = {tuple(about[name][key] for key in ("date", "commit", "python", "cores")): 0
            for name, _ in chosen}  # fmt: skip
    said = "; ".join(
        f"measured on {date} at the commit “{commit}”, {python}, {cores} cores"
        for date, commit, python, cores in runs
    )
    return f"{lines}\n\n{said[0].upper()}{said[1:]}."


_HEAD: Final = ("", "ours", "floor or peer", "ratio or spread", "target")


def _long(rows: Sequence[Figure]) -> str:
    """Return a table with a line for each row."""
    return _lines(_HEAD, [_cells(row) for row in rows])


def _cells(row: Figure) -> tuple[str, ...]:
    more = row.floor is not None or len(row.rounds) > 1
    return (
        ", ".join(filter(None, (row.what, row.measure))),
        f"{amount(row.ours)} {row.unit}",
        f"{amount(row.floor)} {row.unit}" if row.floor is not None else "",
        spread(row) if more else "",
        _target(row),
    )


def _wide(rows: Sequence[Figure]) -> str:
    """Return a table with a line for each ``what`` and a column for each ``measure``."""
    columns = list(dict.fromkeys(row.measure for row in rows))
    cells = {(row.what, row.measure): _cell(row) for row in rows}
    names = dict.fromkeys(row.what for row in rows)
    lines = [(name, *(cells.get((name, column), "") for column in columns)) for name in names]
    return _lines(("", *columns), lines)


def _cell(row: Figure) -> str:
    text = f"{amount(row.ours)} {row.unit}"
    if row.floor is not None:
        text += f", ratio {spread(row)}"
    return "; ".join(filter(None, (text, row.target is not None and f"target {_target(row)}")))


def _target(row: Figure) -> str:
    if row.target is None:
        return ""
    unit = f" {row.unit}" if row.absolute or row.floor is None else ""
    return f"{amount(row.target)}{unit}{'' if row.reached else ', missed'}"


def _lines(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))
