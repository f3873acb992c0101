"""The embedded default: one SQLite file, write-ahead log, a durable commit before any answer."""

from lro.stores.sqlite._statements import SCHEMA_VERSION, read_version
from lro.stores.sqlite._store import SQLiteStore

__all__ = ["SCHEMA_VERSION", "SQLiteStore", "read_version"]
