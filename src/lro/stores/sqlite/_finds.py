"""Many records at once: those that have not changed are not read again."""

from __future__ import annotations

from collections.abc import Collection

from lro._engine.store_port import Found
from lro._model.record import Record
from lro.stores._recent import RecentRecords
from lro.stores._rows import stamp_of
from lro.stores.sqlite import _statements as sql
from lro.stores.sqlite._readers import Records, Rows


def find(
    rows: Rows, records: Records, recent: RecentRecords, names: Collection[str], max_bytes: int
) -> Found:
    """The records of these names that are there; those that are known come first."""
    found: list[Record] = []
    left: list[str] = []
    for name, *stamp in rows(sql.STAMPS, (sql.listed(names)[0],)):
        known = recent.get(name, tuple(stamp))
        if known is None or (found and known.weight > max_bytes):
            left.append(name)
        else:
            max_bytes -= known.weight
            found.append(known)
    if not left or (found and max_bytes <= 0):
        return Found(found, left)
    read, more = records(sql.FIND, (sql.listed(left)[0],), max_bytes=max_bytes)
    for record in read:
        if found and record.weight > max_bytes:
            more = True
            break
        max_bytes -= record.weight
        found.append(recent.keep(record, stamp_of(record), record.weight))
    told = {record.name for record in found}
    return Found(found, [name for name in left if name not in told] if more else ())
