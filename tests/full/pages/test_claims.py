"""Tests that pages name in comments as the proof of a sentence are there."""

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
    """The names of the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_named_tests_exist(page: Path) -> None:
    """A test that was renamed or removed takes its sentence along."""
    for path, test in MARK.findall(page.read_text(encoding="utf-8")):
        assert test in functions_of(ROOT / path), f"{path}::{test}"
