"""Starts, work, reports and ends on the application's event loop, without other threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import lro
from lro import Code, Handle, InvalidArgument, Job, Operation, Service
from lro._engine import attempt
from lro._engine.store_port import settle
from lro.adapters import Inserted, Record
from lro.errors import PermissionDenied, ResourceExhausted, Unavailable, WaitTimeout
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.engine.engine_parts import EACH_STORE, ID, NAME, method_of, once, raising
from tests.service_steps import Step, abandon, answer, ended, reason, recovered, work
from tests.virtual_loop import on_a_loop
from tests.waiting import PATIENCE, joined, until, until_async
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


def running(**options: Any) -> AsyncioExecutor:
    """Return an executor on the running event loop."""
    return AsyncioExecutor(loop="running", **options)


def declared(service: Service, **options: Any) -> Any:
    """Register a method that reports once and returns the request's text and its thread's name."""

    @service.method(NAME, **options)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await job.report_async(WorkMetadata(50))
        return WorkResponse(f"{request.text} {threading.current_thread().name}")

    return work


async def over(service: Service, operation: Operation) -> Operation:
    """Wait for an operation's end and return the operation."""
    found = await service.wait_async(operation.name, PATIENCE)
    assert found.done
    return found


@pytest.fixture
def service(make_service, store):
    """A service that runs its functions on the loop of the test."""
    made: Service = make_service(store, running())
    return made


def close_with_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop whose tasks have not ended; the garbage collector closes their coroutines."""
    for task in asyncio.all_tasks(loop):
        abandon(task)
    loop.close()


def records(store: Any) -> list[Record]:
    return list(store.page("", None, 99).records)


def all_done(service: Service, store: Any) -> bool:
    """Claim waiting work, and return whether all operations have ended."""
    service.run_maintenance()
    return all(record.done for record in records(store))


class Blocked:
    """A method whose functions wait for ever unless ``may_go_on`` is set."""

    def __init__(self, service: Service) -> None:
        self.begun: list[str] = []
        self.tasks: list[Any] = []
        self.may_go_on = False

        @service.method(NAME)
        async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
            self.begun.append(request.text)
            self.tasks.append(asyncio.current_task())
            if not self.may_go_on:
                await asyncio.Event().wait()
            return WorkResponse(request.text)

        self.method = work

    async def start(self, texts: str, begun: int = 1) -> list[str]:
        """Start one operation per text, and wait until ``begun`` functions have begun."""
        names = [(await self.method.start_async(WorkRequest(text))).name for text in texts]
        await until_async(lambda: len(self.begun) >= begun)
        return names


# -- the verbs ------------------------------------------------------------------------------------


USES = {
    "refresh": lambda service, handle: handle.refresh_async(),
    "wait": lambda service, handle: handle.wait_async(0),
    "get": lambda service, handle: service.get_async(handle.name),
    "watch": lambda service, handle: service.watch([handle.name]),
    "cancel": lambda service, handle: handle.cancel_async(),
    "start": lambda service, handle: service.start_async(NAME, WorkRequest()),
}


@pytest.mark.parametrize("maintenance", [True, False])
@pytest.mark.parametrize("use", USES)
def test_each_use_on_a_later_loop_lets_work_run_there(make_service, store, maintenance, use):
    """After the first loop is closed, work runs again once the service is used on another loop."""
    executor = running()
    service = make_service(store, executor, maintenance=maintenance)
    blocked = Blocked(service)

    async def first():
        return await blocked.method.start_async(WorkRequest("a"))

    async def later():
        with contextlib.suppress(WaitTimeout):
            await USES[use](service, handle)
        slot = await asyncio.to_thread(executor.reserve)  # in a thread, the executor sees no loop
        slot.release()
        await asyncio.to_thread(service.close, timedelta(0))

    handle = asyncio.run(first())
    asyncio.run(later())


@EACH_STORE
@on_a_loop
async def test_work_is_done_on_the_loop_that_starts_it(service, store):
    """Starts, reports and ends run on the loop and use no thread."""
    work = declared(service)
    first = await service.start_async(NAME, WorkRequest())  # the first start may use a thread
    await over(service, first)
    await service.delete_async(first.name)
    before = set(threading.enumerate())  # threads of other tests may be left

    started = await asyncio.gather(*(work.start_async(WorkRequest(str(n))) for n in range(20)))
    await until_async(lambda: not service.edges.work.held())
    threads = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in threads if name.startswith(("asyncio_", "lro-asyncio"))}
    for number, operation in enumerate(started):
        assert answer(service, await over(service, operation)) == f"{number} MainThread"
    named = await service.start_async(NAME, WorkRequest("named"))
    assert answer(service, await over(service, named)) == "named MainThread"
    assert (await service.get_async(named.name)).done
    listed = await service.list_async(lro.wire.ListOperationsRequest())
    assert len(listed.operations) == 21
    batch = await service.batch_get_async([named.name])
    assert len(batch.operations) == 1
    await service.delete_async(named.name)
    with pytest.raises(lro.errors.OperationNotFound):
        await service.get_async(named.name)


@EACH_STORE
@on_a_loop
async def test_async_work_is_cancelled_as_it_begins_and_not_by_itself(service):
    """A caller's cancel ends work as CANCELLED. A CancelledError that work raises is a failure."""

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await job.sleep_async(3600)
        raise AssertionError

    @service.method(NAME + "Itself")
    async def itself(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        raise asyncio.CancelledError

    operation = await work.start_async(WorkRequest())
    await asyncio.sleep(0)
    await service.cancel_async(operation.name)
    assert reason(await over(service, operation)) == (Code.CANCELLED, "CANCELLED")
    mistaken = await itself.start_async(WorkRequest())
    assert reason(await over(service, mistaken)) == (Code.INTERNAL, "METHOD_FAILED")


@on_a_loop
async def test_work_on_a_loop_does_not_block_it(service):
    begun: list[str] = []
    all_begun = asyncio.Event()

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.append(request.text)
        await job.report_async(WorkMetadata(10))
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        with pytest.raises(RuntimeError, match=r"use `await job.report_async\(...\)`"):
            job.report(WorkMetadata(20))
        with pytest.raises(RuntimeError, match=r"use `await job.sleep_async\(...\)`"):
            job.sleep(0)
        await asyncio.to_thread(job.report, WorkMetadata(30))
        return WorkResponse(request.text)

    started = [await work.start_async(WorkRequest(text)) for text in "abc"]
    for operation, text in zip(started, "abc", strict=True):
        assert answer(service, await over(service, operation)) == text


@pytest.mark.parametrize("executor", [running, InlineExecutor])
@on_a_loop
async def test_plain_functions_are_called_in_a_thread(make_service, store, executor):
    """On a loop, plain functions and hooks run in a thread."""
    service = make_service(store, executor())
    where: list[bool] = []

    def here() -> bool:
        where.append(threading.current_thread() is threading.main_thread())
        return True

    def target(_: WorkRequest) -> str:
        here()
        return "things/1"

    @service.method(NAME, validate=lambda request: here(), exclusive_target=target)
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        here()
        return WorkResponse(request.text)

    operation = await work.start_async(WorkRequest("a"))
    assert answer(service, await over(service, operation)) == "a"
    checked = await work.start_async(WorkRequest("a"), validate_only=True)
    assert checked.done
    assert where == [False] * 5


@EACH_STORE
@on_a_loop
async def test_a_repeated_start_finds_the_first(make_service, store):
    """A repeated start finds the first operation even if the queue is full."""
    service = make_service(store, running(concurrency=1), limits=lro.Limits(backlog=0))
    go = asyncio.Event()

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await go.wait()
        return WorkResponse(request.text)

    first = await work.start_async(WorkRequest("a"), request_id=ID)
    with pytest.raises(ResourceExhausted):
        await work.start_async(WorkRequest("b"))
    assert (await work.start_async(WorkRequest("a"), request_id=ID)).name == first.name
    with pytest.raises(lro.errors.RequestIdConflict):
        await work.start_async(WorkRequest("c"), request_id=ID)
    go.set()
    await over(service, first)
    again = await work.start_async(WorkRequest("a"), request_id=ID)
    assert (again.name, again.done) == (first.name, True)


# -- many starts in one call ----------------------------------------------------------------------


def started_together(work: Any, how: str, requests: Any, **options: Any) -> list[Any]:
    """Call ``start_many`` in a thread or on an event loop, and return its results."""
    if how == "thread":
        return list(work.start_many(requests, **options))
    return list(asyncio.run(work.start_many_async(requests, **options)))


EACH_WAY = pytest.mark.parametrize("how", ["thread", "loop"])


@EACH_STORE
@EACH_WAY
def test_many_are_started_together(make_service, store, how):
    """Each request gets its own result, and a refused request does not stop the other requests."""
    service = make_service(store, ThreadExecutor(2))
    requests = [WorkRequest("a"), "not a request", WorkRequest("c")]
    first, second, third = started_together(method_of(service), how, requests)
    assert isinstance(second, InvalidArgument)
    assert answer(service, ended(service, first)) == "a"
    assert answer(service, ended(service, third)) == "c"


def test_start_many_takes_one_request_id_per_request(make_service, store):
    """A wrong number of request ids raises, and nothing is started."""
    service = make_service(store)
    work = declared(service)
    with pytest.raises(InvalidArgument, match="must be one for each of the 2 requests, got 1"):
        work.start_many([WorkRequest("a"), WorkRequest("b")], request_ids=[ID])
    one, other = work.start_many([WorkRequest("a")] * 2, request_ids=[ID, ID])
    assert one.name == other.name


def test_many_are_refused_by_an_async_hook_in_a_thread(make_service, store):
    """In a thread, a start with an async hook is refused, as only a loop can await the hook."""

    async def authorize(caller: str, verb: str, name: str) -> bool:
        return caller == "ann"

    work = declared(make_service(store, authorize=authorize))
    (refused,) = started_together(work, "thread", [WorkRequest("a")])
    assert isinstance(refused, lro.errors.HookFailed)
    (refused,) = started_together(work, "loop", [WorkRequest("a")], caller="bob")
    assert isinstance(refused, PermissionDenied)
    (started,) = started_together(work, "loop", [WorkRequest("a")], caller="ann")
    assert isinstance(started, Handle)


@EACH_WAY
def test_start_many_returns_errors_that_the_store_raises_at_once(make_service, how):
    """``start_many`` returns an error that the store raises at once like one reported later."""
    store = MemoryStore()
    store.writes_block, store.insert_later = True, raising(Unavailable("the store is closed"))
    work = declared(make_service(store))
    found = started_together(work, how, [WorkRequest("a"), WorkRequest("b")])
    assert [str(error) for error in found] == ["the store is closed"] * 2


@EACH_WAY
def test_an_error_of_the_application_is_raised(make_service, store, how):
    """``start_many`` raises an error that is not an `LroError`."""
    work = declared(make_service(store), validate=lambda request: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        started_together(work, how, [WorkRequest("a")])


# -- callers that disconnect ----------------------------------------------------------------------


class Slow(MemoryStore):
    """A store whose writes succeed or fail when the test says so."""

    writes_block = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pending: list[Callable[[BaseException | None], None]] = []
        self.at_once = False

    def insert_later(self, record: Any, request: Any, key: Any, done: Any) -> None:
        self._later(lambda: self.insert(record, request, key), done)

    def update_later(self, name: str, change: Any, done: Any) -> None:
        self._later(lambda: self.update(name, change), done)

    def _later(self, write: Callable[[], Any], done: Any) -> None:
        def go(error: BaseException | None) -> None:
            if error is not None:
                done(None, error)
                return
            settle(write, done)

        if self.at_once:
            go(None)
        else:
            self.pending.append(go)

    async def handed_in(self) -> None:
        """Let the loop run until a write is pending."""
        await until_async(lambda: self.pending)

    async def let(self, error: BaseException | None = None) -> None:
        """Finish the next write, from another thread."""
        await self.handed_in()
        await asyncio.to_thread(self.pending.pop(0), error)


@pytest.mark.parametrize("error", [None, Unavailable("gone")])
@pytest.mark.parametrize("when", ["before the answer", "with it", "as it comes"])
@on_a_loop
async def test_start_whose_caller_disconnects_during_the_commit_is_run(
    make_service, clock, caplog, when, error
):
    """If the caller disconnects during the commit, the operation exists, and its function runs.

    If the write fails, the error is logged, and the worker is free again.
    """
    caplog.set_level(logging.INFO, "lro")
    store = Slow(clock)
    service = make_service(store, running(concurrency=1))
    work = declared(service)

    start = asyncio.create_task(work.start_async(WorkRequest("a")))
    await store.handed_in()
    if when != "before the answer":
        store.pending.pop(0)(error)  # the loop handles the result in its next iteration
        store.at_once = True
    if when == "with it":
        asyncio.get_running_loop().call_soon(start.cancel)
    else:
        start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    if when == "before the answer":
        assert records(store) == []
        store.at_once = True
        await store.let(error)
        await until_async(lambda: records(store) or "gone" in caplog.text)
    await until_async(lambda: service.run_maintenance() and not service.edges.work.held())
    assert [record.done for record in records(store)] == [True] * (error is None)
    if error is not None and when == "before the answer":
        assert "a call whose caller had gone away has failed: gone" in caplog.text
        operation = await work.start_async(WorkRequest("b"))
        assert answer(service, await over(service, operation)) == "b MainThread"


@on_a_loop
async def test_cancel_whose_caller_disconnects_after_the_write_is_completed(make_service, store):
    """If the caller disconnects while a function of the method runs, the operation still ends."""
    service = make_service(store, running(concurrency=1))
    asked, go, hold = threading.Event(), threading.Event(), asyncio.Event()

    def final(metadata: WorkMetadata, _: Any) -> WorkMetadata:
        asked.set()
        assert go.wait(PATIENCE)
        return metadata

    @service.method(NAME, final_metadata=final)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await hold.wait()
        return WorkResponse(request.text)

    await work.start_async(WorkRequest("a"))
    waiting = await work.start_async(WorkRequest("b"), metadata=WorkMetadata(1))
    cancel = asyncio.create_task(service.cancel_async(waiting.name))
    await until_async(asked.is_set)
    cancel.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancel
    go.set()
    operation = await over(service, waiting)
    assert operation.error is not None
    assert operation.error.code == Code.CANCELLED
    hold.set()


@on_a_loop
async def test_start_whose_caller_disconnects_before_its_inline_work_is_run(make_service, clock):
    """A start that is stored runs its work once, although the caller has disconnected before."""
    loop, go, done = asyncio.get_running_loop(), threading.Event(), []
    loop.set_default_executor(ThreadPoolExecutor(1))

    class Store(MemoryStore):
        def insert(self, *args: Any, **options: Any) -> Inserted:
            loop.run_in_executor(None, go.wait, PATIENCE)  # the work waits for this thread
            return super().insert(*args, **options)

    store = Store(clock)
    service = make_service(store, InlineExecutor())

    @service.method(NAME)
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        done.append(job.attempt)
        return WorkResponse(request.text)

    start = asyncio.create_task(work.start_async(WorkRequest("a")))
    await until_async(lambda: records(store))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    service.run_maintenance()
    go.set()
    await until_async(lambda: not service.edges.work.held())
    assert ([record.state.value for record in records(store)], done) == (["SUCCEEDED"], [1])


@on_a_loop
async def test_caller_who_disconnects_before_the_write_starts_nothing(make_service, clock):
    """If the caller disconnects while a hook runs, nothing is stored."""
    asked = asyncio.Event()

    async def authorize(caller: str, verb: str, name: str) -> None:
        asked.set()
        await asyncio.Event().wait()

    store = MemoryStore(clock)
    service = make_service(store, running(), authorize=authorize)
    work = declared(service)

    start = asyncio.create_task(work.start_async(WorkRequest("a")))
    await asked.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert records(store) == []


@on_a_loop
async def test_store_that_raises_a_cancellation_fails_only_the_call(make_service, monkeypatch):
    """A CancelledError that the store's driver raises fails only its call and cancels no task."""
    store = MemoryStore()
    service = make_service(store, running(concurrency=1))
    work = declared(service)
    with monkeypatch.context() as patch:
        patch.setattr(store, "insert", raising(asyncio.CancelledError("by a driver")))
        with pytest.raises(asyncio.CancelledError, match="by a driver"):
            await work.start_async(WorkRequest("a"))
    operation = await work.start_async(WorkRequest("b"))
    assert answer(service, await over(service, operation)) == "b MainThread"


def test_a_start_whose_loop_ends_is_released(make_service, clock):
    """If the loop ends during a start's commit, the work is released for another loop."""
    store = Slow(clock)
    service = make_service(store, running(concurrency=2))
    work = declared(service)

    async def main() -> None:
        task = asyncio.create_task(work.start_async(WorkRequest("a")))
        await store.handed_in()
        assert not task.done()

    asyncio.run(main())
    store.at_once = True
    store.pending.pop(0)(None)
    until(lambda: not service.edges.work._writes)
    service.run_maintenance()
    assert not service.edges.work.held()
    assert [record.waits for record in records(store)] == [True]

    async def again() -> None:
        operation = await work.start_async(WorkRequest("b"))  # the released operation is older
        await asyncio.to_thread(service.run_maintenance)  # both workers are free
        assert answer(service, await over(service, operation)) == "b MainThread"

    asyncio.run(again())


def test_a_start_on_a_loop_that_is_closed_is_carried_through(make_service, clock):
    """A start whose task is garbage collected after its loop was closed is still run."""
    store, executor = Slow(clock), ThreadExecutor(1)
    service = make_service(store, executor)
    work = method_of(service)
    for early in (True, False):
        store.at_once = False
        loop = asyncio.new_event_loop()
        task = loop.create_task(work.start_async(WorkRequest("a")))
        loop.run_until_complete(store.handed_in())
        store.at_once = True
        if early:
            store.pending.pop(0)(None)
        loop.close()
        if not early:
            store.pending.pop(0)(None)
        abandon(task)
        del task, loop

        gc.collect()
        until(lambda: all_done(service, store) and not executor.usage.running)
    assert len(records(store)) == 2


@on_a_loop
async def test_cancel_ends_a_report_that_waits_for_the_store(make_service, clock, monkeypatch):
    """A cancel ends a report that waits for the store, and the report is never written."""
    monkeypatch.setattr(attempt, "_FIRST_PAUSE_SECONDS", 3600.0)
    store, refused = MemoryStore(clock), []
    store.writes_block = True
    service = make_service(store, running())

    def away(*_: object) -> None:
        refused.append(1)
        raise Unavailable("gone for a moment")

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        once(store, "update_later", away)
        await job.report_async(WorkMetadata(50))
        raise AssertionError

    operation = await work.start_async(WorkRequest("a"))
    await until_async(lambda: refused and service.edges.work.held())
    await asyncio.sleep(0)
    await service.cancel_async(operation.name)
    assert reason(await over(service, operation)) == (Code.CANCELLED, "CANCELLED")


# -- loops ----------------------------------------------------------------------------------------


def test_recovered_work_waits_for_an_event_loop(make_service, store, clock, step):
    """Without a loop, a start is refused. Recovered work runs once a loop has used the service."""
    service = make_service(store, running(), lease=timedelta(seconds=5))
    work = declared(service)
    with pytest.raises(Unavailable, match="no event loop of the application has used the service"):
        work.start(WorkRequest("a"))
    lost = method_of(make_service(store), step).start(WorkRequest("lost"))
    clock.advance(60)
    recovered(service, clock)
    assert [record.waits for record in records(store)] == [True]

    async def main() -> None:
        await work.start_async(WorkRequest("b"))
        await until_async(lambda: all_done(service, store))
        assert answer(service, service.get(lost.name)) == "lost MainThread"

    asyncio.run(main())
    step.go.set()


@pytest.mark.parametrize("how", ["cancelled", "closed", "unseen"])
def test_work_of_a_loop_that_ends_is_released(make_service, store, how):
    """After a loop's end its work is released, and the next loop gets all the workers."""
    service = make_service(store, running(concurrency=2))
    blocked = Blocked(service)

    left: set[asyncio.Task[Any]] = set()
    if how == "cancelled":
        asyncio.run(blocked.start("01234", begun=2))
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(blocked.start("01234", begun=2))
        left = asyncio.all_tasks(loop)
        for task in left:
            abandon(task)
        loop.close()
    if how != "unseen":
        service.run_maintenance()
        for task in left:
            task.get_coro().close()  # the garbage collector would close it
        service.run_maintenance()
        assert not service.edges.work.held()
        assert [record.waits for record in records(store)] == [True] * 5
    blocked.may_go_on = True

    async def again() -> None:
        await until_async(lambda: all_done(service, store))

    asyncio.run(again())
    assert len(blocked.begun) == 7


def test_work_that_has_not_begun_when_its_loop_is_closed_runs_on_the_next_loop(make_service, store):
    """Work that a closed loop has not begun is released, and no coroutine is left unawaited.

    The loop's first iteration creates the task, and the next one would call the function.
    """
    service = make_service(store, running())
    blocked = Blocked(service)
    blocked.may_go_on = True

    async def work() -> None:
        await over(service, await blocked.method.start_async(WorkRequest("first")))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(work())
    later = blocked.method.start(WorkRequest("later"))  # called in this thread, outside the loop
    loop.call_soon(loop.stop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    assert len(tasks) == 1
    while tasks:
        abandon(tasks.pop())
    loop.close()

    async def again() -> None:
        await service.get_async(later.name)
        await until_async(lambda: all_done(service, store))

    asyncio.run(again())
    assert blocked.begun == ["first", "later"]


@pytest.mark.parametrize("use", ["refresh", "maintenance"])
def test_plain_function_is_not_called_again_while_it_outlives_its_loop(make_service, store, use):
    """A plain function keeps its worker after its loop was closed, and its result is stored."""
    step, executor = Step(), running(concurrency=1)
    service = make_service(store, executor)
    attempts: list[int] = []

    @service.method(NAME)
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        attempts.append(job.attempt)
        step()
        return WorkResponse("whole")

    async def start() -> Any:
        handle = await work.start_async(WorkRequest())
        await until_async(lambda: attempts)
        return handle

    async def again() -> Any:
        if use == "refresh":
            await handle.refresh_async()
        service.run_maintenance()
        waiting = await work.start_async(WorkRequest())
        assert executor.usage.running == 1
        step.go.set()
        await until_async(lambda: all_done(service, store))
        return await over(service, waiting), await over(service, handle)

    handle = asyncio.run(start())
    assert [answer(service, ended) for ended in asyncio.run(again())] == ["whole"] * 2
    assert attempts == [1, 1]


def test_close_waits_for_a_plain_function_whose_loop_has_ended(make_service, store, monkeypatch):
    """A close after the loop's end has the drain for a plain function, and keeps its result."""
    monkeypatch.setattr(store, "close", lambda: None)
    step, executor = Step(), running()
    service = make_service(store, executor)

    @service.method(NAME, at_most_once=True)
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        step()
        return WorkResponse("whole")

    async def start() -> str:
        name = (await work.start_async(WorkRequest())).name
        await until_async(step.begun.is_set)
        return name

    name = asyncio.run(start())
    closing = threading.Thread(target=service.close, args=(PATIENCE,))
    closing.start()
    until(lambda: service.edges.work.stopping)
    assert executor.usage.running == 1
    step.go.set()
    joined(closing)
    assert store.get(name).state.name == "SUCCEEDED"


def test_maintenance_releases_the_work_of_a_closed_loop(make_service, store):
    """The function's cleanup runs before the work is released, without a use of the service."""
    service = make_service(store, running())
    seen: list[str] = []

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(store.get(job.name).owner)
        raise AssertionError

    async def start() -> str:
        name = (await work.start_async(WorkRequest())).name
        await until_async(lambda: seen)
        return name

    loop = asyncio.new_event_loop()
    name = loop.run_until_complete(start())
    close_with_tasks(loop)
    service.run_maintenance()
    assert seen == ["begun", service.edges.work.owner]
    assert store.get(name).waits


def test_function_that_a_later_loop_closes_is_no_failure(make_service, store, caplog):
    """Work of a closed loop is released without a line about a failed attempt."""
    service = make_service(store, running())
    blocked = Blocked(service)
    loop = asyncio.new_event_loop()
    (name,) = loop.run_until_complete(blocked.start("a"))
    close_with_tasks(loop)
    blocked.may_go_on = True

    async def again() -> None:
        await service.get_async(name)
        await until_async(lambda: all_done(service, store))

    asyncio.run(again())
    assert blocked.begun == ["a", "a"]
    assert "failed" not in caplog.text


def test_error_of_a_cleanup_that_a_later_loop_runs_is_logged_as_it_is(make_service, store, caplog):
    """The log shows the function's own error, and no error about the context of the other task."""
    service = make_service(store, running())
    begun: list[int] = []

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.append(job.attempt)
        try:
            if job.attempt == 1:
                await asyncio.Event().wait()
        except GeneratorExit:
            raise KeyError("the cleanup failed") from None
        return WorkResponse(request.text)

    async def start() -> str:
        name = (await work.start_async(WorkRequest())).name
        await until_async(lambda: begun)
        return name

    loop = asyncio.new_event_loop()
    name = loop.run_until_complete(start())
    close_with_tasks(loop)

    async def again() -> None:
        await service.get_async(name)
        await until_async(lambda: all_done(service, store))

    asyncio.run(again())
    assert begun == [1, 2]
    assert "the cleanup failed" in caplog.text
    assert "Context" not in caplog.text


def test_loop_that_has_cancelled_its_tasks_begins_no_work_until_it_is_used(make_service, store):
    """Work released by a loop that ends is not begun there again; a loop that goes on begins it."""
    service = make_service(store, running())
    blocked = Blocked(service)

    async def main() -> None:
        (name,) = await blocked.start("a")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await until_async(lambda: store.get(name).waits)
        await asyncio.to_thread(service.run_maintenance)
        assert blocked.begun == ["a"]
        blocked.may_go_on = True
        assert not (await service.get_async(name)).done
        await until_async(lambda: all_done(service, store))

    asyncio.run(main())
    assert blocked.begun == ["a", "a"]


def test_work_of_tasks_that_are_cancelled_one_after_the_other_is_released(make_service, store):
    """Work is released if the application cancels its task, even if other tasks go on."""
    service = make_service(store, running())
    blocked = Blocked(service)

    async def main() -> list[str]:
        before = asyncio.all_tasks()
        names = await blocked.start("ab", begun=2)
        rest = asyncio.all_tasks() - before - {*blocked.tasks}
        assert rest  # the executor's own task comes last
        for task in (*blocked.tasks, *rest):
            task.cancel()
            await asyncio.wait([task])
        return names

    names = asyncio.run(main())
    assert [store.get(name).waits for name in names] == [True, True]
    blocked.may_go_on = True

    async def again() -> None:
        await service.get_async(names[0])
        await until_async(lambda: all_done(service, store))

    asyncio.run(again())
    assert sorted(blocked.begun) == ["a", "a", "b", "b"]


def test_task_of_a_function_is_made_by_the_task_factory_of_the_application(make_service, store):
    """Libraries that trace tasks set a task factory."""
    service = make_service(store, running())
    made: list[str] = []

    def make(loop: Any, coroutine: Any, **options: Any) -> Any:
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)

    method = declared(service)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(make)
        started = await method.start_async(WorkRequest("a"))
        assert (await over(service, started.operation)).response is not None

    asyncio.run(main())
    assert any(name.endswith("live") for name in made)


def test_function_that_cancels_its_own_task_fails_alone(make_service, store):
    """Work whose task cancels itself fails; other work goes on, and threads begin more work."""
    service = make_service(store, running())
    begun: list[str] = []
    may_go_on = threading.Event()

    @service.method(NAME)
    async def work(request: WorkRequest, _: Job[WorkMetadata]) -> WorkResponse:
        begun.append(request.text)
        if request.text.startswith("self"):
            own = asyncio.current_task()
            assert own is not None
            await asyncio.sleep(0.001 if request.text == "self, later" else 0)
            own.cancel()
            await asyncio.sleep(PATIENCE)
        await until_async(may_go_on.is_set)
        return WorkResponse(request.text)

    async def main() -> None:
        other = (await work.start_async(WorkRequest("other"))).operation
        await until_async(lambda: begun == ["other"])
        for text in ("self", "self, later"):
            wrong = await over(service, (await work.start_async(WorkRequest(text))).operation)
            assert wrong.error is not None
            assert wrong.error.code == Code.INTERNAL
        later = (await asyncio.to_thread(work.start, WorkRequest("later"))).operation
        may_go_on.set()
        for one in (other, later):
            assert (await over(service, one)).response is not None

    asyncio.run(main())
    assert begun == ["other", "self", "self, later", "later"]


@EACH_STORE
@pytest.mark.parametrize("text", ["at once", "suspended"])
def test_function_that_cancels_its_own_task_in_its_last_step_fails_alone(make_service, store, text):
    """The cancellation neither reaches the write of the end, nor counts as the end of the loop."""
    service = make_service(store, running())

    @service.method(NAME)
    async def work(request: WorkRequest, _: Job[WorkMetadata]) -> WorkResponse:
        if request.text == "suspended":
            await asyncio.sleep(0)
        if request.text != "later":
            own = asyncio.current_task()
            assert own is not None
            own.cancel()
        return WorkResponse(request.text)

    async def main() -> None:
        wrong = await over(service, (await work.start_async(WorkRequest(text))).operation)
        assert wrong.error is not None
        assert wrong.error.code == Code.INTERNAL
        await until_async(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        later = (await asyncio.to_thread(work.start, WorkRequest("later"))).operation
        assert (await over(service, later)).response is not None

    asyncio.run(main())


@EACH_STORE
def test_task_that_is_cancelled_after_its_function_does_not_end_the_loop(make_service, store):
    """The result is stored, and threads begin more work on the loop."""
    service = make_service(store, running())

    @service.method(NAME)
    async def work(request: WorkRequest, _: Job[WorkMetadata]) -> WorkResponse:
        own = asyncio.current_task()
        assert own is not None
        if request.text == "first":
            asyncio.get_running_loop().call_soon(own.cancel)
        return WorkResponse(request.text)

    async def main() -> None:
        first = (await work.start_async(WorkRequest("first"))).operation
        assert (await over(service, first)).response is not None
        await until_async(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        later = (await asyncio.to_thread(work.start, WorkRequest("later"))).operation
        assert (await over(service, later)).response is not None

    asyncio.run(main())


def test_no_task_is_left_after_a_task_that_was_cancelled_before_its_first_step(make_service):
    """The executor's own task ends with the last function, also if another task was cancelled."""
    store = MemoryStore()  # a start returns before its work begins
    service = make_service(store, running())
    begun: list[str] = []
    wake = asyncio.Event()

    @service.method(NAME)
    async def work(request: WorkRequest, _: Job[WorkMetadata]) -> WorkResponse:
        begun.append(request.text)
        if request.text == "first":
            await wake.wait()
        return WorkResponse(request.text)

    async def main() -> None:
        first = (await work.start_async(WorkRequest("first"))).operation
        await until_async(lambda: begun == ["first"])
        before = asyncio.all_tasks()
        second = (await work.start_async(WorkRequest("second"))).operation
        (unbegun,) = asyncio.all_tasks() - before
        unbegun.cancel()
        await until_async(unbegun.done)
        await service.get_async(second.name)  # now the executor knows that the loop goes on
        wake.set()
        assert (await over(service, first)).response is not None
        await until_async(lambda: all_done(service, store))
        await until_async(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(main())
    assert begun == ["first", "second"]


def test_own_cancellation_fails_while_tasks_that_were_cancelled_before_clean_up(
    make_service, store
):
    """If a loop goes on after it has cancelled all tasks, only the work of these is released."""
    service = make_service(store, running())
    seen: list[str] = []
    may_end = threading.Event()

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        seen.append(f"{request.text} {job.attempt}")
        if request.text == "own":
            own = asyncio.current_task()
            assert own is not None
            asyncio.get_running_loop().call_soon(own.cancel)
        if job.attempt == 1:
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                seen.append("cleanup")
                await until_async(may_end.is_set)
        return WorkResponse(request.text)

    async def main() -> None:
        first = (await work.start_async(WorkRequest("first"))).operation
        await until_async(lambda: seen == ["first 1"])
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await until_async(lambda: seen == ["first 1", "cleanup"])
        assert not (await service.get_async(first.name)).done
        own = (await work.start_async(WorkRequest("own"))).operation
        await until_async(lambda: seen[2:] == ["own 1", "cleanup"])
        may_end.set()
        wrong = await over(service, own)
        assert wrong.error is not None
        assert wrong.error.code == Code.INTERNAL
        await service.get_async(first.name)
        await until_async(lambda: all_done(service, store))

    asyncio.run(main())
    assert seen[4:] == ["first 2"]


@pytest.mark.parametrize("at_most_once", [False, True])
def test_result_is_stored_if_the_loop_ends_while_a_hook_runs(
    make_service, clock, tmp_path, at_most_once
):
    """A thread stores the result of a function whose loop ends before the write."""
    store = SQLiteStore(tmp_path / "operations.db", clock=clock)
    service = make_service(store, running())
    step = Step()

    def final(metadata: Any, state: Any) -> Any:
        step()
        return metadata

    @service.method(NAME, at_most_once=at_most_once, final_metadata=final)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await job.report_async(WorkMetadata(50))
        return WorkResponse("whole")

    async def end_hook() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            step.go.set()  # after the loop has cancelled all tasks; its end waits for the hook

    async def start() -> str:
        name = (await work.start_async(WorkRequest())).name
        await until_async(step.begun.is_set)
        ending = asyncio.create_task(end_hook())
        await asyncio.sleep(0)
        assert not ending.done()
        return name

    name = asyncio.run(start())
    until(lambda: not service.edges.work.held())
    record = store.get(name)
    assert (record.state.name, record.attempt, record.lost_attempts) == ("SUCCEEDED", 1, 0)


def test_close_ends_the_retries_of_a_result_whose_loop_has_ended(make_service, clock, tmp_path):
    """A close releases work whose result a thread tries to store while the store is unavailable."""
    store = SQLiteStore(tmp_path / "operations.db", clock=clock)
    service = make_service(store, running())
    refused: list[str] = []

    def away(*_: object) -> None:
        refused.append("away")
        raise Unavailable("gone for a moment")

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        store.update_later = store.update = away  # until the end of the test
        return WorkResponse("whole")

    async def start() -> None:
        await work.start_async(WorkRequest())
        await until_async(lambda: refused)

    asyncio.run(start())
    assert service.edges.work.held()
    service.close(0)
    assert not service.edges.work.held()


def test_start_whose_caller_has_left_does_not_hold_up_other_starts(make_service, clock):
    """If a start without its caller runs a long function, the starts of others go on."""
    step = Step()
    long = make_service(Slow(clock), InlineExecutor())
    short = make_service(Slow(clock), ThreadExecutor(1))

    async def leave(method: Any, store: Any) -> None:
        start = asyncio.create_task(method.start_async(WorkRequest()))
        await store.handed_in()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        store.at_once = True
        await store.let()

    asyncio.run(leave(work(long, step), long.store))
    step.reached()
    asyncio.run(leave(work(short), short.store))
    until(lambda: all(record.done for record in records(short.store)))
    step.go.set()
    until(lambda: all(record.done for record in records(long.store)))


def test_close_does_not_wait_for_threads_that_an_async_function_has_left(make_service):
    """A close without a drain returns while a thread of the executor's own loop still runs."""
    step = Step()
    service = make_service(MemoryStore(), AsyncioExecutor())

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await asyncio.to_thread(step)
        return WorkResponse()

    work.start(WorkRequest())
    step.reached()
    closing = threading.Thread(target=service.close, args=(0,))
    closing.start()
    joined(closing)
    assert not step.go.is_set()
    step.go.set()


@pytest.mark.parametrize("wrong", [None, 5, "ab", iter([])])
def test_requests_of_start_many_must_be_a_list(make_service, store, wrong):
    """``start_many`` takes requests and ids in a list or tuple, and refuses a string."""
    work = declared(make_service(store))
    with pytest.raises(InvalidArgument, match="requests: must be a list or a tuple"):
        work.start_many(wrong)
    with pytest.raises(InvalidArgument, match="request_ids: must be a list or a tuple"):
        asyncio.run(work.start_many_async([], request_ids=wrong))


def test_work_of_a_service_closed_on_its_loop_is_released(service, store):
    """A close on the loop cannot wait for work on that loop, so the work is released."""
    blocked = Blocked(service)

    async def main() -> None:
        await blocked.start("a")
        closing, store.close = store.close, lambda: None
        service.close(3600)
        store.close = closing

    asyncio.run(main())
    assert [record.waits for record in records(store)] == [True]


# -- errors in a start ----------------------------------------------------------------------------


@on_a_loop
async def test_stop_iteration_of_a_function_does_not_hang(service):
    """A StopIteration, which no future can carry, is raised as a RuntimeError."""
    work = declared(service, validate=lambda request: next(iter(())))
    with pytest.raises(RuntimeError):
        await asyncio.wait_for(work.start_async(WorkRequest()), PATIENCE)


def test_failed_start_frees_its_worker(make_service, clock, monkeypatch):
    """If the store's clock raises in a start, the worker is free again."""
    store, executor = MemoryStore(clock), ThreadExecutor(1)
    work = method_of(make_service(store, executor))
    with monkeypatch.context() as patched:
        patched.setattr(store, "now", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            work.start(WorkRequest("a"))
    assert executor.reserve() is not None
