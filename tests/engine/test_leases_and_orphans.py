"""Leases, orphans, the maintenance thread, and services that stop or die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from datetime import timedelta

import pytest

from lro import Code, Job, State
from lro._model.operation import claim, lose
from lro.errors import LeaseLost, OperationNotFound, TargetBusy, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import EACH_STORE, LEASE, NAME, Apart, Held, method_of, once, raising
from tests.patching import patch_threads
from tests.service_steps import Step, answer, ended, reason, recovered, unpacked
from tests.waiting import PATIENCE, joined, threads_from_now, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NOW = timedelta(0)


def answer_later(request: WorkRequest) -> None: ...


def never(request, job):
    raise AssertionError("this work must not be done")


class Kept:
    """An operation that a service has claimed, but whose function the test has not yet called."""

    def __init__(self, make_service, store, body=never, **options):
        self.executor = Held()
        self.service = make_service(store, self.executor)
        self.method = method_of(self.service, body, **options)
        self.name = self.method.start(WorkRequest()).name

    @property
    def task(self):
        return self.executor.task


class Hung:
    """A service with a hanging function but no maintenance, so other services consider it dead."""

    def __init__(self, make_service, store, **options):
        self.executor = ThreadExecutor(1)
        self.service = make_service(store, self.executor)
        self.step = Step()
        self.raised = []
        self.method = method_of(self.service, self.work, **options)

    def work(self, request, job):
        job.report(WorkMetadata(50))
        self.step()
        try:
            job.report(WorkMetadata(51))
        except LeaseLost as exc:
            self.raised.append(exc)
            if request.text == "raise":
                raise
        return WorkResponse(f"{request.text} done")

    def start(self, text="", **options):
        operation = self.method.start(WorkRequest(text), **options)
        self.step.reached()
        return operation


@pytest.fixture
def hung(store, make_service):
    """A function that makes a hanging service on the test's store."""
    made = []

    def make(**options):
        one = Hung(make_service, store, **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.step.go.set()


@pytest.fixture
def build(store, make_service):
    """A function that makes another service on the store, with a method that calls ``body``."""

    def make(body=None, executor=None, **options):
        service = make_service(store, executor if executor is not None else ThreadExecutor(1))
        method_of(service, body or (lambda *_: None), **options)
        return service

    return make


# -- leases ---------------------------------------------------------------------------------------


def alive_until(store):
    """Return the end of the lease of the store's only worker."""
    (worker,) = store.workers()
    return worker.alive_until


def test_the_lease_is_renewed_in_time(hung, store, clock):
    """A worker renews its lease three times per lease time, or once a minute if it has no work."""
    one = hung()
    clock.advance(5)
    assert one.service.run_maintenance() == 5
    assert alive_until(store) == clock() + LEASE
    name = one.start().name
    for _ in range(5):
        clock.advance(5)
        assert one.service.run_maintenance() == 5
        assert alive_until(store) == clock() + LEASE
    one.step.go.set()
    ended(one.service, name)
    one.executor.join(PATIENCE)
    clock.advance(5)
    assert one.service.run_maintenance() <= 15
    assert alive_until(store) == clock() + LEASE - timedelta(seconds=5)
    clock.advance(55)
    one.service.run_maintenance()  # without work, the lease is renewed once a minute
    assert alive_until(store) == clock() + LEASE


def test_closed_service_removes_its_worker_row(hung, store, clock):
    one = hung()
    one.service.run_maintenance()
    (worker,) = store.workers()
    assert (worker.owner, worker.capacity) == (one.service.edges.work.owner, 1)
    assert (worker.pid, list(worker.methods)) == (os.getpid(), [NAME])
    store.close = lambda: None
    one.service.close(NOW)
    del store.close
    assert list(store.workers()) == []


def test_lost_worker_takes_a_new_name(hung, store, clock, caplog):
    """A lost worker's functions are asked to stop, and the store refuses their writes."""
    one = hung()
    one.service.run_maintenance()
    name, owner = one.start(text="raise").name, one.service.edges.work.owner
    store.lose(owner, alive_until(store))
    clock.advance(5)
    with caplog.at_level(logging.WARNING, "lro"):
        one.service.run_maintenance()
    assert "this worker counts as lost" in caplog.text
    assert not one.service.edges.work.held()
    one.step.go.set()
    one.executor.join(PATIENCE)
    one.service.run_maintenance()
    workers = {worker.owner: worker for worker in store.workers()}
    assert {o: worker.lost for o, worker in workers.items()} == {
        owner: True,
        one.service.edges.work.owner: False,
    }
    until(lambda: one.service.run_maintenance() and store.get(name).attempt == 2)


def test_work_that_its_worker_does_not_know_is_recovered(hung, store, clock):
    """If the reply to a claim was lost, the work is recovered after two renewals."""
    one = hung()
    one.service.run_maintenance()
    one.start()
    held = claim(one.service.edges.work.owner, clock() + LEASE, clock())
    stray = one.method.start(WorkRequest()).name
    store.update(stray, held)
    for seconds, lost in ((10, 0), (5, 0), (5, 1)):
        clock.advance(seconds)
        one.service.run_maintenance()
        assert store.get(stray).lost_attempts == lost


def test_an_idle_worker_recovers_work_that_it_does_not_know(make_service, build, store, clock):
    """If the reply to a claim was lost, an idle worker recovers the work and stays alive."""
    executor = Held(busy=True)
    idle, other = make_service(store, executor), build(executor=Held(busy=True))
    method = method_of(idle)
    for service in (idle, other):
        service.run_maintenance()
    name = method.start(WorkRequest("x")).name
    whole = store.claim

    def lost_reply(wanted):
        if whole(wanted).works:
            store.claim = whole
            raise Unavailable("the reply is lost")
        return whole(wanted)

    store.claim, executor.busy = lost_reply, False
    clock.advance(10)
    with pytest.raises(Unavailable):
        idle.run_maintenance()
    owner = idle.edges.work.owner
    assert store.get(name).owner == owner
    for _ in range(25):
        clock.advance(1)
        for service in (other, idle):
            service.run_maintenance()
        assert not any(worker.lost for worker in store.workers())
    record = store.get(name)
    assert (record.owner, record.attempt, record.lost_attempts) == (owner, 2, 1)


def test_a_cancellation_by_another_process_arrives(hung, build, clock):
    """A worker reads another process's cancel request at its next renewal (spec §2.6)."""
    one, other = hung(), build(never)
    name = one.start(text="raise").name
    other.cancel(name)
    one.service.run_maintenance()
    clock.advance(5)
    one.service.run_maintenance()
    one.step.go.set()
    assert reason(ended(one.service, name)) == (Code.CANCELLED, "CANCELLED")


# -- orphans --------------------------------------------------------------------------------------


def test_operation_of_a_dead_worker_ends_aborted(hung, build, store, clock, caplog):
    """After the lease's expiry, the operation ends with WORKER_LOST. A late result is refused."""

    def settle(metadata, state):
        return WorkMetadata(percent=metadata.percent, note=f"settled {state}")

    one = hung(final_metadata=settle, at_most_once=True)
    other = build(never, final_metadata=settle, at_most_once=True)
    name = one.start().name
    other.run_maintenance()
    clock.advance(15)
    with caplog.at_level(logging.INFO, "lro"):
        recovered(other, clock)
        found = other.get(name)
        assert reason(found) == (Code.ABORTED, "WORKER_LOST")
        assert store.get(name).lost_attempts == 1
        assert found.error.details[0].payload["domain"] == "acme.test"
        assert unpacked(other, found).note == "settled FAILED"
        assert unpacked(other, found).end_time == clock()
        one.step.go.set()
        one.executor.join(PATIENCE)
    assert other.get(name) == found
    assert f"{name}: the result of attempt 1 was refused" in caplog.text
    assert len(one.raised) == 1  # the function's second report raised LeaseLost
    assert caplog.text.count("attempt 1 was refused") == 2


@pytest.mark.parametrize("known", [True, False])
def test_log_of_a_lost_worker_names_its_process_if_it_is_known(
    hung, build, store, clock, caplog, known
):
    """The log still has the line if the worker's row cannot be read."""
    one, other = hung(), build(never, at_most_once=True)
    one.service.run_maintenance()
    name, owner = one.start().name, one.service.edges.work.owner
    if not known:
        store.workers = raising(Unavailable("away"))
    with caplog.at_level(logging.WARNING, "lro"):
        clock.advance(15)
        recovered(other, clock)
    place = f" (process {os.getpid()} on {socket.gethostname()})" if known else ""
    assert f"the worker {owner}{place} counts as lost" in caplog.text
    assert reason(other.get(name)) == (Code.ABORTED, "WORKER_LOST")


@pytest.mark.parametrize("error", [ValueError("hunter2"), SystemExit()])
def test_a_hook_that_fails_does_not_keep_an_orphan_alive(hung, build, clock, caplog, error):
    """If ``final_metadata`` raises, the lost operation still ends, with its last metadata."""

    def settle(metadata, state):
        raise error

    name = hung().start().name
    other = build(never, final_metadata=settle, at_most_once=True)
    clock.advance(15)
    with caplog.at_level(logging.ERROR, "lro"):
        recovered(other, clock)
    found = other.get(name)
    assert reason(found) == (Code.ABORTED, "WORKER_LOST")
    assert unpacked(other, found).percent == 50
    assert "final metadata could not be computed" in caplog.text


@pytest.mark.parametrize("text", ["return", "raise"])
def test_work_that_may_run_twice_is_done_again(hung, store, clock, caplog, text):
    """Lost work runs again with its stored request. The old worker's late writes are refused."""
    one, two = (hung() for _ in range(2))
    name = one.start(text=text).name
    clock.advance(15)
    recovered(two.service, clock)
    two.step.reached()
    record = store.get(name)
    assert (record.attempt, record.lost_attempts) == (2, 1)
    with caplog.at_level(logging.WARNING, "lro"):
        one.step.go.set()
        one.executor.join(PATIENCE)
    (raised,) = one.raised
    assert (raised.name, raised.attempt, raised.current) == (name, 1, 2)
    assert "attempt 1 lost its lease to attempt 2" in caplog.text
    assert store.get(name) == record
    two.step.go.set()
    assert answer(two.service, ended(two.service, name)) == f"{text} done"


@pytest.mark.parametrize("how", ["released", "lost"])
def test_recovered_work_goes_before_waiting_work(store, make_service, clock, how):
    """Recovered work keeps its place in the queue, so that deployments do not delay it."""
    before, after = Held(), Held(busy=True)
    one, two = (make_service(store, executor) for executor in (before, after))
    method, _ = (method_of(service) for service in (one, two))
    names = [method.start(WorkRequest("begun")).name]
    before.busy = True
    for text in ("second", "third"):
        clock.advance(1)
        names.append(method.start(WorkRequest(text)).name)
    clock.advance(15)
    if how == "lost":
        recovered(two, clock)
    else:
        one.edges.work.stop(NOW)
    after.busy = False
    clock.advance(1)
    two.run_maintenance()
    assert [task.name for task in after.tasks] == names


def test_work_that_loses_too_many_workers_ends(hung, build, store, clock):
    """Work that loses its worker is rerun ``max_lost`` times, after growing pauses."""
    name = hung(max_lost=2).start().name
    for lost, pause in ((1, 0), (2, 2)):
        clock.advance(15)
        two = hung(max_lost=2)
        recovered(two.service, clock)
        assert store.get(name).lost_attempts == lost
        if pause:
            assert store.get(name).lease_until == clock() + timedelta(seconds=pause)
            clock.advance(pause)
            two.service.run_maintenance()
        two.step.reached()
    clock.advance(15)
    other = build(never, max_lost=2)
    recovered(other, clock)
    assert reason(other.get(name)) == (Code.ABORTED, "WORKER_LOST")
    assert store.get(name).lost_attempts == 3


def test_work_with_too_many_attempts_ends(store, make_service):
    """Stopped attempts count towards ``max_attempts``, so that repeated evictions end the work."""
    name, steps = "", [Step(), Step()]
    for step in steps:
        service = make_service(store, ThreadExecutor(1))
        method = method_of(service, step, max_attempts=2)
        name = name or method.start(WorkRequest()).name
        store.close = lambda: None
        service.run_maintenance()
        step.reached()
        service.close(NOW)
        del store.close  # the fixture's teardown must close the store
    for step in steps:
        step.go.set()
    assert reason(store.get(name).operation) == (Code.ABORTED, "TOO_MANY_ATTEMPTS")


@pytest.mark.parametrize("at_most_once", [True, False])
def test_a_deleted_orphan_frees_its_target(hung, build, clock, at_most_once):
    """A deleted orphan locks its target until its worker counts as lost (spec §9.5)."""
    one = hung(at_most_once=at_most_once)
    name = one.start(target="t").name
    one.service.delete(name)
    calls = []

    def body(request, job):
        calls.append(job.attempt)
        return WorkResponse()

    other = build(body, InlineExecutor(), at_most_once=at_most_once)
    with pytest.raises(TargetBusy):
        other.start(NAME, WorkRequest(), target="t")
    clock.advance(15)
    recovered(other, clock)
    assert calls == ([] if at_most_once else [2])
    with pytest.raises(OperationNotFound):
        other.store.get(name)
    assert ended(other, other.start(NAME, WorkRequest(), target="t")).state == "SUCCEEDED"


def test_work_of_unknown_methods_is_left_to_others(hung, make_service, build, store, clock):
    """A service that has no function for a method neither runs nor ends the method's operations."""
    name = hung().start().name
    stranger = make_service(store, ThreadExecutor(1))
    declared = make_service(store, InlineExecutor())
    declared.declare(NAME, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata)
    clock.advance(15)
    for service in (stranger, declared):
        recovered(service, clock)
    assert store.get(name).state == "IN_PROGRESS"
    recovered(build(), clock)
    assert store.get(name).lost_attempts == 1


def test_live_work_is_not_lost_with_its_lease(make_service, store, clock):
    """A process does not take over its own work if the lease expired during a store outage."""
    kept = Kept(make_service, store)
    kept.service.run_maintenance()
    once(store, "renew", lambda *_: clock.advance(60), after=True)
    clock.advance(5)
    kept.service.run_maintenance()
    recovered(kept.service, clock)
    record = store.get(kept.name)
    assert (record.owner, record.attempt) == (kept.service.edges.work.owner, 1)
    assert alive_until(store) > clock()


def test_lost_work_needs_no_free_worker(hung, build, store, clock):
    """Lost work is recovered or ended at once, even if no worker is free."""
    lost = [hung(at_most_once=one).start().name for one in (True, False)]
    executor = Held(busy=True)
    others = [build(executor=executor), build(never, executor=Held(busy=True), at_most_once=True)]
    clock.advance(15)
    recovered(others[1], clock)
    assert [store.get(name).state for name in lost] == ["FAILED", "FAILED"]


def test_failed_recovery_does_not_hold_up_others(hung, build, store, clock, caplog):
    """The error of a failed recovery is logged, and the next operation is still recovered."""
    for _ in range(2):
        hung().start()
    other, whole, failed = build(executor=Held(busy=True)), store.update_later, []

    def fail_once(name, change, done):
        if not failed:
            failed.append(name)
            raise ZeroDivisionError
        whole(name, change, done)

    if store.writes_block:
        store.update_later = fail_once
    else:
        once(store, "update", lambda name, _: failed.append(name) or 1 / 0)
    clock.advance(15)
    with caplog.at_level(logging.ERROR, "lro"):
        recovered(other, clock)
    assert f"{failed[0]}: cannot be recovered" in caplog.text
    waiting = other.list(ListOperationsRequest()).operations
    assert sorted(store.get(one.name).lost_attempts for one in waiting) == [0, 1]


# -- stopping -------------------------------------------------------------------------------------


@pytest.fixture
def next_store(store, tmp_path, clock):
    """The same store, as another process would open it later."""
    if isinstance(store, MemoryStore):
        yield store
        return
    with contextlib.closing(SQLiteStore(tmp_path / "operations.db", clock=clock)) as opened:
        yield opened


@pytest.mark.parametrize("at_most_once", [True, False])
@pytest.mark.parametrize("make", [lambda: ThreadExecutor(1), lambda: AsyncioExecutor(1)])
def test_a_service_that_stops_hands_its_work_back(
    store, next_store, make_service, at_most_once, make
):
    """A stop releases work for the next process, and fails running work with ``at_most_once``."""
    one, begun, owners = make_service(store, make()), threading.Event(), []

    @one.method(NAME, at_most_once=at_most_once)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            owners.append(store.get(job.name).owner)

    running = work.start(WorkRequest("running"))
    assert begun.wait(PATIENCE)
    waiting = work.start(WorkRequest("waiting", rest={"a": [1, {"b": None}]}))
    owner = one.edges.work.owner
    one.close(NOW)
    assert owners == [owner]  # the work is released only after the function has stopped
    left = [waiting] if at_most_once else [running, waiting]
    for operation in left:
        record = next_store.get(operation.name)
        assert (record.state, record.owner) == (State.IN_PROGRESS, "")
        assert (record.cancel_requested, record.lease_until) == (False, next_store.now())
    if at_most_once:
        found = next_store.get(running.name).operation
        assert reason(found) == (Code.ABORTED, "WORKER_LOST")
        assert found.error.message == "the worker of the operation was stopped in attempt 1"
    other, requests = make_service(next_store, ThreadExecutor(2)), []
    method_of(other, lambda request, job: requests.append(request), at_most_once=at_most_once)
    for operation in left:
        other.run_maintenance()
        assert ended(other, operation).state == "SUCCEEDED"
        assert next_store.get(operation.name).lost_attempts == 0
    assert WorkRequest("waiting", rest={"a": [1, {"b": None}]}) in requests


@pytest.fixture
def kept(make_service, store):
    """A claimed operation whose function the test has not yet called."""
    return Kept(make_service, store)


@pytest.mark.parametrize("taken", [False, True])
def test_ended_or_lost_work_is_not_released(kept, store, clock, taken):
    """A close leaves work alone that has ended, was deleted or was claimed elsewhere."""
    if taken:
        store.update(kept.name, lose(1, clock(), clock()))
        store.update(kept.name, claim("them", clock() + LEASE, clock()))
    else:
        kept.service.reporter(kept.name).finish()
        store.update(kept.method.start(WorkRequest()).name, lambda _: None)
    before, store.close = store.get(kept.name), lambda: None
    kept.service.close(NOW)
    del store.close  # the fixture's teardown must close the store
    assert store.get(kept.name) == before


@pytest.fixture
def waiting(make_service, store):
    """The name of an operation that waits in the store."""
    service = make_service(store, Held(busy=True))
    return method_of(service, never).start(WorkRequest()).name


def test_cancel_of_work_just_claimed_is_left_to_its_worker(waiting, build, store, clock):
    """If a claim comes before the cancel, the worker reads the cancel request from the record."""
    taken = claim("them", clock() + LEASE, clock())
    once(store, "update", lambda name, _: store.update(name, taken), after=True)
    build(never).cancel(waiting)
    record = store.get(waiting)
    assert (record.done, record.owner, record.cancel_requested) == (False, "them", True)


def test_cancel_ends_waiting_work_of_an_unknown_method(waiting, make_service, store):
    """A cancel ends unclaimed work at once, even if its method is unknown."""
    make_service(store).cancel(waiting)
    assert store.get(waiting).state is State.CANCELLED


def test_lost_work_of_an_unknown_method_is_ended_by_callers(
    hung, make_service, build, store, clock
):
    """A cancel or delete ends lost work at once and frees its target, because no worker runs it."""
    hung_ones = [hung(exclusive_target=lambda request: request.text) for _ in range(3)]
    early, cancelled, deleted = (
        one.start(text).name
        for one, text in zip(hung_ones, ("early", "cancelled", "deleted"), strict=True)
    )
    stranger = make_service(store)
    stranger.delete(early)  # the delete only hides the operation, as its worker may be alive
    clock.advance(15)
    recovered(stranger, clock)
    stranger.cancel(cancelled)
    stranger.delete(deleted)
    assert [store.get(name).state for name in (early, cancelled)] == ["HIDDEN", "CANCELLED"]
    with pytest.raises(OperationNotFound):
        store.get(deleted)
    other = build(never, Held(busy=True), exclusive_target=lambda request: request.text)
    for text in ("cancelled", "deleted"):
        assert not other.start(NAME, WorkRequest(text)).done
    hung_ones[1].step.go.set()
    hung_ones[1].executor.join(PATIENCE)
    assert store.get(cancelled).state is State.CANCELLED  # the late result was refused


@EACH_STORE
def test_deletion_of_work_of_an_unknown_method_frees_its_target(make_service, store):
    """A delete removes waiting work whose method no worker declares.

    Waiting work of a declared method is only hidden, and so is running work. Operations that a
    cancel has already ended are always removed.
    """
    options = {"exclusive_target": lambda request: request.text}
    executor = Held()
    one = make_service(store, executor)
    method = method_of(one, **options)
    held = method.start(WorkRequest("held")).name
    executor.busy = True
    waiting, cancelled, known = (
        method.start(WorkRequest(text)).name for text in ("waiting", "cancelled", "known")
    )
    other = make_service(store)
    other.cancel(cancelled)
    for name in (held, waiting, cancelled):
        other.delete(name)
    one.delete(known)
    for name in (waiting, cancelled):
        with pytest.raises(OperationNotFound):
            store.get(name)
    for text in ("waiting", "cancelled"):
        assert not method.start(WorkRequest(text)).done
    one.run_maintenance()  # this service is now a worker that declares the method
    alive = method.start(WorkRequest("alive")).name
    other.delete(alive)
    known_too = (alive, "alive")
    for name, text in ((held, "held"), (known, "known"), known_too):
        assert store.get(name).state is State.HIDDEN
        with pytest.raises(TargetBusy):
            method.start(WorkRequest(text))


def test_late_end_of_an_attempt_does_not_retire_a_later_one(make_service, store, clock):
    """A late end of attempt 1 does not affect attempt 2, which the same process runs."""
    made = Kept(make_service, store, print)
    first = made.task
    store.update(made.name, lose(1, clock(), clock()))
    made.service.run_maintenance()
    assert first is not made.task
    first.run()
    assert made.service.edges.work.held()
    made.task.run()
    assert not made.service.edges.work.held()
    assert made.service.get(made.name).done


def test_late_start_time_of_an_attempt_is_not_stored(make_service, store, clock):
    """A process that stores the start time of attempt 1 late does not change attempt 2."""
    executor, seconds = Apart(busy=True), [0.0]
    service = make_service(store, executor, clock=lambda: seconds[0])
    name = service.method(NAME)(answer_later).start(WorkRequest()).name
    executor.busy = False
    service.run_maintenance()
    store.update(name, lose(1, clock(), clock()))
    store.update(name, claim("them", clock() + LEASE, clock()))
    before = store.get(name)
    seconds[0] += 1
    service.run_maintenance()
    store.update(name, lambda record: record)  # comes after a write that the store keeps for later
    assert (store.get(name), before.attempt) == (before, 2)


def test_start_during_close_is_kept(make_service, store):
    """If the service stops between a start's write and its submit, the work is released."""

    class Stopping(Held):
        def _run(self, task):
            service.edges.work.stopping = True
            raise Unavailable("the executor is stopping")

    service = make_service(store, Stopping())
    name = method_of(service).start(WorkRequest()).name
    service.run_maintenance()
    assert store.get(name).owner == ""


def test_claimed_work_that_fails_to_begin_waits_again(make_service, store, caplog):
    """Claimed work that cannot begin is released, and its lease is not renewed."""
    executor = Held(busy=True)
    service = make_service(store, executor)
    name = method_of(service, never).start(WorkRequest()).name
    executor.busy, service.edges.background.pending = False, True
    once(service.edges.background, "start", raising(ZeroDivisionError()))
    service.run_maintenance()
    assert f"{name}: could not be begun" in caplog.text
    service.run_maintenance()
    assert not service.edges.work.held()
    assert (store.get(name).owner, executor.tasks) == ("", [])  # the claim is retried in a second


@pytest.mark.parametrize("how", ["start", "claim"])
def test_work_of_a_process_that_has_counted_as_lost_is_not_begun(make_service, store, how):
    """A process that was declared lost after its claim does not begin the work."""
    executor = Held(busy=how == "claim")
    service = make_service(store, executor)
    method, workers, whole = method_of(service, never), service.edges.work, store.claim
    owner = workers.owner

    def claim(wanted):
        found = whole(wanted)
        if found.works:
            workers.lose_all()
        return found

    if how == "start":
        once(store, "insert", lambda *_: workers.lose_all(), after=True)
    name = method.start(WorkRequest()).name
    executor.busy = False
    store.claim = claim
    service.run_maintenance()
    assert store.get(name).owner == owner != workers.owner
    assert executor.tasks == []
    assert not workers.held()
    assert executor.reserve() is not None  # the worker is free again


@pytest.mark.parametrize("error", [Unavailable("away"), OSError("no disk")])
def test_service_closes_while_its_store_is_unavailable(make_service, clock, error):
    """A service closes even if its store is unavailable. The leases of its work then expire."""
    store = MemoryStore(clock)
    kept = Kept(make_service, store)
    store.update = raising(error)
    kept.service.close(0)
    assert store.get(kept.name).owner == kept.service.edges.work.owner


# -- outages --------------------------------------------------------------------------------------


class Away(MemoryStore):
    """A store that can be unavailable for all calls (``away``) or for writes (``unwritten``)."""

    away = unwritten = False

    def orphans(self, methods, limit):
        found = super().orphans(methods, limit)
        self._look(write=bool(found.overdue))
        return found

    def renew(self, worker):
        self._look(write=True)
        return super().renew(worker)

    def _look(self, *, write):
        if self.away or (write and self.unwritten):
            raise Unavailable("away")


@pytest.fixture
def away(clock):
    """A store that the test can make unavailable."""
    return Away(clock)


class Pair:
    """Two services on one store. One has claimed an operation, and the other scans for orphans."""

    def __init__(self, away, make_service, clock):
        self.clock, self.store = clock, away
        self.worker, self.scanner = (make_service(away, Held()) for _ in range(2))
        for service in (self.worker, self.scanner):
            method_of(service, never)
            service.run_maintenance()
        self.name = self.start()

    def start(self):
        return self.worker.start(NAME, WorkRequest()).name

    def taken_over_after(self, *seconds):
        """Scan after each pause, and return for each scan whether the work has counted as lost."""
        found = []
        for some in seconds:
            self.clock.advance(some)
            self.scanner.run_maintenance()
            found.append(self.store.get(self.name).lost_attempts == 1)
        return found


@pytest.fixture
def pair(away, make_service, clock):
    return Pair(away, make_service, clock)


def test_leases_are_renewed_before_orphan_scan_after_store_outage(away, pair, clock):
    """After an outage, no work counts as lost until its worker has had time to renew the lease."""
    away.away = True
    for _ in range(2):
        clock.advance(20)
        for service in (pair.scanner, pair.worker):
            with pytest.raises(Unavailable):
                service.run_maintenance()
    away.away = False
    pair.scanner.run_maintenance()  # for a third of a lease plus a second, nothing counts as lost
    pair.worker.run_maintenance()  # the worker does not renew its lease after this
    assert pair.taken_over_after(6, 9, 1) == [False, False, True]


def test_leases_that_expired_during_an_outage_do_not_count_as_lost(away, pair, clock):
    """If leases expired while writes failed, unnoticed by the scanner, no worker counts as lost."""
    away.unwritten = True
    for _ in range(6):
        clock.advance(5)
        with pytest.raises(Unavailable):
            pair.worker.run_maintenance()
    away.unwritten = False
    assert pair.taken_over_after(0) == [False]  # this scan is before the renewal
    pair.worker.run_maintenance()
    assert pair.taken_over_after(1, 1, 1) == [False] * 3


def test_outage_ends_with_a_successful_write(away, make_service, clock, caplog):
    """The log reports the end of an outage after a successful write, and not after a read."""
    service = make_service(away, Held())
    method_of(service, never)
    service.run_maintenance()
    away.away = True
    clock.advance(15)
    with pytest.raises(Unavailable):
        service.run_maintenance()
    away.away, away.unwritten = False, True
    for _ in range(10):
        clock.advance(1)
        with pytest.raises(Unavailable):
            service.run_maintenance()
    assert "store is available again" not in caplog.text
    away.unwritten = False
    service.run_maintenance()
    assert "store is available again" in caplog.text


def test_scan_that_waited_for_a_lock_declares_no_worker_lost(away, pair, clock):
    """After a scan that waited for a lock, the grace period restarts. Renewals may wait, too."""
    assert pair.taken_over_after(15) == [False]
    once(away, "orphans", lambda *_: clock.advance(0.6))
    assert pair.taken_over_after(1, 1) == [False, True]


def test_slow_scans_find_lost_work(away, pair, clock):
    """Scans that are always slow, as on a slow database, still find lost work."""
    whole = away.orphans

    def orphans(methods, limit):
        clock.advance(0.6)
        return whole(methods, limit)

    away.orphans = orphans
    assert pair.taken_over_after(15, 1, 1)[-1]


def test_scan_after_a_stall_declares_no_worker_lost(pair):
    """After a stall, a process does not recover work at once, as all processes may have stalled."""
    assert pair.taken_over_after(15, 60, 0.5, 0.5) == [False, False, False, True]


def test_work_that_waited_for_the_store_is_renewed_at_once(away, make_service, clock):
    """After a slow insert, the lease is renewed at once, before it expires."""
    service = make_service(away, Held())
    method = method_of(service, never)
    method.start(WorkRequest())
    service.run_maintenance()
    once(away, "insert", lambda *_: clock.advance(9))
    method.start(WorkRequest())
    service.run_maintenance()
    assert alive_until(away) == clock() + LEASE


@pytest.mark.parametrize("seconds", [0.9, 5])
def test_slow_clock_read_is_not_a_clock_change(away, make_service, clock, caplog, seconds):
    """A slow read of the store's clock is not logged as a clock change."""
    service = make_service(away, Held())
    for after in (False, True):
        once(away, "now", lambda: clock.advance(seconds), after=after)
        for _ in range(3):
            service.run_maintenance()
            clock.advance(1)
    assert caplog.messages == []


def test_slow_renewal_is_repeated_at_once(away, make_service, clock):
    """A renewal that took long is repeated at once, before the next scan for orphans."""
    service = make_service(away, Held())
    method_of(service, never)
    service.run_maintenance()
    service.start(NAME, WorkRequest())
    looks = []
    once(away, "renew", lambda *_: clock.advance(5))
    once(away, "orphans", lambda *_: looks.append(1))
    clock.advance(15)
    assert service.run_maintenance() == 0.01
    assert looks == []  # the renewal comes before the scan
    assert alive_until(away) == clock() + LEASE - timedelta(seconds=5)
    service.run_maintenance()
    assert alive_until(away) == clock() + LEASE


# -- when work begins -----------------------------------------------------------------------------


def test_waiting_work_begins_as_soon_as_its_method_is_declared(waiting, make_service, store):
    """A newly declared method causes a claim at once, although the last claim found nothing."""
    service = make_service(store, Held())
    service.run_maintenance()
    method_of(service, never)
    service.run_maintenance()
    assert store.get(waiting).owner == service.edges.work.owner


@pytest.fixture
def suspect(waiting, store, clock):
    """An operation that waits after the loss of two workers (a suspect)."""
    for attempt in (1, 2):
        store.update(waiting, claim("gone", clock() + LEASE, clock()))
        store.update(waiting, lose(attempt, clock(), clock()))
    return waiting


def test_suspect_is_begun_before_other_work(suspect, make_service, build, store):
    """Work that has lost two workers begins before other work, which might delay it for ever."""
    method_of(make_service(store, Held(busy=True)), never).start(WorkRequest())
    executor = Held()
    build(never, executor).run_maintenance()
    assert executor.tasks[0].name == suspect
    assert len(executor.tasks) == 2


def test_suspect_is_begun_before_what_starts_later(suspect, make_service, store):
    """While work that has lost two workers waits, a start does not take the free worker."""
    executor = Held(busy=True)
    service = make_service(store, executor)
    method = method_of(service, never)
    service.run_maintenance()
    executor.busy = False
    method.start(WorkRequest())
    assert executor.tasks == []
    service.run_maintenance()
    assert executor.tasks[0].name == suspect


def test_failed_look_for_work_is_retried_in_a_second(waiting, build, store, clock):
    """A failed claim of work is retried after one second instead of the usual five."""
    service = build(never, Held())
    once(store, "claim", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        service.run_maintenance()
    clock.advance(1)
    service.run_maintenance()
    assert store.get(waiting).owner == service.edges.work.owner


def test_failed_claim_of_a_suspect_is_retried_in_a_second(suspect, build, store, clock):
    """While the store cannot be written, a failed claim is made only once a second."""
    service, whole, claims = build(never, Held()), store.claim, []

    def read_only(wanted):
        if not wanted.max_count:
            return whole(wanted)
        claims.append(clock())
        raise Unavailable("read only")

    store.claim = read_only
    service.edges.background.claims.claim_soon()
    for _ in range(5):
        with contextlib.suppress(Unavailable):
            service.run_maintenance()
    assert len(claims) == 1
    clock.advance(1)
    store.claim = whole
    service.run_maintenance()
    assert store.get(suspect).owner == service.edges.work.owner


def test_suspect_that_comes_during_a_look_for_work_begins_soon(waiting, build, store, clock):
    """Work that becomes a suspect while this process looks for work begins at the next claim."""
    store.update(waiting, claim("gone", clock() + LEASE, clock()))
    store.update(waiting, lose(1, clock(), clock()))
    store.update(waiting, claim("gone", clock() + LEASE, clock()))
    service = build(never, Held())

    def lose_again(_):
        store.update(waiting, lose(2, clock(), clock()))
        service.edges.background.claims.claim_soon()

    once(store, "claim", lose_again, after=True)
    service.run_maintenance()
    service.run_maintenance()
    assert store.get(waiting).owner == service.edges.work.owner


def test_failed_look_for_a_suspect_is_retried_in_a_second(suspect, build, store, clock):
    """A failed look for a suspect is repeated after one second instead of the usual five."""
    service = build(never, Held())
    service.edges.background.claims.claim_soon()
    once(store, "claim", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        service.run_maintenance()
    clock.advance(1)
    service.run_maintenance()
    assert store.get(suspect).owner == service.edges.work.owner


# -- the maintenance thread -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said", "pause"),
    [
        (Unavailable("away"), "maintenance: away", 0.2),
        (ZeroDivisionError(), "maintenance failed and goes on", 1.0),
    ],
)
def test_maintenance_thread_survives_errors(make_service, caplog, error, said, pause):
    """The maintenance thread logs an error and soon continues."""
    turns = []

    class Failing(MemoryStore):
        def orphans(self, methods, limit):
            self.turn()
            return super().orphans(methods, limit)

        def renew(self, worker):
            self.turn()  # a renewal ends the outage
            return super().renew(worker)

        def turn(self):
            turns.append(time.monotonic())
            if len(turns) <= 2:
                raise error

    caplog.set_level(logging.WARNING, "lro")
    service = make_service(Failing(), Held(), maintenance=True, clock=time.monotonic)
    method_of(service, never)
    service.edges.start_maintenance()
    until(lambda: len(turns) > 2)
    service.close(0)
    assert said in caplog.text
    assert turns[2] - turns[1] >= pause * 0.9


def test_maintenance_thread_may_close_the_service(make_service):
    """An application's hook that runs in the maintenance thread may close the service."""
    before, store = set(threading.enumerate()), MemoryStore()
    service = make_service(store, Held(), maintenance=True, clock=time.monotonic)
    once(store, "orphans", lambda *_: service.close(0))
    method_of(service, never)
    service.edges.start_maintenance()
    for thread in set(threading.enumerate()) - before:
        joined(thread)


def test_a_stop_just_before_the_wake_is_cleared_is_heard(make_service, monkeypatch):
    """After a stop just before the wake event is cleared, the claiming thread ends at once."""
    service = make_service(None, Held(), clock=time.monotonic)
    claims, clear, stops, late = service.edges.background.claims, threading.Event.clear, [], []

    def stop_first(event):
        if not stops and threading.current_thread().name == "lro-claims":
            stops.append(1)
            once(claims, "run_due", lambda: late.append(1))
            claims.stop()
        clear(event)

    patch_threads(monkeypatch, threading.Event, "clear", stop_first)
    threads = threads_from_now("lro-claims")
    claims.start()
    claims.claim_soon()
    until(lambda: stops and not threads())
    assert late == []


def test_a_stop_while_a_claim_waits_for_results_is_heard(make_service, monkeypatch):
    """After a stop while a claim waits for results, the claiming thread ends without a wait."""
    monkeypatch.setattr("lro._engine.claims.ENDS_SECONDS", PATIENCE)
    monkeypatch.setattr("lro._engine.attempt.HeldWork.ending", True)
    service = make_service(None, Held(), clock=time.monotonic)
    claims, wait, waits = service.edges.background.claims, threading.Event.wait, []

    def stop_first(event, seconds=None):
        if threading.current_thread().name != "lro-claims":
            return wait(event, seconds)
        waits.append(seconds)
        claims.stop()
        return wait(event, 0)

    patch_threads(monkeypatch, threading.Event, "wait", stop_first)
    threads = threads_from_now("lro-claims")
    claims.claim_soon()
    claims.start()
    until(lambda: waits and not threads())
    assert len(waits) == 1


def test_orphan_that_ended_before_its_recovery_keeps_its_end(hung, build, store, clock, caplog):
    """If the worker's result is stored first, the recovery is refused and the result stays."""
    one = hung()
    name = one.start().name
    other = build(never)
    store.lose(one.service.edges.work.owner, None)
    orphans = store.orphans({NAME}, 9)
    store.orphans = lambda methods, limit: orphans
    one.step.go.set()
    found = ended(one.service, name)
    with caplog.at_level(logging.DEBUG, "lro"):
        recovered(other, clock)
    lines = [one for one in caplog.records if "not recovered now" in one.getMessage()]
    assert lines
    for line in lines:
        assert line.getMessage().startswith(f"{name}: not recovered now: ")
        assert line.getMessage().count(name) == 1
        assert line.levelname == "DEBUG"
    assert other.get(name) == found
