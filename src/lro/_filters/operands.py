"""Compares fields with literals: allowed operators, and conversion of literals (spec §7.9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

import attrs

from lro._filters.parse import Member, Op, Part, refusal, shown
from lro._filters.paths import Cardinality, EachStep, Place, below
from lro._filters.plan import (
    Compare,
    Condition,
    Exists,
    NotDefault,
    NotEmpty,
    StructMatch,
    TextMatch,
    ValueTest,
)
from lro._filters.types import (
    MAX_EXPONENT,
    MAX_NUMBER_LENGTH,
    Comparable,
    Pattern,
    ValueType,
    duration,
    exact,
    is_number,
    single_literal,
    timestamp,
)

_SHOWN_NAMES: Final = 8
_SHOWN_LENGTH: Final = 100
"""Maximum length of the enum names in an error, in characters."""
_BOOLS: Final = {"true": True, "false": False}


def route(place: Place, op: Op, literal: Member) -> ValueTest:
    """Return the test for a place, an operator and a literal.

    Raises:
        InvalidFilter: The type does not support the operator, or the literal does not fit the type.
    """
    if op is Op.HAS and literal.lone_star:
        return ValueTest(place.steps, _presence(place))
    if op is Op.HAS and _has_names(place):
        inner = below(place, Part(literal.text, position=literal.position), op)
        return ValueTest(inner.steps, _presence(inner))
    _refuse_operator(place, op, literal)
    steps = place.steps
    if place.cardinality is Cardinality.REPEATED and place.type is not ValueType.DYNAMIC:
        steps = (*steps, EachStep())
    return ValueTest(steps, _condition(place, op, literal))


def _presence(place: Place) -> Condition:
    # Returns the condition for "present" (spec §7.12(1)).
    if place.cardinality is not Cardinality.ONE:
        return NotEmpty()
    return NotDefault(place.type, place.default) if place.implicit else Exists()


def _has_names(place: Place) -> bool:
    # True if ``:`` asks for the presence of a key or field (spec §7.12(3) to (5)).
    if place.cardinality is Cardinality.ONE:
        return place.type.named
    return place.cardinality is Cardinality.MAP


def _refuse_operator(place: Place, op: Op, literal: Member) -> None:
    # In ``r:x``, if only ``r:*`` is possible, the literal is wrong, not the operator.
    position = literal.position if op is Op.HAS else literal.op_position
    if place.cardinality is not Cardinality.ONE and op is not Op.HAS:
        raise refusal(f"a repeated field or map takes only ':', not {op.value!r}", position)
    if place.type is ValueType.OPAQUE:
        raise refusal(f"{place.type.value} takes only ':*'", position)
    if place.type.named:
        if op is Op.HAS:
            raise refusal("a repeated field of messages takes only ':*'", position)
        raise refusal(f"{place.type.value} takes only ':', not {op.value!r}", position)
    if op.orders and not place.type.ordered:
        raise refusal(f"{place.type.value} has no order, so it takes no {op.value!r}", position)


def _condition(place: Place, op: Op, literal: Member) -> Condition:
    text = literal.text
    if place.type is ValueType.DYNAMIC:
        number = float(text) if is_number(text) else None
        pattern = Pattern.of(literal)
        return StructMatch(op=op, text=text, pattern=pattern, number=number, truth=_BOOLS.get(text))
    if place.type in (ValueType.TEXT, ValueType.TYPE_NAME, ValueType.METHOD_NAME):
        if literal.stars and not op.orders:
            return TextMatch(op, Pattern.of(literal))
        return Compare(op, place.type, text)
    form = _enum_form(place.names) if place.names is not None else _FORMS[place.type]
    operand = form.convert(text)
    if operand is None:
        beyond = place.type in _NUMBERS and _NUMERIC.fullmatch(text)
        expected = _LIMITED if beyond else form.expected
        raise refusal(f"expected {expected}, found {shown(text)}", literal.position)
    return Compare(op, place.type, operand)


@attrs.frozen
class _Form:
    """A form of literals: its name in errors, and its converter, which returns None on failure."""

    expected: str
    convert: Callable[[str], Comparable | None]


def _exact(text: str) -> int | Fraction | None:
    return exact(text) if is_number(text) else None


def _single(text: str) -> float | None:
    return single_literal(text) if is_number(text) else None


def _double(text: str) -> float | None:
    return float(text) if is_number(text) else None


def _enum_form(names: Mapping[str, str]) -> _Form:
    listed: list[str] = []
    for name in names:
        if len(listed) == _SHOWN_NAMES or len(", ".join((*listed, name))) > _SHOWN_LENGTH:
            listed.append("…")
            break
        listed.append(name)
    return _Form(f"one of the names {', '.join(listed)}", names.get)


_NUMERIC: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
"""Matches all numbers; a number that cannot be converted exceeds a limit."""
_LIMITED: Final = (
    f"a number of at most {MAX_NUMBER_LENGTH} characters"
    f" and an exponent from -{MAX_EXPONENT} to {MAX_EXPONENT}"
)
_TIME: Final = _Form('a time such as "2030-01-31T12:00:00Z"', timestamp)
_FORMS: Final[Mapping[ValueType, _Form]] = {
    ValueType.INTEGER: _Form("a number", _exact),
    ValueType.SINGLE: _Form("a number", _single),
    ValueType.DOUBLE: _Form("a number", _double),
    ValueType.BOOL: _Form("true or false", _BOOLS.get),
    ValueType.TIMESTAMP: _TIME,
    ValueType.MOMENT: _TIME,
    ValueType.DURATION: _Form("a duration in seconds such as 1.5s", duration),
}
_NUMBERS: Final = (ValueType.INTEGER, ValueType.SINGLE, ValueType.DOUBLE)
