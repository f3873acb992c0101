"""The change listener: what reaches a process, and what it asks the store meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from lro import Code, Job
from lro._engine.change_listener import LINGER_SECONDS, LOOK_AGAIN_SECONDS, ChangeListener
from lro._engine.runtime import RecordUpdater
from lro._model.operation import request_cancel
from lro.adapters import StateSummary
from lro.errors import OperationNotFound, Unavailable
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.engine.engine_parts import FakeWorkers
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"


class Shared(MemoryStore):
    """A store that others might write to; subscriptions give the changes that the test puts in."""

    shared = True

    def __init__(self):
        super().__init__()
        self.said = []
        self.looks = []
        self.over = set()
        self.asked = set()
        self.subscriptions = []
        self.refusal = None

    def listen(self):
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self.subscriptions.append(Subscription(self))
        return self.subscriptions[-1]

    def poll_states(self, names):
        self.looks.append(set(names))
        return StateSummary(frozenset(self.over & set(names)), frozenset(self.asked & set(names)))


class Subscription:
    """Gives what the test has put in, and then what ends the test's patience."""

    def __init__(self, store):
        self.store = store
        self.closed = False
        self.waits = []

    def next_changes(self, seconds):
        self.waits.append(seconds)
        said = self.store.said.pop(0) if self.store.said else ()
        return said() if callable(said) else said

    def close(self):
        self.closed = True


class Harness:
    """A listener on a clock that the test moves, and all that it has done."""

    def __init__(self):
        self.now = 0.0
        self.store = Shared()
        self.updater = RecordUpdater(self.store)
        self.notifier = self.updater.notifier
        self.notified = []
        self.workers = FakeWorkers()
        self.change_listener = self.listener()
        for name in "ab":
            self.notifier.listen(name, lambda _, name=name: self.notified.append(name))

    def listener(self, kind=ChangeListener):
        made = kind(self.updater, self.workers)
        made._clock = lambda: self.now
        return made


@pytest.fixture
def harness():
    return Harness()


def test_named_changes_notify_listeners_without_a_look(harness):
    """Without any look at the store, where it is not about work of this process."""
    subscription = harness.store.listen()
    harness.change_listener._look()
    harness.store.said = [("a", "x"), ("b",), ()]
    for _ in range(3):
        harness.change_listener.receive(subscription)
    assert harness.notified == ["a", "b"]
    assert harness.store.looks == [{"a", "b"}]  # the sweep's
    assert subscription.waits == [LOOK_AGAIN_SECONDS] * 3


def test_watchers_are_notified_too(harness):
    """By name where one is given; of ends by looks; and that more may have changed."""
    updater, seen = harness.updater, []
    for name in "wx":
        updater.notifier.listen(name, lambda _, name=name: seen.append(name))
    harness.store.over = {"w"}
    subscription = harness.store.listen()
    harness.change_listener._look()
    assert harness.store.looks == [{"a", "b", "w", "x"}]
    assert (seen, updater.unnamed_changes) == (["w"], 0)
    harness.store.said = [("x",), None]
    harness.change_listener.receive(subscription)
    assert (seen, updater.unnamed_changes) == (["w", "x"], 0)
    harness.change_listener.receive(subscription)
    assert (seen, updater.unnamed_changes) == (["w", "x", "w"], 1)
    for name in "ab":
        harness.notifier._listeners.pop(name)
    assert harness.change_listener._needed


def test_an_announcement_about_work_in_hand_may_be_a_cancellation(harness):
    """One read of those shows it; and only those that are held are cancelled."""
    subscription = harness.store.listen()
    harness.change_listener._look()
    harness.workers.names, harness.store.asked = {"h", "i"}, {"h", "x"}
    harness.store.said = [("h", "i", "x", "a")]
    harness.change_listener.receive(subscription)
    assert harness.store.looks[-1] == {"h", "i"}
    assert (harness.workers.cancelled, harness.notified) == (["h"], ["a"])


@pytest.mark.parametrize("how", ["anything", "time"])
def test_a_look_at_everything(harness, how):
    """When anything may have changed, and every few seconds, in case an announcement was lost."""
    subscription = harness.store.listen()
    harness.workers.names, harness.store.over, harness.store.asked = {"h"}, {"a"}, {"h", "b"}
    harness.change_listener._look_at = LOOK_AGAIN_SECONDS
    if how == "anything":
        harness.store.said = [None]
    else:
        harness.now = LOOK_AGAIN_SECONDS
    harness.change_listener.receive(subscription)
    assert harness.store.looks == [{"a", "b", "h"}]
    assert (harness.notified, harness.workers.cancelled) == (["a"], ["h"])


def test_nothing_to_look_for(harness):
    """No look then."""
    for name in "ab":
        harness.notifier._listeners.pop(name)
    harness.change_listener._look()
    assert harness.store.looks == []


def test_process_on_its_own_does_not_listen():
    """No thread, no subscription."""
    listener = ChangeListener(RecordUpdater(MemoryStore()), FakeWorkers())
    listener.ensure_running()
    assert listener._thread is None
    listener.stop()


def test_subscription_is_closed_when_it_is_not_needed(harness):
    """After a while; and opened again with the next need."""
    quiet = threading.Event()

    def past():
        harness.now += LINGER_SECONDS
        for name in "ab":
            harness.notifier._listeners.pop(name, None)
        return ()

    whole = harness.store.listen

    def listen():
        subscription = whole()
        subscription.close = lambda: (setattr(subscription, "closed", True), quiet.set())
        return subscription

    harness.store.listen = listen
    for number in (1, 2):
        harness.store.said = [past]
        harness.notifier.listen("a", print)
        harness.change_listener.ensure_running()
        harness.change_listener.ensure_running()
        assert quiet.wait(PATIENCE)
        quiet.clear()
        assert len(harness.store.subscriptions) == number
    harness.change_listener.stop()


def test_need_that_comes_at_the_last_moment(harness):
    """Just when the subscription is about to be closed: it stays open."""
    asked_last = threading.Event()
    needs = iter([True, False, True, True])

    class Moment(ChangeListener):
        @property
        def _needed(self):
            if (need := next(needs, None)) is None:
                asked_last.set()
                return True
            return need

    def past():
        harness.now += LINGER_SECONDS
        return ()

    harness.store.said = [past]
    listener = harness.listener(Moment)
    listener.ensure_running()
    assert asked_last.wait(PATIENCE)
    listener.stop()
    assert len(harness.store.subscriptions) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("away"), "are not received now"),
        (ZeroDivisionError(), "receiving changes by other processes"),
    ],
)
def test_the_thread_outlives_errors(harness, error, said, caplog, monkeypatch):
    """It logs them, and subscribes again a moment later."""
    opened = threading.Event()
    pauses = []
    harness.store.refusal = error
    harness.store.said = [lambda: opened.set() or ()]
    monkeypatch.setattr(harness.change_listener._stopping, "wait", pauses.append)
    with caplog.at_level(logging.INFO, "lro"):
        harness.change_listener.ensure_running()
        assert opened.wait(PATIENCE)
        harness.change_listener.stop()
    assert said in caplog.text
    assert pauses[0] == 1.0


def test_a_stop_ends_the_thread(harness, caplog):
    """While it listens, with or without an error of the closed subscription; twice is once."""
    begun, closed = threading.Event(), threading.Event()

    def hear():
        begun.set()
        assert closed.wait(PATIENCE)
        raise Unavailable("closed")

    harness.store.said = [hear]
    harness.change_listener.ensure_running()
    assert begun.wait(PATIENCE)
    harness.store.subscriptions[0].close = closed.set
    with caplog.at_level(logging.WARNING, "lro"):
        harness.change_listener.stop()
        harness.change_listener.stop()
    assert not harness.change_listener._thread.is_alive()
    assert caplog.text == ""
    harness.change_listener.ensure_running()
    assert not harness.change_listener._thread.is_alive()


def test_the_thread_may_stop_itself(harness):
    """A cancelled function may close the service."""
    stopped = threading.Event()
    harness.workers.names = harness.store.asked = {"h"}
    harness.workers.cancel_held = lambda name: (harness.change_listener.stop(), stopped.set())
    harness.change_listener.ensure_running()
    assert stopped.wait(PATIENCE)
    harness.change_listener._thread.join(PATIENCE)
    assert not harness.change_listener._thread.is_alive()


# -- two services on one file ---------------------------------------------------------------------


@pytest.fixture
def both(tmp_path, make_service):
    """Two services on one file, as two processes would have them."""
    return [make_service(SQLiteStore(tmp_path / "a.db"), ThreadExecutor(2)) for _ in range(2)]


def declared(service):
    return service.declare(NAME, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata)


@pytest.mark.parametrize("ending", ["complete", "delete"])
@pytest.mark.parametrize("colour", ["thread", "coroutine"])
def test_a_waiter_hears_of_another_process(both, ending, colour):
    """Of the end, and of the deletion."""
    one, two = both
    name = declared(one).start(WorkRequest()).name
    declared(two)

    def act():
        one.reporter(name).complete(WorkResponse("x")) if ending == "complete" else one.delete(name)

    async def main():
        waiter = asyncio.create_task(two.wait_async(name, PATIENCE))
        while not two.waiting:
            await asyncio.sleep(0)
        await asyncio.to_thread(act)
        return await waiter

    def wait():
        actor = threading.Timer(0, act)
        actor.start()
        try:
            return two.wait(name, PATIENCE)
        finally:
            actor.join()

    try:
        found = asyncio.run(main()) if colour == "coroutine" else wait()
    except OperationNotFound:
        assert ending == "delete"
    else:
        assert (found.done, ending) == (True, "complete")


def test_a_cancellation_reaches_the_process_that_works(both):
    """Without waiting for the renewal of its lease."""
    one, two = both
    begun = threading.Event()

    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.set()
        job.sleep(PATIENCE)
        raise AssertionError

    name = one.method(NAME)(work).start(WorkRequest()).name
    assert begun.wait(PATIENCE)
    two.method(NAME)(work)
    two.cancel(name)
    assert one.wait(name, PATIENCE).error.code == Code.CANCELLED


def test_unclaimed_work_is_cancelled_at_once(both):
    """Work that was handed back waits for a worker, and a cancellation need not."""
    one, two = both
    begun = threading.Event()

    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.set()
        job.sleep(PATIENCE)
        raise AssertionError

    name = one.method(NAME)(work).start(WorkRequest()).name
    assert begun.wait(PATIENCE)
    one.close(0)
    two.method(NAME)(work)
    two.cancel(name)
    assert two.get(name).error.code == Code.CANCELLED


def test_cancellation_of_work_claimed_meanwhile_leaves_it_to_its_worker(both):
    """The claim wins, and its worker learns of the request."""
    one, _ = both
    method = declared(one)
    name = method.start(WorkRequest()).name
    one.store.update(name, request_cancel(one.store.now()))
    one.workers._end_unclaimed(name, method.spec)
    assert not one.get(name).done


def test_close_ends_all_waits(both):
    """Of both colours, with the truth."""
    one, _ = both
    name = declared(one).start(WorkRequest()).name
    found = []

    def wait():
        try:
            one.wait(name, PATIENCE)
        except Unavailable as exc:
            found.append(str(exc))

    async def main():
        waiter = asyncio.create_task(one.wait_async(name, PATIENCE))
        thread = threading.Thread(target=wait)
        thread.start()
        while one.waiting < 1 or len(one._runtime.updater.notifier) < 2:
            await asyncio.sleep(0)
        await asyncio.to_thread(one.close, 0)
        await asyncio.to_thread(thread.join)
        with pytest.raises(Unavailable, match="the service is stopping"):
            await waiter

    asyncio.run(main())
    assert found == ["the service is stopping"]


def test_the_store_gets_each_announcement(make_service):
    """Every change is announced once it is stored, and the name is all that is said."""
    store = Shared()
    announced = []
    store.notify_others = announced.append
    service = make_service(store)
    name = declared(service).start(WorkRequest(), metadata=WorkMetadata(1)).name
    service.reporter(name).report(WorkMetadata(2))
    service.cancel(name)
    service.reporter(name).complete(WorkResponse())
    service.delete(name)
    assert announced == [name] * 4
