"""Make fixtures of the default tier's store tests available to these tests."""

from tests.stores.conftest import file_store, path, place, postgres_wire, wire

__all__ = ["file_store", "path", "place", "postgres_wire", "wire"]
