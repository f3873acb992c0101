"""Every public name is documented: what it gives, what it takes, what it raises."""

from __future__ import annotations

import ast
import builtins
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import lro
import lro_client
import lro_conform

MODULES: Final = [
    *("lro", "lro.errors", "lro.types", "lro.adapters", "lro.wire", "lro_client", "lro_conform"),
]


def public() -> Iterator[tuple[str, Any]]:
    """Every name of the public modules, and the public methods of their classes."""
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for each in module.__all__:
            thing = getattr(module, each)
            if inspect.ismodule(thing) or id(thing) in seen:
                continue
            seen.add(id(thing))
            if inspect.isclass(thing):
                yield f"{name}.{each}", thing
                for member, value in vars(thing).items():
                    if not member.startswith("_") and not isinstance(thing, enum.EnumMeta):
                        function = inspect.unwrap(getattr(value, "fget", None) or value)
                        if inspect.isfunction(function):
                            yield f"{name}.{each}.{member}", function
            elif inspect.isroutine(thing):
                yield f"{name}.{each}", inspect.unwrap(thing)


NAMES: Final = dict(public())


def raised(function: Any) -> set[str]:
    """The errors that a function raises itself, by name."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError):
        return set()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    called = [node.exc.func if isinstance(node.exc, ast.Call) else node.exc for node in nodes]
    return {node.id for node in called if isinstance(node, ast.Name) and node.id[0].isupper()}


PACKAGES: Final = [
    Path(package.__file__ or "").parent for package in (lro, lro_client, lro_conform)
]


def named_errors(docstring: str) -> Iterator[str]:
    """The classes that the section ``Raises`` of a docstring names, without those of modules."""
    section = re.search(r"^Raises\b.*:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    entries = re.split(r"\n    (?=\S)", "\n" + section[1]) if section else []
    for entry in entries[1:]:
        names = re.split(r",\s+", entry.partition(":")[0])
        yield from (name for name in names if "." not in name)


def test_errors_that_docstrings_name_exist() -> None:
    """A class that was renamed is renamed there, too."""
    trees = {
        path: ast.parse(path.read_text("utf-8")) for one in PACKAGES for path in one.rglob("*.py")
    }
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    known = {node.name for _, node in nodes if isinstance(node, ast.ClassDef)} | set(dir(builtins))
    known |= {
        "Reject",
        "CommandError",
        "ImproperlyConfigured",
        "MCPError",
        "TaskResultDoesNotExist",
    }  # Celery's, Django's, MCP's
    documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    named = [
        (f"{path.name}: {node.name}", error)
        for path, node in nodes
        if isinstance(node, documented)
        for error in named_errors(ast.get_docstring(node) or "")
    ]
    assert len(named) > 500
    assert [one for one in named if one[1] not in known] == []


@pytest.mark.parametrize("name", NAMES)
def test_public_name_has_a_docstring(name: str) -> None:
    """Its first line is a sentence."""
    text = inspect.getdoc(NAMES[name]) or ""
    first = text.split("\n\n", 1)[0].strip()
    assert first, "there is no docstring"
    assert first[-1] in ".:?", first


@pytest.mark.parametrize("name", NAMES)
def test_public_function_says_what_it_raises(name: str) -> None:
    """Each error that it raises itself stands under ``Raises:``."""
    if inspect.isclass(NAMES[name]):
        return
    text = inspect.getdoc(NAMES[name]) or ""
    _, _, raises = text.partition("Raises")
    assert [error for error in raised(NAMES[name]) if error not in raises] == []
