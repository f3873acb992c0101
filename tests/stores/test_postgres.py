"""PostgreSQL only: schema, query plans, clock, notifications and group commits."""

from __future__ import annotations

import itertools
import json
import re
import threading
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest

pytest.importorskip("psycopg")

import psycopg
from hypothesis import example, given
from psycopg import errors, sql

from lro import AnyMessage, DeclarationError, InvalidArgument, State
from lro._engine.store_port import SCAN
from lro._filters.prefilter import EVERYTHING, Column, InState, KeyIn, NameIn, TextContains, all_of
from lro.adapters import Cursor, Renewed
from lro.errors import OperationNotFound, TargetBusy, Unavailable
from lro.stores import _sql_store
from lro.stores.postgres import PostgresStore
from lro.stores.postgres import _statements as statements
from lro.stores.postgres._connections import PERIOD_SECONDS, ServerClock
from lro.stores.postgres._notifications import Announcer, payloads
from lro.wire import ListOperationsRequest
from tests.filters.test_indexes import KEYED, WANTED, fill, reported, service
from tests.services.postgres import UNHURRIED, PostgresServer, shared_server
from tests.stores.samples import (
    METHODS,
    REQUEST,
    Later,
    called,
    cancel_of,
    changed_later,
    end_of,
    held,
    ids,
    insert,
    key_of,
    kinds,
    listed,
    made_later,
    record_of,
    removal,
    together,
    worker_of,
)
from tests.waiting import PATIENCE, joined, until


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    """Return the server that all tests of this run share."""
    return shared_server()


@pytest.fixture
def schema(server):
    """Return the name of a new schema."""
    return server.fresh_schema()


@pytest.fixture
def opened(server, schema, clock):
    """Return a function that opens stores on the new schema, and close them after the test."""
    with ExitStack() as stack:

        def make(**options):
            options = {"schema": schema, "clock": clock, **UNHURRIED, **options}
            return stack.enter_context(closing(PostgresStore(server.url, **options)))

        yield make


@pytest.fixture
def store(postgres_wire, opened):
    """Open a store on the new schema; ``postgres_wire`` records its SQL."""
    made = opened()
    made.secret()  # the first use makes the schema
    return made


@pytest.fixture
def plain(server):
    """Open a plain connection, without the library."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def link(postgres_wire, store):
    """Return a connection that the store has opened."""
    store.next_due()
    return postgres_wire.connections[-1]


def count(plain, schema, table):
    """Return the number of rows in a table."""
    return plain.execute(f"SELECT count(*) FROM {schema}.lro_{table}").fetchone()[0]


# -- the schema -----------------------------------------------------------------------------------


def test_an_opened_schema_is_not_locked_again(opened, plain, postgres_wire):
    """A process can start while another holds the schema's lock, for instance to make an index."""
    secret = opened().secret()
    lock = "SELECT pg_try_advisory_lock($1)"
    (number,) = postgres_wire.values[postgres_wire.said.index(lock)]
    plain.execute("SELECT pg_advisory_lock(%s)", (number,))
    assert opened().secret() == secret


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {}.lro_operations DROP COLUMN keys",
        "DROP TABLE {}.lro_operations",
        "ALTER TABLE {}.lro_versions RENAME COLUMN version TO other",
    ],
)
def test_a_schema_with_other_tables_is_refused(opened, schema, plain, change):
    """A schema with our version number but with other tables is refused."""
    opened().secret()
    plain.execute(change.format(schema))
    with pytest.raises(Unavailable, match=r"does not exist\): it is not of this library"):
        opened().secret()


def test_failed_creation_of_tables_leaves_no_schema(server, opened, schema, plain, postgres_wire):
    """A failed creation of tables leaves no schema behind, and a later store creates it."""
    opened(schema=server.fresh_schema()).secret()
    (tables,) = (one for one in postgres_wire.said if "CREATE TABLE" in one)
    postgres_wire.fail(tables, errors.DiskFull("a test"))
    with pytest.raises(Unavailable, match="DiskFull"):
        opened().secret()
    assert plain.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,)
    assert len(opened().secret()) == 64


def test_a_schema_made_by_the_operator_is_used(server, plain):
    """A role without the right to create schemas can use an existing schema of any name."""
    role = server.fresh_schema()
    schema = f'Odd "{role}"'
    quoted = '"' + schema.replace('"', '""') + '"'
    plain.execute(f'CREATE SCHEMA {quoted}; CREATE ROLE "{role}" LOGIN')
    plain.execute(f'GRANT ALL ON SCHEMA {quoted} TO "{role}"')
    url = server.url.replace("lro@", f"{role}@")
    with (
        closing(PostgresStore(url, schema=schema)) as store,
        closing(store.listen()) as subscription,
    ):
        with closing(PostgresStore(server.url, schema=schema)) as other:
            other.notify_others("operations/a")
            assert subscription.next_changes(PATIENCE) == {"operations/a"}
        plain.execute(f'REVOKE ALL ON SCHEMA {quoted} FROM "{role}"')
    refused = PostgresStore(url, schema=server.fresh_schema())
    with closing(refused), pytest.raises(Unavailable, match="InsufficientPrivilege"):
        refused.secret()


def test_invalid_arguments_are_refused_without_showing_the_url(server):
    """Invalid arguments are refused before connecting, without the URL (it may hold a password)."""
    for schema in ("", "pg_mine", "x" * 61, "a\0b", "\ud800"):
        with pytest.raises(DeclarationError, match="schema"):
            PostgresStore(server.url, schema=schema)
    with pytest.raises(DeclarationError, match="not a valid connection string") as refused:
        PostgresStore("secret word")
    assert "secret" not in str(refused.value)


def test_an_old_server_is_refused(opened, monkeypatch):
    """A server that is too old is refused, and the error names the required version."""
    monkeypatch.setattr("lro.stores.postgres._schema.OLDEST_SERVER", 99_00_00)
    with pytest.raises(Unavailable, match="version 99 is needed, found 1"):
        opened().secret()


def test_a_database_that_cannot_hold_all_texts_is_refused(server, schema, plain):
    plain.execute(f"CREATE DATABASE {schema} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    store = PostgresStore(server.url.replace("/postgres", f"/{schema}"))
    with closing(store), pytest.raises(Unavailable, match="must be in UTF8, it is in LATIN1"):
        store.secret()


def test_a_missing_database_is_reported(server):
    """The error about a missing database hides its name from callers; the error's cause has it."""
    url = f"{server.url.rpartition('/')[0]}/nope"
    with closing(PostgresStore(url)) as store, pytest.raises(Unavailable) as refused:
        store.secret()
    assert 'database "nope" does not exist' in str(refused.value.__cause__)
    assert "nope" not in str(refused.value)


def test_acknowledged_writes_are_on_disk(server, schema, plain, postgres_wire):
    """Commits are synchronous even if asynchronous commits are the role's default."""
    role = f"{schema}_hasty"
    plain.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    plain.execute(f"ALTER ROLE {role} SET synchronous_commit = off")
    plain.execute(f"ALTER ROLE {role} SET default_transaction_isolation = serializable")
    with closing(PostgresStore(server.url.replace("lro@", f"{role}@"), schema=schema)) as store:
        store.next_due()
        link = postgres_wire.connections[-1]
        assert link.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert link.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


# -- names and records ----------------------------------------------------------------------------


def test_longest_names_are_stored(store, opened, clock):
    """A name of 1,024 four-byte characters is stored, although it is too long for an index row."""
    parent, long = "\U0001f600" * 1000, "\U0001f601" * 12
    record = record_of(clock, long, parent=parent, target=parent * 2, caller=parent * 2)
    assert len(record.name) == 1024
    key = key_of(caller=parent * 2)
    assert insert(store, record, key).fresh
    assert store.get(record.name) == record
    assert ids(store.page(parent, None, 9).records) == [long]
    assert not insert(store, record_of(clock), key).fresh
    with pytest.raises(TargetBusy):
        insert(store, record_of(clock, target=parent * 2))
    with closing(store.listen()) as subscription:
        opened().notify_others(record.name)
        assert subscription.next_changes(PATIENCE) == {record.name}


def test_starts_with_crossing_keys_and_targets_do_not_deadlock(
    server, opened, schema, clock, plain
):
    """Concurrent starts with the same keys and targets in different orders do not deadlock."""
    stores = opened(), opened()

    def start(number):
        record = record_of(clock, str(number), target=f"t{number * 7 % 5}")
        return insert(stores[number % 2], record, key_of(str(number % 4)))

    before = server.log.count("deadlock")
    found = [one for one in together(60, start) if not isinstance(one, TargetBusy)]
    started = [answer.record for answer in found if answer.fresh]
    assert len({record.target for record in started}) == len(started)
    for table in ("operations", "inputs", "starts"):
        assert count(plain, schema, table) == len(started)
    assert server.log.count("deadlock") == before


def test_expire_skips_records_locked_by_others(store, schema, clock, plain):
    """``expire`` skips records that another transaction has locked; a later call removes them."""
    for unique_id in "ab":
        insert(store, record_of(clock, unique_id), key_of(unique_id))
        store.update(f"operations/{unique_id}", end_of(clock, days=1))
    clock.advance(days=2)
    with plain.transaction():
        plain.execute(f"SELECT 1 FROM {schema}.lro_operations WHERE name LIKE '%a' FOR UPDATE")
        plain.execute(f"SELECT 1 FROM {schema}.lro_starts FOR UPDATE")
        swept = store.expire(1)
        assert (list(swept.names), swept.more) == (["operations/b"], True)
    swept = store.expire(2)
    assert (list(swept.names), swept.more) == (["operations/a"], False)
    assert [count(plain, schema, name) for name in ("operations", "inputs", "starts")] == [0] * 3


def test_large_metadata_is_not_sent_again(store, opened, clock, postgres_wire):
    """A change that leaves the metadata as it is does not send it to the server again."""
    big = AnyMessage("x/a.Big", {"data": "x" * 500_000})
    insert(store, held(clock, metadata=big))
    postgres_wire.values.clear()
    store.update("operations/a", cancel_of(clock))
    assert len(str(postgres_wire.values)) < 2000
    other = opened().get("operations/a")
    assert (other.metadata, other.cancel_requested) == (big, True)


@pytest.mark.parametrize(("read", "cached"), [("get", True), ("find", False)])
def test_end_is_cached_if_the_record_was_read_alone(store, clock, postgres_wire, read, cached):
    """An ended record that was only read by ``find`` is not cached: waits receive the end."""
    insert(store, held(clock))
    assert store.get("operations/a") if read == "get" else store.find(["operations/a"]).records
    ended = store.update("operations/a", end_of(clock))
    postgres_wire.said.clear()
    assert store.get("operations/a") == ended
    assert [one.startswith("SELECT CASE") for one in postgres_wire.said] == [cached]
    assert [*store.find(["operations/a"]).records] == [ended]


# -- locks of other sessions ----------------------------------------------------------------------


@contextmanager
def locked(plain, statement, *values):
    """Run a statement in another session, and keep its locks during the block."""
    with plain.transaction():
        plain.execute(statement, values)
        yield


@pytest.mark.parametrize("mode", ["SHARE", "ACCESS EXCLUSIVE"])
def test_locked_table_makes_renewals_and_orphan_scans_fail(opened, schema, plain, clock, mode):
    """While the workers' table is locked, renewals and orphan scans fail, so no worker is lost."""
    store = opened(statement_seconds=5.0)  # the lock timeout is a fifth of this value
    store.renew(worker_of(clock))
    insert(store, held(clock))
    clock.advance(20)
    with locked(plain, f"LOCK TABLE {schema}.lro_workers IN {mode} MODE"):
        for call in (lambda: store.renew(worker_of(clock)), lambda: store.orphans(METHODS, 9)):
            with pytest.raises(Unavailable):
                call()
    assert list(store.orphans(METHODS, 9).overdue) == ["us"]


def test_locked_records_do_not_hold_up_a_renewal(store, schema, plain, clock):
    """A worker can renew its lease while its records are locked."""
    insert(store, held(clock))
    with locked(plain, f"SELECT 1 FROM {schema}.lro_operations FOR UPDATE"):
        assert store.renew(worker_of(clock)) == Renewed([], [])


def test_a_worker_whose_row_is_locked_is_not_overdue(store, schema, plain, clock):
    """A worker that could not renew its lease because its row was locked is not overdue."""
    for owner in ("us", "them"):
        store.renew(worker_of(clock, owner))
        insert(store, held(clock, owner, owner=owner))
    clock.advance(20)
    with locked(plain, f"SELECT 1 FROM {schema}.lro_workers WHERE owner = 'us' FOR UPDATE"):
        assert list(store.orphans(METHODS, 9).overdue) == ["them"]
        with pytest.raises(Unavailable):
            store.renew(worker_of(clock))
    assert sorted(store.orphans(METHODS, 9).overdue) == ["them", "us"]


# -- query plans ----------------------------------------------------------------------------------

SOME_ID = "0" * 32
SOME_IDS = "{" + SOME_ID + "}"
PLANNED = {
    "INSERT": ("[]",),
    "START": ("[]",),
    "CHANGE": ("[]",),
    "END": ("[]",),
    "WRITE": ("[]",),
    "FIND_FIRST": (SOME_ID, SOME_ID, SOME_ID),
    "REMOVE": ("[]",),
    "GET": (SOME_ID,),
    "GET_IF_CHANGED": (1, 1, SOME_ID),
    "REQUEST": (SOME_ID,),
    "POLL_STATES": (1, SOME_IDS),
    "RENEW": ("us", "", 1, "", "[]", 1, 1, 1, 1, 0, 1, "us", 1, "us", 1),
    "LEAVE": ("us",),
    "HOLDS": (),
    "WAITING": (0,),
    "LOST": ("[]", 9),
    "LOSE": ("us", 1),
    "TOUCH": ("[]",),
    "TOO_LATE": (1, 9),
    "CLAIM": (-1, 1, "[]", SOME_IDS, 9, 9, 3, "us", 1, 1, 1),
    "CLAIM_IN_TURN": (-1, 1, "[]", SOME_IDS, 9, 9, 3, "us", 1, 1, 1),
    "CLAIM_ONLY": (-1, 1, "[]", SOME_IDS, SOME_ID, 9, 3, "us", 1, 1, 1),
    "PUT_OFF": (-1, 1, "[]", SOME_IDS, 9, 9, 3, 1, 1, 1, 1),
    "PUT_OFF_IN_TURN": (-1, 1, "[]", SOME_IDS, 9, 9, 3, 1, 1, 1, 1),
    "CLAIMED": ("[]", 1, "us", 1),
    "LANES_DUE": (-1, 1, "[]"),
    "FIRST_WAITING": (-1, 1, "[]", []),
    "PAUSE": ("M", 1),
    "RESUME": ("M",),
    "FORGET_BEGINS": (1,),
    "WAITING_METHOD": (SOME_ID,),
    "EXPIRE": (1, 9),
    "EXPIRE_STARTS": (1, 9),
    "LEFT": (1, 1),
    "ADD_COUNTS": ("{}", "{}"),
    "PRUNE": (1,),
    "COUNTS": (1, 1, 9),
    "LOAD": (9, 9, SOME_IDS, 10, 10),
    "CLAIM_DUE": (1, 9, 2),
    "NEXT_DUE": (),
}
SORTS = {
    "START": 2,
    "WRITE": 2,
    "ADD_COUNTS": 1,
    "LOST": 1,
    "LOAD": 1,
    "CLAIM": 3,
    "CLAIM_IN_TURN": 5,
    "CLAIM_ONLY": 3,
    "PUT_OFF": 3,
    "PUT_OFF_IN_TURN": 5,
    "FIRST_WAITING": 2,
}
"""The number of sorts in the plan of a statement; each sorts few rows."""
_ROOM = {
    "lro_operations_running",
    "lro_operations_lanes",
    "lro_operations_sent",
    "lro_begins_latest",
}
_CLAIM = {"lro_operations_waiting", "lro_operations_pkey", "lro_inputs_pkey", "lro_paused_pkey"}
INDEXES = {
    "HOLDS": {"lro_operations_running", "lro_workers_pkey", "lro_operations_unbegun"},
    "LOST": {"lro_operations_running", "lro_workers_pkey"},
    "TOO_LATE": {"lro_operations_unbegun"},
    "CLAIM": _CLAIM,
    "CLAIM_IN_TURN": _CLAIM | _ROOM,
    "CLAIM_ONLY": (_CLAIM | _ROOM) - {"lro_operations_waiting"},
    "PUT_OFF": _CLAIM,
    "PUT_OFF_IN_TURN": _CLAIM | _ROOM,
    "CLAIMED": {"lro_operations_running", "lro_inputs_pkey"},
    "FIRST_WAITING": {"lro_operations_waiting", "lro_paused_pkey"},
    "LANES_DUE": {"lro_operations_waiting", "lro_paused_pkey", *_ROOM},
    "FORGET_BEGINS": {"lro_begins_over"},
    "LOAD": {"lro_operations_by_state"},
    "CLAIM_DUE": {"lro_operations_debts", "lro_operations_pkey"},
    "NEXT_DUE": {"lro_operations_debts"},
    "EXPIRE": {"lro_operations_expiry", "lro_operations_pkey", "lro_inputs_pkey"},
    "LEFT": {"lro_operations_expiry", "lro_starts_age"},
}
SLOW = ("Seq Scan", "Bitmap", "Hash Join", "Hash Anti", "Merge Join")


def plan_of(link, statement, values):
    """Return the server's plan for a statement, and the indexes in the plan."""
    rows = link.execute(b"EXPLAIN " + statement, values).fetchall()
    plan = "\n".join(line for (line,) in rows)
    return plan, {*re.findall(r"Index (?:Only )?Scan.* using (\w+)", plan)}


def kept_plan_of(link, statement, values):
    """Return the server's plan for a prepared statement, which serves all values."""
    numbers = itertools.count(1)
    text = re.sub("%s", lambda _: f"${next(numbers)}", statement.decode()).replace("%%", "%")
    link.execute(f"PREPARE planned AS {text}".encode(), prepare=False)
    given = sql.SQL(", ").join(map(sql.Literal, values))
    execute = sql.SQL("EXPLAIN EXECUTE planned ({})" if values else "EXPLAIN EXECUTE planned")
    rows = link.execute(execute.format(given), prepare=False).fetchall()
    link.execute(b"DEALLOCATE planned", prepare=False)
    return [line.strip() for (line,) in rows]


def statement_named(name):
    """Return a statement of the PostgreSQL store, or a statement that both SQL stores share."""
    if hasattr(statements, name):
        return getattr(statements, name)
    text = getattr(_sql_store, name).format(items=statements.JSON_ITEMS)
    return statements.translated(text + statements.BY_NAME * (name == "REQUEST"))


def test_every_row_is_found_by_an_index(link):
    """No plan scans a table, not even a plan made for empty tables and kept while they grow."""
    for name, values in PLANNED.items():
        plan, indexes = plan_of(link, statement_named(name), values)
        plan = plan.replace("Seq Scan on lro_workers", "")  # the table of workers is small
        assert not [slow for slow in SLOW if slow in plan], name
        sorts = plan.replace("Incremental Sort", "").count("->  Sort ")
        assert sorts == SORTS.get(name, 0), name
        wanted = INDEXES.get(name, indexes)
        assert indexes <= wanted, name
        assert (indexes & wanted - {"lro_operations_pkey"}) or name not in INDEXES, name


def test_records_are_looked_up_by_id_where_all_records_wait(store, link, clock):
    """No plan reads all records, not even a plan made when all of many records wait for work."""
    insert(store, record_of(clock, owner="", lease_until=clock()))
    link.execute(
        """INSERT INTO lro_operations SELECT (jsonb_populate_record(
            o, jsonb_build_object('id', gen_random_uuid(), 'name', n::text))).*
            FROM lro_operations o, generate_series(1, 3000) AS n"""
    )
    link.execute("ANALYZE lro_operations")
    for name, values in PLANNED.items():
        plan = kept_plan_of(link, statement_named(name), values)
        for line, following in itertools.pairwise(plan):
            if "using lro_operations_pkey" in line:
                assert following.startswith("Index Cond: (id = "), f"{name}: {plan}"


FAILED = InState(frozenset({State.FAILED}))
WALKS = {
    "lro_operations_order": EVERYTHING,
    "lro_operations_by_state": all_of([FAILED, TextContains((Column.METADATA,), ("text",))]),
    "lro_operations_by_k1": all_of([FAILED, KeyIn("k1", frozenset({"a"}))]),
    "lro_operations_pkey": NameIn(frozenset({"operations/a"})),
}


@pytest.mark.parametrize("index", WALKS)
def test_a_page_is_found_by_its_index(store, link, postgres_wire, index):
    """A page's index limits the scan at both ends and returns the records in order."""
    store.index({"k1"})
    until(no_index_is_made)
    postgres_wire.said.clear()
    postgres_wire.values.clear()
    store.page("", Cursor(datetime(2030, 1, 1, tzinfo=UTC), "operations/x"), 9, WALKS[index])
    (text,), (values,) = postgres_wire.said, postgres_wire.values
    plan, indexes = plan_of(link, text.encode(), values)
    assert not [slow for slow in SLOW if slow in plan]
    assert indexes == {index}
    if index != "lro_operations_pkey":
        scans = len(re.findall(r"Index (?:Only )?Scan.* using", plan))
        assert plan.count("create_time <=") == plan.count("create_time >=") == scans
        assert "Incremental Sort" in plan


def test_read_that_times_out_is_retried_with_fewer_records(store, clock, postgres_wire):
    """A read that times out is repeated with a tenth of the records; other errors are raised."""
    fill(store, clock)
    postgres_wire.values.clear()
    postgres_wire.fail("", errors.QueryCanceled("statement timeout"), times=2)
    assert ids(store.page("", None, 9).records) == ["a", "b", "c", "d"]
    assert [values[3] for values in postgres_wire.values] == [SCAN, SCAN // 10, SCAN // 100]
    store.close()
    with pytest.raises(Unavailable, match="closed"):
        store.page("", None, 9)


def test_expire_that_times_out_continues_with_fewer_records(store, clock, postgres_wire):
    """After a timeout ``expire`` removes fewer records at a time; later calls remove more."""
    for number in range(25):
        insert(store, record_of(clock, f"{number:02}"))
        store.update(f"operations/{number:02}", end_of(clock, days=1))
    clock.advance(days=2)
    postgres_wire.values.clear()
    postgres_wire.fail("", errors.QueryCanceled("statement timeout"))
    removed = store.expire(20)
    assert (len(removed.names), removed.more) == (20, True)
    assert [values[1] for values in postgres_wire.values if len(values) == 2][:2] == [20, 2]
    removed = store.expire(1000)
    assert (len(removed.names), removed.more) == (5, False)


def test_role_without_rights_works_without_an_index(server, schema, opened, plain, clock, caplog):
    """If the role may not create an index, the store works without it; the log names the right."""
    fill(opened(), clock)
    plain.execute(f"CREATE ROLE guest_{schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO PUBLIC")
    rights = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES"
    plain.execute(f"GRANT {rights} IN SCHEMA {schema} TO guest_{schema}")
    url = server.url.replace("lro@", f"guest_{schema}@")
    with closing(PostgresStore(url, schema=schema, clock=clock, **UNHURRIED)) as store:
        store.index({"k1"})
        assert ids(store.page("", None, 9, WANTED).records) == ["a", "c", "d"]
        until(lambda: f'lro_operations_by_k1 ON "{schema}".lro_operations' in caplog.text)
        assert not has_index(plain, schema)


def no_index_is_made():
    """Return whether no store has a thread that makes indexes."""
    return "lro-indexes" not in {one.name for one in threading.enumerate()}


def has_index(plain, schema):
    """Return whether the index by the key ``k1`` exists and is valid."""
    text = """SELECT 1 FROM pg_index WHERE indisvalid
        AND indexrelid = to_regclass(%s || '.lro_operations_by_k1')"""
    return bool(plain.execute(text, (schema,)).fetchall())


def test_old_transaction_does_not_hold_up_a_release_with_a_new_index(opened, schema, plain, clock):
    """While an old transaction, such as a dump, is open, lists work without the new index."""
    insert(opened(), record_of(clock, keys=KEYED))
    with plain.transaction():
        plain.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        plain.execute("SELECT 1")
        store, closed = opened(), opened()
        for one in (store, closed):
            one.index({"k1"})
            assert one.get("operations/a")
            assert ids(one.page("", None, 9, WANTED).records) == ["a"]
        closed.close()  # closing does not wait for the index either
        until(lambda: [one.name for one in threading.enumerate()].count("lro-indexes") == 1)
        assert not has_index(plain, schema)
    until(lambda: has_index(plain, schema))
    assert ids(store.page("", None, 9, WANTED).records) == ["a"]


def test_old_transaction_does_not_hold_up_the_declaration_of_a_method(opened, schema, plain, clock):
    """Methods with new indexes can be declared while another transaction is open."""
    store = opened()
    insert(store, record_of(clock, keys=KEYED))
    with plain.transaction():
        plain.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        plain.execute("SELECT 1")
        for keys in ({"k2"}, {"k1", "k2"}):
            assert together(1, lambda _, keys=keys: store.index(keys)) == [None]
        assert ids(store.page("", None, 9, WANTED).records) == ["a"]
        assert not has_index(plain, schema)
    until(lambda: has_index(plain, schema))
    until(no_index_is_made)
    store.index({"k1", "k3"})  # starts a new thread, as the first has ended
    other = f"""SELECT to_regclass('"{schema}".lro_operations_by_k3')"""
    until(lambda: plain.execute(other).fetchone() != (None,))


# -- a server that has changed --------------------------------------------------------------------


def written(store, record):
    try:
        insert(store, record)
    except Unavailable:
        return False
    return True


def test_store_reconnects_after_a_read_only_server(opened, schema, plain, clock):
    """A store reconnects after writes to a read-only server, for instance after a failover."""
    store = opened()
    insert(store, record_of(clock))
    role = f"app_{schema}"
    plain.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    plain.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    with closing(PostgresStore(f"{plain.info.dsn} user={role}", schema=schema, **UNHURRIED)) as one:
        for _ in range(2):
            with pytest.raises(Unavailable, match="ReadOnlySqlTransaction"):
                insert(one, record_of(clock, "c"))
        plain.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
        until(lambda: written(one, record_of(clock, "d")))
        assert listed(one) == ["a", "d"]


def test_dropped_schema_is_made_again(opened, schema, plain, clock):
    """A dropped schema is created again, without its data, and the process needs no restart."""
    store = opened()
    store.index({"k1"})
    insert(store, record_of(clock))
    until(lambda: has_index(plain, schema))  # a drop while the index is being made could deadlock
    plain.execute(f'DROP SCHEMA "{schema}" CASCADE')
    assert listed(store) == []
    insert(store, record_of(clock, "b", keys=KEYED))
    until(lambda: has_index(plain, schema))
    assert ids(store.page("", None, 9, WANTED).records) == ["b"]


def test_refusals_of_the_database_are_logged_once_a_minute(
    opened, schema, plain, clock, caplog, monkeypatch
):
    """Refusals and failed notifications are logged once a minute, however many there are."""
    store = opened()
    insert(store, record_of(clock))
    plain.execute(f'ALTER TABLE "{schema}".lro_operations RENAME COLUMN state TO status')
    for _ in range(20):
        with pytest.raises(Unavailable):
            store.get("operations/a")
        with pytest.raises(Unavailable):
            store.next_due() or store.poll_states(["operations/a"])
    refusals = [one for one in caplog.records if "refuses a statement" in one.message]
    assert len(refusals) == 1
    calls = []

    def refuse(texts):
        calls.append(texts)
        raise Unavailable("no")

    announcer = Announcer(refuse, "me")
    for number in range(5):
        announcer.announce(f"operations/{number}")
        until(lambda: len(calls) > number)  # noqa: B023
    announcer.stop()
    assert len([one for one in caplog.records if "were not sent" in one.message]) == 1


def test_refusals_with_varying_messages_are_logged_once_a_minute(
    opened, schema, plain, clock, caplog
):
    """A refusal is logged once a minute even if its message varies, for instance by the time."""
    store = opened()
    insert(store, record_of(clock))
    plain.execute(f"""CREATE FUNCTION "{schema}".refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE insufficient_privilege USING MESSAGE = 'not at ' || clock_timestamp(); END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON "{schema}".lro_operations
        FOR EACH ROW EXECUTE FUNCTION "{schema}".refuse()""")
    for _ in range(20):
        with pytest.raises(Unavailable):
            store.update("operations/a", lambda record: record.next_version(caller="y"))
    assert len([one for one in caplog.records if "refuses a statement" in one.message]) == 1


def test_backslashes_are_read_with_standard_conforming_strings_off(server, schema, plain, clock):
    """JSON with backslashes is read correctly with ``standard_conforming_strings`` off."""
    role = f"old_{schema}"
    plain.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    plain.execute(f"ALTER ROLE {role} SET standard_conforming_strings = off")
    url = server.url.replace("lro@", f"{role}@")
    with closing(PostgresStore(url, schema=schema, clock=clock, **UNHURRIED)) as store:
        insert(store, record_of(clock, keys=KEYED))
        store.index({"k1"})
        for prefilter in (WANTED, EVERYTHING):
            assert ids(store.page("", None, 9, prefilter).records) == ["a"]
        exports = service(store)
        name = reported(exports, {"progressPercent": 5})
        request = ListOperationsRequest(filter="metadata.progress_percent >= 4")
        assert [one.name for one in exports.list(request).operations] == [name]


def test_primary_of_several_servers_is_used(server, schema, plain, clock, monkeypatch):
    """Among several servers a read-only one is skipped, unless the URL says otherwise."""
    monkeypatch.delenv("PGTARGETSESSIONATTRS", raising=False)
    role = f"reads_{schema}"
    plain.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    plain.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    both = f"{server.url.replace('lro@', f'{role}@')}".replace(
        f":{server.port}/", f":{server.port},127.0.0.1:{server.port}/"
    )
    for more, error in (("", "OperationalError"), ("?target_session_attrs=any", "ReadOnly")):
        store = PostgresStore(both + more, schema=schema, **UNHURRIED)
        with closing(store), pytest.raises(Unavailable, match=error):
            insert(store, record_of(clock))


# -- the clock ------------------------------------------------------------------------------------


def test_store_uses_the_clock_of_the_server(opened, plain, postgres_wire, monkeypatch):
    """The first connection reads the server's clock; after a minute the next call does so again."""
    store = opened(clock=None)
    (before,) = plain.execute("SELECT clock_timestamp()").fetchone()
    shown = store.now()
    (after,) = plain.execute("SELECT clock_timestamp()").fetchone()
    assert shown.tzinfo is UTC
    assert before - timedelta(seconds=1) <= shown <= after + timedelta(seconds=1)
    asks = "SELECT (extract(epoch"
    assert [one for one in postgres_wire.said if one.startswith(asks)] == []
    monkeypatch.setattr("lro.stores.postgres._connections.PERIOD_SECONDS", 0.0)
    store = opened(clock=None)
    store.poll_states(["operations/a"])
    postgres_wire.said.clear()
    store.poll_states(["operations/a"])
    assert [one.startswith(asks) for one in postgres_wire.said] == [True, False]


def test_clock_advances_between_measurements():
    """The clock follows the monotonic clock; once a minute one caller must read the server's."""
    ticks = [100.0]
    clock = ServerClock(lambda: ticks[0])
    assert [clock.due(), clock.due()] == [True, False]
    clock.measured(1_000_000_000_000, 99.0, 100.0)
    assert clock.now() == datetime.fromtimestamp(1_000_000.5, UTC)
    ticks[0] += PERIOD_SECONDS
    assert clock.now() == datetime.fromtimestamp(1_000_000.5 + PERIOD_SECONDS, UTC)
    assert [clock.due(), clock.due()] == [True, False]


def test_clock_moves_only_by_better_measurements():
    """A measurement sets the clock only if it is more precise than the last or contradicts it."""
    clock = ServerClock(lambda: 100.0)
    clock.measured(1_000_000_000_000, 99.9, 100.1)
    first = clock.now()
    clock.measured(1_000_000_200_000, 99.8, 100.2)
    assert clock.now() == first
    clock.measured(1_000_000_000_000, 99.99, 100.02)
    assert clock.now() - first == timedelta(milliseconds=-5)
    clock.measured(1_000_005_000_000, 99.0, 101.0)
    assert clock.now() - first == timedelta(seconds=5)


# -- notifications --------------------------------------------------------------------------------


def test_subscription_receives_announcements_of_other_stores(server, opened):
    """A subscription receives names from other stores on its schema, but not from its own store."""
    here, there, foreign = opened(), opened(), opened(schema=server.fresh_schema())
    with closing(here.listen()) as subscription:
        here.notify_others("operations/own")
        foreign.notify_others("operations/foreign")
        names = {f"operations/{number}" for number in range(500)}
        for name in names:
            there.notify_others(name)
        received = set()
        while received < names:
            found = subscription.next_changes(PATIENCE)
            assert found
            received |= found
        assert received == names
        assert subscription.next_changes(0) == ()


def test_unknown_payload_makes_the_subscription_report_any_change(
    opened, schema, plain, postgres_wire
):
    """A payload of another program makes the subscription report that anything may have changed."""
    listen, said = "Composed([SQL('LISTEN", '["me", "operations/a"]'
    notify = "SELECT pg_notify(%s, %s)"
    postgres_wire.when(listen, lambda link: link.execute(f'LISTEN "{schema}.c"'))
    with closing(opened().listen()) as subscription:
        for nonsense in ("no JSON", '{"a": 1}', "[1]"):
            plain.execute(notify, (f"{schema}.c", nonsense))
            assert subscription.next_changes(PATIENCE) is None
        plain.execute(notify, (f"{schema}.c", said))
        assert subscription.next_changes(PATIENCE) == {"operations/a"}
        # psycopg itself reads a notification that arrives together with the reply to a statement.
        postgres_wire.connections[-1].execute(notify, (f"{schema}.c", said))
        assert subscription.next_changes(PATIENCE) == {"operations/a"}


def test_a_closed_subscription_is_unavailable(opened):
    """A closed subscription fails at once, even if it was waiting or its store was closed too."""
    store = opened()
    subscriptions = [store.listen() for _ in range(3)]
    found = []
    listener = threading.Thread(target=lambda: found.append(refused(subscriptions[0])))
    listener.start()
    subscriptions[0].close()
    joined(listener)
    subscriptions[1].close()
    subscriptions[1].close()
    store.close()
    found += map(refused, subscriptions[1:])
    assert found == ["the subscription is closed"] * 3
    with pytest.raises(Unavailable, match="the store is closed"):
        store.listen()


def refused(subscription):
    """Return the error message of a closed subscription."""
    with pytest.raises(Unavailable) as answer:
        subscription.next_changes(PATIENCE)
    return str(answer.value)


def test_a_subscription_made_while_its_store_closes_is_closed(opened, postgres_wire):
    store = opened()
    store.secret()
    postgres_wire.when("connect", lambda _: store.close())
    with pytest.raises(Unavailable, match="the store is closed"):
        store.listen()


def test_closing_a_store_sends_its_last_announcements(opened):
    """Closing a store sends its last announcements; later announcements are dropped."""
    with closing(opened().listen()) as subscription:
        store = opened()
        store.notify_others("operations/a")
        store.close()
        store.notify_others("operations/late")
        assert subscription.next_changes(PATIENCE) == {"operations/a"}
        assert subscription.next_changes(0) == ()


def test_idle_store_has_no_thread_and_sends_no_statement(opened, postgres_wire):
    """Without calls and announcements, an open store has no thread and sends no statement."""
    before = {*threading.enumerate()}
    store = opened()
    assert ({*threading.enumerate()} <= before, postgres_wire.said) == (True, [])
    store.close()
    assert postgres_wire.said == []


def test_announcements_are_sent_together_and_lost_ones_are_logged(caplog, monkeypatch):
    """Names announced shortly after the first one are sent together, without duplicates."""
    sent, first = [], threading.Event()

    def send(found):
        names = [name for text in found for name in json.loads(text)[1:]]
        if "fails" in names:
            raise Unavailable("away")
        sent.append(names)
        first.set()

    speaker = Announcer(send, "me")
    speaker.announce("fails")
    until(lambda: caplog.messages)
    monkeypatch.setattr("lro.stores.postgres._notifications.PERIOD_SECONDS", PATIENCE)
    speaker.announce("a")
    assert first.wait(PATIENCE)
    for name in "bcbcb":
        speaker.announce(name)
    speaker.stop()
    assert sent == [["a"], ["b", "c"]]
    assert caplog.messages == ["1 announcements were not sent: away"]


def test_announcing_without_threads_raises_no_error(monkeypatch):
    """While the interpreter shuts down, announcing raises no error and notifies nobody."""

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    speaker = Announcer(lambda found: None, "me")
    speaker.announce("operations/a")
    speaker.stop()


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=1024), max_size=40))
@example(["a", "\ud800", "b"])
@example([f"{number}\U0001f600" * 500 for number in range(5)])
def test_payloads_carry_every_name(names):
    """Each payload is within the size limit of NOTIFY, and every valid name is sent unchanged."""
    carried = []
    for text in payloads("me", names):
        assert len(text.encode()) < 8000
        sender, *some = json.loads(text)
        assert sender == "me"
        carried += some
    assert carried == [name for name in names if name.encode("utf-8", "replace").decode() == name]


# -- group commits --------------------------------------------------------------------------------


@contextmanager
def one_group(store, wire):
    """Queue the block's writes while another write runs, so that they share groups."""
    go = threading.Event()
    wire.when("WITH", lambda _: go.wait(PATIENCE))
    later = Later(store)
    later.insert(record_of(store.now, f"leading-{len(wire.said)}"))
    until(lambda: wire.said[-1].startswith("WITH"))
    wire.said.clear()
    wire.values.clear()
    try:
        yield later
    finally:
        go.set()


def sizes(wire):
    """Return how many writes each recorded statement carried."""
    return [
        len(json.loads(values[0]))
        for one, values in zip(wire.said, wire.values, strict=True)
        if one.startswith("WITH")
    ]


def test_writes_queued_during_a_write_share_the_next_group(store, clock, postgres_wire):
    """Writes queued during another write share statements of up to 200 writes."""
    with one_group(store, postgres_wire) as later:
        for number in range(230):
            later.insert(record_of(clock, f"{number}"))
    assert kinds(later.all()) == ["done"] * 231
    assert sizes(postgres_wire) == [200, 30]
    assert len(listed(store)) == 231


def test_write_over_the_group_limit_is_sent_alone(store, clock, postgres_wire, monkeypatch):
    """A write that exceeds the byte limit of a group is sent alone."""
    monkeypatch.setattr("lro.stores.postgres._records.MAX_GROUP_BYTES", 20_000)
    with one_group(store, postgres_wire) as later:
        for number, length in enumerate((9_000, 5_000, 9_000, 30_000)):
            later.insert(record_of(clock, str(number), caller="x" * length))
    assert kinds(later.all()) == ["done"] * 5
    assert sizes(postgres_wire) == [2, 1, 1]


def test_writes_of_one_record_go_in_separate_groups(store, clock, postgres_wire):
    """Writes of one record, key or target go in separate groups and keep their order."""
    with one_group(store, postgres_wire) as later:
        later.insert(record_of(clock, "b", target="t"))
        later.insert(record_of(clock, "c", target="t"))
        later.insert(record_of(clock, "d"), key_of())
        later.insert(record_of(clock, "e"), key_of())
        later.insert(record_of(clock, "f"))
    found = later.all()
    assert kinds(found) == ["done", "done", "TargetBusy", "done", "done", "done"]
    assert (found[3].fresh, found[4].fresh) == (True, False)
    assert sizes(postgres_wire) == [3, 2]


@pytest.mark.parametrize("plain_insert", [True, False])
def test_group_may_mix_inserts_updates_and_ends(store, opened, clock, postgres_wire, plain_insert):
    """One statement can hold inserts, with or without keys and targets, updates and ends."""
    for name in ("going", "ending", "moved"):
        insert(store, held(clock, name))
    insert(store, record_of(clock, "first", target="busy"), key_of("known"))
    opened().update("operations/moved", cancel_of(clock))
    with one_group(store, postgres_wire) as later:
        later.insert(record_of(clock, "keyed"), key_of("fresh"))
        later.insert(record_of(clock, "aimed", target="free"))
        later.insert(record_of(clock, "late", target="busy"))
        later.insert(record_of(clock, "again"), key_of("known"))
        later.insert(record_of(clock, "first"), key_of("name is taken"))
        if plain_insert:
            later.insert(record_of(clock, "plain"))
        later.update("going", cancel_of(clock))
        later.update("ending", end_of(clock))
        later.update("moved", end_of(clock))
    _, keyed, aimed, late, again, taken, *rest = later.all()
    assert (keyed.fresh, aimed.fresh, again.fresh) == (True, True, False)
    assert kinds([late, taken]) == ["TargetBusy", "InvalidArgument"]
    assert [one.done for one in rest[-2:]] == [True, True]
    assert rest[-1].cancel_requested
    assert sizes(postgres_wire)[0] == 8 + plain_insert
    assert store.request("operations/keyed") == store.request("operations/aimed") == REQUEST
    assert store.get("operations/going").cancel_requested
    with pytest.raises(OperationNotFound):
        store.request("operations/ending")
    assert not insert(store, record_of(clock, "x"), key_of("fresh")).fresh
    assert insert(store, record_of(clock, "x"), key_of("name is taken")).fresh


def test_group_is_retried_after_a_deadlock(store, clock, postgres_wire):
    """After a deadlock the group is retried; after three deadlocks the writes fail."""
    postgres_wire.fail("WITH", errors.DeadlockDetected())
    assert insert(store, record_of(clock)).fresh
    postgres_wire.fail("WITH", errors.DeadlockDetected(), times=3)
    with pytest.raises(Unavailable, match="DeadlockDetected"):
        insert(store, record_of(clock, "b"))
    assert listed(store) == ["a"]


def test_error_of_the_whole_group_reaches_all_writers(store, clock, postgres_wire, caplog):
    """A full disk fails all writes of the group; none of them is retried alone."""
    with one_group(store, postgres_wire) as later:
        for name in "bc":
            later.insert(record_of(clock, name))
        postgres_wire.fail("WITH", errors.DiskFull())
    _, *found = later.all()
    assert kinds(found) == ["Unavailable"] * 2
    assert found[0] is not found[1]
    assert sizes(postgres_wire) == [2]


def test_error_in_a_group_fails_only_its_write(store, schema, clock, postgres_wire, plain):
    """If one write of a group is refused, the other writes succeed; the error names the record."""
    plain.execute(f"ALTER TABLE {schema}.lro_operations ADD CHECK (caller <> 'poison')")
    with one_group(store, postgres_wire) as later:
        for number in range(5):
            caller = "poison" if number == 2 else ""
            later.insert(record_of(clock, str(number), caller=caller))
    found = later.all()
    said = "the record 'operations/2' cannot be kept by the database (CheckViolation)"
    assert str(found.pop(3)) == said
    assert kinds(found) == ["done"] * 5
    assert {"0", "1", "3", "4"} < {*listed(store)}


def test_next_group_is_written_after_its_leader_is_interrupted(store, clock, postgres_wire):
    """Ctrl-C during a write ends only that write: the next group is still written."""
    later = Later(store)

    def interrupt(_):
        later.insert(record_of(clock, "b"))
        raise KeyboardInterrupt

    postgres_wire.when("WITH", interrupt)
    with pytest.raises(KeyboardInterrupt):
        insert(store, record_of(clock))
    assert kinds(later.all()) == ["done"]
    assert listed(store) == ["b"]


def test_queued_removal_is_decided_again_after_a_concurrent_change(store, opened, clock):
    """A queued removal is decided again on the record that another process has changed."""
    insert(store, record_of(clock))
    decided = []

    def remove(found):
        decided.append(found.version)
        if len(decided) == 1:  # version 1 is in this store's cache
            opened().update("operations/a", cancel_of(clock))

    assert changed_later(store, "a", remove) is None
    assert decided == [1, 2]
    assert listed(store) == []


NOTHING = SimpleNamespace(fetchall=lambda: [(None, False, None, None, None, None)])
"""The reply of a server on which nothing conflicts with a start."""


def test_conflict_that_is_gone_when_read_is_retried(store, clock, postgres_wire):
    """A start is retried if its conflict is gone when read, and fails after too many retries."""
    insert(store, record_of(clock))
    find = statements.FIND_FIRST.decode()[:40]
    postgres_wire.when(find, lambda _: store.update("operations/a", removal))
    assert made_later(store, record_of(clock)).fresh
    for start in (insert, made_later):
        postgres_wire.when(find, lambda _: NOTHING, times=10)
        with pytest.raises(Unavailable, match="faster than it can be read"):
            start(store, record_of(clock))
    with pytest.raises(InvalidArgument, match="is taken"):
        insert(store, record_of(clock))


def test_group_leaders_write_alone_if_no_thread_can_start(store, opened, clock, monkeypatch):
    """If no thread can be started, the threads that lead the groups do all the work."""
    insert(store, record_of(clock))

    def no_more(*_):
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", no_more)
    with pytest.raises(InvalidArgument, match="is taken"):
        made_later(store, record_of(clock))
    opened().update("operations/a", cancel_of(clock))
    assert changed_later(store, "a", called("ann")).caller == "ann"
    assert changed_later(store, "a", removal) is None
