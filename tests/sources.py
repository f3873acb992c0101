"""Facts about the shipped modules; each module is parsed once, and only the facts are kept."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

SRC: Final = Path(__file__).resolve().parent.parent / "src"


@attrs.frozen
class Source:
    """The facts of one module."""

    has_code: bool
    """Whether the module has more than a docstring."""
    imports: Sequence[tuple[str, str]]
    """The pairs (module, name) of all imports in the module; the name may be empty."""
    classes: Sequence[str]
    """The classes at the module's top level."""
    all_classes: Sequence[str]
    """All classes, including classes within functions and classes."""
    docstrings: Sequence[tuple[str, str]]
    """The name and docstring of each function and class."""
    functions: Sequence[tuple[str, int, int]]
    """Each function's name, parameter count (without ``self`` and ``cls``) and line count."""


@functools.cache
def source(path: Path) -> Source:
    """Return the facts of a module under ``SRC``."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = list(ast.walk(tree))
    documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return Source(
        any(not is_docstring(node) for node in tree.body),
        tuple(_imports(path, nodes)),
        tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef)),
        tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        tuple(
            (node.name, ast.get_docstring(node) or "")
            for node in nodes
            if isinstance(node, documented)
        ),
        tuple(_function(n) for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)),
    )


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, int, int]:
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    count = len(names) - (names[:1] in (["self"], ["cls"]))
    count += sum(rest is not None for rest in (given.vararg, given.kwarg))
    return node.name, count, (node.end_lineno or 0) - node.lineno + 1


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _imports(path: Path, nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    package = path.relative_to(SRC).parent.parts
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from ((module, alias.name) for alias in node.names)
