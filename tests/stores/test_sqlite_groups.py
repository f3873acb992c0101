"""Writes that share a SQLite transaction: each has the result that it would have alone."""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sqlite3
import sys
import threading
from collections import Counter
from contextlib import closing, contextmanager
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lro import AnyMessage, InvalidArgument
from lro.errors import OperationNotFound, Unavailable
from lro.stores import _group_commit
from lro.stores.sqlite import SQLiteStore, _writer
from lro.stores.sqlite._writer import FairLock
from lro.testing import ManualClock
from tests.stores.samples import (
    DONE,
    REQUEST,
    Later,
    called,
    cancel_of,
    changed_later,
    end_of,
    held,
    insert,
    key_of,
    kinds,
    listed,
    made_later,
    record_of,
    removal,
    together,
)
from tests.stores.wires import filled, sqlite_error, stranger
from tests.waiting import PATIENCE, joined, threads_from_now, until

BEGIN = "BEGIN IMMEDIATE"


@contextmanager
def one_group(store, wire):
    """Queue the block's writes in one group."""
    later, go = Later(store), threading.Event()
    wire.when(BEGIN, lambda _: go.wait(PATIENCE))
    try:
        yield later
    finally:
        go.set()


def interrupt(_):
    """Interrupt the leading thread, as Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.fixture
def threads_that_write():
    """Return a function that lists this test's threads that lead queued writes."""
    return threads_from_now("lro-writes")


# -- grouping -------------------------------------------------------------------------------------


def test_a_group_is_one_transaction_of_few_statements(file_store, clock, wire):
    """A group of 100 writes takes few statements; each write has the result of a single write."""
    insert(file_store, record_of(clock, "first"))
    records = [held(clock, f"r{n:03}") for n in range(100)]
    with one_group(file_store, wire) as later:
        wire.said.clear()
        for record in records:
            later.insert(record)
    assert [one.fresh for one in later.all()] == [True] * 100
    with one_group(file_store, wire):
        for record in records:
            later.update(record.name.partition("/")[2], end_of(clock))
    found = later.all()
    assert [one.result for one in found] == [DONE] * 100
    words = Counter(text.split()[0] for text in wire.said)
    assert words == {"BEGIN": 2, "COMMIT": 2, "INSERT": 4, "UPDATE": 2, "DELETE": 2}
    assert [file_store.get(record.name) for record in records] == found
    assert file_store.request("operations/first") == REQUEST
    with pytest.raises(OperationNotFound):
        file_store.request(records[0].name)


def test_outdated_records_leave_the_rest_of_a_group_together(file_store, clock, wire, path):
    """Only records that another process has changed are written one by one; no change is lost."""
    records = [held(clock, f"r{n}") for n in range(10)]
    for record in records:
        insert(file_store, record)
    with closing(SQLiteStore(path, clock=clock)) as other:
        other.update(records[3].name, cancel_of(clock))
    clock.advance(1)
    with one_group(file_store, wire) as later:
        wire.said.clear()
        for n in range(10):
            later.update(f"r{n}", end_of(clock))
    found = later.all()
    assert [one.result for one in found] == [DONE] * 10
    assert [one.cancel_requested for one in found] == [n == 3 for n in range(10)]
    assert [file_store.get(record.name) for record in records] == found
    words = Counter(text.split()[0] for text in wire.said)
    assert (words["UPDATE"], words["COMMIT"], words["SAVEPOINT"]) == (3, 1, 0)


def test_no_write_returns_before_the_commit(file_store, clock, wire, path):
    """Before the commit, no reader sees the writes and no caller gets an answer."""
    seen, answered = [], []
    wire.when("COMMIT", lambda _: seen.append((listed(file_store), list(answered))))
    with one_group(file_store, wire) as later:
        for name in "ab":
            file_store.insert_later(
                record_of(clock, name), REQUEST, None, lambda found, _: answered.append(found)
            )
        later.insert(record_of(clock, "c"))
    later.all()
    assert seen == [([], [])]
    until(lambda: len(answered) == 2)
    assert {one.record.name for one in answered} == {"operations/a", "operations/b"}
    with closing(SQLiteStore(path, clock=clock)) as other:
        assert listed(other) == ["a", "b", "c"]


def test_sqlite_without_update_from_writes_records_one_by_one(file_store, clock, wire, monkeypatch):
    """SQLite before 3.33 lacks UPDATE FROM, so records are updated one by one."""
    monkeypatch.setattr("lro.stores.sqlite._record_writes.UPDATE_FROM", False)
    for name in "ab":
        insert(file_store, record_of(clock, name))
    with one_group(file_store, wire) as later:
        for name in "ab":
            later.update(name, cancel_of(clock))
    assert [one.cancel_requested for one in later.all()] == [True, True]


STATEMENTS = (
    "INSERT OR FAIL INTO lro_operations (",
    "INSERT OR FAIL INTO lro_inputs SELECT",
    "UPDATE OR FAIL operations SET",
    "DELETE FROM lro_inputs WHERE name IN",
)


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("begins", STATEMENTS)
def test_failed_group_statement_is_replaced_by_single_writes(file_store, clock, wire, begins, undo):
    """If a group's statement fails, with or without a rollback, each write is made alone, once."""

    def fail(connection):
        if undo:
            connection.execute("ROLLBACK")
        raise sqlite_error(sqlite3.SQLITE_IOERR, "SQLITE_IOERR")

    for name in "ab":
        insert(file_store, held(clock, name))
    with one_group(file_store, wire) as later:
        wire.when(begins, fail)
        for name in "cd":
            later.insert(record_of(clock, name))
        for name in "ab":
            later.update(name, end_of(clock))
    c, d, a, b = later.all()
    assert (c.fresh, d.fresh, a.done, b.done) == (True, True, True, True)
    assert [file_store.get(f"operations/{n}").done for n in "abcd"] == [True, True, False, False]
    assert [file_store.request(f"operations/{name}") for name in "cd"] == [REQUEST, REQUEST]


WRITES = (
    *("inserts", "repeats", "with a key", "with that key", "with that key, but another"),
    *("changes", "changes elsewhere", "removes", "fails", "cannot be written"),
)


@settings(max_examples=25)
@given(groups=st.lists(st.lists(st.sampled_from(WRITES), min_size=1, max_size=6), max_size=4))
def test_grouped_writes_have_the_results_of_single_writes(groups, tmp_path_factory):
    """Grouped writes have the same results, and leave the same records, as single writes."""
    clock = ManualClock()
    paths = [tmp_path_factory.mktemp("g") / "a.db" for _ in "ab"]
    stores = [filled(path, clock, ["first"]) for path in paths]
    number = 0
    for group in groups:
        found = []
        begun = number
        for alone, store, path in zip((True, False), stores, paths, strict=True):
            number = begun
            later, answers = Later(store), []
            if "changes elsewhere" in group:
                with closing(SQLiteStore(path, clock=clock)) as other:
                    other.update("operations/first", cancel_of(clock))
            for kind in group:
                number += 1
                hand_in(later, kind, number, clock)
                answers += later.all() if alone else []
            answers += later.all()
            found.append([str(one) if isinstance(one, BaseException) else one for one in answers])
        assert found[0] == found[1]
        pages = [store.page("", None, 99).records for store in stores]
        assert pages[0] == pages[1]
    for store in stores:
        store.close()


def unwritable(record):
    """Change a record's metadata to a value that JSON cannot represent."""
    return record.next_version(metadata=AnyMessage("x/y", {"a": {1}}))


def hand_in(later, kind, number, clock):
    """Queue a write of this kind."""
    record = record_of(clock, str(number))
    actions = {
        "inserts": lambda: later.insert(record),
        "repeats": lambda: later.insert(record_of(clock, "first")),
        "with a key": lambda: later.insert(record, key_of(str(number))),
        "with that key": lambda: later.insert(record, key_of("r")),
        "with that key, but another": lambda: later.insert(record, key_of("r", "other")),
        "changes": lambda: later.update("first", called(str(number))),
        "changes elsewhere": lambda: later.update("first", called(str(number))),
        "cannot be written": lambda: later.update("first", unwritable),
        "removes": lambda: later.update(str(number - 1), removal),
        "fails": lambda: later.update("first", lambda _: 1 / 0),
    }
    actions[kind]()


# -- errors and interrupted threads ---------------------------------------------------------------


def test_failed_commit_fails_all_writes_of_the_group(file_store, clock, wire):
    """Each write of a failed commit has its own error; a write refused before keeps its reason."""
    insert(file_store, record_of(clock, "taken"))
    with one_group(file_store, wire) as later:
        wire.fail("COMMIT")
        for name in ("a", "taken", "b"):
            later.insert(record_of(clock, name))
    found = later.all()
    assert kinds(found) == ["Unavailable", "InvalidArgument", "Unavailable"]
    assert found[0] is not found[2]
    assert listed(file_store) == ["taken"]
    assert insert(file_store, record_of(clock, "a")).fresh


def test_failed_rollback_closes_the_connection(file_store, clock, wire):
    """After a failed rollback no caller waits forever, and the next transaction reconnects."""
    before = len(wire.connections)
    wire.fail("ROLLBACK")
    wire.fail("INSERT INTO lro_inputs")
    with pytest.raises(Unavailable):
        insert(file_store, record_of(clock))
    assert insert(file_store, record_of(clock)).fresh
    assert len(wire.connections) == before + 1


def test_lock_lost_during_the_retry_fails_every_write(wire, path, clock):
    """If another process takes and keeps the lock before a group is retried, every write fails."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=0.3)) as store:
        with stranger(path, "PRAGMA user_version") as other:
            with one_group(store, wire) as later:
                wire.fail("INSERT OR FAIL INTO lro_inputs SELECT")
                wire.when("ROLLBACK", lambda one: sqlite3.Connection.execute(one, "ROLLBACK") and 1)
                wire.when(BEGIN, lambda _: None if other.in_transaction else other.execute(BEGIN))
                for name in "ab":
                    later.insert(record_of(clock, name))
            assert kinds(later.all()) == ["Unavailable"] * 2  # the other process has the lock
        assert listed(store) == []


@pytest.mark.parametrize(
    "begins", ["INSERT OR FAIL INTO lro_operations", "INSERT OR FAIL INTO lro_inputs", "SAVEPOINT"]
)
def test_interrupted_leader_leaves_other_writes_to_the_next(file_store, clock, wire, begins):
    """An interrupted leader's own write is rolled back; the other writes of its group are made."""
    later = Later(file_store)
    wire.when(BEGIN, lambda _: [later.insert(record_of(clock, name)) for name in "bc"])
    if begins == "SAVEPOINT":
        wire.fail("INSERT OR FAIL INTO lro_inputs")
    wire.when(begins, interrupt)
    with pytest.raises(KeyboardInterrupt):
        insert(file_store, record_of(clock))
    assert kinds(later.all()) == ["done", "done"]
    assert listed(file_store) == ["b", "c"]
    assert insert(file_store, record_of(clock)).fresh


def test_interrupt_after_the_commit_keeps_all_results(file_store, clock, wire):
    """An interrupt after the commit undoes no write: the other callers get their results."""

    def commit(connection):
        sqlite3.Connection.execute(connection, "COMMIT")
        raise KeyboardInterrupt

    later = Later(file_store)
    wire.when(BEGIN, lambda _: [later.insert(record_of(clock, name)) for name in "bc"])
    wire.when("COMMIT", commit)
    with pytest.raises(KeyboardInterrupt):
        insert(file_store, record_of(clock))
    assert kinds(later.all()) == ["done", "done"]
    assert listed(file_store) == ["a", "b", "c"]


def test_queued_writes_are_made_after_their_thread_is_interrupted(file_store, clock, wire):
    """An interrupted write fails with KeyboardInterrupt; the other queued writes are made."""
    with one_group(file_store, wire) as later:
        wire.when("INSERT OR FAIL INTO lro_operations", interrupt)
        for name in "abc":
            later.insert(record_of(clock, name))
    assert kinds(later.all()) == ["KeyboardInterrupt", "done", "done"]
    assert listed(file_store) == ["b", "c"]


@pytest.mark.platform
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signal can be sent to a thread")
@pytest.mark.parametrize(("leads", "where"), [(True, "begin"), (False, "_follow")])
def test_interrupt_while_waiting_cancels_only_that_write(file_store, clock, wire, leads, where):
    """If a thread is interrupted while its write waits, only this write is cancelled."""
    main, over = threading.get_ident(), threading.Event()
    begun, go = threading.Event(), threading.Event()
    later = Later(file_store)

    def handle(number, frame):
        if frame.f_code.co_name == where:  # the thread is waiting
            over.set()
            raise KeyboardInterrupt

    def send_signals():
        while not over.wait(0.01):
            signal.pthread_kill(main, signal.SIGINT)

    insert_done(file_store, clock)
    wire.when(BEGIN, lambda _: (begun.set(), go.wait(PATIENCE)))
    busy = file_store.expire if leads else lambda _: later.insert(record_of(clock, "b"))
    other = threading.Thread(target=busy, args=(9,))
    interrupter = threading.Thread(target=send_signals)
    before = signal.signal(signal.SIGINT, handle)
    try:
        other.start()
        assert begun.wait(PATIENCE)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            insert(file_store, record_of(clock))
    finally:
        over.set()
        joined(interrupter)
        signal.signal(signal.SIGINT, before)
        go.set()
    joined(other)
    later.insert(record_of(clock, "c"))
    assert set(kinds(later.all())) == {"done"}
    assert listed(file_store) == (["c"] if leads else ["b", "c"])


def insert_done(store, clock):
    """Insert a record that ``expire`` can remove."""
    insert(store, record_of(clock, "old"))
    store.update("operations/old", end_of(clock, days=1))
    clock.advance(days=2)


# -- leading threads ------------------------------------------------------------------------------


def test_direct_and_queued_writes_share_groups_without_loss(file_store, clock, wire):
    """Direct and queued writes in groups of any size have true results, and none is lost."""
    later = Later(file_store)
    wire.said.clear()

    def work(base):
        for number in range(12):
            insert(file_store, record_of(clock, f"{base}-{number}"))
            if number % 4 == 3:
                with pytest.raises(InvalidArgument, match="is taken"):
                    insert(file_store, record_of(clock, f"{base}-{number}"))

    for number in range(60):
        later.insert(record_of(clock, f"later-{number}"))
    assert together(8, work) == [None] * 8
    assert kinds(later.all()) == ["done"] * 60
    assert len(listed(file_store)) == 8 * 12 + 60
    assert wire.said.count("COMMIT") < 8 * 12 + 60


def test_idle_write_thread_ends_and_is_replaced(threads_that_write, file_store, clock, monkeypatch):
    """An idle write thread ends, and the next queued write starts a new one."""
    monkeypatch.setattr("lro.stores._group_commit._IDLE_SECONDS", 0.01)
    for name in "abc":
        assert made_later(file_store, record_of(clock, name)).fresh
        until(threads_that_write, lambda found: not found)


def test_write_thread_waits_while_another_leads(file_store, clock, wire, monkeypatch):
    """A write thread whose turn has not come waits, even for longer than an idle thread lives."""
    monkeypatch.setattr("lro.stores._group_commit._IDLE_SECONDS", 0.001)
    later, turns, live_on = Later(file_store), [], _group_commit.GroupCommit._live_on

    def noted(self, *, timely):
        turns.append(timely)
        return live_on(self, timely=timely)

    def hand_in_slowly(_):
        later.insert(record_of(clock, "b"))
        until(lambda: turns.count(False) > 2)

    monkeypatch.setattr(_group_commit.GroupCommit, "_live_on", noted)

    wire.when(BEGIN, hand_in_slowly)
    insert(file_store, record_of(clock))
    assert kinds(later.all()) == ["done"]
    assert listed(file_store) == ["a", "b"]


def test_closed_store_finishes_queued_writes_and_refuses_more(
    threads_that_write, file_store, clock
):
    """Closing a store finishes queued writes; later writes fail; invalid texts are never queued."""
    with pytest.raises(InvalidArgument):
        made_later(file_store, record_of(clock, caller="a\0"))
    made_later(file_store, record_of(clock))
    file_store.close()
    until(threads_that_write, lambda found: not found)
    for call in (
        lambda: made_later(file_store, record_of(clock, "b")),
        lambda: changed_later(file_store, "a", cancel_of(clock)),
    ):
        with pytest.raises(Unavailable, match="the store is closed"):
            call()


def test_queued_write_runs_in_the_callers_thread_if_none_can_start(file_store, clock, monkeypatch):
    """If no thread can start, as at shutdown, the caller's thread makes the write."""

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert made_later(file_store, record_of(clock)).fresh
    file_store.close()
    with pytest.raises(Unavailable):
        made_later(file_store, record_of(clock, "b"))


class Noted(_group_commit.QueuedWrite):
    """A write that records the transitions of all writes."""

    seen: ClassVar[set[tuple[str, str]]] = set()

    def become(self, state: _group_commit.WriteState) -> None:
        before = self.state
        super().become(state)
        if self.state is not before:
            self.seen.add((before.value, self.state.value))

    def call_back(self) -> None:
        """Do nothing: no caller waits for this write."""


class Groups(_group_commit.GroupCommit[Noted]):
    """Makes groups of writes; each group waits for ``go`` and, if ``broken``, is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()
        self.broken = False

    def submit(self) -> None:
        """Make a write and wait until it is done."""
        self._submit(Noted())

    def waiting(self) -> int:
        """Return how many writes wait for a group."""
        return len(self._waiting)

    def _lead(self, leader: Noted) -> None:
        group = self._take()
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if self.broken:
            raise KeyboardInterrupt
        self._made = bool(group)


def test_writes_go_through_each_transition_of_the_table(monkeypatch):
    """A leader and a follower, each with and without an interrupt, cover all transitions."""
    groups = Groups()
    first = threading.Thread(target=groups.submit)
    first.start()
    assert groups.begun.wait(PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr("lro.stores._group_commit._follow", interrupt)
        with pytest.raises(KeyboardInterrupt):
            groups.submit()
    others = [threading.Thread(target=groups.submit) for _ in range(2)]
    for other in others:
        other.start()
    until(groups.waiting, lambda count: count == 2)
    groups.go.set()
    for thread in (first, *others):
        joined(thread)
    groups.broken = True
    with pytest.raises(KeyboardInterrupt):
        groups.submit()
    allowed = _group_commit.NEXT.items()
    assert Noted.seen == {(one.value, after.value) for one, some in allowed for after in some}


@pytest.mark.parametrize(
    ("before", "after"), [*itertools.product(_group_commit.WriteState, repeat=2)]
)
def test_write_refuses_a_transition_that_the_table_does_not_have(before, after):
    """A write's state changes only if the table of transitions has this change."""
    write = Noted()
    write.state = before
    write.become(after)
    assert write.state is (after if after in _group_commit.NEXT[before] else before)


def test_writes_fail_after_the_time_limit_of_a_held_lock(path, clock):
    """While another program keeps the lock, each write fails after the time limit."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=0.05)) as store:
        later = Later(store)
        with stranger(path):
            for name in "abc":
                later.insert(record_of(clock, name))
            found = together(5, lambda number: insert(store, record_of(clock, str(number))))
            assert kinds([*found, *later.all()]) == ["Unavailable"] * 8
        assert insert(store, record_of(clock)).fresh


def test_write_fails_after_the_time_limit_of_an_open_transaction(path, clock, wire):
    """While this process has an open transaction, another write fails after the time limit."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=0.01)) as store:
        insert_done(store, clock)
        begun, go = threading.Event(), threading.Event()
        wire.when(BEGIN, lambda _: (begun.set(), go.wait(PATIENCE)))
        sweep = threading.Thread(target=store.expire, args=(9,))
        sweep.start()
        assert begun.wait(PATIENCE)
        with pytest.raises(Unavailable, match="others write"):
            insert(store, record_of(clock))
        go.set()
        joined(sweep)
        assert insert(store, record_of(clock)).fresh


def test_closing_the_store_wakes_all_waiting_writers(path, clock, wire):
    """Closing the store wakes writers that wait for a lock or a leader, before their time limit."""
    store = SQLiteStore(path, clock=clock, busy_seconds=3600)
    later = Later(store)
    with stranger(path):
        wire.said.clear()
        for name in "abc":
            later.insert(record_of(clock, name))
        until(lambda: BEGIN in wire.said)
        store.close()
        assert [str(one) for one in later.all()] == ["the store is closed"] * 3


# -- the fair lock --------------------------------------------------------------------------------

WITHOUT_FCNTL = pytest.mark.skipif(_writer.fcntl is None, reason="this system has no such locks")


@pytest.mark.platform
@WITHOUT_FCNTL
def test_fair_lock_held_too_long_is_skipped(path, clock):
    """If a lock's holder hangs, writers skip the lock for a while; then a writer tries it again."""
    stopped, other = FairLock(str(path)), FairLock(str(path))
    assert stopped.take(0.0)
    assert [other.take(at) for at in (10.0, 10.05, 10.11, 10.5)] == [False, False, True, True]
    other.release()
    assert other.take(11.0)
    other.release()
    assert [other.take(at) for at in (11.2, 11.25)] == [False, False]
    with closing(SQLiteStore(path, clock=clock)) as store:  # no write waits for the lock
        assert insert(store, record_of(clock)).fresh
    stopped.release()
    assert other.take(11.26)
    other.close()
    stopped.close()


def test_writers_need_no_turn_without_file_locks(tmp_path, monkeypatch):
    """Without file locks, or if the lock file cannot be made, writers do not wait for a turn."""
    nowhere = FairLock(str(tmp_path / "missing" / "a.db"))
    assert (nowhere.take(0.0), nowhere.take(0.0)) == (True, True)
    nowhere.release()
    monkeypatch.setattr(_writer, "fcntl", None)
    one, two = FairLock(str(tmp_path / "a.db")), FairLock(str(tmp_path / "a.db"))
    assert (one.take(0.0), two.take(0.0)) == (True, True)
    one.release()
    one.close()
    assert os.listdir(tmp_path) == []
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert runpy.run_path(_writer.__file__)["fcntl"] is None
