"""Makes the prefilter of a checked filter: a test that every match of the filter passes.

A condition without a simple prefilter becomes a test that every record passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from lro._filters.parse import Op
from lro._filters.paths import FieldStep, Indexable, KeyStep, Step, StructStep, names_of
from lro._filters.plan import (
    Compare,
    Conjunction,
    Contains,
    Disjunction,
    Negation,
    Plan,
    RecordTest,
    Source,
    StructMatch,
    TextMatch,
    ValueTest,
)
from lro._filters.prefilter import (
    ABSENT,
    EVERYTHING,
    CancelIs,
    Column,
    Created,
    Ended,
    InState,
    KeyIn,
    NameIn,
    NumberIn,
    Span,
    Test,
    TextContains,
    all_of,
    any_of,
)
from lro._filters.types import Pattern, ValueType, double
from lro._model.operation import State

KeyOf: TypeAlias = Callable[[str, tuple[Step, ...]], "Indexable | None"]
"""Returns the index of the value at the end of the steps in a metadata type, or None."""

STATES: Final = frozenset({State.IN_PROGRESS, State.SUCCEEDED, State.FAILED, State.CANCELLED})
_DONE: Final = STATES - {State.IN_PROGRESS}
_ERRORS: Final = frozenset({State.FAILED, State.CANCELLED})
_RESPONSES: Final = frozenset({State.SUCCEEDED})

_COLUMNS: Final = {
    Source.NAME: Column.NAME,
    Source.METADATA: Column.METADATA,
    Source.METADATA_TYPE: Column.METADATA,
    Source.RESPONSE: Column.RESULT,
    Source.RESPONSE_TYPE: Column.RESULT,
    Source.ERROR: Column.RESULT,
}
_INVERSE: Final[Mapping[Op, Op]] = {
    Op.LESS: Op.GREATER_EQUAL,
    Op.GREATER_EQUAL: Op.LESS,
    Op.GREATER: Op.LESS_EQUAL,
    Op.LESS_EQUAL: Op.GREATER,
    Op.EQUAL: Op.NOT_EQUAL,
    Op.HAS: Op.NOT_EQUAL,
    Op.NOT_EQUAL: Op.EQUAL,
}
_EQUAL: Final = (Op.EQUAL, Op.HAS)
_NANOS: Final = 1000
_MOST_PIECES: Final = 4
_LEAST_TEXT: Final = 3
_SLACK: Final = 4
"""Tolerance in units in the last place, because databases may read numbers inexactly."""


def prefilter_of(plan: Plan, key_of: KeyOf, *, negated: bool = False) -> Test:
    """Return a test that every match of the plan passes, or, if ``negated``, every other record."""
    match plan:
        case Negation(item):
            return prefilter_of(item, key_of, negated=not negated)
        case Conjunction(items) | Disjunction(items):
            join = all_of if isinstance(plan, Conjunction) != negated else any_of
            return join(prefilter_of(item, key_of, negated=negated) for item in items)
        case RecordTest(source, route):
            return _of_record(source, route, negated=negated)
        case _ if negated:
            return EVERYTHING
        case Contains(pattern):
            pieces = [_plain(piece) for piece in pattern.pieces if piece.isascii()]
            return _text_test(tuple(Column), pieces, folded=True)
        case _:
            return _in_message(plan.source, plan.routes, key_of)


def _of_record(source: Source, route: ValueTest, *, negated: bool) -> Test:
    condition = route.condition
    if isinstance(condition, Compare):
        op = _INVERSE[condition.op] if negated else condition.op
        exact = _EXACT.get(source)
        if exact is not None:
            return exact(op, condition.operand)
        if source is Source.END_TIME:
            return EVERYTHING if negated else Ended(_span(op, condition.operand))
        if source is Source.NAME:
            return _named(op, condition.operand)
    elif source in _SET and not route.steps:
        states = _SET[source]
        return InState(STATES - states if negated else states)
    elif source is Source.CANCEL_REQUESTED:  # cancel_requested():*
        return CancelIs(not negated)
    elif source is Source.WAITING:  # waiting():*
        return _waits(Op.EQUAL, not negated)
    if negated:
        return EVERYTHING
    return all_of([_only_in(source), _text_test_of(source, route)])


def _only_in(source: Source) -> Test:
    # Returns the states in which the source has a value.
    return InState(_STATES_WITH[source]) if source in _STATES_WITH else EVERYTHING


_STATES_WITH: Final[Mapping[Source, frozenset[State]]] = {
    Source.ERROR: _ERRORS,
    Source.END_TIME: _DONE,
    Source.RESPONSE: _RESPONSES,
    Source.RESPONSE_TYPE: _RESPONSES,
}


def _state(op: Op, operand: object) -> Test:
    wanted = frozenset({State(str(operand))})
    return InState(wanted if op in _EQUAL else STATES - wanted)


def _done(op: Op, operand: object) -> Test:
    return InState(_DONE if operand == (op in _EQUAL) else STATES - _DONE)


def _asked(op: Op, operand: object) -> Test:
    return CancelIs(operand == (op in _EQUAL))


def _waits(op: Op, operand: object) -> Test:
    return InState(STATES - _DONE) if operand == (op in _EQUAL) else EVERYTHING


def _named(op: Op, operand: object) -> Test:
    return NameIn(frozenset({str(operand)})) if op in _EQUAL else EVERYTHING


def _created(op: Op, operand: object) -> Test:
    return EVERYTHING if op is Op.NOT_EQUAL else Created(_span(op, operand))


_EXACT: Final[Mapping[Source, Callable[[Op, object], Test]]] = {
    Source.STATE: _state,
    Source.DONE: _done,
    Source.CANCEL_REQUESTED: _asked,
    Source.WAITING: _waits,
    Source.CREATE_TIME: _created,
}
"""Sources with a value in every record, so that a negated test becomes a test of the same kind."""

_SET: Final[Mapping[Source, frozenset[State]]] = {
    Source.STATE: STATES,
    Source.CREATE_TIME: STATES,
    Source.DONE: _DONE,
    Source.ERROR: _ERRORS,
}
"""States in which ``:*`` is true for a source."""


def _span(op: Op, operand: object) -> Span:
    # Converts nanoseconds to microseconds, rounding outwards.
    assert isinstance(operand, int)
    low, high = operand // _NANOS, -(-operand // _NANOS)
    if op in (Op.GREATER, Op.GREATER_EQUAL):
        return Span(low=low)
    if op in (Op.LESS, Op.LESS_EQUAL):
        return Span(high=high)
    return Span(low, high) if op in _EQUAL else Span()


def _in_message(source: Source, routes: Mapping[str, ValueTest], key_of: KeyOf) -> Test:
    found = any_of(_text_test_of(source, route) for route in routes.values())
    if source is Source.RESPONSE:
        return all_of([InState(_RESPONSES), found])
    keyed = [_keyed(key_of(name, route.steps), route) for name, route in routes.items()]
    if len({key for key, _ in keyed}) > 1 or not keyed[0][0]:
        return found
    return all_of([KeyIn(keyed[0][0], frozenset().union(*(each for _, each in keyed))), found])


def _keyed(index: Indexable | None, route: ValueTest) -> tuple[str, frozenset[str]]:
    # Returns the key (empty without an index) and the key values that satisfy a condition.
    condition = route.condition
    if index is None or not isinstance(condition, Compare) or not condition.equal:
        return "", frozenset()
    value = index.value_of(condition.operand)
    assert value is not None  # a checked filter has only known names of the enum
    # A missing value is treated as the default.
    return index.key, frozenset({value, ABSENT} if _default_holds(route) else {value})


def _default_holds(route: ValueTest) -> bool:
    last = route.steps[-1] if route.steps else None
    if not isinstance(last, FieldStep) or not last.has_default:
        return False
    return route.condition.holds(last.default)


def _text_test_of(source: Source, route: ValueTest) -> Test:
    column = _COLUMNS.get(source)
    if column is None or _default_holds(route):
        return EVERYTHING
    measured = None if source is Source.ERROR else _number_test(column, route)
    return all_of([_text_test((column,), _pieces(source, route)), measured or EVERYTHING])


def _pieces(source: Source, route: ValueTest) -> list[str]:
    # Returns texts that a message's JSON must contain if the condition holds.
    left = "" if source in (Source.NAME, Source.METADATA_TYPE, Source.RESPONSE_TYPE) else '"'
    # A type URL ends with the type's name, and a quote follows.
    right = "" if source is Source.NAME else '"'
    steps = [step for step in route.steps if isinstance(step, FieldStep | KeyStep | StructStep)]
    key = _plain(steps[-1].key, '"', '":') if steps else ""
    match route.condition:
        case Compare(op, type_, str(text)) if op in _EQUAL and type_ in _TEXTS:
            return [key, _plain(text, left, right)]
        case TextMatch(op, pattern) if op in _EQUAL:
            head, *middle, tail = pattern.pieces
            return [key, _plain(head, left), *map(_plain, middle), _plain(tail, "", right)]
        case StructMatch(op=op, text=text, pattern=Pattern((_,)), number=None, truth=None):
            # The literal may be a text, or the key of an object.
            return [key, _plain(text, '"', '"') if op in _EQUAL and text != "null" else ""]
        case Compare(op, ValueType.BOOL, True) if op in _EQUAL and key:
            return [key + "true"] if steps[-1] is route.steps[-1] else [key]
        case _:
            return [key]


_TEXTS: Final = (ValueType.TEXT, ValueType.ENUM, ValueType.TYPE_NAME)


def _plain(text: str, left: str = "", right: str = "") -> str:
    # Returns the text between ``left`` and ``right`` if JSON writes it unchanged, otherwise "".
    if text.isprintable() and text and '"' not in text and "\\" not in text:
        return left + text + right
    return ""


def _text_test(columns: tuple[Column, ...], pieces: Iterable[str], *, folded: bool = False) -> Test:
    longest = sorted({piece for piece in pieces if len(piece) >= _LEAST_TEXT}, key=_by_length)
    return TextContains(columns, tuple(longest[:_MOST_PIECES]), folded) if longest else EVERYTHING


def _by_length(piece: str) -> tuple[int, str]:
    return -len(piece), piece


def _number_test(column: Column, route: ValueTest) -> Test | None:
    condition, path = route.condition, names_of(route.steps)
    if not path or not all(map(_plain, path)) or not isinstance(condition, Compare):
        return None
    if condition.type not in (ValueType.INTEGER, ValueType.DOUBLE):
        return None
    assert not isinstance(condition.operand, str)
    number = double(condition.operand)
    slack = _SLACK * math.ulp(number)
    low = number - slack if condition.op in (Op.GREATER, Op.GREATER_EQUAL, *_EQUAL) else None
    high = number + slack if condition.op in (Op.LESS, Op.LESS_EQUAL, *_EQUAL) else None
    ends = [end for end in (low, high) if end is not None]
    if not ends or not all(map(math.isfinite, ends)):  # some databases have no infinity
        return None
    or_text = condition.type is ValueType.DOUBLE
    return NumberIn(column=column, path=path, low=low, high=high, or_text=or_text)
