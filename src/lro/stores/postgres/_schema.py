"""The tables, in a schema of their own; made, and brought up to date, by whoever comes first."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Final

import psycopg

from lro._base.arguments import check
from lro._base.errors import DeclarationError
from lro._model.page_tokens import KEY_BYTES
from lro.stores._rows import COLUMNS
from lro.stores.postgres._link import BoundedConnection, unavailable

MIGRATION_SECONDS: Final = 3600.0
"""How long a migration may take, or wait for that of another process."""

OLDEST_SERVER: Final = 13_00_00
"""The oldest version of PostgreSQL whose planner sorts within an order (incremental sort)."""

_TYPES: Final = {
    **dict.fromkeys(("create_time", "update_time"), "BIGINT NOT NULL"),
    **dict.fromkeys(("start_time", "end_time", "expire_time", "lease_until"), "BIGINT"),
    **dict.fromkeys(("attempt", "lost_attempts", "version", "cancel_requested"), "BIGINT NOT NULL"),
    **dict.fromkeys(("metadata", "result"), "TEXT"),
}
_TEXT: Final = 'TEXT COLLATE "C" NOT NULL'
_FIRST: Final = tuple(name for name in COLUMNS if name != "keys")
_DECLARED: Final = ", ".join(f"{name} {_TYPES.get(name, _TEXT)}" for name in _FIRST)
# Names, targets and callers may be longer than what an index can hold (2.7 kB), so that hashes
# stand for them: see _writes.digest. JSON is text, because jsonb cannot hold the character U+0000.
_VERSION_1: Final = f"""
CREATE TABLE operations (id UUID PRIMARY KEY, parent_id UUID NOT NULL, target_id UUID, {_DECLARED})
    WITH (fillfactor = 80);
CREATE INDEX operations_order ON operations (parent_id, create_time DESC);
CREATE INDEX operations_leases ON operations (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX operations_expiry ON operations (expire_time) WHERE expire_time IS NOT NULL;
CREATE UNIQUE INDEX operations_targets ON operations (target_id)
    WHERE target_id IS NOT NULL AND state IN ('IN_PROGRESS', 'HIDDEN');
CREATE TABLE inputs (id UUID PRIMARY KEY, request TEXT NOT NULL);
CREATE TABLE starts (id UUID PRIMARY KEY, operation UUID NOT NULL, fingerprint TEXT NOT NULL,
    at BIGINT NOT NULL, first TEXT NOT NULL);
CREATE INDEX starts_age ON starts (at);
CREATE INDEX starts_operation ON starts (operation);
CREATE TABLE secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BYTEA NOT NULL);
CREATE TABLE versions (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)
"""

# Lists find records by their state, and by what is declared to be worth an index.
_VERSION_2: Final = """
ALTER TABLE operations ADD COLUMN keys TEXT COLLATE "C";
UPDATE operations SET end_time = create_time WHERE end_time < create_time;
CREATE INDEX operations_by_state ON operations
    ((parent_id::text || '/' || state), create_time DESC)
"""

MIGRATIONS: list[str] = [_VERSION_1, _VERSION_2]
"""What leads from each version to the next one; an empty schema has version 0."""

SCHEMA_VERSION: Final = 2

_TRY_LOCK: Final = "SELECT pg_try_advisory_lock(%s)"
_LOCK_SECONDS: Final = 0.1

_LONGEST: Final = 60  # PostgreSQL cuts names off after 63 bytes; the channel's is the longer


def channel_of(schema: str) -> str:
    """The channel on which the stores on this schema announce changes."""
    return f"{schema}.c"


def check_name(schema: str) -> None:
    """Refuse what can be no schema's name.

    Raises:
        DeclarationError: It is empty, too long, or reserved by PostgreSQL.
    """
    wanted = f"a text of 1 to {_LONGEST} bytes that can be printed and does not begin with pg_"
    fine = (
        isinstance(schema, str)
        and 0 < len(schema.encode("utf-8", "replace")) <= _LONGEST
        and schema.isprintable()
        and not schema.startswith("pg_")
    )
    check("schema", schema, wanted, fine=fine)


def prepare(link: BoundedConnection, schema: str) -> bytes:
    """Make or migrate the tables where that is needed; the secret of the store.

    Raises:
        Unavailable: The database does not do it now.
        DeclarationError: The schema was made by a newer version of this library, or the server or
            its encoding does not do.
    """
    try:
        _check_server(link)
        if _version(link, schema) != len(MIGRATIONS):
            _migrate(link, schema)
        return _secret(link)
    except psycopg.Error as exc:
        raise unavailable(exc) from exc


def _check_server(link: BoundedConnection) -> None:
    if link.info.server_version < OLDEST_SERVER:
        text = f"version {OLDEST_SERVER // 10000} is needed, found {link.info.server_version}"
        raise DeclarationError("PostgreSQL", text)
    encoding = link.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DeclarationError("PostgreSQL", f"the database must be in UTF8, it is in {encoding}")


def _version(link: BoundedConnection, schema: str) -> int:
    if not link.execute("SELECT to_regclass('versions') IS NOT NULL").fetchall()[0][0]:
        return 0
    rows = link.execute("SELECT version FROM versions").fetchall()
    version = int(rows[0][0]) if rows else 0
    if version > len(MIGRATIONS):
        text = f"has version {version}; this library knows {len(MIGRATIONS)}"
        raise DeclarationError(f"schema {schema}", text)
    return version


def _migrate(link: BoundedConnection, schema: str) -> None:
    patience = link.patience
    link.patience = MIGRATION_SECONDS
    try:
        # Of several processes one does it; the others find it done when the lock is theirs.
        lock_out(link, schema)
        with link.transaction():
            link.execute("SET LOCAL statement_timeout = 0")
            link.execute("SET LOCAL lock_timeout = 0")
            known = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
            if not link.execute(known, (schema,)).fetchall():  # else it may not even be allowed
                link.execute(f'CREATE SCHEMA "{schema.replace(chr(34), chr(34) * 2)}"'.encode())
            for step in MIGRATIONS[_version(link, schema) :]:
                link.execute(step.encode(), prepare=False)
            link.execute(
                "INSERT INTO versions VALUES (1, %s)"
                " ON CONFLICT (id) DO UPDATE SET version = excluded.version",
                (len(MIGRATIONS),),
            )
    finally:
        link.patience = patience


def lock_out(link: BoundedConnection, schema: str) -> None:
    """Be the only one who changes the tables, until this connection is closed."""
    # Nobody waits for it within a statement: who makes an index waits for all that are under way.
    while not link.execute(_TRY_LOCK, (_lock_number(schema),)).fetchall()[0][0]:
        time.sleep(_LOCK_SECONDS)


def _secret(link: BoundedConnection) -> bytes:
    query = "SELECT key FROM secrets"
    known = link.execute(query).fetchall()
    if not known:
        fresh = secrets.token_bytes(KEY_BYTES)
        link.execute("INSERT INTO secrets VALUES (1, %s) ON CONFLICT DO NOTHING", (fresh,))
        known = link.execute(query).fetchall()
    return bytes(known[0][0])


def _lock_number(schema: str) -> int:
    digest = hashlib.blake2b(b"lro schema " + schema.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
