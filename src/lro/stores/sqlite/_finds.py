"""Many records at once: those that have not changed are not read again."""

from __future__ import annotations

from collections.abc import Collection

from lro._record import Record
from lro.stores._recent import RecentRecords
from lro.stores._rows import from_row
from lro.stores.sqlite import _statements as sql
from lro.stores.sqlite._readers import Rows


def find(rows: Rows, recent: RecentRecords, names: Collection[str]) -> list[Record]:
    """The records of these names that are there."""
    found: list[Record] = []
    changed: list[str] = []
    for name, *stamp in rows(sql.STAMPS, (sql.listed(names)[0],)):
        known = recent.get(name, tuple(stamp))
        if known is None:
            changed.append(name)
        else:
            found.append(known)
    if changed:
        for row in rows(sql.FIND, (sql.listed(changed)[0],)):
            found.append(recent.keep(from_row(row), sql.stamp_in(row), sql.weight_of(row)))
    return found
