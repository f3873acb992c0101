"""Checkpoints and steps: the next attempt reads the stored values and skips finished steps."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

import lro
from lro import Code, Job, Limits, Service, State, TypeRegistry
from lro.adapters import Store
from lro.errors import Cancelled, EncodingError, LeaseLost, MessageTooLarge, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock, job
from lro.types import Timestamp
from tests.engine.engine_parts import EACH_STORE, NAME, raising
from tests.service_fixtures import MakeService, store_of
from tests.service_steps import answer, ended, reason
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

EXECUTORS: dict[str, Callable[[], Any]] = {
    "inline": InlineExecutor,
    "threads": lambda: ThreadExecutor(2),
    "asyncio": AsyncioExecutor,
}


@lro.message("acme.v1.Part")
@attrs.frozen
class Part:
    """A message class that is neither request nor response."""

    number: int = 0
    names: tuple[str, ...] = ()


class Counting(MemoryStore):
    """A store that counts how often checkpoints are read and written."""

    reads = 0
    kept = 0

    def checkpoints(self, name: str) -> dict[str, Any]:
        self.reads += 1
        return super().checkpoints(name)

    def checkpoint(self, *facts: Any) -> None:
        self.kept += 1
        super().checkpoint(*facts)


def hand_back(service: Service, job: Job[Any]) -> None:
    """End this attempt so that another attempt begins, as when the process stops."""
    released(service, job)
    service.edges.work.announce_work()
    raise LeaseLost(job.name, job.attempt, job.attempt)


def released(service: Service, job: Job[Any]) -> None:
    """Release the operation, which is then due at once."""
    service.store.update(
        job.name, lambda record: record.next_version(owner="", lease_until=record.create_time)
    )


def repeated(service: Service, body: Callable[[WorkRequest, Job[Any]], Any], **more: Any) -> Any:
    """Run an operation, which `body` may release, to its end, and return the operation."""

    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        return WorkResponse(str(body(request, job)))

    method = service.method(NAME, **more)(work)
    return finished(service, method.start(WorkRequest("x")).operation)


def finished(service: Service, operation: lro.Operation) -> lro.Operation:
    """Run maintenance to start further attempts until the operation ends. Return the operation."""

    def done() -> bool:
        service.run_maintenance()
        return service.get(operation.name).done

    until(done)
    return ended(service, operation)


# -- what an attempt reads ------------------------------------------------------------------------


@EACH_STORE
@pytest.mark.parametrize("kind", EXECUTORS)
def test_completed_steps_do_not_run_again(
    store: Store, kind: str, make_service: MakeService
) -> None:
    """On every executor and store, later attempts skip finished steps but not interrupted steps."""
    service, done = make_service(store, EXECUTORS[kind]()), list[str]()

    def effect(text: str, *, more: str = "") -> str:
        done.append(text)
        return text + more

    def body(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        first = job.step("first", effect, request.text, more="!")
        job.checkpoint("far", {"page": job.attempt})
        assert job.step("first", effect, "not again") == first
        if job.attempt == 1:
            job.step("second", lambda: (done.append("interrupted"), hand_back(service, job)))
        second = job.step("second", effect, "b")
        return WorkResponse(f"{first}{second}{job.checkpointed('far')}{job.checkpointed('no', 5)}")

    async def abody(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        async def aeffect(text: str, *, more: str = "") -> str:
            await asyncio.sleep(0)
            return effect(text, more=more)

        async def interrupted() -> None:
            done.append("interrupted")
            hand_back(service, job)

        first = await job.step_async("first", aeffect, request.text, more="!")
        await job.checkpoint_async("far", {"page": job.attempt})
        assert await job.step_async("first", aeffect, "not again") == first
        if job.attempt == 1:
            await job.step_async("second", interrupted)
        second = await job.step_async("second", aeffect, "b")
        far, no = await job.checkpointed_async("far"), await job.checkpointed_async("no", 5)
        return WorkResponse(f"{first}{second}{far}{no}")

    function: Any = abody if kind == "asyncio" else body
    method = service.method(NAME)(function)
    operation = method.start(WorkRequest("a")).operation
    found = finished(service, operation)
    assert answer(service, found) == "a!b{'page': 2}5"
    assert done == ["a", "interrupted", "b"]
    assert dict(store.checkpoints(operation.name)) == {}


VALUES: dict[str, Any] = {
    "null": None,
    "flags": [True, False],
    "numbers": [0, -1, 2**70, 1.5, 1e300],
    "texts": ["", "\0 \u2028 \U0001f600"],
    "nested": {"a": [{"": []}, {}], "@type": "not a message"},
    "message": Part(7, ("a", "b")),
    "response": WorkResponse("x"),
    "time": Timestamp.from_datetime(datetime(2030, 1, 2, tzinfo=UTC)),
}


@EACH_STORE
def test_values_are_returned_as_stored(store: Store, make_service: MakeService) -> None:
    """A stored JSON value or message is read as an equal, new object of the same type."""
    service = make_service(store, InlineExecutor(), types=TypeRegistry(Part))
    seen: list[dict[str, Any]] = []

    def body(_: WorkRequest, job: Job[Any]) -> str:
        if job.attempt == 1:
            for key, value in VALUES.items():
                job.checkpoint(key, value)
        found = {key: job.checkpointed(key) for key in VALUES}
        found["nested"]["a"].append("mine")
        seen.append({key: job.checkpointed(key) for key in VALUES})
        if job.attempt == 1:
            hand_back(service, job)
        return "done"

    assert repeated(service, body).response is not None
    assert seen == [VALUES, VALUES]
    assert [list(map(type, one.values())) for one in seen] == [list(map(type, VALUES.values()))] * 2


def test_protobuf_messages_are_returned_as_stored(make_service: MakeService) -> None:
    """Protobuf messages are stored in binary form. Duration is refused: lro has its own class."""
    context = pytest.importorskip("google.protobuf.source_context_pb2").SourceContext
    ours = pytest.importorskip("google.protobuf.duration_pb2").Duration
    service = make_service(executor=InlineExecutor(), types=TypeRegistry(context, ours))

    def body(_: WorkRequest, job: Job[Any]) -> str:
        found = job.step("context", context, file_name="a.proto")
        if job.attempt == 1:
            hand_back(service, job)
        with pytest.raises(EncodingError, match="'ours': must be"):
            job.checkpoint("ours", ours())
        assert type(found) is context
        return str(found.file_name)

    assert answer(service, repeated(service, body)) == "a.proto"


def test_first_attempt_reads_no_checkpoints_and_a_later_one_reads_once(
    make_service: MakeService,
) -> None:
    store = Counting()
    service, reads = make_service(store, InlineExecutor()), list[int]()

    def body(_: WorkRequest, job: Job[Any]) -> str:
        for number in range(3):
            job.step(f"step {number}", int)
            job.checkpointed("other")
        reads.append(store.reads)
        if job.attempt == 1:
            hand_back(service, job)
        return "done"

    repeated(service, body)
    assert (reads, store.kept) == ([0, 1], 3)


def test_attempt_after_a_failure_continues_after_the_last_step(make_service: MakeService) -> None:
    """After an error, the retry skips finished steps, as after the loss of a worker."""
    service, done = make_service(executor=InlineExecutor()), list[int]()

    def body(_: WorkRequest, job: Job[Any]) -> str:
        job.step("only", done.append, job.attempt)
        if job.attempt == 1:
            raise lro.RetryLater(timedelta(0))
        return "done"

    assert (answer(service, repeated(service, body)), done) == ("done", [1])


def test_threads_of_a_function_share_checkpoints(make_service: MakeService) -> None:
    """Steps that run in several threads are all stored and can be read afterwards."""
    service = make_service(executor=ThreadExecutor(1))

    def body(_: WorkRequest, job: Job[Any]) -> int:
        threads = [
            threading.Thread(target=job.step, args=(str(n), functools.partial(int, n)))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(job.checkpointed(str(n)) for n in range(8))

    assert answer(service, repeated(service, body)) == "28"


# -- refused values --------------------------------------------------------------------------------


DEEP: list[Any] = []
for _ in range(40):
    DEEP = [DEEP]
ODD: list[Any] = [(1, 2), {1: 2}, {"a": {3}}, math.nan, b"x", datetime(2030, 1, 1), "\ud800", DEEP]


@pytest.mark.parametrize("value", [*ODD, uuid.UUID(int=1), object], ids=repr)
def test_value_that_json_would_change_is_refused(
    value: Any, make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that JSON would change is refused. The error names the key, and nothing is stored."""
    store = Counting()
    service = make_service(store, InlineExecutor())

    def body(_: WorkRequest, job: Job[Any]) -> None:
        with pytest.raises(EncodingError, match=r"^the checkpoint 'parts': must be a JSON value"):
            job.step("parts", lambda: value)
        job.checkpoint("more", value)

    found = repeated(service, body)
    assert reason(found) == (Code.INTERNAL, "ENCODING_FAILED")
    assert store.kept == 0
    said = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert all("the checkpoint 'more': must be a JSON value" in line for line in said)
    assert said
    assert {line.rpartition(", ")[2] for line in said} == {
        f"not a value of type {type(value).__qualname__}"
    }


def test_a_message_that_cannot_be_encoded_is_refused(make_service: MakeService) -> None:
    """If a message cannot be encoded, the error names the step and the message's field."""
    service = make_service(executor=InlineExecutor(), types=TypeRegistry(Part))

    def body(_: WorkRequest, job: Job[Any]) -> None:
        wrong: Any = "seven"
        job.step("parts", Part, wrong)

    with pytest.raises(EncodingError, match=r"^the checkpoint 'parts', a acme.v1.Part: field num"):
        body(WorkRequest(), job())
    assert reason(repeated(service, body)) == (Code.INTERNAL, "ENCODING_FAILED")


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "\0", "\ud800", None, 5, b"x"])
def test_checkpoint_key_must_be_a_printable_string(key: Any, make_service: MakeService) -> None:
    """Each checkpoint method of a job refuses an invalid key before a step's function is called."""
    error = ValueError if isinstance(key, str) else TypeError
    with pytest.raises(error, match=r"^key: must be a"):
        job().checkpoint(key, 1)
    with pytest.raises(error, match=r"^key: must be a"):
        job().checkpointed(key)
    with pytest.raises(error, match=r"^key: must be a"):
        job().step(key, pytest.fail, "it was called")


def test_limits_bound_a_value_and_all_of_an_operation(make_service: MakeService) -> None:
    """The byte limit of all checkpoints covers all attempts. A replaced value no longer counts."""
    limits = Limits(checkpoint_bytes=200, checkpoints_bytes=1000)
    service = make_service(executor=InlineExecutor(), limits=limits)

    def body(_: WorkRequest, job: Job[Any]) -> str:
        if job.attempt == 1:
            for n in range(9):
                job.checkpoint(str(n), "x" * 7)  # 110 bytes: 9 for the text, 1 for the key, and 100
            hand_back(service, job)
        job.checkpoint("0", "y" * 7)
        with pytest.raises(MessageTooLarge) as one:
            job.checkpoint("0", "x" * 98)
        with pytest.raises(MessageTooLarge) as all_:
            job.checkpoint("9", "")
        assert (one.value.size, one.value.limit, one.value.setting) == (
            201,
            200,
            "checkpoint_bytes",
        )
        assert (all_.value.size, all_.value.setting) == (1093, "checkpoints_bytes")
        text = "the checkpoint '9', with all others of the operation,: has 1093 bytes, at most 1000"
        assert str(all_.value).startswith(text)
        job.checkpoint("0", "x" * 17)
        return job.checkpointed("0")

    assert answer(service, repeated(service, body)) == "x" * 17


def test_values_that_are_being_stored_count_for_the_limit(make_service: MakeService) -> None:
    """Threads of a function cannot exceed the limit together. A failed write counts no more."""
    meanwhile: list[Callable[[], object]] = []

    class Slow(MemoryStore):
        def checkpoint(self, *facts: Any) -> None:
            if meanwhile:
                meanwhile.pop()()  # a step of another thread
            super().checkpoint(*facts)

    limits = Limits(checkpoint_bytes=200, checkpoints_bytes=350)
    service = make_service(Slow(), InlineExecutor(), limits=limits)

    def body(_: WorkRequest, job: Job[Any]) -> str:
        def store_too_much() -> None:
            with pytest.raises(MessageTooLarge):
                job.checkpoint("b", "x" * 48)  # 151 bytes

        def fail() -> None:
            raise EncodingError("b", "", "cannot be stored")

        meanwhile.append(store_too_much)
        job.checkpoint("a", "x" * 97)  # 200 bytes
        meanwhile.append(fail)
        with pytest.raises(EncodingError):
            job.checkpoint("b", "x" * 47)  # 150 bytes
        meanwhile.append(lambda: job.checkpoint("a", "x" * 7))  # 110 bytes
        job.checkpoint("a", "x" * 97)
        store_too_much()
        job.checkpoint("b", "x" * 47)
        return "stored"

    assert answer(service, repeated(service, body)) == "stored"


def test_replaced_attempt_cannot_store_checkpoints(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint of a replaced attempt raises LeaseLost and is logged as a refused write."""
    service = make_service(executor=InlineExecutor())

    def body(_: WorkRequest, job: Job[Any]) -> str:
        if job.attempt == 1:
            job.checkpoint("a", 1)
            released(service, job)
            service.run_maintenance()  # the second attempt runs in this call
            with pytest.raises(LeaseLost):
                job.checkpoint("a", 3)
            with pytest.raises(LeaseLost):
                job.step("b", int)
            raise LeaseLost(job.name, 1, 2)
        assert job.checkpointed("a") == 1
        return "second"

    assert answer(service, repeated(service, body)) == "second"
    assert caplog.text.count("of attempt 1 was refused") == 2


def test_attempt_frees_its_memory_at_its_end(make_service: MakeService) -> None:
    """A request, which may be large, is freed at its attempt's end without garbage collection."""
    service = make_service()
    seen: list[weakref.ref[WorkRequest]] = []

    @service.method(NAME)
    def step(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        seen.append(weakref.ref(request))
        return WorkResponse(job.step("one", str, 1))

    gc.disable()
    try:
        for _ in range(2):  # the thread frees a task when it gets the next task
            assert answer(service, ended(service, step.start(WorkRequest()))) == "1"
        until(lambda: seen[0]() is None)
    finally:
        gc.enable()


def test_thread_left_behind_cannot_store_checkpoints(make_service: MakeService) -> None:
    """After the function has returned, a step in a thread that it left behind raises LeaseLost."""
    service, left, caught = make_service(), threading.Event(), list[BaseException]()
    threads: list[threading.Thread] = []

    @service.method(NAME)
    def leave(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        def late() -> None:
            left.wait(PATIENCE)
            try:
                job.step("late", str, 1)
            except BaseException as exc:
                caught.append(exc)

        threads.append(threading.Thread(target=late))
        threads[0].start()
        return WorkResponse("done")

    assert answer(service, ended(service, leave.start(WorkRequest()))) == "done"
    until(lambda: not service.edges.work.held())
    left.set()
    threads[0].join(PATIENCE)
    assert [type(error) for error in caught] == [LeaseLost]


@pytest.mark.parametrize("overdue", [False, True])
def test_no_step_begins_once_the_work_is_to_stop(
    overdue: bool, make_service: MakeService, clock: ManualClock
) -> None:
    """After a cancel or timeout, no step begins.

    A checkpoint and the result of a running step are still stored.
    """
    store = Counting(clock)
    service = make_service(store, InlineExecutor())
    error = lro.errors.DeadlineExceeded if overdue else Cancelled

    def body(_: WorkRequest, job: Job[Any]) -> str:
        def stop() -> str:
            clock.advance(60) if overdue else service.cancel(job.name)
            return "stopped"

        assert job.step("one", stop) == "stopped"
        with pytest.raises(error):
            job.step("two", pytest.fail, "it was called")
        with pytest.raises(error):
            job.checkpointed("one")
        with pytest.raises(error):
            job.checkpoint("far", 5)
        assert set(store.checkpoints(job.name)) == {"one", "far"}
        job.raise_if_cancelled()
        return "never"

    found = repeated(service, body, time_limit=timedelta(seconds=30))
    assert found.error is not None
    wanted = Code.DEADLINE_EXCEEDED if overdue else Code.CANCELLED
    assert found.error.code == wanted


def test_checkpoint_is_retried_until_the_store_is_available(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is retried while the store is unavailable, and the function sees no error."""
    service = make_service(executor=InlineExecutor())
    whole, away = service.store.checkpoint, [True, True, False]

    def checkpoint(*facts: Any) -> None:
        if away.pop(0):
            raise Unavailable("away")
        whole(*facts)

    monkeypatch.setattr(service.store, "checkpoint", checkpoint)
    monkeypatch.setattr("lro._engine.flow.Pause.take", lambda _: None)

    def body(_: WorkRequest, job: Job[Any]) -> str:
        return job.step("a", str, "b")

    assert answer(service, repeated(service, body)) == "b"
    assert away == []


# -- on event loops --------------------------------------------------------------------------------


def test_blocking_checkpoint_call_on_a_loop_is_refused(make_service: MakeService) -> None:
    """A blocking checkpoint call on an event loop raises RuntimeError. In a thread it succeeds."""
    service, said = make_service(executor=AsyncioExecutor()), list[str]()

    @service.method(NAME)
    async def work(_: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        calls: list[Callable[[], object]] = [
            lambda: job.checkpoint("a", 1),
            lambda: job.checkpointed("a"),
            lambda: job.step("a", int),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match=r"use `await job.\w+_async\(...\)`") as found:
                call()
            said.append(str(found.value).split()[0])
        await asyncio.to_thread(job.checkpoint, "b", 2)
        with pytest.raises(TypeError, match="step 'c': must be a coroutine function"):
            await job.step_async("c", int)  # type: ignore[arg-type]  # int is no coroutine function
        return WorkResponse(str(await job.checkpointed_async("b")))

    found = ended(service, work.start(WorkRequest()))
    assert answer(service, found) == "2"
    assert said == ["job.checkpoint", "job.checkpointed", "job.step"]


def test_a_step_of_a_plain_function_takes_no_coroutine_function() -> None:
    async def later() -> None:
        pytest.fail("it was called")

    with pytest.raises(TypeError, match=r"step 'a': .*use `await job.step_async"):
        job().step("a", later)


def test_a_cancelled_step_of_a_coroutine_runs_again(make_service: MakeService) -> None:
    """A step that a cancel interrupts at its ``await`` is not stored, and runs again."""
    store = Counting()
    service, begun = make_service(store, AsyncioExecutor()), threading.Event()

    @service.method(NAME)
    async def work(_: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        async def forever() -> None:
            begun.set()
            await asyncio.sleep(3600)

        await job.step_async("forever", forever)
        raise AssertionError

    operation = work.start(WorkRequest()).operation
    assert begun.wait(PATIENCE)
    service.cancel(operation.name)
    found = ended(service, operation)
    assert found.error is not None
    assert (found.error.code, store.kept) == (Code.CANCELLED, 0)


# -- without a service -----------------------------------------------------------------------------


def sync(_: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Run two steps. The first one returns a message whose class no service has registered."""
    part = job.step("part", Part, 3)
    return job.step("answer", answered, part)


answered: Callable[[Part], WorkResponse] = raising(ConnectionError())


def test_a_function_with_steps_is_tested_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test job stores values in ``checkpoints``. A job created with such values is attempt 2."""
    kept: dict[str, Any] = {}
    with pytest.raises(ConnectionError):
        sync(WorkRequest(), job(checkpoints=kept))
    assert kept == {"part": Part(3)}
    monkeypatch.setitem(sync.__globals__, "answered", lambda part: WorkResponse(str(part.number)))
    again = job(checkpoints=kept)
    assert again.attempt == 2
    assert sync(WorkRequest(), again) == WorkResponse("3")
    assert kept == {"part": Part(3), "answer": WorkResponse("3")}
    assert sync(WorkRequest(), job(checkpoints={"answer": WorkResponse("4")})).text == "4"


def test_a_method_that_is_called_has_checkpoints(make_service: MakeService) -> None:
    """A direct call without a job keeps the checkpoints in memory."""
    method = make_service().method(NAME)(sync_of_step)
    assert method(WorkRequest("x")) == WorkResponse("x")


def sync_of_step(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Run one step."""
    return job.step("only", WorkResponse, request.text)


@pytest.fixture(params=["memory"])
def store(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
    """An empty store of the requested kind, which is a memory store by default."""
    with store_of(request.param, clock, tmp_path) as made:
        yield made


def test_checkpoint_does_not_change_the_operation(make_service: MakeService) -> None:
    """A checkpoint leaves the version and the update time of the operation unchanged."""
    service = make_service(executor=InlineExecutor())

    def body(_: WorkRequest, job: Job[Any]) -> str:
        before = service.store.get(job.name)
        job.checkpoint("a", 1)
        assert service.store.get(job.name) == before
        return str(before.state is State.IN_PROGRESS)

    assert answer(service, repeated(service, body)) == "True"
