"""Lists in pages, BatchGet, Describe: check what is asked for, then read (spec §3.3, §3.11)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from lro._base.errors import BatchTooLarge
from lro._base.status import AnyMessage
from lro._engine.access import Access
from lro._engine.limits import Limits
from lro._engine.method_spec import MethodSpec
from lro._engine.store_port import READ_BYTES, SCAN, Store, place_of
from lro._filters.indexes import CALLER, Indexes
from lro._filters.prefilter import EVERYTHING, KeyIn, Test, all_of, bounds_of, key_value
from lro._model.description import (
    DescribedOperation,
    DescribeOperationsResponse,
    OperationDescription,
    described,
    description_of,
)
from lro._model.operation import ListOperationsRequest, Operation, Record, Show, normalise_parent
from lro._model.page_tokens import Cursor, decode_page_token, effective_page_size, encode_page_token

if TYPE_CHECKING:
    from lro._engine.runtime import Runtime
    from lro._filters.filter import Filter
    from lro._filters.types import MessageType


T = TypeVar("T")
V = TypeVar("V")


class BatchRead(Generic[T]):
    """One BatchGet: what ``show`` makes of the operations of ``names`` that a caller can see."""

    def __init__(
        self, access: Access, limits: Limits, names: Sequence[str], caller: str, show: Show[T]
    ) -> None:
        self._access = access
        self._limits = limits
        self._names = names
        self._caller = caller
        self._show = show
        self._room = limits.page_bytes
        self._shown: dict[str, Iterable[T]] = {}

    def result(self) -> tuple[Sequence[T], Sequence[str]]:
        """Read a few operations at a time; what was made of them, and the missing names.

        Raises:
            BatchTooLarge: Together they have more bytes than ``Limits.page_bytes``.
        """
        rest = self._names
        while rest:  # those that this caller cannot see are no part of the reply
            rest = self._read_some(rest)
        found = [one for name in self._names for one in self._shown.get(name, ())]
        return found, [name for name in self._names if name not in self._shown]

    def _read_some(self, names: Sequence[str]) -> Sequence[str]:
        """Show some of these names, and let them go; the names that are left."""
        limit, least = self._limits.page_bytes, self._limits.least_bytes
        seen = self._access.seen(names, self._caller, min(max(self._room, least), READ_BYTES))
        for record in seen.records.values():
            if self._room < limit and record.weight > self._room:
                raise BatchTooLarge(len(self._names), limit)
            self._room -= record.weight
        found = [seen.records[name].operation for name in self._names if name in seen.records]
        # Those of further reads may come between them; but if there is none, that takes less time.
        whole = not self._shown and not seen.rest
        for some in [found] if found and whole else [[one] for one in found]:
            self._shown.update((one.name, ()) for one in some)
            self._shown[some[0].name] = self._show(some)
        return seen.rest


def read_descriptions(
    access: Access,
    limits: Limits,
    names: Sequence[str],
    caller: str | None,
    renamed: Mapping[str, str],
    inspectable: Collection[str],
) -> DescribeOperationsResponse:
    """Describe the operations of ``names`` that a caller can see, in that order.

    ``renamed`` has the present names of methods, by their aliases. Those that are ``inspectable``
    are described as for an operator.

    Raises:
        BatchTooLarge: They have more bytes together than ``Limits.page_bytes``. Their messages
            count, since the store reads them too: else a short call would cost gigabytes.
    """
    found: dict[str, OperationDescription] = {}
    room, rest = limits.page_bytes, names
    while rest:
        seen = access.seen(rest, caller, min(max(room, limits.least_bytes), READ_BYTES))
        places = access.places(seen.records.values(), inspectable)
        for record in seen.records.values():
            shown = description_of(record, renamed, places.get(record.name))
            weight = max(record.weight, shown.weight)
            if found and weight > room:
                raise BatchTooLarge(len(names), limits.page_bytes)
            room -= weight
            found[record.name] = shown
        rest = seen.rest
    listed = tuple(found[name] for name in names if name in found)
    return DescribeOperationsResponse(listed, tuple(name for name in names if name not in found))


PAGE_SECONDS: Final = 0.5
"""How long is looked for the matches of one page."""

_BATCH: Final = 200
"""The most records that are read at once: they may be large."""
_SLACK: Final = 10
_LOOKS: Final = 4
"""One read may take a page's bytes divided by this, however full the page is."""
_MOST: Final = 10_000
"""Maximum number of records that a store examines in one read: often 10 MB, and maybe more."""
_SHORT_SECONDS: Final = 0.05
"""A look that took less, and found little, may be followed by a longer one."""
_LEAST_SECONDS: Final = 1e-6


@attrs.frozen(kw_only=True)
class CheckedList:
    """A list request whose arguments are known to be right."""

    parent: str
    filter_text: str
    filter: Filter | None
    page_size: int
    after: Cursor | None
    indexes: Indexes

    @classmethod
    def of(
        cls,
        request: ListOperationsRequest,
        store: Store,
        specs: Iterable[MethodSpec],
        indexes: Indexes,
    ) -> CheckedList:
        """Check the arguments of a request.

        Raises:
            InvalidParent, InvalidPageSize, InvalidFilter: The argument of that name is wrong.
            InvalidPageToken, PageTokenExpired: The token is not of this list, or too old.
        """
        parent = normalise_parent(request.name)
        size = effective_page_size(request.page_size)
        wanted = _compile(request.filter, specs) if request.filter else None
        after = None
        if request.page_token:
            after = decode_page_token(
                request.page_token,
                key=store.secret(),
                parent=parent,
                filter_text=request.filter,
                now=store.now(),
            )
        return cls(
            parent=parent,
            filter_text=request.filter,
            filter=wanted,
            page_size=size,
            after=after,
            indexes=indexes,
        )

    def page(
        self, runtime: Runtime, *, only_caller: str | None, max_bytes: int, show: Show[T]
    ) -> tuple[list[T], str]:
        """What ``show`` makes of the matching operations after the place, and a token.

        The token is empty if no further one exists.

        Where little matches, the page ends after ``PAGE_SECONDS`` by the runtime's clock, and may
        then be short or empty with a token (spec §3.4(8)). It also ends before the operation with
        which it would have more than ``max_bytes`` (spec §3.4(9)).
        """
        view: Callable[[Record], Operation] = attrgetter("operation")
        return self._page(runtime, _Walk(self, runtime, only_caller, max_bytes, view, show))

    def described_page(
        self,
        runtime: Runtime,
        *,
        only_caller: str | None,
        max_bytes: int,
        show: Callable[[Sequence[DescribedOperation]], Iterable[T]],
    ) -> tuple[list[T], str]:
        """:meth:`page`, with what the service knows of each operation."""

        def view(record: Record) -> DescribedOperation:
            return described(record, runtime.events.renamed)

        return self._page(runtime, _Walk(self, runtime, only_caller, max_bytes, view, show))

    def batches(self, runtime: Runtime) -> Iterator[Sequence[Record]]:
        """Read all records that match, page by page; what is created meanwhile is left out."""
        query, more = self, True
        while more:
            walk: _Walk[Record, Record]
            walk = _Walk(query, runtime, None, READ_BYTES, lambda one: one, lambda found: found)
            more = walk.go(query.page_size)
            query = attrs.evolve(query, after=walk.place)
            yield walk.shown

    def _page(self, runtime: Runtime, walk: _Walk[T, V]) -> tuple[list[T], str]:
        more = walk.go(self.page_size)
        token = ""
        if more:
            assert walk.place is not None
            store = runtime.store
            token = encode_page_token(
                walk.place,
                key=store.secret(),
                parent=self.parent,
                filter_text=self.filter_text,
                now=store.now(),
            )
        return walk.shown, token

    def prefilter(self, only_caller: str | None) -> Test:
        """What the store may look for first."""
        narrow: Test = EVERYTHING
        if self.filter is not None:
            narrow = self.filter.prefilter(self.indexes.of)
        if only_caller is not None and CALLER in self.indexes.keys:
            narrow = all_of([narrow, KeyIn(CALLER, frozenset({key_value(only_caller)}))])
        return narrow

    def matches(self, record: Record, only_caller: str | None, runtime: Runtime) -> bool:
        """Whether a record belongs to the list."""
        if only_caller is not None and record.caller != only_caller:
            return False
        return self.filter is None or self.filter.matches(_readable(record, runtime))


class _Walk(Generic[T, V]):
    """One way through a list: what is shown of it, and the place that it has reached."""

    def __init__(
        self,
        query: CheckedList,
        runtime: Runtime,
        only_caller: str | None,
        max_bytes: int,
        view: Callable[[Record], V],
        show: Callable[[Sequence[V]], Iterable[T]],
    ) -> None:
        self._query = query
        self._runtime = runtime
        self._caller = only_caller
        self._end = runtime.clock() + PAGE_SECONDS
        self._room = max_bytes
        self._least = max(1, max_bytes // _LOOKS)
        self._view = view
        self._show = show
        self._found = 0
        self.shown: list[T] = []
        self.place = query.after

    def go(self, size: int) -> bool:
        """Go on until ``size`` are found or the time is over; return whether there may be more.

        The place is then that of the last one found, or the last one that was looked at.
        """
        query = self._query
        narrowing = query.prefilter(self._caller)
        if bounds_of(narrowing).nothing:
            return False
        reached, scan, looked, limit = query.after, SCAN, 0, min(size + 1, _BATCH)
        while True:
            began = self._runtime.clock()
            # What does not match is let go, so that a page nearly full goes on in small steps.
            room = min(max(self._room, self._least), READ_BYTES)
            page = self._runtime.store.page(query.parent, reached, limit, narrowing, scan, room)
            now, read, reached = self._runtime.clock(), len(page.records), page.reached
            took, looked = now - began, looked + read
            # What was read is made use of, however long that took.
            if self._fill(page.records, size, until=now + PAGE_SECONDS):
                return True
            del page  # before more is read
            if reached is None:
                return False
            if self._found < size:
                self.place = reached
            if self._runtime.clock() >= self._end:
                return True
            longer = 4 if took < _SHORT_SECONDS and read < limit else 1
            # No longer than there is time for, as the last look went: or the page would end late.
            in_time = int(scan * (self._end - now) / max(took, _LEAST_SECONDS))
            scan = max(SCAN, min(longer * scan, _MOST, in_time))
            # As many as will do, if matches are no rarer than up to now.
            missing = size + 1 - self._found
            limit = min(_SLACK + missing * (looked + 1) // (self._found + 1), _BATCH)

    def _fill(self, records: Sequence[Record], size: int, *, until: float) -> bool:
        """Show what matches; whether the page is over, with more to come."""
        found: list[V] = []
        over = self._take(records, size, until, found)
        self.shown.extend(self._show(found))
        return over

    def _take(self, records: Sequence[Record], size: int, until: float, found: list[V]) -> bool:
        for record in records:
            if self._query.matches(record, self._caller, self._runtime):
                # In both cases a further match exists.
                if self._found == size or (self._found and record.weight > self._room):
                    return True
                self._room -= record.weight
                self._found += 1
                found.append(self._view(record))
                self.place = place_of(record)
            elif self._found < size:
                self.place = place_of(record)
            if self._runtime.clock() >= until:
                return True
        return False


def _readable(record: Record, runtime: Runtime) -> Record:
    # Filters look into JSON values; what came in binary form is read for them.
    seen: dict[str, object] = {}
    if (method := runtime.events.renamed.get(record.method)) is not None:
        seen["method"] = method
    for name, packed in (("metadata", record.metadata), ("result", record.result)):
        if isinstance(packed, AnyMessage) and isinstance(packed.payload, bytes):
            seen[name] = runtime.types.readable(packed)
    return record.next_version(**seen) if seen else record


def _compile(text: str, specs: Iterable[MethodSpec]) -> Filter:
    # With the first filter: the language is a third of what importing this package would cost.
    from lro._filters.filter import compile_filter

    known = list(specs)
    return compile_filter(
        text,
        metadata=_types((spec, spec.info.metadata_type) for spec in known),
        response=_types((spec, spec.info.response_type) for spec in known),
    )


def _types(declared: Iterable[tuple[MethodSpec, str]]) -> Sequence[MessageType]:
    from lro._filters.types import MessageType

    known = list(declared)
    shapes = {name: spec.types.codec(name).shape for spec, name in known}
    for spec, name in known:  # stored messages may still have the name of an earlier release
        shapes.update(dict.fromkeys(spec.types.aliases_of(name), shapes[name]))
    return [MessageType(name, shape) for name, shape in shapes.items()]


@attrs.frozen
class Listing:
    """A list that a caller may read; ``only_caller``: whose operations alone are shown."""

    query: CheckedList
    only_caller: str | None
