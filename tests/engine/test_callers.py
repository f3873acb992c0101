"""The ``caller`` of each call: names, whole numbers, operators, and the None that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

import pytest

import lro
from lro import OPERATOR, InvalidArgument, Service
from lro import testing as lro_testing
from lro.adapters import Executor
from lro.errors import OperationNotFound
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.http import VERBS
from lro.stores.memory import MemoryStore
from lro.wire import ListOperationsRequest
from lro_client.transports import AsyncLocalTransport, LocalTransport
from tests.engine.engine_parts import NAME, method_of
from tests.executors import process_methods
from tests.service_fixtures import MakeService
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

CURE: Final = (
    'caller: must be a text or a whole number, got None; a caller without a name is "",'
    " and an operator of this process lro.OPERATOR"
)
VISITOR: Final[Any] = SimpleNamespace(pk=None)
"""Django's AnonymousUser, whose key is None."""

Verb = Callable[[Service, str, Any], object]


def awaited(name: str, *arguments: Any, **more: Any) -> Verb:
    """Return a call of a coroutine verb."""
    return lambda service, operation, caller: asyncio.run(
        getattr(service, name)(*(arguments or (operation,)), caller=caller, **more)
    )


def watched(service: Service, name: str, caller: Any) -> list[str]:
    async def first() -> list[str]:
        stream = await service.watch([name], caller=caller)
        return [one.name for one in [one async for one in stream] if isinstance(one, lro.Operation)]

    return asyncio.run(first())


def listed(service: Service, name: str, caller: Any) -> list[str]:
    found = service.list(ListOperationsRequest(), caller=caller).operations
    return [one.name for one in found]


SEEING: Final[dict[str, Verb]] = {
    "get": lambda service, name, caller: service.get(name, caller=caller).name,
    "get FULL": lambda service, name, caller: service.get(name, view="FULL", caller=caller).name,
    "get_async": awaited("get_async"),
    "wait": lambda service, name, caller: service.wait(name, 5, caller=caller),
    "wait_async": awaited("wait_async"),
    "list": listed,
    "batch_get": lambda service, name, caller: service.batch_get([name], caller=caller).operations,
    "watch": watched,
    "rerun": lambda service, name, caller: service.rerun(name, caller=caller),
    "cancel": lambda service, name, caller: service.cancel(name, caller=caller) or True,
    "delete": lambda service, name, caller: service.delete(name, caller=caller) or True,
}


def failing(request: WorkRequest) -> WorkRequest:
    """Fail, because only the request of a failed operation is kept for a rerun."""
    raise lro.StatusError(lro.Code.UNAVAILABLE, "away")


def repr_of(caller: object) -> str:
    """Return a name for a test: Python does not write the digits of a huge number."""
    return type(caller).__name__


def private(make_service: MakeService, **options: Any) -> tuple[Service, Any]:
    verbs = (*VERBS, "RerunOperation", "InspectOperation")
    service = make_service(executor=InlineExecutor(), owner_only=True, verbs=verbs, **options)
    return service, method_of(service, failing)


def sees(service: Service, verb: Verb, name: str, caller: Any) -> bool:
    """Return True if a verb finds the operation for this caller."""
    try:
        return bool(verb(service, name, caller))
    except OperationNotFound:
        return False


@pytest.mark.parametrize("verb", SEEING.values(), ids=SEEING)
def test_caller_that_is_none_is_refused_by_each_verb(make_service: MakeService, verb: Verb) -> None:
    """A visitor who is not signed in, and so has no key, does not become an operator."""
    service, method = private(make_service)
    name = method.start(WorkRequest(), caller="ann").name
    with pytest.raises(InvalidArgument) as caught:
        verb(service, name, VISITOR.pk)
    assert str(caught.value) == CURE
    assert not sees(service, verb, name, VISITOR.pk or "")
    assert service.get(name, caller="ann").name == name


@pytest.mark.parametrize("verb", SEEING.values(), ids=SEEING)
def test_caller_that_is_a_whole_number_is_the_text_of_its_digits(
    make_service: MakeService, verb: Verb
) -> None:
    service, method = private(make_service)
    name = method.start(WorkRequest(), caller=7).name
    assert not sees(service, verb, name, 8)
    assert sees(service, verb, name, 7)
    if verb is not SEEING["delete"]:
        assert sees(service, verb, name, "7")


@pytest.mark.parametrize("verb", SEEING.values(), ids=SEEING)
def test_operator_sees_every_operation_and_no_hook_is_called(
    make_service: MakeService, verb: Verb
) -> None:
    asked: list[str] = []
    service, method = private(make_service, authorize=lambda *given: asked.append(given[0]))
    name = method.start(WorkRequest(), caller="ann").name
    asked.clear()
    assert sees(service, verb, name, OPERATOR)
    assert asked == ([] if verb is not SEEING["rerun"] else ["ann"])  # the start of the rerun


@pytest.mark.parametrize("caller", [True, 1.5, b"ann", ("ann",), 10**5000], ids=repr_of)
def test_caller_of_another_type_is_refused(make_service: MakeService, caller: Any) -> None:
    service, method = private(make_service)
    name = method.start(WorkRequest()).name
    for call in (
        lambda: service.get(name, caller=caller),
        lambda: method.start(WorkRequest(), caller=caller),
    ):
        with pytest.raises(InvalidArgument, match="caller: must be a text or a whole number, got"):
            call()


def test_start_takes_a_name_or_a_whole_number_only(make_service: MakeService) -> None:
    """Each way to start refuses None and OPERATOR, and takes a number as the text of its digits."""
    service, method = private(make_service)

    def many(caller: Any) -> object:
        found = method.start_many([WorkRequest()], caller=caller)[0]
        if isinstance(found, lro.LroError):
            raise found
        return found

    ways: list[Callable[[Any], Any]] = [
        lambda caller: method.start(WorkRequest(), caller=caller),
        lambda caller: service.start(NAME, WorkRequest(), caller=caller),
        lambda caller: asyncio.run(method.start_async(WorkRequest(), caller=caller)),
        many,
    ]
    for start in ways:
        with pytest.raises(InvalidArgument) as caught:
            start(None)
        assert str(caught.value) == CURE
        with pytest.raises(InvalidArgument, match="belongs to the caller of this name"):
            start(OPERATOR)
        assert service.get(start(7).name, caller="7").done


def test_schedule_takes_a_whole_number_and_refuses_none(make_service: MakeService) -> None:
    service, method = private(make_service)
    hour, request = timedelta(hours=1), WorkRequest()
    service.schedule("numbered", hour, method, request, caller=7)
    with pytest.raises(lro.DeclarationError, match=r"caller: must be a text .* got None"):
        service.schedule("none", hour, method, request, caller=None)  # type: ignore[arg-type]


def test_start_with_a_request_id_is_repeated_for_the_number_and_its_text(
    make_service: MakeService,
) -> None:
    _, method = private(make_service)
    first = method.start(WorkRequest(), request_id="once", caller=7)
    assert method.start(WorkRequest(), request_id="once", caller="7").name == first.name
    assert method.start(WorkRequest(), request_id="once", caller=8).name != first.name


@pytest.mark.parametrize("transport", [LocalTransport, AsyncLocalTransport])
def test_client_in_the_process_refuses_none_and_the_operator(
    make_service: MakeService, transport: Any
) -> None:
    service, _ = private(make_service)
    for caller in (None, OPERATOR, True):
        with pytest.raises(lro.DeclarationError, match='"" for a caller without a name'):
            transport(service, caller=caller)


def test_client_in_the_process_finds_the_operations_of_a_number(make_service: MakeService) -> None:
    from lro_client import Client

    service, method = private(make_service)
    name = method.start(WorkRequest(), caller=7).name
    assert Client(transport=LocalTransport(service, caller=7)).get(name).name == name


@pytest.mark.parametrize("make", [InlineExecutor, ThreadExecutor, AsyncioExecutor, ProcessExecutor])
def test_function_learns_who_started_its_operation(make: Callable[[], Executor]) -> None:
    """``job.caller`` is the caller's name, as a text, and empty for a caller without a name."""
    with Service(MemoryStore(), make()) as service:
        function: Any = process_methods.who_asked
        if make is AsyncioExecutor:
            function = process_methods.await_who_asked
        method = service.method(NAME)(function)
        for caller, name in (("ann", "ann"), (7, "7"), ("", "")):
            assert method.start(WorkRequest(), caller=caller).result(PATIENCE).text == name
        assert method.start(WorkRequest()).result(PATIENCE).text == ""


def test_rerun_has_the_caller_of_the_first_start(make_service: MakeService) -> None:
    seen: list[str] = []

    def fails(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        seen.append(job.caller)
        raise lro.StatusError(lro.Code.UNAVAILABLE, "away")

    service = make_service(executor=InlineExecutor())
    name = method_of(service, fails).start(WorkRequest(), caller="ann").name
    service.rerun(name)
    assert seen == ["ann", "ann"]


def test_job_for_a_test_has_the_caller_that_it_is_given() -> None:
    assert lro_testing.job(caller="ann").caller == "ann"
    assert lro_testing.job().caller == ""
