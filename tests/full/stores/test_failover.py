"""Databases that return to an older state: stores must not return changes that were lost."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable

import attrs
import pytest

from lro import AnyMessage
from lro._engine.watching import WatchList
from lro.adapters import Store
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.stores.samples import cancel_of, held, insert, report_of


@attrs.frozen
class Place:
    """A database: functions to open stores, to save and restore a state, and to reconnect."""

    open: Callable[[], Store]
    save: Callable[[], object]
    restore: Callable[[], object]
    reconnect: Callable[[Store], object]
    """Gives a store new connections without telling the store, as a pooler may."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path, clock):
    """Set up a SQLite file or a PostgreSQL server."""
    with contextlib.ExitStack() as stack:
        make = _sqlite if request.param == "sqlite" else _postgres
        yield make(tmp_path, clock, stack)


def _sqlite(folder, clock, stack):
    path, saved = folder / "operations.db", folder / "saved.db"

    def copy(source, target):
        with (
            contextlib.closing(sqlite3.connect(source)) as one,
            contextlib.closing(sqlite3.connect(target)) as two,
        ):
            one.backup(two)

    return Place(
        open=lambda: stack.enter_context(contextlib.closing(SQLiteStore(path, clock=clock))),
        save=lambda: copy(path, saved),
        restore=lambda: copy(saved, path),
        reconnect=lambda store: None,
    )


def _postgres(folder, clock, stack):
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore
    from tests.services.postgres import new_server

    server = new_server()
    stack.callback(server.stop)

    def open_store():
        store = PostgresStore(server.url, clock=clock)
        return stack.enter_context(contextlib.closing(store))

    return Place(
        open=open_store,
        save=server.save,
        restore=server.restore,
        reconnect=lambda store: store._resources.connections._drop_idle(),
    )


def noted(text):
    """Pack metadata with this text."""
    return AnyMessage("type.googleapis.com/acme.v1.Note", {"text": text})


def test_change_lost_in_a_failover_is_not_reported_as_stored(
    place: Place, clock: ManualClock
) -> None:
    """After a restore, no store returns the lost change, although its version is used again."""
    one, two = place.open(), place.open()
    record = held(clock)
    insert(one, record)
    place.save()
    clock.advance(microseconds=1)
    with contextlib.suppress(Exception):
        one.get(record.name)  # the store sees that its connections are lost
    one.update(record.name, report_of(clock, noted("lost")))
    streams = [WatchList([record.name]) for _ in (one, two)]
    for store, stream in zip((one, two), streams, strict=True):
        with contextlib.suppress(Exception):
            store.get(record.name)
        seen = store.get(record.name)
        assert seen.metadata.payload == {"text": "lost"}
        stream.read(stream.take(1), {record.name: seen})
    place.restore()
    clock.advance(microseconds=1)
    with contextlib.closing(place.open()) as other:
        other.update(record.name, report_of(clock, noted("kept")))
    place.reconnect(two)  # ``two`` does not see that its connections are new
    changed = one.update(record.name, cancel_of(clock))  # the update ignores the cached record
    assert (changed.version, changed.cancel_requested) == (3, True)
    for store, stream in zip((one, two), streams, strict=True):
        found = store.get(record.name)
        assert (found, found.metadata.payload) == (changed, {"text": "kept"})
        assert [one.metadata for one in store.find([record.name]).records] == [found.metadata]
        assert stream.differs(record.name, found.edition)
        stream.changed(record.name)
        assert stream.read(stream.take(1), {record.name: found}) == [found.operation]
