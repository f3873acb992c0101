"""Pages of lists in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from lro._filters.prefilter import UNKNOWN, NumberIn
from lro.stores._list_queries import Condition, ListQuery
from lro.stores._rows import COLUMNS
from lro.stores.postgres._statements import WEIGHT, id_of, ids_of

_ROW: Final = ", ".join(COLUMNS)
_NEWEST: Final = "ORDER BY create_time DESC, name"
_BEFORE: Final = f"({_NEWEST} ROWS UNBOUNDED PRECEDING)"
_NUMBER: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$"


class PostgresDialect:
    """The SQL expressions that PostgreSQL writes in its own way."""

    mark = "%s"

    def named(self, names: Collection[str]) -> Condition:
        """Return the condition that the name is one of these names."""
        return "id = ANY (%s::uuid[])", [ids_of(sorted(names))]

    def key(self, name: str) -> str:
        """Return an expression for the value of a key in a record."""
        return f"coalesce(keys::json ->> '{name}', '{UNKNOWN}')"

    def contains(self, column: str, *, folded: bool) -> str:
        """Return a test that a text contains a parameter."""
        text = f'lower({column} COLLATE "C")' if folded else column
        return f"strpos({text}, %s) > 0"

    def foreign(self, column: str) -> str:
        """Return a test that a text has characters outside printable ASCII."""
        return f"""{column} COLLATE "C" ~ '[^ -~]'"""

    def binary(self, column: str) -> str:
        """Return a test that a packed message may be in binary form."""
        return f"right({column}, 6) = ',true]'"

    def number_in(self, test: NumberIn) -> Condition:
        """Return a test for a number in a packed message; a binary message always passes."""
        column = test.column.value
        ends = [(op, end) for op, end in ((">=", test.low), ("<=", test.high)) if end is not None]
        range_ = " AND ".join(f"n::numeric {op} %s::numeric" for op, _ in ends)
        # PostgreSQL cannot read JSON that has the character U+0000. CASE makes sure that a value is
        # read as a number only if it is a number.
        text = f"""CASE WHEN {self.binary(column)} OR strpos({column}, '\\u0000') > 0 THEN TRUE
            ELSE (SELECT CASE WHEN n ~ '{_NUMBER}' THEN {range_} ELSE %s END
                AND n IS NOT NULL FROM (SELECT {column}::json #>> %s AS n) AS found) END"""
        path = ["1", *test.path]
        return text, [*[repr(end) for _, end in ends], test.or_text, path]


DIALECT: Final = PostgresDialect()


def index_name(key: str) -> str:
    """Return the name of the index by a key."""
    return f"lro_operations_by_{key}"


def _facet(order: str) -> str:
    # The index has the parent and the value as one text, so that a list can use only this index.
    # Otherwise, with old statistics, the planner would read all records of the parent, because it
    # expects to find a rare state there just as quickly.
    value = "state" if order == "state" else DIALECT.key(order)
    return f"(parent_id::text || '/' || {value})"


def index_columns(order: str) -> str:
    """Return the columns of the index by the state, or by a key."""
    return f"({_facet(order)}, create_time DESC)"


def query(
    walk: ListQuery, parent: str, *, limit: int, scan: int, now: int, max_bytes: int
) -> tuple[bytes, list[object]]:
    """Return the statement that reads a page of a parent's records, and its parameters' values.

    Each row begins with the create time down to which records were read (None: the end of the
    list), and the number of records found. Only the records within ``max_bytes`` are sent. If no
    record was found, the only row has just the create time.
    """
    sources = _sources(walk, parent)
    residue, residue_values = walk.residue
    ends, end_values = _end(walk, sources, scan)
    texts, values = [], []
    for source, given in sources:
        texts.append(f"""SELECT {_ROW} FROM lro_operations WHERE {source}
            AND create_time >= (SELECT greatest(t, %s) FROM reached) AND create_time <= %s
            AND (create_time < %s OR name > %s) AND ({residue})
            AND state <> 'HIDDEN' AND (expire_time IS NULL OR expire_time > %s)
            {_NEWEST} LIMIT %s""")
        values += [*given, walk.low, walk.high, walk.at, walk.name, *residue_values, now, limit]
    text = texts[0]
    if len(texts) > 1:
        text = " UNION ALL ".join(f"({one})" for one in texts)
        text = f"SELECT * FROM ({text}) AS merged {_NEWEST} LIMIT %s"
        values.append(limit)
    # PostgreSQL knows the length of a long text without reading it.
    text = f"""WITH reached AS MATERIALIZED ({ends})
        SELECT reached.t, found.* FROM reached LEFT JOIN (
            SELECT total, {_ROW} FROM (
                SELECT *, count(*) OVER () AS total, row_number() OVER {_BEFORE} AS place,
                    sum({WEIGHT}) OVER {_BEFORE} AS running FROM ({text}) AS page
            ) AS weighed WHERE place = 1 OR running <= %s ORDER BY place
        ) AS found ON TRUE"""
    return " ".join(text.split()).encode(), [*end_values, *values, max_bytes]


def _sources(walk: ListQuery, parent: str) -> Sequence[Condition]:
    id_ = id_of(parent)
    if walk.names is not None:
        names, values = walk.names
        # Compare the parent as text, which has no index, so that the few records are found by name.
        return [(f"{names} AND parent_id::text = %s::uuid::text", [*values, id_])]
    if not walk.order:
        return [("parent_id = %s::uuid", [id_])]
    facet = _facet(walk.order)
    return [(f"{facet} = %s::uuid::text || '/' || %s", [id_, value]) for value in walk.values]


def _end(walk: ListQuery, sources: Sequence[Condition], scan: int) -> Condition:
    if walk.names is not None:
        return "SELECT NULL::bigint AS t", []
    texts, values = [], []
    for source, given in sources:
        texts.append(f"""SELECT (SELECT create_time FROM lro_operations WHERE {source}
            AND create_time >= %s AND create_time <= %s
            ORDER BY create_time DESC LIMIT 1 OFFSET %s) AS t""")
        values += [*given, walk.low, walk.high, scan]
    return f"SELECT max(t) AS t FROM ({' UNION ALL '.join(texts)}) AS ends", values
