"""The tables and indexes, in their own schema; the first process makes them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Collection
from typing import Final

import psycopg

from lro._base.arguments import check
from lro._base.errors import DeclarationError, Unavailable
from lro._model.page_tokens import KEY_BYTES
from lro.stores._counting import WAITS
from lro.stores._rows import COLUMNS, SWEEP_TIME, added_columns
from lro.stores._sql_store import SCHEDULE_COLUMNS
from lro.stores._turns import IS_SENT, IS_SUSPECT, UNBEGUN
from lro.stores._workers import COLUMNS as WORKER_COLUMNS
from lro.stores.postgres._connections import (
    REST_SECONDS,
    BoundedConnection,
    ServerAddress,
    ServerClock,
    quoted,
    unavailable,
)
from lro.stores.postgres._pages import index_columns, index_name

SETUP_SECONDS: Final = 3600.0
"""Time limit, in seconds, for making the tables or an index, in this or another process."""

OLDEST_SERVER: Final = 13_00_00
"""The oldest supported version of PostgreSQL: the first with incremental sort."""

_TYPES: Final = {
    **dict.fromkeys(("create_time", "update_time"), "BIGINT NOT NULL"),
    **dict.fromkeys(
        ("start_time", "end_time", "expire_time", "cancel_time", "lease_until", "notify_at"),
        "BIGINT",
    ),
    **dict.fromkeys(("attempt", "lost_attempts", "version", "cancel_requested"), "BIGINT NOT NULL"),
    **dict.fromkeys(("metadata", "result"), "TEXT"),
    "keys": 'TEXT COLLATE "C"',
    **(_ADDED := added_columns("BIGINT", 'TEXT COLLATE "C"')),
}
_ADD_COLUMNS: Final = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in _ADDED.items())
_TEXT: Final = 'TEXT COLLATE "C" NOT NULL'
_DECLARED: Final = ", ".join(f"{name} {_TYPES.get(name, _TEXT)}" for name in COLUMNS)

SCHEMA_VERSION: Final = 2
"""The version that this library makes and uses, stored in the table ``lro_versions``."""

_WORK: Final = f"""
CREATE INDEX lro_operations_waiting ON lro_operations
    (method, ({IS_SUSPECT}), lane, rank, lease_until) WHERE {WAITS};
CREATE INDEX lro_operations_running ON lro_operations (method, owner, lease_until)
    WHERE owner <> '';
CREATE INDEX lro_operations_lanes ON lro_operations (method, lane) WHERE owner <> '' AND lane <> 0;
CREATE INDEX lro_operations_unbegun ON lro_operations (begin_before) WHERE {UNBEGUN};
CREATE INDEX lro_operations_sent ON lro_operations (method, lane, lease_until) WHERE {IS_SENT};
CREATE TABLE lro_begins (method {_TEXT}, lane BIGINT NOT NULL, at BIGINT NOT NULL,
    until BIGINT NOT NULL);
CREATE INDEX lro_begins_latest ON lro_begins (method, lane, at);
CREATE INDEX lro_begins_over ON lro_begins (until);
CREATE TABLE lro_paused (method {_TEXT} PRIMARY KEY, since BIGINT NOT NULL);
CREATE TABLE lro_workers (owner {_TEXT} PRIMARY KEY, host {_TEXT}, pid BIGINT NOT NULL,
    version {_TEXT}, methods TEXT NOT NULL, capacity BIGINT, start_time BIGINT NOT NULL,
    seen_time BIGINT NOT NULL, alive_until BIGINT NOT NULL, lost INTEGER NOT NULL);
CREATE TABLE lro_schedules (name {_TEXT} PRIMARY KEY, version BIGINT NOT NULL,
    schedule TEXT NOT NULL);
CREATE TABLE lro_checkpoints (id UUID, key {_TEXT}, value TEXT NOT NULL, PRIMARY KEY (id, key));
CREATE FUNCTION lro_forget_checkpoints() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT
    AS 'BEGIN DELETE FROM lro_checkpoints WHERE id = old.id; RETURN NULL; END';
CREATE TRIGGER lro_checkpoints_ended AFTER UPDATE OF state ON lro_operations FOR EACH ROW
    WHEN (old.has_checkpoints AND new.state NOT IN ('IN_PROGRESS', 'HIDDEN'))
    EXECUTE FUNCTION lro_forget_checkpoints();
CREATE TRIGGER lro_checkpoints_removed AFTER DELETE ON lro_operations FOR EACH ROW
    WHEN (old.has_checkpoints) EXECUTE FUNCTION lro_forget_checkpoints();"""
# Triggers remove checkpoints, because the statement that ends an operation would not see a
# checkpoint that is stored while the statement waits for its lock. If an operation has no
# checkpoints, its trigger costs only a test of the operation's row.
_MARK: Final = "has_checkpoints BOOLEAN NOT NULL DEFAULT false"

# Names, targets and callers may exceed the size limit of an index (2.7 kB), so hashes are indexed
# in their place: see _statements.digest. JSON is text, because jsonb cannot have U+0000.
_TABLES: Final = f"""
CREATE TABLE lro_operations (id UUID PRIMARY KEY, parent_id UUID NOT NULL, target_id UUID,
    {_DECLARED}, {_MARK})
    WITH (fillfactor = 80);
CREATE INDEX lro_operations_order ON lro_operations (parent_id, create_time DESC);
CREATE INDEX lro_operations_by_state ON lro_operations {index_columns("state")};{_WORK}
CREATE INDEX lro_operations_expiry ON lro_operations ({SWEEP_TIME}) WHERE expire_time IS NOT NULL;
CREATE INDEX lro_operations_debts ON lro_operations (notify_at) WHERE notify_at IS NOT NULL;
CREATE UNIQUE INDEX lro_operations_targets ON lro_operations (target_id)
    WHERE target_id IS NOT NULL AND state IN ('IN_PROGRESS', 'HIDDEN');
CREATE TABLE lro_inputs (id UUID PRIMARY KEY, request TEXT NOT NULL);
CREATE TABLE lro_starts (id UUID PRIMARY KEY, operation UUID NOT NULL, fingerprint TEXT NOT NULL,
    at BIGINT NOT NULL, first TEXT NOT NULL);
CREATE INDEX lro_starts_age ON lro_starts (at);
CREATE TABLE lro_minutes (step INTEGER, minute BIGINT, method {_TEXT}, counts JSONB NOT NULL,
    PRIMARY KEY (step, minute, method));
CREATE TABLE lro_secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BYTEA NOT NULL);
CREATE TABLE lro_versions (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
INSERT INTO lro_versions VALUES (1, {SCHEMA_VERSION})
"""
_RENAMED: Final = ("operations", "inputs", "starts", "minutes", "secrets", "versions")
"""The tables of version 1 that version 2 has under a name with the prefix."""

_UPGRADE: Final = f"""
DROP INDEX IF EXISTS operations_leases;
DROP INDEX IF EXISTS starts_operation;
DROP TABLE totals;
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid IN ({", ".join(f"'{name}'::regclass" for name in _RENAMED)})
    LOOP EXECUTE format('ALTER INDEX %I RENAME TO %I', name, 'lro_' || name); END LOOP;
END $$;
{" ".join(f"ALTER TABLE {name} RENAME TO lro_{name};" for name in _RENAMED)}
ALTER TABLE lro_operations {_ADD_COLUMNS}, ADD COLUMN {_MARK};{_WORK}
UPDATE lro_versions SET version = {SCHEMA_VERSION}
"""
"""Upgrade from version 1 to 2. It drops indexes first, because that takes the strongest locks."""

_KNOWN_COLUMNS: Final = (
    *("versions.version", "operations.lease_until", "inputs.request", "starts.fingerprint"),
    *("minutes.counts", "secrets.key"),
)
"""Columns of version 1: an application may have a table ``versions`` too, but not all of these."""

_VERSIONS_TABLE: Final = f"""SELECT CASE
    WHEN to_regclass('lro_versions') IS NOT NULL THEN 'lro_versions'
    WHEN (SELECT count(*) FROM pg_attribute a
        WHERE ({
    " OR ".join(
        f"a.attrelid = to_regclass('{table}') AND a.attname = '{column}'"
        for table, column in (one.split(".") for one in _KNOWN_COLUMNS)
    )
})) = {len(_KNOWN_COLUMNS)} THEN 'versions' END"""
"""Finds the table that has the version: NULL if the schema has no tables of this library."""

_CHECK_COLUMNS: Final = (
    f"SELECT {', '.join(COLUMNS)} FROM lro_operations LIMIT 0",
    f"SELECT {', '.join(WORKER_COLUMNS)} FROM lro_workers LIMIT 0",
    "SELECT method, lane, at, until FROM lro_begins LIMIT 0",
    f"SELECT {SCHEDULE_COLUMNS} FROM lro_schedules LIMIT 0",
    "SELECT id, key, value FROM lro_checkpoints LIMIT 0",
    "SELECT method, since FROM lro_paused LIMIT 0",
    "SELECT step, minute, method, counts FROM lro_minutes LIMIT 0",
)

_CHECKS_CLIENTS: Final = 14_00_00
"""The oldest version of PostgreSQL that can notice a lost client during a statement."""

_TRY_LOCK: Final = "SELECT pg_try_advisory_lock(%s)"
_LOCK_SECONDS: Final = 0.1

_LONGEST: Final = 60  # PostgreSQL cuts names off after 63 bytes; the channel's name is longest


def channel_of(schema: str) -> str:
    """Return the channel on which the stores on this schema announce changes."""
    return f"{schema}.c"


def check_name(schema: str) -> None:
    """Refuse a text that is not a valid schema name.

    Raises:
        DeclarationError: The name is empty, too long, or reserved by PostgreSQL.
    """
    wanted = f"a text of 1 to {_LONGEST} bytes that can be printed and does not begin with pg_"
    fine = (
        isinstance(schema, str)
        and 0 < len(schema.encode("utf-8", "replace")) <= _LONGEST
        and schema.isprintable()
        and not schema.startswith("pg_")
    )
    check("schema", schema, wanted, fine=fine)


def prepare(connection: BoundedConnection, schema: str) -> bytes:
    """Make the store's tables if the schema has none; otherwise upgrade and check them.

    Returns:
        The secret of the store.

    Raises:
        Unavailable: The database cannot do this now.
        DeclarationError: The schema has another version or other tables, or the server's version or
            encoding is not supported.
    """
    try:
        _check_server(connection)
        if read_version(connection) in (0, 1):
            _make_tables(connection, schema)
        version = read_version(connection)
        if version != SCHEMA_VERSION:
            text = f"has version {version}; this library can only use version {SCHEMA_VERSION}"
            raise DeclarationError(f"schema {schema}", text)
        for statement in _CHECK_COLUMNS:
            connection.execute(statement.encode(), prepare=False)
        return _secret(connection)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as exc:
        text = f"has tables that do not match its schema version ({exc.diag.message_primary})"
        raise DeclarationError(f"schema {schema}", f"{text}: it is not of this library") from exc
    except psycopg.Error as exc:
        raise unavailable(exc) from exc


def _check_server(connection: BoundedConnection) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        text = f"version {OLDEST_SERVER // 10000} is needed, found {connection.info.server_version}"
        raise DeclarationError("PostgreSQL", text)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DeclarationError("PostgreSQL", f"the database must be in UTF8, it is in {encoding}")


def read_version(connection: BoundedConnection) -> int:
    """Return the version of the existing tables; 0 if there are none."""
    try:
        return _version(connection)
    except psycopg.errors.UndefinedTable:  # another process has just renamed the table
        return _version(connection)


def _version(connection: BoundedConnection) -> int:
    ((table,),) = connection.execute(_VERSIONS_TABLE).fetchall()
    if table is None:
        return 0
    rows = connection.execute(f"SELECT version FROM {table}".encode()).fetchall()
    return int(rows[0][0]) if rows else 0


def _make_tables(connection: BoundedConnection, schema: str) -> None:
    """Make or upgrade all tables in one transaction, unless another process has done so."""
    patience = connection.patience
    connection.patience = SETUP_SECONDS
    try:
        lock_out(connection, schema)
        with connection.transaction():
            version = read_version(connection)
            connection.execute("SET LOCAL statement_timeout = 0")
            # Keep the time limit for locks: an upgrade that waits for a lock blocks other
            # statements.
            if version == 1:
                _upgrade(connection, schema)
            if version != 0:
                return
            connection.execute("SET LOCAL lock_timeout = 0")
            known = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
            # Ask first: CREATE ... IF NOT EXISTS may be refused even if the schema exists.
            if not connection.execute(known, (schema,)).fetchall():
                connection.execute(f"CREATE SCHEMA {quoted(schema)}".encode())
            connection.execute(f"SET LOCAL search_path TO {quoted(schema)}".encode())
            connection.execute(_TABLES.encode(), prepare=False)
    finally:
        connection.patience = patience


def _upgrade(connection: BoundedConnection, schema: str) -> None:
    try:
        connection.execute(_UPGRADE.encode(), prepare=False)
    except psycopg.errors.InsufficientPrivilege as exc:
        statements = f"SET search_path TO {quoted(schema)}; {' '.join(_UPGRADE.split())}"
        text = f"has version 1, and only its owner can upgrade it, by: BEGIN; {statements}; COMMIT"
        raise DeclarationError(f"schema {schema}", text) from exc


def lock_out(connection: BoundedConnection, schema: str) -> None:
    """Take the lock that allows changes of the tables; keep it until this connection is closed."""
    # Poll: a statement that waited for the lock would block a process that makes an index.
    while not connection.execute(_TRY_LOCK, (_lock_number(schema),)).fetchall()[0][0]:
        if connection.patience == _GIVEN_UP:
            raise Unavailable("the store is closed")
        time.sleep(_LOCK_SECONDS)


def _secret(connection: BoundedConnection) -> bytes:
    query = "SELECT key FROM lro_secrets"
    known = connection.execute(query).fetchall()
    if not known:
        fresh = secrets.token_bytes(KEY_BYTES)
        connection.execute(
            "INSERT INTO lro_secrets VALUES (1, %s) ON CONFLICT DO NOTHING", (fresh,)
        )
        known = connection.execute(query).fetchall()
    return bytes(known[0][0])


def _lock_number(schema: str) -> int:
    digest = hashlib.blake2b(b"lro schema " + schema.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


log = logging.getLogger("lro")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
"""The most seconds between two attempts to make an index."""
_JOIN_SECONDS: Final = 1.0
_GIVEN_UP: Final = 0.0
"""Seconds that an abandoned connection waits for a reply."""


def make_index(connection: BoundedConnection, schema: str, key: str) -> bool:
    """Make the index by a key if it is missing; other connections can write meanwhile.

    Returns:
        True if the index exists now; False if only the table's owner may make it.

    Raises:
        Unavailable: The database cannot do this now.
    """
    name = index_name(key)
    table = f"{quoted(schema)}.lro_operations"  # qualified, so that the log's readers can copy it
    text = f"CREATE INDEX CONCURRENTLY {name} ON {table} {index_columns(key)}"
    try:
        if _is_valid(connection, name):
            return True
        log.info("the index %s is made in schema %s, which may take long", name, schema)
        connection.patience = SETUP_SECONDS
        settings = {"statement_timeout": "0", "lock_timeout": "0"}
        if connection.info.server_version >= _CHECKS_CLIENTS:
            # The server stops the statement if this process has ended.
            settings["client_connection_check_interval"] = "10s"
        for setting in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", setting)
        lock_out(connection, schema)
        if not _is_valid(connection, name):
            # PostgreSQL never uses an index that a process did not finish, but its name is in use.
            connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode(), prepare=False)
            connection.execute(text.encode(), prepare=False)
    except psycopg.errors.InsufficientPrivilege:
        log.warning("lists are slow until the owner of schema %s executes: %s", schema, text)
        return False
    except psycopg.Error as exc:
        raise unavailable(exc) from exc
    return True


def _is_valid(connection: BoundedConnection, index: str) -> bool:
    text = """SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = %s AND n.nspname = current_schema()"""
    rows = connection.execute(text, (index,)).fetchall()
    return bool(rows and rows[0][0])


class SchemaSetup:
    """Prepares the schema when a process first needs it.

    A separate thread makes the declared indexes, because making an index may have to wait for the
    oldest transaction of the database. Until then, lists do not use the indexes. If many threads
    call at once, one thread prepares the schema while the other threads wait. After a failure, all
    calls fail at once for a short time. Then one thread tries again, and until it succeeds, the
    calls of other threads fail at once.
    """

    def __init__(self, address: ServerAddress, clock: ServerClock) -> None:
        self._address = address
        self._clock = clock
        self._tried: frozenset[str] = frozenset()
        self.secret: bytes | None = None
        """The key of page tokens; None until the tables exist."""
        self.keys: frozenset[str] = frozenset()
        """The keys for which the schema has indexes."""
        self.done = False
        self.declared: frozenset[str] = frozenset()
        """The keys for which methods have declared indexes."""
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Replace the locks: a thread of the parent may have held them."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._noting = threading.Lock()
        self._failure = Unavailable("the operations database is still being made ready")
        self._failed = False
        self._not_before = 0.0
        self._maker: threading.Thread | None = None
        self._making: BoundedConnection | None = None
        # The thread that makes indexes does not exist in the child, which may have to start it.
        self.done = self.done and not self.declared - self._tried

    def forget(self) -> None:
        """Let the next call prepare the schema again, because the tables are gone."""
        with self._noting:
            self.done, self.secret = False, None
            self._tried = self.keys = frozenset()

    def close(self) -> None:
        """End the thread that makes indexes; a later process makes the missing indexes."""
        self._closing.set()
        maker, until = self._maker, time.monotonic() + _JOIN_SECONDS
        # Cancel repeatedly: a cancel between two statements has no effect.
        while maker is not None and maker.is_alive() and time.monotonic() < until:
            if (making := self._making) is not None:
                making.patience = _GIVEN_UP
                with contextlib.suppress(psycopg.Error):
                    making.cancel()
            maker.join(_LOCK_SECONDS)

    def want(self, keys: Collection[str]) -> None:
        """Have a thread make the indexes by these keys, now or as soon as the tables exist."""
        with self._noting:
            self.declared |= frozenset(keys)
            done = self.done
        if done:
            self._start_maker()

    def __call__(self) -> None:
        """Prepare the schema, unless that is done.

        Raises:
            psycopg.Error: The server cannot be reached.
            Unavailable: The server was just unreachable, or the server or the schema is unusable.
        """
        if self.done:
            return
        if not self._lock.acquire(timeout=0 if self._failed else self._address.connect_seconds):
            raise self._not_ready()
        try:
            if time.monotonic() < self._not_before:
                raise self._not_ready()
            self._make_ready()
        finally:
            self._lock.release()

    def _make_ready(self) -> None:
        try:
            if (secret := self.secret) is None:
                with self._address.connect(self._clock) as connection:
                    secret = prepare(connection, self._address.schema)
            with self._noting:  # set the secret again: forget() may have been called meanwhile
                self.secret, self.done = secret, True
            self._start_maker()
        except (psycopg.Error, Unavailable, DeclarationError) as exc:
            self._failed, self._not_before = True, time.monotonic() + REST_SECONDS
            self._failure = exc if isinstance(exc, Unavailable) else unavailable(exc)
            if isinstance(exc, DeclarationError):
                self._failure = Unavailable(f"the operations database cannot be used: {exc}")
                raise self._failure from exc
            raise

    def _start_maker(self) -> None:
        with self._noting:  # a thread that has no more work also ends under this lock
            if self._maker is not None or not self.declared - self._tried:
                return
            maker = threading.Thread(target=self._make_in_turn, name="lro-indexes", daemon=True)
            try:
                maker.start()
            except RuntimeError as exc:  # raised if the process has too many threads
                line = "the indexes of schema %s are not made: %s"
                log.warning(line, self._address.schema, exc)
            else:
                self._maker = maker

    def _make_in_turn(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closing.is_set() and (missing := self._missing()):
            try:
                with self._address.connect(self._clock) as connection:
                    self._making = connection
                    if self._closing.is_set():
                        return
                    self.make_index(connection, min(missing))
                pause = _FIRST_PAUSE
            except (psycopg.Error, Unavailable) as exc:
                if not self._closing.is_set():
                    line = "the indexes of schema %s are not made yet: %s"
                    log.warning(line, self._address.schema, exc)
                self._closing.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            finally:
                self._making = None

    def _missing(self) -> frozenset[str]:
        """Return the keys whose indexes are missing; if there are none, the thread must end."""
        with self._noting:
            missing = self.declared - self._tried
            if not missing:
                self._maker = None
            return missing

    def finish(self) -> None:
        """Make the declared indexes, and wait until they exist.

        Raises:
            psycopg.Error: The server cannot be reached.
            Unavailable: The server cannot make them now, or lets only the tables' owner make them.
        """
        for key in sorted(self.declared - self.keys):
            with self._address.connect(self._clock) as connection:
                self.make_index(connection, key)
        if missing := self.declared - self.keys:
            keys = ", ".join(sorted(missing))
            schema = self._address.schema
            raise Unavailable(f"only the owner of schema {schema} may make its indexes by {keys}")

    def make_index(self, connection: BoundedConnection, key: str) -> None:
        """Call :func:`make_index`; add the key to ``keys`` if the index exists afterwards."""
        if make_index(connection, self._address.schema, key):
            self.keys |= {key}
        self._tried |= {key}

    def _not_ready(self) -> Unavailable:
        error = Unavailable(*self._failure.args)
        error.__cause__ = self._failure.__cause__
        return error


def schema_sql(schema: str, keys: Collection[str]) -> str:
    """Return the statements that make the schema, its tables, and the indexes by these keys."""
    name = quoted(schema)
    indexes = [
        f"CREATE INDEX {index_name(key)} ON lro_operations {index_columns(key)};\n"
        for key in sorted(keys)
    ]
    return (
        f"BEGIN;\nCREATE SCHEMA IF NOT EXISTS {name};\nSET LOCAL search_path TO {name};"
        f"{_TABLES.rstrip()};\n{''.join(indexes)}COMMIT;\n"
    )
