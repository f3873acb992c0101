"""Executors that only send operation names: how workers claim, and how lost names are resent."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest

from lro import Code, Job, Retry
from lro._engine.job import WorkerDied
from lro._model.operation import claim, lose
from lro.adapters import Observer
from lro.errors import OperationNotFound, Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.engine.engine_parts import maintenance_over, raising
from tests.service_steps import answer, ended, reason, recovered, work
from tests.stores.samples import held, insert
from tests.waiting import PATIENCE, joined
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"
ID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
MINUTE = timedelta(minutes=1)


class Sending(InlineExecutor):
    """An executor that records the names to be sent; the test delivers them."""

    redelivery = MINUTE
    submits_block = False

    def __init__(self):
        super().__init__()
        self.sent, self.error, self.late_error = [], None, None

    def reserve(self):
        if self.error is not None:
            raise self.error
        return self

    def submit(self, task):
        error = self.error or self.late_error
        if error is not None:
            raise error
        self.sent.append(task.name)

    def release(self):
        pass

    def stop(self):
        self.error = Unavailable("the executor is stopping")


@pytest.fixture
def sending():
    return Sending()


@pytest.fixture
def service(make_service, store, sending):
    """A service with a sending executor and a method that returns the number of the attempt."""
    return with_method(make_service(store, sending))


def with_method(service, **options):
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        return WorkResponse(f"{request.text} by attempt {job.attempt}")

    service.method(NAME, **options)(work)
    return service


def test_worker_that_gets_a_name_claims_and_runs_the_work(service, sending, store, clock):
    """A start only sends the name; the worker that receives it claims the work and runs it."""
    operation = service.start(NAME, WorkRequest("it"))
    assert not operation.done
    assert sending.sent == [operation.name]
    record = store.get(operation.name)
    assert (record.owner, record.attempt, record.waits) == ("", 0, True)
    assert record.lease_until == clock() + MINUTE
    assert service.get(operation.name, view="FULL").description.due_time == clock()
    service.edges.work.run_operation(operation.name)
    assert answer(service, service.get(operation.name)) == "it by attempt 1"


def test_repeated_name_runs_the_work_once(service):
    """A name that is repeated, late or unknown has no effect."""
    name = service.start(NAME, WorkRequest()).name
    for _ in range(3):
        service.edges.work.run_operation(name)
    assert answer(service, service.get(name)) == " by attempt 1"
    service.edges.work.run_operation("operations/unknown")


def test_name_claimed_by_another_worker_is_ignored(make_service, store, sending, step):
    service = make_service(store, sending)
    other = with_method(make_service(store, Sending()))
    name = work(service, step, NAME).start(WorkRequest("once")).name
    worker = threading.Thread(target=service.edges.work.run_operation, args=(name,))
    worker.start()
    step.reached()
    service.edges.work.run_operation(name)  # in a second thread of the same process
    other.edges.work.run_operation(name)
    assert not other.get(name).done
    step.go.set()
    joined(worker)
    assert answer(other, other.get(name)) == "once"


def test_name_of_an_unknown_method_is_left_to_others(service, make_service, store, caplog):
    """A worker that does not know a name's method logs an error and leaves the work queued."""
    name = service.start(NAME, WorkRequest()).name
    stranger = make_service(store, Sending())
    with caplog.at_level(logging.ERROR, "lro"):
        stranger.edges.work.run_operation(name)
    assert "is not declared here" in caplog.text
    assert store.get(name).waits


def test_lost_name_is_sent_again(service, sending, clock, store):
    """A lost name is sent again after the redelivery time, then each time its age has doubled."""
    name = service.start(NAME, WorkRequest()).name
    service.run_maintenance()
    for after, sent in ((59, 1), (1, 2), (59, 2), (1, 3), (119, 3), (1, 4)):
        clock.advance(after)
        service.run_maintenance()
        assert sending.sent == [name] * sent
    service.edges.work.run_operation(name)
    assert answer(service, service.get(name)) == " by attempt 1"
    assert store.get(name).lost_attempts == 0


@pytest.mark.parametrize("at_most_once", [True, False])
def test_work_of_a_dead_worker_is_sent_again_or_ends(
    make_service, store, sending, clock, at_most_once
):
    """A dead worker's work ends ABORTED with ``at_most_once``; otherwise its name is sent again."""
    service = with_method(make_service(store, sending), at_most_once=at_most_once)
    name = service.start(NAME, WorkRequest()).name
    now = clock()
    store.update(name, lambda record: record.next_version(owner="dead", attempt=1, lease_until=now))
    recovered(service, clock)
    if at_most_once:
        assert reason(service.get(name)) == (Code.ABORTED, "WORKER_LOST")
        return
    record = store.get(name)
    assert (record.owner, record.lost_attempts, sending.sent) == ("", 1, [name, name])
    service.edges.work.run_operation(name)
    assert answer(service, service.get(name)) == " by attempt 2"


def test_cancel_before_any_claim_ends_the_operation(service, store):
    """A cancel of unclaimed work ends it at once; its name has no effect later (spec §2.6)."""
    name = service.start(NAME, WorkRequest()).name
    service.cancel(name)
    assert service.get(name).error.code == Code.CANCELLED
    service.edges.work.run_operation(name)
    assert store.get(name).attempt == 0


def test_start_whose_name_cannot_be_sent_fails(service, sending, store):
    """If the name cannot be sent, a start without a request id fails and stores nothing."""
    sending.error = Unavailable("the broker is away")
    with pytest.raises(Unavailable, match="broker"):
        service.start(NAME, WorkRequest())
    assert list(store.page("", None, 9).records) == []


def test_stored_start_sends_its_name_later(service, sending, clock):
    """If the send fails after the store has the operation, the name is sent later."""
    sending.late_error = Unavailable("the broker is away")
    name = service.start(NAME, WorkRequest()).name
    assert sending.sent == []
    sending.late_error = None
    clock.advance(60)
    service.run_maintenance()
    assert sending.sent == [name]


def test_a_repeated_start_sends_the_name_again(service, sending, store):
    """A failed start with a request id stays in the store, and a repeat sends the name again."""
    sending.error = Unavailable("the broker is away")
    for _ in range(2):
        with pytest.raises(Unavailable, match="broker"):
            service.start(NAME, WorkRequest(), request_id=ID)
    sending.error = None
    name = service.start(NAME, WorkRequest(), request_id=ID).name
    assert [record.name for record in store.page("", None, 9).records] == [name]
    assert service.start(NAME, WorkRequest(), request_id=ID).name == name
    assert sending.sent == [name, name]
    service.edges.work.run_operation(name)
    assert service.start(NAME, WorkRequest(), request_id=ID).done
    assert sending.sent == [name, name]


def test_start_during_a_stop_is_stored(service, sending, store):
    """If the executor stops during a start, the operation waits for another process."""
    service.edges.work.stopping = False
    whole = store.insert

    def insert(*arguments, **options):
        inserted = whole(*arguments, **options)
        service.edges.work.stopping = True
        sending.stop()
        return inserted

    store.insert = insert
    operation = service.start(NAME, WorkRequest())
    assert store.get(operation.name).waits


@pytest.mark.parametrize(("refusal", "left"), [("error", 5), ("late_error", 60)])
def test_name_is_sent_again_when_the_broker_is_back(service, sending, clock, store, refusal, left):
    """A name is resent soon after the broker is back, or in a minute if the send itself failed."""
    name = service.start(NAME, WorkRequest()).name
    for error, seconds in ((Unavailable("the broker is away"), 60), (None, left)):
        setattr(sending, refusal, error)
        clock.advance(seconds)
        service.run_maintenance()
        if error:
            claimed = MINUTE if refusal == "late_error" else timedelta(0)
            assert store.get(name).lease_until == clock() + claimed
    assert sending.sent == [name, name]


def test_deleted_waiting_work_still_runs(service, store):
    """Deleted work is hidden and still runs; its end removes the record (spec §2.7)."""
    name = service.start(NAME, WorkRequest()).name
    service.delete(name)
    with pytest.raises(OperationNotFound):
        service.get(name)
    service.edges.work.run_operation(name)
    with pytest.raises(OperationNotFound):
        store.get(name)


def test_stopping_worker_refuses_names(service, store):
    """A stopping worker raises Unavailable, so the message goes back to the broker."""
    name = service.start(NAME, WorkRequest()).name
    service.edges.work.stopping = True
    with pytest.raises(Unavailable, match="stopping"):
        service.edges.work.run_operation(name)
    assert store.get(name).waits


def started(method, clock, *texts):
    """Start operations that are due one after the other; return their names."""
    names = []
    for text in texts:
        names.append(method.start(WorkRequest(text)).name)
        clock.advance(microseconds=1)
    return names


def test_name_delivered_before_its_due_time_has_no_effect(service, sending, store, clock):
    """Delayed work does not begin early if a repeated start or an old message delivers its name."""
    name = service.start(NAME, WorkRequest(), delay=MINUTE, request_id=ID).name
    assert service.start(NAME, WorkRequest(), request_id=ID).name == name
    service.edges.work.run_operation(name)
    assert store.get(name).attempt == 0
    sending.sent.clear()
    clock.advance(60)
    service.run_maintenance()
    assert sending.sent == [name]
    service.edges.work.run_operation(name)
    assert answer(service, service.get(name)) == " by attempt 1"


def test_attempts_begin_when_they_are_due(make_service, store, sending, clock):
    """Messages that arrive between attempts have no effect; each failure is recorded."""
    service = make_service(store, sending)
    began = []

    def body(request, job):
        began.append(clock())
        if job.attempt < 3:
            raise ConnectionError(f"attempt {job.attempt}")

    retry = Retry(attempts=3, first_pause=timedelta(seconds=10), jitter=0)
    name = work(service, body, NAME, retry=retry).start(WorkRequest()).name
    first = clock()
    service.edges.work.run_operation(name)
    for pause in (10, 20):
        for step in (0, pause - 0.001):
            clock.advance(step)
            service.edges.work.run_operation(name)
            service.run_maintenance()
            assert store.get(name).owner == ""
        clock.advance(0.001)
        service.run_maintenance()
        service.edges.work.run_operation(name)
    assert service.get(name).done
    assert began == [first, first + timedelta(seconds=10), first + timedelta(seconds=30)]
    assert sending.sent == [name] * 3
    failed = [(one.time, one.text) for one in store.get(name).failed_attempts]
    assert failed == [*zip(began, ("attempt 1", "attempt 2"), strict=False)]


def test_names_are_sent_only_up_to_the_limit(make_service, store, sending, step, clock):
    """Names are sent up to a limit; a worker drops the message of a name over the limit."""
    service = make_service(store, sending)
    method = work(service, step, NAME, concurrency=1)
    names = started(method, clock, *"abc")
    service.run_maintenance()
    assert sending.sent == names[:1]
    worker = threading.Thread(target=service.edges.work.run_operation, args=(names[0],))
    worker.start()
    step.reached()
    for _ in range(5):
        service.edges.work.run_operation(names[1])
        clock.advance(10)
        service.run_maintenance()
    assert (sending.sent, store.get(names[1]).waits) == (names[:1], True)
    step.go.set()
    joined(worker)
    service.run_maintenance()
    assert sending.sent == names[:2]
    service.edges.work.run_operation(names[1])
    assert service.get(names[1]).done


def test_work_whose_turn_has_passed_is_sent_again_when_there_is_room(
    make_service, store, sending, step, clock
):
    """If a name's message comes while other work fills the limit, the name is sent again later."""
    service = make_service(store, sending)
    method = work(service, step, NAME, concurrency=1)
    late, other = started(method, clock, *"ab")
    service.run_maintenance()
    clock.advance(60)
    service.run_maintenance()
    assert sending.sent == [late, other]
    worker = threading.Thread(target=service.edges.work.run_operation, args=(other,))
    worker.start()
    step.reached()
    service.edges.work.run_operation(late)
    for _ in range(20):
        clock.advance(10)
        service.run_maintenance()
    assert sending.sent == [late, other]
    step.go.set()
    joined(worker)
    service.run_maintenance()
    assert sending.sent == [late, other, late]
    service.edges.work.run_operation(late)
    assert service.get(late).done


def test_a_rate_decides_when_names_are_sent(make_service, store, sending, clock):
    service = make_service(store, sending)
    began = []

    def body(request, job):
        began.append(clock())

    method = work(service, body, NAME, rate=(2, timedelta(seconds=10)))
    names = started(method, clock, *"abcd")
    first = clock()
    service.run_maintenance()
    assert sending.sent == names[:2]
    for name in (names[0], names[1], names[3]):
        service.edges.work.run_operation(name)
    clock.advance(9)
    service.run_maintenance()
    assert (sending.sent, began) == (names[:2], [first, first])
    clock.advance(1)
    service.run_maintenance()
    assert sending.sent == names
    for name in names:
        service.edges.work.run_operation(name)
    assert all(service.get(name).done for name in names)
    assert began == [first] * 2 + [first + timedelta(seconds=10)] * 2


def test_keys_take_turns_within_a_limit(make_service, store, sending, clock):
    """Names over the limit wait in the store, which lets the keys take turns."""
    service = make_service(store, sending)

    def body(request, job):
        pass

    method = work(service, body, NAME, concurrency=1, concurrency_key=lambda sent: sent.text)
    names = started(method, clock, *"aab")
    service.run_maintenance()
    assert {*sending.sent} == {names[0], names[2]}
    service.edges.work.run_operation(names[0])
    service.run_maintenance()
    assert sending.sent[2:] == [names[1]]


def test_names_over_a_limit_are_sent_by_priority(make_service, store, sending):
    """Names over a limit are sent one by one, as the broker does not know their priorities."""
    service = make_service(store, sending)
    method = work(service, None, NAME, concurrency=1)
    names = [method.start(WorkRequest(), priority=priority).name for priority in (0, 5, 9)]
    for expected in reversed(names):
        service.run_maintenance()
        assert sending.sent[-1] == expected
        service.edges.work.run_operation(expected)
    assert len(sending.sent) == 3


def test_paused_work_begins_after_the_pause(service, sending, store, clock):
    """The name of paused work has no effect on arrival; after the resume, it is sent again."""
    name = service.start(NAME, WorkRequest()).name
    service.pause(NAME)
    service.edges.work.run_operation(name)
    for _ in range(5):
        clock.advance(10)
        service.run_maintenance()
    assert (store.get(name).attempt, sending.sent) == (0, [name])
    service.resume(NAME)
    service.run_maintenance()
    assert sending.sent == [name] * 2
    service.edges.work.run_operation(name)
    assert answer(service, service.get(name)) == " by attempt 1"


@pytest.mark.parametrize("swept", [True, False])
def test_expired_work_does_not_begin(make_service, sending, clock, swept):
    """Expired work is ended by maintenance or by the worker that gets its name."""
    service = make_service(None, sending)
    method = work(service, pytest.fail, NAME, expires=timedelta(seconds=30))
    name = method.start(WorkRequest()).name
    clock.advance(30)
    if swept:
        service.run_maintenance()
        assert service.get(name).done
    service.edges.work.run_operation(name)
    assert reason(service.get(name)) == (Code.DEADLINE_EXCEEDED, "EXPIRED")


class Elsewhere(ThreadExecutor):
    """An executor that calls functions with the wrapper `through`."""

    def __init__(self, through):
        super().__init__(1)
        self._through = through

    def _run_task(self, task, later):
        return task.run(self._through)


def test_late_death_of_a_worker_does_not_affect_the_next_one(make_service, store, clock, caplog):
    """A worker's death that is noticed late does not affect another worker that has its work."""
    taken = threading.Event()

    def through(spec, request, job):
        record = store.get(job.name)
        now = record.lease_until
        store.update(job.name, lose(record.attempt, now, now))
        store.update(job.name, claim("them", now + MINUTE, now))
        taken.set()
        raise WorkerDied("at last")

    executor = Elsewhere(through)
    service = with_method(make_service(store, executor))
    name = service.start(NAME, WorkRequest()).name
    assert taken.wait(PATIENCE)
    assert executor.join(PATIENCE)
    assert store.get(name).owner == "them"
    assert caplog.text.count("the result of attempt 1 was refused") == 1


def test_attempt_that_has_died_is_over_before_its_operation_ends(make_service):
    kinds, observer = [], Observer()
    observer.lost = observer.attempt_over = observer.ended = lambda event: kinds.append(event.kind)
    executor = Elsewhere(raising(WorkerDied("at last")))
    service = with_method(make_service(None, executor, observers=[observer]), at_most_once=True)
    ended(service, service.start(NAME, WorkRequest()).name)
    service.close()
    assert kinds == ["lost", "attempt_over", "ended"]


def test_clock_change_loses_no_worker(make_service, store, clock, caplog, step):
    """If all leases seem expired, live processes renew theirs before orphans are recovered."""
    seconds = [0.0]
    one, two = (make_service(store, clock=lambda: seconds[0]) for _ in range(2))
    name = work(one, step, NAME).start(WorkRequest("done")).name
    work(two, step, NAME)
    step.reached()
    one.run_maintenance()
    two.run_maintenance()
    clock.advance(hours=1)
    seconds[0] = 1.0
    with caplog.at_level(logging.WARNING, "lro"):
        two.run_maintenance()
        one.run_maintenance()
    assert "clock was set by +3599.0 s" in caplog.text
    assert clock() + timedelta(seconds=15) in [worker.alive_until for worker in store.workers()]
    for later in range(2, 40):
        seconds[0] = later
        clock.advance(1)
        one.run_maintenance()
        two.run_maintenance()
    step.go.set()
    assert answer(one, ended(one, name)) == "done"


def test_leases_are_renewed_though_a_sweep_fails(clock, caplog):
    """If removing expired operations fails, leases are still renewed and orphans recovered."""

    class Sticking(MemoryStore):
        def expire(self, limit):
            raise Unavailable("too large")

    store = Sticking(clock)
    insert(store, held(clock, seconds=0, owner="them"))
    at = [0.0]
    maintenance = maintenance_over(store, seconds=lambda: at[0], methods=["M"])
    for _ in range(3):
        at[0] += 1.0
        clock.advance(1)
        maintenance.run_due()
    assert store.get("operations/a").lost_attempts == 1
    assert caplog.text.count("expired operations cannot be removed now") == 1
