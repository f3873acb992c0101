"""List and BatchGet: arguments are checked, then operations are read (spec §3.3, §3.11)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import BatchTooLarge
from lro._base.status import AnyMessage
from lro._engine.access import Access
from lro._engine.limits import Limits
from lro._engine.method_spec import MethodSpec
from lro._engine.store_port import READ_BYTES, SCAN, Store, place_of
from lro._filters.indexes import CALLER, Indexes
from lro._filters.prefilter import EVERYTHING, KeyIn, Test, all_of, bounds_of, key_value
from lro._model.operation import (
    ListOperationsRequest,
    Operation,
    Record,
    Render,
    full_operation,
    full_weight,
    normalise_parent,
)
from lro._model.page_tokens import Cursor, decode_page_token, effective_page_size, encode_page_token

if TYPE_CHECKING:
    from lro._engine.runtime import Runtime
    from lro._filters.filter import Filter
    from lro._filters.types import MessageType


T = TypeVar("T")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BasicView(ByFields):
    """The view BASIC: operations as ``google.longrunning`` defines them (AIP-157).

    ``inspectable`` has the names of the operations whose operator-only fields the view FULL shows.
    BASIC ignores these names.
    """

    inspectable: Collection[str] = ()

    def weight(self, record: Record) -> int:
        """Return the approximate size of an operation in this view, in bytes of JSON."""
        return record.weight

    def operations(self, records: Collection[Record]) -> Sequence[Operation]:
        """Return the operations of these records in this view."""
        return [record.operation for record in records]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FullView(BasicView):
    """The view FULL: operations with their descriptions (spec §3.11).

    ``renamed`` maps the aliases of methods to their present names.
    """

    access: Access
    renamed: Mapping[str, str]

    def weight(self, record: Record) -> int:
        """See :meth:`BasicView.weight`."""
        return full_weight(record, inspectable=record.name in self.inspectable)

    def operations(self, records: Collection[Record]) -> Sequence[Operation]:
        """Return the operations with their descriptions, for which the store's workers are read."""
        places = self.access.places(records, self.inspectable)
        return [full_operation(one, self.renamed, places.get(one.name)) for one in records]


BASIC: Final = BasicView()


@attrs.frozen(eq=False, repr=False)
class Batch(ByFields):
    """A BatchGet whose arguments have been checked, and which this caller may make."""

    access: Access
    limits: Limits
    names: Sequence[str]
    viewer: str | None
    view: BasicView

    def read(self, show: Render[T]) -> tuple[Sequence[T], Sequence[str]]:
        """Return the result of ``show`` for the visible operations, and the missing names.

        A few operations are read at a time. No hook is called.

        Raises:
            BatchTooLarge: The operations have more bytes in total than ``Limits.page_bytes``.
        """
        shown: dict[str, Iterable[T]] = {}
        room, rest = self.limits.page_bytes, self.names
        while rest:
            rest, room = self._read_some(rest, room, shown, show)
        found = [one for name in self.names for one in shown.get(name, ())]
        return found, [name for name in self.names if name not in shown]

    def _read_some(
        self, names: Sequence[str], room: int, shown: dict[str, Iterable[T]], show: Render[T]
    ) -> tuple[Sequence[str], int]:
        """Show some of these operations; return the names still to read, and the bytes left.

        This is a function of its own, so that these operations are freed before more are read.
        """
        limit, least = self.limits.page_bytes, self.limits.least_bytes
        # Operations that this caller cannot see do not count towards the size of the reply.
        seen = self.access.visible_records(names, self.viewer, min(max(room, least), READ_BYTES))
        for record in seen.records.values():
            weight = self.view.weight(record)
            if room < limit and weight > room:
                raise BatchTooLarge(len(self.names), limit)
            room -= weight
        known = [seen.records[name] for name in self.names if name in seen.records]
        found = self.view.operations(known)
        # If one read is enough, one call of ``show`` for all operations takes less time.
        whole = not shown and not seen.rest
        for some in [found] if found and whole else [[one] for one in found]:
            shown.update((one.name, ()) for one in some)
            shown[some[0].name] = show(some)
        return seen.rest, room


PAGE_SECONDS: Final = 0.5
"""Maximum time in which one page is filled, in seconds."""

_BATCH: Final = 200
"""Maximum number of records that are read at once: they may be large."""
_SLACK: Final = 10
_LOOKS: Final = 4
"""Even if the page is nearly full, a read may take the bytes of a page divided by this number."""
_MOST: Final = 10_000
"""Maximum number of records that a store examines in one read: often 10 MB of data, or more."""
_SHORT_SECONDS: Final = 0.05
"""If a read took fewer seconds than this and found few records, the next read may examine more."""
_LEAST_SECONDS: Final = 1e-6


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckedList(ByFields):
    """A list request whose arguments have been checked."""

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
            InvalidParent, InvalidPageSize, InvalidFilter: The parent, page size or filter is wrong.
            InvalidPageToken, PageTokenExpired: The token is of another list, or too old.
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

    def batches(self, runtime: Runtime) -> Iterator[Sequence[Record]]:
        """Read all records that match, page by page; records created meanwhile are left out."""
        query, more = self, True
        while more:
            walk: _Walk[Record] = _Walk(query, runtime, None, READ_BYTES, BASIC, lambda one: one)
            more = walk.go(query.page_size)
            query = attrs.evolve(query, after=walk.place)
            yield walk.shown

    def prefilter(self, only_caller: str | None) -> Test:
        """Return the part of the filter that the store can evaluate, to read fewer records."""
        found: Test = EVERYTHING
        if self.filter is not None:
            found = self.filter.prefilter(self.indexes.of)
        if only_caller is not None and CALLER in self.indexes.keys:
            found = all_of([found, KeyIn(CALLER, frozenset({key_value(only_caller)}))])
        return found

    def matches(self, record: Record, only_caller: str | None, runtime: Runtime) -> bool:
        """Return True if a record belongs to the list."""
        if only_caller is not None and record.caller != only_caller:
            return False
        return self.filter is None or self.filter.matches(_readable(record, runtime))


class _Walk(Generic[T]):
    """A read of a list up to the end of a page: the results, and the place that it has reached."""

    def __init__(
        self,
        query: CheckedList,
        runtime: Runtime,
        only_caller: str | None,
        max_bytes: int,
        view: BasicView,
        show: Callable[[Sequence[Record]], Iterable[T]],
    ) -> None:
        self._query = query
        self._runtime = runtime
        self._caller = only_caller
        self._takes_all = only_caller is None and query.filter is None
        self._end = runtime.clock() + PAGE_SECONDS
        self._room = max_bytes
        self._least = max(1, max_bytes // _LOOKS)
        self._weight = view.weight
        self._show = show
        self._found = 0
        self.shown: list[T] = []
        self.place = query.after

    def go(self, size: int) -> bool:
        """Read until ``size`` matches are found or time is up; return True if more may follow.

        Afterwards, ``place`` is the place of the last match if the page is full, or else the place
        of the last record that was examined.
        """
        query = self._query
        prefilter = query.prefilter(self._caller)
        if bounds_of(prefilter).nothing:
            return False
        reached, scan, looked, limit = query.after, SCAN, 0, min(size + 1, _BATCH)
        while True:
            began = self._runtime.clock()
            # A read may take the bytes that the page has left. For a nearly full page it may take
            # more, ``_least`` bytes, because records that do not match are freed.
            room = min(max(self._room, self._least), READ_BYTES)
            page = self._runtime.store.page(query.parent, reached, limit, prefilter, scan, room)
            now, read, reached = self._runtime.clock(), len(page.records), page.reached
            took, looked = now - began, looked + read
            # The records that were read are used, however long the read took.
            if self._fill(page.records, size, until=now + PAGE_SECONDS):
                return True
            del page  # frees the page before more is read
            if reached is None:
                return False
            if self._found < size:
                self.place = reached
            if self._runtime.clock() >= self._end:
                return True
            longer = 4 if took < _SHORT_SECONDS and read < limit else 1
            # Examine only as many records as there is time for.
            in_time = int(scan * (self._end - now) / max(took, _LEAST_SECONDS))
            scan = max(SCAN, min(longer * scan, _MOST, in_time))
            # This is enough to fill the page if matches remain as frequent as they were up to now.
            missing = size + 1 - self._found
            limit = min(_SLACK + missing * (looked + 1) // (self._found + 1), _BATCH)

    def _fill(self, records: Sequence[Record], size: int, *, until: float) -> bool:
        """Show the matches among these records; return True if the page ends before the list."""
        found: list[Record] = []
        over = self._take(records, size, until, found)
        self.shown.extend(self._show(found))
        return over

    def _take(
        self, records: Sequence[Record], size: int, until: float, found: list[Record]
    ) -> bool:
        last: Record | None = None
        query, over = self._query, False
        for record in records:
            matches = self._takes_all or query.matches(record, self._caller, self._runtime)
            if matches:
                weight = self._weight(record)
                # In both cases this match belongs to the next page.
                if self._found == size or (self._found and weight > self._room):
                    over = True
                    break
                self._room -= weight
                self._found += 1
                found.append(record)
            if matches or self._found < size:
                last = record
            if self._runtime.clock() >= until:
                over = True
                break
        if last is not None:
            self.place = place_of(last)
        return over


def _readable(record: Record, runtime: Runtime) -> Record:
    # Filters compare JSON values, so a message in binary form is converted first.
    seen: dict[str, object] = {}
    if (method := runtime.events.renamed.get(record.method)) is not None:
        seen["method"] = method
    for name, packed in (("metadata", record.metadata), ("result", record.result)):
        if isinstance(packed, AnyMessage) and isinstance(packed.payload, bytes):
            seen[name] = runtime.types.readable(packed)
    return record.next_version(**seen) if seen else record


def _compile(text: str, specs: Iterable[MethodSpec]) -> Filter:
    # Imported with the first filter: the filter language is a third of the import time of `lro`.
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


@attrs.frozen(eq=False, repr=False)
class Listing(ByFields):
    """A list that a caller may read; with ``only_caller`` it has only that caller's operations."""

    query: CheckedList
    only_caller: str | None
    runtime: Runtime
    view: BasicView

    def page(self, max_bytes: int, show: Render[T]) -> tuple[Sequence[T], str]:
        """Return the result of ``show`` for the matching operations, and the next page's token.

        The token is empty if there is no next page. If few operations match, the page ends after
        ``PAGE_SECONDS`` by the runtime's clock, and may then be short or empty and have a token
        (spec §3.4(8)). The page also ends before an operation that would make it exceed
        ``max_bytes``, unless that operation is its first (spec §3.4(9)). No hook is called.
        """
        query, store = self.query, self.runtime.store

        def shown(records: Sequence[Record]) -> Iterable[T]:
            return show(self.view.operations(records))

        walk = _Walk(query, self.runtime, self.only_caller, max_bytes, self.view, shown)
        if not walk.go(query.page_size):
            return walk.shown, ""
        assert walk.place is not None
        token = encode_page_token(
            walk.place,
            key=store.secret(),
            parent=query.parent,
            filter_text=query.filter_text,
            now=store.now(),
        )
        return walk.shown, token
