"""Each test that a docs page names in a comment, as proof of a sentence, must exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Final

import pytest

from tests.page_texts import DOCS, ROOT

MARK: Final = re.compile(r"<!--\s*(tests/[\w./-]+)::(\w+)\s*-->")
PAGES: Final = [
    page for page in sorted(DOCS.rglob("*.md")) if MARK.search(page.read_text(encoding="utf-8"))
]


@functools.cache
def functions_of(path: Path) -> set[str]:
    """Return the names of the functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_named_tests_exist(page: Path) -> None:
    """Every test that a docs page names exists; a test is renamed together with the page."""
    for path, test in MARK.findall(page.read_text(encoding="utf-8")):
        assert test in functions_of(ROOT / path), f"{path}::{test}"
