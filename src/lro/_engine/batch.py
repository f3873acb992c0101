"""Reading many operations at once: the pieces of one BatchGet (spec §3.11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from lro._base.errors import BatchTooLarge
from lro._engine.access import Access
from lro._engine.limits import Limits
from lro._engine.store_port import READ_BYTES
from lro._model.operation import Show

T = TypeVar("T")


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
