"""What to look for, in SQL: the same conditions for each database, in its own words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from lro._filters.prefilter import (
    UNKNOWN,
    AllOf,
    AnyOf,
    Asked,
    Column,
    Created,
    Ended,
    InState,
    KeyIn,
    Measures,
    Named,
    Span,
    Test,
    TextContains,
)

Condition = tuple[str, list[object]]
"""An expression of SQL, and the values of its parameters."""

_MOST: Final = 100
"""A test of more parts is not worth its SQL: the filter decides."""


class Dialect(Protocol):
    """How a database says what standard SQL does not."""

    mark: str
    """A parameter."""

    def named(self, names: Collection[str]) -> Condition:
        """The name is one of these."""
        ...

    def key(self, name: str) -> str:
        """The key of this name, ``UNKNOWN`` where there is none. A name is a word of ASCII."""
        ...

    def contains(self, column: str, *, folded: bool) -> str:
        """The text of a column contains a parameter; without letter case, if ``folded``."""
        ...

    def foreign(self, column: str) -> str:
        """A text has characters beside those that ASCII prints."""
        ...

    def binary(self, column: str) -> str:
        """A packed message may be in binary form."""
        ...

    def measures(self, test: Measures) -> Condition:
        """A number in a packed message is in a range; of one in binary form, anything."""
        ...


def condition(test: Test, dialect: Dialect) -> Condition:
    """A test as an expression that is true for every record that meets it."""
    if _size(test) > _MOST:
        return "TRUE", []
    return _condition(test, dialect)


def _size(test: Test) -> int:
    match test:
        case AllOf(items) | AnyOf(items):
            return 1 + sum(map(_size, items))
        case TextContains(columns, pieces):
            return len(columns) * len(pieces)
        case _:
            return 1


def _condition(test: Test, dialect: Dialect) -> Condition:
    match test:
        case AllOf(items):
            return _joined(" AND ", "TRUE", [_condition(item, dialect) for item in items])
        case AnyOf(items):
            return _joined(" OR ", "FALSE", [_condition(item, dialect) for item in items])
        case Named(names):
            return dialect.named(names)
        case InState(states):
            return among("state", sorted(state.value for state in states), dialect.mark)
        case Created(span):
            return ranged("create_time", span, dialect.mark)
        case Ended(span):
            return ranged("end_time", span, dialect.mark)
        case Asked(cancel):
            return f"cancel_requested {'<>' if cancel else '='} 0", []
        case KeyIn(key, values):
            return among(dialect.key(key), [*sorted(values), UNKNOWN], dialect.mark)
        case TextContains(columns, pieces, folded):
            says = [_says(column, pieces, dialect, folded=folded) for column in columns]
            return _joined(" OR ", "FALSE", says)
        case _:
            return dialect.measures(test)


def _says(column: Column, pieces: tuple[str, ...], dialect: Dialect, *, folded: bool) -> Condition:
    name = column.value
    contains = " AND ".join([dialect.contains(name, folded=folded)] * len(pieces))
    others = [dialect.foreign(name)] if folded else []
    if column is not Column.NAME:
        others.append(dialect.binary(name))
    return " OR ".join([contains, *others]), list(pieces)


def among(expression: str, values: Collection[str], mark: str) -> Condition:
    """An expression has one of these values."""
    if not values:
        return "FALSE", []
    return f"{expression} IN ({', '.join([mark] * len(values))})", list(values)


def ranged(column: str, span: Span, mark: str) -> Condition:
    """A time is in a range."""
    found = [(">=", span.low), ("<=", span.high)]
    ends = [(f"{column} {op} {mark}", end) for op, end in found if end is not None]
    if not ends:
        return f"{column} IS NOT NULL", []
    return " AND ".join(text for text, _ in ends), [end for _, end in ends]


def _joined(word: str, empty: str, parts: list[Condition]) -> Condition:
    if not parts:
        return empty, []
    texts = [f"({text})" for text, _ in parts]
    return word.join(texts), [value for _, values in parts for value in values]
