"""PostgreSQL on its own: its schema, clock, announcements, several processes, and a fork."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs
import hypothesis.strategies as st
import pytest

pytest.importorskip("psycopg")

import psycopg
from hypothesis import example, given

import lro.stores.postgres
from lro import Any, DeclarationError, InvalidArgument, State, testing
from lro._filters.prefilter import EVERYTHING, Column, InState, KeyIn, NameIn, TextContains, all_of
from lro._model.operation import claim, report, request_cancel
from lro.adapters import Cursor, Inserted, Record, Renewed
from lro.errors import MissingExtra, OperationNotFound, TargetBusy, Unavailable
from lro.stores._list_queries import ListQuery
from lro.stores.postgres import SCHEMA_VERSION, PostgresStore, _notifications, _pages, _schema
from lro.stores.postgres import _statements as statements
from lro.stores.postgres._connections import PERIOD_SECONDS, ServerAddress, ServerClock
from lro.stores.postgres._notifications import Announcer, payloads
from lro.testing._samples import (
    DONE,
    REQUEST,
    end_of,
    held,
    ids,
    insert,
    key_of,
    made_later,
    record_of,
    together,
)
from tests.services.postgres import PostgresServer, shared_server, store_maker
from tests.services.processes import killed_at_end
from tests.waiting import PATIENCE

OPENER = """
import sys
from datetime import UTC, datetime
from lro._base.status import Any
from lro._engine.store_port import RequestKey
from lro._model.operation import Record
from lro.stores.postgres import PostgresStore

print("ready", flush=True)
sys.stdin.readline()
store = PostgresStore(sys.argv[1], schema=sys.argv[2])
now = datetime.now(UTC)
names = []
for number in range(20):
    name = f"operations/{sys.argv[3]}-{number}"
    record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
    names.append(store.insert(record, Any(), RequestKey("M", "", str(number), "f")).record.name)
print(store.secret().hex(), *names, flush=True)
store.close()
"""

FORKER = """
import os, sys, warnings
from datetime import UTC, datetime
from lro._base.status import Any
from lro._base.errors import Unavailable
from lro._model.operation import Record
from lro.stores.postgres import PostgresStore

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

def use(store, name):
    now = datetime.now(UTC)
    record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
    assert store.insert(record, Any(), None).fresh
    assert store.get(name).name == name
    store.notify_others(name)

store = PostgresStore(sys.argv[1], schema=sys.argv[2])
subscription, idle = store.listen(), store.listen()
use(store, "operations/before")
child = os.fork()
if child == 0:
    try:
        subscription.next_changes(600)
    except Unavailable:
        subscription.close()
        use(store, "operations/child")
        assert store.listen().next_changes(0) == ()
        store.close()
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
while "operations/child" not in (found := subscription.next_changes(20)):
    assert found
use(store, "operations/after")
store.close()
"""


PRELOADER = """
import os, sys
from datetime import UTC, datetime
from lro._base.status import Any
from lro._model.operation import Record
from lro.stores.postgres import PostgresStore

store = PostgresStore(sys.argv[1], schema=sys.argv[2])
store.index({"k1"})
child = os.fork()
name = "operations/parent" if child else "operations/child"
now = store.now()
assert abs((now - datetime.now(UTC)).total_seconds()) < 600
record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
assert store.insert(record, Any(), None).fresh
assert store._setup.keys == {"k1"}
store.close()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def process(program, *arguments):
    """A process of its own, with pipes; killed at the end."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return killed_at_end(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    """The server of this test run."""
    return shared_server()


@pytest.fixture
def schema(server):
    """The name of a new schema."""
    return server.fresh_schema()


@pytest.fixture
def store(server, clock):
    """An empty store on the test's clock."""
    with closing(store_maker(server)(clock)) as made:
        yield made


@pytest.fixture
def plain(server):
    """A connection that is not ours."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


def opened(server, schema, **options):
    """A store that the test closes."""
    return closing(PostgresStore(server.url, schema=schema, **options))


def tables(plain, schema):
    """How many rows the tables have, by name."""
    names = ("operations", "inputs", "starts")
    return {
        name: plain.execute(f"SELECT count(*) FROM {schema}.{name}").fetchone()[0] for name in names
    }


@pytest.mark.parametrize("check", testing.STORE_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_promises_of_every_store(check, server):
    """What the function's name says."""
    testing.run_store_check(check, store_maker(server))


# -- the schema -----------------------------------------------------------------------------------


def test_processes_open_a_new_schema_at_once(server, schema):
    """One makes the tables, all work, share one secret, and start what is the same only once."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(process(OPENER, server.url, schema, number)) for number in range(4)
        ]
        assert [one.stdout.readline() for one in running] == ["ready\n"] * 4
        for one in running:
            one.stdin.write("go\n")
            one.stdin.flush()
        said = [one.stdout.readline().split() for one in running]
        assert [one.wait(PATIENCE) for one in running] == [0] * 4
    assert len({tuple(words) for words in said}) == 1
    with opened(server, schema) as store:
        assert store.secret().hex() == said[0][0]
        assert sorted(r.name for r in store.page("", None, 99).records) == sorted(said[0][1:])


def test_threads_open_a_new_schema_at_once(server):
    """The same within one process, as no process start spreads it."""
    for _ in range(3):
        schema = server.fresh_schema()
        stores = [PostgresStore(server.url, schema=schema) for _ in range(6)]
        found = together(6, lambda number, stores=stores: stores[number].secret())
        assert [type(one) for one in found] == [bytes] * 6, found
        assert len({*found}) == 1
        for store in stores:
            store.close()


def test_a_reopened_schema_keeps_everything(server, schema, clock):
    """Records, requests, leases, keys, targets and the secret."""
    with opened(server, schema, clock=clock) as store:
        record = held(clock, "a", target="t")
        insert(store, record, key_of())
        store.update(record.name, claim("us", clock(), clock()))
        insert(store, record_of(clock, "done"))
        store.update("operations/done", end_of(clock))
        before = store.get("operations/a"), store.get("operations/done"), store.secret()
    with opened(server, schema, clock=clock) as store:
        assert (store.get("operations/a"), store.get("operations/done"), store.secret()) == before
        assert store.request("operations/a") == REQUEST
        assert ids(store.orphans({"M"}, 9).records) == ["a"]
        assert not insert(store, record_of(clock, "b"), key_of()).fresh
        with pytest.raises(TargetBusy):
            insert(store, record_of(clock, "b", target="t"))


def test_an_opened_schema_is_not_locked_again(server, schema, plain):
    """A process starts while another one makes an index, or just holds the lock."""
    with opened(server, schema) as store:
        store.secret()
        plain.execute("SELECT pg_advisory_lock(%s)", (_schema._lock_number(schema),))
        with opened(server, schema) as other:
            assert other.secret() == store.secret()


@pytest.mark.parametrize("version", [-1, SCHEMA_VERSION + 1])
def test_a_schema_of_another_version_is_refused(server, schema, plain, clock, version):
    """An error says which version it has; what is in it is left as it is."""
    with opened(server, schema, clock=clock) as store:
        insert(store, record_of(clock))
    plain.execute(f"UPDATE {schema}.versions SET version = {version}")
    known = f"has version {version}; this library can only use version {SCHEMA_VERSION}"
    with opened(server, schema) as other, pytest.raises(Unavailable, match=known):
        other.secret()
    assert plain.execute(f"SELECT name FROM {schema}.operations").fetchall() == [("operations/a",)]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {}.operations DROP COLUMN keys",
        "DROP TABLE {}.operations",
        "ALTER TABLE {}.versions RENAME COLUMN version TO other",
    ],
)
def test_a_schema_with_other_tables_is_refused(server, schema, plain, change):
    """Its version says that they are ours, and they are not."""
    with opened(server, schema) as store:
        store.secret()
    plain.execute(change.format(schema))
    known = r"does not exist\): it is not of this library"
    with opened(server, schema) as store, pytest.raises(Unavailable, match=known):
        store.secret()


def test_tables_are_made_whole_or_not_at_all(server, schema, plain, monkeypatch):
    """A failure leaves nothing behind, and a later store makes them."""
    with monkeypatch.context() as broken:
        broken.setattr(_schema, "_TABLES", f"{_schema._TABLES}; SELECT 1 / 0")
        with opened(server, schema) as store, pytest.raises(Unavailable, match="DivisionByZero"):
            store.secret()
    assert plain.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,)
    with opened(server, schema) as store:
        assert len(store.secret()) == 64


def test_a_schema_made_by_the_operator_is_used(server, plain):
    """The store's role need not be allowed to make schemas; odd names are names too."""
    schema = f'Odd "{server.fresh_schema()}"'
    quoted = schema.replace('"', '""')
    plain.execute(f'CREATE SCHEMA "{quoted}"')
    role = schema.rpartition("lro_")[2].strip('"')
    plain.execute(f'CREATE ROLE "{role}" LOGIN; GRANT ALL ON SCHEMA "{quoted}" TO "{role}"')
    url = server.url.replace("lro@", f"{role}@")
    with (
        closing(PostgresStore(url, schema=schema)) as store,
        closing(store.listen()) as subscription,
    ):
        with opened(server, schema) as other:
            other.notify_others("operations/a")
            assert subscription.next_changes(PATIENCE) == {"operations/a"}
        plain.execute(f'REVOKE ALL ON SCHEMA "{quoted}" FROM "{role}"')
    refused = PostgresStore(url, schema=server.fresh_schema())
    with closing(refused), pytest.raises(Unavailable, match="InsufficientPrivilege"):
        refused.secret()


@pytest.mark.parametrize("schema", ["", "pg_mine", "x" * 61, "a\0b", "\ud800"])
def test_a_name_that_no_schema_can_have_is_refused(server, schema):
    """Before anything is connected."""
    with pytest.raises(DeclarationError, match="schema"):
        PostgresStore(server.url, schema=schema)


def test_a_url_that_is_none_is_refused():
    """The error does not show it, as it may hold a password."""
    with pytest.raises(DeclarationError, match="no connection string") as refused:
        PostgresStore("secret word")
    assert "secret" not in str(refused.value)
    address = ServerAddress(
        url="password=secret", schema="s", connect_seconds=1, statement_seconds=1
    )
    assert "secret" not in repr(address)


def test_an_old_server_is_refused(server, schema, monkeypatch):
    """By the version that is needed."""
    monkeypatch.setattr(_schema, "OLDEST_SERVER", 99_00_00)
    known = "version 99 is needed, found 1"
    with opened(server, schema) as store, pytest.raises(Unavailable, match=known):
        store.secret()


def test_a_database_that_cannot_hold_all_texts_is_refused(server, schema, plain):
    """Its encoding must be UTF8."""
    plain.execute(f"CREATE DATABASE {schema} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    store = PostgresStore(server.url.replace("/postgres", f"/{schema}"))
    with closing(store), pytest.raises(Unavailable, match="must be in UTF8, it is in LATIN1"):
        store.secret()


def test_the_missing_extra_is_named(monkeypatch):
    """Where psycopg is not installed, the import says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lro\[postgres\]'"):
        runpy.run_path(lro.stores.postgres.__file__)


def test_durable_means_on_disk(server, schema, plain):
    """Also where the role's or the database's default is to acknowledge before that."""
    role = f"{schema}_hasty"
    plain.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    plain.execute(f"ALTER ROLE {role} SET synchronous_commit = off")
    plain.execute(f"ALTER ROLE {role} SET default_transaction_isolation = serializable")
    with closing(PostgresStore(server.url.replace("lro@", f"{role}@"), schema=schema)) as store:
        query = b"SELECT current_setting('synchronous_commit')"
        assert store._resources.connections.rows(query) == [("on",)]
        query = b"SELECT current_setting('transaction_isolation')"
        assert store._resources.connections.rows(query) == [("read committed",)]


# -- texts ----------------------------------------------------------------------------------------


def test_names_may_be_as_long_as_they_may_be(store, clock):
    """1,024 code points of four bytes are more than an index of PostgreSQL could hold."""
    parent = "\U0001f600" * 1000
    long = "\U0001f601" * 12
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
        other = PostgresStore(store._address.url, schema=store._address.schema)
        with closing(other):
            other.notify_others(record.name)
            assert subscription.next_changes(PATIENCE) == {record.name}


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("field", ["caller", "target", "method", "request_id"])
def test_a_text_that_cannot_be_stored_is_refused(store, clock, plain, field, bad):
    """The error says which; nothing is stored, and no group fails by it."""
    record = record_of(clock, **{field: bad})
    for check_only in (False, True):
        with pytest.raises(InvalidArgument, match="must be Unicode text") as refused:
            insert(store, record, check_only=check_only)
        assert refused.value.field == field
    good = record_of(clock)
    insert(store, good)
    with pytest.raises(InvalidArgument):
        store.update(good.name, lambda found: found.next_version(**{field: bad}))
    assert store.get(good.name) == good


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("field", ["caller", "request_id", "method", "fingerprint"])
def test_a_key_that_cannot_be_stored_is_refused(store, clock, field, bad):
    """As the record's own texts are."""
    with pytest.raises(InvalidArgument, match="Unicode text"):
        insert(store, record_of(clock), attrs.evolve(key_of(), **{field: bad}))


@pytest.mark.parametrize("bad", ["operations/a\0b", "operations/a\ud800b"])
def test_what_has_such_a_name_is_not_found(store, clock, bad):
    """No verb comes to grief over it."""
    for call in (store.get, store.request, lambda name: store.update(name, lambda r: r)):
        with pytest.raises(OperationNotFound):
            call(bad)
    store.forget(bad)
    store.notify_others(bad)
    assert store.poll_states([bad]).finished == {bad}
    assert list(store.page(bad, None, 9).records) == []
    assert list(store.renew("us", clock(), [bad]).cancel_requested) == []


def test_json_may_hold_any_character(store, clock):
    """U+0000 too, in requests, metadata and results."""
    odd = Any("x/a.Odd", {"text": '\0\u2028\ud7ff"\\', "\0": ["\0"]})
    record = record_of(clock, metadata=odd)
    store.insert(record, odd, key_of())
    assert (store.get(record.name).metadata, store.request(record.name)) == (odd, odd)
    store.update(record.name, end_of(clock, odd))
    assert store.get(record.name).result == odd


def test_a_name_is_taken_once(store, clock, plain):
    """A second insert of it changes nothing and says so; with a key, that one is not used up."""
    record = record_of(clock)
    insert(store, record)
    for key in (None, key_of()):
        with pytest.raises(InvalidArgument, match="is taken"):
            insert(store, record.next_version(caller="x"), key)
    assert store.get(record.name) == record
    assert tables(plain, store._address.schema) == {"operations": 1, "inputs": 1, "starts": 0}


# -- many at once ---------------------------------------------------------------------------------


def test_identical_starts_of_two_processes_make_one(server, schema, clock):
    """A hundred at once, with a target, through two stores."""
    with opened(server, schema, clock=clock) as one, opened(server, schema, clock=clock) as two:
        for turn in range(3):

            def start(number, turn=turn):
                record = record_of(clock, f"{turn}-{number}", target=f"t{turn}")
                return insert((one, two)[number % 2], record, key_of(str(turn)))

            found = together(100, start)
            assert {type(answer) for answer in found} == {Inserted}
            assert sum(answer.fresh for answer in found) == 1
            assert len({answer.record.name for answer in found}) == 1
        assert len(one.page("", None, 99).records) == 3


def test_keys_and_targets_cross(server, schema, clock, plain):
    """Starts that want the same things in other orders do not wait for each other in a circle."""
    with opened(server, schema, clock=clock) as one, opened(server, schema, clock=clock) as two:

        def start(number):
            record = record_of(clock, str(number), target=f"t{number * 7 % 5}")
            try:
                return insert((one, two)[number % 2], record, key_of(str(number % 4)))
            except TargetBusy as exc:
                return exc

        before = server.log.count("deadlock")
        found = [answer for answer in together(60, start) if not isinstance(answer, TargetBusy)]
        assert {type(answer) for answer in found} == {Inserted}
        started = [answer.record for answer in found if answer.fresh]
        assert len({record.target for record in started}) == len(started)
        assert tables(plain, schema) == dict.fromkeys(
            ("operations", "inputs", "starts"), len(started)
        )
        assert server.log.count("deadlock") == before


def test_two_stores_see_each_other(server, schema, clock):
    """What one has committed the other finds at once, whatever it knew before."""
    with opened(server, schema, clock=clock) as one, opened(server, schema, clock=clock) as two:
        record = held(clock)
        insert(one, record)
        assert two.get(record.name) == one.get(record.name) == record
        one.renew("us", clock() + timedelta(hours=1), [record.name])
        assert two.get(record.name) == one.get(record.name)
        assert two.get(record.name).lease_until == clock() + timedelta(hours=1)
        two.update(record.name, request_cancel(clock()))
        assert one.update(record.name, report(DONE, None, clock())).cancel_requested
        two.update(record.name, end_of(clock))
        assert one.get(record.name).result == DONE
        two.update(record.name, lambda found: None)
        with pytest.raises(OperationNotFound):
            one.get(record.name)
        with pytest.raises(OperationNotFound):
            one.update(record.name, end_of(clock))


def test_a_renewal_and_a_change_do_not_undo_each_other(server, schema, clock):
    """A change made on the record before another process renewed its lease is made again."""
    with opened(server, schema, clock=clock) as one, opened(server, schema, clock=clock) as two:
        record = held(clock)
        insert(one, record)
        two.renew("us", clock() + timedelta(hours=1))
        seen = []

        def change(found):
            seen.append(found.lease_until)
            return found.next_version(cancel_requested=True)

        changed = one.update(record.name, change)
        assert seen == [record.lease_until, clock() + timedelta(hours=1)]
        assert two.get(record.name) == changed


def test_what_is_known_is_not_believed_without_asking(server, schema, clock):
    """A change that refuses, or changes nothing, is decided on the record as it is now."""
    with opened(server, schema, clock=clock) as one, opened(server, schema, clock=clock) as two:
        insert(one, held(clock))
        two.update("operations/a", lambda found: found.next_version(owner="", lease_until=clock()))
        taken = one.update("operations/a", claim("them", clock(), clock()))
        assert (taken.owner, taken.version) == ("them", 3)
        two.update("operations/a", request_cancel(clock()))
        insert(one, record_of(clock, "b"))
        two.update("operations/b", end_of(clock))
        assert one.update("operations/b", lambda found: found).done


def test_many_leases_are_renewed_in_parts(store, clock, monkeypatch):
    """Each in a short transaction; none is forgotten."""
    monkeypatch.setattr("lro.stores.postgres._store.RENEWED_AT_ONCE", 3)
    names = [f"operations/{number}" for number in range(8)]
    for name in names:
        insert(store, held(clock, name.removeprefix("operations/")))
    store.update(names[7], request_cancel(clock()))
    until = clock() + timedelta(hours=1)
    assert store.renew("us", until, [*names, "operations/no-such"]) == Renewed([names[7]], [])
    assert {store.get(name).lease_until for name in names} == {until}


def test_a_sweep_passes_by_what_others_write(store, clock, plain):
    """Records that another transaction has locked are left for the next sweep, without waiting."""
    schema = store._address.schema
    for unique_id in "ab":
        insert(store, record_of(clock, unique_id), key_of(unique_id))
        store.update(f"operations/{unique_id}", end_of(clock, days=1))
    clock.advance(days=2)
    with plain.transaction():
        plain.execute(f"SELECT 1 FROM {schema}.operations WHERE name LIKE '%a' FOR UPDATE")
        plain.execute(f"SELECT 1 FROM {schema}.starts FOR UPDATE")
        swept = store.expire(1)
        assert (list(swept.names), swept.more) == (["operations/b"], True)
    swept = store.expire(2)
    assert (list(swept.names), swept.more) == (["operations/a"], False)
    assert tables(plain, schema) == {"operations": 0, "inputs": 0, "starts": 0}


def test_pages_of_one_moment_go_on_within_it(store, clock):
    """Where the index gives only the order of moments, names are put in order."""
    for number in range(30):
        insert(store, record_of(clock, f"{number:02d}"))
    found, place = [], None
    while page := store.page("", place, 7).records:
        found += ids(page)
        place = Cursor(page[-1].create_time, page[-1].name)
    assert found == [f"{number:02d}" for number in range(30)]


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
    "FORGET": (SOME_ID,),
    "GET": (SOME_ID,),
    "GET_IF_CHANGED": (1, 1, None, SOME_ID),
    "REQUEST": (SOME_ID,),
    "POLL_STATES": (1, SOME_IDS),
    "RENEW": (SOME_IDS, "us", SOME_IDS, "us", 1),
    "RENEW_WAITING": (SOME_IDS, "us", SOME_IDS, "us", 1),
    "RENEW_ALL": ("us", "us", 1),
    "ORPHANS": (1, "[]", 1, "[]", 9),
    "TOUCH": (SOME_IDS, 1),
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


@pytest.mark.parametrize("name", PLANNED)
def test_every_row_is_found_by_an_index(store, name):
    """Also by a plan made for empty tables, which may be kept while they grow."""
    rows = store._resources.connections.rows(b"EXPLAIN " + getattr(statements, name), PLANNED[name])
    plan = "\n".join(line for (line,) in rows)
    for slow in ("Seq Scan", "Bitmap", "Hash Join", "Hash Anti", "Merge Join"):
        assert slow not in plan
    sorts = plan.replace("Incremental Sort", "").count("->  Sort ")
    given = {"START": 2, "WRITE": 2, "RENEW_ALL": 1, "ADD_COUNTS": 2, "LOAD": 1}
    assert sorts == given.get(name, 0)


def test_load_is_read_by_the_index_of_states(store):
    """By another one all records of a parent might be looked at, the few in progress the last."""
    plan = store._resources.connections.rows(b"EXPLAIN " + statements.LOAD, PLANNED["LOAD"])
    scans = re.findall(r"Index Scan.* using (\w+)", "\n".join(line for (line,) in plan))
    assert scans == ["operations_by_state"]


@pytest.mark.parametrize(
    ("name", "index"),
    [("CLAIM_DUE", "debts"), ("NEXT_DUE", "debts"), ("EXPIRE", "expiry"), ("LEFT", "expiry")],
)
def test_what_is_due_is_found_by_its_index(store, name, index):
    """By a partial one: most records are not in it, or not yet due."""
    rows = store._resources.connections.rows(b"EXPLAIN " + getattr(statements, name), PLANNED[name])
    scans = re.findall(r"Index (?:Only )?Scan using (\w+)", "\n".join(line for (line,) in rows))
    assert f"operations_{index}" in scans
    assert set(scans) <= {f"operations_{index}", "operations_pkey", "starts_age"}


FAILED = InState(frozenset({State.FAILED}))
WALKS = {
    "operations_order": EVERYTHING,
    "operations_by_state": all_of([FAILED, TextContains((Column.METADATA,), ("text",))]),
    "operations_by_k1": all_of([FAILED, KeyIn("k1", frozenset({"a"}))]),
    "operations_pkey": NameIn(frozenset({"operations/a"})),
}


@pytest.mark.parametrize("index", WALKS)
def test_a_page_is_found_by_its_index(store, index):
    """Where it begins and where it ends, and in its order."""
    store.index({"k1"})
    after = Cursor(datetime(2030, 1, 1, tzinfo=UTC), "operations/x")
    walk = ListQuery.of(WALKS[index], after, {"k1"}, _pages.DIALECT)
    text, values = _pages.query(walk, "", limit=9, scan=9, now=1, max_bytes=10_000)
    plan = "\n".join(
        line for (line,) in store._resources.connections.rows(b"EXPLAIN " + text, values)
    )
    for slow in ("Seq Scan", "Bitmap", "Hash Join", "Merge Join"):
        assert slow not in plan
    scans = re.findall(r"Index (?:Only )?Scan using (\w+)", plan)
    assert set(scans) == {index}
    if index != "operations_pkey":
        assert plan.count("create_time <=") == plan.count("create_time >=") == len(scans)
        assert "Incremental Sort" in plan


# -- what a process knows -------------------------------------------------------------------------


def test_large_metadata_is_not_sent_again(store, clock, monkeypatch):
    """A change that leaves it alone does not carry it."""
    big = Any("x/a.Big", {"data": "x" * 500_000})
    record = held(clock, metadata=big)
    insert(store, record)
    texts = []
    whole = store._resources.records._writer._send
    monkeypatch.setattr(
        store._resources.records._writer,
        "_send",
        lambda group: (texts.append(len(group[0].text)), whole(group)),
    )
    store.update(record.name, request_cancel(clock()))
    assert texts[0] < 2000
    with opened_like(store) as other:
        assert other.get(record.name).metadata == big
        assert other.get(record.name).cancel_requested


def opened_like(store):
    """Another store on the same schema and clock."""
    address = store._address
    return closing(PostgresStore(address.url, schema=address.schema, clock=store._clock))


def test_a_poll_is_answered_from_what_is_known(store, clock):
    """The very record, as long as the server says that it has not changed."""
    insert(store, held(clock))
    first = store.get("operations/a")
    assert store.get("operations/a") is first
    with opened_like(store) as other:
        other.update("operations/a", request_cancel(clock()))
    second = store.get("operations/a")
    assert second.cancel_requested
    assert store.get("operations/a") is second


# -- the clock ------------------------------------------------------------------------------------


class Ticks:
    """A monotonic clock that the test moves."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


def test_the_clock_is_the_servers(server, schema, plain):
    """Known without asking; what it shows lies between two answers of the server."""
    with opened(server, schema) as store:
        (before,) = plain.execute("SELECT clock_timestamp()").fetchone()
        shown = store.now()
        (after,) = plain.execute("SELECT clock_timestamp()").fetchone()
    leeway = timedelta(seconds=1)
    assert shown.tzinfo is UTC
    assert before - leeway <= shown <= after + leeway


def test_the_clock_is_measured_by_calls_that_are_made_anyway(server, schema):
    """A minute after the last measurement, along with the next call; not by a thread."""
    with opened(server, schema) as store:
        clock = store._resources.connections.clock
        store.poll_states(["operations/a"])
        clock._due, before = 0.0, clock.monotonic()
        store.poll_states(["operations/a"])
        assert clock._due >= before + PERIOD_SECONDS


def test_the_clock_goes_on_between_measurements():
    """As the monotonic clock does, from what the server showed in the middle of the answer."""
    ticks = Ticks()
    clock = ServerClock(ticks)
    clock.measured(1_000_000_000_000, 99.0, 100.0)
    assert clock.now() == datetime.fromtimestamp(1_000_000.5, UTC)
    ticks.seconds += 10
    assert clock.now() == datetime.fromtimestamp(1_000_010.5, UTC)


def test_the_clock_does_not_tremble():
    """Only a narrower measurement, or one that contradicts the last, moves it."""
    clock = ServerClock(Ticks())
    clock.measured(1_000_000_000_000, 99.9, 100.1)
    first = clock.now()
    clock.measured(1_000_000_200_000, 99.8, 100.2)
    assert clock.now() == first
    clock.measured(1_000_000_000_000, 99.99, 100.02)
    assert clock.now() - first == timedelta(milliseconds=-5)
    clock.measured(1_000_005_000_000, 99.0, 101.0)
    assert clock.now() - first == timedelta(seconds=5)


def test_one_caller_measures():
    """The store answers one process that it is time; the others need not sweep."""
    ticks = Ticks()
    clock = ServerClock(ticks)
    assert [clock.due(), clock.due()] == [True, False]
    ticks.seconds += PERIOD_SECONDS
    assert [clock.due(), clock.due()] == [True, False]


# -- announcements --------------------------------------------------------------------------------


def test_a_subscription_hears_the_other_stores(server, schema, clock):
    """What they announce, gathered; without what its own process says and other schemas."""
    with ExitStack() as stack:
        here = stack.enter_context(opened(server, schema, clock=clock))
        there = stack.enter_context(opened(server, schema, clock=clock))
        foreign = stack.enter_context(opened(server, server.fresh_schema(), clock=clock))
        subscription = stack.enter_context(closing(here.listen()))
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


def test_a_subscription_that_hears_nonsense_is_unsure(server, schema, plain):
    """Other programs may send any text on its channel."""
    with opened(server, schema) as store, closing(store.listen()) as subscription:
        for said in ("no JSON", '{"a": 1}', "[1]"):
            plain.execute("SELECT pg_notify(%s, %s)", (f"{schema}.c", said))
            assert subscription.next_changes(PATIENCE) is None
        plain.execute("SELECT pg_notify(%s, %s)", (f"{schema}.c", '["me", "operations/a"]'))
        assert subscription.next_changes(PATIENCE) == {"operations/a"}


def test_a_subscription_misses_nothing_that_comes_with_an_answer(server, schema, monkeypatch):
    """psycopg itself reads what arrives together with the answer to LISTEN."""
    with opened(server, schema) as store, closing(store.listen()) as subscription:
        subscription._connection.execute(
            "SELECT pg_notify(%s, %s)", (f"{schema}.c", '["me", "operations/a"]')
        )
        assert subscription.next_changes(PATIENCE) == {"operations/a"}


def test_a_closed_subscription_is_unavailable(server, schema):
    """At once, also in the midst of listening; closed by its store it is the same."""
    with opened(server, schema) as store:
        subscriptions = [store.listen() for _ in range(3)]
        found = []
        listener = threading.Thread(target=lambda: found.append(refused(subscriptions[0])))
        listener.start()
        subscriptions[0].close()
        listener.join(PATIENCE)
        assert found == ["the subscription is closed"]
        subscriptions[1].close()
        subscriptions[1].close()
        assert refused(subscriptions[1]) == "the subscription is closed"
    assert refused(subscriptions[2]) == "the subscription is closed"


def refused(subscription):
    """What a subscription answers that cannot hear."""
    with pytest.raises(Unavailable) as answer:
        subscription.next_changes(PATIENCE)
    return str(answer.value)


def test_a_subscription_made_while_its_store_closes_is_closed(server, schema):
    """It would have no listener."""
    with opened(server, schema) as store:
        store._resources._closed = True
        with pytest.raises(Unavailable, match="the store is closed"):
            store.listen()


def test_what_was_announced_last_is_sent(server, schema):
    """Closing the store sends it first; announcing afterwards is quiet."""
    with opened(server, schema) as listening, closing(listening.listen()) as subscription:
        with opened(server, schema) as store:
            store.notify_others("operations/a")
        store.notify_others("operations/late")
        assert subscription.next_changes(PATIENCE) == {"operations/a"}
        assert subscription.next_changes(0) == ()


def test_idle_it_asks_the_server_nothing(server, schema, plain):
    """Nothing announced, and no call made: there is neither thread nor statement."""
    with opened(server, schema) as store:
        sent = []
        store._resources.announcer._send = sent.append
        assert store._resources.announcer._thread is None
        store.notify_others("operations/a")
        thread = store._resources.announcer._thread
        with store._resources.announcer._changed:
            pass
        assert thread is not None
        store.close()
        assert len(sent) == 1


def test_lost_announcements_are_logged(caplog):
    """And those that come later are sent."""
    sent = threading.Event()

    def send(found):
        if "fails" in found[0]:
            raise Unavailable("away")
        sent.set()

    speaker = Announcer(send, "me")
    speaker.announce("operations/fails")
    while not caplog.records:
        assert not sent.wait(0.001)
    speaker.announce("operations/a")
    assert sent.wait(PATIENCE)
    speaker.stop()
    assert caplog.messages == ["1 announcements were not sent: away"]


def test_announcements_are_gathered(monkeypatch):
    """What comes shortly after the first is sent together, and each name once."""
    monkeypatch.setattr(_notifications, "PERIOD_SECONDS", PATIENCE)
    sent, first = [], threading.Event()

    def send(found):
        sent.append([name for text in found for name in json.loads(text)[1:]])
        first.set()

    speaker = Announcer(send, "me")
    speaker.announce("a")
    assert first.wait(PATIENCE)
    for name in "bcbcb":
        speaker.announce(name)
    speaker.stop()
    assert sent == [["a"], ["b", "c"]]


def test_an_announcer_that_can_have_no_thread_is_quiet(monkeypatch):
    """The interpreter is ending: no process is notified any more."""

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    speaker = Announcer(lambda found: None, "me")
    speaker.announce("operations/a")
    speaker.stop()


def test_a_sleeping_announcer_is_woken(server, schema):
    """It need not be the first announcement."""
    sent = threading.Semaphore(0)
    speaker = Announcer(lambda found: sent.release(), "me")
    for name in "ab":
        speaker.announce(name)
        assert sent.acquire(timeout=PATIENCE)
        end = time.monotonic() + PATIENCE
        while not speaker._asleep:
            assert time.monotonic() < end
    speaker.stop()


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=1024), max_size=40))
@example(["a", "\ud800", "b"])
@example([f"{number}\U0001f600" * 500 for number in range(5)])
def test_payloads_carry_every_name(names):
    """Within the length that NOTIFY takes, whatever the names are; none is cut."""
    carried = []
    for text in payloads("me", names):
        assert len(text.encode()) < 8000
        sender, *some = json.loads(text)
        assert sender == "me"
        carried += some
    assert carried == [name for name in names if name.encode("utf-8", "replace").decode() == name]


# -- a fork ---------------------------------------------------------------------------------------


def test_it_survives_a_fork(server, schema):
    """The child makes connections, threads and subscriptions of its own; the parent's live on."""
    with process(FORKER, server.url, schema) as forking:
        assert forking.wait(PATIENCE) == 0
    with opened(server, schema) as store:
        assert sorted(ids(store.page("", None, 9).records)) == ["after", "before", "child"]


def test_store_that_is_made_before_a_fork_is_first_used_by_each_process(server, schema):
    """As under a server that loads the application before it forks."""
    with process(PRELOADER, server.url, schema) as forking:
        assert forking.wait(PATIENCE) == 0
    with opened(server, schema) as store:
        assert sorted(ids(store.page("", None, 9).records)) == ["child", "parent"]


def test_a_missing_database_is_reported(server):
    """Callers learn only that it is away; the cause, which the log shows, says why."""
    url = f"{server.url.rpartition('/')[0]}/nope"
    with closing(PostgresStore(url)) as store, pytest.raises(Unavailable) as refused:
        store.secret()
    assert 'database "nope" does not exist' in str(refused.value.__cause__)
    assert "nope" not in str(refused.value)


# -- what is handed in ----------------------------------------------------------------------------


def others_change(server, store, clock, name="operations/a"):
    """Have another process change a record, of which this store does not know."""
    with opened(server, store._address.schema, clock=clock) as other:
        other.update(name, request_cancel(clock()))


def test_a_repeated_start_that_is_handed_in_finds_the_first(store, clock):
    """By another thread, since the group's has the next group to write."""
    first = made_later(partial(store.insert_later, record_of(clock), REQUEST, key_of("a")))
    again = made_later(partial(store.insert_later, record_of(clock, "b"), REQUEST, key_of("a")))
    assert (first.fresh, again.fresh) == (True, False)
    assert again.record == first.record
    with pytest.raises(InvalidArgument, match="is taken"):
        made_later(partial(store.insert_later, record_of(clock), REQUEST, None))


def test_an_obstacle_that_is_gone_is_none(store, clock, monkeypatch):
    """What was in the way has been removed when it is looked for."""
    insert(store, record_of(clock))
    records = store._resources.records
    find = records.find_obstacle

    def removed_first(*arguments):
        monkeypatch.undo()
        store.update("operations/a", lambda found: None)
        return find(*arguments)

    monkeypatch.setattr(records, "find_obstacle", removed_first)
    made = made_later(partial(store.insert_later, record_of(clock), REQUEST, None))
    assert made.fresh


def test_an_obstacle_that_comes_and_goes_is_met_so_often(store, clock, monkeypatch):
    """Others start and end the same work all the time: the start is given up, and says so."""
    insert(store, record_of(clock))
    records, looks = store._resources.records, []
    monkeypatch.setattr(records, "find_obstacle", lambda *_: looks.append(1))
    with pytest.raises(Unavailable, match="faster than it can be read"):
        made_later(partial(store.insert_later, record_of(clock), REQUEST, None))
    assert len(looks) == 10


def test_a_change_that_is_handed_in_is_of_what_is_stored(server, store, clock):
    """Not of what this process knows of the record, if that is outdated or nothing."""
    insert(store, record_of(clock))
    others_change(server, store, clock)
    change = partial(Record.next_version, caller="ann")
    changed = made_later(partial(store.update_later, "operations/a", change))
    assert (changed.cancel_requested, changed.caller, changed.version) == (True, "ann", 3)
    store._resources.records.cache.forget("operations/a")
    changed = made_later(partial(store.update_later, "operations/a", change))
    assert changed.version == 4
    assert made_later(partial(store.update_later, "operations/a", lambda found: found)) == changed


def test_a_large_record_is_written_aside(store, clock):
    """To make it text takes long for the event loop that hands it in."""
    insert(store, record_of(clock))
    large = Any("x/acme.Meta", {"text": "x" * 100_000})
    change = partial(Record.next_version, metadata=large)
    changed = made_later(partial(store.update_later, "operations/a", change))
    assert changed.metadata == large == store.get("operations/a").metadata


def test_a_removal_that_is_handed_in(store, clock):
    """It has a statement of its own."""
    insert(store, record_of(clock))
    assert made_later(partial(store.update_later, "operations/a", lambda found: None)) is None
    with pytest.raises(OperationNotFound):
        made_later(partial(store.update_later, "operations/a", lambda found: None))


def test_a_removal_that_is_handed_in_meets_a_change(server, store, clock):
    """It is decided again, on the record as the other process left it."""
    insert(store, record_of(clock))
    decided = []

    def remove(found):
        decided.append(found.version)
        if len(decided) == 2:  # the first was about the record that this process knows
            others_change(server, store, clock)

    assert made_later(partial(store.update_later, "operations/a", remove)) is None
    assert decided == [1, 1, 2]
    with pytest.raises(OperationNotFound):
        store.get("operations/a")


@pytest.mark.parametrize("written", [True, False])
def test_an_answer_that_was_lost_is_looked_for(store, clock, monkeypatch, written):
    """The attempt may have been carried out, or not."""
    insert(store, record_of(clock))
    writer = store._resources.records._writer
    send = writer._send

    def lost(group):
        monkeypatch.undo()
        if written:
            send(group)
        for write in group:
            write.applied, write.doubtful, write.error = False, True, None

    monkeypatch.setattr(writer, "_send", lost)
    changed = made_later(partial(store.update_later, "operations/a", request_cancel(clock())))
    assert changed.cancel_requested
    assert store.get("operations/a") == changed
    assert changed.version == 2


def test_at_the_end_of_the_process_no_other_thread_is_needed(server, store, clock):
    """What would be left to another thread is done by those that lead the groups."""
    insert(store, record_of(clock))
    store._resources.records._aside.shutdown()
    with pytest.raises(InvalidArgument, match="is taken"):
        made_later(partial(store.insert_later, record_of(clock), REQUEST, None))
    others_change(server, store, clock)
    change = partial(Record.next_version, caller="ann")
    assert made_later(partial(store.update_later, "operations/a", change)).caller == "ann"
    assert made_later(partial(store.update_later, "operations/a", lambda found: None)) is None


def test_a_closed_store_refuses_what_is_handed_in(store, clock):
    """Whatever thread would have to see to it."""
    insert(store, record_of(clock))
    store.close()
    with pytest.raises(Unavailable):
        made_later(partial(store.insert_later, record_of(clock, "b"), REQUEST, None))
    with pytest.raises(Unavailable):
        made_later(partial(store.update_later, "operations/a", request_cancel(clock())))
    with pytest.raises(Unavailable):
        made_later(partial(store.update_later, "operations/none", request_cancel(clock())))
