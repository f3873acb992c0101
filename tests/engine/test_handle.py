"""Handles: what a start in process gives, with the classes of the method, in both colours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import lro
from lro.errors import OperationNotFound, WaitTimeout, WorkCancelled, WorkFailed
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.types import ErrorInfo
from tests.service_steps import Step
from tests.virtual_loop import on_a_loop
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"

Handle = lro.Handle[WorkResponse, WorkMetadata]
Ask = Callable[..., Any]


@pytest.fixture(params=["thread", "loop"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Calls a verb of a handle in a thread, or its twin for coroutines on an event loop."""

    def call(handle: Handle, verb: str, *arguments: Any) -> Any:
        if request.param == "thread":
            return getattr(handle, verb)(*arguments)
        return asyncio.run(getattr(handle, f"{verb}_async")(*arguments))

    return call


@pytest.fixture
def service(make_service: Any, store: Any) -> lro.Service:
    """A service on threads, over each kind of store."""
    made: lro.Service = make_service(store)
    return made


def echo(service: lro.Service) -> lro.Method[WorkRequest, WorkResponse, WorkMetadata]:
    """A method that answers what it is asked, after a report."""

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.report(WorkMetadata(percent=50))
        return WorkResponse(request.text)

    return work


def declared(service: lro.Service) -> lro.Method[WorkRequest, WorkResponse, WorkMetadata]:
    """A method whose work the test does."""
    return service.declare(NAME, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata)


def test_result_of_finished_work_is_response(service: lro.Service, ask: Ask) -> None:
    """It has the class that the method declares; the properties show the last state."""
    started = echo(service).start(WorkRequest("a"))
    assert ask(started, "result", timedelta(seconds=PATIENCE)) == WorkResponse("a")
    assert started.done
    assert started.operation == service.get(started.name)
    assert (started.metadata or WorkMetadata()).percent == 50
    assert repr(started) == f"<Handle {started.name!r} SUCCEEDED>"


def test_handle_shows_cached_state_until_it_is_refreshed(service: lro.Service, ask: Ask) -> None:
    """Properties ask nothing; a final state stays."""
    started = declared(service).start(WorkRequest())
    assert (started.done, started.metadata) == (False, None)
    reporter = service.reporter(started.name)
    reporter.report(WorkMetadata(percent=7))
    assert started.metadata is None
    assert ask(started, "refresh") == service.get(started.name)
    assert started.metadata is not None
    assert started.metadata.percent == 7
    reporter.complete(WorkResponse("b"))
    assert not started.done
    assert ask(started, "wait") is started.operation
    assert started.done
    final = started.operation
    assert ask(started, "refresh") is final
    assert ask(started, "wait") is final


def test_result_on_loop_waits_without_limit(service: lro.Service) -> None:
    """While other tasks of the loop go on."""
    step = Step()

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        step()
        return WorkResponse(request.text)

    async def main() -> WorkResponse:
        started = await work.start_async(WorkRequest("a"))
        waiting = asyncio.create_task(started.result_async())
        await asyncio.to_thread(step.reached)
        while service.waiters.open == 0:
            await asyncio.sleep(0)
        step.go.set()
        return await waiting

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == WorkResponse("a")


def test_service_bounds_on_callers_do_not_bind_handles(
    make_service: Any, store: Any, ask: Ask
) -> None:
    """A wait, a read and a cancel of the application itself: no verb, hook, owner or limit."""

    def authorize(caller: str, verb: str, name: str) -> bool:
        return verb == NAME

    service = make_service(
        store,
        verbs=(),
        max_wait=timedelta(0),
        authorize=authorize,
        owner_only=True,
        limits=lro.Limits(waits=1, waits_per_caller=1),
    )
    begun = threading.Event()

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        begun.set()
        job.sleep(PATIENCE)
        return WorkResponse()

    started = work.start(WorkRequest("a"), caller="ann")
    assert begun.wait(PATIENCE)
    with pytest.raises(lro.errors.MethodNotSupported):
        service.cancel(started.name, caller="ann")
    assert ask(started, "refresh").done is False
    ask(started, "cancel")
    with pytest.raises(WorkCancelled):
        ask(started, "result", PATIENCE)


def test_failure_of_operation_is_raised_with_its_status(service: lro.Service, ask: Ask) -> None:
    """Code, sentence and details; by an edge it would be answered like the operation's own."""
    started = declared(service).start(WorkRequest())
    detail = ErrorInfo(reason="NO_PAPER", domain="acme.test")
    error = lro.StatusError(lro.Code.ABORTED, "the printer is out of paper", why="NO_PAPER")
    service.reporter(started.name).fail(error, domain="acme.test")
    with pytest.raises(WorkFailed) as caught:
        ask(started, "result", 0)
    failed = caught.value
    text = f"{started.name} ended with ABORTED: the printer is out of paper"
    assert (str(failed), failed.name) == (text, started.name)
    assert failed.status.message == "the printer is out of paper"
    assert failed.extra == (detail,)
    status = service.types.status_of(failed, "other.test")
    assert (status.code, status.details) == (lro.Code.ABORTED, failed.status.details)
    assert not isinstance(failed, WorkCancelled)


def test_failure_without_details_has_reason_of_its_code(service: lro.Service, ask: Ask) -> None:
    """Details of an unknown class stay packed, and do no harm."""
    started = declared(service).start(WorkRequest())
    odd = lro.Any("type.googleapis.com/other.v1.Odd", {"a": 1})
    service.reporter(started.name).fail(lro.Status(lro.Code.ABORTED, "no", (odd,)))
    with pytest.raises(WorkFailed) as caught:
        ask(started, "result")
    assert caught.value.extra == (odd,)
    reason = ErrorInfo(reason="ABORTED", domain="acme.test")
    assert caught.value.details("acme.test") == (reason, odd)


def test_failure_without_known_code_is_unknown() -> None:
    """As the client has it."""
    assert WorkFailed("operations/a", lro.Status(0, "")).status_code is lro.Code.UNKNOWN
    assert WorkFailed("operations/a", lro.Status(99, "")).status_code is lro.Code.UNKNOWN


def test_work_that_lets_failure_pass_fails_alike(make_service: Any) -> None:
    """A method that starts another one ends as that does."""
    service = make_service(MemoryStore(), InlineExecutor())

    @service.method("acme.v1.Works.Inner")
    def inner(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        raise lro.InvalidArgument("text", "must not be empty")

    @service.method(NAME)
    def outer(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        response: WorkResponse = inner.start(request).result()
        return response

    found = outer.start(WorkRequest()).operation.error
    assert found is not None
    assert found.code == lro.Code.INVALID_ARGUMENT
    assert found.message.endswith("ended with INVALID_ARGUMENT: text: must not be empty")
    assert service.types.unpack(found.details[0], ErrorInfo).reason == "INVALID_ARGUMENT"


def test_cancelled_operation_raises_its_own_error(service: lro.Service, ask: Ask) -> None:
    """Also where it has not begun."""
    started = declared(service).start(WorkRequest())
    ask(started, "cancel")
    assert service.reporter(started.name).acknowledge_cancel()
    with pytest.raises(WorkCancelled, match="ended with CANCELLED"):
        ask(started, "result")


def test_any_stays_packed(make_service: Any) -> None:
    """Where the method says that its messages may be of any class."""
    service = make_service(
        MemoryStore(), InlineExecutor(), types=lro.TypeRegistry(WorkResponse, WorkMetadata)
    )

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[lro.Any]) -> lro.Any:
        job.report(service.types.pack(WorkMetadata(percent=7)))
        return service.types.pack(WorkResponse("a"))

    started = work.start(WorkRequest())
    assert service.types.unpack_any(started.result()) == WorkResponse("a")
    assert started.metadata.type_name == "acme.v1.WorkMetadata"


def test_end_without_result_gives_none(service: lro.Service, ask: Ask) -> None:
    """Where the worker outside has finished without a response (spec §2.5)."""
    started = declared(service).start(WorkRequest())
    service.reporter(started.name).finish()
    assert ask(started, "result") is None


@pytest.mark.parametrize("verb", ["result", "wait", "refresh", "cancel"])
def test_deleted_operation_is_not_found(service: lro.Service, ask: Ask, verb: str) -> None:
    """Its name is in the sentence."""
    started = declared(service).start(WorkRequest())
    service.delete(started.name)
    with pytest.raises(OperationNotFound, match=f"there is no operation '{started.name}'"):
        ask(started, verb)


@pytest.mark.parametrize("verb", ["result", "refresh"])
def test_expired_operation_is_not_found(
    service: lro.Service, clock: ManualClock, ask: Ask, verb: str
) -> None:
    """A handle that has not seen the end does not learn of it any more."""
    started = declared(service).start(WorkRequest())
    service.reporter(started.name).complete(WorkResponse())
    clock.advance(days=31)
    with pytest.raises(OperationNotFound):
        ask(started, verb)


@pytest.mark.parametrize("timeout", [0, 0.01, timedelta(milliseconds=10)])
def test_timeout_is_raised_and_operation_goes_on(
    service: lro.Service, ask: Ask, timeout: Any
) -> None:
    """It is a TimeoutError with the name and the seconds."""
    started = declared(service).start(WorkRequest())
    with pytest.raises(
        TimeoutError, match=r"was not done within (0|0\.01) s; it goes on"
    ) as caught:
        ask(started, "result", timeout)
    error = caught.value
    assert isinstance(error, WaitTimeout)
    assert (error.name, error.status_code) == (started.name, lro.Code.DEADLINE_EXCEEDED)
    assert error.args == (started.name, error.timeout)
    service.reporter(started.name).complete(WorkResponse("c"))
    assert ask(started, "result", 0) == WorkResponse("c")


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan"), lro.Duration(-1)])
def test_invalid_timeout_is_refused(service: lro.Service, ask: Ask, timeout: Any) -> None:
    """Also where the operation is done, so that the mistake is seen at once."""
    started = declared(service).start(WorkRequest())
    with pytest.raises(lro.errors.InvalidTimeout):
        ask(started, "result", timeout)
    service.reporter(started.name).finish()
    ask(started, "refresh")
    with pytest.raises(lro.errors.InvalidTimeout):
        ask(started, "result", timeout)


@pytest.mark.parametrize("verb", ["result", "wait"])
@on_a_loop
async def test_blocking_wait_on_event_loop_is_refused(service: lro.Service, verb: str) -> None:
    """It would hold up the loop, and with it maybe the work; what is done needs no wait."""
    started = declared(service).start(WorkRequest())

    wanted = rf"handle\.{verb} would hold up the event loop .*await handle\.{verb}_async\("
    with pytest.raises(RuntimeError, match=wanted):
        getattr(started, verb)()
    service.reporter(started.name).complete(WorkResponse("d"))
    await started.refresh_async()
    assert started.result() == WorkResponse("d")


@pytest.mark.parametrize("verb", ["result", "wait", "refresh", "cancel"])
def test_validation_has_no_operation_to_ask_for(service: lro.Service, ask: Ask, verb: str) -> None:
    """The handle has no name, and says why."""
    checked = declared(service).start(WorkRequest(), validate_only=True)
    assert (checked.name, checked.done, checked.metadata) == ("", True, None)
    with pytest.raises(lro.DeclarationError, match="the start only checked the request"):
        ask(checked, verb)
