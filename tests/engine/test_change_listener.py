"""The change listener: the notifications that it receives, and its store reads between them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time

import pytest

from lro._engine import change_listener
from lro.adapters import WORK_WAITS
from lro.errors import Unavailable
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.engine.engine_parts import declared, raising
from tests.service_steps import Step, ended, listeners, work
from tests.waiting import PATIENCE, joined, threads_from_now, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


class Shared(MemoryStore):
    """A store shared with other processes. The test decides which notifications arrive."""

    shared = True

    def __init__(self):
        super().__init__()
        self.said = queue.SimpleQueue()
        self.looks = []
        self.subscriptions = []
        self.refusals = []

    def listen(self):
        self.refused_at = time.monotonic()
        if self.refusals:
            raise self.refusals.pop()
        self.subscriptions.append(Subscription(self.said))
        return self.subscriptions[-1]

    def poll_states(self, names):
        self.looks.append(set(names))
        return super().poll_states(names)


class Subscription:
    """A subscription that returns the changes queued by the test, or none after the timeout."""

    def __init__(self, said):
        self.said = said
        self.closed = threading.Event()
        self.waits = []

    def next_changes(self, seconds):
        self.waits.append(seconds)
        try:
            said = self.said.get(timeout=seconds)
        except queue.Empty:
            return ()
        return said() if callable(said) else said

    def close(self):
        self.closed.set()
        self.said.put(())


class Process:
    """Two services that share a store. ``here`` runs operations, and ``there`` never listens."""

    def __init__(self, make_service):
        self.store = Shared()
        self.here = make_service(self.store)
        self.there = make_service(self.store, InlineExecutor())
        self.there.edges.work.held = frozenset  # the listener of `there` never starts
        self.begin, self.method = Step(), declared(self.here)
        self.work = work(self.here, self.body, "acme.v1.Works.Held")
        declared(self.there)
        work(self.there, name="acme.v1.Works.Held")

    def body(self, request, job):
        self.job = job
        self.begin()
        job.raise_if_cancelled()

    def held(self):
        """Return the name of an operation whose function is running in this service."""
        name = self.work.start(WorkRequest()).name
        self.begin.reached()
        return name

    def end_elsewhere(self, name):
        self.there.reporter(name).complete(WorkResponse())

    def wait(self, name):
        with contextlib.suppress(Unavailable):  # a closed service raises it
            self.here.wait(name)

    def waiting(self, *names):
        """Start threads that wait for these operations, and return once all threads are waiting."""
        before = listeners(self.here)
        threads = [threading.Thread(target=self.wait, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        until(lambda: listeners(self.here), lambda count: count == before + len(names))
        until(lambda: self.store.subscriptions)
        return threads


@pytest.fixture
def process(make_service):
    made = Process(make_service)
    yield made
    made.begin.go.set()


@pytest.fixture
def listening():
    """A function that lists the listener threads of this test."""
    return threads_from_now("lro-listener")


def test_named_changes_end_waits_without_a_full_read(process):
    """A notification that names an awaited operation ends its wait without a full read."""
    first, second = (process.method.start(WorkRequest()).name for _ in range(2))
    one, two = process.waiting(first, second)
    process.store.said.put(())
    (subscription,) = process.store.subscriptions
    until(lambda: len(subscription.waits) > 1)
    looks = list(process.store.looks)
    process.end_elsewhere(first)
    process.store.said.put((first, "operations/x"))
    joined(one)
    assert two.is_alive()
    assert process.store.looks == looks
    assert 0 < max(subscription.waits) <= change_listener.LOOK_AGAIN_SECONDS
    process.end_elsewhere(second)
    process.store.said.put(None)  # None means that anything may have changed
    joined(two)
    assert process.store.looks == [*looks, {second}]


def test_names_that_come_when_a_full_read_is_due_are_notified(make_service):
    """Notified names reach listeners even before a full read, which would not find new metadata."""
    service = make_service(Shared(), InlineExecutor())
    name, heard = declared(service).start(WorkRequest()).name, []
    service.edges.runtime.updater.notifier.listen(name, lambda ended, _: heard.append(ended))
    service.store.said.put((name,))
    service.edges.background.change_listener.receive(Subscription(service.store.said))
    assert service.store.looks == [{name}]
    assert heard == [True]


@pytest.mark.parametrize("said", [None, (WORK_WAITS,)])
def test_work_of_another_process_is_claimed_after_a_notification(make_service, said):
    """Work of another process is claimed after WORK_WAITS or after a notification without names."""
    store = Shared()
    here = make_service(store, InlineExecutor(), maintenance=True)
    there = make_service(store, InlineExecutor())
    method = work(there, name="acme.v1.Works.Held", concurrency=1)  # stored work is unclaimed
    work(here, name="acme.v1.Works.Held", concurrency=1)
    here.edges.start_maintenance()
    until(lambda: store.subscriptions and store.subscriptions[0].waits)
    name = method.start(WorkRequest()).name
    store.said.put(said)
    assert ended(here, name).state == "SUCCEEDED"


def test_change_without_a_name_reaches_watchers(process):
    """After a change without a name, watchers read again, as a full read finds no new metadata."""
    name = process.method.start(WorkRequest()).name

    async def main():
        seen = []
        async for sighting in await process.here.watch([name]):
            seen.append(sighting.done)
            if len(seen) == 1:
                process.there.reporter(name).report(WorkMetadata(1))
            if len(seen) == 2:
                process.end_elsewhere(name)
            process.store.said.put(None)
        return seen

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == [False, False, True]


def test_change_of_running_work_is_read_for_a_cancel_request(process):
    name, other = process.held(), process.method.start(WorkRequest()).name
    process.waiting(other)
    process.there.cancel(name)
    process.store.said.put((name, "operations/x", other))
    until(lambda: process.job.cancel_requested)
    assert process.store.looks[-1] == {name}
    process.begin.go.set()
    assert ended(process.here, name).state == "CANCELLED"
    process.end_elsewhere(other)
    process.store.said.put((other,))


def test_claim_is_delayed_after_one_that_found_nothing(make_service, monkeypatch):
    """The first claim is made at once. After a claim that found nothing, the next is delayed."""
    seconds, store, claimed_at = [0.0], Shared(), queue.SimpleQueue()
    claim = store.claim

    def noted(wanted):
        if wanted.max_count:
            claimed_at.put(seconds[0])
        return claim(wanted)

    monkeypatch.setattr(store, "claim", noted)
    service = make_service(store, InlineExecutor(), maintenance=True, clock=lambda: seconds[0])
    service.edges.start_maintenance()
    (subscription,) = until(lambda: store.subscriptions)
    store.said.put({WORK_WAITS})
    assert claimed_at.get(timeout=PATIENCE) == 0.0
    until(lambda: len(subscription.waits) >= 2)
    store.said.put({WORK_WAITS})
    until(lambda: len(subscription.waits) >= 3)
    seconds[0] = 1.0
    assert claimed_at.get(timeout=PATIENCE) == 1.0


def test_many_notifications_do_not_postpone_a_claim(make_service, monkeypatch):
    """A delayed claim is made a moment after the first of several notifications."""
    seconds, store, claimed_at = [0.0], Shared(), []
    service = make_service(store, InlineExecutor(), clock=lambda: seconds[0])
    claims, claim = service.edges.background.claims, store.claim

    def noted(wanted):
        if wanted.max_count:
            claimed_at.append(seconds[0])
        return claim(wanted)

    monkeypatch.setattr(store, "claim", noted)
    claims.work_announced()
    claims.run_due()
    for now in (1.0, 1.002, 1.004):
        seconds[0] = now
        claims.work_announced()
        claims.run_due()
    assert claimed_at == [0.0, 1.004]


def test_all_awaited_operations_are_read_every_few_seconds(process, monkeypatch):
    """A regular read finds ends and cancel requests whose notifications were lost."""
    monkeypatch.setattr(change_listener, "LOOK_AGAIN_SECONDS", 0.05)
    name, other = process.held(), process.method.start(WorkRequest()).name
    (waiting,) = process.waiting(other)
    process.there.cancel(name)
    process.end_elsewhere(other)
    joined(waiting)
    assert {name, other} in process.store.looks
    until(lambda: process.job.cancel_requested)
    process.begin.go.set()
    assert ended(process.here, name).state == "CANCELLED"


def test_unused_subscription_is_closed(process, monkeypatch):
    """An unused subscription is closed after a while, and a new one is opened when needed."""
    monkeypatch.setattr(change_listener, "LINGER_SECONDS", 0.01)
    for number in (1, 2):
        name = process.method.start(WorkRequest()).name
        (waiting,) = process.waiting(name)
        until(lambda: process.store.subscriptions, lambda some, number=number: len(some) == number)
        process.end_elsewhere(name)
        process.store.said.put((name,))
        joined(waiting)
        looks = len(process.store.looks)
        until(lambda: process.store.said.put(()) or process.store.subscriptions[-1].closed.is_set())
        assert len(process.store.looks) == looks  # nothing was awaited, and nothing was read
    assert len(process.store.subscriptions) == 2


def test_subscription_stays_open_if_needed_while_it_closes(process, monkeypatch):
    """A subscription stays open if a caller begins to wait just before it would be closed."""
    monkeypatch.setattr(change_listener, "LINGER_SECONDS", 0.0)
    answers = []

    def held():
        return answers.pop(0) if answers else frozenset({"operations/x"})

    process.here.edges.work.held = held
    name = process.method.start(WorkRequest()).name
    (waiting,) = process.waiting(name)
    process.end_elsewhere(name)
    process.store.said.put((name,))
    joined(waiting)
    (subscription,) = process.store.subscriptions
    # `held` is first called after the receive, and then by the check before the close.
    process.store.said.put(lambda: answers.extend([frozenset(), frozenset()]) or ())
    until(lambda: not answers)
    known = len(subscription.waits)
    until(lambda: process.store.said.put(()) or len(subscription.waits) > known + 3)
    assert not subscription.closed.is_set()
    process.store.said.put(raising(Unavailable("it is lost")))  # the listener subscribes again
    until(lambda: len(process.store.subscriptions), lambda count: count == 2)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("away"), "are not received now"),
        (ZeroDivisionError(), "receiving changes by other processes"),
    ],
)
def test_listener_continues_after_errors(process, error, said, caplog):
    """The listener logs an error, still reads the store, and subscribes again."""
    caplog.set_level(logging.INFO, "lro")
    process.store.refusals.append(error)
    began = time.monotonic()
    name = process.method.start(WorkRequest()).name
    (waiting,) = process.waiting(name)
    assert process.store.refused_at - began >= 1.0
    assert process.store.looks[0] <= {name}
    assert said in caplog.text
    process.end_elsewhere(name)
    process.store.said.put((name,))
    joined(waiting)


def test_outage_is_logged_once(process, caplog):
    """The listener retries every second but logs only the first failure of each outage."""
    caplog.set_level(logging.INFO, "lro")
    process.store.refusals += [Unavailable("away")] * 3
    name = process.method.start(WorkRequest()).name
    (waiting,) = process.waiting(name)
    assert not process.store.refusals
    assert caplog.text.count("are not received now") == 1
    process.store.said.put(raising(Unavailable("it is lost")))
    until(lambda: caplog.text.count("are not received now") == 2)
    process.end_elsewhere(name)
    joined(waiting)


def test_close_ends_the_listener(listening, process, caplog):
    """A close ends the listener without a warning, even if its closed subscription raises."""
    name = process.method.start(WorkRequest()).name
    process.waiting(name)
    (subscription,) = process.store.subscriptions
    (thread,) = listening()

    def fail():
        subscription.closed.wait(PATIENCE)
        raise Unavailable("closed")

    process.store.said.put(fail)
    until(lambda: subscription.waits)
    with caplog.at_level(logging.WARNING, "lro"):
        process.here.close(0)
        process.here.close(0)
    assert not thread.is_alive()
    assert caplog.text == ""
    assert not process.here.wait(name, 0).done
    assert listening() == []


def test_listener_may_close_the_service(listening, process):
    """A cancel callback that runs in the listener's thread may close the service."""
    name = process.held()
    process.waiting(process.method.start(WorkRequest()).name)
    process.here.edges.work.cancel_held = lambda _: process.here.close(0)
    process.there.cancel(name)
    process.store.said.put((name,))
    until(lambda: not listening())


def test_start_succeeds_if_the_listener_cannot_start(listening, make_service, monkeypatch, caplog):
    """A start succeeds even if the listener's thread cannot start. The next start tries again."""
    service = make_service(Shared())
    method, whole = work(service), threading.Thread.start

    def start(thread):
        if thread.name == "lro-listener":
            raise RuntimeError("can't start new thread")
        whole(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert ended(service, method.start(WorkRequest())).done
    assert "changes by other processes are not received now" in caplog.text
    monkeypatch.undo()
    assert ended(service, method.start(WorkRequest())).done
    assert listening()


def test_each_change_notifies_other_processes(make_service):
    """Each stored change sends one notification, which is the operation's name."""
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
