"""In the child: imports what the work of a method needs."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from datetime import timedelta
from importlib.machinery import SourceFileLoader
from typing import Any, Final

import attrs

from lro._base.errors import DeclarationError
from lro._engine.method import Method
from lro._engine.method_spec import MethodSpec, Options
from lro._messages.registry import TypeRegistry
from lro.executors.processes._recipe import MAIN, FunctionReference, Main

_MAIN_ELSEWHERE: Final = "__mp_main__"
"""The name that multiprocessing gives the main module in a child."""


class MainFailed(Exception):
    """The main module of the program cannot be imported in a child; the cause says why."""


@functools.lru_cache(maxsize=1000)
def prepare(recipe: FunctionReference) -> MethodSpec:
    """The method of a recipe, with its function and types.

    Raises:
        MainFailed: The main module is needed, and cannot be imported.
        Exception: Whatever comes of importing the application, which may also lack what the recipe
            says: AttributeError, DeclarationError.
    """
    if recipe.main is not None:
        try:
            _load_main(recipe.main)
        except BaseException as exc:  # such as SystemExit, of a script that ends itself
            raise MainFailed(recipe.main.module or recipe.main.file) from exc
    found = _imported(recipe.function)
    options = Options(
        attempts=recipe.attempts, retry_on=tuple(_imported(path) for path in recipe.retry_on)
    )
    if recipe.declared:
        if not isinstance(found, Method) or found.full_name != recipe.method:
            raise DeclarationError(recipe.method, f"is not at {recipe.function} in a child process")
        return attrs.evolve(found.spec, options=options, limits=recipe.limits)
    types = TypeRegistry()
    for name, path in recipe.types:
        types.register(_imported(path), name)
    return MethodSpec.build(
        recipe.method,
        found.spec.function if isinstance(found, Method) else found,
        request=_imported(recipe.request),
        response=_imported(recipe.response),
        metadata=_imported(recipe.metadata),
        options=options,
        types=types,
        expiry=timedelta(days=1),  # of no account here: the end is written by the parent
        limits=recipe.limits,
    )


def _imported(path: str) -> Any:
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


@functools.cache
def _load_main(main: Main) -> None:
    module = importlib.import_module(main.module) if main.module else _main_of_file(main.file)
    sys.modules[MAIN] = sys.modules[_MAIN_ELSEWHERE] = module


def _main_of_file(file: str) -> Any:
    # A script need not end in .py, so the loader is not left to be guessed.
    loader = SourceFileLoader(_MAIN_ELSEWHERE, file)
    spec = importlib.util.spec_from_loader(_MAIN_ELSEWHERE, loader)
    assert spec is not None  # the loader finds no packages, only what it was given
    module = sys.modules[_MAIN_ELSEWHERE] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[_MAIN_ELSEWHERE]
        raise
    return module
