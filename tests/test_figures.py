"""The tables of the pages are those of ``bench/figures.json``; the text has no other figures."""

import re
from pathlib import Path

import pytest

from bench.measure import Figure
from bench.pages import pages, rendered, tables, without_tables
from bench.report import KEPT, ROOT, compared, grown, load, rows_of, save

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
    cells = re.findall(r"\|\s*([\d.,]*\d)\s*(?=\|)", prose)
    return [found for found in (*FIGURE.findall(prose), *cells) if found not in shown]


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


def test_a_figure_in_a_table_that_is_not_made_is_found() -> None:
    assert figures_in("| SQLite | 3,150 |\n| memory | 2.5 | 4 |\n") == ["3,150", "2.5", "4"]


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


def kept(path: Path) -> dict[str, list[tuple[str, float]]]:
    return {name: [(row.what, row.ours) for row in rows] for name, rows in rows_of(path).items()}


def test_part_of_a_bench_replaces_only_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    first, second = (Figure(what=what, ours=1, unit="µs") for what in ("a", "b"))
    save(path, "x", [first, second], whole=True)
    save(path, "y", [first], whole=True)
    save(path, "x", [Figure(what="b", ours=2, unit="µs")], whole=False)
    assert kept(path) == {"x": [("a", 1), ("b", 2)], "y": [("a", 1)]}
    save(path, "x", [second], whole=True)
    assert kept(path) == {"x": [("b", 1)], "y": [("a", 1)]}


def test_rows_of_an_older_run_keep_what_is_said_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"

    def saved(commit: str, *names: str, whole: bool = False) -> str:
        monkeypatch.setattr("bench.report.about", lambda: {"commit": commit, "cores": "2"})
        rows = [Figure(what=what, ours=1, unit="µs") for what in names]
        save(path, "x", rows, whole=whole)
        assert load(path)["x"]["cores"] == "2"
        return str(load(path)["x"]["commit"])

    assert saved("Old", "a", "b") == "Old"
    assert saved("New", "b") == "Old / New"
    assert saved("New", "b") == "Old / New"
    assert saved("Newer", "a", "b") == "Newer"
    assert saved("Newest", "b", whole=True) == "Newest"


def test_a_comparison_marks_what_is_slower_than_the_slowest_round_before() -> None:
    def row(what: str, ours: float, unit: str = "µs") -> Figure:
        return Figure(what=what, ours=ours, unit=unit, rounds=(0.9 * ours, ours, 1.1 * ours))

    old = {"x": [row("a", 10), row("b", 10), row("c", 10, "/s")]}
    new = {"x": [row("a", 10.5), row("b", 12), row("c", 8, "/s"), row("d", 1)]}
    _, *lines = compared(old, new)
    assert ["SLOWER" in line for line in lines] == [False, True, True, False]
    assert "+20.0%" in lines[1]
    assert lines[3].endswith("new")


def test_only_a_count_that_has_grown_is_a_fault() -> None:
    old, new = (
        {
            "x": [
                Figure(what="a", ours=n, unit="calls", exact=True),
                Figure(what="b", ours=n, unit="µs"),
            ]
        }
        for n in (100, 106)
    )
    (fault,) = grown(old, new)
    assert "x.a has grown from 100 to 106 calls" in fault
    assert list(grown(new, old)) == []
