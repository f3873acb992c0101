"""What the library shows to its users, read from the sources: modules, names, and their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import griffe

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ROOT / "src"

Thing: TypeAlias = "griffe.Object | griffe.Alias"


class Api:
    """The public modules, by dotted name, and where each name of them is documented."""

    def __init__(self) -> None:
        loader = griffe.GriffeLoader(search_paths=[SOURCES])
        for package in sorted(path.parent.name for path in SOURCES.glob("*/__init__.py")):
            loader.load(package)
        loader.resolve_aliases(external=False)
        found = [one for top in loader.modules_collection.members.values() for one in _walk(top)]
        self.modules: Final[Mapping[str, griffe.Module]] = {
            module.path: module for module in found if module.exports is not None
        }
        """A module is public where its path has no underscore and it has an ``__all__``."""
        self.homes: Final[Mapping[str, str]] = dict(self._homes())
        """By the path where a name is defined: the path by which the reference has it."""
        for top in loader.modules_collection.members.values():
            for thing in everything(top):
                spell_out(thing, self.homes)

    def names(self, module: str) -> list[str]:
        """What a module exports, without modules that it shows."""
        exports = self.modules[module].exports or ()
        return [str(name) for name in exports if not self.modules[module][str(name)].is_module]

    def _homes(self) -> Iterator[tuple[str, str]]:
        # What several modules show is at home in the one that is named last: the topmost.
        for path in sorted(self.modules, key=lambda path: (path.count("."), path), reverse=True):
            yield path, path
            for name in self.names(path):
                thing = self.modules[path][name]
                yield thing.canonical_path, f"{path}.{name}"
                if thing.is_class:
                    for member in shown_members(thing):
                        yield f"{thing.canonical_path}.{member}", f"{path}.{name}.{member}"


def _walk(module: Thing) -> Iterator[griffe.Module]:
    """A module and those within it, without private ones."""
    if isinstance(module, griffe.Module):
        yield module
        for name, inner in module.modules.items():
            if not name.startswith("_"):
                yield from _walk(inner)


def everything(thing: griffe.Object) -> Iterator[griffe.Object]:
    """A module or class, and all that is defined within it."""
    yield thing
    for member in list(thing.members.values()):
        if isinstance(member, griffe.Object):
            yield from everything(member)


def spell_out(thing: griffe.Object, homes: Mapping[str, str]) -> None:
    """Let a function or a field show the value of a default whose name no user can look up."""
    if isinstance(thing, griffe.Function):
        for parameter in thing.parameters:
            parameter.default = _spelled_out(thing, parameter.default, homes)
    elif isinstance(thing, griffe.Attribute) and thing.parent and thing.parent.is_class:
        thing.value = _spelled_out(thing, thing.value, homes)


def _spelled_out(
    thing: griffe.Object, value: str | griffe.Expr | None, homes: Mapping[str, str]
) -> str | griffe.Expr | None:
    if not isinstance(value, griffe.ExprName):
        return value
    try:
        constant = thing.modules_collection[value.canonical_path]
        private = constant.canonical_path not in homes and constant.parent.is_module
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return value
    return constant.value if private and constant.is_attribute else value


def shown_members(thing: Thing) -> Iterator[str]:
    """The names of a class that have an entry of their own, also those of its bases.

    A field of attrs has none if its docstring is that of the class: it stands in the signature.
    """
    for name, member in thing.all_members.items():
        fields = member.is_attribute and is_attrs(member.parent) and "property" not in member.labels
        if not name.startswith("_") and not (fields and not member.docstring):
            yield name


def is_attrs(thing: Thing | None) -> bool:
    """Whether attrs makes the constructor of a class."""
    return isinstance(thing, griffe.Class) and any(
        one.callable_path in ("attrs.frozen", "attrs.define") for one in thing.decorators
    )
