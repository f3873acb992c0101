"""Every public name has a docstring, which names the errors that are raised."""

from __future__ import annotations

import ast
import builtins
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from tests.sources import SRC, source

MODULES: Final = [
    *("lro", "lro.errors", "lro.types", "lro.adapters", "lro.wire"),
    *("lro_client", "lro_client.transports", "lro_client.waits", "lro_conform"),
]


def public() -> Iterator[tuple[str, Any]]:
    """Yield every name of the public modules, and the public methods of their classes."""
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


def raised(function: Any) -> set[str]:
    """Return the names of the errors that a function itself raises."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError):
        return set()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    called = [node.exc.func if isinstance(node.exc, ast.Call) else node.exc for node in nodes]
    return {node.id for node in called if isinstance(node, ast.Name) and node.id[0].isupper()}


PACKAGES: Final = [SRC / name for name in ("lro", "lro_client", "lro_conform")]


def named_errors(docstring: str) -> Iterator[str]:
    """Yield the classes in the ``Raises`` section of a docstring, without dotted names."""
    section = re.search(r"^Raises\b.*:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    entries = re.split(r"\n    (?=\S)", "\n" + section[1]) if section else []
    for entry in entries[1:]:
        names = re.split(r",\s+", entry.partition(":")[0])
        yield from (name for name in names if "." not in name)


def test_errors_that_docstrings_name_exist() -> None:
    """Errors in ``Raises`` sections exist, so a docstring with an old class name is found."""
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    known = {name for path in paths for name in source(path).all_classes} | set(dir(builtins))
    known |= {"Reject"}  # a class of Celery
    known |= {"CommandError", "ImproperlyConfigured", "TaskResultDoesNotExist"}  # classes of Django
    known |= {"MCPError"}
    named = [
        (f"{path.name}: {name}", error)
        for path in paths
        for name, docstring in source(path).docstrings
        for error in named_errors(docstring)
    ]
    assert len(named) > 500
    assert [one for one in named if one[1] not in known] == []


def test_public_names_have_docstrings() -> None:
    """The first paragraph of each docstring ends with a period, a colon or a question mark."""
    texts = {name: inspect.getdoc(thing) or "" for name, thing in public()}
    firsts = {name: text.split("\n\n", 1)[0].strip() for name, text in texts.items()}
    assert len(firsts) > 300
    assert {name: first for name, first in firsts.items() if first[-1:] not in {*".:?"}} == {}


def test_docstrings_of_public_functions_name_their_errors() -> None:
    unsaid = [
        (name, error)
        for name, thing in public()
        if not inspect.isclass(thing)
        for error in raised(thing)
        if error not in (inspect.getdoc(thing) or "").partition("Raises")[2]
    ]
    assert unsaid == []
