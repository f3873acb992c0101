"""Plans of lists in SQL: the index to follow, the range of times, and the test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, TypeVar

import attrs

from lro._base.errors import LroError
from lro._engine.store_port import Page, place_of
from lro._filters.prefilter import (
    UNKNOWN,
    AllOf,
    AnyOf,
    Bounds,
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
    bounds_of,
)
from lro._model.operation import Record
from lro._model.page_tokens import Cursor
from lro.stores._rows import micros, moment

Condition = tuple[str, list[object]]
"""An expression of SQL, and the values of its parameters."""

MAX_PARTS: Final = 100
"""A test of more parts is not worth its SQL: the filter decides."""


class Dialect(Protocol):
    """Expressions that differ between databases."""

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

    def number_in(self, test: NumberIn) -> Condition:
        """A number in a packed message is in a range; of one in binary form, anything."""
        ...


def condition(test: Test, dialect: Dialect) -> Condition:
    """A test as an expression that is true for every record that meets it."""
    if _size(test) > MAX_PARTS:
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
        case NameIn(names):
            return dialect.named(names)
        case InState(states):
            return among("state", sorted(state.value for state in states), dialect.mark)
        case Created(span):
            return ranged("create_time", span, dialect.mark)
        case Ended(span):
            return ranged("end_time", span, dialect.mark)
        case CancelIs(cancel):
            return f"cancel_requested {'<>' if cancel else '='} 0", []
        case KeyIn(key, values):
            return among(dialect.key(key), [*sorted(values), UNKNOWN], dialect.mark)
        case TextContains(columns, pieces, folded):
            says = [_contains(column, pieces, dialect, folded=folded) for column in columns]
            return _joined(" OR ", "FALSE", says)
        case _:
            return dialect.number_in(test)


def _contains(
    column: Column, pieces: tuple[str, ...], dialect: Dialect, *, folded: bool
) -> Condition:
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


T = TypeVar("T")

_LATEST: Final = 2**62
_EARLIEST: Final = -(2**62)
_STATE: Final = "state"
MAX_VALUES: Final = 50
"""Up to this number, the values of a key are looked up one by one; else all records are read."""


class StatementTooSlow(Exception):
    """A statement took too long and was given up; ``error`` is for the caller of the store."""

    def __init__(self, error: LroError) -> None:
        super().__init__(error)
        self.error = error


def retry_smaller(action: Callable[[int], T], size: int) -> T:
    """Run an action for ``size`` records, or for fewer where it takes too long.

    Raises:
        LroError: A single record takes too long.
    """
    while True:
        try:
            return action(size)
        except StatementTooSlow as exc:
            if size == 1:
                raise exc.error from None
            size = max(1, size // 10)


@attrs.frozen(kw_only=True)
class ListQuery:
    """Plan of a list: read ``values`` of ``order``, which an index keeps by create time.

    ``order`` is ``"state"``, the name of a key, or empty for all records of the parent. Where names
    are given they are few, and each is looked at. ``low`` and ``high`` bound the create time, in
    microseconds; ``name`` is that after which records of the moment ``at`` come. ``nothing``: the
    test excludes every record.
    """

    order: str
    values: Sequence[str]
    names: Condition | None
    residue: Condition
    low: int
    high: int
    at: int
    name: str
    nothing: bool

    @classmethod
    def of(
        cls, test: Test, after: Cursor | None, keys: Collection[str], dialect: Dialect
    ) -> ListQuery:
        """The way to what meets a test; ``keys`` are those that there is an index of."""
        bounds = bounds_of(test)
        order, values = _order(bounds, keys)
        span = bounds.created
        at = _LATEST if after is None else micros(after.create_time)
        return cls(
            order=order,
            values=values,
            names=None if bounds.names is None else dialect.named(bounds.names),
            residue=condition(test, dialect),
            low=_EARLIEST if span.low is None else span.low,
            high=at if span.high is None else min(at, span.high),
            at=at,
            name="" if after is None else after.name,
            nothing=bounds.nothing,
        )

    def page(self, records: Sequence[Record], end: int | None, *, cut: bool) -> Page:
        """The page of these records, where all from the moment ``end`` on were looked at.

        Or only those up to the last of them: it is ``cut`` there.
        """
        if cut:
            return Page(records, place_of(records[-1]))
        # What comes next was created before: at the latest, one microsecond before.
        return Page(records, None if end is None else Cursor(moment(end - 1), ""))


def _order(bounds: Bounds, keys: Collection[str]) -> tuple[str, Sequence[str]]:
    for key in sorted(bounds.keys.keys() & set(keys)):
        if len(bounds.keys[key]) <= MAX_VALUES:
            return key, [*sorted(bounds.keys[key]), UNKNOWN]
    if bounds.states is not None:
        return _STATE, sorted(state.value for state in bounds.states)
    return "", ()
