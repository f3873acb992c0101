"""Pages of lists in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final

from lro._engine.store_port import Page
from lro._filters.prefilter import UNKNOWN, NumberIn
from lro.stores._list_queries import Condition, ListQuery, among
from lro.stores._rows import COLUMNS, textual
from lro.stores.sqlite._file import FetchRecords, FetchRows

_ROW: Final = ", ".join(COLUMNS)
_MERGED: Final = ", ".join(f"o.{name}" for name in COLUMNS)
_NEWEST: Final = "ORDER BY create_time DESC, name"
_INDEXES: Final = {"": "lro_operations_order", "state": "lro_operations_states"}


class SQLiteDialect:
    """The SQL expressions that SQLite writes in its own way."""

    mark = "?"

    def named(self, names: Collection[str]) -> Condition:
        """Return the condition that the name is one of these names."""
        return among("name", sorted(filter(textual, names)), self.mark)

    def key(self, name: str) -> str:
        """Return an expression for the value of a key in a record."""
        return f"coalesce(json_extract(keys, '$.{name}'), '{UNKNOWN}')"

    def contains(self, column: str, *, folded: bool) -> str:
        """Return a test that a text contains a parameter."""
        return f"instr({f'lower({column})' if folded else column}, ?) > 0"

    def foreign(self, column: str) -> str:
        """Return a test that a text has characters outside printable ASCII."""
        return f"{column} GLOB '*[^ -~]*'"

    def binary(self, column: str) -> str:
        """Return a test that a packed message may be in binary form."""
        return f"substr({column}, -6) = ',true]'"

    def number_in(self, test: NumberIn) -> Condition:
        """Return a test for a number in a packed message; a binary message always passes."""
        column = test.column.value
        path = "$[1]" + "".join(f'."{name}"' for name in test.path)
        number = f"CAST(json_extract({column}, ?) AS REAL)"
        ends = [(op, end) for op, end in ((">=", test.low), ("<=", test.high)) if end is not None]
        either = [" AND ".join(f"{number} {op} ?" for op, _ in ends), self.binary(column)]
        values: list[object] = [value for _, end in ends for value in (path, end)]
        if test.or_text:
            either.append(f"json_type({column}, ?) = 'text'")
            values.append(path)
        return " OR ".join(f"({one})" for one in either), values


DIALECT: Final = SQLiteDialect()


def index_name(key: str) -> str:
    """Return the name of the index by a key."""
    return f"lro_operations_by_{key}"


def make_index(writer: sqlite3.Connection, key: str) -> None:
    """Make the index by a key if it is missing."""
    writer.execute(
        f"CREATE INDEX IF NOT EXISTS {index_name(key)}"
        f" ON lro_operations (parent, {DIALECT.key(key)}, create_time DESC, name)"
    )


def find(
    rows: FetchRows,
    records: FetchRecords,
    walk: ListQuery,
    parent: str,
    limit: int,
    scan: int,
    now: int,
    max_bytes: int,
) -> Page:
    """Read a page of a parent's records."""
    if walk.nothing:
        return Page((), None)
    # First find how far the page goes, then read its records, even records added meanwhile.
    end = None if walk.names else _end(rows, walk, parent, scan)
    low = walk.low if end is None else max(walk.low, end)
    residue, residue_values = walk.residue
    texts, values = [], []
    sources = _sources(walk, parent)
    # Merge several sources without the long texts; only rows of the result are read in full.
    what = _ROW if len(sources) == 1 else "rowid AS place, create_time, name"
    for source, given in sources:
        texts.append(f"""SELECT {what} FROM {source} AND create_time BETWEEN ? AND ?
            AND (create_time < ? OR name > ?) AND ({residue})
            AND state <> 'HIDDEN' AND (expire_time IS NULL OR expire_time > ?)
            {_NEWEST} LIMIT ?""")
        values += [*given, low, walk.high, walk.at, walk.name, *residue_values, now, limit]
    text = texts[0]
    if len(texts) > 1:
        text = " UNION ALL ".join(f"SELECT * FROM ({one})" for one in texts)
        text = f"""SELECT {_MERGED} FROM ({text} {_NEWEST} LIMIT ?) AS found
            CROSS JOIN lro_operations AS o ON o.rowid = found.place"""
        values.append(limit)
    found, more = records(text, tuple(values), max_bytes=max_bytes)
    return walk.page(found, end, cut=more or len(found) == limit)


def _sources(walk: ListQuery, parent: str) -> list[tuple[str, list[object]]]:
    """Return the sources of a list: for each, SQL of table, index and condition, and values."""
    if walk.names is not None:
        names, values = walk.names
        return [(f"lro_operations WHERE {names} AND +parent = ?", [*values, parent])]
    source = f"lro_operations INDEXED BY {_INDEXES.get(walk.order) or index_name(walk.order)}"
    if not walk.order:
        return [(f"{source} WHERE parent = ?", [parent])]
    order = walk.order if walk.order in _INDEXES else DIALECT.key(walk.order)
    return [(f"{source} WHERE parent = ? AND {order} = ?", [parent, v]) for v in walk.values]


def _end(rows: FetchRows, walk: ListQuery, parent: str, scan: int) -> int | None:
    """Return the create time of the record that follows the first ``scan`` records, or None."""
    texts, values = [], []
    for source, given in _sources(walk, parent):
        texts.append(f"""SELECT (SELECT create_time FROM {source}
            AND create_time BETWEEN ? AND ? ORDER BY create_time DESC LIMIT 1 OFFSET ?) AS t""")
        values += [*given, walk.low, walk.high, scan]
    ((end,),) = rows(f"SELECT max(t) FROM ({' UNION ALL '.join(texts)})", tuple(values))
    return None if end is None else int(end)
