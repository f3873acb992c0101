"""The tables of the pages are those of ``bench/figures.json``; the text has no other figures."""

import re
from pathlib import Path

import pytest

from bench.measure import Figure
from bench.pages import pages, rendered, tables, without_tables
from bench.report import KEPT, ROOT, load, rows_of

PLAIN = [ROOT / "README.md", ROOT / "docs" / "explanation" / "speed.md"]
"""The pages whose text outside of tables is searched for figures."""
HISTORY = re.compile(r"<!-- tried -->.*?<!-- end of tried -->", re.DOTALL)
"""What was tried and rejected: nothing can measure it again."""
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
FIGURE = re.compile(
    r"\d[\d.,]*(?:\s(?:to|and)\s\d[\d.,]*)?\s?"
    r"(?:µs|us|ms|s|kB|MB|GB|%|times|(?:operations |starts |calls )?(?:a|per) second)(?!\w)"
)


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.stem)
def test_tables_are_made_from_the_figures_that_are_kept(page: Path) -> None:
    """``python -m bench --pages`` makes them again."""
    text = page.read_text()
    assert rendered(text, rows_of(KEPT), load(KEPT)) == text


def figures_in(text: str) -> list[str]:
    """Return the figures in the text of a page that no table has."""
    prose = CODE.sub("", HISTORY.sub("", without_tables(text)))
    shown = tables(text)
    return [found for found in FIGURE.findall(prose) if found not in shown]


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_text_has_no_figure_that_no_table_has(page: Path) -> None:
    assert figures_in(page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    ["takes 35 µs", "takes 2.4 to 2.7 times the floor", "3,000 starts a second", "costs 2 %"],
)
def test_a_figure_in_the_text_is_found(text: str) -> None:
    assert len(figures_in(f"A start {text}.\n")) == 1
    assert figures_in(f"<!-- tried -->\n- It {text}.\n<!-- end of tried -->\n") == []


def test_a_figure_that_a_table_has_may_stand_in_the_text() -> None:
    text = "A start takes 35 µs.\n\n<!-- figures: x.* -->\n| start | 35 µs |\n<!-- end -->\n"
    assert figures_in(text) == []


def test_a_table_has_the_ratio_the_spread_and_the_target_of_a_row() -> None:
    row = Figure(what="start", ours=30, floor=10, unit="µs", rounds=(2.5, 3, 3.5), target=2)
    about = {"x": {"date": "2030-01-02", "commit": "Do it", "python": "CPython 3", "cores": "2"}}
    page = rendered("<!-- figures: x.* -->\nold\n<!-- end -->\n", {"x": [row]}, about)
    assert "| start | 30 µs | 10 µs | 3 (2.50 to 3.50) | 2, missed |" in page
    assert "Measured on 2030-01-02 at the commit “Do it”, CPython 3, 2 cores." in page
    assert "old" not in page


def test_a_rate_reaches_its_target_from_above() -> None:
    row = Figure(what="start", ours=900, unit="/s", rounds=(800, 900, 1000), target=850)
    assert row.reached
    assert row.worse(700, row.spread[0])
    assert not row.worse(1100, row.spread[1])
