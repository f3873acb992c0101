"""Starts: their checks, the order of these checks, and what a failed start leaves behind."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import Code, DeclarationError, InvalidArgument, Limits, OperationMetadata, TypeRegistry
from lro.errors import (
    HookFailed,
    InvalidParent,
    InvalidRequestId,
    RequestIdConflict,
    ResourceExhausted,
    TargetBusy,
    Unavailable,
)
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.testing import START
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import ID, NAME, Apart, Held, method_of, once, raising
from tests.service_steps import Step, answer, ended, ended_in_turn, reason, swap, work
from tests.waiting import PATIENCE, joined, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


def stored(service):
    """Return how many operations at the root callers can see."""
    return len(service.list(ListOperationsRequest()).operations)


@pytest.fixture
def quick(store, make_service):
    """A service whose starts run the function before they return."""
    return make_service(store, InlineExecutor())


# -- arguments ------------------------------------------------------------------------------------


@pytest.fixture
def kept(store, make_service):
    """A service, the name of an operation claimed by its start, and the executor."""
    executor = Held()
    service = make_service(store, executor)
    return service, method_of(service).start(WorkRequest("x")).name, executor


def test_start_with_a_free_worker_stores_running_work(kept, store):
    service, name, executor = kept
    assert re.fullmatch(r"operations/[A-Za-z0-9_-]{23}", name)
    assert not service.get(name).done
    record = store.get(name)
    assert (record.attempt, record.start_time) == (1, record.create_time)
    assert record.owner == service.edges.work.owner
    executor.task.run()
    assert answer(service, service.get(name)) == "x"
    assert (store.get(name).attempt, store.get(name).version) == (1, record.version + 1)


class Far(MemoryStore):
    """A store with blocking reads that records the threads in which its clock is read."""

    reads_block = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[threading.Thread] = []

    def now(self) -> datetime:
        self.asked.append(threading.current_thread())
        return super().now()


@pytest.mark.parametrize(
    "options", [{}, {"delay": timedelta(hours=1)}, {"priority": 1}, {"expires": timedelta(hours=1)}]
)
def test_first_start_on_an_event_loop_reaches_the_store_in_a_thread(make_service, options):
    """The first store call may have to connect, so it runs in a thread and not on the loop."""
    store = Far()
    method = method_of(make_service(store, InlineExecutor()))
    store.asked.clear()
    asyncio.run(method.start_async(WorkRequest(), **options))
    assert store.asked[0] is not threading.current_thread()


@pytest.mark.parametrize("options", [{}, {"concurrency": 1}])
def test_waiting_work_is_claimed(store, make_service, options):
    """Waiting work is claimed when other work ends, or when its method's limit allows."""
    executor = ThreadExecutor(1 if not options else 2)
    service = make_service(store, executor, maintenance=True)
    service.edges.start_maintenance()
    step, free, begun = Step(), Step(), []

    def body(request, job):
        begun.append(request.text)
        step()
        return WorkResponse(str(job.attempt))

    method = method_of(service, body, **options)
    method.start(WorkRequest("first"))
    step.reached()
    waiting = method.start(WorkRequest("second")).name
    if options:  # work of other methods runs beside it
        beside = work(service, free).start(WorkRequest())
        free.reached()
        free.go.set()
        ended(service, beside)
    assert (store.get(waiting).attempt, begun) == (0, ["first"])
    step.go.set()
    assert answer(service, ended(service, waiting)) == "1"


def test_older_waiting_work_begins_before_a_new_start(store, make_service, clock):
    """A start does not take a free worker while older work waits."""
    executor = Held(busy=True)
    service = make_service(store, executor)
    method = method_of(service)
    first = method.start(WorkRequest("first")).name
    service.run_maintenance()
    executor.busy = False
    clock.advance(1)
    second = method.start(WorkRequest("second")).name
    assert store.get(second).waits
    service.run_maintenance()
    assert [task.name for task in executor.tasks] == [first, second][: len(executor.tasks)]
    for _ in range(2):
        executor.task.run()
        service.run_maintenance()
    assert [task.name for task in executor.tasks] == [first, second]


def nap(request: WorkRequest) -> None: ...


@pytest.mark.parametrize("case", ["it goes on", "it is over", "it has the thread"])
def test_start_time_of_claimed_work_is_stored(store, make_service, case):
    """One write stores the start time of claimed work.

    The write comes soon after the claim, at once if the work has the claiming thread, or with the
    end of the work.
    """
    executor, seconds = (Held if case == "it has the thread" else Apart)(busy=True), [0.0]
    service = make_service(store, executor, clock=lambda: seconds[0])
    name = service.method(NAME)(nap).start(WorkRequest()).name

    def start_time():
        return service.types.unpack(service.get(name).metadata, OperationMetadata).start_time

    executor.busy = False
    service.run_maintenance()
    assert store.get(name).attempt == 1
    if case != "it has the thread":
        assert start_time() is None
        if case == "it is over":
            executor.task.run()
        seconds[0] += 1
        service.run_maintenance()
    assert until(start_time) == store.get(name).start_time
    assert store.get(name).version == 3


def test_start_time_is_stored_after_an_outage(store, make_service):
    """After an outage the start time is stored, even if the function reports nothing."""
    executor, seconds = Apart(busy=True), [0.0]
    service = make_service(store, executor, clock=lambda: seconds[0])
    name = service.method(NAME)(nap).start(WorkRequest()).name
    executor.busy = False
    service.run_maintenance()
    once(store, "update_later", raising(Unavailable("away")))
    for _ in range(2):
        seconds[0] += 10
        service.run_maintenance()
    shown = until(lambda: store.get(name).metadata.payload.get("startTime"))
    assert datetime.fromisoformat(shown) == store.get(name).start_time


def test_start_time_that_is_stored_again_holds_up_no_other(store, make_service):
    """After an outage, a start time is stored five seconds later, after those of newer work."""
    executor, seconds = Apart(busy=True), [0.0]
    service = make_service(store, executor, clock=lambda: seconds[0])
    start, calls = service.method(NAME)(nap).start, []

    def claimed():
        name, executor.busy = start(WorkRequest()).name, False
        service.run_maintenance()
        executor.busy = True
        return name

    first = claimed()
    once(store, "update_later", raising(Unavailable("away")))
    seconds[0] += 1
    service.run_maintenance()
    second = claimed()
    whole = store.update_later
    store.update_later = lambda name, *rest: (calls.append(name), whole(name, *rest))
    for _ in range(2):
        seconds[0] += 1
        service.run_maintenance()
    assert calls == [second]
    seconds[0] += 5
    service.run_maintenance()
    assert calls == [second, first]


def test_work_sent_to_a_worker_is_left_to_others_if_that_is_interrupted(store, make_service):
    """If a signal interrupts the write of the start time, the worker gives up the work."""
    one = make_service(store, Held(busy=True))
    name = one.method(NAME)(nap).start(WorkRequest()).name
    once(store, "update_later", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        one.edges.work.run_operation(name)
    assert not one.edges.work.held()


@pytest.mark.parametrize("how", ["cancelled", "released"])
def test_work_is_stopped_between_its_start_and_its_beginning(kept, store, make_service, how):
    """Work stopped before its function is called is cancelled, or run by the next process."""
    service, name, executor = kept
    if how == "cancelled":
        service.cancel(name)
        executor.task.run()
        assert service.get(name).state == "CANCELLED"
        return
    service.edges.work.stop(timedelta())
    executor.task.run()
    assert (store.get(name).done, store.get(name).owner) == (False, "")
    other = make_service(store, InlineExecutor())
    method_of(other)
    other.run_maintenance()
    assert answer(other, other.get(name)) == "x"
    assert (store.get(name).attempt, store.get(name).lost_attempts) == (2, 0)


@pytest.fixture
def doubtful(make_service, clock):
    """A service, its store, and one of its methods."""
    store = MemoryStore(clock)
    service = make_service(store, InlineExecutor())
    return service, store, method_of(service)


def test_start_whose_reply_from_the_store_was_lost_is_run(doubtful):
    """If the store's reply to a start was lost, a repeat returns the operation, which then runs."""
    service, store, method = doubtful
    once(store, "insert", raising(Unavailable("the connection was lost")), after=True)
    with pytest.raises(Unavailable):
        method.start(WorkRequest("x"), request_id=ID)
    again = method.start(WorkRequest("x"), request_id=ID)
    assert not again.done
    service.run_maintenance()
    assert answer(service, service.get(again.name)) == "x"
    assert store.get(again.name).lost_attempts == 0


def test_start_that_was_not_stored_is_not_released(doubtful):
    """A start that was not stored is not released, as no caller has the operation's name."""
    service, _, method = doubtful
    method.start(WorkRequest("x"), target="t")
    swap(service, Held())
    method.start(WorkRequest("y"), target="t")
    with pytest.raises(TargetBusy):
        method.start(WorkRequest("z"), target="t")
    assert len(service.edges.work.held()) == 1
    service.run_maintenance()
    assert len(service.edges.work.held()) == 1


def test_work_cancelled_during_its_insert_never_runs(doubtful):
    """If a caller cancels an operation during its insert, its function is never called."""
    service, store, _ = doubtful
    called = []
    method = work(service, lambda request, job: called.append(1), name="acme.v1.Works.Other")
    once(store, "insert", lambda record, *_: service.cancel(record.name), after=True)
    handle = method.start(WorkRequest("x"))
    assert service.get(handle.name).state == "CANCELLED"
    assert called == []


def test_a_lease_that_is_nearly_over_is_renewed_at_once(store, make_service, clock):
    """After a slow insert, the lease, which began before the insert, is renewed at once."""
    service = make_service(store, Held())
    name = "insert"
    once(store, name, lambda *_: clock.advance(10), after=True)
    service.run_maintenance()
    method_of(service).start(WorkRequest("x"))
    service.run_maintenance()
    (worker,) = store.workers()
    assert worker.alive_until == clock() + timedelta(seconds=15)


def in_thread(call, *arguments):
    """Make a call in a thread and return the thread, whose list ``found`` gets the result."""
    thread = threading.Thread(target=lambda: thread.found.append(call(*arguments)))
    thread.found = []
    thread.start()
    return thread


def test_start_during_close_is_released(make_service, clock):
    """A start during a close is released before the store is closed."""
    store, step = MemoryStore(clock), Step()

    class Stopping(ThreadExecutor):
        def stop(self):
            try:
                return super().stop()
            finally:
                step.go.set()

    service = make_service(store, Stopping(1))
    once(store, "insert", step, after=True)
    starting = in_thread(method_of(service).start, WorkRequest("x"))
    step.reached()
    service.close()
    joined(starting)
    record = store.get(starting.found[0].name)
    assert (record.done, record.owner, record.attempt) == (False, "", 1)


def test_a_close_does_not_wait_for_the_start_of_what_has_begun(make_service):
    """A close waits for an inline start, which runs the function, no longer than for the work."""
    service, step = make_service(executor=InlineExecutor()), Step()
    starting = in_thread(method_of(service, step).start, WorkRequest("x"))
    step.reached()
    service.close(0)
    step.go.set()
    joined(starting)
    assert starting.found


def test_a_start_that_is_interrupted_is_released(store, make_service, monkeypatch):
    """If Ctrl-C interrupts a start after the insert, the stored work still runs."""
    service = make_service(store, InlineExecutor())
    method = method_of(service)
    monkeypatch.setattr(service.edges.work, "_new_work", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        method.start(WorkRequest("x"))
    monkeypatch.undo()
    (operation,) = service.list(ListOperationsRequest()).operations
    assert service.edges.work.held() == {operation.name}
    service.run_maintenance()
    assert answer(service, ended(service, operation)) == "x"
    assert not service.edges.work.held()


def test_work_may_delete_itself(quick):
    """If work deletes itself, the start returns the operation as first stored."""

    def body(request, job):
        quick.delete(job.name)
        return WorkResponse()

    operation = method_of(quick, body).start(WorkRequest(), metadata=WorkMetadata(1))
    assert not operation.done
    assert stored(quick) == 0


@pytest.mark.parametrize("parent", ["projects/p", "projects/p/operations"])
def test_both_spellings_of_a_parent_are_equal(quick, parent):
    """A parent may end in ``/operations``, also in a start by the method's name (spec §3.3(2))."""
    method_of(quick)
    operation = quick.start(NAME, WorkRequest("x"), parent=parent)
    assert answer(quick, operation) == "x"
    assert operation.name.startswith("projects/p/operations/")
    page = quick.list(ListOperationsRequest(name="projects/p"))
    assert page.operations == (operation,)
    with pytest.raises(DeclarationError, match="not declared"):
        quick.start("acme.v1.Works.Other", WorkRequest())


def refuse_big(request):
    if request.size > 9:
        raise InvalidArgument("size", "must be at most 9")


WRONG = [
    ({"request": "x"}, InvalidArgument, "request"),
    ({"request": WorkRequest(text=5)}, InvalidArgument, "request.text"),
    ({"request": WorkRequest(rest={"a": float("nan")})}, InvalidArgument, "request.rest"),
    ({"request": WorkRequest(size=10)}, InvalidArgument, "size"),
    ({"metadata": WorkRequest()}, InvalidArgument, "metadata"),
    ({"target": 7}, InvalidArgument, "target"),
    ({"parent": "projects"}, InvalidParent, "parent"),
    ({"parent": "operations/x"}, InvalidParent, "parent"),
    ({"request_id": 7}, InvalidArgument, "request_id"),
    ({"request_id": "x" * 129}, InvalidRequestId, "request_id"),
    ({"request_id": "a\0b"}, InvalidRequestId, "request_id"),
    ({"request_id": "\ud800"}, InvalidRequestId, "request_id"),
    ({"request_id": " x"}, InvalidRequestId, "request_id"),
    ({"request_id": "00000000-0000-0000-0000-000000000000"}, InvalidRequestId, "request_id"),
]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(("wrong", "error", "field"), WRONG)
def test_wrong_argument_of_a_start_is_refused(quick, wrong, error, field, validate_only):
    """The error names a wrong argument, and nothing is stored, even by a validation (§9.7)."""
    calls = []
    method = method_of(quick, lambda *_: calls.append(1), validate=refuse_big)
    arguments = {"request": WorkRequest(), **wrong}
    with pytest.raises(error) as caught:
        method.start(arguments.pop("request"), validate_only=validate_only, **arguments)
    assert caught.value.field == field
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert (stored(quick), calls) == (0, [])


def test_target_that_is_not_text_is_refused(quick):
    """A target is checked even if the method's own function returns it."""
    with pytest.raises(InvalidArgument, match="target"):
        method_of(quick, exclusive_target=lambda request: 7).start(WorkRequest())


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("validate", "sentence"),
    [
        (lambda request: False, "request: is refused by the method"),
        (raising(ValueError("too large")), "request: too large"),
        (raising(ValueError()), "request: is refused by the method"),
        (raising(UnicodeError("no text")), "request: no text"),
        (raising(InvalidArgument("text", "too long")), "text: too long"),
    ],
)
def test_validate_refuses_with_invalid_argument(quick, validate, sentence, validate_only):
    """A request is refused if ``validate`` returns False or raises ValueError or an LroError."""
    method = method_of(quick, validate=validate)
    with pytest.raises(InvalidArgument) as caught:
        method.start(WorkRequest(), validate_only=validate_only)
    assert (str(caught.value), stored(quick)) == (sentence, 0)


async def forgotten(request):
    """Stand for a coroutine function that was passed instead of a plain function."""


NO_VERDICT = (HookFailed, "validate must return None or True to accept")


@pytest.mark.parametrize(
    ("validate", "error", "sentence"),
    [
        *((lambda request, found=found: found, *NO_VERDICT) for found in (0, 1, "", "large", [])),
        (lambda request: forgotten(request), *NO_VERDICT),
        (raising(DeclarationError("x", "y")), DeclarationError, "x: y"),
        (raising(ZeroDivisionError("x")), ZeroDivisionError, "x"),
    ],
)
def test_validate_that_returns_no_bool_fails_the_start(make_service, validate, error, sentence):
    """If ``validate`` returns neither None nor a bool, the start fails. Errors are passed on."""
    service = make_service()
    with pytest.raises(error, match=sentence):
        method_of(service, validate=validate).start(WorkRequest())
    assert stored(service) == 0


# -- repeated starts ------------------------------------------------------------------------------


def test_repeated_start_returns_the_same_operation(quick):
    """A repeated start returns the current state, whatever the case of its id (spec §9.1)."""
    calls = []

    def body(request, job):
        calls.append(1)
        return WorkResponse()

    method = method_of(quick, body)
    first = method.start(WorkRequest("x"), request_id=ID).operation
    assert method.start(WorkRequest("x"), request_id=ID.upper()).operation == first
    with pytest.raises(RequestIdConflict):
        method.start(WorkRequest("y"), request_id=ID)
    for other in ({"parent": "projects/p"}, {"target": "disks/1"}):
        with pytest.raises(RequestIdConflict):
            method.start(WorkRequest("x"), request_id=ID, **other)
    assert method.start(WorkRequest("y"), request_id=ID, caller="other").name != first.name
    assert calls == [1, 1]


TEXTS = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=128
)


def test_any_text_is_a_request_id_in_every_store(store, make_service):
    """A start is found again by any text, and only by the same text."""
    service = make_service(store, InlineExecutor())
    method = method_of(service, lambda *_: WorkResponse())
    names = {}

    @given(TEXTS.filter(lambda text: text == text.strip()))
    def start_twice(text):
        first = method.start(WorkRequest("x"), request_id=text).name
        assert method.start(WorkRequest("x"), request_id=text).name == first
        assert names.setdefault(text, first) == first

    start_twice()
    assert len(set(names.values())) == len(names) > 20


def test_full_queue_still_answers_repeated_starts(store, make_service):
    """With a full queue, repeats and conflicts get their usual reply. A new start is refused."""
    service, step = make_service(store, ThreadExecutor(1), limits=Limits(backlog=0)), Step()
    method = method_of(service, step)
    first = method.start(WorkRequest("first"), request_id=ID)
    step.reached()
    assert method.start(WorkRequest("first"), request_id=ID).name == first.name
    with pytest.raises(RequestIdConflict):
        method.start(WorkRequest("other"), request_id=ID)
    other = ID.replace("6", "7")
    for _ in range(2):
        with pytest.raises(ResourceExhausted, match="the queue is full") as caught:
            method.start(WorkRequest(), request_id=other)
        assert caught.value.retry_after == timedelta(seconds=1)
    assert stored(service) == 1
    step.go.set()


class SlowClaims(MemoryStore):
    """A store whose claims end only when the test lets them."""

    def __init__(self):
        super().__init__()
        self.asked = Step()

    def claim(self, claim):
        """Claim as usual, once the test allows it."""
        self.asked()
        return super().claim(claim)


def test_start_begins_at_once_during_a_claim(make_service):
    """A start begins at once during a claim, even if no work may wait."""
    store, step = SlowClaims(), Step()
    service = make_service(store, ThreadExecutor(1), limits=Limits(backlog=0))
    method = method_of(service, step)
    looking = threading.Thread(target=service.run_maintenance)
    looking.start()
    store.asked.reached()
    name = method.start(WorkRequest("x")).name
    step.reached()
    step.go.set()
    store.asked.go.set()
    joined(looking)
    ended(service, name)


class Halting(MemoryStore):
    """A store that pauses in a count of waiting work when ``halts`` is set."""

    def __init__(self):
        super().__init__()
        self.halt, self.halts, self.calls = Step(), False, 0

    def count_waiting(self, most):
        found = super().count_waiting(most)
        self.calls += 1
        if self.halts:
            self.halts = False
            self.halt()
        return found


def test_work_begun_since_a_count_does_not_count_for_the_queue(make_service, clock):
    """A start is refused only after a fresh count, which leaves out work that has begun."""

    class Slow(MemoryStore):
        def count_waiting(self, most):
            clock.advance(0.01)
            return super().count_waiting(most)

    store = Slow(clock)
    service = make_service(store, limits=Limits(backlog=2))
    start = method_of(service, concurrency=1).start  # each start waits
    for _ in range(9):
        name = start(WorkRequest()).name

        def looked(name=name):
            service.run_maintenance()  # repeated if the worker was not free yet
            return service.get(name).done

        until(looked)


def test_concurrent_starts_share_one_count(make_service, clock):
    """Concurrent starts share one count of waiting work. Later starts are added to that count."""
    asking = set()

    def seconds():
        asking.add(threading.current_thread())
        return (clock() - START).total_seconds()

    store = Halting()
    service = make_service(store, limits=Limits(backlog=10), clock=seconds)
    start = method_of(service, concurrency=1).start  # each start waits
    start(WorkRequest())
    clock.advance(1)
    store.halts = True
    first, *others = (threading.Thread(target=start, args=[WorkRequest()]) for _ in range(9))
    first.start()
    store.halt.reached()
    for thread in others:
        thread.start()
    until(lambda: asking.issuperset(others))
    store.halt.go.set()
    for thread in (first, *others):
        joined(thread)
    assert store.calls == 2
    with pytest.raises(ResourceExhausted, match="10 operations wait"):
        start(WorkRequest())


@pytest.mark.parametrize("seconds", [0.05, 1])
def test_a_full_queue_is_counted_again_as_often_as_that_is_cheap(make_service, clock, seconds):
    """A refusal between two counts of the queue does not read the store."""

    class Slow(Halting):
        def count_waiting(self, most):
            clock.advance(seconds)
            return super().count_waiting(most)

    store = Slow()
    service = make_service(store, limits=Limits(backlog=1))
    start = method_of(service, concurrency=1).start  # each start waits
    start(WorkRequest())
    for counts in (2, 2, 2):
        with pytest.raises(ResourceExhausted, match="1 operations wait"):
            start(WorkRequest())
        assert store.calls == counts
    clock.advance(min(1, 10 * seconds))
    with pytest.raises(ResourceExhausted, match="1 operations wait"):
        start(WorkRequest())
    assert store.calls == 3


# -- validate only --------------------------------------------------------------------------------


def test_a_validation_is_refused_while_the_queue_is_full(store, make_service):
    """A validation needs a free worker or a place in the queue, and keeps neither (spec §9.7)."""
    service, step = make_service(store, ThreadExecutor(1), limits=Limits(backlog=1)), Step()
    start = method_of(service, step).start
    for text, request_id in (("first", ID), ("second", "")):
        for _ in range(2):
            assert start(WorkRequest(text), validate_only=True).name == ""
        start(WorkRequest(text), request_id=request_id)
        step.reached()
    for validate_only in (True, False):
        with pytest.raises(ResourceExhausted, match="the queue is full: 1 operations wait"):
            start(WorkRequest("third"), validate_only=validate_only)
    assert start(WorkRequest("first"), request_id=ID, validate_only=True).name == ""
    step.go.set()


def test_a_validation_fails_as_the_real_call_would(store, make_service, step):
    """A validation fails if the target is busy or the request id belongs to another request."""
    service = make_service(store, ThreadExecutor(1))
    method = method_of(service, step)
    first = method.start(WorkRequest(), target="t", request_id=ID)
    step.reached()
    with pytest.raises(TargetBusy, match="'t'"):
        method.start(WorkRequest(), target="t", validate_only=True)
    with pytest.raises(RequestIdConflict):
        method.start(WorkRequest("other"), request_id=ID, validate_only=True)
    assert method.start(WorkRequest(), target="u", validate_only=True).done
    step.go.set()
    ended(service, first)


# -- targets --------------------------------------------------------------------------------------


def test_a_target_is_free_when_the_work_has_ended(store, make_service):
    """A target is freed by the end of the work, not by a delete of the record (spec §9.5)."""
    executor, step = ThreadExecutor(4), Step()
    service = make_service(store, executor)

    def body(request, job):
        step()
        job.report(WorkMetadata())

    method = method_of(service, body, exclusive_target=lambda request: request.text)
    first = method.start(WorkRequest("t"))
    step.reached()
    for _ in range(2):
        with pytest.raises(TargetBusy):
            method.start(WorkRequest("t"))
        if not store.get(first.name).visible(store.now()):
            break
        service.delete(first.name)
    beside = method.start(WorkRequest("u"))
    without = method.start(WorkRequest(""))
    other = method.start(WorkRequest("t"), target="v")
    step.go.set()
    for operation in (beside, without, other):
        ended(service, operation)
    executor.join(PATIENCE)
    assert ended(service, method.start(WorkRequest("t"))).state == "SUCCEEDED"


# -- refusals by the executor ---------------------------------------------------------------------


class Refusing(InlineExecutor):
    """An executor that reserves a worker, calls ``again`` in a thread and refuses the task."""

    def __init__(self, error):
        super().__init__()
        self.error, self.again, self.answers = error, None, []

    def _run(self, task):
        if self.again is not None:
            other = threading.Thread(target=lambda: self.answers.append(self.again()))
            other.start()
            joined(other)
        raise self.error


REFUSALS = pytest.mark.parametrize(
    "error",
    [Unavailable("away"), RuntimeError("bug"), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("request_id", ["", ID])
@REFUSALS
def test_stored_operation_waits_if_the_executor_refuses_it(
    store, make_service, clock, error, request_id
):
    """If the executor refuses a stored operation, the operation still runs later or ends."""
    executor = Refusing(error)
    service = make_service(store, executor)
    method = method_of(service)

    def start():
        return method.start(WorkRequest("one"), request_id=request_id, target="t").operation

    if request_id:
        executor.again = start
    if isinstance(error, Exception):
        executor.answers.append(start())
    else:
        with pytest.raises(type(error)):
            start()
    swap(service, InlineExecutor())
    for _ in range(2):
        service.run_maintenance()
        clock.advance(1)
    assert not service.edges.work.held()
    (operation,) = service.list(ListOperationsRequest()).operations
    assert {answered.name for answered in executor.answers} <= {operation.name}
    if isinstance(error, RuntimeError):
        assert reason(operation) == (Code.INTERNAL, "METHOD_FAILED")
        assert executor.answers[-1].done
    else:
        assert answer(service, operation) == "one"
    assert not request_id or start().name == operation.name
    assert method.start(WorkRequest("two"), target="t").done


def test_an_answered_operation_may_be_deleted_before_the_executor_refuses(store, make_service):
    """If the operation is deleted before the executor refuses it, the start still returns it."""
    executor = Refusing(RuntimeError("bug"))
    service = make_service(store, executor)
    method = method_of(service)
    executor.again = lambda: service.delete(
        service.list(ListOperationsRequest()).operations[0].name
    )
    assert not method.start(WorkRequest("one"), request_id=ID).done
    assert stored(service) == 0


def test_refused_start_frees_its_place_in_the_queue(store, make_service, step):
    """A refused start frees its place in the queue, even after an error of the store."""
    service = make_service(store, ThreadExecutor(1), limits=Limits(backlog=1))
    method = method_of(service, step)
    first = method.start(WorkRequest("first"), target="t", request_id=ID)
    step.reached()
    for _ in range(3):
        with pytest.raises(TargetBusy):
            method.start(WorkRequest(), target="t")
        assert method.start(WorkRequest("first"), request_id=ID, target="t").name == first.name
    second = method.start(WorkRequest())
    step.go.set()
    ended(service, first)
    ended_in_turn(service, second.name)  # the worker may become free after the end is visible


def test_start_fails_if_the_executor_has_stopped(make_service):
    """If the executor has stopped, a start raises UNAVAILABLE, and nothing is stored."""
    executor = InlineExecutor()
    service = make_service(executor=executor)
    executor.stop()
    with pytest.raises(Unavailable, match="the executor is stopping"):
        method_of(service).start(WorkRequest())
    assert stored(service) == 0


class Blob:
    """A request class of another library, packed as bytes."""


class BlobCodec:
    python, shape = Blob, None

    def dump(self, message):
        return b"\x08\x01"

    def load(self, payload, *, strict):
        return Blob()


def test_binary_request_is_compared_by_its_bytes(store, make_service):
    """Binary requests are compared by their bytes, and the function gets the request as sent."""
    types = TypeRegistry(factories=[lambda cls: BlobCodec() if cls is Blob else None])
    types.register(Blob, "acme.v1.Blob")
    service = make_service(store, InlineExecutor(), types=types)
    requests = []

    @service.method(NAME, metadata=WorkMetadata)
    def work(request: Blob) -> WorkResponse:
        requests.append(request)
        return WorkResponse()

    first = work.start(Blob(), request_id=ID).operation
    assert work.start(Blob(), request_id=ID).operation == first
    assert [type(one) for one in requests] == [Blob]
