"""Claims of queued work in databases: locks, lost replies, several processes, notifications."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from lro.adapters import WORK_WAITS
from lro.errors import Unavailable
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.places import Place
from tests.services.postgres import UNHURRIED, shared_server
from tests.stores.samples import (
    REQUEST,
    cancel_of,
    claim_work,
    claimed,
    end_of,
    insert,
    record_of,
    together,
    waiting,
)
from tests.stores.wires import Wire, stranger
from tests.waiting import PATIENCE, until

LIMITS = [{"M": None}, {"M": 50}]
"""The limits of a claim: none, and a limit that is never reached."""


def waiting_work(store: Any, clock: ManualClock, count: int, **fields: Any) -> None:
    for number in range(count):
        insert(store, waiting(clock, f"{number:03}", **fields))


# -- several processes ----------------------------------------------------------------------------


def test_work_is_claimed_once_by_eight_stores(place: Place, clock: ManualClock) -> None:
    """Eight stores claim at the same time, and each operation is claimed exactly once."""
    with ExitStack() as stack:
        stores: list[Any] = [stack.enter_context(closing(place.open(clock))) for _ in range(8)]
        waiting_work(stores[0], clock, 80)

        def claim_all(number: int) -> list[tuple[str, str, int]]:
            mine: list[tuple[str, str, int]] = []
            found = claim_work(stores[number], clock, 2, owner=f"owner {number}")
            while found.works or found.more:
                mine += [(one.name, one.owner, one.attempt) for one, _ in found.works]
                found = claim_work(stores[number], clock, 2, owner=f"owner {number}")
            return mine

        shares = together(8, claim_all)
        names = [name for share in shares for name, _, _ in share]
        assert sorted(names) == [f"operations/{number:03}" for number in range(80)]
        for number, share in enumerate(shares):
            assert {(owner, attempt) for _, owner, attempt in share} <= {(f"owner {number}", 1)}


def test_limit_holds_over_eight_stores(place: Place, clock: ManualClock) -> None:
    """While eight stores claim, cancel and end work, the limit holds and all work gets done."""
    with ExitStack() as stack:
        stores: list[Any] = [stack.enter_context(closing(place.open(clock))) for _ in range(8)]
        waiting_work(stores[0], clock, 48)
        most: list[int] = []

        def work(number: int) -> int:
            store, done = stores[number], 0
            while True:
                found = claim_work(store, clock, 2, owner=f"owner {number}", limits={"M": 3})
                records = store.page("", None, 99).records
                most.append(sum(one.owner != "" for one in records))
                for record, _ in found.works:
                    store.update(record.name, cancel_of(clock))
                    store.update(record.name, end_of(clock))
                done += len(found.works)
                if all(one.done for one in records):
                    return done
                if not found.works:
                    time.sleep(0.002)

        assert sum(together(8, work)) == 48
        assert max(most) == 3


CLAIMER = """
import sys
from lro.adapters import Claim
from lro.stores.sqlite import SQLiteStore
from datetime import timedelta

store, mine = SQLiteStore(sys.argv[1], busy_seconds=30), []
print("ready", flush=True)
sys.stdin.readline()
while True:
    until = store.now() + timedelta(seconds=15)
    found = store.claim(Claim(sys.argv[2], until, {"M": None}, 1))
    mine += [record.name for record, _ in found.works]
    if not found.works and not found.more:
        break
print(" ".join(mine))
"""


def test_two_processes_claim_from_one_file(path: Any) -> None:
    """Two processes claim from one file at the same time; each operation is claimed once."""
    with closing(SQLiteStore(path)) as store:
        waiting_work(store, store.now, 60)  # type: ignore[arg-type]  # any clock will do
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", CLAIMER, str(path), owner],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for owner in ("one", "two")
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        names = [process.communicate(timeout=PATIENCE)[0].split() for process in processes]
        assert sorted(names[0] + names[1]) == [f"operations/{n:03}" for n in range(60)]
        for owner, mine in zip(("one", "two"), names, strict=True):
            assert {store.get(name).owner for name in mine} <= {owner}


def test_record_claimed_by_another_store_is_read_again(place: Place, clock: ManualClock) -> None:
    """A store that has cached a record reads it again after another store has claimed it."""
    with closing(place.open(clock)) as one, closing(place.open(clock)) as two:
        insert(one, waiting(clock))
        assert one.get("operations/a").owner == ""
        ((record, _),) = claim_work(two, clock, owner="them").works
        assert one.get("operations/a") == record
        assert claimed(claim_work(one, clock)) == []
        clock.advance(1)
        insert(two, waiting(clock, "b"))
        assert two.get("operations/b").version == 1
        ((put_off, _),) = claim_work(one, clock, owner="").works
        assert two.get("operations/b") == put_off == two.find(["operations/b"]).records[0]


# -- SQLite ---------------------------------------------------------------------------------------


def test_claim_of_nothing_writes_nothing(file_store: SQLiteStore, clock: ManualClock) -> None:
    """A claim that finds no work needs no lock, with or without limits, so it is never delayed."""
    for unique_id in "ab":
        insert(file_store, waiting(clock, unique_id))
    insert(file_store, waiting(clock, "later", seconds=9))
    assert claimed(claim_work(file_store, clock, 1)) == ["a"]
    with stranger(file_store.path):
        found = claim_work(file_store, clock, limits={"M": 1, "N": None})
        assert (claimed(found), found.more) == ([], False)
        assert found.next_due == clock() + timedelta(seconds=9)
        name = "operations/b"
        assert claimed(claim_work(file_store, clock, limits={"M": 1}, name=name)) == []
        assert claimed(claim_work(file_store, clock, excluded=[name])) == []
        assert claim_work(file_store, clock, 0).more


def test_a_claim_is_decided_with_the_lock_of_the_file(
    file_store: SQLiteStore, path: Any, clock: ManualClock, wire: Wire
) -> None:
    """If another process claims between a claim's read and write, no work is claimed twice."""
    waiting_work(file_store, clock, 3)
    with closing(SQLiteStore(path, clock=clock)) as other:
        wire.when("BEGIN IMMEDIATE", lambda _: claim_work(other, clock, 2, owner="them"))
        assert claimed(claim_work(file_store, clock, 2)) == ["002"]
        insert(other, waiting(clock))
        wire.when("BEGIN IMMEDIATE", lambda _: claim_work(other, clock, owner="them"))
        assert claimed(claim_work(file_store, clock)) == []


def test_a_claim_shares_the_commit_of_other_writes(
    file_store: SQLiteStore, clock: ManualClock, wire: Wire
) -> None:
    """A claim joins the durable commit of other writes; if the claim fails, work stays queued."""
    insert(file_store, waiting(clock))
    wire.fail("UPDATE lro_operations SET owner")
    with pytest.raises(Unavailable):
        claim_work(file_store, clock)
    assert file_store.get("operations/a").waits
    words = wire.words(lambda: claim_work(file_store, clock))
    assert (words.count("BEGIN"), words.count("COMMIT"), words.count("UPDATE")) == (1, 1, 1)
    assert "PRAGMA" not in words  # synchronous stays FULL


# -- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture
def remote(postgres_wire: Wire) -> Iterator[Any]:
    """Return a function that opens stores on one new schema, with this clock or the server's."""
    from lro.stores.postgres import PostgresStore

    server = shared_server()
    schema = server.fresh_schema()
    with ExitStack() as stack:

        def make(clock: ManualClock | None = None, **options: Any) -> PostgresStore:
            options = {**UNHURRIED, **options}
            made = PostgresStore(server.url, schema=schema, clock=clock, **options)
            made.secret()
            return stack.enter_context(closing(made))

        yield make


@contextmanager
def locked_row(store: Any, name: str) -> Iterator[None]:
    """Keep a record's row locked, as another program could."""
    import psycopg

    with psycopg.connect(shared_server().url) as plain:
        text = f"SELECT 1 FROM {store.schema}.lro_operations WHERE name = %s FOR UPDATE"
        assert plain.execute(text.encode(), (name,)).fetchall()
        yield


@pytest.mark.parametrize("limits", LIMITS)
def test_claim_skips_locked_rows(remote: Any, clock: ManualClock, limits: Any) -> None:
    """A claim skips locked rows without waiting, and ``more`` says that work is left."""
    store = remote(clock)
    waiting_work(store, clock, 3)
    with locked_row(store, "operations/000"):
        found = claim_work(store, clock, 1, limits=limits)
        assert (claimed(found), found.more) == (["001"], True)
        found = claim_work(store, clock, limits=limits)
        assert (claimed(found), found.more) == (["002"], True)
        found = claim_work(store, clock, limits=limits, name="operations/000")
        assert (claimed(found), found.more) == ([], True)
    found = claim_work(store, clock, limits=limits)
    assert (claimed(found), found.more) == (["000"], False)


def carrying_out(store: Any, wire: Wire) -> Callable[[Any], None]:
    """Return what carries out a claim, and then breaks the connection before the answer."""

    def carried_out(connection: Any) -> None:
        # Another connection runs the same statement, as if only the reply had been lost.
        text = next(one for one in reversed(wire.said) if one.startswith("WITH RECURSIVE given"))
        values = wire.values[-1]
        import psycopg

        with psycopg.connect(shared_server().url, autocommit=True) as plain:
            plain.execute(f"SET search_path TO {store.schema}".encode())
            psycopg.RawCursor(plain).execute(text.encode(), values)
        connection.close()
        raise psycopg.OperationalError("the connection is lost")

    return carried_out


@pytest.mark.parametrize("limits", LIMITS)
def test_claim_whose_answer_was_lost_is_read_back(
    remote: Any, clock: ManualClock, postgres_wire: Wire, limits: Any
) -> None:
    """If the connection breaks after a claim's commit, the store reads the claimed work back."""
    store = remote(clock)
    waiting_work(store, clock, 3)
    carried_out = carrying_out(store, postgres_wire)
    postgres_wire.when("WITH RECURSIVE given", carried_out)
    found = claim_work(store, clock, 2, limits=limits)
    assert (claimed(found), found.more) == (["000", "001"], True)
    for record, request in found.works:
        assert (store.get(record.name), request) == (record, REQUEST)
        assert record.attempt == 1
    # Two claims at the same clock time cannot be told apart, so the second is not read back.
    postgres_wire.when("WITH RECURSIVE given", carried_out)
    with pytest.raises(Unavailable):
        claim_work(store, clock, 1, limits=limits)
    clock.advance(1)
    assert claimed(claim_work(store, clock, limits=limits)) == []


def test_second_look_of_a_claim_whose_answer_was_lost_is_read_back(
    remote: Any, clock: ManualClock, postgres_wire: Wire
) -> None:
    """If its first records are locked, a claim looks again; this claim, too, is read back."""
    import psycopg

    store = remote(clock)
    waiting_work(store, clock, 22)
    with psycopg.connect(shared_server().url) as plain:
        lock = (
            f"SELECT 1 FROM {store.schema}.lro_operations WHERE name < 'operations/020' FOR UPDATE"
        )
        assert len(plain.execute(lock.encode()).fetchall()) == 20
        postgres_wire.when("WITH RECURSIVE given", lambda _: None)
        postgres_wire.when("WITH RECURSIVE given", carrying_out(store, postgres_wire))
        assert claimed(claim_work(store, clock, 2)) == ["020", "021"]


def test_claim_that_was_not_committed_fails(
    remote: Any, clock: ManualClock, postgres_wire: Wire
) -> None:
    """If the connection breaks before a claim's commit, the claim fails; the work stays queued."""
    store = remote(clock)
    waiting_work(store, clock, 1)

    def lost(connection: Any) -> None:
        import psycopg

        connection.close()
        raise psycopg.OperationalError("the connection is lost")

    postgres_wire.when("WITH RECURSIVE given", lost)
    with pytest.raises(Unavailable):
        claim_work(store, clock)
    assert claimed(claim_work(store, clock)) == ["000"]


def test_claims_with_a_limit_run_one_at_a_time(
    remote: Any, clock: ManualClock, postgres_wire: Wire
) -> None:
    """Claims with a limit on one method wait for each other; claims without a limit do not wait."""
    import psycopg

    one, two = remote(clock), remote(clock)
    insert(one, waiting(clock, "m"))
    insert(one, waiting(clock, "m2"))
    insert(one, waiting(clock, "n", method="N"))
    counting, go = threading.Event(), threading.Event()

    def stand_still(_: Any) -> None:
        counting.set()
        assert go.wait(PATIENCE)

    postgres_wire.when("WITH RECURSIVE given", stand_still)
    found: list[Any] = []

    def claim(store: Any) -> threading.Thread:
        def act() -> None:
            found.append(claimed(claim_work(store, clock, limits={"M": 1})))

        thread = threading.Thread(target=act)
        thread.start()
        return thread

    first = claim(one)
    assert counting.wait(PATIENCE)
    locking: list[Any] = []
    postgres_wire.when("SELECT pg_advisory_xact_lock", locking.append)
    second = claim(two)
    until(lambda: locking)
    at_lock = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    with psycopg.connect(shared_server().url, autocommit=True) as plain:
        until(lambda: plain.execute(at_lock, (locking[0].info.backend_pid,)).fetchone() == (True,))
    assert claimed(claim_work(two, clock, limits={"N": 1})) == ["n"]
    assert claimed(claim_work(two, clock, limits={"N": None})) == []
    assert (found, second.is_alive()) == ([], True)
    go.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert sorted(found) == [[], ["m"]]


def test_a_claim_of_nothing_takes_no_lock(
    remote: Any, clock: ManualClock, postgres_wire: Wire
) -> None:
    """A claim that finds no work sends a single statement, with limits or without."""
    store = remote(clock)
    insert(store, waiting(clock, seconds=9))
    for limits, begins in (({"M": 3}, "SELECT"), ({"M": None}, "WITH")):
        words = postgres_wire.words(
            lambda limits=limits: claim_work(store, clock, limits=limits)  # type: ignore[misc]
        )
        assert words == [begins]
        assert claim_work(store, clock, limits=limits).next_due == clock() + timedelta(seconds=9)


def test_claims_kept_for_read_back_are_bounded(remote: Any, clock: ManualClock) -> None:
    """A store keeps a bounded number of claims that it might have to read back."""
    store = remote(clock)
    kept = store._resources.claims._alone
    for _ in range(1005):
        clock.advance(1)
        claim_work(store, clock)
    assert len(kept) <= 1000


# -- notifications --------------------------------------------------------------------------------


def heard(subscription: Any, seconds: float) -> set[str]:
    names: set[str] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not names:
        names |= set(subscription.next_changes(max(0, end - time.monotonic())) or ())
    return names


def test_other_processes_are_notified_of_queued_work(remote: Any, clock: ManualClock) -> None:
    """Only other processes are notified of queued work; the sender gets no notification."""
    one, two = remote(clock), remote(clock)
    with closing(one.listen()) as own, closing(two.listen()) as other:
        one.notify_others(WORK_WAITS)
        one.notify_others("operations/a")
        names = heard(other, PATIENCE)
        while len(names) < 2:
            names |= heard(other, PATIENCE)
        assert names == {WORK_WAITS, "operations/a"}
        assert heard(own, 0.05) == set()


def test_all_processes_are_notified_after_the_application_commits(
    remote: Any, clock: ManualClock
) -> None:
    """When the application commits, and not before, all processes are notified, also the sender."""
    import psycopg

    one, two = remote(clock), remote(clock)
    with (
        closing(one.listen()) as own,
        closing(two.listen()) as other,
        psycopg.connect(shared_server().url) as application,
    ):
        for undone in (True, False):
            one.insert_within(application, waiting(clock), REQUEST, None)
            assert heard(own, 0.05) == heard(other, 0.05) == set()
            if undone:
                application.rollback()
        assert one.insert_within(application, record_of(clock, "outside"), REQUEST, None).fresh
        application.commit()
        assert heard(own, PATIENCE) == heard(other, PATIENCE) == {WORK_WAITS}
        assert claimed(claim_work(two, clock)) == ["a"]
        one.insert_within(application, record_of(clock, "outside2"), REQUEST, None)
        one.insert_within(application, waiting(clock, "b"), REQUEST, None, check_only=True)
        application.commit()
        assert heard(own, 0.05) == heard(other, 0.05) == set()


def test_claim_finds_free_work_behind_much_locked_work(remote: Any, clock: ManualClock) -> None:
    """A claim takes work that is free even if hundreds of operations before it are locked."""
    import psycopg

    store = remote(clock)
    waiting_work(store, clock, 202)
    with psycopg.connect(shared_server().url) as plain:
        lock = (
            f"SELECT 1 FROM {store.schema}.lro_operations WHERE name < 'operations/200' FOR UPDATE"
        )
        assert len(plain.execute(lock.encode()).fetchall()) == 200
        found = claim_work(store, clock, 1)
        assert (claimed(found), found.more) == (["200"], True)


# -- memory ---------------------------------------------------------------------------------------


def opcodes(call: Callable[[], object]) -> int:
    """Return how many bytecode instructions a call executes in this thread."""
    counted = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal counted
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return counted


def test_claim_reads_only_the_records_that_it_takes(clock: ManualClock) -> None:
    """Claims read only the records that they take, not all 10,000 that are queued."""

    def work_of_claim(queued: int) -> int:
        store = MemoryStore(clock)
        waiting_work(store, clock, queued)
        claim_work(store, clock, 2)  # the first claim moves what has become due
        return opcodes(lambda: claim_work(store, clock, 2))

    work_of_claim(10_000)  # Python 3.12 and 3.13 do not count the first call of a function
    assert 0 < work_of_claim(10_000) < 1.1 * work_of_claim(10)


class Looked(list[str]):
    """An empty list of names, which counts how often it is searched."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


def test_claim_reads_few_of_many_keys(clock: ManualClock) -> None:
    """A claim checks few of many keys, starting after the given one; urgent work comes first."""
    store, looked = MemoryStore(clock), Looked()
    for lane in range(1, 2001):
        insert(store, waiting(clock, f"{lane:04}", lane=lane, rank=-(lane == 1900)))
    more: dict[str, Any] = {"limits": {"M": 1}, "keyed": ["M"], "excluded": looked}
    assert claimed(claim_work(store, clock, 3, after_lane=500, **more)) == ["1900", "0501", "0502"]
    assert claimed(claim_work(store, clock, 3, after_lane=1999, **more)) == ["2000", "0001", "0002"]
    assert 0 < looked.asked < 500


def test_key_with_free_capacity_is_found_behind_keys_at_their_limit(clock: ManualClock) -> None:
    """A claim finds the only key with free capacity, however many other keys are at their limit."""
    store = MemoryStore(clock)
    for lane in range(2, 1002):
        for number in range(1 if lane == 700 else 2):
            insert(store, waiting(clock, f"{lane:04}-{number}", lane=lane))
    more: dict[str, Any] = {"limits": {"M": 1}, "keyed": ["M"]}
    assert len(claim_work(store, clock, 1000, **more).works) == 1000
    store.update("operations/0700-0", end_of(clock))
    insert(store, waiting(clock, "new", lane=700))
    assert claimed(claim_work(store, clock, 1, **more)) == ["new"]


def test_begin_times_older_than_the_rate_period_are_removed(clock: ManualClock) -> None:
    """The store forgets begin times that are older than the rate's period, even of unused keys."""
    store = MemoryStore(clock)
    more: dict[str, Any] = {"keyed": ["M"], "rates": {"M": (1, timedelta(seconds=9))}}
    kept: list[int] = []
    for lane in range(1, 2001):
        insert(store, waiting(clock, "a", lane=lane))
        assert claimed(claim_work(store, clock, 1, **more)) == ["a"]
        store.update("operations/a", lambda _: None)
        clock.advance(1)
        if lane in (1000, 2000):
            gc.collect()
            kept.append(len(gc.get_objects()))
    assert kept[1] - kept[0] < 500  # 1,000 if all begin times were kept
