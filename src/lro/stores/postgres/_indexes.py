"""Indexes that methods declare, made while others write."""

from __future__ import annotations

import logging

import psycopg

from lro.stores.postgres._link import BoundedConnection, unavailable
from lro.stores.postgres._pages import index_columns, index_name
from lro.stores.postgres._schema import MIGRATION_SECONDS, lock_out

log = logging.getLogger("lro")


def make_index(link: BoundedConnection, schema: str, key: str) -> bool:
    """Make the index by a key, unless there is one, while others go on writing.

    Returns:
        Whether there is one now: a user who does not own the table may not make it.

    Raises:
        Unavailable: The database does not do it now.
    """
    name = index_name(key)
    text = f"CREATE INDEX CONCURRENTLY {name} ON operations {index_columns(key)}"
    try:
        if _is_valid(link, name):
            return True
        log.info("the index %s is made in schema %s, which may take long", name, schema)
        link.patience = MIGRATION_SECONDS
        for setting in ("statement_timeout", "lock_timeout"):
            link.execute("SELECT set_config(%s, '0', false)", (setting,))
        lock_out(link, schema)
        if not _is_valid(link, name):
            # What somebody did not finish is of no use, and in the way.
            link.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode(), prepare=False)
            link.execute(text.encode(), prepare=False)
    except psycopg.errors.InsufficientPrivilege:
        log.warning("lists are slow until the owner of schema %s says: %s", schema, text)
        return False
    except psycopg.Error as exc:
        raise unavailable(exc) from exc
    return True


def _is_valid(link: BoundedConnection, index: str) -> bool:
    text = """SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = %s AND n.nspname = current_schema()"""
    rows = link.execute(text, (index,)).fetchall()
    return bool(rows and rows[0][0])
