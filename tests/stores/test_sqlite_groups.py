"""Writes that share a transaction: each as if alone, whatever the others do; and taking turns."""

from __future__ import annotations

import os
import runpy
import signal
import sqlite3
import sys
import tempfile
import threading
from contextlib import closing, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lro import LroError
from lro.errors import Unavailable
from lro.stores.sqlite import _writer
from lro.stores.sqlite._connections import FileConnections
from lro.stores.sqlite._group_commit import ActionWrite, Unrelated
from lro.stores.sqlite._writer import FairLock
from tests.waiting import PATIENCE


class Queue(list):
    """What waits for a leader; reports when there is enough of it."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def append(self, write):
        with self.changed:
            super().append(write)
            self.changed.notify_all()

    def reached(self, length):
        """Return once so many wait."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self) >= length, PATIENCE)


class Call(threading.Thread):
    """A write in a thread of its own; ``found`` is what it gave or raised."""

    def __init__(self, harness, action):
        super().__init__(daemon=True)
        self.harness, self.action = harness, action
        self.found = None

    def run(self):
        try:
            self.found = self.harness.connections.write(self.action)
        except BaseException as exc:
            self.found = exc

    def over(self):
        """What was found, once it is."""
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.found


class Harness:
    """Connections to a new file with a table of numbers, and ways to make many write at once."""

    def __init__(self, path, busy_seconds=PATIENCE):
        self.path = path
        self.connections = FileConnections(str(path), busy_seconds)
        self.groups = self.connections._transactions
        self.writer = self.connections._writer
        self.connections.write(lambda writer: writer.execute("CREATE TABLE kept (x UNIQUE)"))
        self.said = []
        self.writer._connection.set_trace_callback(self.said.append)

    @property
    def kept(self):
        """What is committed, in the order in which it was written."""
        return [x for (x,) in self.connections.rows("SELECT x FROM kept ORDER BY rowid")]

    @contextmanager
    def held(self):
        """Another thread writes, so that those who come wait for a leader, who waits too."""
        queue = self.groups._waiting = Queue()
        assert self.writer._lock.acquire(timeout=PATIENCE)
        try:
            yield queue
        finally:
            self.writer._lock.release()

    def together(self, *actions):
        """What actions give that are in one group, in this order."""
        calls = [Call(self, action) for action in actions]
        with self.held() as queue:
            for number, call in enumerate(calls, 1):
                call.start()
                queue.reached(number)
        return [call.over() for call in calls]


@pytest.fixture
def harness(tmp_path):
    made = Harness(tmp_path / "operations.db")
    yield made
    made.connections.close()


def write(x):
    """An action that writes a number, and gives it."""

    def action(writer):
        writer.execute("INSERT INTO kept VALUES (?)", (x,))
        return x

    return action


def failing(error, *before):
    """An action that raises an error after it has written these numbers."""

    def action(writer):
        for x in before:
            writer.execute("INSERT INTO kept VALUES (?)", (x,))
        raise error

    return action


def names(found):
    """Values as they are, errors by their class."""
    return [type(one).__name__ if isinstance(one, BaseException) else one for one in found]


def test_a_lone_write_is_a_transaction(harness):
    """With nothing around it; the statements of its own are all that is added."""
    assert harness.connections.write(write(1)) == 1
    assert harness.said == ["BEGIN IMMEDIATE", "INSERT INTO kept VALUES (1)", "COMMIT"]


def test_writes_at_once_share_a_transaction(harness):
    """Ten callers, one commit, in the order in which they came."""
    assert harness.together(*map(write, range(10))) == list(range(10))
    assert harness.kept == list(range(10))
    assert (harness.said.count("BEGIN IMMEDIATE"), harness.said.count("COMMIT")) == (1, 1)
    assert not [one for one in harness.said if "SAVEPOINT" in one]


def test_no_caller_is_answered_before_the_commit(harness):
    """While it is not on disk, no reader sees it, and no caller goes on."""
    committing, go = threading.Event(), threading.Event()
    whole = harness.writer._connection

    class Slow:
        def __getattr__(self, name):
            return getattr(whole, name)

        def execute(self, statement, *values):
            if statement == "COMMIT":
                committing.set()
                assert go.wait(PATIENCE)
            return whole.execute(statement, *values)

    harness.writer._connection = Slow()
    calls = [Call(harness, write(number)) for number in range(3)]
    with harness.held() as queue:
        for number, call in enumerate(calls, 1):
            call.start()
            queue.reached(number)
    assert committing.wait(PATIENCE)
    assert [call.is_alive() for call in calls] == [True] * 3
    assert harness.kept == []
    go.set()
    assert [call.over() for call in calls] == [0, 1, 2]
    assert harness.kept == [0, 1, 2]
    harness.writer._connection = whole


def test_a_writer_that_raises_before_it_writes_fails_alone(harness):
    """Also what is no Exception; and no savepoint is needed."""
    errors = ValueError("a"), SystemExit(1), GeneratorExit()
    found = harness.together(write(1), *map(failing, errors), write(2))
    assert (found[0], tuple(found[1:4]), found[4]) == (1, errors, 2)
    assert harness.kept == [1, 2]
    assert not [one for one in harness.said if "SAVEPOINT" in one]


def test_who_raises_after_it_has_written_is_undone(harness):
    """No other fails: all are done once more, each apart."""
    error = ValueError("half done")
    found = harness.together(write(1), failing(error, 7, 8), failing(SystemExit(1), 9), write(2))
    assert names(found) == [1, "ValueError", "SystemExit", 2]
    assert found[1] is error
    assert harness.kept == [1, 2]
    assert harness.said.count("COMMIT") == 1


def test_who_raises_alone_is_undone(harness):
    """By the end of the transaction."""
    with pytest.raises(ValueError):
        harness.connections.write(failing(ValueError(), 1))
    assert harness.said[-1] == "ROLLBACK"
    assert harness.kept == []
    assert harness.connections.write(write(2)) == 2


def test_a_group_in_which_all_fail_commits_nothing(harness):
    """There is nothing to sync to disk."""
    assert names(harness.together(failing(KeyError()), failing(ValueError()))) == [
        "KeyError",
        "ValueError",
    ]
    assert "COMMIT" not in harness.said


def test_errors_of_the_database_are_raised(harness):
    """A statement that is wrong, a value that is no text; and what only looks like one is not."""
    mine = sqlite3.OperationalError("of the application")
    found = harness.together(
        lambda writer: writer.execute("SELECT nonsense"),
        lambda writer: writer.execute("INSERT INTO kept VALUES (?)", ("\ud800",)),
        failing(Unrelated(mine)),
        write(1),
    )
    assert names(found) == ["Unavailable", "InvalidArgument", "OperationalError", 1]
    assert found[2] is mine
    assert isinstance(found[0].__cause__, sqlite3.OperationalError)


KINDS = {
    "writes": lambda x: write(x),
    "refuses": lambda x: failing(ValueError(x)),
    "breaks off": lambda x: failing(ValueError(x), x),
    "exits": lambda x: failing(SystemExit(x), x),
    "is taken": lambda x: lambda w: [write(x)(w), w.execute("INSERT INTO kept VALUES (-1)")],
    "ends it": lambda x: lambda w: [write(x)(w), w.execute("ROLLBACK"), w.execute("nonsense")],
    "counts": lambda x: lambda w: w.execute("SELECT count(*) FROM kept").fetchone()[0],
}
ERRORS = {
    "refuses": "ValueError",
    "breaks off": "ValueError",
    "exits": "SystemExit",
    "is taken": "Unavailable",
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6), max_size=4))
def test_every_group_is_as_if_each_were_alone(groups):
    """Whichever fails, in whatever way: what the others wrote, read and got is as in a row."""
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(f"{folder}/operations.db")
        harness.connections.write(write(-1))
        kept = [-1]
        for place, kinds in enumerate(groups):
            numbers = [10 * place + offset for offset in range(len(kinds))]
            actions = [KINDS[kind](x) for kind, x in zip(kinds, numbers, strict=True)]
            found = names(harness.together(*actions))
            if "ends it" in kinds:  # from then on, no answer can say that anything was done
                before = kinds[: kinds.index("ends it")]
                wanted = [ERRORS.get(kind, "Unavailable") for kind in before]
                assert found == wanted + ["Unavailable"] * (len(kinds) - len(before))
                continue
            wanted = []
            for kind, x in zip(kinds, numbers, strict=True):
                wanted.append(ERRORS.get(kind, len(kept) if kind == "counts" else x))
                if kind == "writes":
                    kept.append(x)
            assert found == wanted
        assert harness.kept == kept
        harness.connections.close()


def test_a_commit_that_fails_fails_all(harness):
    """Each by an error of its own; who had failed before keeps its own reason."""
    harness.connections.write(lambda writer: writer.execute("PRAGMA foreign_keys = 1"))
    connection = harness.writer._connection
    connection.execute("PRAGMA foreign_keys = 1")
    connection.execute("CREATE TABLE child (x REFERENCES kept(x) DEFERRABLE INITIALLY DEFERRED)")
    found = harness.together(
        write(1),
        lambda writer: writer.execute("INSERT INTO child VALUES (99)"),
        failing(ValueError("its own")),
        write(2),
    )
    assert names(found) == ["Unavailable", "Unavailable", "ValueError", "Unavailable"]
    assert found[0] is not found[3]
    assert harness.kept == []
    assert harness.connections.write(write(3)) == 3


class Refusing:
    """A connection that refuses one statement."""

    def __init__(self, whole, refused):
        self.whole, self.refused = whole, refused

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def execute(self, statement, *values):
        if statement == self.refused:
            raise sqlite3.OperationalError("refused by a test")
        return self.whole.execute(statement, *values)


def test_a_rollback_that_fails_costs_the_connection(harness):
    """No caller waits for ever, and the next transaction begins on a new one."""
    whole = harness.writer._connection
    harness.writer._connection = Refusing(whole, "ROLLBACK")
    with pytest.raises(ValueError):
        harness.connections.write(failing(ValueError(), 1))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        whole.execute("SELECT 1")
    assert harness.connections.write(write(2)) == 2
    assert harness.kept == [2]


def test_the_lock_may_be_lost_when_all_are_done_once_more(harness, monkeypatch):
    """Another process is quicker, and takes longer than any caller waits: all get that error."""
    undo = harness.writer._undo
    options = {"isolation_level": None, "check_same_thread": False}
    with closing(sqlite3.connect(harness.path, **options)) as other:

        def undo_and_lose():
            undo()
            if not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")

        monkeypatch.setattr(harness.writer, "_undo", undo_and_lose)
        monkeypatch.setattr(harness.groups, "_busy_seconds", 0.3)
        found = harness.together(write(1), failing(ValueError(), 2), write(3))
        assert names(found) == ["Unavailable", "ValueError", "Unavailable"]
        other.execute("ROLLBACK")
    monkeypatch.undo()
    assert harness.kept == []


# -- interrupted threads --------------------------------------------------------------------------


def interrupting_once(action):
    """An action that is interrupted the first time, as by Ctrl-C in the thread that runs it."""
    first = [True]

    def interrupted(writer):
        if first:
            first.clear()
            raise KeyboardInterrupt
        return action(writer)

    return interrupted


def test_a_leader_that_is_interrupted_leaves_the_others_to_another_one(harness):
    """Its own write is undone, as its error says; those of the others are done."""
    found = harness.together(write(1), interrupting_once(write(2)), write(3), write(4))
    assert names(found) == ["KeyboardInterrupt", 2, 3, 4]
    assert harness.kept == [2, 3, 4]


def test_a_leader_that_is_interrupted_among_its_careful_repeats(harness):
    """The same while each is done apart."""
    found = harness.together(write(1), failing(ValueError(), 2), interrupting_once(write(3)))
    assert names(found) == ["KeyboardInterrupt", "ValueError", 3]
    assert harness.kept == [3]


def test_writes_that_are_put_back_start_again(harness):
    """What an action had raised before it was put back counts no more."""
    first = [True]

    def moody(writer):
        if first:
            first.clear()
            raise ValueError("only once")
        return write(2)(writer)

    found = harness.together(write(1), moody, interrupting_once(write(3)))
    assert names(found) == ["KeyboardInterrupt", 2, 3]
    assert harness.kept == [2, 3]


def test_a_leader_that_is_interrupted_alone(harness):
    """No leader is left, and the next one leads."""
    with pytest.raises(KeyboardInterrupt):
        harness.connections.write(failing(KeyboardInterrupt(), 1))
    assert harness.kept == []
    assert harness.connections.write(write(2)) == 2


def test_a_leader_that_is_interrupted_after_the_commit(harness, monkeypatch):
    """What is done is done: the others have their answers, and nothing happens twice."""
    whole = harness.groups._write

    def interrupted(*arguments):
        whole(*arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(harness.groups, "_write", interrupted)
    assert names(harness.together(write(1), write(2), write(3))) == ["KeyboardInterrupt", 2, 3]
    assert harness.kept == [1, 2, 3]


def test_those_put_back_are_led_by_who_leads_already(harness):
    """Another one came meanwhile, and waits to lead: the rest goes with it."""
    begun, go = threading.Event(), threading.Event()

    def action(writer):
        begun.set()
        assert go.wait(PATIENCE)
        raise KeyboardInterrupt

    first = iter([action, write(2)])
    calls = [Call(harness, write(1)), Call(harness, lambda writer: next(first)(writer))]
    with harness.held() as queue:
        for number, call in enumerate(calls, 1):
            call.start()
            queue.reached(number)
    assert begun.wait(PATIENCE)
    queue = harness.groups._waiting = Queue()
    late = Call(harness, write(3))
    late.start()
    queue.reached(1)
    go.set()
    assert names([*(call.over() for call in calls), late.over()]) == ["KeyboardInterrupt", 2, 3]
    assert harness.kept == [2, 3]


@pytest.mark.platform
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signal can be sent to a thread")
@pytest.mark.parametrize(("leads", "where"), [(True, "begin"), (False, "_follow")])
def test_a_thread_that_is_interrupted_while_it_waits(harness, leads, where):
    """To lead, or for its leader: it goes, and the other one's write is done."""
    main, other = threading.get_ident(), Call(harness, write(2))
    interrupted = threading.Event()

    def handle(number, frame):
        if frame.f_code.co_name == where:  # it waits
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt(queue):
        queue.reached(1)
        if leads:
            other.start()
        queue.reached(2)
        while not interrupted.wait(0.01):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, handle)
    try:
        with harness.held() as queue:
            if not leads:
                other.start()
                queue.reached(1)
            interrupter = threading.Thread(target=interrupt, args=(queue,))
            interrupter.start()
            with pytest.raises(KeyboardInterrupt):
                harness.connections.write(write(1))
            interrupter.join(PATIENCE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert other.over() == 2
    assert harness.kept == [2]


def test_one_that_was_to_lead_and_goes_leaves_it_to_the_next(harness):
    """Interrupted in the very moment in which it was called to lead."""
    found = []
    with harness.held() as queue:
        calls = [Call(harness, write(number)) for number in range(2)]
        for number, call in enumerate(calls, 1):
            call.start()
            queue.reached(number)
        harness.groups._leave(queue[0])  # as its own thread does when it is interrupted
        found.append(harness.groups._waiting[0].leads)
    assert found == [True]
    assert calls[1].over() == 1
    calls[0].over()
    assert 1 in harness.kept


def waiting(count):
    """So many writes whose callers wait for a leader."""
    found = [ActionWrite(action=write(number), until=0.0) for number in range(count)]
    for one in found:
        one.gate = threading.Lock()
        one.gate.acquire()
    return found


def test_one_that_goes_while_its_write_is_done(harness):
    """There is nothing left to take back; it is not called, and the others are called."""
    calls = waiting(6)
    harness.groups._leave(calls[1])
    assert (calls[1].gone, harness.groups._led) == (True, False)
    rest = calls[::-1]
    harness.groups._release(rest)
    assert [one.gate.locked() for one in calls] == [False, True, False, True, True, True]
    harness.groups._release(rest)
    harness.groups._release(rest)
    harness.groups._release(rest)
    assert [one for one in calls if one.gate.locked()] == [calls[1]]


# -- locks and their limits -----------------------------------------------------------------------


def test_each_waits_as_long_as_its_own_limit(harness):
    """A leader whose time is over leaves; who came later with more time leads then."""
    with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        queue = harness.groups._waiting = Queue()
        harness.groups._busy_seconds = 0.05
        hasty = Call(harness, write(1))
        hasty.start()
        queue.reached(1)
        harness.groups._busy_seconds = PATIENCE
        patient = Call(harness, write(2))
        patient.start()
        found = hasty.over()
        assert isinstance(found, Unavailable)
        assert "(SQLITE_BUSY)" in str(found)
        other.execute("ROLLBACK")
        assert patient.over() == 2
    assert harness.kept == [2]


def test_a_whole_queue_runs_out_of_time(harness):
    """No caller waits longer than the limit, none is forgotten, and all goes on afterwards."""
    harness.groups._busy_seconds = 0.05
    with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        calls = [Call(harness, write(number)) for number in range(8)]
        for call in calls:
            call.start()
        assert {type(call.over()) for call in calls} == {Unavailable}
        other.execute("ROLLBACK")
    assert harness.groups._waiting == []
    assert harness.connections.write(write(9)) == 9


def test_writes_of_this_process_are_waited_for_as_long(harness):
    """A transaction that does not end is as good as a foreign lock."""
    harness.groups._busy_seconds = 0.01
    with harness.held(), pytest.raises(Unavailable, match="others write"):
        harness.connections.write(write(1))
    assert harness.connections.write(write(2)) == 2


def test_closing_ends_all_waiting(harness):
    """For a foreign lock, for a leader, for a transaction: at once, whatever the limit."""
    with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        queue = harness.groups._waiting = Queue()
        calls = [Call(harness, write(number)) for number in range(3)]
        for number, call in enumerate(calls, 1):
            call.start()
            queue.reached(number)
        harness.connections.close()
        assert [str(call.over()) for call in calls] == ["the store is closed"] * 3
        other.execute("ROLLBACK")


def test_a_lock_is_asked_for_more_and_more_seldom(harness, monkeypatch):
    """Every millisecond at first, since most are held for so long; later every five."""
    pauses = []
    now = [0.0]

    def wait(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(harness.connections._file.closing, "wait", wait)
    with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            harness.writer._locked(1.0)
        other.execute("ROLLBACK")
    assert pauses[0] < 0.001
    assert (max(pauses[:20]), pauses[-1], len(pauses)) == (0.001, 0.005, pytest.approx(290, abs=30))


# -- turns ----------------------------------------------------------------------------------------

WITHOUT_FCNTL = pytest.mark.skipif(_writer.fcntl is None, reason="this system has no such locks")


@pytest.mark.platform
@WITHOUT_FCNTL
def test_a_turn_is_of_one_at_a_time(tmp_path):
    """Who has it keeps it until it gives it; then it is the other's."""
    one, two = FairLock(str(tmp_path / "a.db")), FairLock(str(tmp_path / "a.db"))
    assert (one.take(0.0), two.take(0.0), one.take(0.01)) == (True, False, True)
    one.release()
    assert (two.take(0.02), one.take(0.03)) == (True, False)
    two.close()
    assert one.take(0.04)
    one.close()
    one.release()
    two.close()


@pytest.mark.platform
@WITHOUT_FCNTL
def test_a_turn_that_is_kept_too_long_is_done_without(tmp_path):
    """Its holder may have been stopped: for a while no thread waits, then one tries again."""
    stopped, other = FairLock(str(tmp_path / "a.db")), FairLock(str(tmp_path / "a.db"))
    assert stopped.take(0.0)
    assert [other.take(at) for at in (10.0, 10.05, 10.11, 10.5)] == [False, False, True, True]
    other.release()
    assert other.take(11.0)
    other.release()
    assert [other.take(at) for at in (11.2, 11.25)] == [False, False]
    other.release()
    assert [other.take(at) for at in (11.4, 11.49)] == [False, False]
    stopped.release()
    assert other.take(11.49)
    stopped.close()
    other.close()


def test_without_such_locks_every_writer_has_the_turn(tmp_path, monkeypatch):
    """Where the system has none, or no file for them can be made."""
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


@pytest.mark.platform
@WITHOUT_FCNTL
def test_a_process_that_has_written_lets_another_one_go_first(tmp_path):
    """While that one asks for the lock, no other can; and a writer waits for its turn."""
    path = tmp_path / "operations.db"
    harness, waiting = Harness(path), FairLock(str(path))
    assert waiting.take(0.0)
    call = Call(harness, write(1))
    with harness.held() as queue:
        call.start()
        queue.reached(1)
    assert harness.writer._file.check() is None
    waiting.release()
    assert call.over() == 1
    waiting.close()
    harness.connections.close()


@pytest.mark.platform
@WITHOUT_FCNTL
def test_a_turn_that_does_not_come_is_no_error(tmp_path):
    """It is a courtesy: after a while one writes without, and at the limit at the latest."""
    path = tmp_path / "operations.db"
    harness, stopped = Harness(path), FairLock(str(path))
    assert stopped.take(0.0)
    assert harness.connections.write(write(1)) == 1
    harness.groups._busy_seconds = 0.0
    harness.writer._fair_lock._without_until = 0.0
    assert harness.connections.write(write(2)) == 2
    assert harness.kept == [1, 2]
    stopped.close()
    harness.connections.close()


def test_many_threads_write_what_they_write(harness):
    """Unforced: whatever groups come about, every answer is true and nothing is lost."""
    refused = []

    def work(base):
        for number in range(25):
            x = base * 100 + number
            action = failing(ValueError(x), x) if number % 7 == 3 else write(x)
            try:
                assert harness.connections.write(action) == x
            except ValueError:
                refused.append(x)

    threads = [threading.Thread(target=work, args=(base,)) for base in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    every = {base * 100 + number for base in range(8) for number in range(25)}
    assert set(harness.kept) == every - set(refused)
    assert len(refused) == 8 * 4
    assert harness.said.count("COMMIT") < len(every)


def test_an_error_that_stops_all_writes_reaches_all_writers(harness, monkeypatch):
    """The file vanishes between two tries: no answer says that anything was done."""

    def gone(until):
        harness.writer._undo()
        raise Unavailable("gone")

    monkeypatch.setattr(harness.writer, "begin_again", gone)
    found = harness.together(write(1), failing(ValueError(), 2))
    assert names(found) == ["Unavailable", "ValueError"]
    assert isinstance(found[0], LroError)
