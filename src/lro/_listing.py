"""A list call: parent, filter and token checked, then pages by place (spec §3.3, §3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from lro._any import Any
from lro._names import normalise_parent
from lro._operation import ListOperationsRequest, ListOperationsResponse
from lro._pages import Place, effective_page_size, seal, unseal
from lro._ports import Store
from lro._record import Record
from lro._spec import MethodSpec
from lro._types import TypeRegistry

if TYPE_CHECKING:
    from lro._filters import Filter, MessageType

_BATCH: Final = 200
"""Records read at once where not every one need match."""


@attrs.frozen(kw_only=True)
class Query:
    """A list request whose arguments are known to be right."""

    parent: str
    filter_text: str
    filter: Filter | None
    page_size: int
    after: Place | None
    types: TypeRegistry

    @classmethod
    def of(
        cls,
        request: ListOperationsRequest,
        store: Store,
        specs: Iterable[MethodSpec],
        types: TypeRegistry,
    ) -> Query:
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
            after = unseal(
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
            types=types,
        )

    def page(self, store: Store, *, only_caller: str | None) -> ListOperationsResponse:
        """The matching operations after the place, and a token if a further one exists."""
        found = self._matching(store, only_caller)
        shown = found[: self.page_size]
        token = ""
        if len(found) > self.page_size:
            token = seal(
                _place(shown[-1]),
                key=store.secret(),
                parent=self.parent,
                filter_text=self.filter_text,
                now=store.now(),
            )
        return ListOperationsResponse(tuple(record.operation for record in shown), token)

    def _matching(self, store: Store, only_caller: str | None) -> Sequence[Record]:
        count = self.page_size + 1  # one more tells whether a further match exists
        selective = self.filter is not None or only_caller is not None
        batch = max(count, _BATCH) if selective else count
        found: list[Record] = []
        after = self.after
        while True:
            records = store.page(self.parent, after, batch)
            found.extend(record for record in records if self._matches(record, only_caller))
            if len(found) >= count or len(records) < batch:
                return found[:count]
            after = _place(records[-1])

    def _matches(self, record: Record, only_caller: str | None) -> bool:
        if only_caller is not None and record.caller != only_caller:
            return False
        return self.filter is None or self.filter.matches(_readable(record, self.types))


def _readable(record: Record, types: TypeRegistry) -> Record:
    # Filters look into JSON values; what came in binary form is read for them.
    seen: dict[str, Any] = {}
    for name, packed in (("metadata", record.metadata), ("result", record.result)):
        if isinstance(packed, Any) and isinstance(packed.payload, bytes):
            seen[name] = types.readable(packed)
    return record.moved(**seen) if seen else record


def _place(record: Record) -> Place:
    return Place(record.create_time, record.name)


def _compile(text: str, specs: Iterable[MethodSpec]) -> Filter:
    # With the first filter: the language is a third of what importing this package would cost.
    from lro._filters import compile_filter

    known = list(specs)
    return compile_filter(
        text,
        metadata=_types((spec, spec.info.metadata_type) for spec in known),
        response=_types((spec, spec.info.response_type) for spec in known),
    )


def _types(declared: Iterable[tuple[MethodSpec, str]]) -> Sequence[MessageType]:
    from lro._filters import MessageType

    shapes = {name: spec.types.codec(name).shape for spec, name in declared}
    return [MessageType(name, shape) for name, shape in shapes.items()]
