"""The code of docs pages that run commands or import many packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page_programs import LONG, run_code
from tests.page_texts import PAGES


@pytest.mark.parametrize("page", [one for one in PAGES if one.stem in LONG], ids=lambda p: p.stem)
def test_python_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """The code of a page runs from top to bottom, as one program, in an empty folder."""
    run_code(page, tmp_path)
