"""Watches: what a stream sends, when it reads the store, and what it frees (spec §3.11)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lro import AnyMessage, State
from lro._engine.change_listener import LOOK_AGAIN_SECONDS
from lro._engine.watching import BATCH, GATHER_SECONDS
from lro.errors import Unavailable
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.wire import MissingOperation
from tests.engine.engine_parts import declared
from tests.service_fixtures import services
from tests.service_steps import abandon, listeners
from tests.virtual_loop import on_a_loop, run_virtual, virtually
from tests.waiting import PATIENCE, joined, until_async
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

URL = "type.googleapis.com/google.protobuf.Value"


def claimed(record):
    """Return a new version of the record that looks the same to callers."""
    return record.next_version(owner="us")


class Noting(MemoryStore):
    """A store that records the arguments of its finds, and fails while ``fault`` is set."""

    def __init__(self, clock):
        super().__init__(clock)
        self.finds = []
        self.fault = None

    def find(self, names, max_bytes):
        self.finds.append(list(names))
        if self.fault is not None:
            raise self.fault
        return super().find(names, max_bytes)


class Harness:
    """A service on a recording store, with a method whose operations the test reports and ends."""

    def __init__(self, make_service, clock, kind=Noting):
        self.store = kind(clock)
        self.service = make_service(self.store, InlineExecutor())
        self.method = declared(self.service)

    def start(self, count=1):
        return [self.method.start(WorkRequest()).name for _ in range(count)]

    @contextlib.asynccontextmanager
    async def watched(self, names, idle_seconds=60):
        """Watch these operations, and yield an iterator of batches."""
        stream = await self.service.watch(names)
        self.store.finds.clear()  # the first read comes before the stream begins
        async with contextlib.aclosing(stream.batches(idle_seconds)) as batches:
            yield batches

    def report(self, name, value):
        self.service.reporter(name).report(WorkMetadata(value))

    def end(self, name):
        self.service.reporter(name).complete(WorkResponse())

    @property
    def quiet(self):
        return (self.service.edges.waiters.watching, listeners(self.service)) == (0, 0)


@pytest.fixture
def harness(make_service, clock):
    """A harness that must have no watch or listener left after the test."""
    made = Harness(make_service, clock)
    yield made
    assert made.quiet


async def one(batches):
    """Return the only result of the next batch."""
    (found,) = await anext(batches)
    return found


def over(sighting):
    return isinstance(sighting, MissingOperation) or sighting.done


# -- reported states ------------------------------------------------------------------------------


@virtually
async def test_json_values_equal_in_python_are_different_states(harness):
    """The JSON values 1, 1.0 and true all differ, and strings differ from numbers and bytes."""
    (name,) = harness.start()

    async with harness.watched([name]) as batches:
        await anext(batches)
        for value in (1, True, 1.0, "1", b"1", {"a": [1]}, {"a": [True]}):
            metadata = AnyMessage(URL, value)
            assert harness.service.reporter(name).report(metadata)
            assert (await one(batches)).metadata == metadata


EVENTS = st.one_of(
    st.tuples(st.just("report"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.sampled_from(["claim", "end", "delete"]), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("read"), st.just(0), st.just(0)),
)


@settings(max_examples=40)
@given(st.lists(EVENTS, max_size=40))
def test_watch_reports_the_last_state_of_each_name(events):
    """The last result for a name is its last state. No result is repeated or follows an end."""
    with services(ManualClock()) as make_service:
        harness = Harness(make_service, ManualClock())
        names = harness.start(4)
        received = {name: [] for name in names}

        async def main():
            async with harness.watched(names) as batches:
                for kind, number, value in [*events, *[("read", 0, 0)] * 5]:
                    if kind == "read":
                        for sighting in await anext(batches, []):
                            received[sighting.name].append(sighting)
                    elif names[number] in harness.service.batch_get(names).missing:
                        pass
                    elif kind == "report":
                        harness.report(names[number], value)
                    elif kind == "claim":
                        harness.store.update(names[number], claimed)
                    elif kind == "end":
                        harness.end(names[number])
                    else:
                        harness.service.delete(names[number])

        run_virtual(main())
        last = {found.name: found for found in harness.service.batch_get(names).operations}
        for name, seen in received.items():
            known = last.get(name, MissingOperation(name))
            assert seen[-1] == known or (over(seen[-1]) and name not in last)
            assert all(a != b for a, b in itertools.pairwise(seen))
            assert not any(over(sighting) for sighting in seen[:-1])


# -- reads of the store ---------------------------------------------------------------------------


@virtually
async def test_changes_within_a_short_time_are_read_together(harness):
    """Changes within a short time are read together. Several changes of a name give one state."""
    names = harness.start(50)

    async with harness.watched(names) as batches:
        assert len(await anext(batches)) == 50
        harness.report(names[0], 0)
        assert await one(batches) == harness.service.get(names[0])
        harness.store.finds.clear()
        for value in range(20):
            harness.report(names[0], value + 1)
        for name in names[1:]:
            harness.end(name)
        assert len(await anext(batches)) == 50
        assert harness.store.finds == [names]


def test_a_lone_change_is_reported_at_once(harness):
    """A change is reported at once, or after a short delay if it follows another change."""
    (name,) = harness.start()

    async def main():
        loop = asyncio.get_running_loop()
        async with harness.watched([name]) as batches:
            await anext(batches)
            await asyncio.sleep(1)
            moments = [loop.time()]
            for value in range(3):
                harness.report(name, value)
                await anext(batches)
                moments.append(loop.time())
        return [after - before for before, after in itertools.pairwise(moments)]

    pauses = run_virtual(main())
    assert pauses == pytest.approx([0, GATHER_SECONDS, GATHER_SECONDS])


@virtually
async def test_slow_reader_gets_only_the_last_state(harness):
    """The store is not read again until the reader of a watch asks for the next batch."""
    names = harness.start(BATCH + 7)

    async with harness.watched(names) as batches:
        assert len(await anext(batches)) == BATCH
        for value in range(5):
            for name in names:
                harness.report(name, value)
            await asyncio.sleep(0.1)
        assert harness.store.finds == [names[:BATCH]]
        assert [len(await anext(batches)) for _ in range(3)] == [BATCH, 7, 0]


def test_quiet_stream_sends_heartbeats(harness):
    """A heartbeat is an empty batch, sent at intervals, even if the store is unavailable."""
    (name,) = harness.start()
    harness.report(name, 1)

    async def main():
        loop = asyncio.get_running_loop()
        moments = []
        async with harness.watched([name], 15) as batches:
            await anext(batches)
            for fault in (None, None, Unavailable("away")):
                harness.store.fault = fault
                harness.report(name, 1)
                assert await anext(batches) == []
                moments.append(loop.time())
        return moments

    assert run_virtual(main()) == pytest.approx([15, 30, 45], abs=1)


@virtually
async def test_watch_reads_missed_changes_after_an_outage(harness):
    """Changes that could not be read during an outage are read when the store is back."""
    (name,) = harness.start()

    loop = asyncio.get_running_loop()
    async with harness.watched([name]) as batches:
        await anext(batches)
        harness.store.fault = Unavailable("away")
        harness.end(name)
        loop.call_later(5, setattr, harness.store, "fault", None)
        assert (await one(batches)).done
        assert loop.time() == pytest.approx(5, abs=1)
        assert await anext(batches, "over") == "over"


@virtually
async def test_change_without_a_notification_is_found_by_the_next_read(harness, caplog):
    """Changes, ends and removals without a notification are found by the next regular read."""
    names = first, second, _ = harness.start(3)
    changes = (
        lambda record: record.next_version(metadata=AnyMessage(URL, 1)),
        lambda record: record.next_version(state=State.SUCCEEDED, result=AnyMessage(URL, 1)),
    )

    loop = asyncio.get_running_loop()
    async with harness.watched(names) as batches, harness.watched(names) as other:
        await anext(batches)
        await anext(other)
        assert (harness.service.edges.waiters.watching, listeners(harness.service)) == (
            2,
            3,
        )  # one listener per name
        for change in changes:
            harness.store.update(first, change)
            began = loop.time()
            for stream in (batches, other):
                assert (await one(stream)).name == first
            assert loop.time() - began <= LOOK_AGAIN_SECONDS + 1
        harness.store.update(second, lambda _: None)
        for fault in (Unavailable("away"), ZeroDivisionError()):
            harness.store.fault = fault
            await asyncio.sleep(2 * LOOK_AGAIN_SECONDS)
        harness.store.fault = None
        assert await one(batches) == MissingOperation(second)
        assert "looking at what is watched failed" in caplog.text


@virtually
async def test_unnamed_changes_are_read_soon(harness):
    """An unnamed change is read before the next regular read, but slow reads are spaced out."""
    (name,) = harness.start()
    updater, looks = harness.service.edges.runtime.updater, []

    loop = asyncio.get_running_loop()

    async def slow(call):
        looks.append(loop.time())
        await asyncio.sleep(0.5)
        return call()

    async with harness.watched([name]) as batches:
        await anext(batches)
        harness.store.update(name, lambda record: record.next_version(metadata=AnyMessage(URL, 1)))
        updater.unnamed_changes += 1
        began = loop.time()
        await anext(batches)
        assert loop.time() - began <= 0.5
        harness.service.edges.waiters._hub.read = slow
        for _ in range(100):
            updater.unnamed_changes += 1
            await asyncio.sleep(0.25)
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert pauses
    assert min(pauses) >= 10  # a read takes a twentieth of this


@virtually
async def test_store_call_gets_at_most_a_thousand_names(harness):
    """No call of the store gets more than a thousand names."""
    names = harness.start(1500)

    async with harness.watched(names[:1000]) as some, harness.watched(names[500:]) as others:
        for stream in (some, others):
            for _ in range(10):
                await anext(stream)
        harness.store.finds.clear()
        await asyncio.sleep(LOOK_AGAIN_SECONDS + 1)
        assert [len(found) for found in harness.store.finds] == [1000, 500]


# -- ends -------------------------------------------------------------------------------------


@virtually
async def test_abandoned_stream_leaves_no_listener(harness):
    async def follow():
        async for _ in await harness.service.watch(harness.start()):
            pass

    task = asyncio.create_task(follow())
    await asyncio.sleep(1)
    assert harness.service.edges.waiters.watching == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.quiet


def test_notifications_from_other_threads_reach_all_loops(harness):
    """After a third thread ends an operation, the watches and waits of two loops get its end."""
    (name,) = harness.start()
    watching, found = threading.Barrier(3), []

    async def main():
        async with harness.watched([name], PATIENCE) as batches:
            await anext(batches)
            waiting = asyncio.create_task(harness.service.wait_async(name, PATIENCE))
            await until_async(lambda: harness.service.edges.waiters.waiting == 2)
            await asyncio.to_thread(watching.wait, PATIENCE)
            found.extend([await one(batches), await waiting])

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    for thread in threads:
        thread.start()
    watching.wait(PATIENCE)
    harness.end(name)
    for thread in threads:
        joined(thread)
    assert [operation.done for operation in found] == [True] * 4
    assert harness.service.edges.waiters.waiting == 0


def test_notification_for_a_closed_loop_is_ignored(harness):
    """A notification for a closed loop, which still has a stream and a wait, is ignored."""
    (name,) = harness.start()
    loop = asyncio.new_event_loop()
    batches = loop.run_until_complete(harness.service.watch([name])).batches(60)
    loop.run_until_complete(anext(batches))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    waiting = loop.create_task(harness.service.wait_async(name))
    loop.run_until_complete(asyncio.sleep(0))
    assert harness.service.edges.waiters.waiting == 1
    loop.close()
    harness.report(name, 1)
    harness.end(name)
    abandon(waiting)
    waiting.get_coro().close()
    with pytest.raises(StopIteration):
        batches.aclose().__await__().send(None)


@on_a_loop
async def test_store_that_blocks_is_read_in_threads(make_service, clock):
    """A blocking store is read in threads, so that the loop is not blocked."""
    readers = set()

    class Slow(Noting):
        writes_block = True

        def find(self, names, max_bytes):
            readers.add(threading.current_thread())
            return super().find(names, max_bytes)

    harness = Harness(make_service, clock, Slow)
    (name,) = harness.start()

    async for sighting in await harness.service.watch([name]):
        if not sighting.done:
            harness.end(name)
    assert readers
    assert threading.current_thread() not in readers
