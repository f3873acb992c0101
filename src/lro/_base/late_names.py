"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def late_names(module: dict[str, object], homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module, whose globals are ``module``.

    ``homes`` has the names, separated by spaces, by the module from which they are loaded.
    """
    places = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in places:
            here = str(module["__name__"])
            # Python suggests a similar name to those who mistyped one if it knows the module.
            message = f"module {here!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules.get(here))
        found = module[name] = getattr(importlib.import_module(places[name]), name)
        return found

    return load
