"""Makes our docstrings and classes what mkdocstrings shows well, while griffe loads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import griffe

from tools.site.api import everything, is_attrs, shown_members, spell_out

ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([\w.]+)`")
RULE: Final = re.compile(r"(?<![\w`])§(\d+(?:\.\d+)?)")
NAMES: Final = re.compile(r"^( +(?:[A-Z]\w+, )*[A-Z]\w+,)\n +(?=[A-Z]\w+[,:])", re.MULTILINE)
"""The end of a line of error classes whose list goes on in the next."""
LITERAL: Final = re.compile(r"(``.+?``)", re.DOTALL)


class Docstrings(griffe.Extension):
    """Turns roles and cited rules into links, and shows how attrs classes are made.

    ``known`` is a file of JSON: by the path where a public name is defined, the path by which the
    reference has it; and by the number of a rule, the anchor of its heading.
    """

    def __init__(self, known: str) -> None:
        found = json.loads(Path(known).read_text("utf-8"))
        self._homes: Mapping[str, str] = found["homes"]
        self._rules: Mapping[str, str] = found["rules"]

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through all that a package has, once it is loaded."""
        for thing in everything(pkg):
            spell_out(thing, self._homes)
            if thing.docstring is not None:
                thing.docstring.value = self._linked(thing, thing.docstring.value)
            if isinstance(thing, griffe.Class) and is_attrs(thing):
                thing.members.setdefault("__init__", constructor(thing))
        for thing in everything(pkg):
            if isinstance(thing, griffe.Class) and thing.path in self._homes:
                self._show_inherited(thing)
                for name in thing.members.keys() - {"__init__", *shown_members(thing)}:
                    thing.del_member(name)

    def _linked(self, thing: griffe.Object, text: str) -> str:
        parts = LITERAL.split(NAMES.sub(r"\1 ", text))
        for at in range(0, len(parts), 2):
            parts[at] = ROLE.sub(lambda found: self._link(thing, found[1]), parts[at])
            parts[at] = RULE.sub(self._rule, parts[at])
        return "".join(parts)

    def _rule(self, found: re.Match[str]) -> str:
        anchor = self._rules.get(found[1])
        return f"[{found[0]}][{anchor}]" if anchor else found[0]

    def _link(self, thing: griffe.Object, name: str) -> str:
        """A name in the code as a link to where the reference has it, if it does."""
        first, *rest = name.split(".")
        scope: griffe.Object | None = thing
        while scope is not None:
            inside = [scope.path] if first in scope.members else []
            if isinstance(scope, griffe.Class):
                inside += [base.path for base in scope.mro() if first in base.members]
            for place in inside:
                target = ".".join([place, first, *rest])
                if home := self._home(thing, target):
                    return f"[`{name}`][{home}]"
            scope = scope.parent if isinstance(scope.parent, griffe.Object) else None
        home = self._home(thing, name)
        return f"[`{name}`][{home}]" if home else f"`{name}`"

    def _home(self, thing: griffe.Object, path: str) -> str | None:
        if path in self._homes.values() or path in self._homes:
            return self._homes.get(path, path)
        try:
            return self._homes.get(thing.modules_collection[path].canonical_path)
        except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
            return None

    def _show_inherited(self, thing: griffe.Class) -> None:
        """Show what comes from bases that have no entry of their own."""
        for base in thing.mro():
            if base.path not in self._homes:
                for name, member in base.members.items():
                    if not name.startswith("_") and name not in thing.members:
                        thing.set_member(name, griffe.Alias(name, target=member))


def constructor(thing: griffe.Class) -> griffe.Function:
    """The ``__init__`` that attrs makes: a parameter for each field, those of bases first."""
    given: dict[str, griffe.Parameter] = {}
    for each in [*reversed(thing.mro()), thing]:
        if is_attrs(each):
            all_named = any("kw_only=True" in str(one.value) for one in each.decorators)
            for field in each.attributes.values():
                if _is_field(field):
                    given[field.name] = _parameter(field, all_named)
    first = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    by_place = [one for one in given.values() if one.kind != griffe.ParameterKind.keyword_only]
    by_name = [one for one in given.values() if one.kind == griffe.ParameterKind.keyword_only]
    parameters = griffe.Parameters(first, *by_place, *by_name)
    return griffe.Function("__init__", parameters=parameters, returns="None", parent=thing)


def _is_field(attribute: griffe.Attribute) -> bool:
    fixed = "ClassVar" in str(attribute.annotation) or "init=False" in str(attribute.value)
    return attribute.annotation is not None and not fixed and "property" not in attribute.labels


def _parameter(field: griffe.Attribute, named: bool) -> griffe.Parameter:
    default = field.value
    if isinstance(default, griffe.ExprCall) and str(default.function).endswith("field"):
        options = {
            one.name: one.value for one in default.arguments if isinstance(one, griffe.ExprKeyword)
        }
        named = named or str(options.get("kw_only")) == "True"
        made = options.get("factory")
        default = options.get("default", f"{made}()" if made else None)
    kind = griffe.ParameterKind
    return griffe.Parameter(
        field.name.lstrip("_"),
        annotation=field.annotation,
        kind=kind.keyword_only if named else kind.positional_or_keyword,
        default=default,
    )
