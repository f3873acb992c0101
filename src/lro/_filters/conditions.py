"""What is asked of the values at the end of a path (spec §7.8, §7.9, §7.11, §7.12)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import attrs

from lro._base.any import Json
from lro._filters.literals import Pattern, double
from lro._filters.tree import Op
from lro._filters.types import READ, Comparable, ValueType


class Condition(Protocol):
    """Something that holds or does not hold for one JSON value. Never raises."""

    def holds(self, value: Json) -> bool:
        """True if it holds for this value."""
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
    """The path leads somewhere: set, or a key that exists, whatever its value."""

    def holds(self, value: Json) -> bool:  # noqa: ARG002  # the protocol passes it
        """True: the value was found."""
        return True


@attrs.frozen
class NotEmpty:
    """A repeated field or map has elements."""

    def holds(self, value: Json) -> bool:
        """True for a list or object that is not empty."""
        return isinstance(value, list | dict) and bool(value)


@attrs.frozen
class NotDefault:
    """An implicit scalar is not its default. Negative zero is not a default (spec §1.7(7))."""

    type: ValueType
    default: Json

    def holds(self, value: Json) -> bool:
        """True for a value of the type that differs from the default."""
        found = READ[self.type](value)
        if found is None:
            return False
        return found != READ[self.type](self.default) or repr(found) == "-0.0"


@attrs.frozen
class Compare:
    """``value op operand``. A value that is not of the type is neither equal nor unequal."""

    op: Op
    type: ValueType
    operand: Comparable

    @property
    def equal(self) -> bool:
        """Whether it asks for the operand itself."""
        return self.op in (Op.EQUAL, Op.HAS)

    def holds(self, value: Json) -> bool:
        """True if the comparison is."""
        found = READ[self.type](value)
        return found is not None and _APPLY[self.op](found, self.operand)


@attrs.frozen
class Like:
    """Text matches a pattern, or with ``!=`` does not."""

    op: Op
    pattern: Pattern

    def holds(self, value: Json) -> bool:
        """True for text that matches, or with ``!=`` for text that does not."""
        return isinstance(value, str) and self.pattern.matches(value) != (self.op is Op.NOT_EQUAL)


@attrs.frozen(kw_only=True)
class Fits:
    """A comparison in a Struct: the value has the type of what it holds (spec §7.8(5)).

    ``number`` and ``truth`` are what the literal is as such, or None.
    """

    op: Op
    text: str
    pattern: Pattern
    number: float | None
    truth: bool | None

    def holds(self, value: Json) -> bool:
        """True if the literal fits the value held and the comparison is true."""
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
        # An element that is itself a list or object equals nothing; neither does null differ.
        return value is None and self.text == "null" and self.op in (Op.EQUAL, Op.HAS)

    def _compared(self, value: Comparable, operand: Comparable | None) -> bool:
        return operand is not None and _APPLY[self.op](value, operand)
