"""Methods called like plain functions, as in a unit test of the function."""

from __future__ import annotations

import asyncio
import inspect
import sys
from datetime import timedelta

import pytest

import lro
from lro import testing
from lro.executors.inline import InlineExecutor
from tests.virtual_loop import on_a_loop
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.v1.Works.Work"


@pytest.fixture
def service(make_service):
    """A service that must have no operations after the test."""
    service = make_service()
    yield service
    assert service.list(lro.wire.ListOperationsRequest()).operations == ()


def test_call_of_a_method_returns_the_function_result(service):
    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.report(WorkMetadata(job.attempt))
        return WorkResponse(request.text)

    reports: list[WorkMetadata] = []
    assert work(WorkRequest("a")) == WorkResponse("a")
    assert work(WorkRequest("b"), testing.job(reports.append)) == WorkResponse("b")
    assert work(WorkRequest("c"), job=testing.job()) == WorkResponse("c")
    assert reports == [WorkMetadata(1)]


def test_function_without_job_is_called_as_by_a_start(service):
    """In a direct call, a None result becomes the empty response. Metadata begin with defaults."""

    @service.method("acme.v1.Works.Pass")
    def passing(request: WorkRequest) -> None: ...

    @service.method(NAME)
    def work(request: WorkRequest, job: lro.Job) -> None:
        assert job.metadata.verb == "work"
        job.progress(0.5)
        assert job.metadata.progress_percent == 50

    assert passing(WorkRequest("a"), testing.job()) == lro.Empty()
    work(WorkRequest("a"))


def test_an_async_function_is_awaited(service):
    @service.method(NAME)
    async def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        await job.report_async(WorkMetadata(1))
        return WorkResponse(request.text)

    @service.method("acme.v1.Works.Plain")
    def plain(request: WorkRequest) -> WorkResponse:
        return WorkResponse(request.text)

    reports: list[WorkMetadata] = []
    awaited = work.call_async(WorkRequest("a"), testing.job(reports.append))
    assert inspect.isawaitable(awaited)
    assert asyncio.run(awaited) == WorkResponse("a")
    assert asyncio.run(plain.call_async(WorkRequest("b"))) == WorkResponse("b")
    assert reports == [WorkMetadata(1)]
    with pytest.raises(TypeError, match=r"Work is async: use `await method.call_async"):
        work(WorkRequest("a"))


def test_a_method_without_a_function_cannot_be_called(service):
    method = service.declare(
        NAME, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    with pytest.raises(TypeError, match="Work has no function: its work is done outside"):
        method(WorkRequest("a"))


def test_method_given_to_another_service_is_declared_with_its_function(service, make_service):
    """A method passed to another service keeps its message classes but none of its options."""

    @service.method(NAME, request=WorkRequest, metadata=WorkMetadata, validate=lambda _: False)
    def work(request, job) -> WorkResponse:
        job.report(WorkMetadata(note="begun"))
        return WorkResponse(request.text)

    other = make_service(executor=InlineExecutor())
    again = other.method("acme.v1.Works.Again")(work).start(WorkRequest("a"))
    assert again.result() == WorkResponse("a")
    assert again.metadata.note == "begun"
    nothing = other.method("acme.v1.Works.Nothing")(service.method("acme.v1.Works.Pass")(passing))
    assert nothing.start(WorkRequest()).result() == lro.Empty()


def passing(request: WorkRequest) -> None:
    """Take the default metadata and return an empty response."""


def test_method_whose_work_is_done_outside_is_not_taken(service, make_service):
    """A method without a function cannot be passed on. The error names the method and a reason."""
    classes = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
    outside = service.declare("acme.v1.Works.Outside", **classes)
    known = r"AsOwn: was given the method acme\.v1\.Works\.Outside, whose work is done outside"
    with pytest.raises(lro.DeclarationError, match=known):
        make_service().method("acme.v1.Works.AsOwn")(outside)


@on_a_loop
async def test_job_for_tests_passes_reports_to_a_function():
    """A test job begins with the given metadata and then shows the last report, also on a loop."""
    reports: list[WorkMetadata] = []
    job = testing.job(reports.append, metadata=WorkMetadata(1))
    assert (job.name, job.attempt, job.metadata) == ("operations/test", 1, WorkMetadata(1))
    job.report(WorkMetadata(2))

    await job.report_async(WorkMetadata(3))
    await job.sleep_async(0)
    assert (job.metadata, reports) == (WorkMetadata(3), [WorkMetadata(2), WorkMetadata(3)])


@pytest.mark.parametrize(
    ("seconds", "error"), [(timedelta(seconds=1), TypeError), (float("nan"), ValueError)]
)
def test_pause_that_is_not_a_number_of_seconds_is_refused(seconds, error):
    """A pause takes seconds and refuses a timedelta, the type of the library's other durations."""
    job = testing.job(print)
    with pytest.raises(error, match="seconds: must be a number"):
        job.sleep(seconds)
    with pytest.raises(error, match="seconds: must be a number"):
        asyncio.run(job.sleep_async(seconds))


def test_pause_without_asyncio_does_not_import_it(monkeypatch):
    """If asyncio is not loaded, no event loop can be running, and a pause skips the slow import."""
    monkeypatch.delitem(sys.modules, "asyncio")
    testing.job(print).sleep(0)
    assert "asyncio" not in sys.modules
