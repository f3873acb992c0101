"""Changing records: compare and set, from what this process knows, in one statement."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from lro._base.errors import OperationNotFound, Unavailable
from lro._engine.store_port import Found
from lro._messages.json_text import reread
from lro._model.record import Record
from lro._model.transitions import Change
from lro.stores._rows import COLUMNS, from_row, stamp_of, to_row
from lro.stores.postgres._connections import Connections
from lro.stores.postgres._groups import Groups
from lro.stores.postgres._known import KnownRecords
from lro.stores.postgres._statements import FIND, GET, GET_IF_CHANGED
from lro.stores.postgres._writes import array_of, id_of, ids_of, removal, replacement

_VERSION: Final = COLUMNS.index("version")
_NO_STAMP: Final = None, None, None


class Changes:
    """The reads and changes of single records by one process."""

    def __init__(self, connections: Connections, groups: Groups, known: KnownRecords) -> None:
        self._connections = connections
        self._groups = groups
        self._removing = Groups(connections)
        self._known = known

    def read(self, name: str) -> Record:
        """The record of this name; one that has not changed is not sent again.

        Raises:
            OperationNotFound: There is none.
            Unavailable: The database cannot be used now.
        """
        known = self._known.get(name)
        row: Any
        if known is None:
            row = self._stored(name)
        else:
            found = self._connections.rows(GET_IF_CHANGED, (*stamp_of(known), id_of(name)))
            if found and found[0][0] is None:
                return known
            row = reread(found[0][0]) if found else None
        if row is None:
            self._known.drop(name)
            raise OperationNotFound(name)
        return self._known.keep(from_row(row), row)

    def find(self, names: Collection[str], max_bytes: int) -> Found:
        """The records of these names that are there; those that have not changed are not sent.

        Raises:
            Unavailable: The database cannot be used now.
        """
        asked = list(dict.fromkeys(names))
        if not asked:
            return Found(())
        known = [self._known.get(name) for name in asked]
        stamps = zip(*[_NO_STAMP if one is None else stamp_of(one) for one in known], strict=True)
        found: list[Record] = []
        rest: list[str] = []
        values = max_bytes, ids_of(asked), *map(array_of, stamps)
        for place, over, text in self._connections.rows(FIND, values):
            if over:
                rest.append(asked[place - 1])
                continue
            record = known[place - 1]
            if text is not None:
                row: Any = reread(text)
                record = self._known.keep(from_row(row), row)
            assert record is not None  # only what is known can be unchanged
            found.append(record)
        return Found(found, rest)

    def apply(self, name: str, change: Change) -> Record | None:
        """Replace or remove a record, all or nothing.

        What is known is tried first: the statement that writes also compares. Whatever writes
        nothing, a refusal too, is decided on what is read just then.

        Raises:
            OperationNotFound: There is none.
            Unavailable: The database cannot be used now; whether it was changed may be unknown.
        """
        known = self._known.get(name)
        if known is not None:
            try:
                changed = change(known)
            except Exception:  # perhaps only because it is out of date
                changed = known
            if _differs(changed, known) and self._write(known, changed):
                return changed
        while True:
            record = self.read(name)
            changed = change(record)
            if not _differs(changed, record) or self._write(record, changed):
                return changed

    def _write(self, old: Record, new: Record | None) -> bool:
        """Whether it was written; False if the record was no longer as it was."""
        if new is None:
            write = removal(old)
            written = self._removing.write(write)
            # If it is gone, it does not matter who has removed it first.
            written = written or (write.doubtful and self._stored(old.name) is None)
            if written:
                self._known.drop(old.name)
            return written
        row = to_row(new)
        write = replacement(old, new, row)
        written = self._groups.write(write)
        if not written and write.doubtful:
            written = self._was_written(old, new, row)
        if written:
            self._known.keep(new, row)
        return written

    def _was_written(self, old: Record, new: Record, row: tuple[object, ...]) -> bool:
        """Whether an attempt was carried out whose answer was lost, and later ones were not."""
        stored = self._stored(old.name)
        if stored is None:
            raise OperationNotFound(old.name)
        if stored == row:
            return True
        if stored[_VERSION] > new.version:
            raise Unavailable("the record was changed twice; by whom first is not known")
        return False

    def _stored(self, name: str) -> Any:
        """The row of this name, None if there is none."""
        rows = self._connections.rows(GET, (id_of(name),))
        return rows[0] if rows else None


def _differs(changed: Record | None, record: Record) -> bool:
    return changed is None or (changed is not record and changed != record)
