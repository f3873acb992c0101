"""The published contract checks pass for all our stores and executors, and fail for broken ones."""

from __future__ import annotations

import contextlib
import itertools
from contextlib import closing

import attrs
import pytest

from lro import DeclarationError, testing
from lro._engine.store_port import READ_BYTES, keeps_outbox, keeps_statistics
from lro._filters.prefilter import EVERYTHING, bounds_of
from lro.adapters import Expired, Found, Inserted, Page
from lro.errors import OperationNotFound, TargetBusy
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores._counting import PRUNED_ROWS
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.services.postgres import shared_server, store_maker
from tests.stores.samples import insert, key_of, record_of

EXECUTORS = {"threads": ThreadExecutor, "asyncio": AsyncioExecutor, "processes": ProcessExecutor}


def name_of(check):
    return check.__name__


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_store(request, tmp_path):
    """Return a function that makes an empty store with the given clock."""
    numbers = itertools.count()
    if request.param == "memory":
        return MemoryStore
    if request.param == "postgres":
        pytest.importorskip("psycopg")
        return store_maker(shared_server())
    return lambda clock: SQLiteStore(tmp_path / f"{next(numbers)}.db", clock=clock)


@pytest.mark.parametrize("check", testing.STORE_CHECKS, ids=name_of)
def test_store_passes_the_contract_check(check, make_store):
    testing.run_store_check(check, make_store)


@pytest.mark.parametrize("check", testing.EXECUTOR_CHECKS, ids=name_of)
@pytest.mark.parametrize("kind", EXECUTORS)
def test_executor_passes_the_contract_check(check, kind):
    testing.run_executor_check(check, EXECUTORS[kind])


@pytest.mark.parametrize("check", testing.FOREGROUND_CHECKS, ids=name_of)
def test_inline_executor_passes_the_contract_check(check):
    testing.run_executor_check(check, lambda at_once: InlineExecutor())


def test_checks_run_without_a_test_framework():
    """The checks run without a test framework, because the author of a store may not use one."""
    testing.check_store(MemoryStore)
    testing.check_executor(lambda at_once: InlineExecutor(), background=False)


def test_every_contract_check_has_a_docstring_and_a_unique_name():
    """Each check has a docstring and a unique name."""
    for checks in (testing.STORE_CHECKS, testing.EXECUTOR_CHECKS):
        assert all(check.__doc__ for check in checks)
        assert len({check.__name__ for check in checks}) == len(checks)


def forgotten(self, name):
    """Lose the request."""
    raise KeyError(name)


def inserted_anyway(self, record, request, key, *, check_only=False):
    """Insert the record even if another operation works on the target."""
    try:
        return MemoryStore.insert(self, record, request, key, check_only=check_only)
    except TargetBusy:
        return Inserted(record, fresh=True)


def all_there_are(self, parent, after, limit, *more):
    """List expired and deleted records too."""
    return Page([r for r in self._records.values() if r.parent == parent][:limit], None)


def covered_alone(self, parent, after, limit, prefilter=EVERYTHING, *more):
    """Leave out records without index keys, which the prefilter cannot exclude."""
    found = MemoryStore.page(self, parent, after, limit, prefilter, *more)
    wanted = bounds_of(prefilter).keys.values()
    kept = [r for r in found.records if all(any(v in (r.keys or "") for v in w) for w in wanted)]
    return Page(kept, found.reached)


def change_of_before(self, name, change):
    """Read and write without a lock, so that a concurrent update is lost."""
    changed = change(self.get(name))
    return MemoryStore.update(self, name, lambda _: changed)


def visible_alone(self, names, most=READ_BYTES):
    """Find only records that callers can see."""
    found = MemoryStore.find(self, names, most)
    return Found([record for record in found.records if record.visible(self.now())], found.rest)


def as_often_as_asked(self, names, most=READ_BYTES):
    """Return a record twice if its name is given twice."""
    return Found([record for name in names for record in MemoryStore.find(self, [name]).records])


def claimed_beyond_limits(self, claim):
    """Ignore the limits of methods."""
    return MemoryStore.claim(self, attrs.evolve(claim, limits=dict.fromkeys(claim.limits)))


def sent_beyond_limits(self, claim):
    """Ignore the limits of claims that only send names to a queue."""
    limits = claim.limits if claim.owner else dict.fromkeys(claim.limits)
    return MemoryStore.claim(self, attrs.evolve(claim, limits=limits))


def claimed_early(self, claim):
    """Claim work by name although its name was not sent to a queue."""

    def sent(record):
        return record.next_version(sent_time=self.now()) if record.waits else record

    with contextlib.suppress(OperationNotFound):
        self.update(claim.name, sent)
    return MemoryStore.claim(self, claim)


def claimed_again(self, claim):
    """Claim work that the caller excluded."""
    return MemoryStore.claim(self, attrs.evolve(claim, excluded=()))


def claimed_by_nobody(self, claim):
    """Claim work even if no owner is given."""
    return MemoryStore.claim(self, attrs.evolve(claim, owner=claim.owner or "nobody"))


def claimed_by_name(self, claim):
    """Return claimed work sorted by name instead of due time."""
    found = MemoryStore.claim(self, claim)
    return attrs.evolve(found, works=sorted(found.works, key=lambda work: work[0].name))


def claimed_last(self, claim):
    """Claim the work with the last name first."""
    waiting = [record.name for record in self._records.values() if record.waits]
    return MemoryStore.claim(self, attrs.evolve(claim, name=max(waiting, default="")))


def due_to_all(self, until, limit):
    """Return due notifications to every caller, without claiming them."""
    due = self._lists.due(self.now(), limit)
    return [record.next_version(notify_at=until) for record in due]


def debts_kept_for_ever(self, limit):
    """Never remove records with pending notifications."""
    kept = [r for r in self._records.values() if r.notify_at is not None]
    for record in kept:
        self._replace(attrs.evolve(record, expire_time=None))
    found = MemoryStore.expire(self, limit)
    for record in kept:
        self._replace(record)
    return found


def debts_removed(self, limit):
    """Remove expired records even if they have pending notifications."""
    for record in [r for r in self._records.values() if r.expire_time]:
        if record.expire_time <= self.now():
            self._replace(record.next_version(notify_at=None))
    return MemoryStore.expire(self, limit)


def request_id_in_any_case(self, record, request, key, **options):
    """Ignore the letter case of request ids, as some databases do by default."""
    key = key and attrs.evolve(key, request_id=key.request_id.lower())
    return MemoryStore.insert(self, record, request, key, **options)


BROKEN = [
    ("request_id_is_any_text", {"insert": request_id_in_any_case}),
    ("limit_of_a_method_holds", {"claim": claimed_beyond_limits}),
    ("limit_holds_for_concurrent_claims", {"claim": claimed_beyond_limits}),
    ("excluded_names_are_not_claimed", {"claim": claimed_again}),
    ("claim_without_owner_postpones", {"claim": claimed_by_nobody}),
    ("sent_names_count_for_limits", {"claim": sent_beyond_limits}),
    ("one_operation_is_claimed_by_name", {"claim": claimed_early}),
    ("sent_operation_is_claimed_before_it_is_due", {"claim": claimed_early}),
    ("earliest_due_is_claimed_first", {"claim": claimed_by_name}),
    ("concurrent_claims_keep_the_order", {"claim": claimed_last}),
    ("due_notifications_are_claimed", {"claim_due": due_to_all}),
    ("expiry_waits_for_notifications", {"expire": debts_kept_for_ever}),
    ("expiry_waits_for_notifications", {"expire": debts_removed}),
    ("records_are_found_by_name", {"find": visible_alone}),
    ("records_are_found_by_name", {"find": as_often_as_asked}),
    ("every_field_is_stored", {"request": forgotten}),
    ("check_only_insert_makes_every_check", {"insert": inserted_anyway}),
    ("pages_exclude_hidden_and_expired_records", {"page": all_there_are}),
    ("page_has_all_matching_records", {"page": covered_alone}),
    (
        "page_continues_after_a_cursor",  # the broken store only reads the first page
        {"page": lambda self, parent, after, *more: MemoryStore.page(self, parent, None, *more)},
    ),
    (
        "pages_are_bounded_in_bytes",
        {"page": lambda self, *given: MemoryStore.page(self, *given[:5])},
    ),
    (
        "found_records_are_bounded_in_bytes",
        {"find": lambda self, names, *_: MemoryStore.find(self, names)},
    ),
    ("concurrent_updates_are_serialised", {"update": change_of_before}),
]


@pytest.mark.parametrize(("promise", "methods"), BROKEN)
def test_broken_store_fails_its_contract_check(promise, methods):
    """The failure of a contract check names the promise that the store breaks."""
    (check,) = (check for check in testing.STORE_CHECKS if check.__name__ == promise)
    with pytest.raises(AssertionError, match=promise):
        testing.run_store_check(check, type("Broken", (MemoryStore,), methods))


def test_check_store_fails_for_one_broken_promise():
    with pytest.raises(AssertionError, match="every_field_is_stored: KeyError"):
        testing.check_store(type("Broken", (MemoryStore,), {"request": forgotten}))


class Silent(ThreadExecutor):
    """An executor that does not announce free workers."""

    def tell_freed(self):
        pass


class Endless(ThreadExecutor):
    """An executor that accepts any number of tasks."""

    def __init__(self, at_once):
        super().__init__(10_000)


@pytest.mark.parametrize(
    ("broken", "promise"), [(Silent, "is told of a free worker"), (Endless, "one more worker")]
)
def test_broken_executor_fails_its_contract_check(broken, promise, monkeypatch):
    """The failure of a contract check names the promise that the executor breaks."""
    monkeypatch.setattr("lro.testing._executors.PATIENCE", 0.5)
    with pytest.raises(AssertionError, match=promise):
        testing.check_executor(broken)


def test_thread_executor_has_5_to_32_workers_by_default():
    executor = ThreadExecutor()
    assert 5 <= executor.workers <= 32
    executor.stop()
    assert executor.join(1)


def test_manual_clock_starts_at_the_given_time():
    later = testing.START.replace(year=2040)
    clock = testing.ManualClock(later)
    assert clock.advance(1, hours=2) == later.replace(hour=2, second=1) == clock()


def test_memory_store_removes_only_old_request_keys():
    """A call of ``expire`` removes at most ``limit`` request keys that are a day old."""
    clock = testing.ManualClock()
    store = MemoryStore(clock)
    for number in range(4):
        insert(store, record_of(clock, str(number)), key_of(str(number)))
    assert not insert(store, record_of(clock, "x"), key_of("2")).fresh
    clock.advance(days=1)
    assert store.expire(3) == Expired((), {}, more=True)
    assert store.expire(3) == Expired((), {}, more=False)


@pytest.mark.parametrize(
    ("keeps", "method"), [(keeps_statistics, "read_load"), (keeps_outbox, "next_due")]
)
def test_store_without_all_methods_of_an_optional_part_lacks_the_part(keeps, method):
    half = type("Half", (MemoryStore,), {method: property()})
    assert keeps(MemoryStore())
    assert not keeps(half())
    testing.check_store(half)


def test_expire_removes_old_counts_in_parts(tmp_path):
    """One call of ``expire`` removes only some of the old counts, even if many have accumulated."""
    clock = testing.ManualClock()
    with closing(SQLiteStore(tmp_path / "operations.db", clock=clock)) as store:
        for _ in range(4):
            store.add_counts(clock(), {f"M{n}": {"a": 1} for n in range(300)})
            clock.advance(minutes=1)
        clock.advance(days=9)
        left = []
        for _ in range(4):
            store.add_counts(clock(), {})
            steps = (store.read_counts(testing.START, step_minutes=n) for n in (1, 5, 30))
            left.append(sum(map(len, steps)))
        assert left == [max(0, 300 * (4 + 1 + 1) - PRUNED_ROWS * turn) for turn in range(1, 5)]


@pytest.mark.parametrize("step", [0, 2, 60])
def test_counts_with_an_invalid_step_are_refused(step):
    """The error about an invalid step of counts names the argument and lists its valid values."""
    with pytest.raises(DeclarationError, match=r"step_minutes: must be one of \(1, 5, 30\)"):
        MemoryStore().read_counts(testing.START, step_minutes=step)
