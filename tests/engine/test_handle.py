"""Handles of in-process starts: results as message classes, in sync and async calls."""

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
from lro.types import ErrorInfo
from tests.engine.engine_parts import NAME, declared
from tests.service_steps import reason
from tests.virtual_loop import on_a_loop
from tests.waiting import PATIENCE, until_async
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

Handle = lro.Handle[WorkResponse, WorkMetadata]
Ask = Callable[..., Any]


@pytest.fixture(params=["thread", "loop"])
def ask(request):
    """A function that calls a verb of a handle in a thread, or its async form on a loop."""

    def call(handle: Any, verb: str, *arguments: Any, **options: Any) -> Any:
        if request.param == "thread":
            return getattr(handle, verb)(*arguments, **options)
        return asyncio.run(getattr(handle, f"{verb}_async")(*arguments, **options))

    return call


@pytest.fixture
def service(make_service, store):
    """A service with a thread executor, on each kind of store."""
    made: lro.Service = make_service(store)
    return made


def echo(service: lro.Service) -> lro.Method[WorkRequest, WorkResponse, WorkMetadata]:
    """Register a method that reports once and returns the text of the request."""

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.report(WorkMetadata(percent=50))
        return WorkResponse(request.text)

    return work


def test_result_of_finished_work_is_response(service, ask):
    """A handle's result is an instance of the response class. Properties show the last state."""
    started = echo(service).start(WorkRequest("a"))
    assert ask(started, "result", timedelta(seconds=PATIENCE)) == WorkResponse("a")
    assert started.done
    assert started.operation == service.get(started.name)
    assert (started.metadata or WorkMetadata()).percent == 50
    assert repr(started) == f"<Handle {started.name!r} SUCCEEDED>"


def test_handle_shows_cached_state_until_it_is_refreshed(service, ask):
    """A handle's properties do not read the store. ``refresh`` reads it until the end was seen."""
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


def test_result_on_loop_waits_without_limit(service, step):
    """Other tasks of the loop run while one task waits for a result."""

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        step()
        return WorkResponse(request.text)

    async def main() -> WorkResponse:
        started = await work.start_async(WorkRequest("a"))
        waiting = asyncio.create_task(started.result_async())
        await asyncio.to_thread(step.reached)
        await until_async(lambda: service.edges.waiters.open)
        step.go.set()
        return await waiting

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == WorkResponse("a")


def test_service_bounds_on_callers_do_not_bind_handles(make_service, store, ask):
    """A handle ignores the service's rules for callers: verbs, hooks, ownership and limits."""

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


def test_failure_of_operation_is_raised_with_its_status(service, ask):
    """A handle's error has the code, message and details that a caller gets over HTTP or gRPC."""
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


def test_failure_without_details_has_reason_of_its_code(service, ask):
    """A failure without details has its code's name as reason. Details of an unknown class stay
    packed.
    """
    started = declared(service).start(WorkRequest())
    odd = lro.AnyMessage("type.googleapis.com/other.v1.Odd", {"a": 1})
    service.reporter(started.name).fail(lro.Status(lro.Code.ABORTED, "no", (odd,)))
    with pytest.raises(WorkFailed) as caught:
        ask(started, "result")
    assert caught.value.extra == (odd,)
    reason = ErrorInfo(reason="ABORTED", domain="acme.test")
    assert caught.value.details("acme.test") == (reason, odd)
    for code in (0, 99):  # these codes are invalid, and the client also maps them to UNKNOWN
        assert WorkFailed("operations/a", lro.Status(code, "")).status_code is lro.Code.UNKNOWN


def test_any_message_stays_packed(make_service):
    """A method may declare ``AnyMessage`` for its response and metadata."""
    service = make_service(
        MemoryStore(), InlineExecutor(), types=lro.TypeRegistry(WorkResponse, WorkMetadata)
    )

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[lro.AnyMessage]) -> lro.AnyMessage:
        job.report(service.types.pack(WorkMetadata(percent=7)))
        return service.types.pack(WorkResponse("a"))

    started = work.start(WorkRequest())
    assert service.types.unpack_any(started.result()) == WorkResponse("a")
    assert started.metadata.type_name == "acme.v1.WorkMetadata"


def test_end_without_result_gives_none_and_a_cancellation_its_error(service, ask):
    """``result`` returns None if there is no response, and raises if the work was cancelled."""
    finished, cancelled = (declared(service, name).start(WorkRequest()) for name in ("A.B", "A.C"))
    service.reporter(finished.name).finish()
    assert ask(finished, "result") is None
    ask(cancelled, "cancel")
    assert service.reporter(cancelled.name).acknowledge_cancel()
    assert reason(service.get(cancelled.name)) == (lro.Code.CANCELLED, "CANCELLED")
    with pytest.raises(WorkCancelled, match="ended with CANCELLED"):
        ask(cancelled, "result")


@pytest.mark.parametrize("verb", ["result", "wait", "refresh", "cancel"])
@pytest.mark.parametrize("why", ["deleted", "expired"])
def test_operation_that_is_gone_is_not_found(service, clock, ask, verb, why):
    """A handle of a deleted or expired operation raises an error with the operation's name."""
    started = declared(service).start(WorkRequest())
    if why == "deleted":
        service.delete(started.name)
    else:
        service.reporter(started.name).complete(WorkResponse())
        clock.advance(days=31)
    with pytest.raises(OperationNotFound, match=f"there is no operation '{started.name}'"):
        ask(started, verb)


@pytest.mark.parametrize("timeout", [0, 0.01, timedelta(milliseconds=10)])
def test_timeout_is_raised_and_the_operation_continues(service, ask, timeout):
    """After its timeout, ``result`` raises a TimeoutError with the operation's name and seconds."""
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
def test_invalid_timeout_is_refused(service, ask, timeout):
    """An invalid timeout is refused even after the operation's end, when there is no wait."""
    started = declared(service).start(WorkRequest())
    with pytest.raises(lro.errors.InvalidTimeout):
        ask(started, "result", timeout)
    service.reporter(started.name).finish()
    ask(started, "refresh")
    with pytest.raises(lro.errors.InvalidTimeout):
        ask(started, "result", timeout)


@pytest.mark.parametrize("verb", ["result", "wait"])
@on_a_loop
async def test_blocking_wait_on_event_loop_is_refused(service, verb):
    """On an event loop, a blocking wait is refused unless the operation has ended."""
    started = declared(service).start(WorkRequest())

    wanted = rf"handle\.{verb} would hold up the event loop .*await handle\.{verb}_async\("
    with pytest.raises(RuntimeError, match=wanted):
        getattr(started, verb)()
    service.reporter(started.name).complete(WorkResponse("d"))
    await started.refresh_async()
    assert started.result() == WorkResponse("d")


@pytest.mark.parametrize("verb", ["result", "wait", "refresh", "cancel"])
def test_validation_has_no_operation_to_ask_for(service, ask, verb):
    """With ``validate_only``, the handle has no name. Its methods raise an error that says why."""
    checked = declared(service).start(WorkRequest(), validate_only=True)
    assert (checked.name, checked.done, checked.metadata) == ("", True, None)
    with pytest.raises(lro.DeclarationError, match="the start only checked the request"):
        ask(checked, verb)


def test_handle_of_a_name_is_typed_by_the_method(service, ask):
    """``method.handle`` returns a handle of an operation that was started earlier."""
    work = echo(service)
    name = work.start(WorkRequest("a")).name
    handle = ask(work, "handle", name)
    assert handle.result(timeout=PATIENCE) == WorkResponse("a")
    assert ask(work, "handle", name).done


def test_handle_of_another_method_is_not_found(service, ask):
    """The handle unpacks the method's classes, so only the method's own operations have one."""
    work = echo(service)
    other = service.method("acme.v1.Works.Other")(work)
    started = other.start(WorkRequest("a"))
    for name in (started.name, "operations/missing"):
        with pytest.raises(OperationNotFound):
            ask(work, "handle", name)
    with pytest.raises(lro.errors.InvalidOperationName):
        ask(work, "handle", "")


def test_handle_of_another_caller_is_not_found(make_service, ask):
    """``caller`` may only have handles of operations that it may read; an operator has all."""
    service = make_service(executor=InlineExecutor(), owner_only=True)
    work = echo(service)
    name = work.start(WorkRequest("a"), caller="ann").name
    for caller in ("ann", lro.OPERATOR):
        assert ask(work, "handle", name, caller=caller).result() == WorkResponse("a")
    for caller in ("", "bob"):
        with pytest.raises(OperationNotFound):
            ask(work, "handle", name, caller=caller)


def test_handle_asks_authorize_for_get(make_service, ask):
    """A caller to whom ``authorize`` refuses GetOperation gets no handle."""
    asked: list[tuple[str, str, str]] = []

    def authorize(caller: str, verb: str, name: str) -> bool:
        asked.append((caller, verb, name))
        return verb != "GetOperation"

    service = make_service(executor=InlineExecutor(), authorize=authorize)
    work = echo(service)
    name = work.start(WorkRequest("a"), caller="ann").name
    with pytest.raises(lro.errors.PermissionDenied):
        ask(work, "handle", name, caller="ann")
    assert asked[-1] == ("ann", "GetOperation", name)
