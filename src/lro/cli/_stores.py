"""Stores as the commands see them: whether one can be used, and its tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from lro._base.errors import DeclarationError, InvalidArgument, MissingExtra, Unavailable
from lro._engine.store_port import Store
from lro.cli._commands import read_service
from lro.cli._output import Unusable
from lro.stores import sqlite

if TYPE_CHECKING:
    from lro._engine.service import Service
    from lro.stores.postgres import PostgresStore

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")

PROBE: Final = ("operations/readyz",)
"""A name under which a store is looked at; whether it is there does not matter."""


def check_store(store: Store) -> str:
    """Look at a store, which so connects, and makes what is missing there.

    Returns:
        Why it cannot be used now; empty if it can.

    Raises:
        Unusable: It cannot be used as it is, and waiting does not help.
    """
    try:
        store.find(PROBE)
    except Unavailable as exc:
        if isinstance(exc.__cause__, DeclarationError):
            raise Unusable(str(exc)) from exc
        return _reason(exc)
    return ""


def read_shared(target: str) -> Service:
    """Return the service of ``module:service``, whose store can be read, here and elsewhere.

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
    # Only the operator reads this, and the cause helps to mend it.
    why = str(error.__cause__ or "").strip().partition("\n")[0]
    return str(error) if why in str(error) else f"{error}: {why}"


@attrs.frozen(kw_only=True)
class StoreSchema:
    """Where the tables are, which version this release uses, and what can be done about them."""

    where: str
    wanted: int
    read_version: Callable[[], int]
    make: Callable[[], str]
    """Makes what is missing; returns why it cannot, if so."""
    sql: Callable[[], str]
    """Gives the SQL that makes it."""

    def version(self) -> int:
        """The version that is there; 0 if there is none.

        Raises:
            Unusable: The store cannot be read.
        """
        try:
            return self.read_version()
        except Unavailable as exc:
            raise Unusable(_reason(exc)) from exc
        except DeclarationError as exc:
            raise Unusable(str(exc)) from exc

    def create(self) -> None:
        """Make what is missing.

        Raises:
            Unusable: That cannot be done.
        """
        if why := self.make():
            raise Unusable(why)


def read_schema(source: str, name: str) -> StoreSchema:
    """The tables of ``module:service``, or of the database of a URL, in the schema of that name.

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
    with contextlib.suppress(MissingExtra):  # without which it is no such store
        from lro.stores.postgres import PostgresStore

        if isinstance(store, PostgresStore):
            return _of_postgres(store)
    raise InvalidArgument(source, f"has a {type(store).__name__}, which keeps no tables")


def _of_file(path: str) -> StoreSchema:
    def make() -> str:
        sqlite.SQLiteStore(path).close()
        return ""

    def sql() -> str:
        raise InvalidArgument("--sql", "is for PostgreSQL: a file is made by who may write to it")

    return StoreSchema(
        where=path,
        wanted=sqlite.SCHEMA_VERSION,
        read_version=lambda: sqlite.read_version(path),
        make=make,
        sql=sql,
    )


def _of_postgres(store: PostgresStore) -> StoreSchema:
    from lro.stores.postgres import SCHEMA_VERSION

    def make() -> str:
        if why := check_store(store):
            return why
        try:
            store.create_schema()
        except Unavailable as exc:
            return _reason(exc)
        return ""

    return StoreSchema(
        where=f"schema {store.schema}",
        wanted=SCHEMA_VERSION,
        read_version=store.schema_version,
        make=make,
        sql=store.schema_sql,
    )
