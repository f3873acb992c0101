"""What a subscription on a SQLite file reports: by polling, and where the system reports writes."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing

import pytest

from lro.errors import Unavailable
from lro.stores.sqlite import SQLiteStore, _connections
from lro.stores.sqlite._connections import FileWatch
from lro.testing import ManualClock
from lro.testing._samples import insert, record_of
from tests.waiting import PATIENCE


def writes_are_reported():
    """Whether this system reports writes."""
    try:
        FileWatch("nowhere").close()
    except OSError:
        return False
    return True


REPORTED = pytest.mark.skipif(
    not writes_are_reported(), reason="this system reports no writes to files"
)


@pytest.fixture(
    params=["looking", pytest.param("reported", marks=[pytest.mark.platform, REPORTED])]
)
def way(request, monkeypatch):
    """How subscriptions hear."""
    if request.param == "looking":

        def nothing(path):
            raise OSError("a test reports no")

        monkeypatch.setattr(_connections, "FileWatch", nothing)
    return request.param


@pytest.fixture
def store(tmp_path):
    with closing(SQLiteStore(tmp_path / "operations.db", clock=ManualClock())) as made:
        yield made


@pytest.fixture
def other(store, tmp_path):
    """Another store on the same file, as another process has it."""
    with closing(SQLiteStore(tmp_path / "operations.db", clock=store.now)) as made:
        yield made


@pytest.fixture
def subscription(way, store):
    with closing(store.listen()) as made:
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
        self.join(PATIENCE)
        return self.found


def test_a_subscription_hears_the_commits_of_others(subscription, store, other):
    """Not those of its own store, of whichever thread; and everything that came at once, once."""
    insert(store, record_of(store.now))
    store.notify_others("operations/a")
    assert subscription.next_changes(0) == ()
    insert(other, record_of(store.now, "b"))
    insert(other, record_of(store.now, "c"))
    assert subscription.next_changes(PATIENCE) is None
    assert subscription.next_changes(0) == ()
    with store._file._writer._lock:  # a write goes on
        insert(other, record_of(store.now, "d"))
        assert subscription.next_changes(0) == ()
    assert subscription.next_changes(0) is None


def test_a_subscription_hears_through_the_writes_of_its_own_store(subscription, store, other):
    """Who writes looks as it begins, so that a busy store is no deaf one."""
    insert(store, record_of(store.now))
    insert(other, record_of(store.now, "b"))
    store.update("operations/a", lambda record: record.next_version(caller="c"))
    with store._file._writer._lock:
        assert subscription.next_changes(0) is None


def test_a_subscription_waits_until_something_comes(subscription, store, other):
    """One after the other, each reaches the thread that waits for it."""
    for number in range(5):
        listener = Listener(subscription)
        insert(other, record_of(store.now, str(number)))
        assert listener.over() == [None]


def test_a_subscription_hears_nothing_for_so_long(subscription, store):
    """And is not woken by what its own store writes meanwhile."""
    listener = Listener(subscription, 0.2)
    for number in range(5):
        insert(store, record_of(store.now, str(number)))
    assert listener.over() == [()]


def test_closing_a_subscription_ends_its_waiting(subscription):
    """At once, from another thread; closing again is closing, and there is nothing to hear then."""
    listener = Listener(subscription)
    subscription.close()
    assert listener.over() == [()]
    subscription.close()
    assert subscription.next_changes(PATIENCE) == ()


def test_a_subscription_of_a_closed_store(subscription, store):
    """Says so, however long it would have waited; and there is no new one."""
    store.close()
    for call in (lambda: subscription.next_changes(PATIENCE), store.listen):
        with pytest.raises(Unavailable, match="the store is closed"):
            call()


class Refusing:
    """A connection that refuses everything with one of SQLite's codes."""

    def __init__(self, code):
        self.code = code

    def execute(self, statement):
        error = sqlite3.OperationalError("refused by a test")
        error.sqlite_errorcode = self.code
        error.sqlite_errorname = "SQLITE_OF_A_TEST"
        raise error


def test_a_busy_moment_is_nothing_to_a_subscription(subscription, store):
    """It looks again; what cannot be read at all is reported."""
    writer = store._file._writer
    whole = writer._connection
    writer._connection = Refusing(sqlite3.SQLITE_BUSY_RECOVERY)
    assert subscription.next_changes(0) == ()
    assert writer.state() is None
    writer._connection = Refusing(sqlite3.SQLITE_IOERR_READ)
    with pytest.raises(Unavailable, match=r"cannot be used now \(SQLITE_OF_A_TEST\)"):
        subscription.next_changes(0)
    writer._connection = whole


# -- reported by the system -----------------------------------------------------------------------


class Observed(FileWatch):
    """A watch that says when it is waited for, and for how long."""

    def __init__(self, path):
        super().__init__(path)
        self.waits = []
        self.waited_for = threading.Event()

    def wait(self, seconds):
        self.waits.append(seconds)
        self.waited_for.set()
        return super().wait(seconds)


@pytest.fixture
def observed(store, monkeypatch):
    """A subscription whose waiting is observed."""
    monkeypatch.setattr(_connections, "FileWatch", Observed)
    with closing(store.listen()) as made:
        yield made


def looks_of(store, monkeypatch):
    """A list that grows with every look at the counter."""
    looks = []
    whole = store._file._writer.commits_by_others
    monkeypatch.setattr(
        store._file._writer, "commits_by_others", lambda: looks.append(1) or whole()
    )
    return looks


@pytest.fixture
def now(monkeypatch):
    """The time, which only the test changes."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def pauses(observed, now, monkeypatch):
    """The seconds of all pauses and waits, none of which is ended by a write."""
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(observed._closed, "wait", pause)
    monkeypatch.setattr(observed._watch, "wait", pause)
    return pauses


@pytest.mark.platform
@REPORTED
def test_a_quiet_file_is_hardly_looked_at(observed, store, pauses, monkeypatch):
    """Fewer than a hundred times a day."""
    looks = looks_of(store, monkeypatch)
    assert observed.next_changes(86_400.0) == ()
    assert len(looks) < 100
    assert sum(pauses) == pytest.approx(86_400)


@pytest.mark.platform
@REPORTED
def test_a_write_ends_a_long_wait(observed, other, store):
    """The file has been quiet for long."""
    observed._written, observed._written_at = not observed._watch.restart(), -1e9
    listener = Listener(observed)
    assert observed._watch.waited_for.wait(PATIENCE)
    assert observed._watch.waits[0] > PATIENCE / 2
    insert(other, record_of(store.now))
    assert listener.over() == [None]


@pytest.mark.platform
@REPORTED
def test_commit_that_takes_long_is_found(observed, store, pauses, now, monkeypatch):
    """It is not reported, and comes when the disk has what was written: then, or a little later."""
    committed_at = now[0]
    monkeypatch.setattr(store._file._writer, "commits_by_others", lambda: now[0] >= committed_at)
    for seconds in (0.002, 0.1, 5.0, 300.0):
        observed._written, observed._pause = True, _connections._FIRST_PAUSE
        observed._known = False
        written_at, committed_at = now[0], now[0] + seconds
        pauses.clear()
        assert observed.next_changes(3600.0) is None
        assert pauses[:2] == [0.001, 0.002]
        assert seconds <= now[0] - written_at <= 1.25 * seconds + 0.01


@pytest.mark.platform
@REPORTED
def test_a_log_that_is_not_there_is_looked_for(observed, store, other, monkeypatch):
    """Without it the counter is polled as where nothing is reported."""
    watch = observed._watch
    path, watch._path = watch._path, b"/nowhere/at/all"
    assert observed.next_changes(0.03) == ()
    assert watch.waits == []
    watch._path = path
    listener = Listener(observed)
    insert(other, record_of(store.now))
    assert listener.over() == [None]


@pytest.mark.platform
@REPORTED
def test_a_watch_reports_writes_alone(tmp_path):
    """Since it was renewed; not of reads, and not of another file in the same place."""
    path = tmp_path / "log"
    path.write_bytes(b"a")
    watch = FileWatch(str(path))
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
    descriptors = watch._events, watch._end, watch._end_from
    watch.close()
    watch.close()
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


class System:
    """A system that gives no more watches."""

    def inotify_init1(self, flags):
        return -1


@pytest.mark.parametrize("system", [System(), object()])
def test_a_system_that_reports_nothing(system, monkeypatch):
    """It has no such calls, or there is a limit to them."""
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: system)
    with pytest.raises(OSError, match="reports no"):
        FileWatch("nowhere")


@pytest.mark.platform
@REPORTED
def test_a_process_that_may_open_no_more_files(monkeypatch):
    """What was opened for the watch is closed again."""
    closed = []
    monkeypatch.setattr("os.close", closed.append)

    def too_many():
        raise OSError("too many open files")

    monkeypatch.setattr("os.pipe", too_many)
    with pytest.raises(OSError, match="too many"):
        FileWatch("nowhere")
    monkeypatch.undo()
    os.close(*closed)
