"""What tests read of a page: its tables and its fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"

_FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(page: str) -> str:
    """The source of a page of the docs, by its path below them."""
    return (DOCS / page).read_text(encoding="utf-8")


def rows(page: str, heading: str) -> Iterator[Sequence[str]]:
    """The cells of each row of the tables whose header begins with this cell."""
    for block in re.split(r"\n\s*\n", text_of(page)):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith(f"| {heading} |"):
            for line in lines[2:]:
                yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def fences(page: str, language: str) -> list[str]:
    """The texts of the blocks of this language."""
    return [text for found, text in _FENCE.findall(text_of(page)) if found == language]
