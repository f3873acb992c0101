"""The public modules export what they say, and say what they export."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

FACES = ["lro", "lro.errors", "lro.types", "lro.adapters", "lro.wire", "lro_client"]


def bound_names(face: str) -> set[str]:
    """The public names that the face's module binds by imports, assignments or definitions."""
    names: set[str] = set()
    body = ast.parse(Path(str(importlib.import_module(face).__file__)).read_text()).body
    # A face that imports its names late tells them to type checkers.
    late = [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    for node in [*body, *late]:
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
    return {name for name in names if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}


def isort_style(name: str) -> tuple[int, list[str | int]]:
    """The order of names that the linter wants: constants, classes, the rest; 9 before 10."""
    rank = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return rank, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


@pytest.mark.parametrize("face", FACES)
def test_all_is_what_the_face_binds(face: str) -> None:
    """``__all__`` has every public name of the face, and no other."""
    assert set(importlib.import_module(face).__all__) == bound_names(face)


@pytest.mark.parametrize("face", FACES)
def test_all_is_sorted(face: str) -> None:
    """``__all__`` is in order, with no name twice."""
    names = importlib.import_module(face).__all__
    assert list(names) == sorted(set(names), key=isort_style)


@pytest.mark.parametrize("face", FACES)
def test_all_names_exist(face: str) -> None:
    """Every name of ``__all__`` can be had from the face."""
    module = importlib.import_module(face)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_face_of_the_server_is_small() -> None:
    """``lro`` has what a first server needs, at most 45 names; other modules have the rest."""
    assert len(importlib.import_module("lro").__all__) <= 45
