"""From the tree to the plan: every name, operator and literal checked (spec §7.7 to §7.15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import attrs

from lro._any import Any
from lro._filters._literals import Pattern
from lro._filters._operands import route
from lro._filters._packed import PackedPath
from lro._filters._paths import Place, descend
from lro._filters._plan import (
    All,
    Contains,
    Plan,
    RecordTest,
    Registered,
    Some,
    Source,
    Untrue,
)
from lro._filters._refusals import refusal, shown
from lro._filters._tokens import KEYWORDS
from lro._filters._tree import (
    And,
    Call,
    Group,
    Member,
    Not,
    Op,
    Or,
    Part,
    Search,
    Tree,
)
from lro._filters._types import ValueType
from lro._shapes import Int32, shape_of


@attrs.frozen
class _Status:
    """The fields of google.rpc.Status, as filters see ``error``."""

    code: Int32 = 0
    message: str = ""
    details: tuple[Any, ...] = ()


_STATES: Final = ("IN_PROGRESS", "SUCCEEDED", "FAILED", "CANCELLED")
_PLACES: Final[Mapping[Source, Place]] = {
    Source.NAME: Place(type=ValueType.TEXT, implicit=True, default=""),
    Source.DONE: Place(type=ValueType.BOOL, implicit=True, default=False),
    Source.ERROR: Place(type=ValueType.MESSAGE, shape=shape_of(_Status)),
    Source.STATE: Place(type=ValueType.ENUM, names={state: state for state in _STATES}),
    Source.CREATE_TIME: Place(type=ValueType.MOMENT),
    Source.END_TIME: Place(type=ValueType.MOMENT),
    Source.CANCEL_REQUESTED: Place(type=ValueType.BOOL, implicit=True, default=False),
    Source.METADATA_TYPE: Place(type=ValueType.TYPE_NAME),
    Source.RESPONSE_TYPE: Place(type=ValueType.TYPE_NAME),
}
_PACKED: Final = (Source.METADATA, Source.RESPONSE)
_FIELDS: Final[Mapping[str, Source]] = {
    source.value: source for source in (Source.NAME, Source.DONE, Source.ERROR, *_PACKED)
}
_FUNCTIONS: Final[Mapping[tuple[str, ...], Source]] = {
    ("state",): Source.STATE,
    ("create_time",): Source.CREATE_TIME,
    ("end_time",): Source.END_TIME,
    ("cancel_requested",): Source.CANCEL_REQUESTED,
    ("type", "metadata"): Source.METADATA_TYPE,
    ("type", "response"): Source.RESPONSE_TYPE,
}

Accept: TypeAlias = Callable[[Member], Plan]
"""The left side and operator of a comparison, waiting for a literal."""


def check(tree: Tree, registered: Registered) -> Plan:
    """The plan of a tree, given the registered types.

    Raises:
        InvalidFilter: The filter does not fit the types (spec §7.15).
    """
    match tree:
        case And(items):
            return All(tuple(check(item, registered) for item in items))
        case Or(items):
            return Some(tuple(check(item, registered) for item in items))
        case Not(item):
            return Untrue(check(item, registered))
        case Search(what):
            return _alone(what)
        case _:
            return _compared(_accept(tree.left, tree.op, registered), tree.right)


def _alone(what: Member | Call) -> Plan:
    if isinstance(what, Member):
        return Contains(Pattern.of(_literal(what)).for_search())
    source = _function(what)
    if source is not Source.CANCEL_REQUESTED:
        raise refusal(f"expected an operator after {source.value}", what.position)
    return _test(source, Op.EQUAL, Member((Part("true"),)))


def _compared(accept: Accept, right: Member | Call | Group) -> Plan:
    match right:
        case Member():
            return accept(_literal(right))
        case Group(tree):
            return _distributed(accept, tree)
        case _:
            raise refusal(
                f"expected a value, found the function {shown(right.name)}", right.position
            )


def _distributed(accept: Accept, tree: Tree) -> Plan:
    """The comparison with every literal of a group, under the group's logic (spec §7.13)."""
    match tree:
        case And(items):
            return All(tuple(_distributed(accept, item) for item in items))
        case Or(items):
            return Some(tuple(_distributed(accept, item) for item in items))
        case Not(item):
            return Untrue(_distributed(accept, item))
        case Search(what):
            return _compared(accept, what)
        case _:
            description = "expected values in the group after an operator, found a comparison"
            raise refusal(description, tree.position)


def _literal(member: Member) -> Member:
    if member.mixed:
        description = "a value is one string or words joined by dots, not a mixture of them"
        raise refusal(description, member.position)
    return member


def _accept(left: Member | Call, op: Op, registered: Registered) -> Accept:
    if isinstance(left, Call):
        source = _function(left)
        return lambda literal: _test(source, op, literal)
    first, *rest = left.parts
    if first.text not in _FIELDS:
        known = f"one of the fields {', '.join(_FIELDS)} or a function such as state()"
        description = f"expected {known}, found {shown(first.text)}"
        raise refusal(description, first.position)
    source = _FIELDS[first.text]
    if source in _PACKED:
        return PackedPath.of(source, left, op, registered[source]).accept
    place = descend(_PLACES[source], rest, op)
    return lambda literal: RecordTest(source, route(place, op, literal))


def _test(source: Source, op: Op, literal: Member) -> Plan:
    return RecordTest(source, route(_PLACES[source], op, literal))


def _function(call: Call) -> Source:
    if call.name in KEYWORDS:
        raise refusal(f"expected white space between {call.name} and '('", call.position)
    words = [call.name]
    for arg in call.args:
        if not isinstance(arg, Member) or any(part.quoted for part in arg.parts):
            raise refusal(f"{shown(call.name)} takes no such argument", arg.position)
        words.append(arg.text)
    source = _FUNCTIONS.get(tuple(words))
    if source is None:
        known = ", ".join(source.value for source in _FUNCTIONS.values())
        asked = f"{shown(call.name)} with {len(call.args)} argument(s)"
        raise refusal(f"expected one of the functions {known}, found {asked}", call.position)
    return source
