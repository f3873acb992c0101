"""SQLite only: locks, connections, reads and writes, removal, the log, subscriptions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import attrs
import pytest

from lro import AnyMessage
from lro._engine.store_port import SCAN
from lro.errors import TargetBusy, Unavailable
from lro.stores import _sql_store
from lro.stores.sqlite import SQLiteStore, _pages
from lro.stores.sqlite import _statements as sql
from lro.stores.sqlite._connections import FileWatch
from tests.filters.test_indexes import WANTED, fill
from tests.patching import patch_threads
from tests.stores.samples import (
    METHODS,
    REQUEST,
    called,
    cancel_of,
    claim_work,
    claimed,
    end_of,
    held,
    ids,
    insert,
    key_of,
    listed,
    record_of,
    report_of,
    waiting,
    worker_of,
)
from tests.stores.wires import filled, sqlite_error, stranger
from tests.waiting import PATIENCE, joined


def test_an_existing_file_is_opened_without_writing(path):
    """A store opens an existing file while another program holds the file's lock."""
    SQLiteStore(path).close()
    with stranger(path), closing(SQLiteStore(path, busy_seconds=0)) as store:
        assert len(store.secret()) == 64
        assert store.now().utcoffset().total_seconds() == 0


def test_a_lock_held_too_long_is_unavailable(path, clock):
    """While another program keeps the lock, writes fail and reads work; no data is lost."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=0.01)) as store:
        insert(store, held(clock), key_of())
        insert(store, waiting(clock, "c", seconds=1))
        kept = store.get("operations/a")
        with stranger(path):
            assert claim_work(store, clock).next_due == clock.advance(1)  # no work was due yet
            for write in (
                lambda: insert(store, record_of(clock, "b"), key_of("other")),
                lambda: store.update("operations/a", end_of(clock)),
                lambda: store.renew(worker_of(clock)),
                lambda: claim_work(store, clock),
            ):
                with pytest.raises(Unavailable, match=r"cannot be used now \(SQLITE_BUSY\)"):
                    write()
            assert store.get("operations/a") == kept
            assert store.request("operations/a") == REQUEST
            assert listed(store) == ["a", "c"]
            assert list(store.expire(9).names) == []
        assert claimed(claim_work(store, clock)) == ["c"]
        assert insert(store, record_of(clock, "b"), key_of("other")).fresh
        assert store.update("operations/a", end_of(clock)).done


def test_orphan_scan_of_a_locked_file_fails(path, clock):
    """An orphan scan of a locked file fails, as the lock may have kept workers from renewals."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=0.01)) as store:
        with stranger(path):
            assert store.orphans(METHODS, 9).overdue == {}
        insert(store, held(clock, seconds=0))
        with stranger(path):
            for call in (lambda: store.orphans(METHODS, 9), lambda: store.renew(worker_of(clock))):
                with pytest.raises(Unavailable):
                    call()


def test_a_lock_held_shortly_is_waited_for(path, clock, wire):
    """A write waits up to ``busy_seconds`` for a lock."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=PATIENCE)) as store:
        with stranger(path):
            asked = threading.Event()
            wire.when("BEGIN IMMEDIATE", lambda _: asked.set())
            insertion = threading.Thread(target=insert, args=(store, record_of(clock)))
            insertion.start()
            assert asked.wait(PATIENCE)
        joined(insertion)
        assert listed(store) == ["a"]


def test_a_new_file_under_a_lock_is_unavailable(path):
    """Opening a locked new file fails after ``busy_seconds``; a later store makes the tables."""
    for begin in ("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"):
        with stranger(path, begin), pytest.raises(Unavailable):
            SQLiteStore(path, busy_seconds=0.01)
    with closing(SQLiteStore(path)) as store:
        assert len(store.secret()) == 64


def test_check_only_insert_does_not_wait_for_writers(path, clock):
    """A check-only insert writes nothing, so it needs no lock and does not wait."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=0)) as store:
        insert(store, record_of(clock, target="t"), key_of())
        with stranger(path):
            assert insert(store, record_of(clock, "b"), check_only=True).fresh
            assert not insert(store, record_of(clock, "b"), key_of(), check_only=True).fresh
            with pytest.raises(TargetBusy):
                insert(store, record_of(clock, "b", target="t"), check_only=True)


def test_a_secret_that_cannot_be_stored_leaves_nothing_open(path, wire, monkeypatch):
    """If the secret cannot be made, the constructor fails and closes its connections."""

    def no_bytes(count):
        raise OSError("no entropy")

    monkeypatch.setattr("secrets.token_bytes", no_bytes)
    with pytest.raises(OSError, match="entropy"):
        SQLiteStore(path)
    for connection in wire.connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


# -- reads ----------------------------------------------------------------------------------------


def test_big_requests_are_not_read_by_polls(file_store, clock, wire):
    """Reads of a record do not read its request of 5 MB, which only a worker needs."""
    big = AnyMessage("x/a.Request", {"data": "x" * 5_000_000})
    file_store.insert(record_of(clock), big, None)
    wire.said.clear()
    file_store.get("operations/a")
    file_store.page("", None, 9)
    file_store.orphans(METHODS, 9)
    file_store.update("operations/a", called("c"))
    assert len(wire.said) > 4
    assert not [one for one in wire.said if "inputs" in one]
    assert file_store.request("operations/a") == big


def test_a_record_is_read_by_one_query(file_store, path, clock, wire):
    """A read takes one query, whether or not the record is in the cache of the store."""
    insert(file_store, record_of(clock))
    with closing(SQLiteStore(path, clock=clock)) as other:
        for _ in range(2):
            assert wire.words(lambda: other.get("operations/a")) == ["SELECT"]


def test_threads_share_one_read_connection(file_store, clock, wire):
    """A hundred short-lived threads share one connection for reads."""
    insert(file_store, record_of(clock))
    for _ in range(100):
        reader = threading.Thread(target=file_store.get, args=("operations/a",))
        reader.start()
        reader.join()
    assert len(wire.connections) == 2  # the second connection writes


def test_a_read_that_outlasts_the_store_closes_its_connection(file_store, clock, wire):
    """A connection that is reading while the store is closed gets closed after the read."""
    insert(file_store, record_of(clock))
    wire.when("SELECT", lambda _: file_store.close())
    assert file_store.get("operations/a") == record_of(clock)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        wire.connections[-1].execute("SELECT 1")


def test_an_equal_record_is_not_written(file_store, clock, wire):
    """A change that returns an equal copy writes nothing to the database."""
    insert(file_store, record_of(clock))
    said = wire.words(lambda: file_store.update("operations/a", attrs.evolve))
    assert not {"UPDATE", "INSERT", "DELETE"} & {*said}
    assert file_store.get("operations/a") == record_of(clock)


def test_poll_states_reads_only_records_that_may_have_changed(file_store, path, clock, wire):
    """If no write happened since the last poll, unchanged records are not read again."""
    names = [f"operations/{unique_id}" for unique_id in "abcd"]
    for unique_id in "abcd":
        insert(file_store, record_of(clock, unique_id))
    with closing(SQLiteStore(path, clock=clock)) as other:
        other.update("operations/d", cancel_of(clock))

        def poll_states(*wanted):
            wire.said.clear()
            wire.values.clear()
            found = file_store.poll_states(wanted)
            (asked_for,) = (
                json.loads(values[0])
                for one, values in zip(wire.said, wire.values, strict=True)
                if one.startswith("SELECT wanted")
            )
            return sorted(found.finished), sorted(found.cancel_requested), sorted(asked_for)

        d = names[3]
        assert poll_states(*names[:2], d) == ([], [d], [*names[:2], d])
        assert poll_states(*names) == ([], [d], names[2:])
        assert poll_states(*names) == ([], [d], [d])
        other.update("operations/a", end_of(clock))
        assert poll_states(*names) == (names[:1], [d], names)
        file_store.update("operations/b", end_of(clock))
        assert poll_states(*names) == (names[:2], [d], names)
        insert(file_store, record_of(clock, "e"))
        during = []  # while another thread writes, any record may change
        wire.when("BEGIN IMMEDIATE", lambda _: during.append(poll_states(*names)))
        insert(file_store, record_of(clock, "f"))
        assert during == [(names[:2], [d], names)]
    odd = ["operations/\0é", "operations/é", "operations/\ud800"]
    assert sorted(file_store.poll_states(odd).finished) == sorted(odd)


DUE = "SEARCH lro_operations USING INDEX lro_operations_debts (notify_at"
RUNS = "SEARCH lro_operations USING INDEX lro_operations_running (method=?"
WAITS = "SEARCH o USING INDEX lro_operations_waiting (method=? AND <expr>=? AND lane"
IN_LANE = f"{WAITS}=? AND rank=? AND lease_until>?"
LANES = [f"{WAITS}>? AND lane<?)", f"{WAITS}=? AND rank>?)", f"{WAITS}>? AND lane<?)"]
SENT = "SEARCH lro_operations USING INDEX lro_operations_sent (method=?"
BEGUN = "SEARCH lro_begins USING INDEX lro_begins_"
PLANS = [
    (sql.LANES, (0, -1, 9, "[]", 0, 0, 9, 0, 1, 0, 1), [*LANES, f"{IN_LANE})", f"{IN_LANE})"]),
    (sql.DUE_OF_LANE, (0, "M", 1, 1, 1, "[]", 9), [f"{IN_LANE} AND lease_until<?)"]),
    (sql.RUNNING, ("M",), f"{RUNS})"),
    (
        sql.RUNNING_IN_LANE,
        ("M", 1),
        "SEARCH lro_operations USING INDEX lro_operations_lanes (method=? AND lane=?)",
    ),
    (sql.SENT, ("M", 1), f"{SENT})"),
    (sql.SENT_IN_LANE, ("M", 1, 1), f"{SENT} AND lane=? AND lease_until>?)"),
    (sql.BEGUN, ("M", 1, 1, 1, 9), f"{BEGUN}latest (method=? AND lane=? AND at>? AND at<?)"),
    (sql.BEGINS_OVER, (1,), f"{BEGUN}over (until<?)"),
    (
        _sql_store.TOO_LATE,
        (1, 9),
        "SEARCH lro_operations USING INDEX lro_operations_unbegun"
        " (begin_before>? AND begin_before<?)",
    ),
    (
        "SELECT rowid FROM lro_starts WHERE at <= 1",
        (),
        "SEARCH lro_starts USING INDEX lro_starts_age (at<?)",
    ),
    (sql.ANY_DUE, (1,), f"{DUE}<?)"),
    (sql.DUE, (1, 9), f"{DUE}<?)"),
    (_sql_store.NEXT_DUE, (), f"{DUE}>?)"),
    (sql.EXPIRED, (1, 9), "SEARCH lro_operations USING INDEX lro_operations_expiry (<expr><?)"),
    (
        sql.LOAD,
        (9, 9, "", 10),
        "SEARCH lro_operations USING INDEX lro_operations_states (parent=? AND state=?)",
    ),
    (
        _sql_store.COUNTS,
        (1, 0, 9),
        "SEARCH lro_minutes USING INDEX sqlite_autoindex_lro_minutes_1 (step=? AND minute>?)",
    ),
]


def test_every_row_is_found_by_an_index(path):
    """Each statement finds its rows by an index and in order, so it reads no more than needed."""
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as plain:
        for statement, values, wanted in PLANS:
            rows = plain.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            steps = [step.replace("COVERING ", "") for *_, step in rows]
            searches = [wanted] if isinstance(wanted, str) else wanted
            table = searches[0].split()[1]
            assert [step for step in steps if f" {table} " in step] == searches
            sorts = [step for step in steps if "B-TREE" in step]
            assert sorts == (["USE TEMP B-TREE FOR GROUP BY"] if statement == sql.LOAD else [])


@pytest.mark.platform
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_starts_with_an_empty_cache(file_store, clock):
    """A forked process does not use the parent's cache, which a thread may have been changing."""
    insert(file_store, record_of(clock))
    known = file_store.get("operations/a")
    assert file_store.get("operations/a") is known
    child = os.fork()
    if not child:
        found = 2
        with contextlib.suppress(BaseException):
            found = int(file_store.get("operations/a") is known)
        os._exit(found)
    assert os.waitpid(child, 0)[1] == 0


def test_long_scan_is_retried_with_fewer_records(file_store, clock, monkeypatch):
    """Each retry of a long scan reads fewer records, down to one."""
    fill(file_store, clock)
    real, scans = _pages.find, []

    def find(rows, records, walk, parent, limit, scan, now, max_bytes):
        scans.append(scan)
        seconds = 0.0 if scan > 5 else 60.0
        rows, records = (functools.partial(one, seconds=seconds) for one in (rows, records))
        return real(rows, records, walk, parent, limit, scan, now, max_bytes)

    monkeypatch.setattr(_pages, "find", find)
    monkeypatch.setattr("lro.stores.sqlite._file._STEPS", 1)
    assert ids(file_store.page("", None, 9).records) == ["a", "b", "c", "d"]
    assert scans == [SCAN, SCAN // 10, SCAN // 100]
    monkeypatch.setattr("lro.stores.sqlite._store._LOOK_SECONDS", 0.0)
    monkeypatch.setattr(_pages, "find", real)
    with pytest.raises(Unavailable, match="SQLITE_INTERRUPT"):
        file_store.page("", None, 9)
    assert file_store.get("operations/a").name == "operations/a"


def test_list_works_after_its_index_was_dropped(file_store, path, clock):
    """After another program drops an index, the next list works, and so do later lists."""
    fill(file_store, clock)
    file_store.index({"k1"})
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"DROP INDEX {_pages.index_name('k1')}")
    for _ in range(2):
        assert ids(file_store.page("", None, 9, WANTED).records) == ["a", "c", "d"]
        assert file_store._keys == frozenset()
    file_store.index({"k1"})
    file_store.close()
    with pytest.raises(Unavailable, match="closed"):
        file_store.page("", None, 9, WANTED)


# -- removal and the log --------------------------------------------------------------------------


def test_expire_removes_no_more_than_its_limit(file_store, clock, wire, monkeypatch):
    """``expire`` removes at most ``limit`` records, and says whether some are left."""
    monkeypatch.setattr("lro.stores.sqlite._store._SLICE", 2)
    for number in range(8):
        insert(file_store, record_of(clock, str(number)), key_of(str(number)))
        if number < 5:
            file_store.update(f"operations/{number}", end_of(clock, days=0.5))
    clock.advance(hours=12)

    def expire(limit):
        wire.said.clear()
        found = file_store.expire(limit)
        return len(found.names), found.more, wire.said.count("COMMIT")

    assert [expire(3), expire(3)] == [(3, True, 2), (2, False, 1)]
    clock.advance(hours=12)
    assert [file_store.expire(5).more for _ in range(3)] == [True, False, False]
    assert [expire(0), expire(9)] == [(0, False, 0)] * 2
    assert "BEGIN IMMEDIATE" not in wire.said
    assert insert(file_store, record_of(clock, "new"), key_of("7")).fresh


FULL, NORMAL = 2, 1


def test_every_write_except_expire_is_synced_to_disk(file_store, clock, wire):
    """Every acknowledged write is synced to disk, even the first one after a failed ``expire``."""

    def waits_for_disk():
        return wire.connections[0].execute("PRAGMA synchronous").fetchone()[0]

    for number in range(3):
        insert(file_store, record_of(clock, str(number)))
        file_store.update(f"operations/{number}", end_of(clock, days=number + 1))
    assert waits_for_disk() == FULL
    clock.advance(days=1)
    assert file_store.expire(9).names == ["operations/0"]
    assert waits_for_disk() == NORMAL
    insert(file_store, record_of(clock, "a"))
    assert waits_for_disk() == FULL
    clock.advance(days=1)
    wire.fail("DELETE FROM lro_operations")
    with pytest.raises(Unavailable):
        file_store.expire(9)
    assert file_store.get("operations/2").done
    insert(file_store, record_of(clock, "c"))
    assert waits_for_disk() == FULL
    assert file_store.expire(9).names == ["operations/1"]


@pytest.fixture
def short_log(monkeypatch):
    """Set the maximum length of the log to 160 kB, and check the length at each write."""
    monkeypatch.setattr("lro.stores.sqlite._writer._LOG_BYTES", 160_000)
    monkeypatch.setattr("lro.stores.sqlite._writer._READERS_MS", 1)
    monkeypatch.setattr("lro.stores.sqlite._writer._LOG_ROUND", 1)


CUT = "PRAGMA wal_checkpoint(RESTART)"


@pytest.mark.usefixtures("short_log")
def test_long_write_ahead_log_is_reset(wire, path, clock, monkeypatch):
    """Readers keep SQLite from resetting a long log, so a writer waits for them to finish."""
    texts = itertools.cycle("xy")
    with closing(filled(path, clock)) as store:

        def write():
            wire.said.clear()
            long = AnyMessage("x/a.Long", {"text": next(texts) * 50_000})
            store.update("operations/a", report_of(clock, long))
            return wire.said.count(CUT)

        with stranger(path, "BEGIN") as reader:
            reader.execute("SELECT count(*) FROM lro_operations").fetchall()
            assert sum(write() for _ in range(6)) == 1
            reader.execute("COMMIT")
    monkeypatch.setattr("lro.stores.sqlite._writer._REST_SECONDS", 0.0)
    with closing(SQLiteStore(path, clock=clock)) as store, stranger(path, "BEGIN") as reader:
        reader.execute("SELECT count(*) FROM lro_operations").fetchall()
        assert [write() for _ in range(6)][-4:] == [1] * 4
        reader.execute("COMMIT")
        _, long_log, _ = reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        write()
        write()
        _, log, _ = reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert log < long_log / 2


@pytest.mark.usefixtures("short_log")
def test_write_ahead_log_that_cannot_be_reset_is_kept(file_store, clock, wire, monkeypatch):
    """If the log cannot be reset, no committed write is lost, and the next write does not retry."""
    monkeypatch.setattr("lro.stores.sqlite._writer._LOG_BYTES", 0)
    wire.fail(CUT)
    for name in "ab":
        insert(file_store, record_of(clock, name))
    assert wire.said.count(CUT) == 1
    assert wire.connections[0].execute("PRAGMA busy_timeout").fetchone() == (0,)


@pytest.mark.usefixtures("short_log")
def test_write_ahead_log_of_unknown_length_is_not_reset(file_store, clock, wire, monkeypatch):
    """The log is not reset if its length cannot be read, as when the file was just deleted."""

    def unknown(path):
        raise OSError("a test raises this")

    monkeypatch.setattr("os.path.getsize", unknown)
    assert insert(file_store, record_of(clock)).fresh
    assert CUT not in wire.said


LOOK = "PRAGMA data_version"


def writes_are_reported():
    try:
        FileWatch("nowhere").close()
    except OSError:
        return False
    return True


REPORTED = pytest.mark.skipif(
    not writes_are_reported(), reason="this system reports no writes to files"
)


class System:
    """An operating system that has no inotify instances left."""

    def inotify_init1(self, flags):
        return -1


@pytest.fixture(
    params=["looking", pytest.param("reported", marks=[pytest.mark.platform, REPORTED])]
)
def way(request, monkeypatch):
    """Select how subscriptions detect changes: by inotify or by polling."""
    if request.param == "looking":
        monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: System())
    return request.param


@pytest.fixture
def other(file_store, path, clock):
    """Open another store on the same file, as another process would."""
    with closing(SQLiteStore(path, clock=clock)) as made:
        yield made


@pytest.fixture
def subscription(way, file_store):
    with closing(file_store.listen()) as made:
        yield made


class Listener(threading.Thread):
    """Waits for one change in its own thread."""

    def __init__(self, subscription, seconds=PATIENCE):
        super().__init__(daemon=True)
        self.subscription, self.seconds = subscription, seconds
        self.found = []
        self.start()

    def run(self):
        self.found.append(self.subscription.next_changes(self.seconds))

    def over(self):
        """Return the received changes."""
        joined(self)
        return self.found


def test_subscription_reports_commits_of_other_stores(subscription, file_store, other, clock, wire):
    """A subscription ignores its own store's commits, and reports several other commits once."""
    insert(file_store, record_of(clock))
    file_store.notify_others("operations/a")
    assert subscription.next_changes(0) == ()
    insert(other, record_of(clock, "b"))
    insert(other, record_of(clock, "c"))
    assert subscription.next_changes(PATIENCE) is None
    assert subscription.next_changes(0) == ()
    during = []  # while this store writes, its subscription reports commits made before the write
    wire.when("BEGIN IMMEDIATE", lambda _: during.append(insert(other, record_of(clock, "d"))))
    wire.when("COMMIT", lambda _: None)  # the other store's commit
    wire.when("COMMIT", lambda _: during.append(subscription.next_changes(0)))
    insert(file_store, record_of(clock, "e"))
    assert during[1:] == [None]
    assert subscription.next_changes(0) == ()


def test_each_commit_wakes_a_waiting_subscription(subscription, other, clock):
    """Each of several commits wakes the thread that is then waiting for a change."""
    for number in range(5):
        listener = Listener(subscription)
        insert(other, record_of(clock, str(number)))
        assert listener.over() == [None]


def test_subscription_times_out_without_changes(subscription, file_store, clock):
    """A waiting subscription times out if only its own store writes."""
    listener = Listener(subscription, 0.2)
    for number in range(5):
        insert(file_store, record_of(clock, str(number)))
    assert listener.over() == [()]


def test_closing_a_subscription_wakes_its_waiting_thread(subscription):
    """Closing a subscription, even twice, wakes its waiting thread; later calls find no changes."""
    listener = Listener(subscription)
    subscription.close()
    assert listener.over() == [()]
    subscription.close()
    assert subscription.next_changes(PATIENCE) == ()


def test_subscription_of_a_closed_store_is_refused(subscription, file_store):
    """After a store is closed, its open subscription fails, and a new subscription is refused."""
    file_store.close()
    for call in (lambda: subscription.next_changes(PATIENCE), file_store.listen):
        with pytest.raises(Unavailable, match="the store is closed"):
            call()


def test_subscription_retries_a_busy_file(subscription, file_store, other, clock, wire):
    """A subscription retries when the file is busy; any other error is raised."""
    insert(other, record_of(clock))
    wire.fail(LOOK, sqlite_error(sqlite3.SQLITE_BUSY_RECOVERY, "SQLITE_BUSY_RECOVERY"))
    assert subscription.next_changes(0) == ()
    assert subscription.next_changes(0) is None
    wire.fail(LOOK)
    with pytest.raises(Unavailable, match=r"cannot be used now \(SQLITE_OF_A_TEST\)"):
        subscription.next_changes(0)
    wire.fail(LOOK, sqlite_error(sqlite3.SQLITE_BUSY, "SQLITE_BUSY"))
    assert file_store.poll_states(["operations/a"]).finished == frozenset()


@pytest.fixture
def now(monkeypatch):
    """Replace the monotonic clock; only the test and waits advance it."""
    now = [100.0]
    patch_threads(monkeypatch, time, "monotonic", lambda: now[0])

    def pause(self, seconds=None):
        now[0] += seconds
        return False

    monkeypatch.setattr(FileWatch, "wait", pause)
    patch_threads(monkeypatch, threading.Event, "wait", pause)
    return now


@pytest.mark.platform
@REPORTED
def test_quiet_file_is_read_under_100_times_a_day(file_store, other, clock, wire, now):
    """A subscription reads a quiet file fewer than 100 times a day, more rarely as time passes."""
    insert(other, record_of(clock))
    with closing(file_store.listen()) as subscription:
        wire.said.clear()
        assert subscription.next_changes(86_400.0) == ()
        assert now[0] == pytest.approx(86_500.0)
        assert wire.said.count(LOOK) < 100


@pytest.mark.platform
@REPORTED
@pytest.mark.parametrize("seconds", [0.002, 0.1, 5.0, 300.0])
def test_commit_visible_after_its_file_event_is_found(file_store, other, clock, wire, now, seconds):
    """A commit that becomes visible only after its file event is found by a later read."""
    insert(other, record_of(clock))
    with closing(file_store.listen()) as subscription:
        began, seen = now[0], []

        def look(_):
            if now[0] >= began + seconds and not seen:
                seen.append(insert(other, record_of(clock, "late")))

        wire.when(LOOK, look, times=10_000)
        assert subscription.next_changes(3600.0) is None
        assert seconds <= now[0] - began <= 1.25 * seconds + 0.03


@pytest.mark.platform
@REPORTED
def test_file_watch_reports_only_writes(tmp_path):
    """A file watch reports writes since its last restart, but neither reads nor other files."""
    path = tmp_path / "log"
    watch = FileWatch(str(path))
    assert not watch.restart()
    path.write_bytes(b"a")
    assert watch.restart()
    path.read_bytes()
    assert not watch.wait(0)
    path.write_bytes(b"b")
    assert (watch.wait(PATIENCE), watch.wait(0)) == (True, True)
    assert watch.restart()
    assert not watch.wait(0)
    path.unlink()
    watch.restart()
    path.write_bytes(b"c")
    assert watch.restart()
    path.write_bytes(b"d")
    assert watch.wait(PATIENCE)
    watch.restart()
    watch.end()
    assert watch.wait(PATIENCE)
    watch.close()
    watch.close()


def open_files():
    """Return the number of this process's file descriptors."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.platform
@REPORTED
def test_file_watch_leaves_no_descriptor_open(monkeypatch):
    """Neither a closed watch nor one that fails for lack of descriptors leaves a file open."""
    before = open_files()
    FileWatch("nowhere").close()
    assert open_files() <= before

    def too_many():
        raise OSError("too many open files")

    monkeypatch.setattr("os.pipe", too_many)
    with pytest.raises(OSError, match="too many"):
        FileWatch("nowhere")
    assert open_files() <= before


@pytest.mark.parametrize("system", [System(), object()])
def test_file_watch_is_refused_by_a_system_without_inotify(system, monkeypatch):
    """A file watch cannot be made if the system has no inotify or no instances of it left."""
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: system)
    with pytest.raises(OSError, match="reports no"):
        FileWatch("nowhere")


# -- workers that have ended ----------------------------------------------------------------------

KILLED = """
import os, signal, sys
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.stores.samples import held, insert, worker_of

clock = ManualClock()
store = SQLiteStore(sys.argv[1], clock=clock)
store.renew(worker_of(clock, seconds=3600))
insert(store, held(clock, seconds=3600))
forked, said = os.pipe()
if os.fork():
    os.read(forked, 1)
    os.kill(os.getpid(), signal.SIGKILL)
os.write(said, b".")
sys.stdin.read()  # the child lives on, and is no worker
"""


def files_of_workers(path):
    """Return the names of the workers' lock files."""
    return [name for name in os.listdir(os.path.dirname(path)) if "-worker-" in name]


@pytest.mark.platform
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_killed_worker_is_reported_dead_before_its_lease_ends(path, clock):
    """A killed worker is reported dead although its lease runs and its child process lives."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdin=subprocess.PIPE)
    try:
        assert process.wait(PATIENCE) == -signal.SIGKILL
        with closing(SQLiteStore(path, clock=clock)) as store:
            assert [(worker.running, worker.lost) for worker in store.workers()] == [(1, True)]
            found = store.orphans(METHODS, 9)
            assert (set(found.dead), set(found.overdue)) == ({"us"}, {"us"})
            assert store.lose("us", found.overdue["us"])
            assert ids(store.orphans(METHODS, 9).records) == ["a"]
            assert files_of_workers(path) == []
    finally:
        process.stdin.close()


def test_removed_worker_leaves_no_lock_file(path, clock):
    with closing(SQLiteStore(path, clock=clock)) as killed:
        killed.renew(worker_of(clock, "killed"))
    (before,) = files_of_workers(path)
    clock.advance(days=1)
    with closing(SQLiteStore(path, clock=clock)) as store:
        store.renew(worker_of(clock))
        (after,) = files_of_workers(path)
    assert after != before


def test_live_workers_are_not_reported_dead(path, clock):
    """A live worker in this process is not reported dead, nor is a worker without a lock file."""
    with closing(SQLiteStore(path, clock=clock)) as one, closing(SQLiteStore(path)) as two:
        one.renew(worker_of(clock))
        for owner in ("us", "unknown"):
            insert(one, held(clock, owner, owner=owner))
        for store in (one, two):
            assert set(store.orphans(METHODS, 9).dead) == set()
        one.close()
        assert set(two.orphans(METHODS, 9).dead) == {"us"}


@pytest.mark.platform
def test_worker_that_starts_during_a_scan_is_not_reported_dead(path, clock, monkeypatch):
    """A worker that has work but no lock file yet during a scan is not reported dead."""
    fcntl = pytest.importorskip("fcntl")
    flock, looks = fcntl.flock, []
    with closing(SQLiteStore(path, clock=clock)) as one, closing(SQLiteStore(path)) as two:
        insert(one, held(clock))

        def look_first(file, how):
            monkeypatch.setattr(fcntl, "flock", flock)
            looks.append(set(two.orphans(METHODS, 9).dead))
            flock(file, how)

        monkeypatch.setattr(fcntl, "flock", look_first)  # the worker takes the first lock
        one.renew(worker_of(clock))
        looks.append(set(two.orphans(METHODS, 9).dead))
        assert looks == [set(), set()]
        one.close()
        assert set(two.orphans(METHODS, 9).dead) == {"us"}


@pytest.mark.platform
def test_worker_is_not_reported_dead_if_files_cannot_be_locked(path, clock, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refused(file, how):
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    with closing(SQLiteStore(path, clock=clock)) as one, closing(SQLiteStore(path)) as two:
        one.renew(worker_of(clock))
        insert(one, held(clock))
        assert files_of_workers(path) == []
        assert set(two.orphans(METHODS, 9).dead) == set()
