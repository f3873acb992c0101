"""The journal of starts: on disk before a call returns, shared by threads, processes and forks."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lro_client import ClientError, Journal, JournalError
from lro_client._journal.journal import Entry
from tests.waiting import PATIENCE

START = datetime(2030, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


def entry(number: int = 1, **more: Any) -> Entry:
    """The start of this number."""
    given = {
        "request_id": f"9a1b2c3d-0000-4000-8000-{number:012}",
        "server": "https://example.com",
        "target": "/v1/images:resize",
        "message": '{"source":"a.png"}',
        "message_type": "type.googleapis.com/acme.images.v1.ResizeRequest",
        "response": "acme.images.v1.ResizeResponse",
        "metadata": "acme.images.v1.ResizeMetadata",
        "started": START + timedelta(minutes=number),
    }
    return Entry(**{**given, **more})


def watch_statements(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[sqlite3.Connection, str], None]
) -> None:
    """Have each statement of journals that are opened from here on looked at before it is done."""

    class Watched(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            look(self, statement)
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Watched))


@contextlib.contextmanager
def another_process(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection as of another process."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pending.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal(path) as made:
        yield made


def test_what_is_owed_is_written_later(path: Path) -> None:
    """By the next use, or when the journal is closed; a crash before leaves it all."""
    with Journal(path) as other, Journal(path) as journal:
        for number in (1, 2, 3):
            journal.begin(entry(number, name=f"operations/{number}"))
        assert journal.owe("operations/1")
        assert not journal.owe("operations/2")
        assert len(other.pending()) == 3
        assert len(journal.pending()) == len(other.pending()) == 1
        journal.owe("operations/3")
        journal.begin(entry(4, name="operations/4"))
        assert [one.name for one in other.pending()] == ["operations/4"]
        journal.owe("operations/4")
        journal.close()
        assert other.pending() == []
        journal.owe("operations/5")  # as by a thread that comes too late
        journal.close()


def test_what_is_owed_is_written_at_the_end_of_the_process(path: Path) -> None:
    """Also where the journal is not closed."""
    with Journal(path) as journal:
        journal.begin(entry(name="operations/1"))
    source = (
        f"from lro_client import Journal; journal = Journal({str(path)!r});"
        " journal.owe('operations/1')"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=240)
    with Journal(path) as journal:
        assert journal.pending() == []


def test_what_cannot_be_written_in_time_is_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While another process holds the file, lists may have it still; nothing is lost."""
    monkeypatch.setattr("lro_client._journal.journal.MAX_LATE_WRITE_SECONDS", 0.01)
    with Journal(path) as journal:
        journal.begin(entry(name="operations/1"))
        with another_process(path) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            with pytest.raises(JournalError, match="did not let go of it in time"):
                journal.collected("operations/1", within=0.02)
            assert time.monotonic() - began < 20  # of 30
            assert len(journal.pending()) == 1
            assert "1 operations were collected, but not noted: the journal" in caplog.text
        assert journal.pending() == []


def test_another_thread_is_waited_for_only_so_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the journal in this process is like another process."""
    held, over = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection, statement: str) -> None:
        if "FROM entries" in statement:
            held.set()
            over.wait(PATIENCE)

    watch_statements(monkeypatch, hold)
    with Journal(path) as journal, ThreadPoolExecutor(1) as threads:
        listing = threads.submit(journal.pending)
        assert held.wait(PATIENCE)
        with pytest.raises(JournalError, match="did not let go of it in time"):
            journal.named(entry().request_id, "operations/a", within=0.01)
        over.set()
        assert listing.result(PATIENCE) == []


def test_a_name_that_no_file_can_hold(journal: Journal) -> None:
    """It is refused, and does not stand in the way of others that are owed."""
    journal.begin(entry())
    with pytest.raises(JournalError, match="it holds no such text"):
        journal.named(entry().request_id, "operations/\ud800")
    journal.collected("operations/\ud800")
    assert journal.pending() == [entry()]


def test_start_that_is_forgotten_meanwhile_is_begun_again(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, just when it is begun once more."""
    journal.begin(entry())
    seen: list[str] = []

    def forget(connection: sqlite3.Connection, statement: str) -> None:
        if statement.startswith("SELECT server") and not seen:
            seen.append(statement)
            connection.execute("DELETE FROM entries")

    watch_statements(monkeypatch, forget)
    with Journal(path) as another:
        assert another.begin(entry())
        assert seen
        assert another.pending() == [entry()]


def test_each_write_waits_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAL, with every commit synchronised."""
    modes: set[tuple[object, ...]] = set()

    def look(connection: sqlite3.Connection, statement: str) -> None:
        if "INSERT" in statement:
            for name in ("journal_mode", "synchronous"):
                modes.add((name, *connection.execute(f"PRAGMA {name}").fetchone()))

    watch_statements(monkeypatch, look)
    with Journal(path) as journal:
        journal.begin(entry())
    assert modes == {("journal_mode", "wal"), ("synchronous", 2)}


def test_no_secret_is_kept(journal: Journal, path: Path) -> None:
    """User info of the server is left out, and no other user may read the file."""
    journal.begin(entry(server="https://user:secret@example.com/?key=secret"))
    files = [one for one in path.parent.iterdir() if one.name.startswith(path.name)]
    assert len(files) == 3
    for one in files:
        assert b"secret" not in one.read_bytes()
        assert stat.S_IMODE(one.stat().st_mode) == 0o600


def test_an_entry_is_checked() -> None:
    """Without an id there is no start, and its time is in UTC."""
    with pytest.raises(ValueError, match="request_id must not be empty"):
        entry(request_id="")
    for moment in (datetime(2030, 1, 1), START.astimezone(timezone(timedelta(hours=1)))):
        with pytest.raises(ValueError, match="started must be in UTC"):
            entry(started=moment)


def test_a_closed_journal(journal: Journal) -> None:
    """It says so, and closing again does no harm."""
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match=r"pending\.db: it was closed"):
        journal.pending()


def test_threads_share_a_journal(journal: Journal) -> None:
    """Each start of many threads is there once."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: journal.begin(entry(number)), range(50)))
        list(
            threads.map(lambda n: journal.named(entry(n).request_id, f"operations/{n}"), range(50))
        )
    assert sorted(one.name for one in journal.pending()) == sorted(
        f"operations/{number}" for number in range(50)
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.platform
def test_a_fork_waits_for_other_threads(journal: Journal) -> None:
    """A fork in the middle of another thread's writes leaves the child a journal that works."""
    over = threading.Event()

    def write() -> None:
        number = 10
        while not over.wait(0.005):  # SQLite gives no turns: a writer without a pause gets them all
            number += 1
            with Journal(journal.path) as another:
                another.begin(entry(number))
            journal.begin(entry(number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if not child:
                code = 1
                try:
                    journal.begin(entry(1))
                    code = 0
                except BaseException:
                    os.write(2, traceback.format_exc().encode())
                os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        thread.join()
    assert entry(1) in journal.pending()


def newer(path: Path) -> None:
    Journal(path).close()
    with another_process(path) as connection:
        connection.execute("PRAGMA user_version = 2")


def other_database(path: Path) -> None:
    with another_process(path) as connection:
        connection.execute("CREATE TABLE cats (name)")


def other_application(path: Path) -> None:
    with another_process(path) as connection:
        connection.execute("PRAGMA application_id = 7")


BAD_FILES = {
    "some text": (lambda path: path.write_text("text " * 1000), "not a journal, but some other"),
    "a newer version": (newer, "of version 2, made by a newer release; known is 1"),
    "another database": (other_database, "not a journal, but some other database"),
    "that of another program": (other_application, "not a journal, but some other database"),
    "a directory": (lambda path: path.mkdir(), "cannot be opened or made"),
}


@pytest.mark.parametrize(("make", "problem"), BAD_FILES.values(), ids=BAD_FILES)
def test_files_that_are_no_journal(make: Any, problem: str, path: Path) -> None:
    """The error says which file, and what is wrong with it; the file stays as it is."""
    make(path)
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(JournalError, match=problem) as caught:
        Journal(path)
    assert isinstance(caught.value, ClientError)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    assert path.is_dir() or path.read_bytes() == before
    with pytest.raises(JournalError, match="cannot be opened or made: No such file or directory"):
        Journal(path.parent / "none" / "pending.db")  # it makes its file, not the folder


def test_a_file_that_another_process_holds(path: Path) -> None:
    """It is waited for as long as was said, and then it works again."""
    path.touch()  # an empty one, as a process leaves it that died while it made it
    with Journal(path, busy_seconds=0.01) as journal:
        with another_process(path) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalError, match="did not let go of it in time"):
                journal.begin(entry())
        journal.begin(entry())
        assert journal.pending() == [entry()]


def test_a_new_file_that_another_process_holds(path: Path) -> None:
    """The same while the file is opened, which SQLite itself does not wait for."""
    with another_process(path) as other:
        other.execute("CREATE TABLE cats (name)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(JournalError, match="did not let go of it in time"):
            Journal(path, busy_seconds=0.01)


@pytest.mark.parametrize(
    ("times", "code", "fails"),
    [
        (3, sqlite3.SQLITE_BUSY, False),
        (1, sqlite3.SQLITE_IOERR, True),
        (10_000_000, sqlite3.SQLITE_BUSY, True),
    ],
)
def test_journal_that_others_open_at_once_is_waited_for(
    times: int, code: int, fails: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait there: the journal does, but not for ever and not for other errors."""
    left = [times]

    def busy(_: sqlite3.Connection, statement: str) -> None:
        if "journal_mode" in statement and left[0]:
            left[0] -= 1
            error = sqlite3.OperationalError("no")
            error.sqlite_errorcode = code
            raise error

    watch_statements(monkeypatch, busy)
    with pytest.raises(JournalError) if fails else contextlib.nullcontext():
        Journal(path, busy_seconds=0.02 if times > 3 else 30).close()


@pytest.mark.parametrize(
    ("pragma", "problem"),
    [("max_page_count = 1", "the disk is full"), ("query_only = 1", "it cannot be written to")],
)
def test_a_disk_that_takes_nothing(
    pragma: str, problem: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start is refused, so that nothing runs without a record; then it works again."""
    opened: list[sqlite3.Connection] = []
    watch_statements(monkeypatch, lambda connection, _: opened.append(connection))
    with Journal(path) as journal:
        opened[-1].execute(f"PRAGMA {pragma}")
        with pytest.raises(JournalError, match=problem):
            journal.begin(entry(message='"' + "x" * 10_000 + '"'))
        journal.begin(entry(5000))
        assert entry(5000) in journal.pending()


def test_what_sqlite_says_of_other_troubles_is_passed_on(journal: Journal, path: Path) -> None:
    """Such as a table that is gone."""
    with another_process(path) as other:
        other.execute("DROP TABLE entries")
    with pytest.raises(JournalError, match="no such table: entries"):
        journal.pending()


def damage(content: bytes, chance: random.Random) -> bytes:
    """The same with some bytes changed, or its end cut off."""
    found = bytearray(content)
    if chance.random() < 0.1:
        return bytes(found[: chance.randrange(1, len(found))])
    place = chance.randrange(len(found))
    for offset in range(chance.choice([1, 1, 8, 64])):
        found[(place + offset) % len(found)] = chance.randrange(256)
    return bytes(found)


def test_a_damaged_file_is_reported_as_damaged(path: Path) -> None:
    """Whatever bytes are wrong: it works, or says what the matter is."""
    with Journal(path) as journal:
        for number in range(40):
            journal.begin(entry(number, name=f"operations/{number}" if number % 2 else ""))
    content, chance, errors = path.read_bytes(), random.Random(9), 0
    for _ in range(60):
        for one in path.parent.iterdir():
            one.unlink()
        path.write_bytes(damage(content, chance))
        with contextlib.suppress(JournalError), Journal(path, busy_seconds=0.1) as journal:
            uses: list[Callable[[], object]] = [
                journal.pending,
                lambda: journal.begin(entry(3)),
                lambda: journal.begin(entry(50)),
                lambda: journal.named(entry(4).request_id, "operations/4"),
                lambda: journal.dropped(entry(6).request_id),
                lambda: journal.collected("operations/5", server="https://example.com"),
                lambda: journal.forget(entry(9).started),
            ]
            for use in uses:
                try:
                    use()
                except JournalError:
                    errors += 1
    assert errors > 5


BAD_ROWS = [
    ({"started": 2**62}, "an entry was made 4611686018427387904 microseconds after 1970"),
    ({"started": "yesterday"}, "an entry has"),
    ({"name": b"\xff"}, "an entry has"),
    ({"request_id": ""}, "request_id must not be empty"),
]


@pytest.mark.parametrize(("changed", "problem"), BAD_ROWS)
def test_a_row_of_no_entry(changed: dict[str, Any], problem: str, journal: Journal) -> None:
    """A file that is sound for SQLite, and nonsense for a journal."""
    journal.begin(entry())
    ((column, value),) = changed.items()
    with another_process(Path(journal.path)) as other:
        other.execute(f"UPDATE entries SET {column} = ?", (value,))
    with pytest.raises(JournalError, match=f"the file is damaged: {problem}"):
        journal.pending()


class Life(RuleBasedStateMachine):
    """A journal beside a dict; at any moment the process may end and another go on.

    Ids are compared without case (spec §9.2(1)), and operations of two servers are kept apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "pending.db"
        self.journal = Journal(self.path)
        self.known: dict[str, Entry] = {}

    entries = st.builds(
        lambda number, far: entry(number, server=f"https://example.{'org' if far else 'com'}"),
        st.integers(0, 6),
        st.booleans(),
    )
    names = st.sampled_from(["", "operations/1", "operations/2"])
    servers = st.sampled_from([None, "https://user:secret@example.com", "https://example.org"])

    def remove(self, gone: Callable[[Entry], bool]) -> None:
        self.known = {key: one for key, one in self.known.items() if not gone(one)}

    @rule(one=entries, message=st.sampled_from(['{"source":"a.png"}', "{}"]))
    def begin(self, one: Entry, message: str) -> None:
        """An id belongs to one start as long as that is known (spec §9.2(3))."""
        one = attrs.evolve(one, message=message)
        before = self.known.setdefault(one.request_id, one)
        if before.start == one.start:
            assert self.journal.begin(one) is (before is one)
        else:
            with pytest.raises(JournalError, match=f"{one.request_id} is the id of another start"):
                self.journal.begin(one)

    @rule(one=entries, name=names.filter(bool))
    def named(self, one: Entry, name: str) -> None:
        known = one.request_id in self.known
        assert self.journal.named(one.request_id.upper(), name) is known
        if known:
            self.known[one.request_id] = attrs.evolve(self.known[one.request_id], name=name)

    @rule(one=entries)
    def dropped(self, one: Entry) -> None:
        """A start with a name has begun, whatever became of a later call."""
        self.journal.dropped(one.request_id.upper())
        self.remove(lambda each: each.request_id == one.request_id and not each.name)

    @rule(one=entries, name=names, server=servers, later=st.booleans())
    def collected(self, one: Entry, name: str, server: str | None, later: bool) -> None:
        """By its name, or by its id if it has no name or none was noted."""
        collect = self.journal.owe if later else self.journal.collected
        collect(name, server=server, request_id=one.request_id.upper())
        self.remove(
            lambda each: (
                (server is None or each.server == server.replace("user:secret@", ""))
                and (
                    (name and each.name == name)
                    or (each.request_id == one.request_id and each.name in ("", name))
                )
            )
        )

    @rule(one=entries, answered=st.booleans())
    def forget(self, one: Entry, answered: bool) -> None:
        """An operation with a name can be collected however old it is."""
        before = len(self.journal.pending())
        self.remove(lambda each: each.started < one.started and (answered or not each.name))
        forgotten = self.journal.forget(one.started, answered=answered)
        assert forgotten == before - len(self.known)

    @precondition(lambda self: self.known)
    @rule()
    def another_process(self) -> None:
        self.journal.close()
        self.journal = Journal(self.path)

    @rule(server=servers)
    def agrees(self, server: str | None) -> None:
        """Oldest first, in the order in which they were begun, whatever the clock said."""
        known = self.known.values()
        wanted = server and server.replace("user:secret@", "")
        expected = [one for one in known if wanted in (None, one.server)]
        assert self.journal.pending(server=server) == expected

    @invariant()
    def agrees_on_all(self) -> None:
        self.agrees(None)

    def teardown(self) -> None:
        self.journal.close()
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=20, stateful_step_count=30)
