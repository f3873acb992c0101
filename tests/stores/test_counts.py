"""What stores count beyond their contract: several processes, bounded reads, and faults."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from lro import DeclarationError
from lro._engine.store_port import keeps_statistics
from lro.adapters import StatisticsStore
from lro.errors import Unavailable
from lro.stores._counting import PRUNED_ROWS
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.stores.sqlite import _statements as sql
from lro.testing import START, ManualClock
from lro.testing._samples import held, insert
from tests.services.postgres import shared_server
from tests.waiting import PATIENCE

ADDER = """
import sys
from datetime import datetime
kind, place, schema, number = sys.argv[1:]
if kind == "sqlite":
    from lro.stores.sqlite import SQLiteStore
    store = SQLiteStore(place, busy_seconds=60)
else:
    from lro.stores.postgres import PostgresStore
    store = PostgresStore(place, schema=schema)
minute = store.now()
print(minute.isoformat(), flush=True)
minute = datetime.fromisoformat(sys.stdin.readline().strip())
names = [f"M{(n + int(number)) % 4}" for n in range(4)]
for _ in range(50):
    store.add_counts(minute, {name: {"n": 1, "s.sum": 0.125} for name in names})
store.close()
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_counts_of_several_processes_add_up(kind: str, tmp_path: Path) -> None:
    """To the last one, in the minute and in the totals, whatever the order of their methods."""
    place, schema = str(tmp_path / "operations.db"), ""
    store: StatisticsStore
    if kind == "postgres":
        pytest.importorskip("psycopg")
        from lro.stores.postgres import PostgresStore

        server = shared_server()
        place, schema = server.url, server.fresh_schema()
        store = PostgresStore(place, schema=schema)
    else:
        store = SQLiteStore(place)
    with closing(store), ExitStack() as stack:
        command, pipe = [sys.executable, "-c", ADDER, kind, place, schema], subprocess.PIPE
        running = [
            stack.enter_context(
                subprocess.Popen([*command, str(number)], stdin=pipe, stdout=pipe, text=True)
            )
            for number in range(4)
        ]
        for one in running:
            stack.callback(one.kill)
        began = [one.stdout.readline() for one in running if one.stdout]
        for one in running:
            one.communicate(began[0], timeout=PATIENCE)
        assert [one.returncode for one in running] == [0] * 4
        wanted = {f"M{n}": {"n": 200, "s.sum": 25.0} for n in range(4)}
        assert store.read_totals() == wanted
        found = store.read_counts(store.now() - timedelta(hours=1), step_minutes=30)
        assert {one.method: one.counts for one in found} == wanted


def test_load_is_read_by_an_index(tmp_path: Path) -> None:
    """In its order: so no more rows are looked at than the limit says."""
    with closing(SQLiteStore(tmp_path / "operations.db")) as store:
        plan = [
            row[3] for row in store._file.rows(f"EXPLAIN QUERY PLAN {sql.LOAD}", (9, 9, "", 10))
        ]
        reads = [step for step in plan if "operations" in step]
        assert reads == ["SEARCH operations USING INDEX operations_states (parent=? AND state=?)"]
        assert [step for step in plan if "B-TREE" in step] == ["USE TEMP B-TREE FOR GROUP BY"]
        plan = [row[3] for row in store._file.rows(f"EXPLAIN QUERY PLAN {sql.COUNTS}", (1, 0, 9))]
        wanted = "SEARCH minutes USING INDEX sqlite_autoindex_minutes_1 (step=? AND minute>?)"
        assert plan == [wanted]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_old_minutes_go_in_many_turns(kind: str, tmp_path: Path) -> None:
    """After a long time without any counts one call does not remove them all."""
    clock = ManualClock()
    store: StatisticsStore = MemoryStore(clock)
    if kind == "sqlite":
        store = SQLiteStore(tmp_path / "operations.db", clock=clock)
    with closing(store):
        counts = {f"M{n}": {"a": 1} for n in range(300)}
        for _ in range(4):
            store.add_counts(clock(), counts)
            clock.advance(minutes=1)
        clock.advance(days=9)
        left = []
        for _ in range(4):
            store.add_counts(clock(), {})
            left.append(sum(len(store.read_counts(START, step_minutes=n)) for n in (1, 5, 30)))
        rows = 300 * (4 + 1 + 1)
        some = [max(0, rows - PRUNED_ROWS * turn) for turn in range(1, 5)]
        assert left == ([0] * 4 if kind == "memory" else some)


@pytest.mark.parametrize("step", [0, 2, 60])
def test_other_steps_are_refused(step: int) -> None:
    """By the argument's name, with what there is."""
    with pytest.raises(DeclarationError, match=r"step_minutes: must be one of \(1, 5, 30\)"):
        MemoryStore().read_counts(START, step_minutes=step)


def test_store_without_the_methods_keeps_no_statistics() -> None:
    """All four are needed."""

    class Half(MemoryStore):
        read_load = property()

    assert keeps_statistics(MemoryStore())
    assert not keeps_statistics(Half())


def test_counts_whose_answer_is_lost_are_not_added_twice() -> None:
    """The error comes instead, whatever has become of them: those that answer can be repeated."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore, _statements

    server = shared_server()
    with closing(PostgresStore(server.url, schema=server.fresh_schema())) as store:
        pool = store._resources.connections
        store.add_counts(store.now(), {"M": {"a": 1}})
        dying = _statements.ADD_COUNTS + b", pg_terminate_backend(pg_backend_pid())"
        values = '{"M": {"a": 1}}', '{"1": 0, "5": 0, "30": 0}'
        with pytest.raises(Unavailable):
            pool.rows(dying, values, once=True)
        assert store.read_totals() == {"M": {"a": 1}}


@pytest.mark.parametrize("limit", [1, 3])
def test_load_beyond_the_limit_is_not_counted(tmp_path: Path, limit: int) -> None:
    """However many parents there are, and whichever the store."""
    make = partial(SQLiteStore, tmp_path / "operations.db")
    for store in (MemoryStore(), make()):
        with closing(store):
            for number in range(8):
                record = held(ManualClock(), str(number), parent=f"p/{number % 4}")
                insert(store, record)
            found = store.read_load([f"p/{n}" for n in range(4)], limit)
            assert found.capped
            assert sum(one.waiting + one.running for one in found.methods) == limit
            assert sum(found.owners.values()) == limit
