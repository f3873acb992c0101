"""The console blocks of pages that readers follow step by step, in real terminals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.page_terminals import marked, run_terminals
from tests.page_texts import PAGES

STEPS: Final = [page for page in PAGES if marked(page)]


@pytest.mark.parametrize("page", STEPS, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    if not shutil.which("curl"):
        pytest.skip("needs curl")
    run_terminals(page, tmp_path)
