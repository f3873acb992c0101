"""The console blocks of pages that readers follow step by step, in real terminals."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.page_terminals import marked, pattern, run_terminals
from tests.page_texts import DOCS, PAGES

TUTORIAL: Final = DOCS / "tutorial" / "first-service.md"
STEPS: Final = [page for page in PAGES if marked(page) and page != TUTORIAL]


@pytest.fixture(autouse=True)
def _curl() -> None:
    if not shutil.which("curl"):
        pytest.skip("needs curl")


@pytest.mark.parametrize("page", STEPS, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    run_terminals(page, tmp_path, {})


def test_report_of_the_tutorial_continues_after_a_kill(tmp_path: Path) -> None:
    """Each page of the report is written once; only the interrupted one may be written twice."""
    printed = run_terminals(TUTORIAL, tmp_path, {"time.sleep(1)": "time.sleep(0.25)"})
    report = printed["1"].partition("SUCCEEDED")[0]
    written = Counter(map(int, re.findall(r"wrote page (\d+)", report)))
    assert sorted(written) == [*range(1, 61)]
    assert sum(written.values()) <= 61
    assert "attempt 2 began" in report


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ('{"name":"operations/P7hVusDjaYzBueiK61UWgDx"}', '{"name":"shelves/1"}'),
        ('"minutes":3}', '"minutes":4}'),
        ("first\n...\nlast", "last\nfirst"),
    ],
)
def test_output_that_differs_from_the_page_is_found(shown: str, printed: str) -> None:
    assert re.search(pattern(shown), shown.replace("...", "any\nlines"), re.MULTILINE)
    assert not re.search(pattern(shown), printed, re.MULTILINE)
