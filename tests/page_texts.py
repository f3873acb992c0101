"""Parse the README and the docs: pages, tables, fenced blocks and their programs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

NOT_RUN: Final = re.compile(r"<!--\s*not run(?::\s*(?P<reason>.*?))?\s*-->", re.DOTALL)
SERVED: Final = re.compile(r"<!--\s*(?:(?P<app>\w+) is )?served on port (?P<port>\d+)\s*-->")
"""The comment that marks a block whose application later blocks call; the name may be ``app``."""
FILE: Final = re.compile(
    r"<!--\s*file: (?P<path>[\w/.]+)"
    r"(?:, served by `(?P<command>(?:lro serve|uvicorn) \S+)` on port (?P<port>\d+))?\s*-->"
)
"""The comment that marks a block as a file, which other blocks import or call as a server."""


@functools.lru_cache(1)
def tokens(page: Path) -> Sequence[Token]:
    """Return the tokens of a page, parsed as CommonMark with tables."""
    from markdown_it import MarkdownIt  # not installed in all test environments

    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


@attrs.frozen
class Block:
    """A fenced block: its language, the number of its first line, and the comment before it."""

    language: str
    line: int
    text: str
    comment: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, also from inside lists and quotes."""
    before = None
    for token in tokens(page):
        if token.type == "fence" and token.map:
            comment = before.content if before and before.type == "html_block" else ""
            language = (token.info.split() or [""])[0]
            yield Block(language, token.map[0] + 1, token.content, comment)
        before = token


def program(page: Path, *, serving: bool = True) -> str:
    """Return the Python of a page as one source; each line keeps its line number in the page.

    With ``serving``, the source also starts the page's servers.
    """
    source = ""
    for block in blocks(page):
        file = FILE.search(block.comment)
        if file and (file["command"] or "").startswith("lro serve") and serving:
            source += f"import serving; serving.run({file['command']!r}, {file['port']})\n"
        if block.language == "python" and not file and not NOT_RUN.search(block.comment):
            source += "\n" * (block.line - source.count("\n")) + block.text
            served = SERVED.search(block.comment)
            if served and serving:
                name = served["app"] or "app"
                source += f"import serving; serving.serve({name}, {served['port']})\n"
    return source


def files(page: Path) -> dict[str, str]:
    """Map the path of each file on a page to its text."""
    named = [(FILE.search(block.comment), block.text) for block in blocks(page)]
    return {match["path"]: text for match, text in named if match}


def text_of(page: str) -> str:
    """Return the source of a page, by its path in the docs."""
    return (DOCS / page).read_text(encoding="utf-8")


def rows(page: str, heading: str) -> Iterator[Sequence[str]]:
    """Yield the cells of each row of the tables whose first header cell is this heading."""
    for block in re.split(r"\n\s*\n", text_of(page)):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith(f"| {heading} |"):
            for line in lines[2:]:
                yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def fences(page: str, language: str) -> list[str]:
    """Return the texts of a page's blocks in this language."""
    return [block.text for block in blocks(DOCS / page) if block.language == language]
