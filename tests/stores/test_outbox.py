"""What stores owe beyond their contract: several processes, bounded reads, and what is cached."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from lro._engine.store_port import keeps_outbox
from lro._model.operation import settle_notifications, with_debt
from lro.adapters import OutboxStore, Record
from lro.errors import LeaseLost
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.stores.sqlite import _statements as sql
from lro.testing import ManualClock, run_store_check
from lro.testing._owing import an_end_owes_notifications
from lro.testing._samples import end_of, ids, insert, record_of
from tests.services.postgres import shared_server
from tests.waiting import PATIENCE

COUNT = 60
CLAIMER = """
import sys
from datetime import timedelta
kind, place, schema, span = sys.argv[1:]
if kind == "sqlite":
    from lro.stores.sqlite import SQLiteStore
    store = SQLiteStore(place, busy_seconds=60)
else:
    from lro.stores.postgres import PostgresStore
    store = PostgresStore(place, schema=schema)
store.next_due()
print("ready", flush=True)
sys.stdin.readline()
while some := store.claim_due(store.now() + timedelta(seconds=float(span)), 3):
    for record in some:
        print(record.name, record.version, flush=True)
store.close()
"""


@attrs.frozen
class Place:
    """Where a store is, so that several stores of one or many processes can be opened on it."""

    kind: str
    path: str
    schema: str = ""

    def opened(self, clock: Any = None) -> Any:
        """A store on it."""
        if self.kind == "sqlite":
            return SQLiteStore(self.path, clock=clock)
        from lro.stores.postgres import PostgresStore

        return PostgresStore(self.path, schema=self.schema, clock=clock)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store's place of each kind that processes share."""
    if request.param == "sqlite":
        yield Place("sqlite", str(tmp_path / "operations.db"))
    else:
        pytest.importorskip("psycopg")
        server = shared_server()
        yield Place("postgres", server.url, server.fresh_schema())


def owing(store: Any, clock: Any, *unique_ids: str) -> None:
    """Put in records that have ended and owe a notification."""
    for unique_id in unique_ids:
        insert(store, record_of(clock, unique_id))
        store.update(f"operations/{unique_id}", with_debt(end_of(clock), lambda _: True))


def claims(place: Place, seconds: float) -> Counter[tuple[str, int]]:
    """What three processes that claim at once get: names and versions, and how often each."""
    found: Counter[tuple[str, int]] = Counter()
    with ExitStack() as stack:
        arguments = [place.kind, place.path, place.schema, str(seconds)]
        command, pipe = [sys.executable, "-c", CLAIMER, *arguments], subprocess.PIPE
        running = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            for _ in range(3)
        ]
        for one in running:
            stack.callback(one.kill)
        assert [one.stdout.readline() for one in running if one.stdout] == ["ready\n"] * 3
        for one in running:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        for one in running:
            said, _ = one.communicate(timeout=PATIENCE)
            assert one.returncode == 0
            for line in said.splitlines():
                name, version = line.split()
                found[name, int(version)] += 1
    return found


def test_no_two_processes_claim_the_same_within_a_lease(place: Place) -> None:
    """Each record goes to one of them, once."""
    with closing(place.opened()) as store:
        owing(store, store.now, *map(str, range(COUNT)))
        found = claims(place, 600)
        assert set(found.values()) == {1}
        assert len({name for name, _ in found}) == len(found) == COUNT
        assert store.next_due() > store.now() + timedelta(seconds=300)


def test_claims_that_end_are_claimed_again(place: Place) -> None:
    """By any process; each claim is a version of its own, which one process has."""
    with closing(place.opened()) as store:
        owing(store, store.now, *map(str, range(6)))
        past = store.now()  # a claim up to now has ended when it is made
        claimed = [r for _ in range(3) for r in store.claim_due(past, 9)]
        assert Counter(ids(claimed)) == dict.fromkeys(map(str, range(6)), 3)
        found = claims(place, 600)
        assert len(found) == 6
        assert set(found.values()) == {1}
        assert {version for _, version in found} == {6}


def test_what_another_process_has_claimed_or_settled_is_not_cached(place: Place) -> None:
    """A record that callers ask for again and again is kept; a claim makes it another."""
    clock = ManualClock()
    with closing(place.opened(clock)) as ours, closing(place.opened(clock)) as theirs:
        owing(ours, clock, "a")
        for _ in range(2):
            before: Record = ours.get("operations/a")
            assert before.notify_at == clock()
        (claimed,) = theirs.claim_due(clock() + timedelta(seconds=9), 9)
        assert ours.get("operations/a") == claimed
        assert list(ours.find(["operations/a"]).records) == [claimed]
        assert list(ours.claim_due(clock() + timedelta(seconds=9), 9)) == []
        with pytest.raises(LeaseLost):
            ours.update(before.name, settle_notifications(before, "", None))
        after = theirs.update(before.name, settle_notifications(claimed, "", None))
        assert ours.get("operations/a") == after
        assert list(ours.find(["operations/a"]).records) == [after]
        assert after.operation == before.operation
        assert ours.next_due() is theirs.next_due() is None


def test_settling_keeps_the_result(place: Place) -> None:
    """Which is not sent again: it may be large."""
    clock = ManualClock()
    with closing(place.opened(clock)) as store, closing(place.opened(clock)) as other:
        owing(store, clock, "a")
        (claimed,) = store.claim_due(clock() + timedelta(seconds=9), 1)
        assert claimed.result is not None
        store.update(claimed.name, settle_notifications(claimed, "x", clock()))
        assert other.get(claimed.name).result == claimed.result
        assert store.get(claimed.name) == other.get(claimed.name)


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        (sql.ANY_DUE, (1,), "operations_debts (notify_at<?)"),
        (sql.DUE, (1, 9), "operations_debts (notify_at<?)"),
        (sql.NEXT_DUE, (), "operations_debts (notify_at>?)"),
        (sql.EXPIRED, (1, 9), "operations_expiry (<expr><?)"),
    ],
)
def test_what_is_due_is_read_by_its_index(
    statement: str, values: tuple[object, ...], index: str, tmp_path: Path
) -> None:
    """In its order: so no more rows are looked at than the limit says."""
    with closing(SQLiteStore(tmp_path / "operations.db")) as store:
        plan = [row[3] for row in store._file.rows(f"EXPLAIN QUERY PLAN {statement}", values)]
    (step,) = plan
    assert step.replace("COVERING ", "") == f"SEARCH operations USING INDEX {index}"


def test_a_store_without_both_methods_keeps_no_outbox() -> None:
    """Both are needed."""

    class Half(MemoryStore):
        next_due = property()  # type: ignore[assignment]

    store: OutboxStore = MemoryStore()
    assert keeps_outbox(store)
    assert not keeps_outbox(Half())
    run_store_check(an_end_owes_notifications, Half)  # which has nothing to check there
