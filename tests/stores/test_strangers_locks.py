"""Locks that strangers hold on the database: live processes keep their leases meanwhile.

The locks are real, the clock is the test's, and every turn of the maintenance is made by hand.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import timedelta

import pytest

from lro import Job
from lro.adapters import Renewed
from lro.errors import Unavailable
from lro.executors.inline import InlineExecutor
from lro.stores.sqlite import SQLiteStore
from tests.stores.samples import REQUEST, cancel_of, held, report_of
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

psycopg = pytest.importorskip("psycopg")
from lro.stores.postgres import PostgresStore  # noqa: E402
from tests.services.postgres import UNHURRIED, postgres  # noqa: E402, F401

NAME = "acme.v1.Works.Work"
LEASE = timedelta(seconds=15)


class Held(InlineExecutor):
    """Keeps all tasks, and does none: their operations live for as long as the service turns."""

    worker_idle = False

    def submit(self, task):
        """Do nothing."""


def service_on(make_service, store, count=0):
    """A service, and the names of so many operations that it holds."""
    service = make_service(store, Held())

    @service.method(NAME)
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        raise AssertionError

    return service, [work.start(WorkRequest()).name for _ in range(count)]


@pytest.fixture
def places(postgres, clock):  # noqa: F811
    """Opens stores on one new schema."""
    schema = postgres.fresh_schema()
    with contextlib.ExitStack() as stack:

        def place(**options):
            options = {"schema": schema, "clock": clock, **UNHURRIED, **options}
            store = PostgresStore(postgres.url, **options)
            stack.callback(store.close)
            return store

        place.schema = schema
        yield place


@contextlib.contextmanager
def locked(postgres, statement, *values):  # noqa: F811
    """What a stranger locks by a statement."""
    with psycopg.connect(postgres.url) as stranger:
        stranger.execute(statement, values)
        yield
        stranger.rollback()


def test_the_write_lock_of_a_file_costs_no_living_work(tmp_path, make_service, clock):
    """Of SQLite, for two leases; the first who looks after it had nothing to write."""
    path = tmp_path / "operations.db"
    worker, names = service_on(
        make_service, SQLiteStore(path, clock=clock, busy_seconds=0.01), count=3
    )
    scanner, _ = service_on(make_service, SQLiteStore(path, clock=clock, busy_seconds=0.01))
    for service in (worker, scanner):
        service.run_maintenance()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        for _ in range(6):
            clock.advance(5)
            with pytest.raises(Unavailable):
                worker.run_maintenance()
        stranger.execute("ROLLBACK")
    scanner.run_maintenance()
    worker.run_maintenance()
    for _ in range(8):
        clock.advance(1)
        scanner.run_maintenance()
        worker.run_maintenance()
    owner = worker.workers.owner
    assert {worker.store.get(name).owner for name in names} == {owner}


def test_a_look_of_a_locked_file_fails(tmp_path, clock):
    """There is an orphan, and its process could not have renewed its lease."""
    path = tmp_path / "operations.db"
    with (
        contextlib.closing(SQLiteStore(path, clock=clock, busy_seconds=0.01)) as store,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stranger,
    ):
        stranger.execute("BEGIN IMMEDIATE")
        assert store.orphans(["M"], 9).records == ()
        stranger.execute("ROLLBACK")
        store.insert(held(clock, seconds=0), REQUEST, None)
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            store.orphans(["M"], 9)
        with pytest.raises(Unavailable):
            store.renew("us", clock(), [])


def test_one_locked_row_keeps_no_other_from_being_renewed(places, postgres, make_service, clock):  # noqa: F811
    """Its own lease runs out, no process believes that, and it is renewed when the lock is gone."""
    worker, names = service_on(make_service, places(), count=6)
    scanner, _ = service_on(make_service, places())
    for service in (worker, scanner):
        service.run_maintenance()
    row = f'SELECT 1 FROM "{places.schema}".operations WHERE name = %s FOR UPDATE'
    with locked(postgres, row, names[2]):
        for _ in range(5):
            clock.advance(5)
            worker.run_maintenance()
            scanner.run_maintenance()
        leases = {name: worker.store.get(name).lease_until for name in names}
        assert leases.pop(names[2]) < clock()
        assert set(leases.values()) == {clock() + LEASE}
    scanner.run_maintenance()
    clock.advance(0.2)
    worker.run_maintenance()
    for _ in range(4):
        clock.advance(1)
        scanner.run_maintenance()
    owner = worker.workers.owner
    assert {worker.store.get(name).owner for name in names} == {owner}
    assert worker.store.get(names[2]).lease_until > clock()


@pytest.mark.parametrize("mode", ["SHARE", "ACCESS EXCLUSIVE"])
def test_a_locked_table_is_an_outage(places, postgres, make_service, clock, mode):  # noqa: F811
    """Also one that can be read: no lease is renewed, no process is taken for dead."""
    options = {"statement_seconds": 5.0}  # a fifth of it for locks
    worker, names = service_on(make_service, places(**options), count=2)
    scanner, _ = service_on(make_service, places(**options))
    for service in (worker, scanner):
        service.run_maintenance()
    with locked(postgres, f'LOCK TABLE "{places.schema}".operations IN {mode} MODE'):
        clock.advance(20)
        for service in (worker, scanner):
            with pytest.raises(Unavailable):
                service.run_maintenance()
    worker.run_maintenance()
    for _ in range(8):
        scanner.run_maintenance()
        clock.advance(1)
        worker.run_maintenance()
    owner = worker.workers.owner
    assert {worker.store.get(name).owner for name in names} == {owner}


def test_many_locked_rows_hold_up_a_renewal_for_a_moment(places, postgres, clock, monkeypatch):  # noqa: F811
    """Each is waited for shortly, and not all of them."""
    monkeypatch.setattr("lro.stores.postgres._store._LOCK_MS", 1)
    store = places()
    for number in range(4):
        store.insert(held(clock, str(number)), REQUEST, None)
    names = [f"operations/{number}" for number in range(4)]
    store.update(names[0], cancel_of(clock))
    until = clock() + timedelta(hours=1)
    rows = f'SELECT 1 FROM "{places.schema}".operations WHERE name <> %s FOR UPDATE'
    with locked(postgres, rows, names[0]):
        found = store.renew("us", until, names)
        assert (found.cancel_requested, sorted(found.left)) == ([names[0]], names[1:])
        monkeypatch.setattr("lro.stores.postgres._store._LOCKED_SECONDS", 0)
        found = store.renew("us", until, names)
        assert (found.cancel_requested, sorted(found.left)) == ([names[0]], names[1:])
    assert store.renew("us", until, names) == Renewed([names[0]], [])


def test_a_failure_while_a_locked_row_is_waited_for_is_raised(places, postgres, clock, monkeypatch):  # noqa: F811
    """Only a lock that others keep is no failure."""
    store = places()
    store.insert(held(clock), REQUEST, None)
    row = f'SELECT 1 FROM "{places.schema}".operations FOR UPDATE'
    gone = b"SELECT FROM gone WHERE (%s, %s, %s, %s, %s::bigint) IS NULL"
    monkeypatch.setattr("lro.stores.postgres._statements.RENEW_WAITING", gone)
    with locked(postgres, row), pytest.raises(Unavailable):
        store.renew("us", clock(), ["operations/a"])


def test_a_report_prolongs_a_lease_that_is_not_renewed(places, clock):
    """In the statement that writes it, if less than half of it is left."""
    store = places()
    record = held(clock, seconds=15)
    store.insert(record, REQUEST, None)
    progress = REQUEST
    for seconds, left in ((7, 8), (1, 15)):
        clock.advance(seconds)
        store.update(record.name, report_of(clock, progress, "us", LEASE))
        assert store.get(record.name).lease_until == clock() + timedelta(seconds=left)
    clock.advance(10)
    store.update(record.name, report_of(clock, progress, "them", LEASE))
    assert store.get(record.name).lease_until == clock() + timedelta(seconds=5)
