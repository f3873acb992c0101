"""Prefilters: simple tests that every match of a filter passes; other records may pass, too.

``prefiltering`` makes prefilters. A store may apply any part of a prefilter to read fewer records;
the filter itself decides. Times are microseconds since 1970 in UTC, as in rows.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from lro._base.by_fields import ByFields
from lro._model.operation import State

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")

UNKNOWN: Final = "?"
"""The value of a key whose path the record's writer did not know."""
ABSENT: Final = "-"
"""The value of a key whose path leads to no value."""

_EXACT: Final = 2**53
_VAST: Final = 2**1023


def digest(text: str) -> str:
    """Return the hash of a path or value; a collision costs only an unnecessary read."""
    import hashlib

    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def key_value(value: str | float | Fraction) -> str:
    """Return the key's value for a value at its path; equal values have equal key values."""
    if isinstance(value, bool):
        return digest(str(value).lower())
    # JSON libraries may read such a large integer as a float.
    if isinstance(value, int) and abs(value) > _EXACT:
        value = float(value) if abs(value) < _VAST else math.inf
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return digest(str(value))


class Column(enum.Enum):
    """The searchable texts of a record."""

    NAME = "name"
    METADATA = "metadata"
    RESULT = "result"


@attrs.frozen(eq=False, repr=False)
class Span(ByFields):
    """A range of time that includes both ends; an end of None means no bound."""

    low: int | None = None
    high: int | None = None

    def both(self, other: Span) -> Span:
        """Return the intersection."""
        return Span(_or_none(max, self.low, other.low), _or_none(min, self.high, other.high))

    def hull(self, other: Span) -> Span:
        """Return the smallest range that contains both."""
        return Span(_if_both(min, self.low, other.low), _if_both(max, self.high, other.high))

    @property
    def empty(self) -> bool:
        """True if no time is in the range."""
        return self.low is not None and self.high is not None and self.low > self.high


@attrs.frozen(eq=False, repr=False)
class AllOf(ByFields):
    """All of these tests pass; without tests, every record passes."""

    items: tuple[Test, ...]


@attrs.frozen(eq=False, repr=False)
class AnyOf(ByFields):
    """At least one of these tests passes; without tests, no record passes."""

    items: tuple[Test, ...]


@attrs.frozen(eq=False, repr=False)
class NameIn(ByFields):
    """The name is one of ``names``."""

    names: frozenset[str]


@attrs.frozen(eq=False, repr=False)
class InState(ByFields):
    """The state is one of ``states``."""

    states: frozenset[State]


@attrs.frozen(eq=False, repr=False)
class Created(ByFields):
    """The create time is in ``span``."""

    span: Span


@attrs.frozen(eq=False, repr=False)
class Ended(ByFields):
    """The end time is in ``span``."""

    span: Span


@attrs.frozen(eq=False, repr=False)
class CancelIs(ByFields):
    """A caller asked to cancel, if ``cancel``; otherwise no caller did."""

    cancel: bool


@attrs.frozen(eq=False, repr=False)
class KeyIn(ByFields):
    """The key called ``key`` has one of ``values`` or ``UNKNOWN`` (see :class:`Indexes`)."""

    key: str
    values: frozenset[str]


@attrs.frozen(eq=False, repr=False)
class TextContains(ByFields):
    """One of the texts in ``columns`` contains all ``pieces``, or is in binary form.

    ``folded`` ignores letter case; then any text with non-ASCII letters passes.
    """

    columns: tuple[Column, ...]
    pieces: tuple[str, ...]
    folded: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NumberIn(ByFields):
    """The number at a path of the packed message is in this range, or the payload is binary.

    Both ends are included. With ``or_text``, any text at the path passes too.
    """

    column: Column
    path: tuple[str, ...]
    low: float | None
    high: float | None
    or_text: bool = False


Test: TypeAlias = (
    AllOf | AnyOf | NameIn | InState | Created | Ended | CancelIs | KeyIn | TextContains | NumberIn
)

EVERYTHING: Final = AllOf(())
NOTHING: Final = AnyOf(())


def all_of(tests: Iterable[Test]) -> Test:
    """Return the simplest test that passes if all of these tests pass."""
    return _joined(AllOf, AnyOf, tests)


def any_of(tests: Iterable[Test]) -> Test:
    """Return the simplest test that passes if at least one of these tests passes."""
    return _joined(AnyOf, AllOf, tests)


def _joined(
    same: type[AllOf] | type[AnyOf], other: type[AllOf] | type[AnyOf], tests: Iterable[Test]
) -> Test:
    found: dict[Test, None] = {}
    for test in tests:
        if test == other(()):
            return test
        found.update(dict.fromkeys(test.items if isinstance(test, same) else (test,)))
    return next(iter(found)) if len(found) == 1 else same(tuple(found))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Bounds(ByFields):
    """Bounds that contain all records that pass a test; None means no bound of that kind."""

    names: frozenset[str] | None = None
    states: frozenset[State] | None = None
    created: Span = Span()
    keys: Mapping[str, frozenset[str]] = attrs.field(factory=dict)

    @property
    def nothing(self) -> bool:
        """True if no record can be within the bounds."""
        return self.created.empty or frozenset() in (self.names, self.states)

    def both(self, other: Bounds) -> Bounds:
        """Return the intersection."""
        keys = dict(self.keys)
        for key, values in other.keys.items():
            keys[key] = values & keys.get(key, values)
        return Bounds(
            names=_or_none(_common, self.names, other.names),
            states=_or_none(_common, self.states, other.states),
            created=self.created.both(other.created),
            keys=keys,
        )

    def either(self, other: Bounds) -> Bounds:
        """Return the smallest bounds that contain both."""
        if self.nothing or other.nothing:
            return other if self.nothing else self
        return Bounds(
            names=_if_both(_union, self.names, other.names),
            states=_if_both(_union, self.states, other.states),
            created=self.created.hull(other.created),
            keys={key: self.keys[key] | other.keys[key] for key in self.keys if key in other.keys},
        )


def bounds_of(test: Test) -> Bounds:
    """Return the bounds of a test."""
    match test:
        case AllOf(items):
            return functools.reduce(Bounds.both, map(bounds_of, items), Bounds())
        case AnyOf(items):
            return functools.reduce(Bounds.either, map(bounds_of, items), _NOWHERE)
        case NameIn(names):
            return Bounds(names=names)
        case InState(states):
            return Bounds(states=states)
        case Created(span):
            return Bounds(created=span)
        case Ended(span):  # the operation was created before it ended
            return Bounds(created=Span(high=span.high))
        case KeyIn(key, values):
            return Bounds(keys={key: values})
        case _:
            return Bounds()


_NOWHERE: Final = Bounds(names=frozenset())


def _common(one: frozenset[T], other: frozenset[T]) -> frozenset[T]:
    return one & other


def _union(one: frozenset[T], other: frozenset[T]) -> frozenset[T]:
    return one | other


def _or_none(join: Callable[[T, T], T], one: T | None, other: T | None) -> T | None:
    if one is None or other is None:
        return other if one is None else one
    return join(one, other)


def _if_both(join: Callable[[T, T], T], one: T | None, other: T | None) -> T | None:
    return None if one is None or other is None else join(one, other)
