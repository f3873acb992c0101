"""PostgreSQL going wrong: restarts, lost connections and answers, locks, poisoned groups."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from contextlib import closing
from datetime import timedelta
from functools import partial

import attrs
import pytest

pytest.importorskip("psycopg")

import psycopg
from psycopg import errors

from lro import InvalidArgument
from lro._model.operation import claim, request_cancel
from lro.adapters import Record
from lro.errors import OperationNotFound, RequestIdConflict, TargetBusy, Unavailable
from lro.stores._rows import to_row
from lro.stores.postgres import PostgresStore, _connections, _records
from lro.stores.postgres._connections import ConnectionLost
from lro.stores.postgres._records import GroupWriter
from lro.stores.postgres._statements import RecordWrite, WriteKind, insertion, replacement
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
from tests.services.postgres import UNHURRIED, shared_server, store_maker
from tests.services.proxy import proxy_to
from tests.stores.store_verbs import check_complete
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def server():
    """The server of this test run."""
    return shared_server()


@pytest.fixture
def plain(server):
    """A connection that is not ours."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def make(server, clock):
    """Makes stores on the test's clock, and closes them."""
    with contextlib.ExitStack() as stack:

        def made(schema=None, url=server.url, **options):
            options = {"schema": schema or server.fresh_schema(), "clock": clock, **options}
            options = {**UNHURRIED, **options}
            store = stack.enter_context(closing(PostgresStore(url, **options)))
            store.secret()  # its first use, which makes the schema
            return store

        yield made


@pytest.fixture
def store(make):
    """An empty store."""
    return make()


@pytest.fixture
def proxy(server):
    """A proxy between a store and the server."""
    with proxy_to(server.port) as made:
        yield made


@pytest.fixture
def proxied(server, proxy, make, clock):
    """A store behind the proxy, whose statements are known to the server already."""
    made = make(url=server.url.replace(str(server.port), str(proxy.port)), connections=1)
    record = held(clock, "warm", target="warm")
    insert(made, record, key_of("warm"))
    insert(made, record_of(clock, "plain"))
    made.update(record.name, claim("us", clock(), clock()))
    made.update(record.name, end_of(clock))
    made.update(record.name, lambda found: None)
    made.update("operations/plain", lambda found: None)
    return made


def verbs(store, clock):
    """Every verb that asks the server, by name."""
    return {
        "get": lambda: store.get("operations/a"),
        "find": lambda: store.find(["operations/a"], 1_000_000),
        "request": lambda: store.request("operations/a"),
        "insert_later": lambda: made_later(
            partial(store.insert_later, record_of(clock, "later"), REQUEST, None)
        ),
        "update_later": lambda: made_later(
            partial(store.update_later, "operations/a", partial(Record.next_version, caller="x"))
        ),
        "page": lambda: store.page("", None, 9),
        "insert": lambda: insert(store, record_of(clock, "b")),
        "insert with a key": lambda: insert(store, record_of(clock, "c"), key_of("c")),
        "check": lambda: insert(store, record_of(clock, "d"), check_only=True),
        "update": lambda: store.update("operations/a", request_cancel(clock())),
        "remove": lambda: store.update("operations/a", lambda found: None),
        "forget": lambda: store.forget("operations/a"),
        "renew": lambda: store.renew("us", clock()),
        "orphans": lambda: store.orphans({"M"}, 9),
        "expire": lambda: store.expire(9),
        "poll_states": lambda: store.poll_states(["operations/a"]),
        "add_counts": lambda: store.add_counts(clock(), {"M": {"a": 1}}),
        "read_counts": lambda: store.read_counts(clock()),
        "read_totals": lambda: store.read_totals(),
        "read_load": lambda: store.read_load([""], 9),
        "claim_due": lambda: store.claim_due(clock(), 9),
        "next_due": lambda: store.next_due(),
        "listen": lambda: store.listen(),
    }


def test_the_table_has_every_verb():
    """Also one that is new."""
    check_complete(verbs(None, None))


def kill_backends(plain):
    """End every other connection, as an operator can."""
    plain.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


# -- away -----------------------------------------------------------------------------------------


def test_a_closed_store_is_unavailable(store, clock):
    """Every verb."""
    insert(store, record_of(clock))
    store.close()
    for call in verbs(store, clock).values():
        with pytest.raises(Unavailable, match="the store is closed"):
            call()


def test_a_server_away_is_unavailable(server, store, clock):
    """Every verb says so, while it is away; then each works, and nothing was lost or half done."""
    insert(store, held(clock))
    subscription = store.listen()
    with server.away():
        for call in verbs(store, clock).values():
            with pytest.raises(Unavailable, match="cannot be used now"):
                call()
        with pytest.raises(Unavailable, match="cannot be used now"):
            subscription.next_changes(PATIENCE)
        late = PostgresStore(server.url, schema="lro")
        with closing(late), pytest.raises(Unavailable, match="cannot be used now"):
            late.now()
    subscription.close()
    soon(lambda: store.get("operations/a"))
    assert store.request("operations/a") == REQUEST
    assert ids(store.page("", None, 9).records) == ["a"]
    for call in verbs(store, clock).values():
        with contextlib.suppress(OperationNotFound), contextlib.ExitStack() as stack:
            answer = call()
            if hasattr(answer, "next_changes"):
                stack.enter_context(closing(answer))
    assert ids(store.page("", None, 9).records) == ["b", "c", "later"]


def soon(call):
    """What a call answers once the server is known to be back."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < end
            time.sleep(0.01)  # between attempts; there is nothing to be woken by


def test_it_is_not_asked_again_and_again(server, store, clock, monkeypatch):
    """A server that is known to be away is tried once in a while; all other calls fail at once."""
    monkeypatch.setattr(_connections, "REST_SECONDS", 3600.0)
    insert(store, record_of(clock))
    tries = []
    connect = type(store._address).connect
    monkeypatch.setattr(
        type(store._address), "connect", lambda *given: (tries.append(1), connect(*given))[1]
    )
    with server.away():
        for _ in range(50):
            with pytest.raises(Unavailable):
                store.get("operations/a")
    assert len(tries) == 1
    with pytest.raises(Unavailable):
        store.get("operations/a")
    store._resources.connections._connect_at = 0.0
    assert store.get("operations/a")


def test_who_waits_for_a_connection_learns_that_there_is_none(server, make, clock, monkeypatch):
    """At once, not when his time is over."""
    store = make(connections=2, connect_seconds=3600.0)
    insert(store, record_of(clock))
    connections = store._resources.connections
    monkeypatch.setattr(_connections, "REST_SECONDS", 3600.0)
    with connections.borrow(), connections.borrow():
        found = []
        waiting = threading.Thread(target=lambda: found.append(refusal(store)))
        waiting.start()
        server.crash()
    waiting_ended = wait_for(waiting)
    server.start()
    assert waiting_ended
    assert "cannot be used now" in found[0]
    connections._connect_at = 0.0


def hurry(store, **limits):
    """Give a store, made at leisure, other limits for its next calls and connections."""
    connections = store._resources.connections
    connections.address = attrs.evolve(connections.address, **limits)


def wait_for(thread):
    """Whether a thread has ended in time."""
    thread.join(PATIENCE)
    return not thread.is_alive()


def refusal(store):
    """What a store answers that cannot be used."""
    with pytest.raises(Unavailable) as answer:
        store.get("operations/a")
    return str(answer.value)


def test_connections_that_were_ended_are_made_again(store, plain, clock):
    """An operator ends them all: no call fails by that, each asks again on another one."""
    insert(store, held(clock), key_of())
    for call in (
        lambda: store.get("operations/a").name,
        lambda: store.update("operations/a", request_cancel(clock())).name,
        lambda: insert(store, record_of(clock, "b")).record.name,
        lambda: insert(store, record_of(clock, "c"), key_of()).record.name,
        lambda: store.renew("us", clock()).cancel_requested[0],
    ):
        kill_backends(plain)
        assert call().startswith("operations/")
    subscription = store.listen()
    kill_backends(plain)
    with pytest.raises(Unavailable, match="OperationalError"):
        subscription.next_changes(PATIENCE)
    subscription.close()


def test_all_are_in_use(make, clock):
    """A call waits for a connection as long as it takes to make one, then it raises."""
    store = make(connections=1)
    hurry(store, connect_seconds=0.05)
    with (
        store._resources.connections.borrow(),
        pytest.raises(Unavailable, match=r"no connection .* was free in 0\.05 s"),
    ):
        store.get("operations/a")
    insert(store, record_of(clock))


def test_a_server_with_no_room_is_not_away(server, plain, clock):
    """Where it grants fewer connections than we may make, those that there are go round."""
    schema = server.fresh_schema()
    plain.execute(f"CREATE ROLE {schema} LOGIN CONNECTION LIMIT 2")
    plain.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {schema}")
    url = server.url.replace("lro@", f"{schema}@")
    with closing(PostgresStore(url, schema=schema, connections=9, connect_seconds=PATIENCE)) as one:
        found = together(9, lambda number: insert(one, record_of(clock, str(number)), key_of()))
        assert len({answer.record.name for answer in found}) == 1
        found = together(9, lambda number: one.get(one.page("", None, 1).records[0].name))
        assert len({record.name for record in found}) == 1
        assert 1 <= one._resources.connections._open <= 2


def test_connections_of_which_there_were_too_many_are_closed(make, clock, monkeypatch):
    """Those that no call has used for long."""
    store = make()
    connections = store._resources.connections
    with connections.borrow(), connections.borrow(), connections.borrow():
        pass
    assert (connections._open, len(connections._idle)) == (3, 3)
    monkeypatch.setattr(_connections, "IDLE_SECONDS", -1.0)
    insert(store, record_of(clock))
    assert (connections._open, len(connections._idle)) == (2, 2)


def test_a_store_closed_meanwhile_keeps_no_connection(store, clock):
    """A call that uses one when the store is closed may end."""
    connections = store._resources.connections
    with connections.borrow() as link:
        store.close()
        assert link.execute("SELECT 1").fetchall() == [(1,)]
    assert link.closed
    assert connections._open == 0


def test_an_error_of_the_caller_leaves_no_transaction_open(store):
    """A connection that is not idle is not used again."""
    connections = store._resources.connections

    def fail():
        with connections.borrow() as link:
            used.append(link)
            link.execute("BEGIN")
            raise ZeroDivisionError

    used = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert used[0].closed
    assert connections.rows(b"SELECT 1") == [(1,)]


def test_an_error_while_connecting_frees_the_place(make, monkeypatch):
    """Also one that is none of the database."""
    store = make(connections=1)

    def interrupted(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(store._address), "connect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.get("operations/a")
    with pytest.raises(OperationNotFound):
        store.get("operations/a")


def test_a_connection_that_cannot_be_set_up_is_closed(server, monkeypatch):
    """The server is one that does not know our settings, say."""
    monkeypatch.setattr("lro.stores.postgres._connections._SET_UP", "SELECT %s, %s, %s, nonsense")
    store = PostgresStore(server.url)
    with closing(store), pytest.raises(Unavailable, match="UndefinedColumn"):
        store.now()


def test_a_subscription_that_may_not_listen_is_unavailable(store, monkeypatch):
    """As on a server that only repeats another one."""
    monkeypatch.setattr(
        "lro.stores.postgres._notifications.sql.Identifier", lambda name: psycopg.sql.SQL(",")
    )
    with pytest.raises(Unavailable, match="SyntaxError"):
        store.listen()


def test_a_server_that_does_not_answer_is_unavailable(server, make, clock):
    """It is there, and stands still: no call waits for it for ever; then all goes on."""
    store = make(connections=1)
    insert(store, held(clock))
    store._resources.connections._idle[0][0].patience = 0.3
    hurry(store, connect_seconds=1.0)
    with server.frozen():
        with pytest.raises(Unavailable, match="NoAnswer"):
            store.update("operations/a", request_cancel(clock()))
        with pytest.raises(Unavailable, match="Timeout"):
            store.update("operations/a", request_cancel(clock()))
    hurry(store, **UNHURRIED)
    soon(lambda: store.update("operations/a", request_cancel(clock())))
    assert store.get("operations/a").cancel_requested


def test_what_is_not_allowed_is_logged(store, plain, clock, caplog):
    """The tables are gone, say: callers learn that it cannot be used, the operator learns why."""
    insert(store, record_of(clock))
    plain.execute(f"DROP SCHEMA {store._address.schema} CASCADE")
    with pytest.raises(Unavailable, match="UndefinedTable"):
        store.get("operations/a")
    with pytest.raises(Unavailable, match="UndefinedTable"):
        store.update("operations/a", request_cancel(clock()))
    said = 'refuses a statement of ours: relation "operations" does not exist'
    assert caplog.messages == [f"the operations database {said}"] * 2


@pytest.mark.parametrize(
    ("sql", "value"), [(b"SELECT %s::text", {"a": 1}), (b"SELECT %s::text::int", "x")]
)
def test_a_value_that_cannot_be_bound_is_no_outage(store, sql, value):
    """What can never work, refused by psycopg or the server, is not tried again."""
    with pytest.raises(InvalidArgument, match="a value cannot be kept by the database"):
        store._resources.connections.rows(sql, (value,))


def test_a_statement_that_takes_too_long_is_ended(store, caplog, monkeypatch):
    """By the server itself; that is no defect of the store to report."""
    bounded = _connections._bounded
    monkeypatch.setattr(_connections, "_bounded", lambda steps, _: bounded(steps, PATIENCE))
    hurry(store, statement_seconds=0.05)
    store._resources.connections._drop_idle()
    with pytest.raises(Unavailable, match="QueryCanceled"):
        store._resources.connections.rows(b"SELECT pg_sleep(60)")
    assert caplog.messages == []


# -- unknown outcomes -----------------------------------------------------------------------------

LOSSES = pytest.mark.parametrize("what", ["question", "answer"])


@LOSSES
def test_an_insert_whose_answer_is_lost_has_the_true_outcome(proxied, proxy, clock, what):
    """It is there exactly once, and fresh, whether the server had carried it out or not."""
    for key, target in ((None, ""), (key_of(), ""), (None, "t"), (key_of("s"), "u")):
        record = record_of(clock, f"{target}-{key is None}", target=target)
        proxy.lose_next(what)
        answer = insert(proxied, record, key)
        assert proxy.lost.is_set()
        assert (answer.fresh, answer.record) == (True, record)
        assert proxied.get(record.name) == record
        assert proxied.request(record.name) == REQUEST


@LOSSES
def test_an_update_whose_answer_is_lost_has_the_true_outcome(proxied, proxy, clock, what):
    """It is applied once: the version has gone up by one, and the end is reached."""
    record = held(clock)
    insert(proxied, record)
    proxy.lose_next(what)
    taken = proxied.update(record.name, claim("us", clock() + timedelta(seconds=9), clock()))
    assert proxy.lost.is_set()
    assert (taken.attempt, taken.version) == (1, 2)
    proxy.lose_next(what)
    ended = proxied.update(record.name, end_of(clock))
    assert proxy.lost.is_set()
    assert proxied.get(record.name) == ended
    assert (ended.result, ended.version) == (DONE, 3)
    with pytest.raises(OperationNotFound):
        proxied.request(record.name)


@LOSSES
def test_a_removal_whose_answer_is_lost_has_the_true_outcome(proxied, proxy, clock, what):
    """It is gone."""
    insert(proxied, record_of(clock))
    proxy.lose_next(what)
    assert proxied.update("operations/a", lambda found: None) is None
    assert proxy.lost.is_set()
    with pytest.raises(OperationNotFound):
        proxied.get("operations/a")


@LOSSES
def test_a_read_whose_answer_is_lost_is_asked_again(proxied, proxy, clock, what):
    """No caller notices."""
    insert(proxied, record_of(clock))
    for _ in range(2):  # the first time it is prepared
        proxy.lose_next(what)
        assert proxied.get("operations/a").name == "operations/a"
        assert proxy.lost.is_set()


def meanwhile(store, monkeypatch, action):
    """Have another process act before a write is sent a second time."""
    for one in (store._resources.records._writer, store._resources.records._remover):
        connections = Interrupted(one._connections, action)
        monkeypatch.setattr(one, "_connections", connections)


class Interrupted:
    """Connections of which something happens between two uses."""

    def __init__(self, connections, action):
        self._connections = connections
        self._action = action
        self._uses = 0

    @contextlib.contextmanager
    def borrow(self):
        self._uses += 1
        if self._uses == 2:
            self._action()
        with self._connections.borrow() as link:
            yield link


def test_an_update_that_was_overtaken_may_be_unknown(proxied, proxy, make, clock, monkeypatch):
    """Where a later version is there, it cannot be known whether ours was before it."""
    insert(proxied, held(clock))
    other = make(schema=proxied._address.schema)
    meanwhile(proxied, monkeypatch, lambda: other.update("operations/a", request_cancel(clock())))
    proxy.lose_next("answer")
    with pytest.raises(Unavailable, match="is not known"):
        proxied.update("operations/a", claim("us", clock(), clock()))
    assert other.get("operations/a").version == 3


def test_an_update_of_what_is_then_gone_is_not_found(proxied, proxy, make, clock, monkeypatch):
    """There is no record of this name, whichever removal was first."""
    insert(proxied, held(clock))
    other = make(schema=proxied._address.schema)
    meanwhile(proxied, monkeypatch, lambda: other.update("operations/a", lambda found: None))
    proxy.lose_next("answer")
    with pytest.raises(OperationNotFound):
        proxied.update("operations/a", claim("us", clock(), clock()))


@pytest.mark.parametrize("gone", [True, False])
def test_an_update_that_was_not_made_is_made_on_what_is_there(
    proxied, proxy, make, clock, monkeypatch, gone
):
    """The question was lost, and another was quicker: the change is made again, or refused."""
    insert(proxied, held(clock))
    other = make(schema=proxied._address.schema)
    until = clock() + timedelta(hours=1)
    meanwhile(proxied, monkeypatch, lambda: other.renew("us", until))
    proxy.lose_next("question")
    changed = proxied.update("operations/a", (lambda _: None) if gone else request_cancel(clock()))
    assert proxy.lost.is_set()
    if gone:
        assert changed is None
    else:
        assert (changed.version, changed.lease_until) == (2, until)


def test_an_insert_that_others_precede(proxied, proxy, make, clock, monkeypatch):
    """The question was lost: then another start with the key, or on the target, was first."""
    other = make(schema=proxied._address.schema)
    quick = record_of(clock, "quick", target="t")
    meanwhile(proxied, monkeypatch, lambda: insert(other, quick, key_of()))
    proxy.lose_next("question")
    answer = insert(proxied, record_of(clock, "slow"), key_of())
    assert (answer.fresh, answer.record) == (False, quick)
    with pytest.raises(RequestIdConflict):
        insert(proxied, record_of(clock, "slow"), key_of(fingerprint="g"))
    with pytest.raises(TargetBusy):
        insert(proxied, record_of(clock, "slow", target="t"))


def test_an_insert_deleted_before_it_was_answered(proxied, proxy, make, clock, monkeypatch):
    """With a key the answer is how it was started; the record does not return (spec §9.2(4))."""
    other = make(schema=proxied._address.schema)
    meanwhile(proxied, monkeypatch, lambda: other.update("operations/a", lambda found: None))
    proxy.lose_next("answer")
    answer = insert(proxied, record_of(clock), key_of())
    assert (answer.fresh, answer.record) == (True, record_of(clock))
    with pytest.raises(OperationNotFound):
        other.get("operations/a")


def test_what_stands_in_the_way_may_go(store, clock, monkeypatch):
    """An insert refused by what is gone when it is looked at is tried again, but not for ever."""
    refusals = itertools.count()
    write = GroupWriter.write
    monkeypatch.setattr(GroupWriter, "write", lambda *given: next(refusals) >= 3 and write(*given))
    assert insert(store, record_of(clock)).fresh
    assert next(refusals) == 4
    monkeypatch.setattr(GroupWriter, "write", lambda *given: False)
    with pytest.raises(Unavailable, match="faster than it can be read"):
        insert(store, record_of(clock, "b"))


def test_a_connection_lost_again_and_again_is_unavailable(store, clock, monkeypatch):
    """For reads and writes; the cause is kept for the log."""
    insert(store, record_of(clock))

    @contextlib.contextmanager
    def lost(self):
        raise ConnectionLost from psycopg.OperationalError("gone")
        yield

    monkeypatch.setattr(type(store._resources.connections), "borrow", lost)
    for call in (
        lambda: store.get("operations/a"),
        lambda: store.update("operations/a", request_cancel(clock())),
    ):
        with pytest.raises(Unavailable, match="OperationalError") as caught:
            call()
        assert str(caught.value.__cause__) == "gone"


def test_the_server_crashes_under_load(server, make, clock):
    """Whatever was answered is true afterwards, of starts, claims and ends by many threads."""
    store = make()
    answered = {}
    crashes = [40, 160]
    counted = itertools.count()
    crashing = threading.Lock()

    def work(number):
        for turn in range(30):
            name = f"operations/{number}-{turn}"
            answered[name] = 0
            steps = (
                lambda name=name: insert(store, held(clock, name[11:]), key_of(name)),
                lambda name=name: store.update(name, claim("us", clock(), clock())),
                lambda name=name: store.update(name, end_of(clock)),
            )
            for step in steps:
                try:
                    step()
                except Unavailable:
                    soon(lambda: store.page("", None, 1))
                    break
                answered[name] += 1
            with crashing:
                if crashes and next(counted) == crashes[0]:
                    crashes.pop(0)
                    server.crash()
                    server.start()

    assert together(8, work) == [None] * 8
    assert not crashes
    there = {record.name: record for record in soon(lambda: store.page("", None, 10_000)).records}
    assert sum(steps == 3 for steps in answered.values()) > 100
    for name, steps in answered.items():
        record = there.get(name)
        assert steps == 0 or record is not None
        if steps:
            assert (record.attempt, record.done) >= (int(steps > 1), steps > 2)
            assert record.version - 1 in (steps - 1, steps)


# -- groups ---------------------------------------------------------------------------------------


class HeldPool:
    """Connections of which each use waits until it is let go; the groups that were sent."""

    def __init__(self, answers=()):
        self.sent = []
        self.arrived = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.answers = list(answers)
        self.address = Address
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def borrow(self):
        self.arrived.release()
        assert self.go.acquire(timeout=PATIENCE)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        yield self

    def execute(self, sql, values):
        self.sent.append(values[0])
        return self

    def fetchall(self):
        return [(name,) for name in self.sent[-1].strip("[]").split(",")]

    def refused(self, error):
        return Unavailable(type(error).__name__)


class Address:
    statement_seconds = PATIENCE


def write_of(name, *touches, size=0):
    """A write whose text is its name."""
    text = (name + "x" * size).encode()
    return RecordWrite(
        name=name + "x" * size,
        kind=WriteKind.CHANGE,
        text=text,
        touches=touches or (name,),
        order=name,
    )


class Writers:
    """Threads that write, begun one after the other."""

    def __init__(self, groups):
        self._groups = groups
        self._threads = []
        self.found = {}

    def begin(self, *writes):
        for write in writes:
            before = len(self._groups._waiting)
            thread = threading.Thread(target=self._write, args=(write,))
            self._threads.append(thread)
            thread.start()
            end = time.monotonic() + PATIENCE
            while thread.is_alive() and len(self._groups._waiting) == before and not write.leads:
                assert time.monotonic() < end

    def _write(self, write):
        try:
            self.found[write.name] = self._groups.write(write)
        except Exception as exc:
            self.found[write.name] = exc

    def join(self):
        assert all(wait_for(thread) for thread in self._threads)
        return self.found


def first_group(pool):
    """Writers of which the first waits for the answer to its group."""
    groups = GroupWriter(pool)
    writers = Writers(groups)
    writers.begin(write_of("a"))
    assert pool.arrived.acquire(timeout=PATIENCE)
    return writers, groups


def test_who_comes_meanwhile_goes_with_the_next_group():
    """In one statement, in the order in which locks are taken; no write waits for company."""
    pool = HeldPool()
    writers, groups = first_group(pool)
    writers.begin(write_of("d"), write_of("c"), write_of("b"))
    pool.go.release(2)
    assert writers.join() == dict.fromkeys("abcd", True)
    assert pool.sent == ["[a]", "[b,c,d]"]
    assert not groups._led


def test_what_touches_the_same_goes_with_a_later_group():
    """The first of each; the others after it, in their order."""
    pool = HeldPool()
    writers, _ = first_group(pool)
    writers.begin(write_of("b", "k"), write_of("c", "k", "t"), write_of("d", "t"), write_of("e"))
    pool.go.release(9)
    assert writers.join() == dict.fromkeys("abcde", True)
    assert pool.sent == ["[a]", "[b,d,e]", "[c]"]


def test_groups_are_not_larger_than_they_may_be(monkeypatch):
    """Neither in number nor in length; a single one that is too long goes alone."""
    monkeypatch.setattr(_records, "MAX_GROUP_WRITES", 2)
    monkeypatch.setattr(_records, "MAX_GROUP_BYTES", 10)
    pool = HeldPool()
    writers, _ = first_group(pool)
    writers.begin(*map(write_of, "bcd"), write_of("e", size=20), write_of("f", size=4))
    pool.go.release(9)
    found = writers.join()
    assert set(found.values()) == {True}
    assert pool.sent == ["[a]", "[b,c]", "[d,fxxxx]", "[e" + "x" * 20 + "]"]


def test_a_deadlock_is_tried_again():
    """It has had no effect. A group that fails too often raises without an effect, too."""
    pool = HeldPool([errors.DeadlockDetected()])
    pool.go.release(9)
    assert GroupWriter(pool).write(write_of("a"))
    pool = HeldPool([errors.DeadlockDetected()] * 3)
    pool.go.release(9)
    with pytest.raises(Unavailable, match="DeadlockDetected"):
        GroupWriter(pool).write(write_of("a"))


def test_a_refusal_without_a_culprit_reaches_all_writers():
    """The disk is full, say: it would be of no use to try each of them by itself."""
    pool = HeldPool([None, errors.DiskFull()])
    writers, _ = first_group(pool)
    writers.begin(write_of("b"), write_of("c"))
    pool.go.release(9)
    found = writers.join()
    assert found.pop("a") is True
    assert [str(one) for one in found.values()] == ["DiskFull"] * 2
    assert len({id(one) for one in found.values()}) == 2


def test_time_that_was_used_up_by_culprits_is_up(monkeypatch):
    """Those behind them get the error at once, instead of waiting as long again."""
    monkeypatch.setattr(Address, "statement_seconds", -1.0)
    pool = HeldPool([None, errors.LockNotAvailable()])
    writers, _ = first_group(pool)
    writers.begin(write_of("b"), write_of("c"))
    pool.go.release(9)
    found = writers.join()
    assert found.pop("a") is True
    assert {type(one) for one in found.values()} == {Unavailable}


def test_an_interrupted_leader_hands_over():
    """Ctrl-C in one writer: its group learns that its fate is unknown, the next one is led."""
    pool = HeldPool([KeyboardInterrupt()])
    groups = GroupWriter(pool)
    writers = Writers(groups)
    found = []

    def interrupted():
        try:
            groups.write(write_of("a"))
        except KeyboardInterrupt as exc:
            found.append(exc)

    thread = threading.Thread(target=interrupted)
    thread.start()
    assert pool.arrived.acquire(timeout=PATIENCE)
    writers.begin(write_of("b"))
    pool.go.release(9)
    assert wait_for(thread)
    assert len(found) == 1
    assert writers.join() == {"b": True}


def interrupted_waiting(monkeypatch, before=lambda: None):
    """Have Ctrl-C interrupt each thread that waits for its group, after ``before`` was called."""

    def interrupt(gate):
        before()
        raise KeyboardInterrupt

    monkeypatch.setattr("lro.stores._group_commit._follow", interrupt)


def test_a_writer_interrupted_while_it_is_queued_is_not_written(monkeypatch):
    """Its write is in no group, and no other write waits for it."""
    pool = HeldPool()
    writers, groups = first_group(pool)
    interrupted_waiting(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        groups.write(write_of("b"))
    pool.go.release(9)
    assert writers.join() == {"a": True}
    assert pool.sent == ["[a]"]


def test_a_writer_interrupted_when_it_was_to_lead_hands_over(monkeypatch):
    """The next thread that waits leads in its place."""
    pool = HeldPool()
    writers, groups = first_group(pool)
    late, following = write_of("b"), write_of("c")
    following.gate = threading.Lock()
    following.gate.acquire()

    def made_leader():
        pool.go.release()
        assert writers.join() == {"a": True}
        assert late.leads
        groups._waiting.append(following)

    interrupted_waiting(monkeypatch, made_leader)
    with pytest.raises(KeyboardInterrupt):
        groups.write(late)
    assert following.leads
    assert not following.gate.locked()
    assert groups._waiting == [following]


def test_a_writer_interrupted_while_its_group_is_sent_just_leaves(monkeypatch):
    """The outcome of its write is of interest to no other thread."""
    pool = HeldPool()
    writers, groups = first_group(pool)
    interrupted_waiting(monkeypatch, groups._waiting.clear)
    with pytest.raises(KeyboardInterrupt):
        groups.write(write_of("b"))
    pool.go.release()
    assert writers.join() == {"a": True}


def test_an_error_in_a_group_fails_the_culprit_alone(store, plain, clock):
    """The others of its group are written; the error says what was refused."""
    schema = store._address.schema
    plain.execute(f"ALTER TABLE {schema}.operations ADD CHECK (caller <> 'poison')")
    groups = store._resources.records._writer
    writers = Records(store, groups)
    with plain.transaction():
        plain.execute(f"LOCK TABLE {schema}.inputs IN EXCLUSIVE MODE")
        writers.begin(record_of(clock, "first"))
        for number in range(5):
            caller = "poison" if number == 2 else ""
            writers.begin(record_of(clock, str(number), caller=caller))
    found = writers.join()
    culprit = found.pop("operations/2")
    assert isinstance(culprit, InvalidArgument)
    said = "the record 'operations/2' cannot be kept by the database (CheckViolation)"
    assert str(culprit) == said
    assert {type(one) for one in found.values()} == {bool}
    assert sorted(ids(store.page("", None, 9).records)) == ["0", "1", "3", "4", "first"]


class Records(Writers):
    """Threads that insert records."""

    def __init__(self, store, groups):
        super().__init__(groups)
        self._store = store

    def begin(self, record):
        waiting = len(self._groups._waiting) + self._groups._led
        thread = threading.Thread(target=self._insert, args=(record,))
        self._threads.append(thread)
        thread.start()
        end = time.monotonic() + PATIENCE
        while thread.is_alive() and len(self._groups._waiting) + self._groups._led == waiting:
            assert time.monotonic() < end

    def _insert(self, record):
        try:
            self.found[record.name] = insert(self._store, record).fresh
        except Exception as exc:
            self.found[record.name] = exc


def test_a_row_that_another_transaction_holds_fails_alone(make, plain, clock):
    """After a while, and the others of its group are written meanwhile."""
    store = make(statement_seconds=10.0)
    schema = store._address.schema
    for unique_id in ("locked", "free"):
        insert(store, record_of(clock, unique_id))
    with plain.transaction():
        plain.execute(f"SELECT 1 FROM {schema}.operations WHERE name LIKE '%locked' FOR UPDATE")
        group = []
        for unique_id in ("locked", "free"):
            record = store.get(f"operations/{unique_id}")
            changed = record.next_version(cancel_requested=True)
            group.append(replacement(record, changed, to_row(changed)))
        store._resources.records._writer._send(group)
    assert isinstance(group[0].error, Unavailable)
    assert (group[1].error, group[1].applied) == (None, True)
    assert store.update("operations/locked", request_cancel(clock())).cancel_requested


@pytest.mark.parametrize("plain_insert", [True, False])
def test_a_group_may_be_of_every_kind(store, clock, plain_insert):
    """New records, with and without keys and targets, changes and ends, in one statement."""
    insert(store, held(clock, "going"))
    insert(store, held(clock, "ending"))
    insert(store, held(clock, "moved on"))
    insert(store, record_of(clock, "first", target="busy"), key_of("known"))
    old = {name: store.get(f"operations/{name}") for name in ("going", "ending", "moved on")}
    store.update("operations/moved on", request_cancel(clock()))
    new = [
        (record_of(clock, "keyed"), key_of("fresh")),
        (record_of(clock, "aimed", target="free"), None),
        (record_of(clock, "late", target="busy"), None),
        (record_of(clock, "again"), key_of("known")),
        (old["going"], key_of("name is taken")),
    ]
    new += [(record_of(clock, "plain"), None)] if plain_insert else []
    changes = [
        (old["going"], request_cancel(clock())(old["going"])),
        (old["ending"], end_of(clock)(old["ending"])),
        (old["moved on"], end_of(clock)(old["moved on"])),
    ]
    group = [insertion(record, to_row(record), REQUEST, key) for record, key in new]
    group += [replacement(before, after, to_row(after)) for before, after in changes]
    store._resources.records._writer._send(sorted(group, key=lambda write: write.order))
    assert {write.name for write in group if write.applied} == {
        f"operations/{name}"
        for name in ("keyed", "aimed", "going", "ending", *["plain"] * plain_insert)
    }
    assert [write.applied for write in group if write.name == "operations/going"] == [True, True]
    assert store.request("operations/keyed") == store.request("operations/aimed") == REQUEST
    assert store.get("operations/going").cancel_requested
    assert store.get("operations/ending").done
    with pytest.raises(OperationNotFound):
        store.request("operations/ending")
    assert not store.get("operations/moved on").done
    assert not insert(store, record_of(clock, "x"), key_of("fresh")).fresh
    assert insert(store, record_of(clock, "x"), key_of("name is taken")).fresh


def test_a_target_taken_at_the_last_moment_is_busy(make, clock):
    """Two processes find it free at once: the slower one is refused by the index, in its turn."""
    one = make()
    two = make(schema=one._address.schema)

    for turn in range(40):

        def start(number, turn=turn):
            name = f"{turn}-{number}"
            return insert((one, two)[number], record_of(clock, name, target=f"t{turn}"))

        found = together(2, start)
        assert sorted(type(answer).__name__ for answer in found) == ["Inserted", "TargetBusy"]


def test_a_target_that_only_the_index_knows_to_be_taken_is_busy(store, plain, clock):
    """An insert that is not committed yet cannot be seen, only waited for."""
    schema = store._address.schema
    insert(store, record_of(clock, "a", target="t"))
    store.update("operations/a", end_of(clock))
    found = []
    with psycopg.connect(plain.info.dsn, autocommit=True) as other, other.transaction():
        other.execute(
            f"UPDATE {schema}.operations SET state = 'IN_PROGRESS' WHERE name = 'operations/a'"
        )

        def start():
            with pytest.raises(TargetBusy):
                insert(store, record_of(clock, "b", target="t"))
            found.append("refused")

        starting = threading.Thread(target=start)
        starting.start()
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while plain.execute(blocked).fetchone() == (0,):
            assert starting.is_alive()
    assert wait_for(starting)
    assert found == ["refused"]


def test_contract_stores_need_no_more_than_one_connection(server, clock):
    """Every verb ends its use of one before it asks for another."""
    with closing(store_maker(server, connections=1, connect_seconds=10.0)(clock)) as store:
        insert(store, held(clock), key_of())
        for call in verbs(store, clock).values():
            with contextlib.suppress(OperationNotFound):
                answer = call()
                if hasattr(answer, "next_changes"):
                    answer.close()


def test_a_key_of_yesterday_does_not_help_with_a_busy_target(store, clock):
    """It is a new start then, and is refused as one (spec §9.2(2), §9.5)."""
    insert(store, record_of(clock, target="t"), key_of())
    clock.advance(days=1)
    for check_only in (False, True):
        with pytest.raises(TargetBusy):
            insert(store, record_of(clock, "b", target="t"), key_of(), check_only=check_only)


def test_what_was_inherited_is_left_alone(server, clock):
    """A forked process leaves the parent's connections and subscriptions open, and uses none."""
    with closing(store_maker(server)(clock)) as store:
        insert(store, record_of(clock))
        parents, subscription = store._resources, store.listen()
        for one in (store, subscription):
            one._reset_after_fork()
        subscription.close()
        with pytest.raises(Unavailable, match="the subscription is closed"):
            subscription.next_changes(PATIENCE)
        assert not subscription._connection.closed
        assert store.get("operations/a")
        assert store._resources is not parents
        assert len(parents.connections._idle) == 1
        subscription._inherited = False
        subscription.close()
        parents.close()
