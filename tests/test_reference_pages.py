"""Tables of the reference agree with the code, or with other pages that have the same facts."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("markdown_it")

from tests.page_texts import DOCS

REFERENCE = DOCS / "reference"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


def rows(page: str, after: str = "") -> list[tuple[str, str]]:
    """Return the first two cells of each row, except the head, of the first table after a text."""
    table = (REFERENCE / page).read_text("utf-8").partition(after)[2] if after else ""
    table = table or (REFERENCE / page).read_text("utf-8")
    lines = re.search(r"(?:^\|.*\n)+", table, re.MULTILINE)
    assert lines
    return ROW.findall(lines[0])[1:]


def test_terms_of_the_glossary_are_in_order_and_have_links() -> None:
    found = rows("glossary.md")
    terms = [term for term, _ in found]
    assert 20 <= len(terms) <= 30
    assert terms == sorted({*terms}, key=str.casefold)
    assert [term for term, meaning in found if not re.search(r"\]\([\w./#-]+\)", meaning)] == []


def test_error_reasons_on_the_agents_page_match_the_errors_page() -> None:
    """Each reason on the agents page stands under the same code as on the errors page."""
    codes = {
        reason: code for cell, code in rows("errors.md") for reason in re.findall(r"[A-Z_]+", cell)
    }
    for cell, reasons in rows("for-agents.md", "## Errors of calls"):
        for reason in re.findall(r"\b[A-Z]{3}[A-Z_]+\b", reasons):
            allowed = codes[reason].partition(",")[0]
            # one row has both reasons of hooks, without a code
            assert allowed in cell or reason in ("UNAUTHENTICATED", "PERMISSION_DENIED"), reason
