"""Fixtures of the store tests in the default tier."""

from tests.stores.conftest import file_store, path, place, postgres_wire, wire

__all__ = ["file_store", "path", "place", "postgres_wire", "wire"]
