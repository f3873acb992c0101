"""SQL of the PostgreSQL store, and the rows that it writes."""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import attrs

from lro._base.status import AnyMessage
from lro._engine.store_port import FREE_LANE, STEP_MINUTES, RequestKey
from lro._messages.json_text import dumps
from lro._model.operation import WEIGHT as RECORD_WEIGHT
from lro._model.operation import Record
from lro.stores._counting import PRUNED_ROWS, WAITS
from lro.stores._group_commit import QueuedWrite
from lro.stores._rows import (
    COLUMNS,
    DEFAULTS,
    REQUEST_LIFE,
    SWEEP_TIME,
    changes,
    filled,
    pack,
    refuse_untextual,
    stamp_of,
    to_row,
)
from lro.stores._turns import IS_SENT, IS_SUSPECT, MOST_LANES
from lro.stores._workers import COLUMNS as WORKER_COLUMNS

NULL_TEXT: Final = ""
NULL_NUMBER: Final = -(2**63)
"""Values that stand for NULL in a change. No column that can be NULL has such a value.

A column that a change leaves out keeps its value. Texts of JSON with ``null`` are also written more
slowly.
"""


def digest(*texts: str) -> str:
    """Return the hash of a name, a parent, a target or a request key for the indexes.

    The hash has 128 bits, so a collision is practically impossible.
    """
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


NO_RECORD: Final = "0" * 32
"""A hash that does not belong to any name."""


@functools.lru_cache(maxsize=16_384)  # calls that wait read the same names again
def id_of(name: str) -> str:
    """Return the hash of a name, or ``NO_RECORD`` for a name that is not valid UTF-8."""
    try:
        return digest(name)
    except UnicodeEncodeError:
        return NO_RECORD


def ids_of(names: Sequence[str]) -> str:
    """Return the hashes of these names as a PostgreSQL array."""
    return "{" + ",".join([id_of(name) for name in names]) + "}"


def lock_number(*texts: str) -> int:
    """Return the number of the advisory lock for these texts."""
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def sql_array(numbers: Iterable[int | None]) -> str:
    """Return these numbers as a PostgreSQL array."""
    return "{" + ",".join(["NULL" if one is None else str(one) for one in numbers]) + "}"


class WriteKind(enum.Enum):
    """The kinds of writes."""

    __hash__ = object.__hash__  # identity is enough; Enum's own hash is a Python call

    INSERT = "insert"
    START = "insert, if neither its key nor its target is taken"
    CHANGE = "change"
    END = "change, and drop the request"
    REMOVE = "remove"
    KEEP = "keep a checkpoint"


@attrs.define(eq=False, kw_only=True)
class RecordWrite(QueuedWrite):
    """A queued write of a record.

    ``touches`` are the ids that the write locks: two writes that share an id are never in one
    group. ``order`` is the sort key within a group, so that all groups lock in one order.
    ``applied`` means that the server has applied the write, ``doubtful`` that an earlier attempt
    may have been applied.
    """

    name: str
    kind: WriteKind
    text: bytes
    touches: tuple[str, ...]
    order: str
    applied: bool = False
    doubtful: bool = False
    on_over: Callable[[], None] | None = None
    """Called once when a queued write has ended. It refers to the write, which makes a cycle."""

    def call_back(self) -> None:
        """Call ``on_over``, and drop it to break the cycle."""
        on_over, self.on_over = self.on_over, None
        assert on_over is not None  # every queued write has ``on_over``
        on_over()

    def again(self) -> RecordWrite:
        """Return a copy of this write to be queued once more."""
        return attrs.evolve(self)


def insertion(record: Record, request: AnyMessage, key: RequestKey | None) -> RecordWrite:
    """Return the write that inserts a record, its request and its key.

    Raises:
        InvalidArgument: A text cannot be stored.
        ValueError, TypeError: The request is not JSON.
    """
    refuse_untextual(record, key)
    columns, values = filled(record)
    fields = dict(zip(columns, values, strict=True))
    id_ = id_of(record.name)
    fields |= {"id": id_, "parent_id": id_of(record.parent), "request": pack(request)}
    touches = [id_]
    if record.target:
        fields["target_id"] = digest(record.target)
        touches.append(fields["target_id"])
    if key is not None:
        fields["key_id"] = start_id(key)
        fields["fingerprint"] = key.fingerprint
        fields["first"] = dumps(list(to_row(record))).decode()  # type: ignore[arg-type]  # JSON
        touches.append(fields["key_id"])
    return RecordWrite(
        name=record.name,
        kind=WriteKind.INSERT if len(touches) == 1 else WriteKind.START,
        text=dumps(fields),
        touches=tuple(touches),
        order=id_,
    )


def replacement(old: Record, new: Record) -> RecordWrite:
    """Return the write that replaces the record ``old``, unless the stored record has changed.

    It has the columns that differ, so that large metadata is not sent again.

    Raises:
        InvalidArgument: A text cannot be stored.
    """
    refuse_untextual(new)
    columns, values = changes(old, new)
    fields: dict[str, Any] = dict(zip(columns, values, strict=True))
    for name in columns:
        if fields[name] is None:
            fields[name] = NULL_NUMBER if name in _NUMBERS else NULL_TEXT
    if "parent" in fields:
        fields["parent_id"] = id_of(new.parent)
    if new.target and "target" in fields:
        fields["target_id"] = digest(new.target)
    fields["id"] = id_of(old.name)
    if new.keeps_request:
        return _if_unchanged(old, fields, WriteKind.CHANGE)
    fields["over"] = True
    return _if_unchanged(old, fields, WriteKind.END)


def removal(old: Record) -> RecordWrite:
    """Return the write that removes a record, unless the stored record has changed."""
    return _if_unchanged(old, {"id": id_of(old.name)}, WriteKind.REMOVE)


def checkpointing(name: str, attempt: int, key: str, value: AnyMessage) -> RecordWrite:
    """Return the write that stores a checkpoint if ``attempt`` is still the current attempt.

    Raises:
        ValueError, TypeError: The value is not JSON.
    """
    id_ = id_of(name)
    text = dumps({"id": id_, "attempt": attempt, "key": key, "value": pack(value)})
    return RecordWrite(name=name, kind=WriteKind.KEEP, text=text, touches=(id_,), order=id_)


def start_id(key: RequestKey) -> str:
    """Return the hash of a request key."""
    return digest(key.method, key.caller, key.request_id)


def target_id(target: str) -> str | None:
    """Return the hash of a target; None without a target."""
    return digest(target) if target else None


def _if_unchanged(old: Record, fields: dict[str, Any], kind: WriteKind) -> RecordWrite:
    fields["old_version"], fields["old_update"] = stamp_of(old)
    id_ = str(fields["id"])
    return RecordWrite(name=old.name, kind=kind, text=dumps(fields), touches=(id_,), order=id_)


BY_NAME: Final = "id = ?::uuid"
JSON_ITEMS: Final = "SELECT json_array_elements_text(?::json)"


def _sql(text: str) -> bytes:
    return " ".join(text.split()).encode()


@functools.cache
def translated(text: str) -> bytes:
    """Replace the parameter marks ``?`` of a statement by the marks of PostgreSQL's driver."""
    return _sql(text.replace("?", "%s"))


_TABLE: Final = re.compile(r"(?<=(?:FROM|INTO|JOIN) )(?=lro_(?:operations|inputs|starts)\b)")


@functools.lru_cache(maxsize=64)
def qualified(sql: bytes, schema: str) -> bytes:
    """Qualify the tables of an insert or query, for connections that have another search path.

    ``schema`` is quoted as in SQL.
    """
    prefix = schema.replace("%", "%%") + "."
    return _TABLE.sub(lambda _: prefix, sql.decode()).encode()


WEIGHT: Final = f"""{RECORD_WEIGHT} + octet_length(name)
    + coalesce(octet_length(metadata), 0) + coalesce(octet_length(result), 0)"""
"""``Record.weight`` in SQL. PostgreSQL knows the length of a long text without reading it."""

_ROW: Final = ", ".join(f"o.{name}" for name in COLUMNS)

_NUMBERS: Final = frozenset(
    name
    for name in COLUMNS
    if name.endswith("_time")
    or name
    in (
        *("lease_until", "attempt", "lost_attempts", "version", "cancel_requested", "notify_at"),
        *("rank", "lane", "begin_before"),
    )
)
_GIVEN: Final = ", ".join(f"{name} {'BIGINT' if name in _NUMBERS else 'TEXT'}" for name in COLUMNS)
_IDS: Final = "id UUID, parent_id UUID, target_id UUID"
_STORED: Final = f"id, parent_id, target_id, {', '.join(COLUMNS)}"
_IN_PROGRESS: Final = "state IN ('IN_PROGRESS', 'HIDDEN')"
_BUSY: Final = f"o.target_id IS NOT NULL AND o.{_IN_PROGRESS}"
_DAY: Final = int(REQUEST_LIFE.total_seconds()) * 1_000_000

_SAME: Final = "o.version = {} AND o.update_time = {}"
"""Condition: the record has this stamp (see ``stamp_of``)."""

_OLD: Final = "old_version BIGINT, old_update BIGINT"
_UNCHANGED: Final = f"o.id = g.id AND {_SAME.format('g.old_version', 'g.old_update')}"
_RECORDS: Final = f"json_to_recordset(%s::json) AS g({_IDS}, {_GIVEN}"
_TO_INSERT: Final = "request TEXT, key_id UUID, fingerprint TEXT, first TEXT"
_TO_CHANGE: Final = f"over BOOLEAN, {_OLD}"


def _inserted(name: str) -> str:
    default = DEFAULTS.get(name)
    if default is None:
        return name
    return f"coalesce({name}, {default if name in _NUMBERS else repr(default)})"


def _changed(name: str) -> str:
    value = f"coalesce(g.{name}, o.{name})"
    if name in DEFAULTS and DEFAULTS[name] is None:
        value = f"nullif({value}, {NULL_NUMBER if name in _NUMBERS else repr(NULL_TEXT)})"
    return f"{name} = {value}"


_INSERTED: Final = ", ".join(("id, parent_id, target_id", *map(_inserted, COLUMNS)))
_UPDATE: Final = f"""UPDATE lro_operations o SET
    {", ".join(_changed(name) for name in ("parent_id", *COLUMNS) if name != "name")},
    target_id = CASE WHEN g.target IS NULL THEN o.target_id ELSE g.target_id END"""

# Look for conflicts first: the server would log a violated constraint as an error, or fail the
# group. ON CONFLICT handles conflicts with inserts at the same moment.
_NEW: Final = "NOT EXISTS (SELECT 1 FROM lro_operations o WHERE o.id = g.id)"
_FREE: Final = f"""{_NEW}
    AND NOT EXISTS (SELECT 1 FROM lro_operations o WHERE o.target_id = g.target_id AND {_BUSY})"""

# Lock keys before targets, both in sorted order, so that groups cannot deadlock.
_START: Final = f"""started AS (
    INSERT INTO lro_starts AS s (id, operation, fingerprint, at, first)
    SELECT key_id, id, fingerprint, create_time, first FROM wanted
        WHERE key_id IS NOT NULL ORDER BY key_id
    ON CONFLICT (id) DO UPDATE SET (operation, fingerprint, at, first)
        = (excluded.operation, excluded.fingerprint, excluded.at, excluded.first)
        WHERE s.at <= excluded.at - {_DAY}
    RETURNING operation
), fresh AS MATERIALIZED (
    SELECT * FROM wanted WHERE key_id IS NULL OR id IN (SELECT operation FROM started)
), kept AS (
    INSERT INTO lro_inputs SELECT id, request FROM fresh
), added AS (
    INSERT INTO lro_operations ({_STORED}) SELECT {_INSERTED} FROM fresh ORDER BY target_id
    RETURNING name
)"""
_FREED: Final = "freed AS (DELETE FROM lro_inputs i USING changed c WHERE i.id = c.id AND c.over)"

INSERT: Final = _sql(f"""WITH given AS MATERIALIZED (
    SELECT * FROM {_RECORDS}, request TEXT) WHERE {_NEW}
), kept AS (
    INSERT INTO lro_inputs SELECT id, request FROM given ON CONFLICT (id) DO NOTHING
)
INSERT INTO lro_operations ({_STORED}) SELECT {_INSERTED} FROM given
    ON CONFLICT (id) DO NOTHING RETURNING name""")

START: Final = _sql(f"""WITH wanted AS MATERIALIZED (
    SELECT * FROM {_RECORDS}, {_TO_INSERT}) WHERE {_FREE}
), {_START} SELECT name FROM added""")

CHANGE: Final = _sql(f"""{_UPDATE} FROM {_RECORDS}, {_TO_CHANGE})
    WHERE {_UNCHANGED} RETURNING o.name""")

END: Final = _sql(f"""WITH changed AS (
    {_UPDATE} FROM {_RECORDS}, {_TO_CHANGE}) WHERE {_UNCHANGED} RETURNING o.id, o.name, g.over
), {_FREED} SELECT name FROM changed""")

# Locks records before keys, because the final SELECT reads ``changed`` first.
WRITE: Final = _sql(f"""WITH given AS MATERIALIZED (
    SELECT * FROM {_RECORDS}, {_TO_INSERT}, {_TO_CHANGE})
), changed AS (
    {_UPDATE} FROM given g WHERE {_UNCHANGED} RETURNING o.id, o.name, g.over
), {_FREED}, wanted AS MATERIALIZED (
    SELECT * FROM given g WHERE g.old_version IS NULL AND {_FREE}
), {_START} SELECT name FROM changed UNION ALL SELECT name FROM added""")

REMOVE: Final = _sql(f"""WITH removed AS (
    DELETE FROM lro_operations o
    USING json_to_recordset(%s::json) AS g(id UUID, {_OLD})
    WHERE {_UNCHANGED} RETURNING o.id, o.name
), freed AS (
    DELETE FROM lro_inputs i USING removed r WHERE i.id = r.id
)
SELECT name FROM removed""")

# Setting has_checkpoints also locks the record. A trigger removes the checkpoints of such a record
# when it ends.
KEEP: Final = _sql(f"""WITH given AS (
    UPDATE lro_operations o SET has_checkpoints = true FROM json_to_recordset(%s::json)
        AS g(id UUID, attempt BIGINT, key TEXT, value TEXT)
    WHERE o.id = g.id AND o.attempt = g.attempt AND o.{_IN_PROGRESS}
    RETURNING o.id, o.name, g.key, g.value
), kept AS (
    INSERT INTO lro_checkpoints SELECT id, key, value FROM given
        ON CONFLICT (id, key) DO UPDATE SET value = excluded.value
)
SELECT name FROM given""")


def statement_of(writes: Sequence[RecordWrite]) -> tuple[bytes, str]:
    """Return the statement for these writes, and the text of its single parameter."""
    text = b"[" + b",".join([write.text for write in writes]) + b"]"
    return statement_for({write.kind for write in writes}), text.decode()


def statement_for(kinds: Collection[WriteKind]) -> bytes:
    """Return the simplest statement that can make writes of all these kinds."""
    return next(sql for made, sql in _WRITING if made.issuperset(kinds))


_WRITING: Final = (
    ({WriteKind.INSERT}, INSERT),
    ({WriteKind.CHANGE}, CHANGE),
    ({WriteKind.CHANGE, WriteKind.END}, END),
    ({WriteKind.INSERT, WriteKind.START}, START),
    ({WriteKind.REMOVE}, REMOVE),
    ({WriteKind.KEEP}, KEEP),
    (set(WriteKind) - {WriteKind.REMOVE, WriteKind.KEEP}, WRITE),
)

# Shows why an insert was not applied: reads the stored rows for its name, key and target.
FIND_FIRST: Final = _sql(f"""SELECT
    (SELECT state FROM lro_operations WHERE id = %s::uuid),
    EXISTS (SELECT 1 FROM lro_operations o WHERE o.target_id = %s::uuid AND {_BUSY}),
    s.operation::text, s.fingerprint, s.at, s.first, {_ROW}
    FROM (VALUES (1)) AS one LEFT JOIN lro_starts s ON s.id = %s::uuid
    LEFT JOIN lro_operations o ON o.id = s.operation""")

GET: Final = _sql(f"SELECT {_ROW} FROM lro_operations o WHERE o.id = %s::uuid")

GET_IF_CHANGED: Final = _sql(f"""SELECT CASE
    WHEN {_SAME.format("%s", "%s")} THEN NULL
    ELSE json_build_array({_ROW})::text END FROM lro_operations o WHERE o.id = %s::uuid""")

FIND: Final = _sql(f"""SELECT place, over, CASE
    WHEN over OR {_SAME.format("known_version", "known_update")}
    THEN NULL ELSE json_build_array({_ROW})::text END
    FROM (
        SELECT *, row_number() OVER w > 1 AND sum({WEIGHT}) OVER w > %s AS over FROM (
            SELECT g.place, g.version AS known_version, g.updated AS known_update, o.*
            FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[])
                WITH ORDINALITY AS g(id, version, updated, place)
            JOIN lro_operations o ON o.id = g.id
        ) AS joined WINDOW w AS (ORDER BY place ROWS UNBOUNDED PRECEDING)
    ) AS o""")

POLL_STATES: Final = _sql(f"""SELECT g.place, o.state = 'IN_PROGRESS' AND (o.expire_time IS NULL
        OR o.expire_time > %s), o.cancel_requested <> 0 AND o.{_IN_PROGRESS}
    FROM unnest(%s::uuid[]) WITH ORDINALITY AS g(id, place)
    LEFT JOIN lro_operations o ON o.id = g.id
    WHERE o.state IS DISTINCT FROM 'IN_PROGRESS' OR o.expire_time IS NOT NULL
        OR o.cancel_requested <> 0""")

_WORKER: Final = ", ".join(WORKER_COLUMNS)
_NEW_WORKER: Final = f"""INSERT INTO lro_workers AS w ({_WORKER})
    VALUES ({", ".join(["%s"] * len(WORKER_COLUMNS))}) ON CONFLICT (owner)"""
RENEW: Final = _sql(f"""WITH kept AS (
    {_NEW_WORKER} DO UPDATE SET (methods, capacity, seen_time, alive_until)
        = (excluded.methods, excluded.capacity, excluded.seen_time, excluded.alive_until)
        WHERE w.lost = 0
    RETURNING 1
), forgotten AS (
    DELETE FROM lro_workers WHERE owner IN (
        SELECT owner FROM lro_workers WHERE seen_time <= %s AND owner <> %s AND EXISTS (TABLE kept)
            FOR UPDATE SKIP LOCKED
    ) AND owner NOT IN (SELECT owner FROM lro_operations WHERE owner <> '')
)
SELECT (SELECT count(*) FROM kept), o.name, o.cancel_requested <> 0, o.lease_until <= %s
    FROM (VALUES (1)) AS one LEFT JOIN lro_operations o ON o.owner <> '' AND o.owner = %s
        AND (o.cancel_requested <> 0 OR o.lease_until <= %s)""")
"""Each row has 1, or 0 if the worker is lost, and then an operation to report, or NULLs."""

LEAVE: Final = _sql("DELETE FROM lro_workers WHERE owner = %s RETURNING 1")

TOUCH: Final = _sql("""WITH free AS (
    SELECT owner FROM lro_workers WHERE owner IN (SELECT json_array_elements_text(%s::json))
        ORDER BY owner FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE lro_workers w SET lost = w.lost FROM free f WHERE w.owner = f.owner RETURNING w.owner""")
"""Rewrites the rows of these workers unchanged, but skips locked rows; returns their owners."""

LOSE: Final = _sql("""UPDATE lro_workers SET lost = 1
    WHERE owner = %s AND (lost = 1 OR alive_until = %s) RETURNING 1""")
LOSE_UNKNOWN: Final = _sql(f"""WITH entered AS ({_NEW_WORKER} DO NOTHING RETURNING 1)
SELECT 1 FROM entered UNION ALL SELECT 1 FROM lro_workers WHERE owner = %s AND lost = 1""")

_METHODS: Final = "json_array_elements_text(%s::json) AS g(method)"
_LEASED: Final = (
    "FROM lro_operations o WHERE o.method = g.method AND o.owner <> '' AND o.lease_until"
)

FORGET_BEGINS: Final = _sql("DELETE FROM lro_begins WHERE until <= %s RETURNING 1")

_LIMITS: Final = (
    "method TEXT, suspect BOOLEAN, keyed BOOLEAN, sends BOOLEAN,"
    " at_once BIGINT, rate BIGINT, span BIGINT"
)
_ASKED: Final = f"""WITH RECURSIVE given AS MATERIALIZED (
    SELECT *, %s::bigint AS after, %s::bigint AS now
    FROM json_to_recordset(%s::json) AS l({_LIMITS})
    WHERE NOT EXISTS (SELECT 1 FROM lro_paused p WHERE p.method = l.method)
)"""
"""Parameters: the lane whose turn was last, the time, and the methods with their limits."""
_KIND: Final = f"FROM lro_operations o WHERE o.method = g.method AND {WAITS} AND (o.{IS_SUSPECT})"


def _lanes(name: str, bound: str) -> str:
    """Return SQL that finds the lanes with waiting work, by one read of the index for each lane."""
    first = f"SELECT o.lane, o.rank {_KIND} = g.suspect AND {bound}"
    last = "ORDER BY o.lane, o.rank LIMIT 1"
    return f"""{name} AS (
        SELECT g.*, f.lane, f.rank, 1 AS place
            FROM given g CROSS JOIN LATERAL ({first} {last}) AS f
        UNION ALL
        SELECT g.method, g.suspect, g.keyed, g.sends, g.at_once, g.rate, g.span, g.after, g.now,
                f.lane, f.rank, g.place + 1
            FROM {name} g CROSS JOIN LATERAL (
                {first} AND (o.lane, o.rank) > (g.lane, g.rank) {last}) AS f
            WHERE g.place < {MOST_LANES}
    )"""


_GIVEN_LANES: Final = f"""{_ASKED},
    {_lanes("ahead", "o.lane > g.after")}, {_lanes("behind", "o.lane <= g.after")},
    lanes AS MATERIALIZED (SELECT *, 0 AS wrapped FROM ahead UNION ALL SELECT *, 1 FROM behind)"""
_IN_LANE: Final = f"{_KIND} = g.suspect AND o.lane = g.lane AND o.rank = g.rank AND o.lease_until"
_NEXT: Final = f"SELECT o.lease_until {_IN_LANE} > g.now ORDER BY o.lease_until LIMIT 1"
_GROUP: Final = "CASE WHEN g.keyed THEN {} ELSE 0 END"
_HELD: Final = "SELECT count(*) FROM lro_operations h WHERE h.method = g.method AND h.owner <> ''"
_SENT: Final = f"""SELECT count(*) FROM lro_operations h
    WHERE h.method = g.method AND h.{IS_SENT} AND h.lease_until > g.now"""
_BEGUN: Final = f"""FROM (SELECT b.at FROM lro_begins b
    WHERE b.method = g.method AND b.lane = {_GROUP}
        AND b.at > g.now - g.span AND b.at <= g.now + g.span
    ORDER BY b.at DESC LIMIT g.rate) AS b"""


def _room(lane: str) -> str:
    """Return SQL for the number of operations that may begin in a method or lane; NULL: any."""
    return f"""CASE WHEN NOT g.keyed OR {lane} <> {FREE_LANE} THEN least(
        CASE WHEN g.at_once IS NOT NULL THEN g.at_once - CASE
            WHEN NOT g.keyed THEN ({_HELD}) WHEN {lane} = 0 THEN ({_HELD} AND h.lane = 0)
            ELSE ({_HELD} AND h.lane = {lane} AND h.lane <> 0) END END,
        CASE WHEN g.rate IS NOT NULL
            THEN g.rate - (SELECT count(*) {_BEGUN.format(lane)}) END)
        - CASE WHEN NOT g.sends THEN 0
            WHEN g.keyed THEN ({_SENT} AND h.lane = {lane}) ELSE ({_SENT}) END END"""


_STILL_WAITS: Final = "length(o.owner) = 0 AND o.lease_until IS NOT NULL"
"""``WAITS`` in a form that PostgreSQL does not look up in the index of waiting work."""

LANES_DUE: Final = _sql(f"""SELECT * FROM ({_GIVEN_LANES} SELECT g.method,
    (SELECT o.lease_until {_IN_LANE} <= g.now ORDER BY o.lease_until LIMIT 1) IS NOT NULL,
    ({_NEXT}), {_room("g.lane")}, CASE WHEN g.rate IS NOT NULL THEN (
        SELECT min(b.at) + g.span {_BEGUN.format("g.lane")} HAVING count(*) = g.rate) END
    FROM lanes g) AS found""")
"""Finds the lanes with waiting work.

A row has the method of a lane, whether work is due, when more work will be due, and how many
operations may begin. If a rate is reached, the last column is the time at which more work may
begin.
"""

FIRST_WAITING: Final = _sql(f"""{_ASKED} SELECT f.* FROM given g CROSS JOIN LATERAL (
        SELECT o.lease_until, o.lane, o.name {_KIND} = g.suspect
            AND o.id <> ALL (%s::uuid[]) ORDER BY o.lease_until LIMIT 1
    ) AS f ORDER BY f.lease_until LIMIT 1""")

WAITING_METHOD: Final = _sql(
    f"SELECT o.method FROM lro_operations o WHERE o.id = %s::uuid AND {_STILL_WAITS}"
)

LOCK_METHODS: Final = _sql("SELECT pg_advisory_xact_lock(n) FROM unnest(%s::bigint[]) AS n")

_PLAIN: Final = f"""SELECT o.id, g.rank, o.due AS first, 0 AS turn, 0 AS place, o.due, o.name
    FROM lanes g CROSS JOIN LATERAL (
        SELECT o.id, o.lease_until AS due, o.name {_IN_LANE} <= g.now AND o.id <> ALL (%s::uuid[])
            ORDER BY o.lease_until, o.name LIMIT %s
    ) AS o"""
_IN_TURN: Final = f"""SELECT id, rank, CASE WHEN keyed THEN first ELSE due END AS first,
        CASE WHEN keyed THEN turn ELSE 0 END AS turn,
        CASE WHEN keyed THEN place ELSE 0 END AS place, due, name
    FROM (
        SELECT o.*, g.keyed, g.rank, g.room,
            row_number() OVER (ORDER BY g.wrapped, g.place) AS place,
            min(o.due) OVER (PARTITION BY g.method, g.rank) AS first,
            row_number() OVER (
                PARTITION BY g.method, g.rank, g.lane ORDER BY o.due, o.name) AS turn,
            row_number() OVER (PARTITION BY g.method, {_GROUP.format("g.lane")}
                ORDER BY g.rank, o.due, o.name) AS number
        FROM (SELECT *, {_room("g.lane")} AS room FROM lanes g) AS g CROSS JOIN LATERAL (
            SELECT o.id, o.lease_until AS due, o.name
                {_IN_LANE} <= g.now AND o.id <> ALL (%s::uuid[])
                ORDER BY o.lease_until, o.name LIMIT greatest(0, least(g.room, %s))
        ) AS o
    ) AS turns WHERE room IS NULL OR number <= room"""
_MAY_BEGIN: Final = f"(o.lease_until <= (SELECT max(now) FROM given) OR o.{IS_SENT})"
_WANTED: Final = f"""SELECT o.id, o.rank, o.lease_until AS first, 0 AS turn, 0 AS place,
        o.lease_until AS due, o.name
    FROM lro_operations o JOIN given g ON g.method = o.method
    WHERE {_STILL_WAITS} AND {_MAY_BEGIN} AND o.id <> ALL (%s::uuid[]) AND o.id = %s::uuid
        AND coalesce({_room("o.lane")}, 1) > 0"""
_BEGIN: Final = """owner = %s, lease_until = %s, attempt = o.attempt + 1,
    start_time = coalesce(o.start_time, %s), update_time = %s, sent_time = NULL"""
_PUT_OFF: Final = """lease_until = greatest(%s, %s + coalesce(%s - o.sent_time, 0)),
    sent_time = coalesce(o.sent_time, %s)"""
_NOTED: Final = f""", noted AS (
    INSERT INTO lro_begins SELECT t.method, {_GROUP.format("t.lane")}, g.now, g.now + g.span
        FROM taken t JOIN given g ON g.method = t.method AND g.rate IS NOT NULL
)"""
_ORDER: Final = "s.rank, s.first, s.turn, s.place, s.due, s.name"


def _claim(seen: str, changes: str, *, only: bool = False, noted: str = "") -> bytes:
    # Each row has the number of candidates, the next due time, and a claimed record. The number is
    # -1 if no candidates were found but there may be more lanes. If no record was claimed, there is
    # one row without a record.
    seen_of = "(SELECT count(*) FROM seen)"
    if not only:
        more = f"EXISTS (SELECT 1 FROM lanes WHERE place >= {MOST_LANES})"
        seen_of = f"CASE WHEN {more} THEN coalesce(nullif({seen_of}, 0), -1) ELSE {seen_of} END"
    still = _MAY_BEGIN if only else "o.lease_until <= (SELECT max(now) FROM given)"
    next_due = f"SELECT min(n.lease_until) FROM lanes g CROSS JOIN LATERAL ({_NEXT}) AS n"
    return _sql(f"""{_ASKED if only else _GIVEN_LANES}, seen AS MATERIALIZED (
        SELECT *, row_number() OVER (ORDER BY {_ORDER}) AS number FROM ({seen}) AS s
            ORDER BY number LIMIT %s
    ), free AS MATERIALIZED (
        SELECT o.id, s.number FROM (TABLE seen ORDER BY number) AS s CROSS JOIN LATERAL (
            SELECT o.id FROM lro_operations o WHERE o.id = s.id AND {_STILL_WAITS} AND {still}
                FOR NO KEY UPDATE SKIP LOCKED
        ) AS o LIMIT %s
    ), taken AS (
        UPDATE lro_operations o SET {changes}, version = o.version + 1 FROM free f WHERE o.id = f.id
            RETURNING o.id, f.number, {_ROW}
    ){noted}
    SELECT {seen_of}, ({"NULL" if only else next_due}), i.request, {_ROW}
        FROM (VALUES (1)) AS one LEFT JOIN (taken o JOIN lro_inputs i ON i.id = o.id) ON true
        ORDER BY o.number""")


CLAIM: Final = _claim(_PLAIN, _BEGIN)
CLAIM_IN_TURN: Final = _claim(_IN_TURN, _BEGIN, noted=_NOTED)
CLAIM_ONLY: Final = _claim(_WANTED, _BEGIN, only=True, noted=_NOTED)
PUT_OFF: Final = _claim(_PLAIN, _PUT_OFF)
PUT_OFF_IN_TURN: Final = _claim(_IN_TURN, _PUT_OFF)
PUT_OFF_ONLY: Final = _claim(_WANTED, _PUT_OFF, only=True)

CLAIMED: Final = _sql(f"""SELECT 0, NULL, i.request, {_ROW}
    FROM {_METHODS} CROSS JOIN LATERAL (
        SELECT o.* {_LEASED} = %s AND o.owner = %s AND o.update_time = %s
    ) AS o JOIN lro_inputs i ON i.id = o.id ORDER BY o.create_time, o.name""")
"""Finds the records of a claim whose reply was lost, by lease, owner and time."""

_SWEPT: Final = f"expire_time IS NOT NULL AND {SWEEP_TIME} <= %s"
EXPIRE: Final = _sql(f"""WITH due AS MATERIALIZED (
    SELECT id FROM lro_operations WHERE {_SWEPT} ORDER BY {SWEEP_TIME} LIMIT %s
        FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM lro_operations o USING due WHERE o.id = due.id RETURNING o.id, o.name, o.method
), freed AS (
    DELETE FROM lro_inputs i USING removed r WHERE i.id = r.id
)
SELECT name, method FROM removed""")

EXPIRE_STARTS: Final = _sql("""WITH due AS MATERIALIZED (
    SELECT id FROM lro_starts WHERE at <= %s ORDER BY at LIMIT %s FOR UPDATE SKIP LOCKED
)
DELETE FROM lro_starts s USING due WHERE s.id = due.id RETURNING 1""")

LEFT: Final = _sql(f"""SELECT EXISTS (SELECT 1 FROM lro_operations WHERE {_SWEPT})
    OR EXISTS (SELECT 1 FROM lro_starts WHERE at <= %s)""")

CLAIM_DUE: Final = _sql(f"""WITH due AS MATERIALIZED (
    SELECT id, notify_at AS since FROM lro_operations WHERE notify_at <= %s
        ORDER BY notify_at LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE lro_operations o SET notify_at = %s, version = o.version + 1 FROM due d WHERE o.id = d.id
        RETURNING d.since, {_ROW}
) SELECT {_ROW} FROM claimed o ORDER BY since""")

NOTIFY: Final = _sql("SELECT pg_notify(%s, p) FROM json_array_elements_text(%s::json) AS p")


# All processes lock in one order, so that they cannot deadlock.
ADD_COUNTS: Final = _sql("""INSERT INTO lro_minutes AS m (step, minute, method, counts)
    SELECT step::integer, minute::bigint, method, counts
        FROM jsonb_each(%s::jsonb) AS given(method, counts),
            jsonb_each_text(%s::jsonb) AS steps(step, minute) ORDER BY 1, 2, 3
    ON CONFLICT (step, minute, method) DO UPDATE SET counts = (
        SELECT jsonb_object_agg(key, total) FROM (
            SELECT key, sum(value::numeric) AS total FROM (
                SELECT * FROM jsonb_each_text(m.counts)
                UNION ALL SELECT * FROM jsonb_each_text(excluded.counts)
            ) AS both_counts GROUP BY key
        ) AS sums
    ) RETURNING 1""")

PRUNE: Final = _sql(f"""WITH old AS MATERIALIZED (
    SELECT step, minute, method FROM lro_minutes
        WHERE step = ANY (ARRAY{[*STEP_MINUTES]}) AND minute < %s LIMIT {PRUNED_ROWS}
        FOR UPDATE SKIP LOCKED
)
DELETE FROM lro_minutes m USING old WHERE (m.step, m.minute, m.method)
    = (old.step, old.minute, old.method) RETURNING 1""")

LOAD: Final = _sql(f"""SELECT method, owner, {WAITS} AS waits,
        count(*) FILTER (WHERE place <= %s), count(*) FILTER (WHERE place > %s),
        min(create_time), (array_agg(name ORDER BY create_time, name))[1]
    FROM (SELECT *, row_number() OVER () AS place FROM (
        SELECT o.* FROM unnest(%s::uuid[]) AS p(id) CROSS JOIN LATERAL (
            SELECT method, owner, lease_until, create_time, name FROM lro_operations
                WHERE (parent_id::text || '/' || state) = (p.id::text || '/IN_PROGRESS')
                ORDER BY create_time LIMIT %s
        ) AS o LIMIT %s
    ) AS looked_at) AS placed GROUP BY 1, 2, 3""")
