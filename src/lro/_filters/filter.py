"""Compiled filters: parsed and checked against the registered types (spec §7.7 to §7.15)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from lro._base.errors import InvalidFilter
from lro._base.status import AnyMessage
from lro._filters.operands import route
from lro._filters.parse import (
    KEYWORDS,
    And,
    Comparison,
    Composite,
    Function,
    Member,
    Not,
    Op,
    Or,
    Part,
    Search,
    Tree,
    parse,
    refusal,
    shown,
    suggestion,
)
from lro._filters.paths import Cardinality, Place, descend
from lro._filters.plan import (
    Conjunction,
    Contains,
    Disjunction,
    Exists,
    Negation,
    PackedTest,
    Plan,
    RecordTest,
    Registered,
    Source,
    Subject,
    ValueTest,
    View,
)
from lro._filters.prefilter import Test
from lro._filters.prefiltering import KeyOf, prefilter_of
from lro._filters.types import MessageType, Pattern, ValueType, type_of_message
from lro._messages.schema import Int32
from lro._messages.shapes import shape_of

_EVERYTHING: Final = Conjunction(())


@attrs.frozen(kw_only=True)
class Filter:
    """A valid filter, which is immutable and safe to share between threads.

    ``text`` is the filter as given, ``tree`` its plan, and ``registered`` the types that it was
    checked against. A store can apply :meth:`prefilter` first, but only :meth:`matches` decides
    whether an operation matches.
    """

    text: str
    tree: Plan
    registered: Registered = attrs.field(repr=False)

    def prefilter(self, key_of: KeyOf) -> Test:
        """Return a test for a store to apply first; every match of the filter passes it."""
        return prefilter_of(self.tree, key_of)

    def matches(self, subject: Subject) -> bool:
        """Return True if the filter matches this operation.

        Raises:
            InvalidFilter: The filter takes too many steps on this operation (spec §7.16).
        """
        return self.tree.holds(View(subject, self.registered))


def compile_filter(
    text: str, *, metadata: Sequence[MessageType], response: Sequence[MessageType]
) -> Filter:
    """Parse and fully check a filter, before any operation is read (spec §7.15).

    Args:
        text: The filter; empty matches everything.
        metadata: The metadata types of the server's methods.
        response: The response types of the server's methods.

    Raises:
        InvalidFilter: The filter is not in the language, exceeds a limit, or fits no type.
    """
    registered = {
        Source.METADATA: {message_type.full_name: message_type for message_type in metadata},
        Source.RESPONSE: {message_type.full_name: message_type for message_type in response},
    }
    tree = parse(text)
    plan = _EVERYTHING if tree is None else check(tree, registered)
    return Filter(text=text, tree=plan, registered=registered)


@attrs.frozen(kw_only=True)
class PackedPath:
    """A path into a packed message, resolved in every registered type that has it.

    ``refused`` has the errors of the registered types that do not have the path.
    """

    source: Source
    op: Op
    whole: bool
    places: Mapping[str, Place]
    refused: tuple[InvalidFilter, ...]

    @classmethod
    def of(
        cls, source: Source, path: Member, op: Op, types: Mapping[str, MessageType]
    ) -> PackedPath:
        """Resolve the path below ``metadata`` or ``response`` in each of the types."""
        parts = path.parts[1:]
        places: dict[str, Place] = {}
        refused: list[InvalidFilter] = []
        for name, message_type in types.items():
            start = Place(type=type_of_message(name), shape=message_type.shape)
            if not start.type.named and start.type is not ValueType.DYNAMIC:
                refused.append(refusal(f"there is nothing below {name}", path.position))
                continue
            try:
                places[name] = descend(start, parts, op)
            except InvalidFilter as exc:
                refused.append(exc)
        return cls(source=source, op=op, whole=not parts, places=places, refused=tuple(refused))

    def accept(self, literal: Member) -> Plan:
        """Return the plan for a comparison with this literal.

        Raises:
            InvalidFilter: No registered type accepts this path, operator and literal.
        """
        position = literal.position
        if self.whole and literal.lone_star:
            return RecordTest(self.source, ValueTest((), Exists()))
        routes: dict[str, ValueTest] = {}
        refused = list(self.refused)
        for name, place in self.places.items():
            try:
                routes[name] = route(place, self.op, literal)
            except InvalidFilter as exc:
                refused.append(exc)
        if not routes:
            raise self._refusal(refused, position)
        return PackedTest(self.source, routes)

    def _refusal(self, refused: Sequence[InvalidFilter], position: int) -> InvalidFilter:
        # Reports the refusal of the type that accepted the longest part of the path.
        if not refused:
            description = f"no type is registered for {self.source.value}, so nothing is in it"
            return refusal(description, position)
        furthest = max(refused, key=lambda exc: exc.position)
        if len(refused) == 1:
            return furthest
        others = f"; no type registered for {self.source.value} accepts this"
        return refusal(furthest.description + others, furthest.position)


@attrs.frozen
class _Status:
    """The fields of ``error`` in filters."""

    code: Int32 = 0
    message: str = ""
    details: tuple[AnyMessage, ...] = ()


_STATES: Final = ("IN_PROGRESS", "SUCCEEDED", "FAILED", "CANCELLED")
_PLACES: Final[Mapping[Source, Place]] = {
    Source.NAME: Place(type=ValueType.TEXT, implicit=True, default=""),
    Source.DONE: Place(type=ValueType.BOOL, implicit=True, default=False),
    Source.ERROR: Place(type=ValueType.MESSAGE, shape=shape_of(_Status)),
    Source.STATE: Place(type=ValueType.ENUM, names={state: state for state in _STATES}),
    Source.CREATE_TIME: Place(type=ValueType.MOMENT),
    Source.END_TIME: Place(type=ValueType.MOMENT),
    Source.CANCEL_REQUESTED: Place(type=ValueType.BOOL, implicit=True, default=False),
    Source.WAITING: Place(type=ValueType.BOOL, implicit=True, default=False),
    Source.METHOD: Place(type=ValueType.METHOD_NAME),
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
    ("waiting",): Source.WAITING,
    ("method",): Source.METHOD,
    ("type", "metadata"): Source.METADATA_TYPE,
    ("type", "response"): Source.RESPONSE_TYPE,
}
_TAKEN: Final[Mapping[str, str]] = {
    **{words[0]: "no argument" for words in _FUNCTIONS},
    "type": "metadata or response, without quotes",
}
_NAMES: Final[Mapping[str, str]] = {
    **{words[0]: source.value for words, source in _FUNCTIONS.items()},
    **{field: field for field in _FIELDS},
    "type": Source.METADATA_TYPE.value,
}
"""The spelling of each field and function in filters, keyed by its first name."""

Accept: TypeAlias = Callable[[Member], Plan]
"""Returns the plan of a comparison of a known left side, by a known operator, with a literal."""


def check(tree: Tree, registered: Registered) -> Plan:
    """Return the plan of a tree, given the registered types.

    Raises:
        InvalidFilter: The filter does not fit the types (spec §7.15).
    """
    match tree:
        case And(items):
            return Conjunction(tuple(check(item, registered) for item in items))
        case Or(items):
            return Disjunction(tuple(check(item, registered) for item in items))
        case Not(item):
            return Negation(check(item, registered))
        case Search(what):
            return _alone(what)
        case _:
            return _comparison(tree, registered)


def _comparison(tree: Comparison, registered: Registered) -> Plan:
    try:
        accept = _accept(tree.left, tree.op, tree.op_position, registered)
        return _compared(accept, tree.right, tree.op_position)
    except InvalidFilter as refused:
        # Compute the hint only for the error that is raised, not for each type's refusal.
        hint = _nearest_field(refused, tree, registered)
        if not hint:
            raise
        raise refusal(refused.description, refused.position, hint) from None


def _nearest_field(refused: InvalidFilter, tree: Comparison, registered: Registered) -> str:
    if not isinstance(tree.left, Member) or tree.left.parts[0].text not in _FIELDS:
        return ""
    first, *path = tree.left.parts
    asked = path
    if tree.op is Op.HAS and isinstance(tree.right, Member) and not tree.right.mixed:
        asked = [*path, Part(tree.right.text, position=tree.right.position)]
    for index, part in enumerate(asked):
        if part.position == refused.position:
            places = _places(_FIELDS[first.text], path[:index], tree.op, registered)
            through_repeated = tree.op is Op.HAS and index < len(path)
            return suggestion(part.text, {name: name for name in _below(places, through_repeated)})
    return ""


def _nearest_name(text: str, registered: Registered) -> str:
    inside = {
        name: f"{source.value}.{name}"
        for source in reversed(_PACKED)
        for name in _below(_places(source, (), Op.EQUAL, registered), False)
    }
    # _NAMES is given twice: its names come first, and override equal names in messages.
    return suggestion(text, {**_NAMES, **inside, **_NAMES})


def _places(
    source: Source, path: Sequence[Part], op: Op, registered: Registered
) -> Iterator[Place]:
    starts = [_PLACES[source]] if source in _PLACES else []
    for name, message_type in registered.get(source, {}).items():
        starts.append(Place(type=type_of_message(name), shape=message_type.shape))
    for start in starts:
        with contextlib.suppress(InvalidFilter):
            yield descend(start, path, op)


def _below(places: Iterable[Place], through_repeated: bool) -> Iterator[str]:
    passed = (Cardinality.ONE, Cardinality.REPEATED) if through_repeated else (Cardinality.ONE,)
    for place in places:
        if place.shape and place.type is ValueType.MESSAGE and place.cardinality in passed:
            yield from (field.name for field in place.shape.fields)


def _alone(what: Member | Function) -> Plan:
    if isinstance(what, Member):
        return Contains(Pattern.of(_literal(what)).for_search())
    source = _function(what)
    if _PLACES[source].type is not ValueType.BOOL:
        raise refusal(f"expected an operator after {source.value}", what.position)
    return _test(source, Op.EQUAL, Member((Part("true"),)))


def _compared(accept: Accept, right: Member | Function | Composite, op_position: int) -> Plan:
    match right:
        case Member():
            return accept(attrs.evolve(_literal(right), op_position=op_position))
        case Composite(tree):
            return _distributed(accept, tree, op_position)
        case _:
            raise refusal(
                f"expected a value, found the function {shown(right.name)}", right.position
            )


def _distributed(accept: Accept, tree: Tree, op_position: int) -> Plan:
    # Compares with every literal of a group; the operators AND, OR and NOT of the group are kept
    # (spec §7.13).
    match tree:
        case And(items):
            return Conjunction(tuple(_distributed(accept, item, op_position) for item in items))
        case Or(items):
            return Disjunction(tuple(_distributed(accept, item, op_position) for item in items))
        case Not(item):
            return Negation(_distributed(accept, item, op_position))
        case Search(what):
            return _compared(accept, what, op_position)
        case _:
            description = "expected values in the group after an operator, found a comparison"
            raise refusal(description, tree.position)


def _literal(member: Member) -> Member:
    if member.mixed:
        description = "a value is one string or words joined by dots, not a mixture of them"
        raise refusal(description, member.position)
    return member


def _accept(left: Member | Function, op: Op, op_position: int, registered: Registered) -> Accept:
    if isinstance(left, Function):
        source = _function(left)
        return lambda literal: _test(source, op, literal)
    first, *rest = left.parts
    if first.text not in _FIELDS:
        known = f"one of the fields {', '.join(_FIELDS)} or a function such as state()"
        description = f"expected {known}, found {shown(first.text)}"
        raise refusal(description, first.position, _nearest_name(first.text, registered))
    source = _FIELDS[first.text]
    if source in _PACKED:
        if not rest and op is not Op.HAS:
            raise refusal(f"{source.value} takes only ':', not {op.value!r}", op_position)
        return PackedPath.of(source, left, op, registered[source]).accept
    place = descend(_PLACES[source], rest, op)
    return lambda literal: RecordTest(source, route(place, op, literal))


def _test(source: Source, op: Op, literal: Member) -> Plan:
    return RecordTest(source, route(_PLACES[source], op, literal))


def _function(call: Function) -> Source:
    if call.name in KEYWORDS:
        raise refusal(f"expected white space between {call.name} and '('", call.position)
    if call.name not in _TAKEN:
        known = ", ".join(source.value for source in _FUNCTIONS.values())
        description = f"expected one of the functions {known}, found {shown(call.name)}"
        raise refusal(description, call.position)
    words = [call.name]
    for arg in call.args:
        if isinstance(arg, Member) and not any(part.quoted for part in arg.parts):
            words.append(arg.text)
        else:
            words.append("")  # an empty word: no function has such an argument
    source = _FUNCTIONS.get(tuple(words))
    if source is None:
        position = call.args[0].position if call.args else call.position
        raise refusal(f"{call.name} takes {_TAKEN[call.name]}", position)
    return source
