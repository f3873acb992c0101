"""PostgreSQL faults: restarts, lost connections and replies, locks, forks, many processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing

import pytest

pytest.importorskip("psycopg")

import psycopg

from lro import InvalidArgument
from lro.errors import OperationNotFound, RequestIdConflict, TargetBusy, Unavailable
from lro.stores.postgres import PostgresStore
from tests.engine.engine_parts import counted
from tests.patching import patch_threads
from tests.services.postgres import UNHURRIED, new_server
from tests.services.processes import killed_at_end
from tests.services.proxy import proxy_to
from tests.stores.samples import (
    DONE,
    REQUEST,
    Later,
    called,
    cancel_of,
    changed_later,
    claim_of,
    claim_work,
    claimed,
    end_of,
    held,
    insert,
    key_of,
    kinds,
    listed,
    record_of,
    removal,
    together,
    waiting,
    worker_of,
)
from tests.stores.store_verbs import errors_of, verbs
from tests.stores.test_postgres import plain, schema, server
from tests.waiting import PATIENCE, joined, until

__all__ = ["plain", "schema", "server"]


@pytest.fixture(scope="module")
def crashable_server():
    """Run a server that these tests may crash."""
    made = new_server()
    yield made
    made.stop()


@pytest.fixture
def make(server, clock):
    """Return a function that opens stores with the test's clock, and close them at the end."""
    with ExitStack() as stack:

        def made(url=server.url, **options):
            options = {"schema": server.fresh_schema(), "clock": clock, **UNHURRIED, **options}
            store = stack.enter_context(closing(PostgresStore(url, **options)))
            store.next_due()  # the first use makes the schema and a connection
            return store

        yield made


@pytest.fixture
def store(make, schema):
    """Open an empty store."""
    return make(schema=schema)


@pytest.fixture
def proxy(server):
    """Run a proxy between a store and the server."""
    with proxy_to(server.port) as made:
        yield made


@pytest.fixture
def proxied(server, proxy, make, clock, schema):
    """Open a store behind the proxy, whose statements the server has already prepared."""
    url = server.url.replace(str(server.port), str(proxy.port))
    made = make(url=url, connections=1, schema=schema)
    record = waiting(clock, "warm", target="warm")
    insert(made, record, key_of("warm"))
    insert(made, record_of(clock, "plain"))
    made.update(record.name, claim_of(clock))
    made.update(record.name, end_of(clock))
    made.update(record.name, removal)
    made.update("operations/plain", removal)
    return made


def kill_backends(plain):
    """End all connections except ``plain``, as an operator can."""
    plain.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


def soon(call):
    """Retry a call until the store has reconnected; return the call's result."""

    def answer():
        try:
            return (call(),)
        except Unavailable:
            return ()

    return until(answer)[0]


# -- a server that is down ------------------------------------------------------------------------


def test_server_that_is_down_is_unavailable(crashable_server, make, clock):
    """Every method fails while the server is down, and works afterwards; no write is lost."""
    store = make(url=crashable_server.url)
    insert(store, held(clock))
    with closing(store.listen()) as subscription, crashable_server.away():
        for call in verbs(store, clock).values():
            with pytest.raises(Unavailable, match="cannot be used now"):
                call()
        with pytest.raises(Unavailable, match="cannot be used now"):
            subscription.next_changes(PATIENCE)
        late = PostgresStore(crashable_server.url, schema="lro")
        with closing(late), pytest.raises(Unavailable, match="cannot be used now"):
            late.now()
    soon(lambda: store.get("operations/a"))
    assert store.request("operations/a") == REQUEST
    assert listed(store) == ["a"]
    assert {*errors_of(store, clock).values()} <= {"OperationNotFound"}
    assert listed(store) == ["b", "c", "later"]


def test_calls_fail_at_once_between_attempts_to_connect(
    crashable_server, make, clock, postgres_wire, monkeypatch
):
    """After a failed connection, calls fail at once; the store tries again only after a pause."""
    monkeypatch.setattr("lro.stores.postgres._connections.REST_SECONDS", 3600.0)
    store = make(url=crashable_server.url)
    insert(store, record_of(clock))
    postgres_wire.said.clear()
    with crashable_server.away():
        for _ in range(50):
            with pytest.raises(Unavailable):
                store.get("operations/a")
    with pytest.raises(Unavailable):
        store.get("operations/a")
    assert postgres_wire.said.count("connect") == 1


def test_waiting_caller_fails_at_once_if_the_server_goes_down(
    crashable_server, make, clock, postgres_wire, monkeypatch
):
    """A caller that waits for a connection fails as soon as the server goes down."""
    monkeypatch.setattr("lro.stores.postgres._connections.REST_SECONDS", 3600.0)
    store = make(url=crashable_server.url, connections=1, connect_seconds=3600.0)
    insert(store, record_of(clock))
    found = []

    def read():
        with pytest.raises(Unavailable, match="cannot be used now"):
            store.get("operations/a")
        found.append(1)

    readers = [threading.Thread(target=read) for _ in range(4)]
    postgres_wire.when(
        "SELECT", lambda _: ([one.start() for one in readers], crashable_server.crash())
    )
    with pytest.raises(Unavailable):
        store.get("operations/a")
    for reader in readers:
        joined(reader)
    crashable_server.start()
    assert found == [1] * 4


def test_connections_ended_by_an_operator_are_made_again(store, plain, clock):
    """If an operator ends all connections, no call fails: each is repeated on a new connection."""
    insert(store, held(clock), key_of())
    for call in (
        lambda: store.get("operations/a").name,
        lambda: store.update("operations/a", cancel_of(clock)).name,
        lambda: insert(store, record_of(clock, "b")).record.name,
        lambda: insert(store, record_of(clock, "c"), key_of()).record.name,
        lambda: store.renew(worker_of(clock)).cancel_requested[0],
    ):
        kill_backends(plain)
        assert call().startswith("operations/")
    with closing(store.listen()) as subscription:
        kill_backends(plain)
        with pytest.raises(Unavailable, match="OperationalError"):
            subscription.next_changes(PATIENCE)


def test_call_waits_for_a_free_connection_up_to_connect_seconds(make, clock, postgres_wire):
    """A call raises if no connection is free in time; the store works again once one is free."""
    store = make(connections=1, connect_seconds=3.0)
    insert(store, record_of(clock))

    def read():
        with pytest.raises(Unavailable, match=r"no connection .* was free in 3 s"):
            store.page("", None, 9)

    postgres_wire.when("WITH", lambda _: read())
    assert insert(store, record_of(clock, "b")).fresh
    assert listed(store) == ["a", "b"]


def test_callers_share_connections_if_the_server_grants_fewer(server, plain, clock):
    """If the server grants fewer connections than the store may open, callers share them."""
    schema = server.fresh_schema()
    plain.execute(f"CREATE ROLE {schema} LOGIN CONNECTION LIMIT 2")
    plain.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {schema}")
    url = server.url.replace("lro@", f"{schema}@")
    with closing(PostgresStore(url, schema=schema, connections=9, connect_seconds=PATIENCE)) as one:
        found = together(9, lambda number: insert(one, record_of(clock, str(number)), key_of()))
        assert len({answer.record.name for answer in found}) == 1
        found = together(9, lambda number: one.get(one.page("", None, 1).records[0].name))
        assert len({record.name for record in found}) == 1


def test_idle_surplus_connections_are_closed(make, clock, postgres_wire, monkeypatch):
    """Idle connections are closed after a while, and the store can open new ones."""
    store = make(connections=3)
    gate = threading.Barrier(3)
    postgres_wire.when("SELECT", lambda _: gate.wait(PATIENCE), times=3)
    together(3, lambda _: store.next_due())
    ours = postgres_wire.connections[-3:]
    assert [one.closed for one in ours] == [False] * 3
    monkeypatch.setattr("lro.stores.postgres._connections.IDLE_SECONDS", -1.0)
    insert(store, record_of(clock))
    assert [one.closed for one in ours].count(True) == 1
    for _ in range(5):
        assert store.get("operations/a")
    assert [one.closed for one in ours] == [True] * 3


def test_store_closed_during_a_call_keeps_no_connection(postgres_wire, store, clock):
    """A call that runs while its store is closed may finish; then its connection is closed."""
    insert(store, record_of(clock))
    postgres_wire.when("SELECT", lambda _: store.close())
    assert store.get("operations/a") == record_of(clock)
    assert postgres_wire.connections[-1].closed


def test_a_subscription_that_may_not_listen_is_unavailable(store, postgres_wire):
    listen = "Composed([SQL('LISTEN"
    postgres_wire.fail(listen, psycopg.errors.ReadOnlySqlTransaction())
    with pytest.raises(Unavailable, match="ReadOnlySqlTransaction"):
        store.listen()
    assert postgres_wire.connections[-1].closed


def test_an_interrupted_call_leaves_no_transaction_open(make, clock, postgres_wire):
    """An interrupted call's connection is closed, and the next call opens another one."""
    store = make(connections=1)
    insert(store, record_of(clock))
    used = []

    def interrupt(link):
        used.append(link)
        if link is not None:
            link.execute("BEGIN")
        raise KeyboardInterrupt

    postgres_wire.when("SELECT", interrupt)
    postgres_wire.when("connect", interrupt)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            store.get("operations/a")
    assert used[0].closed
    assert store.get("operations/a") == record_of(clock)


def test_a_connection_that_cannot_be_set_up_is_closed(server, postgres_wire):
    """A connection that cannot be set up, for example for an unknown setting, is closed."""
    with closing(PostgresStore(server.url)) as store:
        postgres_wire.fail("SELECT set_config", psycopg.errors.UndefinedObject())
        with pytest.raises(Unavailable, match="UndefinedObject"):
            store.now()
    assert postgres_wire.connections[-1].closed


def test_a_server_that_does_not_answer_is_unavailable(crashable_server, make, clock):
    """While the server does not answer, calls time out; later calls work."""
    store = make(
        url=crashable_server.url, connections=1, connect_seconds=3.0, statement_seconds=5.0
    )
    insert(store, held(clock))
    with crashable_server.frozen():
        with pytest.raises(Unavailable, match="NoAnswer"):
            store.update("operations/a", cancel_of(clock))
        with pytest.raises(Unavailable, match="Timeout"):
            store.update("operations/a", cancel_of(clock))
    soon(lambda: store.update("operations/a", cancel_of(clock)))
    assert store.get("operations/a").cancel_requested


def test_missing_table_is_named(store, schema, plain, clock):
    insert(store, record_of(clock))
    plain.execute(f"DROP TABLE {schema}.lro_operations CASCADE")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r'tables that do not match .* "lro_operations" does'):
            store.get("operations/a")


@pytest.mark.parametrize("value", [{"a": 1}, "x"])
def test_value_that_cannot_be_bound_is_an_invalid_argument(store, clock, value):
    """A value that psycopg or the server always refuses raises InvalidArgument, without a retry."""
    with pytest.raises(InvalidArgument, match="a value cannot be kept by the database"):
        store.read_counts(clock(), limit=value)


def test_a_statement_that_takes_too_long_is_ended(make, plain, clock, caplog):
    """The server ends a statement that takes too long; no defect is logged."""
    store = make(statement_seconds=2.0, schema="slow")
    insert(store, record_of(clock))
    with plain.transaction():
        plain.execute("LOCK TABLE slow.lro_operations IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match=r"LockNotAvailable|QueryCanceled"):
            store.get("operations/a")
    assert caplog.messages == []
    assert store.get("operations/a")


# -- unknown outcomes -----------------------------------------------------------------------------

LOSSES = pytest.mark.parametrize("what", ["question", "answer"])


@LOSSES
def test_an_insert_whose_answer_is_lost_has_the_true_outcome(proxied, proxy, clock, what):
    """If the connection breaks during an insert, one record is stored, and the result is fresh."""
    for key, target in ((None, ""), (key_of(), ""), (None, "t"), (key_of("s"), "u")):
        record = record_of(clock, f"{target}-{key is None}", target=target)
        proxy.lose_next(what)
        answer = insert(proxied, record, key)
        assert proxy.lost.is_set()
        assert (answer.fresh, answer.record) == (True, record)
        assert proxied.get(record.name) == record
        assert proxied.request(record.name) == REQUEST


@LOSSES
def test_update_or_removal_whose_answer_is_lost_is_applied_once(proxied, proxy, clock, what):
    """If the connection breaks, an update or removal is applied once, and a read is repeated."""
    insert(proxied, waiting(clock))

    def losing(call):
        proxy.lose_next(what)
        found = call()
        assert proxy.lost.is_set()
        return found

    taken = losing(lambda: proxied.update("operations/a", claim_of(clock, seconds=9)))
    assert (taken.attempt, taken.version) == (1, 2)
    asked = losing(lambda: changed_later(proxied, "a", cancel_of(clock)))
    assert (asked.cancel_requested, asked.version) == (True, 3)
    ended = losing(lambda: proxied.update("operations/a", end_of(clock)))
    assert (ended.result, ended.version) == (DONE, 4)
    for _ in range(2):  # the first call prepares the statement on the server
        assert losing(lambda: proxied.get("operations/a")) == ended
    with pytest.raises(OperationNotFound):
        proxied.request("operations/a")
    assert losing(lambda: proxied.update("operations/a", removal)) is None
    with pytest.raises(OperationNotFound):
        proxied.get("operations/a")


@pytest.mark.parametrize("limit", [None, 9])
def test_claim_whose_answer_is_lost_returns_its_work_or_fails(proxied, proxy, clock, limit):
    """After a lost reply a claim returns its work; after a lost request its work stays queued."""
    for unique_id in "abc":
        insert(proxied, waiting(clock, unique_id))
    for what, wanted in (("answer", ["a", "b"]), ("question", ["c"])):
        claim_work(proxied, clock, 2, limits={"none": limit})  # this prepares the statement
        clock.advance(1)
        proxy.lose_next(what)
        try:
            found = claimed(claim_work(proxied, clock, 2, limits={"M": limit}))
        except Unavailable:
            found = claimed(claim_work(proxied, clock, 2, limits={"M": limit}))
        assert proxy.lost.is_set()
        assert found == wanted
    records = [proxied.get(f"operations/{unique_id}") for unique_id in "abc"]
    assert [(one.owner, one.attempt, one.version) for one in records] == [("us", 1, 2)] * 3


@pytest.fixture
def before_resend(proxied, make, postgres_wire, schema):
    """Return a function that lets another store act just before a write is sent again."""
    other = make(schema=schema)
    other.next_due()

    def act(action):
        postgres_wire.when("connect", lambda _: action(other))
        return other

    return act


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (cancel_of, Unavailable, "is not known"),
        (lambda clock: removal, OperationNotFound, "operations/a"),
    ],
)
def test_lost_update_overtaken_by_another_has_an_unknown_result(
    proxied, proxy, before_resend, clock, change, error, why
):
    """If the reply is lost and another store changes or removes the record, the update raises."""
    insert(proxied, waiting(clock))
    before_resend(lambda one: one.update("operations/a", change(clock)))
    proxy.lose_next("answer")
    with pytest.raises(error, match=why):
        proxied.update("operations/a", claim_of(clock))


@pytest.mark.parametrize("gone", [True, False])
def test_lost_update_is_made_again_on_the_current_record(
    proxied, proxy, before_resend, clock, gone
):
    """If the request was lost and another store wrote first, the update follows that write."""
    insert(proxied, held(clock))
    before_resend(lambda one: one.update("operations/a", called("quick")))
    proxy.lose_next("question")
    changed = proxied.update("operations/a", removal if gone else cancel_of(clock))
    assert proxy.lost.is_set()
    if gone:
        assert changed is None
    else:
        assert (changed.version, changed.caller) == (3, "quick")


def test_lost_insert_finds_its_key_or_target_taken(proxied, proxy, before_resend, clock):
    """If an insert's request is lost, an insert that came first keeps its key and target."""
    quick = record_of(clock, "quick", target="t")
    before_resend(lambda one: insert(one, quick, key_of()))
    proxy.lose_next("question")
    answer = insert(proxied, record_of(clock, "slow"), key_of())
    assert (answer.fresh, answer.record) == (False, quick)
    with pytest.raises(RequestIdConflict):
        insert(proxied, record_of(clock, "slow"), key_of(fingerprint="g"))
    with pytest.raises(TargetBusy):
        insert(proxied, record_of(clock, "slow", target="t"))


def test_record_deleted_before_its_insert_was_answered_stays_deleted(
    proxied, proxy, before_resend, clock
):
    """An insert whose reply was lost succeeds, but a record deleted meanwhile stays deleted."""
    other = before_resend(lambda one: one.update("operations/a", removal))
    proxy.lose_next("answer")
    answer = insert(proxied, record_of(clock), key_of())
    assert (answer.fresh, answer.record) == (True, record_of(clock))
    with pytest.raises(OperationNotFound):
        other.get("operations/a")


def test_counts_whose_answer_is_lost_are_not_added_twice(proxied, proxy, clock, postgres_wire):
    """If the reply is lost, ``add_counts`` raises and is not repeated, so no count is doubled."""
    proxied.add_counts(clock(), {"M": {"a": 1}})
    postgres_wire.when(postgres_wire.said[-1], lambda _: proxy.lose_next("answer"))
    with pytest.raises(Unavailable):
        proxied.add_counts(clock(), {"M": {"a": 1}})
    assert counted(proxied) == {"M": {"a": 2}}


def test_repeatedly_lost_connection_is_unavailable(store, clock, postgres_wire):
    """If each retry loses its connection, the call fails; the cause is kept for the log."""
    insert(store, record_of(clock))
    for call in (
        lambda: store.get("operations/a"),
        lambda: store.update("operations/a", lambda found: found.next_version()),
    ):
        postgres_wire.said.clear()
        call()
        postgres_wire.when(postgres_wire.said[-1][:40], lambda link: link.close(), times=3)
        with pytest.raises(Unavailable, match="OperationalError") as caught:
            call()
        assert "closed" in str(caught.value.__cause__)
    assert store.update("operations/a", end_of(clock)).done


# -- locks ----------------------------------------------------------------------------------------


def test_write_of_a_locked_row_fails_alone(make, schema, plain, clock):
    """A write of a locked row fails after a timeout; the other writes of its group succeed."""
    store = make(statement_seconds=10.0, schema=schema)
    for unique_id in ("first", "locked", "free"):
        insert(store, record_of(clock, unique_id))
    later = Later(store)
    with plain.transaction():
        plain.execute(f"SELECT 1 FROM {schema}.lro_operations WHERE name LIKE '%locked' FOR UPDATE")
        for unique_id in ("locked", "first", "free"):
            later.update(unique_id, cancel_of(clock))
        found = later.all()
    assert kinds(found) == ["Unavailable", "done", "done"]
    assert store.get("operations/free").cancel_requested
    assert store.update("operations/locked", cancel_of(clock)).cancel_requested


def test_writes_behind_timed_out_ones_fail_at_once(store, clock, postgres_wire, monkeypatch):
    """After writes have timed out, the writes queued behind them fail at once."""
    later, go, late = Later(store), threading.Event(), [0.0]
    monotonic = time.monotonic
    patch_threads(monkeypatch, time, "monotonic", lambda: monotonic() + late[0])

    def refuse(seconds):
        late[0] += seconds
        raise psycopg.errors.LockNotAvailable

    postgres_wire.when("WITH", lambda _: go.wait(PATIENCE))
    later.insert(record_of(clock, "first"))
    until(lambda: postgres_wire.said and postgres_wire.said[-1].startswith("WITH"))
    for unique_id in "abc":
        later.insert(record_of(clock, unique_id))
    postgres_wire.when("WITH", lambda _: refuse(0.0))
    postgres_wire.when("WITH", lambda _: refuse(1.01 * PATIENCE))
    go.set()
    assert kinds(later.all()) == ["done", *["Unavailable"] * 3]
    assert listed(store) == ["first"]


def test_target_taken_by_an_uncommitted_change_is_busy(store, schema, plain, clock):
    """A target is busy if another transaction takes it without having committed yet."""
    insert(store, record_of(clock, "a", target="t"))
    store.update("operations/a", end_of(clock))
    later = Later(store)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(plain.info.dsn, autocommit=True) as other, other.transaction():
        other.execute(
            f"UPDATE {schema}.lro_operations SET state = 'IN_PROGRESS' WHERE name = 'operations/a'"
        )
        later.insert(record_of(clock, "b", target="t"))
        until(lambda: plain.execute(blocked).fetchone(), lambda found: found != (0,))
    assert kinds(later.all()) == ["TargetBusy"]


def test_stores_need_no_more_than_one_connection(make, clock):
    """Every method returns its connection to the pool before it takes another one."""
    store = make(connections=1, connect_seconds=10.0)
    insert(store, held(clock), key_of())
    assert {*errors_of(store, clock).values()} <= {"OperationNotFound"}


# -- several processes and forks ------------------------------------------------------------------

PRELUDE = """
import os, sys, warnings
from datetime import UTC, datetime
from lro import AnyMessage
from lro.adapters import Record
from lro.errors import Unavailable
from lro.stores.postgres import PostgresStore

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

def use(store, name):
    now = datetime.now(UTC)
    record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
    assert store.insert(record, AnyMessage(), None).fresh
    assert store.get(name).name == name
    store.notify_others(name)

store = PostgresStore(sys.argv[1], schema=sys.argv[2])
"""

FORKER = """
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
while "operations/child" not in (found := subscription.next_changes(60)):
    assert found
use(store, "operations/after")
store.close()
"""

PRELOADER = """
store.index({"k1"})
child = os.fork()
assert abs((store.now() - datetime.now(UTC)).total_seconds()) < 600
use(store, "operations/parent" if child else "operations/child")
store.create_schema()  # waits for the index, which a thread makes
store.close()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def process(program, *arguments):
    """Run a program in its own process, with pipes; kill the process at the end."""
    command = [sys.executable, "-c", PRELUDE + program, *map(str, arguments)]
    return killed_at_end(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("program", "names"),
    [(FORKER, ["after", "before", "child"]), (PRELOADER, ["child", "parent"])],
    ids=["in use", "before its first use"],
)
def test_a_store_survives_a_fork(server, schema, make, plain, program, names):
    """After a fork, parent and child both work; the child opens connections of its own."""
    with process(program, server.url, schema) as forking:
        assert forking.wait(PATIENCE) == 0
    assert listed(make(schema=schema)) == names
    index = plain.execute("SELECT to_regclass(%s)", (f"{schema}.lro_operations_by_k1",)).fetchone()
    assert (index != (None,)) is (program is PRELOADER)
