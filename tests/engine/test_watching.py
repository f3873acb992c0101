"""Watches: what streams send, when it is read, and what is freed (spec §3.11)."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import Any, MissingOperation, State
from lro._engine.access import VisibleRecords
from lro._engine.change_listener import LOOK_AGAIN_SECONDS
from lro._engine.limits import ByteBudget
from lro._engine.runtime import RecordUpdater
from lro._engine.watching import BATCH, GATHER_SECONDS, WatchHub, WatchList
from lro._model.operation import delete, report
from lro.errors import Unavailable
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.testing._samples import end_of, held, insert, record_of
from tests.virtual_loop import run_virtual
from tests.waiting import PATIENCE

URL = "type.googleapis.com/google.protobuf.Value"


# -- what is reported -------------------------------------------------------------------------


def progress(value):
    return Any(URL, value)


def reported(watched, *records):
    """What a list reports of all that it takes, given these records."""
    return watched.read(watched.take(99), {record.name: record for record in records})


def test_a_snapshot_comes_first():
    """Of each name, once; what is done or missing is over with it."""
    clock = ManualClock()
    running, done = record_of(clock, "a"), record_of(clock, "b", state=State.SUCCEEDED)
    watched = WatchList([running.name, done.name, "operations/c", done.name])
    assert watched.take(2) == [running.name, done.name]
    assert watched.take(2) == ["operations/c"]
    assert watched.take(2) == []
    for name in (running.name, done.name, "operations/c"):
        watched.changed(name)
    missing = MissingOperation("operations/c")
    assert reported(watched, running, done) == [running.operation, done.operation, missing]
    assert list(watched.left) == [running.name]
    assert not watched.over
    watched.changed(done.name)  # neither is ever reported again
    watched.changed("operations/never")
    assert watched.take(9) == []


def test_an_equal_state_is_not_repeated():
    """A claim, or the wish to cancel, makes another version that looks the same to callers."""
    clock = ManualClock()
    record = record_of(clock, metadata=progress(1))
    watched = WatchList([record.name])
    assert reported(watched, record) == [record.operation]
    for _ in range(2):  # the version is known, and not read further
        watched.changed(record.name)
        assert reported(watched, record) == []
    claimed = record.next_version(owner="us")
    watched.changed(record.name)
    assert reported(watched, claimed) == []
    assert not watched.differs(record.name, claimed.edition)


def test_values_that_python_holds_equal_are_different_states():
    """1, 1.0 and true are three values in JSON; text is no number; bytes are no text."""
    clock = ManualClock()
    record = record_of(clock)
    watched = WatchList([record.name])
    reported(watched, record)
    for value in (1, True, 1.0, "1", b"1", {"a": [1]}, {"a": [True]}, "\ud800"):
        record = record.next_version(metadata=progress(value))
        watched.changed(record.name)
        assert reported(watched, record) == [record.operation]


def test_what_differs_is_older_than_the_store():
    """Not what was never taken, is to be read anyway, or is over."""
    clock = ManualClock()
    record, other = record_of(clock), record_of(clock, "b")
    now = record.update_time
    watched = WatchList([record.name, other.name])
    assert not watched.differs(record.name, (7, now))  # due from the start
    watched.take(9)
    assert watched.differs(other.name, (1, now))  # being read, perhaps too early
    watched.read([record.name], {record.name: record})
    assert not watched.differs(record.name, (1, now))
    assert watched.differs(record.name, (2, now))
    assert watched.differs(record.name, (1, now + timedelta(microseconds=1)))  # of another past
    assert watched.differs(record.name, None)
    watched.changed(record.name)
    assert not watched.differs(record.name, (2, now))
    assert not watched.differs("operations/x", (2, now))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 3), st.integers(0, 2)),
            st.tuples(st.just("claim"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 2)),
            st.tuples(st.just("remove"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("read"), st.integers(1, 4), st.just(0)),
        ),
        max_size=40,
    )
)
def test_whatever_happens_the_last_state_is_reported(events):
    """Each name ends with its last state, nothing is repeated, nothing follows an end."""
    clock = ManualClock()
    names = [f"operations/{n}" for n in range(4)]
    store = {name: record_of(clock, name[-1]) for name in names}
    watched, received = WatchList(names), {name: [] for name in names}

    def read(limit):
        for one in watched.read(watched.take(limit), store):
            received[one.name].append(one)

    for kind, number, value in events:
        name = names[number % 4]
        if kind == "read":
            read(number)
            continue
        record = store.get(name)
        if record is None or (record.done and kind != "remove"):
            continue
        if kind == "set":
            store[name] = record.next_version(metadata=progress(value))
        elif kind == "claim":
            store[name] = record.next_version(owner="us")
        elif kind == "end":
            store[name] = record.next_version(state=State.SUCCEEDED, result=progress(value))
        else:
            del store[name]
        watched.changed(name)
    while watched._due:
        read(3)
    for name, sightings in received.items():
        last = store[name].operation if name in store else MissingOperation(name)
        over = isinstance(sightings[-1], MissingOperation) or sightings[-1].done
        assert sightings[-1] == last or (over and name not in store)
        assert over == (name not in watched.left)
        assert all(a != b for a, b in itertools.pairwise(sightings))
        assert not any(isinstance(one, MissingOperation) or one.done for one in sightings[:-1])


# -- when it is read --------------------------------------------------------------------------


class Harness:
    """WatchHub over a store in memory whose finds are counted, and may fail."""

    def __init__(self, store=None):
        self.clock = ManualClock()
        self.store = store or MemoryStore(self.clock)
        self.updater = RecordUpdater(self)
        self.needed = 0
        self.finds = []
        self.fault = None
        self.replies = ByteBudget(10_000_000)
        self.hub = WatchHub(self.updater, self, self.replies, 1_000_000)

    def ensure_running(self):
        self.needed += 1

    def __getattr__(self, name):
        return getattr(self.store, name)

    def find(self, names, most):
        self.finds.append(list(names))
        if self.fault is not None:
            raise self.fault
        return self.store.find(names, most)

    def see(self, names, most):
        now = self.store.now()
        found = self.find(names, most)
        return VisibleRecords(
            {one.name: one for one in found.records if one.visible(now)}, found.rest
        )

    def close(self):
        self.hub.closed = True
        self.updater.notifier.notify_all()

    def start(self, count=1):
        return [insert(self.store, held(self.clock, f"n{n}")).record.name for n in range(count)]

    def watch(self, names):
        return self.hub.watch(names, self.see)

    def end(self, name):
        self.updater.apply(name, end_of(self.clock))

    def report(self, name, value):
        self.updater.apply(name, report(progress(value), 0, self.clock()))

    @property
    def quiet(self):
        return len(self.updater.notifier) == 0 and self.hub.watching == 0


async def one(batches):
    """The only sighting of the next batch."""
    (found,) = await anext(batches)
    return found


def test_a_watch_from_first_to_last():
    """Snapshot, progress, end of each; then the stream ends, and nothing is held."""
    harness = Harness()
    first, second = harness.start(2)

    async def main():
        seen = []
        async for sighting in harness.watch([first, second, "operations/none"]):
            seen.append(sighting)
            if len(seen) == 3:
                assert harness.hub.watching == 1
                harness.report(first, 1)
            if len(seen) == 4:
                harness.end(first)
            if len(seen) == 5:
                harness.updater.apply(second, delete(harness.clock()))
        return seen

    seen = run_virtual(main())
    assert [one.name for one in seen] == [
        first,
        second,
        "operations/none",
        first,
        first,
        second,
    ]
    assert [isinstance(one, MissingOperation) or one.done for one in seen] == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]
    assert harness.quiet
    assert harness.needed == 1


def test_changes_are_gathered():
    """Those of a short time are read together; those of one name are one state."""
    harness = Harness()
    names = harness.start(50)

    async def main():
        batches = harness.watch(names).batches(60)
        assert len(await anext(batches)) == 50
        harness.report(names[0], 0)
        assert await one(batches) == harness.store.get(names[0]).operation
        harness.finds.clear()
        for value in range(20):
            harness.report(names[0], value + 1)
        for name in names[1:]:
            harness.end(name)
        found = await anext(batches)
        assert len(found) == 50
        assert harness.finds == [names]
        await batches.aclose()

    run_virtual(main())
    assert harness.quiet


def test_a_lone_change_is_reported_at_once():
    """Only what follows soon after another one is held back, and only for so long."""
    harness = Harness()
    (name,) = harness.start()

    async def main():
        loop = asyncio.get_running_loop()
        batches = harness.watch([name]).batches(60)
        await anext(batches)
        await asyncio.sleep(1)
        moments = [loop.time()]
        for value in range(3):
            harness.report(name, value)
            await anext(batches)
            moments.append(loop.time())
        await batches.aclose()
        return [after - before for before, after in itertools.pairwise(moments)]

    pauses = run_virtual(main())
    assert pauses == pytest.approx([0, GATHER_SECONDS, GATHER_SECONDS])


def test_a_slow_reader_costs_nothing():
    """Nothing is read for who does not take it; then it gets the last state only."""
    harness = Harness()
    names = harness.start(BATCH + 7)

    async def main():
        batches = harness.watch(names).batches(60)
        assert len(await anext(batches)) == BATCH
        for value in range(5):
            for name in names:
                harness.report(name, value)
            await asyncio.sleep(0.1)
        assert harness.finds == [names[:BATCH]]
        assert len(await anext(batches)) == BATCH
        assert len(await anext(batches)) == 7
        assert await anext(batches) == []
        await batches.aclose()

    run_virtual(main())


def test_a_quiet_stream_says_so():
    """An empty list, every so many seconds after the last report, the store away or not."""
    harness = Harness()
    (name,) = harness.start()

    async def main():
        loop = asyncio.get_running_loop()
        batches = harness.watch([name]).batches(15)
        await anext(batches)
        moments = []
        for fault in (None, None, Unavailable("away")):
            harness.fault = fault
            harness.updater.notifier.notify(name)  # of a change that callers cannot see
            assert await anext(batches) == []
            moments.append(loop.time())
        await batches.aclose()
        return moments

    assert run_virtual(main()) == pytest.approx([15, 30, 45], abs=1)


def test_a_store_that_was_away():
    """What was to be read then is read when it is back."""
    harness = Harness()
    (name,) = harness.start()

    async def main():
        batches = harness.watch([name]).batches(60)
        await anext(batches)
        harness.fault = Unavailable("away")
        harness.end(name)
        asyncio.get_running_loop().call_later(5, setattr, harness, "fault", None)
        found = await one(batches)
        assert found.done
        assert asyncio.get_running_loop().time() == pytest.approx(5, abs=1)
        with pytest.raises(StopAsyncIteration):
            await anext(batches)

    run_virtual(main())
    assert harness.quiet


def test_lost_notification_is_made_good(caplog):
    """Changes, ends and removals without a notification are seen within seconds of a look."""
    harness = Harness()
    first, second, third = harness.start(3)

    async def main():
        loop = asyncio.get_running_loop()
        batches, other = (harness.watch([first, second, third]).batches(60) for _ in range(2))
        await anext(batches)
        await anext(other)
        for change in (report(progress(1), 0, harness.clock()), end_of(harness.clock)):
            harness.store.update(first, change)
            began = loop.time()
            for stream in (batches, other):
                assert (await one(stream)).name == first
            assert loop.time() - began <= LOOK_AGAIN_SECONDS + 1
        harness.store.update(second, lambda record: None)
        for fault in (Unavailable("away"), ZeroDivisionError()):
            harness.fault = fault
            await asyncio.sleep(2 * LOOK_AGAIN_SECONDS)
        harness.fault = None
        assert await one(batches) == MissingOperation(second)
        assert "looking at what is watched failed" in caplog.text
        await batches.aclose()
        await other.aclose()

    run_virtual(main())
    assert harness.quiet


def test_what_others_have_stirred_is_looked_at_soon():
    """Much sooner than every look; and not over and over, where looking takes long."""
    harness = Harness()
    (name,) = harness.start()

    async def main():
        loop = asyncio.get_running_loop()
        batches = harness.watch([name]).batches(60)
        await anext(batches)
        harness.store.update(name, report(progress(1), 0, harness.clock()))
        harness.updater.unnamed_changes += 1
        began = loop.time()
        await anext(batches)
        assert loop.time() - began <= 0.5
        await batches.aclose()

    run_virtual(main())


def test_a_look_is_followed_by_a_rest():
    """Twenty times its length, however much the others write."""
    harness = Harness()
    (name,) = harness.start()
    looks = []

    async def main():
        loop = asyncio.get_running_loop()

        async def slow(call):
            looks.append(loop.time())
            await asyncio.sleep(0.5)
            return call()

        batches = harness.watch([name]).batches(60)
        await anext(batches)
        harness.hub.read = slow
        for _ in range(100):
            harness.updater.unnamed_changes += 1
            await asyncio.sleep(0.25)
        await batches.aclose()

    run_virtual(main())
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert pauses
    assert min(pauses) >= 10


def test_many_names_are_looked_at_in_pieces():
    """No call of the store has more than a thousand."""
    harness = Harness()
    names = harness.start(1500)

    async def main():
        streams = [harness.watch(some).batches(60) for some in (names[:1000], names[500:])]
        for stream in streams:
            for _ in range(10):
                await anext(stream)
        harness.finds.clear()
        await asyncio.sleep(LOOK_AGAIN_SECONDS + 1)
        assert [len(some) for some in harness.finds] == [1000, 500]
        for stream in streams:
            await stream.aclose()

    run_virtual(main())
    assert harness.quiet


# -- ends -------------------------------------------------------------------------------------


def test_the_service_closes():
    """Every stream ends soon, with an error for those in this process."""
    harness = Harness()
    (name,) = harness.start()

    async def main():
        batches, single = harness.watch([name]).batches(60), aiter(harness.watch([name]))
        await anext(batches)
        await anext(single)
        asyncio.get_running_loop().call_later(1, harness.close)
        for stream in (batches, single):
            with pytest.raises(Unavailable, match="stopping"):
                await anext(stream)
        assert asyncio.get_running_loop().time() < 2

    run_virtual(main())
    assert harness.quiet


def test_stream_that_ends_early_leaves_no_listener():
    """Also while it waits, and beside others that watch the same."""
    harness = Harness()
    first, second = harness.start(2)

    async def main():
        staying = harness.watch([first, second]).batches(60)
        await anext(staying)

        async def leave():
            async for _ in harness.watch([second, first]):
                pass

        task = asyncio.create_task(leave())
        await asyncio.sleep(1)
        assert harness.hub.watching == 2
        assert len(harness.updater.notifier) == 2  # one listener a name
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert harness.hub.watching == 1
        harness.end(first)
        harness.end(second)
        assert len(await anext(staying)) == 2
        await staying.aclose()

    run_virtual(main())
    assert harness.quiet


def test_notifications_from_other_threads_reach_all_loops():
    """Two loops watch one name; a third thread ends it."""
    harness = Harness()
    (name,) = harness.start()
    watching = threading.Barrier(3)

    async def main():
        batches = harness.watch([name]).batches(PATIENCE)
        await anext(batches)
        await asyncio.to_thread(watching.wait, PATIENCE)
        return await one(batches)

    found = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(main()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    watching.wait(PATIENCE)
    harness.end(name)
    for thread in threads:
        thread.join(PATIENCE)
    assert [operation.done for operation in found] == [True, True]


def test_a_loop_that_is_closed():
    """A notification for a stream that was on it is not an error."""
    harness = Harness()
    (name,) = harness.start()
    loop = asyncio.new_event_loop()
    batches = harness.watch([name]).batches(60)
    loop.run_until_complete(anext(batches))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    harness.updater.notifier.notify(name)
    harness.updater.notifier.notify(name)
    with pytest.raises(StopIteration):
        batches.aclose().__await__().send(None)
    assert len(harness.updater.notifier) == 0


def test_a_blocking_store_is_read_in_threads():
    """Neither reading nor looking again blocks the loop."""
    here = threading.current_thread()
    readers = set()

    class Slow(MemoryStore):
        writes_block = True

        def find(self, names, most):
            readers.add(threading.current_thread())
            return super().find(names, most)

    harness = Harness(Slow())
    (name,) = harness.start()

    async def main():
        async for sighting in harness.watch([name]):
            if not sighting.done:
                await harness.hub.here()._look()
                harness.end(name)

    asyncio.run(main())
    assert readers
    assert here not in readers


# -- values -----------------------------------------------------------------------------------


def test_values():
    """A sighting of what is missing is a value."""
    assert MissingOperation("operations/a") == MissingOperation("operations/a")
    assert attrs.asdict(MissingOperation("operations/a")) == {"name": "operations/a"}
