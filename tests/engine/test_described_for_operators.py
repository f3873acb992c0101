"""Descriptions for operators: errors of failed attempts, and the worker's host and PID."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from typing import Any

import attrs
import pytest

import lro
from lro import Limits, OperationDescription, Retry, RetryLater, Service
from lro.adapters import FailedAttempt, Store
from lro.errors import BatchTooLarge, HookFailed, OperationNotFound, PermissionDenied
from lro.executors.inline import InlineExecutor
from lro.http import VERBS
from lro.testing import ManualClock
from lro.wire import ListOperationsRequest
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
    """Start an operation whose first attempt fails, and return its name while it awaits a retry."""
    error = ConnectionError(text)
    method = method_of(service, raising(error), retry=Retry(**FIRST))
    name: str = method.start(WorkRequest("x"), **options).name
    return name


def full(
    service: Service, names: list[str], caller: str | lro.Operator = ""
) -> list[OperationDescription]:
    """Return the descriptions of these operations, read with BatchGet."""
    found = service.batch_get(names, view="FULL", caller=caller)
    return [one.description for one in found.operations]


def hidden(found: OperationDescription) -> bool:
    """Return whether a description lacks all fields that only operators see."""
    return (found.failures, found.worker_host, found.worker_pid) == ((), "", 0)


@EACH_STORE
def test_operator_sees_each_failed_attempt(
    store: Store, make_service: MakeService, clock: ManualClock
) -> None:
    """Operators see number, time, class and text of each failure. Callers see only the count."""
    service = make_service(store, InlineExecutor())
    began = clock()
    name = failing(service, caller="ann")
    once = service.get(name, view="FULL", caller=lro.OPERATOR).description
    assert once.failures == (FailedAttempt(1, began, "ConnectionError", TEXT),)
    assert (once.due_time, once.failed_attempts) == (began + MINUTE, 1)
    clock.advance(MINUTE.total_seconds())
    service.run_maintenance()
    for found in (
        service.get(name, view="FULL", caller=lro.OPERATOR).description,
        full(service, [name], lro.OPERATOR)[0],
    ):
        assert [(one.attempt, one.time) for one in found.failures] == [
            (1, began),
            (2, began + MINUTE),
        ]
    seen = service.get(name, view="FULL", caller="ann").description
    assert hidden(seen)
    assert (seen.failed_attempts, seen.due_time) == (2, began + 3 * MINUTE)
    assert hidden(service.get(name, view="FULL").description)
    assert hidden(full(service, [name])[0])


def test_last_20_attempts_are_described(make_service: MakeService, clock: ManualClock) -> None:
    """The last 20 failures are described, also after the end. ``failed_attempts`` counts all."""
    service = make_service(executor=InlineExecutor())
    method = method_of(service, raising(RetryLater(timedelta(0))), max_attempts=25)
    done = ended_in_time(service, clock, method.start(WorkRequest()).name)
    found = service.get(done.name, view="FULL", caller=lro.OPERATOR).description
    assert (found.state, found.failed_attempts) == ("FAILED", 25)
    assert [one.attempt for one in found.failures] == [*range(6, 26)]


@EACH_STORE
def test_operator_sees_where_the_worker_is(store: Store, make_service: MakeService) -> None:
    """An operator sees the worker's host and PID only while the worker has the operation."""
    executor = Held()
    service = make_service(store, executor)
    method = method_of(service)
    waiting = method.start(WorkRequest(), delay=MINUTE).name
    name = method.start(WorkRequest()).name
    service.run_maintenance()  # the first maintenance registers this worker in the store
    for found in (
        service.get(name, view="FULL", caller=lro.OPERATOR).description,
        full(service, [waiting, name], lro.OPERATOR)[1],
    ):
        assert (found.worker_host, found.worker_pid) == HERE
    assert hidden(service.get(name, view="FULL").description)
    assert hidden(service.get(waiting, view="FULL", caller=lro.OPERATOR).description)
    executor.task.run()
    over = service.get(name, view="FULL", caller=lro.OPERATOR).description
    assert (over.state, hidden(over)) == ("SUCCEEDED", True)


@EACH_STORE
def test_worker_that_is_not_known_is_left_out(store: Store, make_service: MakeService) -> None:
    """If an operation's owner is not yet a registered worker, its description has no worker."""
    service = make_service(store, Held())
    name = method_of(service).start(WorkRequest()).name
    assert store.get(name).owner
    assert hidden(service.get(name, view="FULL", caller=lro.OPERATOR).description)


def test_callers_see_when_waiting_work_expires(make_service: MakeService) -> None:
    """An expiry is shown until the first attempt begins. An operation never expires in a retry."""
    service = make_service(executor=InlineExecutor())
    method = method_of(service, raising(ConnectionError("away")), retry=Retry(**FIRST))
    waiting = service.get(
        method.start(WorkRequest(), delay=MINUTE, expires=MINUTE).name, view="FULL"
    ).description
    assert waiting.due_time is not None
    assert waiting.begin_before == waiting.due_time + MINUTE
    name = method.start(WorkRequest(), expires=MINUTE).name
    service.run_maintenance()
    begun = service.get(name, view="FULL").description
    assert (begun.attempt, begun.begin_before) == (1, None)
    assert (
        service.get(
            method.start(WorkRequest(), delay=MINUTE).name, view="FULL"
        ).description.begin_before
        is None
    )


def test_caller_needs_the_verb_and_permission_for_each_name(make_service: MakeService) -> None:
    """Without permission for a name, only the operators' fields of that operation are left out."""
    plain = make_service(executor=InlineExecutor())
    names = [failing(plain, caller="ann")]
    names.append(plain.start(NAME, WorkRequest("y"), caller="ann").name)
    plain.run_maintenance()
    asked: list[tuple[str, str, str]] = []

    def authorize(caller: str, verb: str, name: str) -> bool:
        asked.append((caller, verb, name))
        return verb != "InspectOperation" or (caller == "operator" and name == names[0])

    off = make_service(plain.store, InlineExecutor(), authorize=authorize)
    assert hidden(off.get(names[0], view="FULL", caller="operator").description)
    assert asked == [("operator", "GetOperation", names[0])]
    asked.clear()
    service = make_service(plain.store, InlineExecutor(), authorize=authorize, verbs=INSPECT)
    shown = full(service, names, "operator")
    assert [hidden(one) for one in shown] == [False, True]
    assert [verb for _, verb, _ in asked] == ["GetOperation"] * 2 + ["InspectOperation"] * 2
    assert not hidden(service.get(names[0], view="FULL", caller="operator").description)
    assert hidden(service.get(names[0], view="FULL", caller="ann").description)
    asked.clear()
    assert not hidden(service.get(names[1], view="FULL", caller=lro.OPERATOR).description)
    assert asked == []
    open_to_all = make_service(plain.store, InlineExecutor(), verbs=INSPECT)
    assert not hidden(open_to_all.get(names[0], view="FULL").description)


def test_list_has_no_fields_for_operators(make_service: MakeService) -> None:
    """List returns all fields except those for operators, and authorizes only ListOperations."""
    plain = make_service(executor=InlineExecutor())
    name = failing(plain, caller="ann")
    asked: list[str] = []
    service = make_service(
        plain.store,
        InlineExecutor(),
        verbs=INSPECT,
        authorize=lambda caller, verb, name: asked.append(verb),
    )
    [found] = service.list(ListOperationsRequest(), view="FULL").operations
    assert found == plain.get(name, view="FULL")
    assert hidden(found.description)
    assert asked == ["ListOperations"]
    [basic] = service.list(ListOperationsRequest()).operations
    assert basic == plain.get(name)
    assert basic.description == OperationDescription()


def test_hook_that_fails_ends_the_call(make_service: MakeService) -> None:
    """A FULL view raises the hook's error, or HookFailed if the hook returns no bool."""
    plain = make_service(executor=InlineExecutor())
    name = failing(plain)
    errors: list[Any] = [ValueError("broken"), lro.errors.Unavailable("no directory")]

    def authorize(caller: str, verb: str, name: str) -> None:
        if verb == "InspectOperation":
            raise errors[0]

    options = {"verbs": INSPECT, "authorize": authorize}
    service = make_service(plain.store, InlineExecutor(), **options)
    for kind in (ValueError, lro.errors.Unavailable):
        with pytest.raises(kind):
            service.get(name, view="FULL")
        with pytest.raises(kind):
            service.batch_get([name], view="FULL")
        errors.pop(0)
    answers = make_service(
        plain.store, InlineExecutor(), verbs=INSPECT, authorize=lambda *asked: "yes"
    )
    with pytest.raises(HookFailed):
        answers.get(name, view="FULL")


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_are_called_on_an_event_loop(make_service: MakeService, is_async: bool) -> None:
    """On an event loop, a plain hook runs in a thread and a coroutine hook on the loop."""
    plain = make_service(executor=InlineExecutor())
    name = failing(plain)

    def authorize(caller: str, verb: str, name: str) -> bool:
        return verb != "InspectOperation" or caller == "operator"

    async def awaited(caller: str, verb: str, name: str) -> bool:
        await asyncio.sleep(0)
        return authorize(caller, verb, name)

    hook = awaited if is_async else authorize
    service = make_service(plain.store, InlineExecutor(), verbs=INSPECT, authorize=hook)

    async def each(caller: str | lro.Operator) -> list[OperationDescription]:
        one = await service.get_async(name, view="FULL", caller=caller)
        many = await service.batch_get_async([name], view="FULL", caller=caller)
        return [one.description, *(each.description for each in many.operations)]

    for caller, refused in (("ann", True), ("operator", False), (lro.OPERATOR, False)):
        assert [hidden(one) for one in asyncio.run(each(caller))] == [refused] * 2


def test_operator_sees_all_operations(make_service: MakeService) -> None:
    """Only a call with ``lro.OPERATOR`` bypasses ``owner_only`` and the ``authorize`` hook."""

    def authorize(*asked: str) -> None:
        raise PermissionDenied("nobody")

    plain = make_service(executor=InlineExecutor(), owner_only=True)
    name = failing(plain, caller="ann")
    with pytest.raises(OperationNotFound):
        plain.get(name, view="FULL")
    closed = make_service(plain.store, InlineExecutor(), authorize=authorize)
    for service in (plain, closed):
        assert service.get(name, view="FULL", caller=lro.OPERATOR).description.failures
        assert full(service, [name], lro.OPERATOR)[0].failures


def test_texts_of_errors_count_for_the_bound_of_a_reply(make_service: MakeService) -> None:
    """Error texts, which may be larger than the operation itself, count towards the byte limit."""
    service = make_service(executor=InlineExecutor(), limits=Limits(page_bytes=4000))
    method = method_of(service, raising(OSError("\x01" * 500)))
    names = [method.start(WorkRequest()).name for _ in range(3)]
    assert len(full(service, names)) == 3
    with pytest.raises(BatchTooLarge):
        full(service, names, lro.OPERATOR)
    assert len(full(service, names[:1], lro.OPERATOR)) == 1


def test_workers_are_read_for_operators_only(make_service: MakeService) -> None:
    """The store reads workers only if an operator asks about an operation that has a worker."""
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
    service.get(running, view="FULL")
    full(service, [running, outside])
    full(service, [outside], lro.OPERATOR)
    service.list(ListOperationsRequest(), view="FULL")
    assert reads == []
    full(service, [running, outside], lro.OPERATOR)
    service.get(running, view="FULL", caller=lro.OPERATOR)
    assert reads == ["workers"] * 2


def test_failed_attempt_is_a_message(make_service: MakeService) -> None:
    """A description with failures can be written as JSON and read back unchanged."""
    service = make_service(executor=InlineExecutor())
    found = full(service, [failing(service)], lro.OPERATOR)[0]
    value = service.types.dump(found)
    assert service.types.load(value, type(found)) == found
    assert attrs.fields_dict(FailedAttempt).keys() == {"attempt", "time", "error", "text"}
