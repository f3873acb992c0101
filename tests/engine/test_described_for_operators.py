"""Descriptions for operators: errors of failed attempts, and where the worker is (spec §3.12)."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from typing import Any

import attrs
import pytest

import lro
from lro import DescribedOperation, Limits, OperationDescription, Retry, RetryLater, Service
from lro.adapters import FailedAttempt, Store
from lro.errors import BatchTooLarge, HookFailed, OperationNotFound, PermissionDenied
from lro.executors.inline import InlineExecutor
from lro.http import VERBS
from lro.testing import ManualClock
from tests.engine.engine_parts import EACH_STORE, NAME, Held, declared, method_of, raising
from tests.service_fixtures import MakeService
from tests.service_steps import ended_in_time
from tests.work_messages import WorkRequest

INSPECT = (*VERBS, "InspectOperation")
MINUTE = timedelta(minutes=1)
HERE = (socket.gethostname(), os.getpid())
TEXT = "away <script>alert(1)</script>"
FIRST: Any = {"first_pause": MINUTE, "jitter": 0.0}


def failing(service: Service, text: str = TEXT, **options: Any) -> str:
    """The name of an operation whose first attempt has failed: it waits for the next one."""
    error = ConnectionError(text)
    method = method_of(service, raising(error), retry=Retry(**FIRST))
    name: str = method.start(WorkRequest("x"), **options).name
    return name


def hidden(found: OperationDescription) -> bool:
    """Whether a description has nothing that is only for operators."""
    return (found.failures, found.worker_host, found.worker_pid) == ((), "", 0)


@EACH_STORE
def test_operator_sees_each_failed_attempt(
    store: Store, make_service: MakeService, clock: ManualClock
) -> None:
    """Number, time, class and text of each, oldest first; a caller sees only how many there are."""
    service = make_service(store, InlineExecutor())
    began = clock()
    name = failing(service, caller="ann")
    once = service.describe(name, caller=None)
    assert once.failures == (FailedAttempt(1, began, "ConnectionError", TEXT),)
    assert (once.due_time, once.failed_attempts) == (began + MINUTE, 1)
    clock.advance(MINUTE.total_seconds())
    service.run_maintenance()
    for found in (
        service.describe(name, caller=None),
        service.describe_many([name], caller=None).descriptions[0],
    ):
        assert [(one.attempt, one.time) for one in found.failures] == [
            (1, began),
            (2, began + MINUTE),
        ]
    seen = service.describe(name, caller="ann")
    assert hidden(seen)
    assert (seen.failed_attempts, seen.due_time) == (2, began + 3 * MINUTE)
    assert hidden(service.describe(name))
    assert hidden(service.describe_many([name]).descriptions[0])


def test_last_20_attempts_are_described(make_service: MakeService, clock: ManualClock) -> None:
    """``failed_attempts`` counts all. They stay when the operation has ended."""
    service = make_service(executor=InlineExecutor())
    method = method_of(service, raising(RetryLater(timedelta(0))), max_attempts=25)
    done = ended_in_time(service, clock, method.start(WorkRequest()).name)
    found = service.describe(done.name, caller=None)
    assert (found.state, found.failed_attempts) == ("FAILED", 25)
    assert [one.attempt for one in found.failures] == [*range(6, 26)]


@EACH_STORE
def test_operator_sees_where_the_worker_is(store: Store, make_service: MakeService) -> None:
    """For as long as one has the work."""
    executor = Held()
    service = make_service(store, executor)
    method = method_of(service)
    waiting = method.start(WorkRequest(), delay=MINUTE).name
    name = method.start(WorkRequest()).name
    service.run_maintenance()  # which enters the worker
    for found in (
        service.describe(name, caller=None),
        service.describe_many([waiting, name], caller=None).descriptions[1],
    ):
        assert (found.worker_host, found.worker_pid) == HERE
    assert hidden(service.describe(name))
    assert hidden(service.describe(waiting, caller=None))
    executor.task.run()
    over = service.describe(name, caller=None)
    assert (over.state, hidden(over)) == ("SUCCEEDED", True)


@EACH_STORE
def test_worker_that_is_not_known_is_left_out(store: Store, make_service: MakeService) -> None:
    """It has not been entered yet, or was forgotten."""
    service = make_service(store, Held())
    name = method_of(service).start(WorkRequest()).name
    assert store.get(name).owner
    assert hidden(service.describe(name, caller=None))


def test_callers_see_when_waiting_work_expires(make_service: MakeService) -> None:
    """Until it begins: a retry does not expire."""
    service = make_service(executor=InlineExecutor())
    method = method_of(service, raising(ConnectionError("away")), retry=Retry(**FIRST))
    waiting = service.describe(method.start(WorkRequest(), delay=MINUTE, expires=MINUTE).name)
    assert waiting.due_time is not None
    assert waiting.begin_before == waiting.due_time + MINUTE
    name = method.start(WorkRequest(), expires=MINUTE).name
    service.run_maintenance()
    begun = service.describe(name)
    assert (begun.attempt, begun.begin_before) == (1, None)
    assert service.describe(method.start(WorkRequest(), delay=MINUTE).name).begin_before is None


def test_caller_needs_the_verb_and_permission_for_each_name(make_service: MakeService) -> None:
    """What is refused is left out, and the rest is described."""
    plain = make_service(executor=InlineExecutor())
    names = [failing(plain, caller="ann")]
    names.append(plain.start(NAME, WorkRequest("y"), caller="ann").name)
    plain.run_maintenance()
    asked: list[tuple[str, str, str]] = []

    def authorize(caller: str, verb: str, name: str) -> bool:
        asked.append((caller, verb, name))
        return verb != "InspectOperation" or (caller == "operator" and name == names[0])

    off = make_service(plain.store, InlineExecutor(), authorize=authorize)
    assert hidden(off.describe(names[0], caller="operator"))
    assert asked == [("operator", "GetOperation", names[0])]
    asked.clear()
    service = make_service(plain.store, InlineExecutor(), authorize=authorize, verbs=INSPECT)
    shown = service.describe_many(names, caller="operator").descriptions
    assert [hidden(one) for one in shown] == [False, True]
    assert [verb for _, verb, _ in asked] == ["GetOperation"] * 2 + ["InspectOperation"] * 2
    assert not hidden(service.describe(names[0], caller="operator"))
    assert hidden(service.describe(names[0], caller="ann"))
    asked.clear()
    assert not hidden(service.describe(names[1], caller=None))
    assert asked == []
    open_to_all = make_service(plain.store, InlineExecutor(), verbs=INSPECT)
    assert not hidden(open_to_all.describe(names[0]))


def test_hook_that_fails_ends_the_call(make_service: MakeService) -> None:
    """Nothing is shown for that; an error of the application's own is what the caller gets."""
    plain = make_service(executor=InlineExecutor())
    name = failing(plain)
    errors: list[Any] = [ValueError("broken"), lro.errors.Unavailable("no directory")]

    def authorize(caller: str, verb: str, name: str) -> None:
        if verb == "InspectOperation":
            raise errors[0]

    options = {"verbs": INSPECT, "authorize": authorize}
    service = make_service(plain.store, InlineExecutor(), **options)
    for kind in (ValueError, lro.errors.Unavailable):
        for call in (service.describe, service.describe_many):
            with pytest.raises(kind):
                call(name if call == service.describe else [name])  # type: ignore[arg-type]
        errors.pop(0)
    answers = make_service(
        plain.store, InlineExecutor(), verbs=INSPECT, authorize=lambda *asked: "yes"
    )
    with pytest.raises(HookFailed):
        answers.describe(name)


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_are_asked_on_an_event_loop(make_service: MakeService, is_async: bool) -> None:
    """A plain function in a thread, a coroutine function there."""
    plain = make_service(executor=InlineExecutor())
    name = failing(plain)

    def authorize(caller: str, verb: str, name: str) -> bool:
        return verb != "InspectOperation" or caller == "operator"

    async def awaited(caller: str, verb: str, name: str) -> bool:
        await asyncio.sleep(0)
        return authorize(caller, verb, name)

    hook = awaited if is_async else authorize
    service = make_service(plain.store, InlineExecutor(), verbs=INSPECT, authorize=hook)

    async def each(caller: str | None) -> list[OperationDescription]:
        one: DescribedOperation = await service.describe_async(name, caller=caller)
        many = await service.describe_many_async([name], caller=caller)
        return [one, *many.descriptions]

    for caller, refused in (("ann", True), ("operator", False), (None, False)):
        assert [hidden(one) for one in asyncio.run(each(caller))] == [refused] * 2


def test_operator_of_the_process_sees_the_operations_of_all(make_service: MakeService) -> None:
    """``caller`` None passes ``owner_only`` and a hook that refuses; a caller does not."""

    def authorize(*asked: str) -> None:
        raise PermissionDenied("nobody")

    plain = make_service(executor=InlineExecutor(), owner_only=True)
    name = failing(plain, caller="ann")
    with pytest.raises(OperationNotFound):
        plain.describe(name)
    closed = make_service(plain.store, InlineExecutor(), authorize=authorize)
    for service in (plain, closed):
        assert service.describe(name, caller=None).failures
        assert service.describe_many([name], caller=None).descriptions[0].failures


def test_texts_of_errors_count_for_the_bound_of_a_reply(make_service: MakeService) -> None:
    """Those of 20 attempts may have more bytes than the operation."""
    service = make_service(executor=InlineExecutor(), limits=Limits(page_bytes=4000))
    method = method_of(service, raising(OSError("\x01" * 500)))
    names = [method.start(WorkRequest()).name for _ in range(3)]
    assert len(service.describe_many(names).descriptions) == 3
    with pytest.raises(BatchTooLarge):
        service.describe_many(names, caller=None)
    assert len(service.describe_many(names[:1], caller=None).descriptions) == 1


def test_workers_are_read_for_operators_only(make_service: MakeService) -> None:
    """And only if one of the operations has a worker."""
    service = make_service(executor=Held())
    store: Any = service.store
    reads: list[str] = []
    whole = store.workers

    def workers() -> Any:
        reads.append("workers")
        return whole()

    store.workers = workers
    running = method_of(service).start(WorkRequest()).name
    outside = declared(service, "acme.v1.Works.Outside").start(WorkRequest()).name
    service.describe(running)
    service.describe_many([running, outside])
    service.describe_many([outside], caller=None)
    assert reads == []
    service.describe_many([running, outside], caller=None)
    service.describe(running, caller=None)
    assert reads == ["workers"] * 2


def test_failed_attempt_is_a_message(make_service: MakeService) -> None:
    """Its JSON is read back as it was."""
    service = make_service(executor=InlineExecutor())
    found = service.describe_many([failing(service)], caller=None)
    value = service.types.dump(found)
    assert service.types.load(value, type(found)) == found
    assert attrs.fields_dict(FailedAttempt).keys() == {"attempt", "time", "error", "text"}
