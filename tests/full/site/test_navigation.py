"""Every page is in the navigation once, and is rendered as CommonMark requires."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("griffe")
pytest.importorskip("markdown_it")

from markdown_it import MarkdownIt

from tools.site import building
from tools.site.api import ROOT, Api
from tools.site.building import SiteError, anchor, gather, moved, run_zensical, sections

PAGES: Final = sorted(
    path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
)
ASIDE: Final = ("API", "Protocol", "Engineering notes", "Project")
"""The tabs with pages that few readers need."""
PAGES_AT_MOST: Final = 50
WORDS_AT_MOST: Final = 60_000
"""The number of words on all pages of the other tabs, with the words of code."""
SHOWN: Final = re.compile("h[1-4]|li|pre|blockquote|th|td|img|strong|em")


def test_each_page_is_in_the_navigation_once(api: Api) -> None:
    """Each page of the docs is once in ``nav`` of zensical.toml, where new pages must be added."""
    listed = Counter(page for entries in sections().values() for _, page in entries)
    pages = gather(api)
    assert sorted(pages.keys() - listed.keys()) == [], "these are missing in zensical.toml"
    assert sorted(listed.keys() - pages.keys()) == [], "these are in zensical.toml, but not in docs"
    assert [page for page, times in listed.items() if times > 1] == []
    titles = Counter((name, title) for name, many in sections().items() for title, _ in many)
    assert [title for title, times in titles.items() if times > 1] == []  # no title is used twice


class Shown(HTMLParser):
    """The visible content of a piece of HTML: its text, and the number of elements of each kind."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.words: list[str] = []
        self._skipped = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if dict(attrs).get("class") == "headerlink" or tag == "nav":
            self._skipped = 1
        elif SHOWN.fullmatch(tag):
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("a", "nav"):
            self._skipped = 0

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join("".join(self.words).split())


@pytest.mark.parametrize("page", PAGES)
def test_page_is_rendered_as_commonmark(built: Path, page: str) -> None:
    """Text, headings, lists, tables and blocks of a page are the same as in the repository."""
    html = (built / page).with_suffix(".html").read_text("utf-8")
    article = re.search(r"<article[^>]*>(.*)</article>", html, re.DOTALL)
    assert article is not None
    body = re.sub(r"<nav.*?</nav>|<!--.*?-->", "", article[1], flags=re.DOTALL)
    source = re.sub(r"<!--.*?-->", "", (ROOT / "docs" / page).read_text("utf-8"), flags=re.DOTALL)
    wanted = Shown(MarkdownIt("commonmark").enable("table").render(source))
    found = Shown(body)
    assert found.counts == wanted.counts
    assert found.text == wanted.text


def test_pages_hide_comments_for_the_tests(built: Path) -> None:
    """Comments about how tests run a block are in neither the HTML nor the Markdown of a page."""
    for path in [*built.rglob("*.html"), *built.rglob("*.md")]:
        text = path.read_text("utf-8")
        assert not re.search(r"served on port \d|<!--\s*(?:not run|run by|file:)", text), path


def test_heading_anchors_are_those_of_the_repository(built: Path) -> None:
    """The anchors of headings are the same on the site and in the repository."""
    for page in PAGES:
        html = (built / page).with_suffix(".html").read_text("utf-8")
        ids = set(re.findall(r'<h[1-6] id="([^"]+)"', html))
        tokens = MarkdownIt("commonmark").parse((ROOT / "docs" / page).read_text("utf-8"))
        texts = [
            "".join(child.content for child in inline.children or [])
            for opened, inline in itertools.pairwise(tokens)
            if opened.type == "heading_open"
        ]
        assert {anchor(text) for text in texts} <= ids, page


def test_link_out_of_the_site_becomes_text() -> None:
    """A link from a file of the root folder leads to a page of the site, or becomes plain text."""
    text = (
        "See [docs](docs/how-to/client.md#send-a-token), [code](src/lro/wsgi.py), "
        "[changes](CHANGELOG.md), [web](https://example.com/a), [here](#there).\n\n"
        "```text\n[docs](docs/how-to/client.md)\n```\n"
    )
    assert moved(text, "project/contributing.md") == (
        "See [docs](../how-to/client.md#send-a-token), code, "
        "[changes](changelog.md), [web](https://example.com/a), [here](#there).\n\n"
        "```text\n[docs](docs/how-to/client.md)\n```\n"
    )


@pytest.mark.parametrize("text", ["[gone](gone.md)", "[gone](#gone)", "::: lro.no_such_module"])
def test_page_with_a_fault_fails_the_build(tmp_path: Path, text: str) -> None:
    """A broken link, a broken anchor or an unknown name in a page fails the build."""
    pytest.importorskip("zensical")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{text}\n")
    plain = building.CONFIG.read_text("utf-8").replace('custom_dir = "overrides"', "")
    nav = re.compile(
        r"^nav = \[.*?^\]\n|^extra_css.*?\n|^extensions = .*?\n", re.DOTALL | re.MULTILINE
    )
    (tmp_path / "zensical.toml").write_text(nav.sub("", plain))
    with pytest.raises(SiteError):
        run_zensical(tmp_path)


def test_main_navigation_is_short() -> None:
    """The tabs that most readers use have at most 50 pages and 60,000 words."""
    main = [page for tab, pages in sections().items() if tab not in ASIDE for _, page in pages]
    words = sum(len((ROOT / "docs" / page).read_text("utf-8").split()) for page in main)
    assert len(main) <= PAGES_AT_MOST
    assert words <= WORDS_AT_MOST
