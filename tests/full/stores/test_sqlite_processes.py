"""Several processes on one SQLite file: kills, locks, forks and notifications."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager

import pytest

from lro.stores.sqlite import SQLiteStore
from tests.services.processes import killed_at_end
from tests.stores.samples import end_of, held, insert, listed
from tests.waiting import PATIENCE

PRELUDE = """
import os, sqlite3, sys, threading, time
from datetime import UTC, datetime, timedelta
from lro import AnyMessage
from lro.adapters import Record
from lro.errors import Unavailable
from lro.stores.sqlite import SQLiteStore

def insert(store, unique_id, request=AnyMessage()):
    now = datetime.now(UTC)
    name = f"operations/{unique_id}"
    record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
    assert store.insert(record, request, None).fresh
    return name

def say(text):
    os.write(1, f"{text}\\n".encode())  # at once: two processes may speak

def wait():
    sys.stdin.readline()
"""

OPENER = """
say("ready")
wait()
store = SQLiteStore(sys.argv[1])
def work(number):
    for turn in range(8):
        name = insert(store, f"{sys.argv[2]}-{number}-{turn}")
        store.update(name, lambda record: record.next_version())
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say(store.secret().hex())
store.close()
"""

DYING = """
store = SQLiteStore(sys.argv[1])
name = insert(store, "a")

def change(record):
    say("inside")
    wait()

store.update(name, change)
"""

SPEAKER = """
store = SQLiteStore(sys.argv[1])
say("ready")
wait()
insert(store, "spoken")
wait()
"""

LOSING_ITS_LOG = """
store = SQLiteStore(sys.argv[1])
insert(store, "0")
open(sys.argv[1], "rb").close()  # the system drops all locks that this process has on the file
say("ready")
wait()
done, end = 1, time.monotonic() + 60
try:
    while time.monotonic() < end:
        insert(store, f"{done}")
        done += 1
    say(f"{done} nothing")
except Unavailable as exc:
    say(f"{done} {exc}")
wait()
"""

FORKING = """
store = SQLiteStore(sys.argv[1])
closed = SQLiteStore(sys.argv[1] + "-other")
closed.close()
store.get(insert(store, "before"))
child = os.fork()
if child == 0:
    insert(store, "in the child")
    say("child")
    wait()
    insert(store, "in the child, later")
    store.close()
    os._exit(0)
insert(store, "in the parent")
assert store.get("operations/before")
say("parent")
store.close()
for one in (store, closed):
    try:
        one.get("operations/before")
    except Unavailable:
        say("closed")
assert os.waitpid(child, 0)[1] == 0
say("over")
"""

FORKING_OFTEN = """
store, stop, done = SQLiteStore(sys.argv[1]), threading.Event(), [0] * 4
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

FORKING_WHILE_BUSY = """
begun, go, connect = threading.Event(), threading.Event(), sqlite3.connect

class Slow(sqlite3.Connection):
    def execute(self, statement, *values):
        slow = threading.current_thread() is not threading.main_thread()
        if slow and statement.startswith(sys.argv[2]) and not begun.is_set():
            begun.set()
            go.wait(60)
        return super().execute(statement, *values)

sqlite3.connect = lambda *given, **options: connect(*given, factory=Slow, **options)
store = SQLiteStore(sys.argv[1], busy_seconds=0)
calls = {"UPDATE": lambda: store.update(name, lambda r: r.next_version(caller="c"))}
name = insert(store, "a")
store.get(name)
slow = threading.Thread(target=calls.get(sys.argv[2], lambda: store.get(name)))
slow.start()
begun.wait(60)
child = os.fork()
if child == 0:
    for call in (lambda: insert(store, "b"), lambda: store.get(name), store.listen):
        try:
            call()
        except Unavailable as exc:
            say(exc)
    store.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
go.set()
slow.join()
insert(store, "in the parent")
assert store.get(name)
say("over")
"""

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@contextmanager
def process(program, *arguments):
    """Run a program in its own process; kill the process at the end."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + program]
    pipe = subprocess.PIPE
    with killed_at_end([*command, *map(str, arguments)], stdin=pipe, stdout=pipe) as running:
        yield running


def signal(running):
    """Let a process continue."""
    running.stdin.write("go\n")
    running.stdin.flush()


def hears(running):
    """Return the next line that a process prints."""
    return running.stdout.readline().strip()


def sound(path):
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("open_before", [True, False])
def test_killed_process_leaves_no_uncommitted_write_and_no_lock(path, clock, open_before):
    """After a kill, the process's uncommitted writes are gone and its lock is free."""
    with closing(SQLiteStore(path, clock=clock)) as store, process(DYING, path) as dying:
        assert hears(dying) == "inside"
        if not open_before:
            store.close()
        dying.kill()
        dying.wait(PATIENCE)
        with closing(SQLiteStore(path, clock=clock)) as other:
            present = store if open_before else other
            assert present.get("operations/a").version == 1
            assert present.update("operations/a", end_of(clock)).done
    assert sound(path)


def test_many_processes_open_a_new_file_without_losing_writes(path):
    """Three processes with threads open a new file: no write is lost, and all share one secret."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(process(OPENER, path, number)) for number in range(3)]
        assert [hears(one) for one in crowd] == ["ready"] * 3
        for one in crowd:
            signal(one)
        secrets = {hears(one) for one in crowd}
    with closing(SQLiteStore(path)) as store:
        assert secrets == {store.secret().hex()}
        assert {*listed(store)} == {
            f"{p}-{t}-{n}" for p in range(3) for t in range(3) for n in range(8)
        }
        assert {record.version for record in store.page("", None, 999).records} == {2}
    assert sound(path)


def test_commit_of_another_process_is_notified(path):
    """A commit of another process is noticed by the file's change counter, without a message."""
    with (
        closing(SQLiteStore(path)) as store,
        process(SPEAKER, path) as speaker,
        closing(store.listen()) as subscription,
    ):
        assert hears(speaker) == "ready"
        subscription.next_changes(0)
        signal(speaker)
        assert subscription.next_changes(PATIENCE) is None
        assert store.get("operations/spoken").method == "M"


@pytest.mark.parametrize("how", ["by SQLite", "by hand"])
def test_acknowledged_writes_survive_a_removed_write_ahead_log(path, how):
    """A process reports within a second that its log is gone; no acknowledged write is lost."""
    with process(LOSING_ITS_LOG, path) as running:
        assert hears(running) == "ready"
        if how == "by SQLite":
            SQLiteStore(path).close()  # SQLite sees no other user of the file
        else:
            path.with_name(f"{path.name}-wal").unlink()
        assert not path.with_name(f"{path.name}-wal").exists()
        signal(running)
        done, _, why = hears(running).partition(" ")
        running.kill()
    assert why.startswith("the log of the operations database was deleted or replaced")
    with closing(SQLiteStore(path)) as store:
        assert sorted(listed(store)) == sorted(map(str, range(int(done))))
    assert sound(path)


def test_file_is_usable_by_others_after_a_process_lost_its_log(path):
    """A process that starts later uses a new log, and its writes stay."""
    with process(LOSING_ITS_LOG, path) as running:
        assert hears(running) == "ready"
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink()
        with closing(SQLiteStore(path)) as store:
            signal(running)
            assert "was deleted or replaced" in hears(running)
            insert(store, held(store.now, "later"))
            running.kill()
            running.wait(PATIENCE)
            assert "later" in listed(store)
    with closing(SQLiteStore(path)) as store:
        assert "later" in listed(store)
    assert sound(path)


@pytest.mark.platform
@FORKS
def test_parent_and_child_write_after_a_fork(path):
    """After a fork, parent and child can both write, even if one closes its store."""
    with process(FORKING, path) as running:
        assert sorted(hears(running) for _ in range(4)) == ["child", "closed", "closed", "parent"]
        with closing(SQLiteStore(path)) as store:
            assert len(listed(store)) == 3
        signal(running)
        assert hears(running) == "over"
    with closing(SQLiteStore(path)) as store:
        assert listed(store) == ["before", "in the child", "in the child, later", "in the parent"]
    assert sound(path)


@pytest.mark.platform
@FORKS
def test_forks_during_reads_and_writes_lose_nothing(path):
    """Forks during reads and writes wait until no connection is in use; no write is lost."""
    with process(FORKING_OFTEN, path) as running:
        total = int(hears(running))
    with closing(SQLiteStore(path)) as store:
        found = listed(store)
        assert len(found) == len(set(found)) == total + 25
        assert {f"child-{f}-{t}" for f in range(5) for t in range(5)} <= set(found)
    assert sound(path)


@pytest.mark.platform
@FORKS
@pytest.mark.parametrize("busy", ["UPDATE", "SELECT"])
def test_fork_during_a_hanging_call_closes_the_store_of_the_child(path, busy):
    """A fork does not wait for a hanging call; only the child's store becomes unusable."""
    with process(FORKING_WHILE_BUSY, path, busy) as running:
        said = [hears(running) for _ in range(4)]
        assert running.wait(PATIENCE) == 0
    why = "the process was forked while the store was busy; open another one"
    assert said == [why] * 3 + ["over"]
    with closing(SQLiteStore(path)) as store:
        assert listed(store) == ["a", "in the parent"]
    assert sound(path)
