"""The published contract checks, over every store and executor of ours; and over broken ones."""

from __future__ import annotations

import itertools

import pytest

from lro import testing
from lro._engine.store_port import READ_BYTES, SCAN
from lro._filters.prefilter import EVERYTHING, bounds_of
from lro.adapters import Expired, Found, Inserted, Page
from lro.errors import TargetBusy
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.services.postgres import shared_server, store_maker
from tests.stores.samples import insert, key_of, record_of

EXECUTORS = {"threads": ThreadExecutor, "asyncio": AsyncioExecutor}


def name_of(check):
    return check.__name__


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_store(request, tmp_path):
    """Makes an empty store by a clock."""
    numbers = itertools.count()
    if request.param == "memory":
        return MemoryStore
    if request.param == "postgres":
        pytest.importorskip("psycopg")
        return store_maker(shared_server())
    return lambda clock: SQLiteStore(tmp_path / f"{next(numbers)}.db", clock=clock)


@pytest.mark.parametrize("check", testing.STORE_CHECKS, ids=name_of)
def test_a_store_keeps_its_promise(check, make_store):
    """What the function's name says."""
    testing.run_store_check(check, make_store)


@pytest.mark.parametrize("check", testing.EXECUTOR_CHECKS, ids=name_of)
@pytest.mark.parametrize("kind", EXECUTORS)
def test_an_executor_keeps_its_promise(check, kind):
    """What the function's name says."""
    testing.run_executor_check(check, EXECUTORS[kind])


@pytest.mark.parametrize("check", testing.FOREGROUND_CHECKS, ids=name_of)
def test_the_inline_executor_keeps_its_promises(check):
    """Those that make sense where nothing ever waits."""
    testing.run_executor_check(check, lambda at_once, waiting: InlineExecutor())


def test_all_checks_at_once():
    """Without a test framework, as the owner of another store would run them."""
    testing.check_store(MemoryStore)
    testing.check_executor(lambda at_once, waiting: InlineExecutor(), background=False)


def test_every_check_says_its_promise():
    """By its name and a sentence, each only once."""
    for checks in (testing.STORE_CHECKS, testing.EXECUTOR_CHECKS):
        assert all(check.__doc__ for check in checks)
        assert len({check.__name__ for check in checks}) == len(checks)


class Forgetful(MemoryStore):
    """Loses the request."""

    def request(self, name):
        raise KeyError(name)


class Greedy(MemoryStore):
    """Lets any number work on one target."""

    def insert(self, record, request, key, *, check_only=False):
        try:
            return super().insert(record, request, key, check_only=check_only)
        except TargetBusy:
            return Inserted(record, fresh=True)


class Generous(MemoryStore):
    """Shows callers what they must not see any more."""

    def page(self, parent, after, limit, narrowing=EVERYTHING, scan=SCAN, most=READ_BYTES):
        return Page([r for r in self._records.values() if r.parent == parent][:limit], None)


class Hasty(MemoryStore):
    """Leaves out what the narrowing does not cover."""

    def page(self, parent, after, limit, narrowing=EVERYTHING, scan=SCAN, most=READ_BYTES):
        found = super().page(parent, after, limit, narrowing, scan, most)
        wanted = bounds_of(narrowing).keys.values()
        kept = [
            r for r in found.records if all(any(v in (r.keys or "") for v in w) for w in wanted)
        ]
        return Page(kept, found.reached)


class Stuck(MemoryStore):
    """Looks at the same records over and over."""

    def page(self, parent, after, limit, narrowing=EVERYTHING, scan=SCAN, most=READ_BYTES):
        found = super().page(parent, None, limit, narrowing, scan, most)
        return Page(found.records, found.reached)


class Careless(MemoryStore):
    """Reads and writes without any lock: an update in between is lost."""

    def update(self, name, change):
        changed = change(self.get(name))
        return super().update(name, lambda _: changed)


class Blind(MemoryStore):
    """Finds what callers can see, and nothing else."""

    def find(self, names, most=READ_BYTES):
        found = super().find(names, most)
        return Found([record for record in found.records if record.visible(self.now())], found.rest)


class Repetitive(MemoryStore):
    """Finds a record as often as it is asked for."""

    def find(self, names, most=READ_BYTES):
        return Found([record for name in names for record in super().find([name]).records])


class Endless(MemoryStore):
    """Has pages of any number of bytes."""

    def page(self, parent, after, limit, narrowing=EVERYTHING, scan=SCAN, most=READ_BYTES):
        return super().page(parent, after, limit, narrowing, scan)


class Boundless(MemoryStore):
    """Finds any number of bytes."""

    def find(self, names, most=READ_BYTES):
        return super().find(names)


class Lavish(MemoryStore):
    """Gives out what is due to all that ask."""

    def claim_due(self, until, limit):
        due = self._lists.due(self.now(), limit)
        return [record.next_version(notify_at=until) for record in due]


class Retentive(MemoryStore):
    """Keeps what owes something for ever."""

    def expire(self, limit):
        kept = [r for r in self._records.values() if r.notify_at is not None]
        self._lists.remove(kept)
        found = super().expire(limit)
        for record in kept:
            self._lists.add(record)
        return found


class Strict(MemoryStore):
    """Removes what has expired, whatever it owes."""

    def expire(self, limit):
        for record in [r for r in self._records.values() if r.expire_time]:
            if record.expire_time <= self.now():
                self._replace(record.next_version(notify_at=None))
        return super().expire(limit)


BROKEN = [
    (Lavish, "what_is_due_is_claimed"),
    (Retentive, "expiry_waits_for_debts"),
    (Strict, "expiry_waits_for_debts"),
    (Blind, "records_are_found_by_their_names"),
    (Repetitive, "records_are_found_by_their_names"),
    (Forgetful, "a_record_comes_back_as_it_went_in"),
    (Greedy, "a_check_makes_every_check"),
    (Generous, "pages_leave_out_what_callers_cannot_see"),
    (Hasty, "a_page_has_all_that_meets_a_narrowing"),
    (Stuck, "pages_go_on_after_a_place"),
    (Endless, "pages_are_bounded_in_bytes"),
    (Boundless, "what_is_found_is_bounded_in_bytes"),
    (Careless, "updates_are_serialised"),
]


@pytest.mark.parametrize(("broken", "promise"), BROKEN)
def test_a_broken_store_is_found(broken, promise):
    """The failure names the promise that was not kept."""
    (check,) = (check for check in testing.STORE_CHECKS if check.__name__ == promise)
    with pytest.raises(AssertionError, match=promise):
        testing.run_store_check(check, broken)


def test_one_broken_promise_fails_all_checks():
    """Those that come before it are kept."""
    with pytest.raises(AssertionError, match="a_record_comes_back_as_it_went_in: KeyError"):
        testing.check_store(Forgetful)


class Deaf(ThreadExecutor):
    """Cannot withdraw."""

    def withdraw(self, name):
        return False


class Endless(ThreadExecutor):
    """Takes any number of tasks."""

    def __init__(self, at_once, waiting):
        super().__init__(at_once, 10_000)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [(Deaf, "can be withdrawn"), (Endless, "a fourth task: wanted ResourceExhausted")],
)
def test_a_broken_executor_is_found(broken, promise):
    """The failure names the promise that was not kept."""
    with pytest.raises(AssertionError, match=promise):
        testing.check_executor(broken)


def test_the_default_number_of_threads():
    """As many as concurrent.futures takes."""
    executor = ThreadExecutor()
    assert 5 <= executor.workers <= 32
    executor.stop()
    assert executor.join(1)


def test_a_clock_starts_at_the_given_time():
    """And goes on by anything that a timedelta takes."""
    later = testing.START.replace(year=2040)
    clock = testing.ManualClock(later)
    assert clock.advance(1, hours=2) == later.replace(hour=2, second=1) == clock()


def test_memory_forgets_only_what_it_should():
    """Keys of other operations stay, and old ones go with their day."""
    clock = testing.ManualClock()
    store = MemoryStore(clock)
    for number in range(4):
        insert(store, record_of(clock, str(number)), key_of(str(number)))
    store.forget("operations/1")
    assert not insert(store, record_of(clock, "x"), key_of("2")).fresh
    assert insert(store, record_of(clock, "x"), key_of("1")).fresh
    clock.advance(days=1)
    assert store.expire(3) == Expired((), {}, more=True)
    assert store.expire(3) == Expired((), {}, more=False)
