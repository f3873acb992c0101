"""Starts within an application's transaction, on real databases, with each database library."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading

import pytest

from lro import Empty, InvalidArgument, Job, Service
from lro.errors import OperationNotFound, RequestIdConflict, TargetBusy, Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.wire import ListOperationsRequest
from tests.service_steps import answer, ended
from tests.stores.user_databases import KINDS, POSTGRES, SQLITE, database_of, run
from tests.waiting import joined, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

ID = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"
OTHER_ID = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e02"
REQUEST = WorkRequest("a")


EACH_LIBRARY = pytest.mark.parametrize("kind", KINDS, indirect=True)
ON_SQLITE = pytest.mark.parametrize("kind", ["sqlite3"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("kind", ["psycopg"], indirect=True)


@pytest.fixture(params=["sqlite3", "psycopg"])
def kind(request):
    if request.param in POSTGRES:
        pytest.importorskip("psycopg")
    pytest.importorskip("django" if "django" in request.param else "sqlalchemy")
    return request.param


@pytest.fixture
def database(kind, tmp_path, clock):
    """Open a database that holds the operations and the application's rows."""
    with database_of(kind, tmp_path, clock) as made:
        yield made


@pytest.fixture
def connection(database, kind):
    """Open a connection of the application."""
    return database.open(kind)


@pytest.fixture
def service(database, make_service):
    return make_service(database.store, InlineExecutor())


@pytest.fixture
def done():
    """Return the list of requests whose work was done."""
    return []


@pytest.fixture
def work(service, done, clock):
    method = method_of(service, done)
    maintained(service, clock)  # maintenance must not write in a test's transaction
    return method


def method_of(service, done=(), **options):
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        done.append(request.text)
        return WorkResponse(request.text)

    return service.method("acme.v1.Works.Work", **options)(work)


def maintained(service, clock):
    """Run the maintenance now, and again 5 seconds later."""
    service.run_maintenance()
    clock.advance(5)
    service.run_maintenance()


def absent(service, name):
    with pytest.raises(OperationNotFound):
        service.get(name)
    return True


# -- the operation exists if and only if the transaction commits ----------------------------------


@EACH_LIBRARY
def test_committed_starts_are_worked_on_after_the_commit(
    database, connection, service, work, done, clock
):
    database.note(connection, "mine")
    names = [work.start(WorkRequest(text), within=connection).name for text in "ab"]
    assert all(absent(service, name) for name in names)
    assert database.counts() == (0, 0, 0)
    maintained(service, clock)
    assert done == []
    connection.commit()
    assert service.get(names[0]).done is False
    maintained(service, clock)
    assert [answer(service, service.get(name)) for name in names] == ["a", "b"]
    assert sorted(done) == ["a", "b"]
    assert database.notes == ["mine"]


@EACH_LIBRARY
def test_rolled_back_start_leaves_nothing(database, connection, service, work, done, clock):
    database.note(connection, "mine")
    name = work.start(REQUEST, request_id=ID, target="t", within=connection).name
    connection.rollback()
    maintained(service, clock)
    clock.advance(100)
    maintained(service, clock)
    assert absent(service, name)
    assert database.counts() == (0, 0, 0)
    assert service.list(ListOperationsRequest()).operations == ()
    assert service.edges.work.held() == frozenset()
    assert (done, database.notes) == ([], [])
    # The request id and the target are free, even for the next transaction.
    again = work.start(REQUEST, request_id=ID, target="t", within=connection)
    connection.commit()
    maintained(service, clock)
    assert again.name != name
    assert answer(service, service.get(again.name)) == "a"


# -- request ids, targets, conflicts ----------------------------------------------------------


def test_repeated_request_id_gives_the_same_operation(
    database, connection, kind, service, work, done, clock
):
    first = work.start(REQUEST, request_id=ID, within=connection)
    another = database.open(kind)
    assert work.start(REQUEST, request_id=ID, within=connection).name == first.name
    connection.commit()
    assert work.start(REQUEST, request_id=ID, within=connection).name == first.name
    connection.commit()
    assert work.start(REQUEST, request_id=ID, within=another).name == first.name
    another.commit()
    assert work.start(REQUEST, request_id=ID).name == first.name
    maintained(service, clock)
    assert done == ["a"]
    assert work.start(REQUEST, request_id=ID, within=connection).done


@EACH_LIBRARY
def test_refused_start_leaves_the_transaction_as_it_was(database, connection, service, work, clock):
    work.start(REQUEST, request_id=ID)
    with pytest.raises(RequestIdConflict):
        work.start(WorkRequest("b"), request_id=ID, within=connection)
    assert work.start(REQUEST).done  # fails if the file is still locked
    database.note(connection, "before")
    with pytest.raises(RequestIdConflict):
        work.start(WorkRequest("b"), request_id=ID, within=connection)
    first = work.start(REQUEST, target="t", within=connection)
    for options in ({}, {"request_id": OTHER_ID}, {"validate_only": True}):
        with pytest.raises(TargetBusy):  # the call sees what the transaction has written
            work.start(REQUEST, target="t", within=connection, **options)
    database.note(connection, "after")
    connection.commit()
    with pytest.raises(TargetBusy):
        work.start(REQUEST, target="t")
    maintained(service, clock)
    assert service.get(first.name).done
    assert database.notes == ["after", "before"]
    assert answer(service, service.get(work.start(REQUEST, target="t").name)) == "a"


# -- other options of a start -----------------------------------------------------------------


def test_arguments_of_a_start_within_a_transaction_are_stored(
    database, connection, make_service, clock
):
    service = make_service(database.store, InlineExecutor(), owner_only=True)
    work = method_of(service, [], indexed_paths=("note",))
    operation = work.start(
        REQUEST,
        parent="projects/p",
        metadata=WorkMetadata(note="first"),
        target="t",
        caller="ann",
        within=connection,
    )
    assert operation.name.startswith("projects/p/operations/")
    assert operation.metadata.note == "first"
    connection.commit()
    wanted = ListOperationsRequest(name="projects/p", filter='metadata.note = "first"')
    found = service.list(wanted, caller="ann").operations
    assert [one.name for one in found] == [operation.name]
    assert service.list(wanted, caller="bob").operations == ()
    with pytest.raises(OperationNotFound):
        service.get(operation.name, caller="bob")
    record = database.store.get(operation.name)
    assert (record.owner, record.target, record.attempt) == ("", "t", 0)
    maintained(service, clock)
    assert service.get(operation.name, caller="ann").done


def test_validate_only_checks_and_stores_nothing(database, connection, service, work, clock):
    first = work.start(REQUEST, request_id=ID, within=connection)
    checked = work.start(REQUEST, validate_only=True, within=connection)
    assert (checked.name, checked.done) == ("", True)
    assert service.types.unpack(checked.operation.response, Empty) == Empty()
    assert work.start(REQUEST, request_id=ID, validate_only=True, within=connection).done
    connection.commit()
    assert database.counts() == (1, 1, 1)
    assert service.get(first.name)


def test_start_of_a_method_without_function_is_stored(database, connection, service, clock):
    declared = service.declare(
        "acme.v1.Works.Declared", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    name = declared.start(REQUEST, within=connection).name
    assert absent(service, name)
    connection.commit()
    maintained(service, clock)
    assert service.reporter(name).complete(WorkResponse("b"))
    assert answer(service, service.get(name)) == "b"


async def started_on_loop(method, **options):
    return await method.start_async(REQUEST, **options)


@EACH_LIBRARY
def test_start_on_an_event_loop_takes_a_connection(
    database, connection, kind, service, work, clock
):
    if kind.startswith("django"):
        from django.core.exceptions import SynchronousOnlyOperation

        with pytest.raises(SynchronousOnlyOperation):  # as Django raises for calls of its models
            asyncio.run(started_on_loop(work, within=connection))
        return
    name = asyncio.run(started_on_loop(work, within=connection)).name
    assert asyncio.run(started_on_loop(work, within=connection, validate_only=True)).done
    connection.commit()
    maintained(service, clock)
    assert service.get(name).done


# -- refused starts ---------------------------------------------------------------------------


def refused(method, connection, why, **options):
    """Assert that a start within this connection is refused with this reason."""
    with pytest.raises(InvalidArgument, match=why) as caught:
        method.start(REQUEST, within=connection, **options)
    assert caught.value.field == "within"


VALIDATED = ({}, {"validate_only": True})


@pytest.mark.parametrize("kind", SQLITE, indirect=True)
def test_connection_to_another_file_is_refused(database, kind, tmp_path, service, work):
    other = tmp_path / "other"
    other.mkdir()
    with database_of(kind, other) as stranger:
        connection = stranger.open(kind)
        stranger.note(connection, "before")
        for options in VALIDATED:
            refused(work, connection, "is to another", **options)
        stranger.note(connection, "after")
        connection.commit()
        assert stranger.notes == ["after", "before"]
        assert stranger.counts() == database.counts() == (0, 0, 0)


@EACH_LIBRARY
def test_connection_that_commits_each_statement_is_refused(database, kind, service, work):
    connection = database.open(kind, autocommit=True)
    for options in VALIDATED:
        refused(work, connection, "no transaction is open", **options)
    assert database.counts() == (0, 0, 0)


class AsyncSession:
    async def run_sync(self): ...


def test_object_that_is_not_a_connection_is_refused(work):
    for given in (object(), "connection", 0, sqlite3):
        refused(work, given, "must be a connection of .*, got an object of")
    why = "must be a synchronous connection or session, got .*AsyncSession"
    refused(work, AsyncSession(), why)


def test_connection_of_another_kind_of_database_is_refused(database, kind, tmp_path, work):
    pytest.importorskip("psycopg")
    other = {"sqlite3": "psycopg", "psycopg": "sqlite3"}[kind]
    (tmp_path / "other").mkdir()
    with database_of(other, tmp_path / "other") as stranger:
        refused(work, stranger.open(other), "must be a connection of")


def test_store_without_transactions_names_those_with_them(make_service, tmp_path):
    work = method_of(make_service(MemoryStore()))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        refused(work, connection, "a MemoryStore cannot .*PostgresStore and the SQLiteStore can")


@ON_SQLITE
def test_closed_service_refuses_a_start_within_a_transaction(database, connection, service, work):
    service.close()
    with pytest.raises(Unavailable):
        work.start(REQUEST, within=connection)
    database.note(connection, "mine")
    connection.commit()
    assert database.notes == ["mine"]


# -- features of one database -----------------------------------------------------------------


@ON_SQLITE
def test_file_is_recognised_by_a_link_and_in_a_manual_transaction(
    database, service, work, tmp_path
):
    link = tmp_path / "link.db"
    link.symlink_to(database.place)
    with contextlib.closing(sqlite3.connect(link, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        name = work.start(REQUEST, within=connection).name
        assert absent(service, name)
        connection.execute("COMMIT")
    assert service.get(name)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        refused(work, connection, "is to another file")
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        refused(work, connection, 'is to a database in memory.*"TEST": {"NAME": "test.db"}')


@ON_SQLITE
def test_row_factory_is_ignored_and_text_factory_refused(connection, work):
    connection.row_factory = lambda *_: None
    first = work.start(REQUEST, request_id=ID, within=connection)
    assert work.start(REQUEST, request_id=ID, within=connection).name == first.name
    connection.text_factory = bytes
    refused(work, connection, "text_factory")


@ON_SQLITE
def test_locked_file_is_unavailable_and_nothing_is_begun(database, connection, work):
    database.note(connection, "mine")
    with contextlib.closing(sqlite3.connect(database.place, timeout=0)) as other:
        with pytest.raises(Unavailable):
            work.start(REQUEST, within=other)
        assert not other.in_transaction


def test_write_outside_the_open_transaction_is_unavailable(tmp_path, make_service):
    store = SQLiteStore(tmp_path / "operations.db", busy_seconds=0.1)
    work = method_of(make_service(store, InlineExecutor()))
    with contextlib.closing(sqlite3.connect(tmp_path / "operations.db")) as connection:
        name = work.start(REQUEST, within=connection).name
        with pytest.raises(Unavailable):  # the write waits for the lock of the open transaction
            work.start(REQUEST)
        connection.commit()
    assert store.get(name)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda connection: connection.close(), "cannot be used: .*closed"),
        (lambda connection: connection.execute("PRAGMA query_only = ON"), "may only read"),
    ],
)
@ON_SQLITE
def test_file_connection_that_cannot_write_is_refused(connection, work, spoil, why):
    connection.execute("BEGIN")
    spoil(connection)
    refused(work, connection, why)


def deny_inputs(action, table, *_):
    """Deny inserts into the table ``lro_inputs``."""
    wrong = (action, table) == (sqlite3.SQLITE_INSERT, "lro_inputs")
    return sqlite3.SQLITE_DENY if wrong else sqlite3.SQLITE_OK


@ON_SQLITE
def test_failed_start_leaves_nothing_though_the_transaction_commits(database, connection, work):
    database.note(connection, "before")
    connection.set_authorizer(deny_inputs)
    with pytest.raises(Unavailable):
        work.start(REQUEST, within=connection)
    connection.set_authorizer(None)
    connection.commit()
    assert (database.counts(), database.notes) == ((0, 0, 0), ["before"])


@ON_POSTGRES
def test_connection_to_another_database_of_the_server_is_refused(database, work):
    import psycopg

    url = database.place.rpartition("/")[0] + "/template1"
    with contextlib.closing(psycopg.connect(url)) as connection:
        refused(work, connection, "is to another database")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (b"SELECT 1 / 0", "has failed, and can only be rolled back"),
        (b"SET TRANSACTION READ ONLY", "one that only reads"),
        (b"SET client_encoding = 'LATIN1'", "client_encoding .* must be UTF8"),
        (b"SET ROLE pg_monitor", "may not write to the store's tables"),
    ],
)
@ON_POSTGRES
def test_connection_that_cannot_write_is_refused(connection, work, statement, why):
    import psycopg

    with contextlib.suppress(psycopg.errors.DivisionByZero):
        connection.execute(statement)
    refused(work, connection, why)


@ON_POSTGRES
def test_connection_in_pipeline_mode_is_refused_and_stays_usable(
    database, connection, service, work
):
    """A connection in pipeline mode, which delays the results of statements, is refused."""
    with connection.pipeline():
        refused(work, connection, "in pipeline mode")
        database.note(connection, "mine")
    name = work.start(REQUEST, within=connection).name
    connection.commit()
    assert service.get(name).name == name
    assert database.notes == ["mine"]


@ON_POSTGRES
def test_lost_connection_is_unavailable(database, connection, work):
    database.rows(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
    with pytest.raises(Unavailable):
        work.start(REQUEST, within=connection)


@ON_POSTGRES
def test_closed_sqlalchemy_connection_raises_the_error_of_sqlalchemy(database, work):
    import sqlalchemy.exc

    connection = database.open("sqlalchemy")
    connection.close()
    with pytest.raises(sqlalchemy.exc.ResourceClosedError):
        work.start(REQUEST, within=connection)


@ON_POSTGRES
def test_value_that_the_database_cannot_keep_is_refused(database, connection, work):
    work.start(REQUEST)  # the first start creates the tables
    other = database.open("psycopg")
    run(other, f"ALTER TABLE {database.tables}lro_operations ALTER caller TYPE varchar(3)")
    other.commit()
    with pytest.raises(InvalidArgument, match="cannot be kept by the database"):
        work.start(REQUEST, caller="a caller", within=connection)
    database.note(connection, "after")
    connection.commit()
    assert database.notes == ["after"]


@ON_POSTGRES
def test_concurrent_start_for_the_target_is_waited_for(database, connection, service, work):
    """The first start to commit gets the target; the other start fails, but not its transaction."""
    second = database.open("psycopg")
    database.note(second, "before")
    kept = work.start(REQUEST, target="t", within=connection)
    pid, found = second.info.backend_pid, []

    def start():
        with pytest.raises(TargetBusy):
            work.start(REQUEST, target="t", within=second)
        found.append(True)

    thread = threading.Thread(target=start)
    thread.start()
    waiting = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {pid}"
    until(lambda: database.rows(waiting), lambda seen: seen == [("Lock",)])
    connection.commit()
    joined(thread)
    assert found == [True]
    second.commit()
    assert database.notes == ["before"]
    assert service.get(kept.name)


@ON_POSTGRES
def test_conflict_invisible_to_the_snapshot_is_unavailable(database, connection, work):
    connection.isolation_level = 3  # psycopg.IsolationLevel.REPEATABLE_READ
    database.note(connection, "before")  # takes the snapshot; later commits are invisible
    other = database.open("psycopg")
    work.start(REQUEST, target="t", within=other)
    other.commit()
    with pytest.raises(Unavailable):
        work.start(REQUEST, target="t", within=connection)
    connection.commit()
    assert database.notes == ["before"]


@ON_POSTGRES
def test_conflict_deleted_before_it_is_read_does_not_fail_the_start(
    database, connection, service, work, monkeypatch
):
    first = work.start(REQUEST, target="t", within=connection)

    def find_nothing(*_):
        monkeypatch.undo()
        run(connection, f"DELETE FROM {database.tables}lro_operations")

    monkeypatch.setattr("lro.stores.postgres._within.find_obstacle", find_nothing)
    second = work.start(REQUEST, target="t", within=connection)
    connection.commit()
    assert absent(service, first.name)
    assert service.get(second.name)


@ON_SQLITE
def test_error_of_a_sqlalchemy_listener_is_raised_unchanged(database, work):
    from sqlalchemy import event

    connection = database.open("sqlalchemy")

    @event.listens_for(connection, "before_cursor_execute")
    def listen(connection, cursor, statement, *_):
        if statement.startswith("INSERT INTO lro_inputs"):
            raise RuntimeError("of the application")

    database.note(connection, "before")
    with pytest.raises(RuntimeError, match="of the application"):
        work.start(REQUEST, within=connection)
    connection.commit()
    assert (database.counts(), database.notes) == ((0, 0, 0), ["before"])


# -- the begin of the work --------------------------------------------------------------------


@pytest.fixture
def ticking(kind, tmp_path):
    """Open a database whose store has a real clock."""
    with database_of(kind, tmp_path) as made:
        yield made


def test_committed_start_begins_its_work_by_itself(ticking, kind, step):
    """The work begins as soon as the start is committed and a worker is free."""

    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        step()
        return WorkResponse(request.text)

    connection = ticking.open(kind)
    with Service(ticking.store, ThreadExecutor(1)) as service:
        method = service.method("acme.v1.Works.Work")(work)
        method.start(REQUEST)
        step.reached()
        names = [method.start(REQUEST, within=connection).name for _ in range(2)]
        connection.commit()
        step.go.set()
        assert [answer(service, ended(service, name)) for name in names] == ["a", "a"]
