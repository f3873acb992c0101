"""The change listener: what reaches a process, and what it asks the store meanwhile."""

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
    """A store that others write to; its subscriptions give the changes that the test says."""

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
    """Gives what the test has said, within the time."""

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
    """A service on a shared store, another one that works on it unheard, and operations."""

    def __init__(self, make_service):
        self.store = Shared()
        self.here = make_service(self.store)
        self.there = make_service(self.store, InlineExecutor())
        self.there.edges.work.held = frozenset  # so that it never listens
        self.begin, self.method = Step(), declared(self.here)
        self.work = work(self.here, self.body, "acme.v1.Works.Held")
        declared(self.there)
        work(self.there, name="acme.v1.Works.Held")

    def body(self, request, job):
        self.job = job
        self.begin()
        job.raise_if_cancelled()

    def held(self):
        """The name of work that has begun here."""
        name = self.work.start(WorkRequest()).name
        self.begin.reached()
        return name

    def end_elsewhere(self, name):
        self.there.reporter(name).complete(WorkResponse())

    def wait(self, name):
        with contextlib.suppress(Unavailable):  # if the service is closed
            self.here.wait(name)

    def waiting(self, *names):
        """Threads that wait for these operations, and have looked at them."""
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
    """What lists the threads of this test that listen."""
    return threads_from_now("lro-listener")


def test_named_changes_end_waits_without_a_full_read(process):
    """If they are not about work of this process."""
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
    process.store.said.put(None)  # anything may have changed
    joined(two)
    assert process.store.looks == [*looks, {second}]


def test_names_that_come_when_a_full_read_is_due_are_notified(make_service):
    """The full read finds only ends and cancel requests, and not new metadata."""
    service = make_service(Shared(), InlineExecutor())
    name, heard = declared(service).start(WorkRequest()).name, []
    service.edges.runtime.updater.notifier.listen(name, heard.append)
    service.store.said.put((name,))
    service.edges.background.change_listener.receive(Subscription(service.store.said))
    assert service.store.looks == [{name}]
    assert heard == [True]


@pytest.mark.parametrize("said", [None, (WORK_WAITS,)])
def test_work_of_another_process_is_claimed_after_a_notification(make_service, said):
    """By a change without a name or WORK_WAITS; at the latest at the next full read."""
    store = Shared()
    here = make_service(store, InlineExecutor(), maintenance=True)
    there = make_service(store, InlineExecutor())
    method = work(there, name="acme.v1.Works.Held", concurrency=1)  # so that it waits
    work(here, name="acme.v1.Works.Held", concurrency=1)
    here.start_maintenance()
    until(lambda: store.subscriptions and store.subscriptions[0].waits)
    name = method.start(WorkRequest()).name
    store.said.put(said)
    assert ended(here, name).state == "SUCCEEDED"


def test_change_without_a_name_reaches_watchers(process):
    """They look soon: a change that is no end is not in the answer to the listener's look."""
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


def test_process_whose_claim_found_nothing_claims_later(make_service, monkeypatch):
    """Otherwise it claims at once, without asking first."""
    seconds, store, claimed_at = [0.0], Shared(), queue.SimpleQueue()
    claim = store.claim

    def noted(wanted):
        if wanted.most:
            claimed_at.put(seconds[0])
        return claim(wanted)

    monkeypatch.setattr(store, "claim", noted)
    service = make_service(store, InlineExecutor(), maintenance=True, clock=lambda: seconds[0])
    service.start_maintenance()
    (subscription,) = until(lambda: store.subscriptions)
    store.said.put({WORK_WAITS})
    assert claimed_at.get(timeout=PATIENCE) == 0.0
    until(lambda: len(subscription.waits) >= 2)
    store.said.put({WORK_WAITS})
    until(lambda: len(subscription.waits) >= 3)
    seconds[0] = 1.0
    assert claimed_at.get(timeout=PATIENCE) == 1.0


def test_many_notifications_do_not_put_a_claim_off(make_service, monkeypatch):
    """A process that claims later does so a moment after the first of them."""
    seconds, store, claimed_at = [0.0], Shared(), []
    service = make_service(store, InlineExecutor(), clock=lambda: seconds[0])
    claims, claim = service.edges.background.claims, store.claim

    def noted(wanted):
        if wanted.most:
            claimed_at.append(seconds[0])
        return claim(wanted)

    monkeypatch.setattr(store, "claim", noted)
    claims.announced()
    claims.run_due()
    for now in (1.0, 1.002, 1.004):
        seconds[0] = now
        claims.announced()
        claims.run_due()
    assert claimed_at == [0.0, 1.004]


def test_all_awaited_operations_are_read_every_few_seconds(process, monkeypatch):
    """In case a notification of an end or a cancel request was lost."""
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
    """After a while; it is opened again when it is needed."""
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
        assert len(process.store.looks) == looks  # there was nothing to look for
    assert len(process.store.subscriptions) == 2


def test_subscription_stays_open_if_needed_while_it_closes(process, monkeypatch):
    """A caller begins to wait just before the subscription is closed."""
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
    # One for what is received, and one for the question whether it is needed.
    process.store.said.put(lambda: answers.extend([frozenset(), frozenset()]) or ())
    until(lambda: not answers)
    known = len(subscription.waits)
    until(lambda: process.store.said.put(()) or len(subscription.waits) > known + 3)
    assert not subscription.closed.is_set()
    process.store.said.put(raising(Unavailable("it is lost")))  # and needed: there is another one
    until(lambda: len(process.store.subscriptions), lambda count: count == 2)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("away"), "are not received now"),
        (ZeroDivisionError(), "receiving changes by other processes"),
    ],
)
def test_listener_outlives_errors(process, error, said, caplog):
    """It reads the store nevertheless, logs the errors, and subscribes again a moment later."""
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
    """Not at each try, of which there is one a second; the next outage is logged again."""
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
    """While it listens, with an error of the closed subscription; nothing begins it again."""
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
    """A cancelled function may do so, whose request to stop came in the listener's thread."""
    name = process.held()
    process.waiting(process.method.start(WorkRequest()).name)
    process.here.edges.work.cancel_held = lambda _: process.here.close(0)
    process.there.cancel(name)
    process.store.said.put((name,))
    until(lambda: not listening())


def test_start_succeeds_if_the_listener_cannot_start(listening, make_service, monkeypatch, caplog):
    """The next start tries again."""
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
    """After it is stored, by its name alone."""
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
