"""Starts within a transaction of the application, on real databases, by each library."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from lro._base.errors import (
    InvalidArgument,
    OperationNotFound,
    RequestIdConflict,
    TargetBusy,
    Unavailable,
)
from lro._engine.job import Job
from lro._engine.service import Service
from lro._messages.wellknown import Empty
from lro._model.operation import ListOperationsRequest, State
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.service_steps import PATIENCE, answer, ended, unpacked
from tests.stores.user_databases import (
    KINDS,
    POSTGRES,
    SQLITE,
    database_of,
    django_connection,
    engine,
    run,
)
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

ID = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"
OTHER_ID = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e02"
REQUEST = WorkRequest("a")


@pytest.fixture(params=KINDS)
def kind(request):
    """What the start is within."""
    if request.param in POSTGRES:
        pytest.importorskip("psycopg")
    pytest.importorskip("django" if "django" in request.param else "sqlalchemy")
    return request.param


@pytest.fixture
def database(kind, tmp_path, clock):
    """Where the operations and the application's rows are."""
    with database_of(kind, tmp_path, clock) as made:
        yield made


@pytest.fixture
def connection(database, kind):
    """The application's."""
    return database.open(kind)


@pytest.fixture
def service(database, make_service):
    """One that works where its maintenance is run."""
    return make_service(database.store, InlineExecutor())


@pytest.fixture
def done():
    """The requests that were worked on."""
    return []


@pytest.fixture
def work(service, done):
    """Its method."""
    return method_of(service, done)


def method_of(service, done=(), **options):
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        done.append(request.text)
        return WorkResponse(request.text)

    return service.method("acme.v1.Works.Work", **options)(work)


def maintained(service, clock):
    """Have the service do what is due now, and what is due soon."""
    service.run_maintenance()
    clock.advance(0.02)
    service.run_maintenance()


def absent(service, name):
    with pytest.raises(OperationNotFound):
        service.get(name)
    return True


# -- the operation is there if, and only if, the transaction commits ------------------------------


def test_committed_start_is_worked_on_after_the_commit(
    database, connection, service, work, done, clock
):
    database.note(connection, "mine")
    name = work.start(REQUEST, within=connection).name
    assert absent(service, name)
    assert database.counts() == (0, 0, 0)
    maintained(service, clock)
    assert done == []
    connection.commit()
    assert service.get(name).done is False
    clock.advance(0.02)
    service.run_maintenance()
    assert answer(service, service.get(name)) == "a"
    assert done == ["a"]
    assert database.notes == ["mine"]


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
    assert service.workers.held() == frozenset()
    assert (done, database.notes) == ([], [])
    # The request id and the target are free.
    again = work.start(REQUEST, request_id=ID, target="t")
    assert again.name != name
    assert answer(service, service.get(again.name)) == "a"


def test_several_starts_of_one_transaction_are_all_worked_on(
    database, connection, service, work, done, clock
):
    names = [work.start(WorkRequest(text), within=connection).name for text in "abc"]
    connection.commit()
    maintained(service, clock)
    assert [answer(service, service.get(name)) for name in names] == ["a", "b", "c"]
    assert sorted(done) == ["a", "b", "c"]


def test_transaction_that_follows_is_another_one(database, connection, service, work, clock):
    first = work.start(REQUEST, within=connection).name
    connection.rollback()
    second = work.start(REQUEST, within=connection).name
    connection.commit()
    maintained(service, clock)
    assert absent(service, first)
    assert service.get(second).done


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


def test_used_request_id_is_refused_and_the_transaction_goes_on(
    database, connection, service, work, clock
):
    work.start(REQUEST, request_id=ID)
    database.note(connection, "before")
    with pytest.raises(RequestIdConflict):
        work.start(WorkRequest("b"), request_id=ID, within=connection)
    database.note(connection, "after")
    kept = work.start(WorkRequest("c"), request_id=OTHER_ID, within=connection)
    connection.commit()
    maintained(service, clock)
    assert database.notes == ["after", "before"]
    assert answer(service, service.get(kept.name)) == "c"


def test_busy_target_is_refused_and_the_transaction_goes_on(
    database, connection, service, work, clock
):
    database.note(connection, "before")
    first = work.start(REQUEST, target="t", within=connection)
    with pytest.raises(TargetBusy):
        work.start(REQUEST, target="t", within=connection)
    database.note(connection, "after")
    connection.commit()
    with pytest.raises(TargetBusy):
        work.start(REQUEST, target="t")
    with pytest.raises(TargetBusy):
        work.start(REQUEST, target="t", request_id=ID, within=connection)
    connection.rollback()
    maintained(service, clock)
    assert service.get(first.name).done
    assert database.notes == ["after", "before"]
    assert answer(service, service.get(work.start(REQUEST, target="t").name)) == "a"


def test_refused_start_begins_no_transaction_that_locks(database, connection, service, work):
    work.start(REQUEST, request_id=ID)
    with pytest.raises(RequestIdConflict):
        work.start(WorkRequest("b"), request_id=ID, within=connection)
    assert work.start(REQUEST).done  # which would wait for the lock of a file


# -- what else a start takes ------------------------------------------------------------------


def test_arguments_are_stored_as_by_any_start(database, connection, make_service, clock):
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
    assert unpacked(service, operation).note == "first"
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
    first = work.start(REQUEST, request_id=ID, target="t", within=connection)
    checked = work.start(REQUEST, validate_only=True, within=connection)
    assert (checked.name, checked.done) == ("", True)
    assert service.types.unpack(checked.response, Empty) == Empty()
    assert work.start(REQUEST, request_id=ID, validate_only=True, within=connection).done
    with pytest.raises(TargetBusy):  # it sees what the transaction has written
        work.start(REQUEST, target="t", validate_only=True, within=connection)
    connection.commit()
    assert database.counts() == (1, 1, 1)
    assert service.get(first.name)


def test_cancelled_before_it_has_begun_ends_cancelled(
    database, connection, service, work, done, clock
):
    name = work.start(REQUEST, within=connection).name
    connection.commit()
    service.cancel(name)
    maintained(service, clock)
    assert database.store.get(name).state is State.CANCELLED
    assert done == []


def test_method_without_function_is_stored_for_others(database, connection, service, clock):
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


def test_start_on_a_loop_takes_a_connection_too(database, connection, kind, service, work, clock):
    if kind.startswith("django"):
        from django.core.exceptions import SynchronousOnlyOperation

        with pytest.raises(SynchronousOnlyOperation):  # by Django, for all that its models do
            asyncio.run(started_on_loop(work, within=connection))
        return
    name = asyncio.run(started_on_loop(work, within=connection)).name
    assert asyncio.run(started_on_loop(work, within=connection, validate_only=True)).done
    connection.commit()
    maintained(service, clock)
    assert service.get(name).done


# -- what is refused --------------------------------------------------------------------------


def refused(method, connection, why, **options):
    """Assert that this cannot be started within, for this reason."""
    with pytest.raises(InvalidArgument, match=why) as caught:
        method.start(REQUEST, within=connection, **options)
    assert caught.value.field == "within"


@pytest.mark.parametrize("options", [{}, {"validate_only": True}])
def test_other_database_is_refused_before_anything_is_written(
    database, kind, tmp_path, service, work, options
):
    other = tmp_path / "other"
    other.mkdir()
    with database_of(kind, other) as stranger:
        connection = stranger.open(kind)
        stranger.note(connection, "before")
        refused(work, connection, "is to another", **options)
        stranger.note(connection, "after")
        connection.commit()
        assert stranger.notes == ["after", "before"]
        assert stranger.counts() == database.counts() == (0, 0, 0)


@pytest.mark.parametrize("options", [{}, {"validate_only": True}])
def test_connection_that_commits_each_statement_is_refused(database, kind, service, work, options):
    opened = {
        "sqlite3": lambda: _sqlite_autocommit(database),
        "psycopg": lambda: _psycopg_autocommit(database),
        "django": lambda: _django_autocommit(database),
        "sqlalchemy": lambda: _alchemy_autocommit(database),
        "session": lambda: _session_autocommit(database),
    }
    connection = opened[kind.partition("-")[0]]()
    refused(work, connection, "no transaction is open", **options)
    assert database.counts() == (0, 0, 0)


def _sqlite_autocommit(database):
    made = sqlite3.connect(database.place, isolation_level=None)
    return database.stack.enter_context(contextlib.closing(made))


def _psycopg_autocommit(database):
    import psycopg

    made = psycopg.connect(database.place, autocommit=True)
    return database.stack.enter_context(contextlib.closing(made))


def _django_autocommit(database):
    made = django_connection(database.place)
    database.stack.callback(made.close)
    return made


def _alchemy_autocommit(database):
    made = engine(database.place, database.stack, isolation_level="AUTOCOMMIT")
    return database.stack.enter_context(made.connect())


def _session_autocommit(database):
    from sqlalchemy.orm import Session

    made = engine(database.place, database.stack, isolation_level="AUTOCOMMIT")
    return database.stack.enter_context(Session(made))


@pytest.fixture
def any_work(store, make_service):
    """A method on either store."""
    return method_of(make_service(store, InlineExecutor()))


either_store = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)


@either_store
@pytest.mark.parametrize("given", [object(), "connection", 0, sqlite3])
def test_what_is_no_connection_is_refused(any_work, given):
    refused(any_work, given, "must be a connection of .*, got an object of")


@either_store
def test_asynchronous_connection_is_refused(any_work):
    class AsyncSession:
        async def run_sync(self): ...

    refused(
        any_work, AsyncSession(), "must be a synchronous connection or session, got .*AsyncSession"
    )


def test_connection_of_the_other_database_is_refused(database, kind, tmp_path, service, work):
    pytest.importorskip("psycopg")
    kinds = {**dict(zip(SQLITE, POSTGRES)), **dict(zip(POSTGRES, SQLITE))}
    other = tmp_path / "other"
    other.mkdir()
    with database_of(kinds[kind], other) as stranger:
        refused(work, stranger.open(kinds[kind]), "must be a connection of")


def test_store_that_cannot_says_which_can(make_service, tmp_path):
    work = method_of(make_service(MemoryStore()))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        refused(work, connection, "a MemoryStore cannot .*PostgresStore and the SQLiteStore can")


def test_closed_service_refuses(database, connection, service, work):
    service.close()
    with pytest.raises(Unavailable):
        work.start(REQUEST, within=connection)
    database.note(connection, "mine")
    connection.commit()
    assert database.notes == ["mine"]
