"""SQL plans for lists: the index to read, the range of create times, and the filter."""

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
"""A SQL expression, and the values of its parameters."""

MAX_PARTS: Final = 100
"""A test with more parts is not translated to SQL; the filter then runs in Python."""


class Dialect(Protocol):
    """Expressions that differ between databases."""

    mark: str
    """Placeholder of a parameter."""

    def named(self, names: Collection[str]) -> Condition:
        """Return the condition that the name is one of these names."""
        ...

    def key(self, name: str) -> str:
        """Return an expression for the value of a key (an ASCII word), ``UNKNOWN`` if missing."""
        ...

    def contains(self, column: str, *, folded: bool) -> str:
        """Return a test that a text contains a parameter; ``folded`` ignores the case."""
        ...

    def foreign(self, column: str) -> str:
        """Return a test that a text has characters outside printable ASCII."""
        ...

    def binary(self, column: str) -> str:
        """Return a test that a packed message may be in binary form."""
        ...

    def number_in(self, test: NumberIn) -> Condition:
        """Return a test for a number in a packed message; a binary message always passes."""
        ...


def condition(test: Test, dialect: Dialect) -> Condition:
    """Translate a test to SQL that is true for all matching records, and perhaps for more."""
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
    """Return the condition that an expression has one of these values."""
    if not values:
        return "FALSE", []
    return f"{expression} IN ({', '.join([mark] * len(values))})", list(values)


def ranged(column: str, span: Span, mark: str) -> Condition:
    """Return the condition that the time in a column is within a range."""
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
"""Maximum number of values to look up in a key's index. For more, the index is not used."""


class StatementTooSlow(Exception):
    """A statement was cancelled because it took too long; the store raises ``error``."""

    def __init__(self, error: LroError) -> None:
        super().__init__(error)
        self.error = error


def retry_smaller(action: Callable[[int], T], size: int) -> T:
    """Run an action for ``size`` records; if that takes too long, run it for fewer records.

    Raises:
        LroError: The action takes too long even for a single record.
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
    """Plan of a list: which records to read, and by which index, in order of create time.

    ``order`` is an indexed column: ``"state"``, a metadata key, or empty for all records of the
    parent. Only records that have one of ``values`` in this column are read. If ``names`` is given,
    the names are few, and each record is read by its name. ``low`` and ``high`` bound the create
    time, in microseconds. Of the records created at the time ``at``, only those whose names follow
    ``name`` are listed. ``nothing`` means that the test excludes every record.
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
        """Plan how to list matching records; ``keys`` are the indexed metadata keys."""
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
        """Return a page of these records, with the place where the next page begins.

        Records were read down to the create time ``end`` (None: all records were read). If ``cut``,
        they were read only down to the last of ``records``.
        """
        if cut:
            return Page(records, place_of(records[-1]))
        # The next record was created at least one microsecond earlier.
        return Page(records, None if end is None else Cursor(moment(end - 1), ""))


def _order(bounds: Bounds, keys: Collection[str]) -> tuple[str, Sequence[str]]:
    for key in sorted(bounds.keys.keys() & set(keys)):
        if len(bounds.keys[key]) <= MAX_VALUES:
            return key, [*sorted(bounds.keys[key]), UNKNOWN]
    if bounds.states is not None:
        return _STATE, sorted(state.value for state in bounds.states)
    return "", ()
