"""What a subscription on a SQLite file reports: by polling, and where the system reports writes."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from lro.errors import Unavailable
from lro.stores.sqlite import SQLiteStore
from lro.stores.sqlite._connections import FileWatch
from tests.patching import patch_threads
from tests.stores.samples import insert, record_of
from tests.stores.wires import sqlite_error
from tests.waiting import PATIENCE, joined

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
    """A system that gives no more watches."""

    def inotify_init1(self, flags):
        return -1


@pytest.fixture(
    params=["looking", pytest.param("reported", marks=[pytest.mark.platform, REPORTED])]
)
def way(request, monkeypatch):
    """How subscriptions hear."""
    if request.param == "looking":
        monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: System())
    return request.param


@pytest.fixture
def other(file_store, path, clock):
    """Another store on the same file, as another process has it."""
    with closing(SQLiteStore(path, clock=clock)) as made:
        yield made


@pytest.fixture
def subscription(way, file_store):
    with closing(file_store.listen()) as made:
        yield made


class Listener(threading.Thread):
    """Hears once in a thread of its own."""

    def __init__(self, subscription, seconds=PATIENCE):
        super().__init__(daemon=True)
        self.subscription, self.seconds = subscription, seconds
        self.found = []
        self.start()

    def run(self):
        self.found.append(self.subscription.next_changes(self.seconds))

    def over(self):
        """The changes that it has received."""
        joined(self)
        return self.found


def test_a_subscription_hears_the_commits_of_others(subscription, file_store, other, clock, wire):
    """Not those of its own store, of whichever thread; and everything that came at once, once."""
    insert(file_store, record_of(clock))
    file_store.notify_others("operations/a")
    assert subscription.next_changes(0) == ()
    insert(other, record_of(clock, "b"))
    insert(other, record_of(clock, "c"))
    assert subscription.next_changes(PATIENCE) is None
    assert subscription.next_changes(0) == ()
    during = []  # while this store writes, it hears what was there as that began
    wire.when("BEGIN IMMEDIATE", lambda _: during.append(insert(other, record_of(clock, "d"))))
    wire.when("COMMIT", lambda _: None)  # of the other store
    wire.when("COMMIT", lambda _: during.append(subscription.next_changes(0)))
    insert(file_store, record_of(clock, "e"))
    assert during[1:] == [None]
    assert subscription.next_changes(0) == ()


def test_a_subscription_waits_until_something_comes(subscription, other, clock):
    """One after the other, each reaches the thread that waits for it."""
    for number in range(5):
        listener = Listener(subscription)
        insert(other, record_of(clock, str(number)))
        assert listener.over() == [None]


def test_a_subscription_hears_nothing_for_so_long(subscription, file_store, clock):
    """And is not woken by what its own store writes meanwhile."""
    listener = Listener(subscription, 0.2)
    for number in range(5):
        insert(file_store, record_of(clock, str(number)))
    assert listener.over() == [()]


def test_closing_a_subscription_ends_its_waiting(subscription):
    """At once, from another thread; closing again is closing, and there is nothing to hear then."""
    listener = Listener(subscription)
    subscription.close()
    assert listener.over() == [()]
    subscription.close()
    assert subscription.next_changes(PATIENCE) == ()


def test_a_subscription_of_a_closed_store(subscription, file_store):
    """Says so, however long it would have waited; and there is no new one."""
    file_store.close()
    for call in (lambda: subscription.next_changes(PATIENCE), file_store.listen):
        with pytest.raises(Unavailable, match="the store is closed"):
            call()


def test_a_busy_moment_is_nothing_to_a_subscription(subscription, file_store, other, clock, wire):
    """It looks again; what cannot be read at all is reported."""
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
    """The time, which only the test and the waits for writes, none of which come, move."""
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
def test_a_day_of_a_quiet_file_takes_few_looks(file_store, other, clock, wire, now):
    """Fewer than a hundred; ever less often, the longer nothing was written."""
    insert(other, record_of(clock))
    with closing(file_store.listen()) as subscription:
        wire.said.clear()
        assert subscription.next_changes(86_400.0) == ()
        assert now[0] == pytest.approx(86_500.0)
        assert wire.said.count(LOOK) < 100


@pytest.mark.platform
@REPORTED
@pytest.mark.parametrize("seconds", [0.002, 0.1, 5.0, 300.0])
def test_a_commit_that_takes_long_is_found(file_store, other, clock, wire, now, seconds):
    """It is not reported, and comes when the disk has what was written: then, or a little later."""
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
def test_a_watch_reports_writes_alone(tmp_path):
    """Since it was renewed; not of reads, and not of another file in the same place."""
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
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.platform
@REPORTED
def test_a_watch_leaves_no_file_open(monkeypatch):
    """Also one that cannot be made, because the process may open no more files."""
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
def test_a_system_that_reports_nothing(system, monkeypatch):
    """It has no such calls, or there is a limit to them."""
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: system)
    with pytest.raises(OSError, match="reports no"):
        FileWatch("nowhere")
