"""References to a method's function: made in the parent, resolved by imports in the child."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from datetime import timedelta
from importlib.machinery import SourceFileLoader
from typing import Any, Final

import attrs

from lro._base.errors import DeclarationError
from lro._engine.limits import DEFAULT_LIMITS, Limits
from lro._engine.method_spec import MethodDefaults, MethodSpec, Options
from lro._engine.methods import Method
from lro._engine.retry import Retry
from lro._messages.registry import ClassCodec, TypeRegistry

MAIN: Final = "__main__"


@attrs.frozen
class MainModule:
    """The main module of a program: its module name, or its file if it has no module name."""

    module: str
    file: str


@attrs.frozen(kw_only=True)
class FunctionReference:
    """The paths of a method's function and classes, as ``module:name.in.the.module``.

    With ``declared``, the path ``function`` leads to the method, with its registry of types.
    Otherwise the registry is made from ``types``, pairs of a full name and a path. ``main`` is set
    if any path is in the main module.
    """

    method: str
    function: str
    declared: bool
    main: MainModule | None
    request: str
    response: str
    metadata: str
    types: tuple[tuple[str, str], ...]
    retry_on: tuple[str, ...]
    at_most_once: bool
    limits: Limits = DEFAULT_LIMITS
    around: str = ""


def check_importable(spec: MethodSpec) -> None:
    """Check that another process can import the method's function, as far as is known.

    Raises:
        DeclarationError: No process can import the function: it is a lambda, a function within a
            function or a bound method, or was typed into a shell.
    """
    for thing in (spec.function, spec.around, *_retried(spec)):
        if thing is not None:
            _path(spec.full_name, thing)


def reference_to(spec: MethodSpec) -> FunctionReference:
    """Return a reference to a method whose module has been imported.

    Raises:
        DeclarationError: Another process cannot import the method's function or one of its classes.
    """
    path = _path(spec.full_name, spec.function)
    found = _at(path)
    declared = isinstance(found, Method) and found.spec is spec
    if not declared and found is not spec.function and not _is_method_of(found, spec):
        raise DeclarationError(spec.full_name, f"is done by a function that is not at {path}")
    types = () if declared else _types(spec)
    classes = (spec.request, spec.response, spec.metadata)
    roles = [_class_path(spec, cls) for cls in classes] if not declared else ["", "", ""]
    retry_on = tuple(_class_path(spec, error) for error in _retried(spec))
    around = "" if declared or spec.around is None else _path(spec.full_name, spec.around)
    paths = (path, around, *roles, *retry_on, *(place for _, place in types))
    return FunctionReference(
        method=spec.full_name,
        function=path,
        declared=declared,
        main=_main(spec.full_name) if any(_in_main(one) for one in paths) else None,
        request=roles[0],
        response=roles[1],
        metadata=roles[2],
        types=types,
        retry_on=retry_on,
        at_most_once=spec.options.at_most_once,
        limits=spec.limits,
        around=around,
    )


def _retried(spec: MethodSpec) -> tuple[type[Exception], ...]:
    return () if spec.options.retry is None else spec.options.retry.on


def _is_method_of(found: object, spec: MethodSpec) -> bool:
    # True if the function was declared again, by another service or under another name.
    return isinstance(found, Method) and found.spec.function is spec.function


def _path(method: str, thing: object) -> str:
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or inspect.ismethod(thing):
        raise DeclarationError(method, f"needs {thing!r}, which no other process can import")
    path = f"{module}:{name}"
    if "<" in name:
        wanted = "which no other process can import; define it in a module, not in a function"
        raise DeclarationError(method, f"needs {path}, {wanted}")
    if _in_main(path):
        _main(method)
    return path


def _class_path(spec: MethodSpec, cls: type) -> str:
    path = _path(spec.full_name, cls)
    if _at(path) is not cls:
        raise DeclarationError(spec.full_name, f"needs {cls!r}, which is not at {path}")
    return path


def _at(path: str) -> object:
    """Return the object at a path in this process; None if no object is there."""
    module, _, names = path.partition(":")
    found: object = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _types(spec: MethodSpec) -> tuple[tuple[str, str], ...]:
    found = []
    for cls, name in list(spec.types._names.items()):
        if _well_known().knows(cls):
            continue
        try:
            if not isinstance(spec.types.codec(name), ClassCodec):
                wanted = "a codec that only the registry of its service has; decorate the function"
                raise DeclarationError(spec.full_name, f"needs {cls!r}, which has {wanted}")
            found.append((name, _class_path(spec, cls)))
        except DeclarationError:
            if cls in (spec.request, spec.response, spec.metadata):
                raise
    return tuple(found)


@functools.cache
def _well_known() -> TypeRegistry:
    return TypeRegistry()


def _in_main(path: str) -> bool:
    return path.startswith(f"{MAIN}:")


def _main(method: str) -> MainModule:
    module = sys.modules[MAIN]
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None) or ""
    if spec is not None and spec.name.rpartition(".")[2] != MAIN:
        return MainModule(spec.name, "")  # python -m package.module
    if spec is None and os.path.isfile(file):
        return MainModule("", os.path.abspath(file))
    why = "which no other process can import: it was typed in, or is the __main__ of a package"
    raise DeclarationError(method, f"is in the main module, {why}")


_MAIN_ELSEWHERE: Final = "__mp_main__"
"""The name that multiprocessing gives the main module in a child."""


class MainFailed(Exception):
    """The program's main module cannot be imported in a child; the cause says why."""


@functools.lru_cache(maxsize=1000)
def resolve(reference: FunctionReference) -> MethodSpec:
    """Return the method of a reference, with its function and types.

    Raises:
        MainFailed: The main module is needed and cannot be imported.
        AttributeError, DeclarationError: The application has no object at a path of the reference.
        Exception: Importing the application raised this.
    """
    if reference.main is not None:
        try:
            _load_main(reference.main)
        except BaseException as exc:  # such as SystemExit of a script
            raise MainFailed(reference.main.module or reference.main.file) from exc
    found = _imported(reference.function)
    retried = tuple(_imported(path) for path in reference.retry_on)
    options = Options(
        retry=Retry(on=retried) if retried else None, at_most_once=reference.at_most_once
    )
    if reference.declared:
        if not isinstance(found, Method) or found.full_name != reference.method:
            raise DeclarationError(
                reference.method, f"is not at {reference.function} in a child process"
            )
        return attrs.evolve(found.spec, options=options, limits=reference.limits)
    types = TypeRegistry()
    for name, path in reference.types:
        types.register(_imported(path), name)
    return MethodSpec.build(
        reference.method,
        found.spec.function if isinstance(found, Method) else found,
        request=_imported(reference.request),
        response=_imported(reference.response),
        metadata=_imported(reference.metadata),
        options=options,
        defaults=MethodDefaults(
            types=types,
            keep_for=timedelta(days=1),  # has no effect: the parent stores the results
            limits=reference.limits,
            around=_imported(reference.around) if reference.around else None,
        ),
    )


def _imported(path: str) -> Any:
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


@functools.cache
def _load_main(main: MainModule) -> None:
    module = importlib.import_module(main.module) if main.module else _main_of_file(main.file)
    sys.modules[MAIN] = sys.modules[_MAIN_ELSEWHERE] = module


def _main_of_file(file: str) -> Any:
    # The name of a script need not end in .py, so importlib cannot guess the loader.
    loader = SourceFileLoader(_MAIN_ELSEWHERE, file)
    spec = importlib.util.spec_from_loader(_MAIN_ELSEWHERE, loader)
    assert spec is not None  # the loader knows its file
    module = sys.modules[_MAIN_ELSEWHERE] = importlib.util.module_from_spec(spec)
    module.__spec__ = None  # without a spec, multiprocessing uses the file
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[_MAIN_ELSEWHERE]
        raise
    return module
