"""Writes that are handed in: who leads their groups, what goes together, and what is repeated."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from lro import InvalidArgument
from lro._model.operation import request_cancel
from lro.adapters import Record
from lro.errors import OperationNotFound, RequestIdConflict, Unavailable
from lro.stores import _group_commit
from lro.stores.sqlite import SQLiteStore, _record_writes
from lro.stores.sqlite._group_commit import ActionWrite
from lro.testing import ManualClock
from lro.testing._samples import (
    DONE,
    REQUEST,
    end_of,
    held,
    insert,
    key_of,
    made_later,
    record_of,
)
from tests.stores.test_sqlite_groups import Call, Harness, write
from tests.waiting import PATIENCE


@pytest.fixture
def harness(tmp_path: Any) -> Iterator[Harness]:
    """A file with a table of numbers."""
    made = Harness(tmp_path / "operations.db")
    yield made
    made.connections.close()


class Later:
    """What has become of writes that were handed in, by their order."""

    def __init__(self) -> None:
        self.over: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._numbers = itertools.count()

    @property
    def done(self) -> Any:
        """Takes the answer or the error of the next write."""
        number = next(self._numbers)
        return lambda answer, error: self.over.put((number, answer, error))

    def all_of(self, count: int) -> list[Any]:
        """The answers, or the names of the errors, of so many writes."""
        found = sorted(
            (self.over.get(timeout=PATIENCE) for _ in range(count)), key=lambda one: one[0]
        )
        assert self.over.empty()
        return [answer if error is None else type(error).__name__ for _, answer, error in found]


# -- who leads ------------------------------------------------------------------------------------


def test_a_thread_of_its_own_leads_what_is_handed_in(harness: Harness) -> None:
    """It is started with the first, and makes what has come meanwhile together."""
    later = Later()
    with harness.held():
        for number in range(5):
            harness.connections.write_later(write(number), later.done)
    assert later.all_of(5) == [0, 1, 2, 3, 4]
    assert harness.kept == [0, 1, 2, 3, 4]
    assert harness.said.count("COMMIT") <= 2


def test_a_thread_that_waits_may_lead_what_is_handed_in(harness: Harness) -> None:
    """It came first, and each has its own answer."""
    later = Later()
    call = Call(harness, write(1))
    with harness.held() as queue:
        call.start()
        queue.reached(1)
        harness.connections.write_later(write(1), later.done)
        harness.connections.write_later(write(2), later.done)
    assert call.over() == 1
    assert later.all_of(2) == ["Unavailable", 2]  # the first is there already
    assert harness.kept == [1, 2]


def test_what_is_handed_in_may_be_followed_by_a_thread(harness: Harness) -> None:
    """It leads the next group, or goes with the first."""
    later = Later()
    calls = [Call(harness, write(number)) for number in (1, 2)]
    with harness.held() as queue:
        harness.connections.write_later(write(0), later.done)
        for place, call in enumerate(calls, 2):
            call.start()
            queue.reached(place)
    assert later.all_of(1) == [0]
    assert [call.over() for call in calls] == [1, 2]
    assert sorted(harness.kept) == [0, 1, 2]


def test_a_thread_without_work_ends(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next write that is handed in starts another."""
    monkeypatch.setattr(_group_commit, "_IDLE_SECONDS", 0.01)
    later = Later()
    for number in range(3):
        harness.connections.write_later(write(number), later.done)
        assert later.all_of(1) == [number]
        end = time.monotonic() + PATIENCE
        while harness.groups._thread is not None:
            assert time.monotonic() < end
            time.sleep(0.001)  # there is nothing to be woken by


def test_a_thread_that_is_not_its_turn_goes_on_waiting(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leads meanwhile, for longer than it would live."""
    monkeypatch.setattr(_group_commit, "_IDLE_SECONDS", 0.001)
    later = Later()
    begun, go = threading.Event(), threading.Event()

    def slow(writer: sqlite3.Connection) -> int:
        begun.set()
        assert go.wait(PATIENCE)
        return 7

    call = Call(harness, slow)
    call.start()
    assert begun.wait(PATIENCE)
    harness.connections.write_later(write(1), later.done)
    looks = []

    class Led:
        """Whether another thread leads, with a note of who asks."""

        def __bool__(self) -> bool:
            looks.append(threading.current_thread().name)
            return True

    with harness.groups._lock:
        led: Any = Led()
        harness.groups._led = led
    end = time.monotonic() + PATIENCE
    while looks.count("lro-writes") < 3:
        assert time.monotonic() < end
        time.sleep(0.001)  # there is nothing to be woken by
    go.set()
    assert call.over() == 7
    assert later.all_of(1) == [1]


def test_a_closed_store_ends_its_thread(tmp_path: Any) -> None:
    """What comes later is refused; what waits is over first."""
    harness = Harness(tmp_path / "operations.db")
    later = Later()
    harness.connections.write_later(write(0), later.done)
    assert later.all_of(1) == [0]
    thread = harness.groups._thread
    harness.connections.close()
    assert thread is not None
    thread.join(PATIENCE)
    assert not thread.is_alive()
    harness.connections.write_later(write(1), later.done)
    assert later.all_of(1) == ["Unavailable"]
    harness.connections.close()


def test_a_thread_comes_as_the_other_is_to_end(harness: Harness) -> None:
    """It leads, and the other ends after it."""
    later = Later()
    harness.connections.write_later(write(0), later.done)
    assert later.all_of(1) == [0]
    groups = harness.groups
    thread = groups._thread
    with groups._lock:  # what close() does, and a thread that comes before the other wakes
        groups._closed = True
        groups._promote()
        lone: Any = ActionWrite(action=write(1), until=time.monotonic() + PATIENCE)
        lone.gate = threading.Lock()
        lone.gate.acquire()
        groups._waiting.append(lone)
    assert lone.gate.acquire(timeout=PATIENCE)
    groups._lead(lone)
    groups._leave(lone)
    assert lone.answer == 1
    assert thread is not None
    thread.join(PATIENCE)
    assert not thread.is_alive()


@contextmanager
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread can be started, as at the end of the interpreter."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield


def test_without_threads_a_write_is_made_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the thread that hands it in; also where it fails."""
    later = Later()
    with no_threads(monkeypatch):
        harness.connections.write_later(write(0), later.done)
        harness.connections.close()
        harness.connections.write_later(write(1), later.done)
    assert later.all_of(2) == [0, "Unavailable"]


def test_locked_out_each_write_has_its_error(tmp_path: Any) -> None:
    """Others write for longer than the store waits."""
    harness = Harness(tmp_path / "operations.db", busy_seconds=0.05)
    later = Later()
    other = sqlite3.connect(harness.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(3):
        harness.connections.write_later(write(number), later.done)
    assert later.all_of(3) == ["Unavailable"] * 3
    other.close()
    harness.connections.close()


# -- what goes together, on SQLite ----------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Any) -> Iterator[SQLiteStore]:
    """A store on a new file."""
    made = SQLiteStore(tmp_path / "operations.db", clock=ManualClock())
    yield made
    made.close()


@pytest.fixture
def clock(store: SQLiteStore) -> ManualClock:
    """Its clock."""
    clock: Any = store._clock
    return clock


@contextmanager
def one_group(store: SQLiteStore) -> Iterator[Later]:
    """What is handed in meanwhile is one group."""
    writer = store._file._writer
    later = Later()
    assert writer._lock.acquire(timeout=PATIENCE)
    try:
        yield later
    finally:
        writer._lock.release()


def others_change(store: SQLiteStore, name: str, clock: ManualClock) -> None:
    """Have another process change a record, of which this store does not know."""
    other = SQLiteStore(store._file._file.path, clock=clock)
    other.update(name, request_cancel(clock()))
    other.close()


def test_a_group_is_written_in_few_statements(store: SQLiteStore, clock: ManualClock) -> None:
    """However many records it has: an insert of each kind, an update, and a removal."""
    records = [held(clock, f"r{n:03}") for n in range(100)]
    said: list[str] = []
    insert(store, record_of(clock, "first"))
    connection: Any = store._file._writer._connection
    connection.set_trace_callback(said.append)
    with one_group(store) as later:
        for record in records:
            store.insert_later(record, REQUEST, None, later.done)
    assert [one.fresh for one in later.all_of(100)] == [True] * 100
    with one_group(store) as later:
        for record in records:
            store.update_later(record.name, end_of(clock), later.done)
    found = later.all_of(100)
    assert [one.result for one in found] == [DONE] * 100
    assert [store.get(record.name) for record in records] == found
    assert store._file.rows("SELECT name FROM inputs") == [("operations/first",)]
    words = [text.split()[0] for text in said]
    assert words.count("COMMIT") <= 4
    assert len(words) <= 4 * (2 + 2 * 3)


def test_a_write_that_is_refused_keeps_no_other(store: SQLiteStore, clock: ManualClock) -> None:
    """Of a group: a name that is taken, a key used before, a record that another has changed."""
    insert(store, record_of(clock, "taken"))
    insert(store, record_of(clock, "keyed"), key_of("a"))
    with one_group(store) as later:
        store.insert_later(record_of(clock, "a"), REQUEST, None, later.done)
        store.insert_later(record_of(clock, "taken"), REQUEST, None, later.done)
        store.insert_later(record_of(clock, "b"), REQUEST, key_of("b"), later.done)
        store.insert_later(record_of(clock, "c"), REQUEST, key_of("a", "other"), later.done)
    a, taken, b, conflict = later.all_of(4)
    assert (a.record.name, b.record.name) == ("operations/a", "operations/b")
    assert (taken, conflict) == (InvalidArgument.__name__, RequestIdConflict.__name__)
    others_change(store, "operations/a", clock)
    with one_group(store) as later:
        for name in ("a", "b", "taken", "none"):
            change = partial(Record.next_version, caller="ann")
            store.update_later(f"operations/{name}", change, later.done)
    a, b, taken, none = later.all_of(4)
    assert (a.caller, a.cancel_requested) == ("ann", True)
    assert (b.caller, taken.caller, none) == ("ann", "ann", OperationNotFound.__name__)


def test_two_changes_of_a_record_follow_each_other(store: SQLiteStore, clock: ManualClock) -> None:
    """In one group too; and one that removes it, or changes nothing, goes by itself."""
    for name in "ab":
        insert(store, record_of(clock, name))
    with one_group(store) as later:
        for name, caller in (("a", "x"), ("b", "y"), ("a", "z")):
            change = partial(Record.next_version, caller=caller)
            store.update_later(f"operations/{name}", change, later.done)
        store.update_later("operations/b", lambda record: record, later.done)
    found = later.all_of(4)
    assert [one.caller for one in found] == ["x", "y", "z", "y"]
    assert store.get("operations/a").version == 3
    with one_group(store) as later:
        store.update_later("operations/a", lambda record: None, later.done)
        store.update_later("operations/b", request_cancel(clock()), later.done)
    assert later.all_of(2)[0] is None


def test_a_message_that_cannot_be_written_keeps_no_other(
    store: SQLiteStore, clock: ManualClock
) -> None:
    """It is an error of the application's; a change of no column is none."""
    for name in "abc":
        insert(store, record_of(clock, name))
    with one_group(store) as later:
        wrong = partial(Record.next_version, metadata=REQUEST.__class__("x/y", {"a": {1, 2}}))
        store.update_later("operations/a", wrong, later.done)
        store.update_later("operations/b", request_cancel(clock()), later.done)
        store.update_later(
            "operations/c", lambda record: Record.of({**record.__dict__}), later.done
        )
    wrong_one, right, same = later.all_of(3)
    assert wrong_one in ("TypeError", "EncodingError")
    assert right.cancel_requested
    assert same == store.get("operations/c")


def test_without_update_from_each_is_written_alone(
    store: SQLiteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite before 3.35 has none that says what it has updated."""
    monkeypatch.setattr(_record_writes, "UPDATE_FROM", False)
    for name in "ab":
        insert(store, record_of(clock, name))
    with one_group(store) as later:
        for name in "ab":
            store.update_later(f"operations/{name}", request_cancel(clock()), later.done)
    assert [one.cancel_requested for one in later.all_of(2)] == [True, True]


class Faulty:
    """A connection on which statements of a kind fail a number of times."""

    def __init__(self, connection: sqlite3.Connection, begins: str, undo: bool) -> None:
        self._connection = connection
        self._begins = begins
        self._undo = undo
        self.left = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(self._begins) and self.left:
            self.left -= 1
            if self._undo:
                self._connection.execute("ROLLBACK")
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *values)


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize(
    "begins",
    [
        "INSERT INTO operations (",
        "INSERT INTO inputs SELECT",
        "UPDATE operations SET",
        "DELETE FROM inputs WHERE name IN",
    ],
)
def test_a_statement_for_many_that_fails_is_made_good(
    store: SQLiteStore, clock: ManualClock, begins: str, undo: bool
) -> None:
    """Whatever SQLite has undone, each write is then made by itself, once."""
    for name in "ab":
        insert(store, held(clock, name))
    writer = store._file._writer
    connection: Any = writer._connection
    with one_group(store) as later:
        faulty: Any = Faulty(connection, begins, undo)
        writer._connection = faulty
        for name in "cd":
            store.insert_later(record_of(clock, name), REQUEST, None, later.done)
        for name in "ab":
            store.update_later(f"operations/{name}", end_of(clock), later.done)
    c, d, a, b = later.all_of(4)
    assert faulty.left == 0
    assert (c.fresh, d.fresh, a.done, b.done) == (True, True, True, True)
    writer._connection = connection
    assert [store.get(f"operations/{name}").done for name in "abcd"] == [True, True, False, False]
    assert [store.request(f"operations/{name}") for name in "cd"] == [REQUEST, REQUEST]


def test_a_store_without_batches_runs_each_alone(harness: Harness) -> None:
    """The groups of other tables know of no records."""
    later = Later()
    with harness.held():
        harness.connections.write_later(write(1), later.done)
        harness.connections.write_later(write(2), later.done)
    assert later.all_of(2) == [1, 2]


def test_what_was_answered_is_there_for_other_connections(
    store: SQLiteStore, clock: ManualClock
) -> None:
    """Committed means committed: another process reads it."""
    found = made_later(partial(store.insert_later, record_of(clock), REQUEST, None))
    other = SQLiteStore(store._file._file.path, clock=clock)
    assert other.get("operations/a") == found.record
    other.close()


def test_made_later_raises_what_is_raised_at_once(store: SQLiteStore, clock: ManualClock) -> None:
    """A text that no database keeps is refused before anything is queued."""
    wrong: Callable[[], Any] = partial(
        made_later, partial(store.insert_later, record_of(clock, caller="a\0"), REQUEST, None)
    )
    with pytest.raises(InvalidArgument):
        wrong()
    store.close()
    with pytest.raises(Unavailable):
        made_later(partial(store.insert_later, record_of(clock), REQUEST, None))
