"""Files for programs (llms.txt, llms-full.txt, Markdown pages), and all links of the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("griffe")
pytest.importorskip("markdown_it")

from markdown_it import MarkdownIt

from tools.site.building import sections
from tools.site.llms import first_sentence

ENTRY: Final = re.compile(r"- \[([^\]]+)\]\(([^)]+)\): (.+)")
LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\ssrc=["']?([^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon|prefetch))"""
    r"""[^>]*?\shref=["']?([^"'\s>]+)|url\(["']?([^"')]+)|@import\s+["']([^"']+)"""
)


def test_llms_txt_lists_each_page_with_a_sentence(built: Path) -> None:
    """llms.txt has a title, a summary, and each page of the navigation with one sentence."""
    lines = (built / "llms.txt").read_text("utf-8").splitlines()
    assert lines[0] == "# lro"
    assert lines[2].startswith("> ")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, lines[3:]):
        if line.startswith("## "):
            section = found.setdefault(line[3:], [])
            continue
        match = ENTRY.fullmatch(line)
        assert match is not None, line
        assert match[3][-1] in ".:?)", line
        section.append((match[1], match[2]))
    assert found == sections()
    for entries in found.values():
        for _, page in entries:
            assert (built / page).is_file(), page


def test_page_links_to_its_markdown(built: Path) -> None:
    """Each HTML page has a Markdown file beside it, which parses as CommonMark with a title.

    The file llms-full.txt has all pages at once.
    """
    full = (built / "llms-full.txt").read_text("utf-8")
    for _, page in (entry for entries in sections().values() for entry in entries):
        text = (built / page).read_text("utf-8")
        assert text.strip() in full, page
        html = (built / page).with_suffix(".html").read_text("utf-8")
        link = re.search(r'<link rel="alternate" type="text/markdown" href="([^"]+)"', html)
        assert link is not None
        assert (built / page).parent.joinpath(link[1]).resolve() == (built / page).resolve()
        title = MarkdownIt("commonmark").parse(text)[0]
        assert (title.type, title.tag) == ("heading_open", "h1"), page


def test_markdown_of_the_reference_has_signatures_and_docstrings(built: Path) -> None:
    text = (built / "reference" / "api" / "lro.md").read_text("utf-8")
    assert "\n## lro.Service\n" in text
    assert "\nService(store: Store, executor: Executor | None, **options: " in text
    assert "\nOptions(*, concurrency: int | None = None, time_limit: timedelta | None" in text
    assert "\n### lro.Service.wait\n" in text
    assert "Long-running methods over a store" in text
    assert not re.search(r":(class|meth|func):`", text)


def test_links_of_markdown_lead_to_files(built: Path) -> None:
    """Links between pages in Markdown form lead to other pages in Markdown form."""
    for page in built.rglob("*.md"):
        for block in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
            for token in block.children or []:
                target = str(token.attrGet("href") or token.attrGet("src") or "")
                path = target.partition("#")[0]
                if path and not re.match(r"[a-z]+:", target):
                    assert (page.parent / path).is_file(), f"{page}: {target}"


@cache
def ids(page: Path) -> frozenset[str]:
    """Return the anchors of a page: the values of its ``id`` attributes."""
    return frozenset(map(unescape, re.findall(r'\b(?:id|name)="([^"]+)"', page.read_text("utf-8"))))


def links(page: Path) -> Iterator[str]:
    """Yield the targets of the links on a page."""
    yield from map(unescape, re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', page.read_text("utf-8")))


def test_links_lead_to_pages_and_anchors(built: Path) -> None:
    """Every link of the site, even a generated one, leads to a page and an anchor that exist."""
    wrong, seen = set(), 0
    for page in built.rglob("*.html"):
        if page.name == "404.html":
            continue  # this page is served for any URL, so its relative links cannot work
        for target in set(links(page)):
            parts = urlsplit(target)
            if parts.scheme:
                continue
            seen += 1
            reached = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            reached = reached / "index.html" if reached.is_dir() else reached
            anchor = unquote(parts.fragment)
            if not reached.is_file() or (anchor and anchor not in ids(reached)):
                wrong.add(f"{page.relative_to(built)}: {target}")
    assert seen > 5000
    assert sorted(wrong) == []


def test_pages_load_nothing_from_other_sites(built: Path) -> None:
    """No page or style sheet loads a script, style sheet, image or font from another site."""
    foreign = [
        f"{path.relative_to(built)}: {target}"
        for path in built.rglob("*")
        if path.suffix in {".html", ".css"}
        for target in map("".join, LOADED.findall(path.read_text("utf-8")))
        if re.match(r"(?:https?:)?//", target)
    ]
    assert foreign == []


def test_first_sentence_of_a_page_is_extracted() -> None:
    """The first sentence of a page is extracted without its title, images and link targets."""
    text = "# A\n\n![x](y.png)\n\nIt [is](b.md) 1.5\ntimes more: see `a.b`. Two.\n"
    assert first_sentence(text) == "It is 1.5 times more: see `a.b`."
