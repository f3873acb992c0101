"""The embedded default: one SQLite file in WAL mode; each call returns after a durable commit."""

from lro.stores.sqlite._statements import SCHEMA_VERSION, read_version
from lro.stores.sqlite._store import SQLiteStore

__all__ = ["SCHEMA_VERSION", "SQLiteStore", "read_version"]
