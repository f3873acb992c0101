"""The plan of a checked filter: the tree that is evaluated and turned into prefilters.

All names are resolved and all literals converted. Nodes are plain values. ``holds`` returns whether
an operation matches (spec §7.5 to §7.14); it raises only if the filter takes too many steps.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, Protocol, TypeAlias

import attrs

from lro._base.status import AnyMessage, Json, Status
from lro._filters.parse import Op, refusal
from lro._filters.paths import Step
from lro._filters.types import (
    READ,
    SEPARATOR,
    Comparable,
    MessageType,
    Pattern,
    ValueType,
    double,
    moment,
    shape_below,
    type_of_field,
    type_of_message,
)
from lro._messages.schema import Field, Label, Shape


class Condition(Protocol):
    """A condition for one JSON value. Conditions never raise errors."""

    def holds(self, value: Json) -> bool:
        """Return True if the condition holds for this value."""
        ...


_APPLY: Final[Mapping[Op, Callable[[Comparable, Comparable], bool]]] = {
    Op.LESS: operator.lt,
    Op.LESS_EQUAL: operator.le,
    Op.GREATER: operator.gt,
    Op.GREATER_EQUAL: operator.ge,
    Op.EQUAL: operator.eq,
    Op.NOT_EQUAL: operator.ne,
    Op.HAS: operator.eq,
}


@attrs.frozen
class Exists:
    """The path leads to a value: a set field, or an existing key."""

    def holds(self, value: Json) -> bool:  # noqa: ARG002  # the protocol has this argument
        """Return True, because the value exists."""
        return True


@attrs.frozen
class NotEmpty:
    """A repeated field or map has elements."""

    def holds(self, value: Json) -> bool:
        """Return True for a list or object that is not empty."""
        return isinstance(value, list | dict) and bool(value)


@attrs.frozen
class NotDefault:
    """An implicit scalar differs from its default; negative zero also differs (spec §1.7(7))."""

    type: ValueType
    default: Json

    def holds(self, value: Json) -> bool:
        """Return True for a value of the type that differs from the default."""
        found = READ[self.type](value)
        if found is None:
            return False
        return found != READ[self.type](self.default) or repr(found) == "-0.0"


@attrs.frozen
class Compare:
    """``value op operand``. A value of another type is neither equal nor unequal."""

    op: Op
    type: ValueType
    operand: Comparable

    @property
    def equal(self) -> bool:
        """True if the operator tests for equality."""
        return self.op in (Op.EQUAL, Op.HAS)

    def holds(self, value: Json) -> bool:
        """Return True if the comparison is true."""
        found = READ[self.type](value)
        return found is not None and _APPLY[self.op](found, self.operand)


@attrs.frozen
class TextMatch:
    """A text matches a pattern, or with ``!=`` does not match it."""

    op: Op
    pattern: Pattern

    def holds(self, value: Json) -> bool:
        """Return True for a text that matches, or with ``!=`` for a text that does not match."""
        return isinstance(value, str) and self.pattern.matches(value) != (self.op is Op.NOT_EQUAL)


@attrs.frozen(kw_only=True)
class StructMatch:
    """A comparison in a Struct, where each value has its own type (spec §7.8(5)).

    ``number`` and ``truth`` are the literal as a number and as a bool, None if it is neither.
    """

    op: Op
    text: str
    pattern: Pattern
    number: float | None
    truth: bool | None

    def holds(self, value: Json) -> bool:
        """Return True if the literal fits the value and the comparison is true."""
        if isinstance(value, list):
            return self.op is Op.HAS and any(map(self._scalar, value))
        if isinstance(value, dict):
            return self.op is Op.HAS and self.text in value
        return self._scalar(value)

    def _scalar(self, value: Json) -> bool:
        if isinstance(value, str):
            if self.op.orders:
                return self._compared(value, self.text)
            return self.pattern.matches(value) != (self.op is Op.NOT_EQUAL)
        if isinstance(value, bool):
            return not self.op.orders and self._compared(value, self.truth)
        if isinstance(value, int | float):
            return self._compared(double(value), self.number)
        # A list or object is never equal to a literal; for null, != is never true.
        return value is None and self.text == "null" and self.op in (Op.EQUAL, Op.HAS)

    def _compared(self, value: Comparable, operand: Comparable | None) -> bool:
        return operand is not None and _APPLY[self.op](value, operand)


_FEW: Final = 16
"""The most values that a test for equality compares one by one; more values are put into a set."""

MAX_STEPS: Final = 4_000_000
"""Maximum number of steps of a filter for one operation."""

_LETTERS: Final = 50
"""The number of letters of a searched text that count as one step."""


class Subject(Protocol):
    """An operation, with the properties that a filter can test."""

    @property
    def name(self) -> str:
        """The operation's name."""
        ...

    @property
    def done(self) -> bool:
        """True if the operation has ended."""
        ...

    @property
    def error(self) -> Status | None:
        """The operation's error, if it failed or was cancelled."""
        ...

    @property
    def metadata(self) -> AnyMessage | None:
        """The operation's packed metadata."""
        ...

    @property
    def response(self) -> AnyMessage | None:
        """The operation's packed response."""
        ...

    @property
    def state(self) -> str:
        """IN_PROGRESS, SUCCEEDED, FAILED or CANCELLED (spec §2.1)."""
        ...

    @property
    def create_time(self) -> datetime:
        """When the operation was created, in UTC."""
        ...

    @property
    def end_time(self) -> datetime | None:
        """When the operation ended, in UTC; None while in progress."""
        ...

    @property
    def cancel_requested(self) -> bool:
        """True if a caller asked to cancel the operation while it was in progress."""
        ...

    @property
    def waits(self) -> bool:
        """True if the work waits: for its time, for a worker or for its next attempt."""
        ...

    @property
    def method(self) -> str:
        """The full name of the operation's method."""
        ...


class Source(enum.Enum):
    """The beginning of a path: a field of Operation, or a function."""

    NAME = "name"
    DONE = "done"
    ERROR = "error"
    METADATA = "metadata"
    RESPONSE = "response"
    STATE = "state()"
    CREATE_TIME = "create_time()"
    END_TIME = "end_time()"
    CANCEL_REQUESTED = "cancel_requested()"
    WAITING = "waiting()"
    METHOD = "method()"
    METADATA_TYPE = "type(metadata)"
    RESPONSE_TYPE = "type(response)"


def _error(subject: Subject) -> Json:
    error = subject.error
    if error is None:
        return None
    # Filters can only test whether there are details.
    details: list[Json] = [{} for _ in error.details]
    return {"code": error.code, "message": error.message, "details": details}


def _end(subject: Subject) -> Json:
    return None if subject.end_time is None else moment(subject.end_time)


def _set(packed: AnyMessage | None) -> Json:
    return None if packed is None else True


def _type_name(packed: AnyMessage | None) -> Json:
    return None if packed is None else packed.type_name


_READ: Final[Mapping[Source, Callable[[Subject], Json]]] = {
    Source.NAME: lambda subject: subject.name,
    Source.DONE: lambda subject: subject.done,
    Source.ERROR: _error,
    Source.METADATA: lambda subject: _set(subject.metadata),
    Source.RESPONSE: lambda subject: _set(subject.response),
    Source.STATE: lambda subject: subject.state,
    Source.CREATE_TIME: lambda subject: moment(subject.create_time),
    Source.END_TIME: _end,
    Source.CANCEL_REQUESTED: lambda subject: subject.cancel_requested,
    Source.WAITING: lambda subject: subject.waits,
    Source.METHOD: lambda subject: subject.method,
    Source.METADATA_TYPE: lambda subject: _type_name(subject.metadata),
    Source.RESPONSE_TYPE: lambda subject: _type_name(subject.response),
}

Registered: TypeAlias = Mapping[Source, Mapping[str, MessageType]]
"""The registered types of METADATA and of RESPONSE, by full name (spec §7.7(2))."""


@attrs.frozen
class _Values:
    """The values at one place; ``count`` includes the elements of lists."""

    values: list[Json]
    count: int
    letters: int

    @classmethod
    def of(cls, values: list[Json]) -> _Values:
        flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
        return cls(values, len(flat), sum(len(one) for one in flat if isinstance(one, str)))


@attrs.define
class View:
    """The evaluation of one filter for one subject.

    Steps are counted, because hundreds of tests of an operation with many values could occupy a
    thread for minutes. The count depends only on filter and subject, so a refusal is repeatable.
    """

    subject: Subject
    registered: Registered
    _left: int = attrs.field(default=MAX_STEPS, init=False)
    _searched: str | None = attrs.field(default=None, init=False)
    _parts: int = attrs.field(default=0, init=False)
    _found: dict[tuple[Source, tuple[Step, ...]], _Values] = attrs.field(factory=dict, init=False)
    _read: dict[tuple[Source, tuple[Step, ...], ValueType], frozenset[Comparable | None]] = (
        attrs.field(factory=dict, init=False)
    )

    def packed(self, source: Source) -> AnyMessage | None:
        """Return the message in METADATA or RESPONSE."""
        return self.subject.metadata if source is Source.METADATA else self.subject.response

    def spend(self, steps: int, letters: int = 0) -> None:
        """Count steps and searched letters.

        Raises:
            InvalidFilter: The steps exceed :data:`MAX_STEPS`.
        """
        self._left -= steps + letters // _LETTERS
        if self._left < 0:
            raise refusal(
                "has too many tests or wildcards for an operation with so much in it"
                f" (more than {MAX_STEPS} steps)",
                0,
            )

    def meets(self, source: Source, route: ValueTest, payload: Json) -> bool:
        """Return True if the condition of a route holds for a value at the end of its steps.

        A filter may test a field with many thousands of values hundreds of times. So the values are
        collected only once.

        Raises:
            InvalidFilter: As for :meth:`spend`.
        """
        place = source, route.steps
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = _Values.of(route.values(payload, self.spend))
        values, test = found.values, route.condition
        if len(values) <= _FEW or not isinstance(test, Compare) or not test.equal:
            pieces = test.pattern.pieces if isinstance(test, TextMatch | StructMatch) else ""
            self.spend(found.count * max(1, len(pieces)), found.letters)
            return any(map(test.holds, values))
        known = self._read.get((*place, test.type))
        if known is None:
            known = frozenset(map(READ[test.type], values))
            self._read[(*place, test.type)] = known
        return test.operand in known

    def contains(self, pattern: Pattern) -> bool:
        """Return True if a pattern occurs in the strings that bare literals search (spec §7.6).

        Raises:
            InvalidFilter: As for :meth:`spend`.
        """
        if self._searched is None:
            self._searched = SEPARATOR.join(self._strings()).casefold()
            self._parts = self._searched.count(SEPARATOR) + 1
        pieces = len(pattern.pieces)  # a pattern of one piece is searched in all strings at once
        self.spend(self._parts * pieces if pieces > 1 else 0, len(self._searched))
        return pattern.occurs_in(self._searched)

    def _strings(self) -> Iterable[str]:
        yield self.subject.name
        if self.subject.error is not None:
            yield self.subject.error.message
        for source, types in self.registered.items():
            packed = self.packed(source)
            if packed is not None and not isinstance(packed.payload, bytes):
                type_ = types.get(packed.type_name)
                if type_ is not None:
                    yield from strings_in(packed.payload, type_)


@attrs.frozen
class Conjunction:
    """True if every item is true; without items, true for everything."""

    items: tuple[Plan, ...]

    def holds(self, view: View) -> bool:
        """Return True if this part of the filter matches."""
        return all(item.holds(view) for item in self.items)


@attrs.frozen
class Disjunction:
    """True if at least one item is true."""

    items: tuple[Plan, ...]

    def holds(self, view: View) -> bool:
        """Return True if this part of the filter matches."""
        return any(item.holds(view) for item in self.items)


@attrs.frozen
class Negation:
    """True exactly if the item is not true (spec §7.5)."""

    item: Plan

    def holds(self, view: View) -> bool:
        """Return True if this part of the filter matches."""
        return not self.item.holds(view)


@attrs.frozen
class Contains:
    """A bare literal: the folded pattern occurs in one of the searched strings (spec §7.6)."""

    pattern: Pattern

    def holds(self, view: View) -> bool:
        """Return True if this part of the filter matches."""
        return view.contains(self.pattern)


@attrs.frozen
class ValueTest:
    """The steps down a JSON value, and a condition for the values at their end."""

    steps: tuple[Step, ...]
    condition: Condition

    def values(self, value: Json, spend: Callable[[int], None]) -> list[Json]:
        """Return the values at the end of the steps; ``spend`` counts the values of every step."""
        values = [value]
        for step in self.steps:
            values = [found for value in values for found in step.values(value)]
            spend(len(values))
        return values


@attrs.frozen
class RecordTest:
    """A test of a field of the operation or of a function's value; false for an absent value."""

    source: Source
    route: ValueTest

    def holds(self, view: View) -> bool:
        """Return True if this part of the filter matches."""
        value = _READ[self.source](view.subject)
        return value is not None and view.meets(self.source, self.route, value)


@attrs.frozen
class PackedTest:
    """A test of a value inside METADATA or RESPONSE, by the type of the packed message.

    The test is false for a binary payload, and for a type without a route: that type is not
    registered, or does not accept the test.
    """

    source: Source
    routes: Mapping[str, ValueTest]

    def holds(self, view: View) -> bool:
        """Return True if this part of the filter matches."""
        packed = view.packed(self.source)
        if packed is None or isinstance(packed.payload, bytes):
            return False
        route = self.routes.get(packed.type_name)
        return route is not None and view.meets(self.source, route, packed.payload)


Plan: TypeAlias = Conjunction | Disjunction | Negation | Contains | RecordTest | PackedTest


_DYNAMIC: Final = (ValueType.STRUCT, ValueType.DYNAMIC)
_STRINGS: Final = (ValueType.TEXT, ValueType.ENUM)


def strings_in(payload: Json, message_type: MessageType) -> Iterator[str]:
    """Yield all string fields, enum names and strings in Structs, at any depth.

    The walk is not recursive, so messages may be nested to any depth.
    """
    pending: list[tuple[Json, ValueType, Shape | None]] = [
        (payload, type_of_message(message_type.full_name), message_type.shape)
    ]
    while pending:
        value, type_, shape = pending.pop()
        if isinstance(value, str) and (type_ in _STRINGS or type_ in _DYNAMIC):
            yield value
        elif type_ in _DYNAMIC:
            pending += ((inner, ValueType.DYNAMIC, None) for inner in _members(value))
        elif shape is not None and isinstance(value, dict):
            for key, inner in value.items():
                field = shape.spellings.get(key)
                if field is not None:
                    pending += _of_field(field, inner)


def _of_field(field: Field, value: Json) -> Iterable[tuple[Json, ValueType, Shape | None]]:
    type_ = type_of_field(field)
    if type_ is ValueType.MESSAGE:
        shape = shape_below(field)
    elif type_ in _STRINGS or type_ in _DYNAMIC:
        shape = None
    else:
        return ()
    repeated = field.label in (Label.REPEATED, Label.MAP)
    return [(inner, type_, shape) for inner in (_members(value) if repeated else (value,))]


def _members(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
