"""How a list is walked in SQL: by which order, from where to where, and what of it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import attrs

from lro._base.errors import LroError
from lro._engine.store_port import Page, place_of
from lro._filters.prefilter import UNKNOWN, Bounds, Test, bounds_of
from lro._model.page_tokens import Cursor
from lro._model.record import Record
from lro.stores._conditions import Condition, Dialect, condition
from lro.stores._rows import micros, moment

T = TypeVar("T")

_LATEST: Final = 2**62
_EARLIEST: Final = -(2**62)
_STATE: Final = "state"
_FEW: Final = 50
"""So many values of a key are looked up, each of them; for more, all records are walked."""


class TooFar(Exception):
    """A statement has taken too long and was given up; ``told`` is what callers are told."""

    def __init__(self, told: LroError) -> None:
        super().__init__(told)
        self.told = told


def in_time(action: Callable[[int], T], size: int) -> T:
    """What an action gives for so many records, or for fewer where these are too large.

    Raises:
        LroError: A single record takes too long.
    """
    while True:
        try:
            return action(size)
        except TooFar as exc:
            if size == 1:
                raise exc.told from None
            size = max(1, size // 10)


@attrs.frozen(kw_only=True)
class Walk:
    """A way through a list: along ``values`` of ``order``, which an index keeps by create time.

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
    def of(cls, test: Test, after: Cursor | None, keys: Collection[str], dialect: Dialect) -> Walk:
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
        if len(bounds.keys[key]) <= _FEW:
            return key, [*sorted(bounds.keys[key]), UNKNOWN]
    if bounds.states is not None:
        return _STATE, sorted(state.value for state in bounds.states)
    return "", ()
