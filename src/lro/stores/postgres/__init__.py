"""PostgreSQL: one store for the processes of many machines. Needs the extra ``postgres``."""

from lro._base.errors import MissingExtra

try:
    import psycopg as _psycopg  # noqa: F401  # also fails where psycopg finds no libpq
except ImportError as _exc:
    raise MissingExtra("the PostgreSQL store", "postgres") from _exc

from lro.stores.postgres._schema import SCHEMA_VERSION
from lro.stores.postgres._store import PostgresStore

__all__ = ["SCHEMA_VERSION", "PostgresStore"]
