"""Types of methods: ``service.method`` takes the message classes from the function."""

# Each expected error has an ignore comment; mypy and pyright report unused comments.
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, assert_type

import lro
import lro.adapters
import lro.asgi
import lro.testing
import lro.wire
import lro.wsgi
from lro.http import OperationsEdge, Start, answer, answer_async
from tests.typing.messages import ResizeMetadata, ResizeRequest, ResizeResponse


def decorated_functions(service: lro.Service) -> None:
    """A plain or async function, with or without a job, becomes a method with its classes."""

    @service.method("acme.images.v1.Images.Resize")
    def with_job(request: ResizeRequest, job: lro.Job[ResizeMetadata]) -> ResizeResponse:
        return ResizeResponse()

    assert_type(with_job, lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata])

    @service.method("acme.images.v1.Images.Crop")
    async def async_with_job(
        request: ResizeRequest, job: lro.Job[ResizeMetadata]
    ) -> ResizeResponse:
        return ResizeResponse()

    assert_type(async_with_job, lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata])

    @service.method("acme.images.v1.Images.Turn", metadata=ResizeMetadata)
    def without_job(request: ResizeRequest) -> ResizeResponse:
        return ResizeResponse()

    assert_type(without_job, lro.Method[ResizeRequest, ResizeResponse, Any])

    @service.method("acme.images.v1.Images.Flip", metadata=ResizeMetadata)
    async def async_without_job(request: ResizeRequest) -> ResizeResponse:
        return ResizeResponse()

    assert_type(async_without_job, lro.Method[ResizeRequest, ResizeResponse, Any])


def without_classes(service: lro.Service) -> None:
    """If a function names no response or metadata class, the library's own class is used."""

    @service.method("acme.images.v1.Images.Resize")
    def nothing_named(request: ResizeRequest, job: lro.Job) -> None:
        job.progress(0.5, "half of it")
        assert_type(job.metadata, lro.OperationMetadata | None)

    assert_type(nothing_named, lro.Method[ResizeRequest, lro.Empty, lro.OperationMetadata])

    @service.method("acme.images.v1.Images.Crop")
    async def async_nothing_named(request: ResizeRequest, job: lro.Job) -> None:
        await job.progress_async(0.5)

    assert_type(async_nothing_named, lro.Method[ResizeRequest, lro.Empty, lro.OperationMetadata])

    @service.method("acme.images.v1.Images.Turn")
    def without_job(request: ResizeRequest) -> None: ...

    assert_type(without_job, lro.Method[ResizeRequest, lro.Empty, Any])

    @service.method("acme.images.v1.Images.Flip")
    async def async_without_job(request: ResizeRequest) -> None: ...

    assert_type(async_without_job, lro.Method[ResizeRequest, lro.Empty, Any])

    declared = service.declare(
        "acme.images.v1.Images.Trim", request=ResizeRequest, response=ResizeResponse
    )
    assert_type(declared, lro.Method[ResizeRequest, ResizeResponse, lro.OperationMetadata])


def declared_methods(service: lro.Service) -> None:
    """A method that is only declared has the declared classes."""
    method = service.declare(
        "acme.images.v1.Images.Resize",
        request=ResizeRequest,
        response=ResizeResponse,
        metadata=ResizeMetadata,
    )
    assert_type(method, lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata])


def methods_of_others(
    service: lro.Service, method: lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata]
) -> None:
    """A method of another service keeps its classes when it is added to this service."""
    again = service.method("acme.images.v1.Images.Resize")(method)
    assert_type(again, lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata])


def starting(method: lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata]) -> None:
    """A start accepts the method's request and metadata classes, and returns a typed handle."""
    assert_type(method.start(ResizeRequest()), lro.Handle[ResizeResponse, ResizeMetadata])
    method.start(ResizeRequest(), metadata=ResizeMetadata())
    method.start(ResizeResponse())  # type: ignore[arg-type]
    method.start({"source": "a"})  # type: ignore[arg-type]
    method.start(
        ResizeRequest(),
        metadata=ResizeRequest(),  # type: ignore[arg-type]
    )
    assert_type(method.full_name, str)


def handles(started: lro.Handle[ResizeResponse, ResizeMetadata]) -> None:
    """A handle has the method's response and metadata classes, and the plain operation."""
    assert_type(started.name, str)
    assert_type(started.done, bool)
    assert_type(started.metadata, ResizeMetadata | None)
    assert_type(started.operation, lro.Operation)
    assert_type(started.result(), ResizeResponse)
    assert_type(started.result(timedelta(seconds=1)), ResizeResponse)
    assert_type(started.wait(1.5), lro.Operation)
    assert_type(started.refresh(), lro.Operation)
    assert_type(started.cancel(), None)
    started.result("soon")  # type: ignore[arg-type]


async def handles_on_loop(
    service: lro.Service, method: lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata]
) -> None:
    """The async verbs of methods and handles, and ``start_many``, have the types of ``start``."""
    started = await method.start_async(ResizeRequest())
    assert_type(started, lro.Handle[ResizeResponse, ResizeMetadata])
    assert_type(await started.result_async(), ResizeResponse)
    assert_type(await started.wait_async(1), lro.Operation)
    assert_type(await started.refresh_async(), lro.Operation)
    assert_type(await started.cancel_async(), None)
    for one in method.start_many([ResizeRequest()]):
        if not isinstance(one, lro.LroError):
            assert_type(one.result(), ResizeResponse)
    for other in await method.start_many_async([ResizeRequest()]):
        if not isinstance(other, lro.LroError):
            assert_type(await other.result_async(), ResizeResponse)
    answer(service, lambda: method.start(ResizeRequest()))
    answer(service, lambda: service.start(method.full_name, ResizeRequest()))
    await answer_async(service, method.start_async(ResizeRequest()))
    await answer_async(service, service.start_async(method.full_name, ResizeRequest()))
    answer(service, lambda: ResizeResponse())  # type: ignore[arg-type, return-value]


async def calling(method: lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata]) -> None:
    """A direct call of a method returns the result of its function."""
    assert_type(method(ResizeRequest()), ResizeResponse)
    assert_type(method(ResizeRequest(), job=lro.testing.job()), ResizeResponse)
    assert_type(await method.call_async(ResizeRequest()), ResizeResponse)
    method(ResizeResponse())  # type: ignore[arg-type]


def jobs(job: lro.Job[ResizeMetadata]) -> None:
    """A job accepts reports of its metadata class only."""
    job.report(ResizeMetadata(percent=5))
    job.report(ResizeRequest())  # type: ignore[arg-type]
    job.progress(0.5)  # type: ignore[misc]
    assert_type(job.metadata, ResizeMetadata | None)


def verbs(service: lro.Service) -> None:
    """The service's verbs return operations and pages."""
    assert_type(service.get("operations/a"), lro.Operation)
    assert_type(service.get("operations/a", view="FULL").description, lro.OperationDescription)
    service.get("operations/a", view="full")  # type: ignore[arg-type]
    assert_type(service.list(lro.wire.ListOperationsRequest()), lro.wire.ListOperationsResponse)
    operation = service.get("operations/a")
    assert_type(operation.result, lro.AnyMessage | lro.Status | None)
    assert_type(operation.response, lro.AnyMessage | None)
    assert_type(operation.error, lro.Status | None)


async def waiting(service: lro.Service) -> None:
    """The service's ``wait`` and ``wait_async`` return operations."""
    assert_type(service.wait("operations/a"), lro.Operation)
    assert_type(await service.wait_async("operations/a"), lro.Operation)


async def verbs_on_loop(service: lro.Service) -> None:
    """The service's async verbs have the arguments and results of the blocking verbs."""
    assert_type(await service.get_async("operations/a", caller="ann"), lro.Operation)
    assert_type(await service.get_async("operations/a", view="FULL"), lro.Operation)
    await service.get_async(7)  # type: ignore[arg-type]
    assert_type(await service.delete_async("operations/a"), None)


def hooks(store: lro.adapters.Store, executor: lro.adapters.Executor) -> None:
    """Hooks are plain or async functions with the allowed return types."""

    def plain(caller: str, verb: str, name: str) -> bool:
        return True

    async def awaited(caller: str, verb: str, name: str) -> None: ...

    def wrong(caller: str, verb: str, name: str) -> str:
        return "yes"

    for authorize in (plain, awaited):
        service = lro.Service(store, executor, authorize=authorize)
    lro.Service(store, executor, authorize=wrong)  # type: ignore[arg-type]

    def who(headers: Mapping[str, str]) -> str | None:
        return None

    async def who_awaited(headers: Mapping[str, str]) -> str:
        return "ann"

    OperationsEdge(service, authenticate=who)
    OperationsEdge(service, authenticate=who_awaited)
    OperationsEdge(service, authenticate=lambda headers: 7.5)  # type: ignore[arg-type]
    lro.asgi.OperationsApp(service, autenticate=who)  # type: ignore[call-arg]
    lro.wsgi.OperationsApp(service, autenticate=who)  # type: ignore[call-arg]


def starts(
    service: lro.Service, method: lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata]
) -> None:
    """``starts`` maps paths to methods; a function of a start must accept the method's messages."""

    def metadata(request: ResizeRequest) -> ResizeMetadata:
        return ResizeMetadata()

    def of_another(request: ResizeResponse) -> ResizeMetadata:
        return ResizeMetadata()

    OperationsEdge(service, starts=True)
    OperationsEdge(service, starts={"/v1/a": method, "/v1/b": Start(method, metadata=metadata)})
    OperationsEdge(service, starts={"/v1/a": metadata})  # type: ignore[dict-item]
    OperationsEdge(service, starts=[method])  # type: ignore[arg-type]
    Start(method, metadata=of_another)  # type: ignore[arg-type]
