"""What applications do wrong, or at a bad moment: it costs them their operation, not more."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from datetime import timedelta

import pytest

from lro import Code, InvalidArgument, Job, WorkerLost, testing
from lro._engine.job import JobControl
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing._samples import REQUEST, held
from tests.service_steps import answer, ended, reason, recovered, unpacked
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"


def work_of(service, body=None, name=NAME, **options):
    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        return WorkResponse("done") if body is None else body(request, job)

    return service.method(name, **options)(work)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_final_metadata_that_raises_a_base_exception(make_service, store, error):
    """It ends its operation with INTERNAL, also in the thread that keeps the leases."""

    def settle(metadata, state):
        raise error

    service = make_service(store)
    method = work_of(service, final_metadata=settle)
    operation = method.start(WorkRequest(), metadata=WorkMetadata(1))
    assert reason(ended(service, operation)) == (Code.INTERNAL, "METHOD_FAILED")


def test_a_settle_that_fails_for_lost_work(make_service, store, clock):
    """The operation ends correctly without it."""

    def settle(metadata, state):
        raise SystemExit

    service = make_service(store, InlineExecutor())
    work_of(service, final_metadata=settle)
    metadata = service.types.pack(WorkMetadata(1))
    lost = held(clock, method=NAME, metadata=metadata, attempt=1)
    store.insert(lost, REQUEST, None)
    clock.advance(15)
    recovered(service, clock)
    assert reason(service.get(lost.name)) == (Code.ABORTED, "WORKER_LOST")


def test_a_settle_that_calls_the_service(make_service, store):
    """It is asked beside the store: it may read and even start what it likes, however long."""
    service = make_service(store, ThreadExecutor(2))
    other = work_of(service, name="acme.v1.Works.Other")
    started = []

    def settle(metadata, state):
        started.append(other.start(WorkRequest()))
        return WorkMetadata(100)

    method = work_of(service, final_metadata=settle)
    found = ended(service, method.start(WorkRequest(), metadata=WorkMetadata(1)))
    assert (found.state, unpacked(service, found).percent) == ("SUCCEEDED", 100)
    assert ended(service, started[0]).done


def test_metadata_that_changes_while_the_last_one_is_made(make_service, store):
    """A request to cancel leaves its mark: the last metadata is made again."""
    service = make_service(store)
    calls = []

    def settle(metadata, state):
        calls.append(metadata.cancel_requested)
        if len(calls) == 1:
            service.cancel(name[0])
        return metadata

    name = []
    go = threading.Event()

    def body(request, job):
        assert go.wait(PATIENCE)
        return WorkResponse("in time")

    method = work_of(service, body, final_metadata=settle)
    name.append(method.start(WorkRequest(), metadata=WorkMetadata(1)).name)
    go.set()
    found = ended(service, name[0])
    assert (calls, unpacked(service, found).cancel_requested) == ([False, True], True)
    assert answer(service, found) == "in time"


def test_a_settle_that_gives_another_class(make_service, store):
    """As for a function's own result."""
    service = make_service(store)
    method = work_of(service, final_metadata=lambda metadata, state: WorkResponse("no metadata"))
    operation = method.start(WorkRequest(), metadata=WorkMetadata(1))
    assert reason(ended(service, operation)) == (Code.INTERNAL, "METHOD_FAILED")


@pytest.mark.parametrize("drain", [float("nan"), float("inf"), "soon"])
def test_a_drain_that_is_no_time(make_service, drain):
    """Is refused before anything is closed."""
    service = make_service()
    with pytest.raises(InvalidArgument, match="drain"):
        service.close(drain)
    assert work_of(service).start(WorkRequest())


def test_a_target_that_is_no_text(make_service, store):
    """Is refused, on every store alike."""
    service = make_service(store)
    method = work_of(service, exclusive_target=lambda request: 7)
    with pytest.raises(InvalidArgument, match="target"):
        method.start(WorkRequest())


def test_functions_that_block_keep_no_async_function_waiting(make_service):
    """On an event loop's executor each has a thread of its own."""
    service = make_service(executor=AsyncioExecutor(100))
    go = threading.Event()
    begun = threading.Semaphore(0)

    def body(request, job):
        begun.release()
        assert go.wait(PATIENCE)
        return WorkResponse()

    plain = work_of(service, body)

    @service.method("acme.v1.Works.Async")
    async def quick(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        return WorkResponse("quick")

    blocked = [plain.start(WorkRequest()) for _ in range(40)]
    assert all(begun.acquire(timeout=PATIENCE) for _ in blocked)
    assert answer(service, ended(service, quick.start(WorkRequest()))) == "quick"
    go.set()
    for operation in blocked:
        ended(service, operation)


def test_work_that_stops_in_time_is_not_begun_twice(make_service, store):
    """A service that closes asks its work to stop, and hands it back when that has stopped."""
    service = make_service(store, ThreadExecutor(1))
    owners, begun = [], threading.Event()

    def body(request, job):
        begun.set()
        try:
            job.sleep(PATIENCE)
        finally:
            owners.append(store.get(job.name).owner)
        raise AssertionError

    name = work_of(service, body, worker_lost=WorkerLost.FAIL).start(WorkRequest()).name
    assert begun.wait(PATIENCE)
    whole, store.close = store.close, lambda: None
    service.close(timedelta())
    store.close = whole
    record = store.get(name)
    assert (owners != [""], record.owner, record.attempt, record.unclaimed) == (True, "", 1, True)


def test_a_subscription_whose_thread_cannot_start(make_service, clock, monkeypatch, caplog):
    """The start succeeds all the same, the next one tries again, and all can be closed."""

    class Shared(MemoryStore):
        shared = True

    service = make_service(Shared(clock))
    method = work_of(service)
    whole = threading.Thread.start

    def start(thread):
        if thread.name == "lro-listener":
            raise RuntimeError("can't start new thread")
        whole(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert ended(service, method.start(WorkRequest())).done
    assert "changes by other processes are not received now" in caplog.text
    monkeypatch.undo()
    assert ended(service, method.start(WorkRequest())).done
    assert service._background.change_listener._thread.is_alive()
    service.close()


def test_a_job_that_was_asked_to_stop_before_any_callback():
    """Who begins to watch it then is woken at once."""
    woken = []
    control = JobControl(
        name="n", attempt=1, publish=print, recall=lambda _: None, clock=lambda: 0.0
    )
    control.stop()
    control.on_stop(lambda: woken.append(1))
    assert woken == [1]


def test_a_report_while_the_metadata_is_read_is_what_is_seen_then():
    """One thread may read the first metadata while another reports."""
    published = []

    def publish(control, metadata):
        published.append(metadata)
        yield from ()

    def recall(seen):
        control.report("reported")
        return seen

    control = JobControl(
        name="n", attempt=1, publish=publish, recall=recall, seen="first", clock=lambda: 0.0
    )
    assert control.metadata == "reported"
    assert published == ["reported"]


def test_closing_from_under_a_write(tmp_path, monkeypatch):
    """As in a handler of signals: it does not hang, and the connection ends with the process."""
    store = SQLiteStore(tmp_path / "operations.db")
    writer = store._file._writer
    monkeypatch.setattr(writer, "pause", lambda seconds: False)
    writer.close()
    assert writer._connection is not None
    monkeypatch.undo()
    store.close()


@pytest.mark.parametrize("ends", [True, False])
def test_close_with_running_work_logs_counts(make_service, store, caplog, ends):
    """How many operations it waits for and how long, then how many others have to do."""
    begun, stopping = threading.Event(), threading.Event()

    class Executor(ThreadExecutor):
        def join(self, seconds):
            stopping.set()
            return super().join(seconds)

    service = make_service(store, Executor(1))

    def body(request, job):
        begun.set()
        if ends:
            assert stopping.wait(PATIENCE)
        else:
            job.sleep(PATIENCE)
        return WorkResponse()

    work_of(service, body).start(WorkRequest())
    assert begun.wait(PATIENCE)
    with caplog.at_level(logging.INFO, "lro"):
        service.close(PATIENCE if ends else 0)
    assert [one.getMessage() for one in caplog.records if one.getMessage().startswith("stop")] == [
        f"stopping: operations in hand: 1, time to end: {PATIENCE if ends else 0:g} s at most",
        f"stopped: operations handed back: {0 if ends else 1} of 1",
    ]


def test_job_sleep_in_async_function_is_refused(make_service, store, caplog):
    """It would block the event loop, and all other functions on it."""
    service = make_service(store, AsyncioExecutor(1))

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await asyncio.to_thread(job.sleep, 0)  # here it blocks no event loop
        with pytest.raises(RuntimeError) as refused:
            job.sleep(1)
        return WorkResponse(str(refused.value))

    assert answer(service, ended(service, work.start(WorkRequest()))) == (
        "job.sleep would hold up the event loop that runs in this thread: "
        "use `await job.sleep_async(...)` in an async function"
    )


def test_job_sleep_without_asyncio_does_not_import_it(monkeypatch):
    """No event loop runs where nothing has imported it, and the import is slow."""
    monkeypatch.delitem(sys.modules, "asyncio")
    control = JobControl(
        name="n", attempt=1, publish=print, recall=lambda _: None, clock=lambda: 0.0
    )
    control.job.sleep(0)
    assert "asyncio" not in sys.modules


def test_retries_of_plain_function_started_on_event_loop_pause(make_service, store, monkeypatch):
    """The caller has chosen to wait there, and the function itself calls no ``job.sleep``."""
    monkeypatch.setattr("tenacity.wait_random_exponential.__call__", lambda wait, state: 0.0)
    service = make_service(store, InlineExecutor())

    def body(request, job):
        calls.append(1)
        if len(calls) == 1:
            raise OSError
        return WorkResponse()

    calls = []
    method = work_of(service, body, attempts=2, retry_on=(OSError,))

    async def main():
        return method.start(WorkRequest()).operation

    assert asyncio.run(main()).state == "SUCCEEDED"
    assert len(calls) == 2


def test_close_without_work_logs_nothing(make_service, store, caplog):
    """There is nothing to wait for."""
    with caplog.at_level(logging.INFO, "lro"):
        make_service(store).close()
    assert caplog.records == []


def test_a_job_for_tests_reports_to_a_function():
    """It begins with the metadata given, and shows the last report."""
    reports = []
    job = testing.job(reports.append, metadata=WorkMetadata(1))
    assert (job.name, job.attempt, job.metadata) == ("operations/test", 1, WorkMetadata(1))
    job.report(WorkMetadata(2))
    assert (job.metadata, reports) == (WorkMetadata(2), [WorkMetadata(2)])
