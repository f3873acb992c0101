"""Several processes on one database count, claim and list; a server is restarted."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections import Counter
from datetime import timedelta

import pytest

from lro.executors.inline import InlineExecutor
from lro.stores.sqlite import SQLiteStore
from lro.testing import STORE_CHECKS, run_store_check
from tests.services.processes import killed_at_end
from tests.stores.list_agreement import compare
from tests.stores.samples import ids, insert_pending
from tests.stores.test_within import REQUEST, method_of
from tests.waiting import PATIENCE

PRELUDE = """
import sys
from datetime import datetime, timedelta
from tests.places import Place
store = Place(*sys.argv[1:4]).open()
store.next_due()
print(store.now().isoformat(), flush=True)
minute = datetime.fromisoformat(sys.stdin.readline().strip())
"""
ADDER = """
names = [f"M{(n + int(sys.argv[4])) % 4}" for n in range(4)]
for _ in range(50):
    store.add_counts(minute, {name: {"n": 1, "s.sum": 0.125} for name in names})
store.close()
"""
CLAIMER = """
while some := store.claim_due(store.now() + timedelta(seconds=600), 3):
    for record in some:
        print(record.name, record.version, flush=True)
store.close()
"""


def said_by(program, place, count):
    """Run ``count`` processes on a database at once; return their output."""
    arguments = [place.kind, place.where, place.schema]
    command, pipe = [sys.executable, "-c", PRELUDE + program, *arguments], subprocess.PIPE
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(killed_at_end([*command, str(number)], stdin=pipe, stdout=pipe))
            for number in range(count)
        ]
        minutes = [one.stdout.readline() for one in running]
        for one in running:
            one.stdin.write(minutes[0])
            one.stdin.flush()
        said = [one.communicate(timeout=PATIENCE)[0] for one in running]
        assert [one.returncode for one in running] == [0] * count
        return "".join(said)


def test_counts_of_several_processes_add_up(place):
    """Counts of four processes add up exactly, in whatever order each process adds methods."""
    with contextlib.closing(place.open()) as store:
        said_by(ADDER, place, 4)
        wanted = {f"M{n}": {"n": 200, "s.sum": 25.0} for n in range(4)}
        found = store.read_counts(store.now() - timedelta(hours=1), step_minutes=30)
        assert {one.method: one.counts for one in found} == wanted


def test_each_record_is_claimed_by_one_process(place):
    """Three processes claim at the same time; each record is claimed once per lease."""
    names = [*map(str, range(60))]
    with contextlib.closing(place.open()) as store:
        insert_pending(store, store.now, *names)
        past = store.now()  # a claim that lasts until now has already expired
        claimed = [record for _ in range(3) for record in store.claim_due(past, 99)]
        assert Counter(ids(claimed)) == dict.fromkeys(names, 3)
        found = Counter(said_by(CLAIMER, place, 3).splitlines())
        assert found == {f"operations/{name} 6": 1 for name in names}
        assert store.next_due() > store.now() + timedelta(seconds=300)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_store_without_a_cache_passes_the_contract_check(check, tmp_path, monkeypatch):
    """Without its cache, the store still passes each contract check."""
    monkeypatch.setattr("lro.stores._rows.MAX_BYTES", 0)
    numbers = itertools.count()
    run_store_check(check, lambda clock: SQLiteStore(tmp_path / f"{next(numbers)}.db", clock=clock))


def test_stores_agree_with_the_evaluator_on_many_lists():
    """Compare more sets of random records than the default tier does."""
    pytest.importorskip("psycopg")
    kinds = ("memory", "sqlite", "postgres")
    assert sum(compare(kinds, seed) for seed in range(100, 140)) > 200


def test_restarted_server_is_recognised_as_the_same(make_service):
    """After a server restart, a start within an application's transaction still works."""
    psycopg = pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore
    from tests.services.postgres import new_server

    server = new_server()
    with contextlib.closing(PostgresStore(server.url, statement_seconds=60)) as store:
        work = method_of(make_service(store, InlineExecutor()))
        for _ in range(2):
            with psycopg.connect(server.url) as connection:
                name = work.start(REQUEST, within=connection).name
            assert store.get(name)
            server.stop()
            server.start()
    server.stop()
