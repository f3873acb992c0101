"""Tests use public names; the number of private names that they use may only fall."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent
OURS: Final = {"lro", "lro_client", "lro_conform", "pytest_lro"}

IMPORTED_AT_MOST = 437
"""The number of private names that tests import from the packages."""

READ_AT_MOST = 91
"""The number of private attributes that tests read or set, except on ``self`` and ``cls``."""


def is_private(name: str) -> bool:
    """Return True for a name such as ``_name``, but not for ``__name__``."""
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield "imported" or "read" for each use of a private name in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if is_private(node.attr) and not own:
                yield "read"
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")
            if module[0] in OURS:
                inside = any(map(is_private, module))
                yield from ("imported" for one in node.names if inside or is_private(one.name))


def test_number_of_private_names_in_tests_only_falls() -> None:
    """The numbers of private names equal the limits, which must be lowered if a number falls."""
    trees = (ast.parse(path.read_text()) for path in TESTS.rglob("*.py"))
    found = Counter(use for tree in trees for use in private_names(tree))
    assert (found["imported"], found["read"]) == (IMPORTED_AT_MOST, READ_AT_MOST)
