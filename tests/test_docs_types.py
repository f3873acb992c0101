"""The input of the type checkers from the docs, and the reports of their errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("markdown_it")

from tests import docs_types
from tests.page_texts import FILE, PAGES, ROOT, blocks, files


def test_every_python_block_is_checked_under_its_line() -> None:
    """Each Python block is checked with its line numbers, even a block that is not run."""
    for page in PAGES:
        sources = [source.splitlines() for source in docs_types.modules(page)]
        for block in blocks(page):
            if block.language == "python" and not FILE.search(block.comment):
                lines = block.text.splitlines()
                there = [one[block.line : block.line + len(lines)] == lines for one in sources]
                assert there.count(True) == 1, (page, block.line)


def test_modules_of_all_pages_are_written_to_one_folder(tmp_path: Path) -> None:
    """Each written file has a valid module name; ``work.pyi``, which readers write, exists too."""
    pages = docs_types.write(tmp_path)
    assert {*pages.values()} == {
        page.relative_to(ROOT)
        for page in PAGES
        if [*docs_types.modules(page)] or any(path.endswith(".py") for path in files(page))
    }
    assert all(file.stem.isidentifier() for file in pages)
    assert (tmp_path / "work.pyi").exists()


def test_finding_of_a_type_checker_has_page_and_line(tmp_path: Path) -> None:
    """A reported error has the page and its line; a checker that crashes raises an error."""
    pages = {tmp_path / "readme_0.py": Path("README.md")}
    stem = "readme_0"
    said = [f"../x/{stem}.py:7: error: wrong", f"  /x/{stem}.py:8:1 - error: bad", "2 errors found"]
    command = [sys.executable, "-c", f"print({chr(10).join(said)!r}); exit(1)"]
    found = docs_types.findings(command, tmp_path, pages)
    assert found == ["README.md:7: error: wrong", "README.md:8:1 - error: bad"]
    broken = [sys.executable, "-c", "import sys; sys.exit('out of memory')"]
    with pytest.raises(RuntimeError, match=re.escape("ended with 1:\nout of memory")):
        docs_types.findings(broken, tmp_path, {})
