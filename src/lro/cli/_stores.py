"""Check that the store of a command can be used, and manage its tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from lro.adapters import Store
from lro.cli._commands import read_service
from lro.cli._output import Unusable
from lro.errors import DeclarationError, InvalidArgument, MissingExtra, Unavailable
from lro.stores import sqlite

if TYPE_CHECKING:
    from lro import Service
    from lro.stores.postgres import PostgresStore

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")

PROBE: Final = ("operations/readyz",)
"""The name of an operation that is read to check a store; the operation need not exist."""


def check_store(store: Store) -> str:
    """Read from a store, which makes it connect and create missing tables.

    Returns:
        The reason why the store cannot be used now; empty if it can be used.

    Raises:
        Unusable: The store can never be used as it is configured.
    """
    try:
        store.find(PROBE)
    except Unavailable as exc:
        if isinstance(exc.__cause__, DeclarationError):
            raise Unusable(str(exc)) from exc
        return _reason(exc)
    return ""


def read_shared(target: str) -> Service:
    """Import the service of ``module:service``; check that other processes can read its store.

    Raises:
        InvalidArgument: There is no such service, or only its own process can read its store.
        Unusable: The store cannot be read now.
    """
    service = read_service(target)
    if not service.store.shared:
        kind = type(service.store).__name__
        raise InvalidArgument(target, f"has a {kind}, which only its own process can read")
    if why := check_store(service.store):
        raise Unusable(why)
    return service


def _reason(error: Unavailable) -> str:
    # Only operators read this reason, so it may name the cause.
    why = str(error.__cause__ or "").strip().partition("\n")[0]
    return str(error) if why in str(error) else f"{error}: {why}"


@attrs.frozen(kw_only=True)
class StoreSchema:
    """The tables of a store: their place, their version in this release, and how to create them."""

    where: str
    wanted: int
    read_version: Callable[[], int]
    create: Callable[[], None]
    """A function that creates missing tables, or raises Unusable."""
    sql: Callable[[], str]
    """A function that returns the SQL that creates the tables."""

    def version(self) -> int:
        """Read the version of the tables; 0 if there are none.

        Raises:
            Unusable: The store cannot be read.
        """
        try:
            return self.read_version()
        except Unavailable as exc:
            raise Unusable(_reason(exc)) from exc
        except DeclarationError as exc:
            raise Unusable(str(exc)) from exc


def read_schema(source: str, name: str) -> StoreSchema:
    """Return the tables of ``module:service`` or of a URL; ``name`` is the schema in PostgreSQL.

    Raises:
        InvalidArgument: There is no such service, or its store keeps no tables.
        MissingExtra: PostgreSQL needs the extra ``postgres``.
    """
    if source.startswith(_SQLITE):
        return _of_file(source.removeprefix(_SQLITE))
    if source.startswith(_POSTGRES):
        from lro.stores.postgres import PostgresStore

        return _of_postgres(PostgresStore(source, schema=name))
    store = read_service(source).store
    if isinstance(store, sqlite.SQLiteStore):
        return _of_file(store.path)
    with contextlib.suppress(MissingExtra):  # without the extra, no store is a PostgresStore
        from lro.stores.postgres import PostgresStore

        if isinstance(store, PostgresStore):
            return _of_postgres(store)
    raise InvalidArgument(source, f"has a {type(store).__name__}, which keeps no tables")


def _of_file(path: str) -> StoreSchema:
    def sql() -> str:
        raise InvalidArgument("--sql", "is for PostgreSQL: --create makes the tables of a file")

    return StoreSchema(
        where=path,
        wanted=sqlite.SCHEMA_VERSION,
        read_version=lambda: sqlite.read_version(path),
        create=lambda: sqlite.SQLiteStore(path).close(),
        sql=sql,
    )


def _of_postgres(store: PostgresStore) -> StoreSchema:
    from lro.stores.postgres import SCHEMA_VERSION

    def create() -> None:
        if why := check_store(store):
            raise Unusable(why)
        try:
            store.create_schema()
        except Unavailable as exc:
            raise Unusable(_reason(exc)) from exc

    return StoreSchema(
        where=f"schema {store.schema}",
        wanted=SCHEMA_VERSION,
        read_version=store.schema_version,
        create=create,
        sql=store.schema_sql,
    )
