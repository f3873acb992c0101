"""The ``__all__`` of each public module has exactly the names that the module binds."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lro

NOT_NAMES = {"annotations", "TYPE_CHECKING", "Final"}
FACES = [
    *("lro", "lro.errors", "lro.types", "lro.adapters", "lro.wire", "lro.telemetry"),
    *("lro_client", "lro_client.transports", "lro_conform"),
]


def names_for_checkers(tree: ast.Module) -> list[ast.stmt]:
    """Return the imports under TYPE_CHECKING in a module that loads its names lazily."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return node.body
    return []


def bound_names(face: str) -> set[str]:
    """Return the public names that a module binds by imports, assignments or definitions."""
    names: set[str] = set()
    tree = ast.parse(Path(str(importlib.import_module(face).__file__)).read_text())
    for node in (*tree.body, *names_for_checkers(tree)):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
    return {name for name in names if not name.startswith("_")} - NOT_NAMES


def isort_style(name: str) -> tuple[int, list[str | int]]:
    """Return the linter's sort key: constants, then classes, then other names; 9 before 10."""
    rank = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return rank, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


@pytest.mark.parametrize("face", FACES)
def test_all_has_exactly_the_public_names_of_the_package(face: str) -> None:
    """``__all__`` has exactly the module's public names in order, and each can be loaded."""
    module = importlib.import_module(face)
    assert set(module.__all__) == bound_names(face)
    assert list(module.__all__) == sorted(set(module.__all__), key=isort_style)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module.__all__) <= set(dir(module))  # an interactive shell completes these names


def test_server_package_has_few_public_names() -> None:
    """``lro`` has at most 35 names, enough for a first server; its modules have further names."""
    assert len(importlib.import_module("lro").__all__) <= 35
    program = "import lro; print(lro.adapters, lro.errors, lro.types, lro.wire)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_client_package_has_few_public_names() -> None:
    """``lro_client`` has at most 25 names; transports and waits are in its modules."""
    assert len(importlib.import_module("lro_client").__all__) <= 25


def test_service_is_small() -> None:
    """``Service`` has at most 25 public methods, without counting the ``_async`` variants."""
    names = {name for name in vars(lro.Service) if not name.startswith("_")}
    assert len({name.removesuffix("_async") for name in names}) <= 25


LAZY = ["lro", "lro.types", "lro.wire", "lro_client", "lro_client.transports"]


@pytest.mark.parametrize("face", LAZY)
def test_lazy_names_match_the_imports_for_type_checkers(face: str) -> None:
    """Each lazy name is loaded from the module named by the imports under TYPE_CHECKING."""
    module = importlib.import_module(face)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for node in names_for_checkers(tree):
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            home = importlib.import_module(str(node.module))
            assert getattr(module, alias.name) is getattr(home, alias.name)
            assert dir(module).count(alias.name) == 1


@pytest.mark.parametrize("face", LAZY)
def test_error_of_a_misspelt_name_lets_python_suggest_another(
    face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the name and the module, from which Python takes "Did you mean: ...?"."""
    module = importlib.import_module(face)
    with pytest.raises(AttributeError) as caught:
        getattr(module, "Operatoin")  # noqa: B009  # type checkers refuse it
    assert (caught.value.name, caught.value.obj) == ("Operatoin", module)
    monkeypatch.delitem(sys.modules, face)  # as in a program that loads modules anew
    assert not hasattr(module, "Operatoin")


def test_misspelt_name_of_the_package_is_an_attribute_error() -> None:
    """A misspelt name is an AttributeError, as in every module."""
    lro = importlib.import_module("lro")
    with pytest.raises(AttributeError, match="module 'lro' has no attribute 'Servce'"):
        getattr(lro, "Servce")  # noqa: B009  # type checkers refuse it
    with pytest.raises(ImportError, match="cannot import name 'Servce' from 'lro'"):
        exec("from lro import Servce")


def test_importing_the_package_loads_no_submodule() -> None:
    """Importing the package and using errors and types does not load the service."""
    program = "import sys, lro; lro.__all__; lro.errors; lro.types; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "lro.types" in run.stdout.split()
    assert [one for one in run.stdout.split() if one.startswith("lro._engine")] == []
