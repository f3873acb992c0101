"""Inserting records: each once, also where the same start comes many times at once (spec §9)."""

from __future__ import annotations

import typing
from typing import Final

from lro._base.any import Any
from lro._base.errors import RequestIdConflict, TargetBusy, Unavailable
from lro._engine.store_port import Inserted, RequestKey
from lro._messages.json_text import reread
from lro._model.record import Record
from lro.stores._rows import from_row, micros, moment, taken, to_row
from lro.stores.postgres._connections import Connections
from lro.stores.postgres._groups import Groups
from lro.stores.postgres._known import KnownRecords
from lro.stores.postgres._statements import FIND_FIRST, REQUEST_LIFE
from lro.stores.postgres._writes import Write, id_of, insertion, start_id, target_id

_TRIES: Final = 10
"""How often an insert is refused for something that is gone when it is looked at."""


class Starts:
    """The inserts of one process."""

    def __init__(self, connections: Connections, groups: Groups, known: KnownRecords) -> None:
        self._connections = connections
        self._groups = groups
        self._known = known

    def insert(self, record: Record, request: Any, key: RequestKey | None) -> Inserted:
        """Add a record, or find the one that the same request started before.

        Raises:
            RequestIdConflict, TargetBusy: As :meth:`Store.insert` says.
            InvalidArgument: The record cannot be stored, or the name is taken.
            Unavailable: The database cannot be used now; whether it was added may be unknown.
        """
        row = to_row(record)
        write = insertion(record, row, request, key)
        for _ in range(_TRIES):
            if self._groups.write(write):
                self._known.keep(record, row)
                return Inserted(record, fresh=True)
            found = self.find(record, key, write)
            if found is not None:
                return found
            write = write.again()
        raise Unavailable("others start and end the same work too fast to be told apart")

    def find(
        self, record: Record, key: RequestKey | None, write: Write | None = None
    ) -> Inserted | None:
        """What an insert finds there already, or None if nothing is in its way.

        Raises:
            RequestIdConflict, TargetBusy, InvalidArgument: What is there forbids it.
        """
        ids = id_of(record.name), target_id(record.target), key and start_id(key)
        ((state, busy, *first),) = self._connections.rows(FIND_FIRST, ids)
        ours = write is not None and write.doubtful
        if ours and (state is not None or _is(first, record)):
            # The attempt whose answer was lost has been carried out; nobody else has this name.
            return Inserted(record, fresh=True)
        if key is not None and first[0] is not None:
            began = self._first(key, first, record)
            if began is not None:
                return Inserted(began, fresh=False)
        if busy:
            raise TargetBusy(record.target)
        if state is not None:
            raise taken(record.name)
        return None

    def _first(self, key: RequestKey, first: list[typing.Any], new: Record) -> Record | None:
        _, fingerprint, at, stored, *row = first
        if new.create_time - moment(at) >= REQUEST_LIFE:
            return None
        if fingerprint != key.fingerprint:
            raise RequestIdConflict("request_id", "was used before with another request")
        if row[0] is not None:
            present = from_row(row)
            if present.visible(new.create_time):
                return present
        remembered: typing.Any = reread(stored)
        return from_row(remembered)


def _is(first: list[typing.Any], record: Record) -> bool:
    return (
        first[0] is not None
        and first[0].replace("-", "") == id_of(record.name)
        and first[2] == micros(record.create_time)
    )
