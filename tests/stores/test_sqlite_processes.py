"""Several processes on one file: locks, kills within a transaction, forks, notifications."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager

import pytest

from lro.errors import OperationNotFound, Unavailable
from lro.stores.sqlite import SQLiteStore, _connections
from lro.stores.sqlite._connections import FileConnections
from lro.testing import ManualClock
from lro.testing._samples import end_of, ids, insert, record_of, together
from tests.services.processes import killed_at_end
from tests.waiting import PATIENCE

PRELUDE = """
import os, sys, threading
from datetime import UTC, datetime
from lro._base.status import Any
from lro._model.operation import Record
from lro.stores.sqlite import SQLiteStore

def insert(store, unique_id):
    now = datetime.now(UTC)
    name = f"operations/{unique_id}"
    record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
    assert store.insert(record, Any(), None).fresh

def say(text):
    os.write(1, f"{text}\\n".encode())  # at once: two processes may speak

store = SQLiteStore(sys.argv[1])
say("ready")
"""

LOCKER = """
connection = store._file._writer._connection
connection.execute("BEGIN IMMEDIATE")
say("locked")
sys.stdin.readline()
connection.execute("ROLLBACK")
say("released")
sys.stdin.readline()
"""

DYING = """
def action(writer):
    writer.execute("UPDATE operations SET caller = 'half done'")
    say("inside")
    sys.stdin.readline()

store._file.write(action)
"""

DYING_AFTER = """
insert(store, "b")
say("inside")
sys.stdin.readline()
"""

CROWD = """
sys.stdin.readline()
def work(number):
    for turn in range(8):
        insert(store, f"{sys.argv[2]}-{number}-{turn}")
        name = f"operations/{sys.argv[2]}-{number}-{turn}"
        store.update(name, lambda record: record.next_version())
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
store.close()
say("done")
"""

SPEAKER = """
sys.stdin.readline()
insert(store, "spoken")
say("spoken")
sys.stdin.readline()
"""

FORKING = """
insert(store, "before")
store.get("operations/before")
child = os.fork()
if child == 0:
    insert(store, "in the child")
    say("child")
    sys.stdin.readline()
    insert(store, "in the child, later")
    store.close()
    os._exit(0)
insert(store, "in the parent")
say("parent")
store.close()
say("closed")
assert os.waitpid(child, 0)[1] == 0
say("over")
"""

FORKING_OFTEN = """
stop = threading.Event()
done = [0] * 4
def write(number):
    while not stop.is_set():
        insert(store, f"{number}-{done[number]}")
        done[number] += 1
        store.page("", None, 5)
threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for fork in range(5):
    child = os.fork()
    if child == 0:
        for turn in range(5):
            insert(store, f"child-{fork}-{turn}")
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
store.close()
say(sum(done))
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "operations.db"


@contextmanager
def process(program, *arguments):
    """A process of its own that has opened the file; killed at the end."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + program]
    pipe = subprocess.PIPE
    with killed_at_end([*command, *map(str, arguments)], stdin=pipe, stdout=pipe) as running:
        assert running.stdout.readline() == "ready\n"
        yield running


def signal(running):
    """Let a process go on."""
    running.stdin.write("go\n")
    running.stdin.flush()


def hears(running, text):
    """Whether the next line of a process is this text."""
    return running.stdout.readline() == f"{text}\n"


def sound(path):
    """Whether SQLite finds nothing wrong with a file."""
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_another_process_holds_the_lock(path):
    """Writers wait and then write, one that waits too long gets an error, readers go on."""
    clock = ManualClock()
    with (
        closing(SQLiteStore(path, clock=clock, busy_seconds=PATIENCE)) as patient,
        closing(SQLiteStore(path, clock=clock, busy_seconds=0.05)) as hasty,
    ):
        insert(patient, record_of(clock))
        with process(LOCKER, path) as locker:
            assert hears(locker, "locked")
            found = []
            writers = [
                threading.Thread(
                    target=lambda n=n: found.append(insert(patient, record_of(clock, str(n))))
                )
                for n in range(4)
            ]
            for writer in writers:
                writer.start()
            with pytest.raises(Unavailable, match="SQLITE_BUSY"):
                insert(hasty, record_of(clock, "hasty"))
            assert ids(patient.page("", None, 9).records) == ["a"]
            assert hasty.get("operations/a") == record_of(clock)
            assert found == []
            signal(locker)
            assert hears(locker, "released")
            for writer in writers:
                writer.join(PATIENCE)
            assert [one.fresh for one in found] == [True] * 4
        assert ids(patient.page("", None, 9).records) == ["0", "1", "2", "3", "a"]


@pytest.mark.parametrize("open_before", [True, False])
def test_a_process_dies_within_a_transaction(path, open_before):
    """What it had not committed is not there, and its lock is free."""
    clock = ManualClock()
    with closing(SQLiteStore(path, clock=clock)) as store:
        insert(store, record_of(clock))
        with process(DYING, path) as dying:
            assert hears(dying, "inside")
            if not open_before:
                store.close()
            dying.kill()
            dying.wait(PATIENCE)
        with closing(SQLiteStore(path, clock=clock)) as other:
            present = store if open_before else other
            assert present.get("operations/a") == record_of(clock)
            assert present.update("operations/a", end_of(clock)).done
    assert sound(path)


def test_the_last_process_dies(path):
    """Its log is recovered by the next process, and by those that come at once with it."""
    clock = ManualClock()
    with process(DYING_AFTER, path) as dying:
        assert hears(dying, "inside")
        dying.kill()
        dying.wait(PATIENCE)
    found = together(4, lambda _: SQLiteStore(path, clock=clock))
    assert [type(one) for one in found] == [SQLiteStore] * 4
    for store in found:
        assert store.get("operations/b").method == "M"
        store.close()
    assert sound(path)


def test_a_crowd_of_processes_loses_nothing(path):
    """Each with threads that write: everything is there, once, and the file is sound."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(process(CROWD, path, number)) for number in range(3)]
        for one in crowd:
            signal(one)
        assert [hears(one, "done") for one in crowd] == [True] * 3
    with closing(SQLiteStore(path)) as store:
        wanted = {f"{p}-{t}-{n}" for p in range(3) for t in range(3) for n in range(8)}
        found = store.page("", None, 999).records
        assert set(ids(found)) == wanted
        assert {record.version for record in found} == {2}
    assert sound(path)


def test_what_another_process_commits_is_notified(path):
    """By the change counter alone: nothing is sent."""
    with (
        closing(SQLiteStore(path)) as store,
        process(SPEAKER, path) as speaker,
        closing(store.listen()) as subscription,
    ):
        assert subscription.next_changes(0) == ()
        signal(speaker)
        assert subscription.next_changes(PATIENCE) is None
        assert store.get("operations/spoken").method == "M"


# -- forks ----------------------------------------------------------------------------------------

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@pytest.mark.platform
@FORKS
def test_both_processes_write_after_a_fork(path):
    """Also when one has closed: the log that the other writes to is not taken from it."""
    with process(FORKING, path) as running:
        said = {running.stdout.readline() for _ in range(3)}
        assert said == {"child\n", "parent\n", "closed\n"}
        with closing(SQLiteStore(path)) as store:
            assert len(store.page("", None, 9).records) == 3
        signal(running)
        assert hears(running, "over")
    with closing(SQLiteStore(path)) as store:
        assert sorted(ids(store.page("", None, 9).records)) == [
            "before",
            "in the child",
            "in the child, later",
            "in the parent",
        ]
    assert sound(path)


@pytest.mark.platform
@FORKS
def test_forks_during_reads_and_writes(path):
    """Every one comes at a moment at which no connection is open, and nothing is lost."""
    with process(FORKING_OFTEN, path) as running:
        total = int(running.stdout.readline())
    with closing(SQLiteStore(path)) as store:
        found = ids(store.page("", None, 100_000).records)
        assert len(found) == len(set(found)) == total + 25
        assert {f"child-{f}-{t}" for f in range(5) for t in range(5)} <= set(found)
    assert sound(path)


@pytest.fixture
def connections(path):
    made = FileConnections(str(path), 1.0)
    made.write(lambda writer: writer.execute("CREATE TABLE kept (x)"))
    yield made
    made._file.reset_after_fork()
    made.close()


def put(x):
    """An action that writes a number."""
    return lambda writer: writer.execute("INSERT INTO kept VALUES (?)", (x,)).rowcount


def test_no_connection_is_open_in_a_fork(connections):
    """The one that writes and those that read are closed before; the next calls open them."""
    assert connections.rows("SELECT * FROM kept") == []
    writer, reader = connections._writer._connection, connections._readers._idle[0]
    connections.pause()
    for closed in (writer, reader):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            closed.execute("SELECT 1")
    waiting = threading.Thread(target=connections.rows, args=("SELECT 1",))
    waiting.start()
    connections.resume()
    waiting.join(PATIENCE)
    assert connections.write(put(1)) == 1
    assert connections.rows("SELECT * FROM kept") == [(1,)]


def test_a_fork_waits_for_those_that_read(connections):
    """Their connections are out, and come back soon."""
    reader = connections._readers._take()
    paused, resumed = threading.Event(), threading.Event()

    def fork():
        connections.pause()
        paused.set()
        connections.resume()
        resumed.set()

    forking = threading.Thread(target=fork)
    forking.start()
    connections._readers._give_back(reader)
    forking.join(PATIENCE)
    assert (paused.is_set(), resumed.is_set()) == (True, True)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        reader.execute("SELECT 1")


def test_the_child_starts_without_connections(connections):
    """With new locks, an empty queue, and connections of its own; closed stays closed."""
    with connections._transactions._lock:
        connections._transactions._led = True  # a thread of the parent leads
        connections.pause()
        connections._reset_after_fork()
    assert connections.write(put(1)) == 1
    assert connections.rows("SELECT * FROM kept") == [(1,)]
    connections.close()
    connections.pause()
    connections._reset_after_fork()
    with pytest.raises(Unavailable, match="the store is closed"):
        connections.write(put(2))


@pytest.mark.parametrize("busy", ["writer", "lock", "reader"])
def test_a_fork_during_a_call_that_does_not_end(connections, busy):
    """It does not wait for ever. The parent goes on; the child's store says that it cannot."""
    connections._file.busy_seconds = -0.99
    reader = None
    if busy == "reader":
        reader = connections._readers._take()
    else:
        (connections._writer if busy == "writer" else connections._readers)._lock.acquire()
    connections.pause()
    connections.resume()
    if busy == "reader":
        connections._readers._give_back(reader)
    else:
        (connections._writer if busy == "writer" else connections._readers)._lock.release()
    connections._file.busy_seconds = 1.0
    assert connections.write(put(1)) == 1
    assert connections.rows("SELECT * FROM kept") == [(1,)]

    kept = len(_connections._inherited)
    connections._reset_after_fork()  # as in the child
    try:
        for call in (lambda: connections.write(put(2)), lambda: connections.rows("SELECT 1")):
            with pytest.raises(Unavailable, match="forked while the store was busy"):
                call()
        connections.close()
        inherited = _connections._inherited[kept:]
        assert len(inherited) == 2
        assert [one.execute("SELECT 5").fetchone() for one in inherited] == [(5,)] * 2
    finally:
        for one in _connections._inherited[kept:]:
            one.close()
        del _connections._inherited[kept:]


@pytest.mark.platform
@FORKS
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_leaves_all_stores_usable(connections, tmp_path):
    """Also those that are closed."""
    other = FileConnections(str(tmp_path / "other.db"), 1.0)
    other.close()
    before = connections._writer._connection
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert connections.write(put(1)) == 1
    assert connections._writer._connection is not before
    with pytest.raises(Unavailable):
        other.write(put(1))


def test_only_who_paused_resumes(connections):
    """Another thread that forks at the same time, and could not pause, leaves the first alone."""
    connections.pause()
    other = threading.Thread(target=connections.resume)
    other.start()
    other.join(PATIENCE)
    assert connections._writer._lock.locked()
    connections.resume()
    assert not connections._writer._lock.locked()


def test_what_was_remembered_is_not_inherited(path):
    """A thread of the parent may have been in the middle of a change of it."""
    clock = ManualClock()
    with closing(SQLiteStore(path, clock=clock)) as store:
        insert(store, record_of(clock))
        assert store._cache.get("operations/a") is not None
        store._cache.reset_after_fork()
        assert store._cache.get("operations/a") is None
        assert store.get("operations/a") == record_of(clock)
        with pytest.raises(OperationNotFound):
            store.get("operations/b")
