"""Makes the comments of proto files from docstrings: a dict from full names to comments."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from lro._engine.service import Service
from lro._messages.protobuf.files import ProtoFiles
from lro._messages.schema import docstring
from lro._messages.shapes import is_message_class

_ADDED: Final = {
    "request_id": "Makes the call safe to repeat: the same id starts one operation only.",
    "validate_only": "Check the request, and start nothing.",
}
_SERVICE: Final = "Each method starts a long-running operation."


def comments_of(service: Service, files: ProtoFiles) -> dict[str, str]:
    """Return the docstrings of functions, classes and attributes, in the Markdown of proto files.

    The key of a field or an enum value is ``<full name of its message or enum>.<its name>``.
    """
    found: dict[str, str | None] = {}
    for file in files:
        package = f"{file.package}." if file.package else ""
        found |= {f"{package}{one.name}": _SERVICE for one in file.service}
    for spec in service.edges.specs.values():
        request = service.types.name_of(spec.request)
        found |= {f"{request}.{name}": text for name, text in _ADDED.items()}
        found[spec.full_name] = spec.function.__doc__ if spec.function else None
    for cls, name in {**files.names, **files.enum_names}.items():
        found[name] = docstring(cls)
        found |= {f"{name}.{attribute}": text for attribute, text in _below_attributes(cls)}
    return {name: inspect.cleandoc(text).replace("``", "`") for name, text in found.items() if text}


def _below_attributes(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a class and its bases, each with the text below it in the source."""
    for one in reversed(cls.__mro__):
        if one is cls or is_message_class(one):
            yield from _texts(one).items()


def _texts(cls: type) -> Mapping[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):  # the class has no source file, or was made by code
        return {}
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for line, after in itertools.pairwise(tree.body):
        named = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        text = after.value if isinstance(after, ast.Expr) else None
        if isinstance(named, ast.Name) and isinstance(text, ast.Constant):
            found[named.id] = str(text.value)
    return found
