"""Defaults of a method: the library's metadata class, an empty response, and no job."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import attrs
import pytest

import lro
from lro import testing
from lro.errors import MessageTooLarge
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.testing import START
from tests.engine.engine_parts import declared
from tests.service_steps import ended_in_time, unpacked
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NAME = "acme.images.v1.Images.Resize"


def seen(
    service: lro.Service, operation: lro.Operation, cls: type[Any] = lro.OperationMetadata
) -> Any:
    """Unpack the metadata of an operation."""
    assert operation.metadata is not None
    return service.types.unpack(operation.metadata, cls)


@pytest.fixture
def service(store, make_service):
    """A service on each kind of store, whose starts run the function before they return."""
    return make_service(store, InlineExecutor())


def test_default_metadata_shows_verb_version_and_times(service):
    """Metadata show the verb and version of the method. A success sets the progress to 100."""

    @service.method(NAME)
    def resize(request: WorkRequest, job: lro.Job) -> WorkResponse:
        job.progress(0.25)
        job.progress(0.5)
        return WorkResponse()

    operation = resize.start(WorkRequest()).operation
    assert operation.metadata.type_url == "type.googleapis.com/lro.v1.OperationMetadata"
    assert seen(service, operation) == lro.OperationMetadata(
        create_time=START,
        start_time=START,
        end_time=START,
        expire_time=START + timedelta(days=30),
        verb="resize",
        api_version="v1",
        progress_percent=100,
    )


def test_fields_of_metadata_are_in_declared_order(service):
    """The JSON has the fields in the order of the class, before and after the end."""
    seen_before = []

    @service.method(NAME, exclusive_target=lambda _: "images/1")
    def resize(request: WorkRequest, job: lro.Job) -> None:
        job.progress(0.5, "half")
        seen_before.append([*service.get(job.name).metadata.payload])

    after = [*resize.start(WorkRequest()).operation.metadata.payload]
    assert seen_before == [
        [*("createTime", "target", "verb", "statusMessage"),
         *("apiVersion", "startTime", "progressPercent")]
    ]  # fmt: skip
    assert after == [
        *("createTime", "endTime", "target", "verb"),
        *("apiVersion", "startTime", "expireTime", "progressPercent"),
    ]


@pytest.mark.parametrize(
    ("reports", "after"),
    [
        ([(0.9, "file 9 of 10")], ""),
        ([(0.9, "file 9 of 10"), (1.0, None)], "file 9 of 10"),
        ([(1.0, "wrote 10 files")], "wrote 10 files"),
        ([], ""),
    ],
)
def test_text_of_unfinished_progress_ends_with_a_success(service, reports, after):
    """A success removes a text that was reported with less than 100 percent."""

    @service.method(NAME)
    def resize(request: WorkRequest, job: lro.Job) -> None:
        for fraction, text in reports:
            job.progress(fraction, text)

    metadata = seen(service, resize.start(WorkRequest()).operation)
    assert (metadata.status_message, metadata.progress_percent) == (after, 100)


def test_text_without_progress_stays_after_a_success(service):
    """A text that was given without a percentage, such as that of final metadata, stays."""
    method = service.declare(NAME, request=WorkRequest, response=WorkResponse)
    name = method.start(WorkRequest()).name
    said = lro.OperationMetadata(status_message="see the report")
    assert service.reporter(name).complete(WorkResponse(), metadata=said)
    assert seen(service, service.get(name)).status_message == "see the report"


def test_progress_of_zero_differs_from_no_progress(service):
    """Before the first report the percentage is not set; a report of 0 is in the JSON too."""
    shown = []

    @service.method(NAME)
    def resize(request: WorkRequest, job: lro.Job) -> None:
        for fraction in (None, 0.0):
            if fraction is not None:
                job.progress(fraction)
            metadata = service.get(job.name).metadata
            shown.append(service.types.to_json(metadata).get("progressPercent"))
            shown.append(service.types.unpack(metadata, lro.OperationMetadata).progress_percent)

    assert resize.start(WorkRequest()).operation.error is None
    assert shown == [None, None, 0, 0]


def test_a_failure_keeps_the_last_progress(service):
    """A failure keeps the last progress, rounded to a whole percent."""

    @service.method(NAME)
    def resize(request: WorkRequest, job: lro.Job) -> WorkResponse:
        job.progress(0.29)
        raise lro.StatusError(lro.Code.DATA_LOSS, "the disk is broken")

    metadata = seen(service, resize.start(WorkRequest()).operation)
    assert metadata.progress_percent == 29
    assert metadata.end_time == START


def test_a_function_that_only_takes_a_request(service):
    """A function that takes only a request and returns nothing gives an empty response."""

    @service.method("Images.Nap")
    def nap(request: WorkRequest) -> None: ...

    operation = nap.start(WorkRequest()).operation
    assert service.types.unpack(operation.response, lro.Empty) == lro.Empty()
    metadata = seen(service, operation)
    assert (metadata.verb, metadata.api_version, metadata.end_time) == ("nap", "", START)


def test_default_metadata_is_there_before_the_first_report(store, make_service):
    """Default metadata exist from the start on. Metadata passed to the start get the verb, too."""
    service = make_service(store)
    method = service.declare(NAME, request=WorkRequest, response=WorkResponse)
    first = seen(service, method.start(WorkRequest()).operation)
    assert (first.create_time, first.start_time, first.verb) == (START, None, "resize")
    own = lro.OperationMetadata(status_message="in the queue")
    given = seen(service, method.start(WorkRequest(), metadata=own).operation)
    assert (given.status_message, given.verb) == ("in the queue", "resize")


def test_report_keeps_verb_version_and_target(store, make_service):
    """A report keeps the metadata's verb, version and target unless it sets them."""
    service = make_service(store)
    method = service.declare(NAME, request=WorkRequest, response=WorkResponse)
    started = method.start(WorkRequest(), target="images/1")
    first, reporter = seen(service, started.operation), service.reporter(started.name)
    assert reporter.report(lro.OperationMetadata(progress_percent=40))
    metadata = seen(service, service.get(started.name))
    assert metadata == attrs.evolve(first, progress_percent=40)
    assert first.target == "images/1"
    assert reporter.report(lro.OperationMetadata(verb="shrink"))
    assert seen(service, service.get(started.name)).verb == "shrink"


def test_default_metadata_shows_the_exclusive_target(service):
    """The metadata's ``target`` names the resource that the operation locks."""

    @service.method(NAME, exclusive_target=lambda request: f"images/{request.text}")
    def resize(request: WorkRequest, job: lro.Job) -> None:
        job.progress(1)

    metadata = seen(service, resize.start(WorkRequest("a")).operation)
    assert (metadata.target, metadata.progress_percent) == ("images/a", 100)


def test_retry_keeps_the_last_message(service, clock):
    """After a retry, the status message stays until the next attempt reports a new message."""
    attempts = []

    @service.method(NAME, retry=lro.Retry(on=OSError))
    def resize(request: WorkRequest, job: lro.Job) -> None:
        attempts.append(job.metadata.status_message)
        job.progress(0.1 * len(attempts), "first" if len(attempts) == 1 else None)
        if len(attempts) == 1:
            raise OSError

    operation = ended_in_time(service, clock, resize.start(WorkRequest()).name)
    assert operation.error is None
    assert attempts == ["", "first"]


def test_refused_report_leaves_the_last_one(service):
    """A refused report does not change ``job.metadata``, and the next report is accepted."""
    messages = []

    @service.method(NAME)
    def resize(request: WorkRequest, job: lro.Job) -> None:
        job.progress(0.1, "fine")
        with pytest.raises(MessageTooLarge):
            job.progress(0.2, "x" * 1_000_000)
        messages.append(job.metadata.status_message)
        job.progress(1)

    operation = resize.start(WorkRequest()).operation
    assert messages == ["fine"]
    assert operation.error is None
    assert seen(service, operation).status_message == "fine"


def test_an_async_function_reports_without_holding_up_its_loop(make_service):
    """On an event loop, ``progress`` raises an error that points to ``progress_async``."""
    service = make_service(None, AsyncioExecutor(1))
    refused: list[str] = []

    @service.method(NAME)
    async def resize(request: WorkRequest, job: lro.Job) -> None:
        try:
            job.progress(0.5)
        except RuntimeError as exc:
            refused.append(str(exc))
        await job.progress_async(1.0, "all of it")

    operation = service.wait(resize.start(WorkRequest()).name, PATIENCE)
    assert seen(service, operation).status_message == "all of it"
    assert re.search(r"job\.progress would hold up .* job\.progress_async", refused[0])


@pytest.mark.parametrize("fraction", [1.5, -0.1, float("nan"), True, "1"])
def test_invalid_progress_is_refused(fraction):
    """``progress`` refuses an invalid value, and the error shows the value."""
    job = testing.job()
    with pytest.raises(ValueError, match="fraction: must be a number from 0 to 1, got") as caught:
        job.progress(fraction)
    assert str(caught.value).endswith(f"got {fraction!r}")
    with pytest.raises(TypeError, match="message: must be a text, got 7"):
        job.progress(0.5, 7)


def test_a_method_with_a_class_of_its_own_reports_in_it(service):
    """A method with its own metadata class refuses ``progress``, which would erase its fields."""
    found: list[str] = []

    @service.method(NAME)
    def resize(request: WorkRequest, job: lro.Job[WorkMetadata]) -> None:
        job.report(WorkMetadata(3))
        with pytest.raises(lro.errors.EncodingError) as caught:
            job.progress(0.5)
        found.append(str(caught.value))

    assert seen(service, resize.start(WorkRequest()).operation, WorkMetadata).percent == 3
    assert "this method has Job[WorkMetadata]: call job.report(...)" in found[0]


def test_filters_and_indexes_reach_into_the_default(service):
    @service.method(NAME, indexed_paths=["verb"])
    def resize(request: WorkRequest) -> None: ...

    @service.method("acme.images.v1.Images.Crop")
    def crop(request: WorkRequest) -> None: ...

    resize.start(WorkRequest())
    wanted = crop.start(WorkRequest())
    for text in ("metadata.verb = crop", "metadata.api_version = v1 AND metadata.verb != resize"):
        page = service.list(lro.wire.ListOperationsRequest(filter=text))
        assert [one.name for one in page.operations] == [wanted.name]


def test_binary_metadata_stays_unchanged(service):
    """Binary metadata that the application has packed are stored unchanged."""
    method = service.declare(NAME, request=WorkRequest, response=WorkResponse)
    operation = method.start(WorkRequest()).operation
    reporter = service.reporter(operation.name)
    packed = lro.AnyMessage(operation.metadata.type_url, b"")
    assert reporter.complete(WorkResponse(), metadata=packed)
    assert service.get(operation.name).metadata == packed


@attrs.frozen
class Flagless:
    """Metadata without a field that shows a cancel request."""

    percent: int = 0


@attrs.frozen
class Requiring:
    """Metadata with a cancel flag and a required field, without which the flag is not valid."""

    part: Flagless
    requested_cancellation: bool = False


@pytest.mark.parametrize("first", [None, WorkMetadata(percent=7)])
def test_get_and_list_show_the_flag_after_a_cancel(service, first):
    method = declared(service)
    name = method.start(WorkRequest(), metadata=first).name
    method.start(WorkRequest())
    service.cancel(name)
    shown = unpacked(service, service.get(name))
    assert (shown.cancel_requested, shown.percent) == (True, 7 if first else 0)
    assert shown.create_time is not None
    for query in ("cancel_requested()", "metadata.cancel_requested = true"):
        found = service.list(lro.wire.ListOperationsRequest(filter=query)).operations
        assert [one.name for one in found] == [name]
        assert unpacked(service, found[0]).cancel_requested
    assert service.reporter(name).report(WorkMetadata(percent=50))  # the report has no cancel flag
    shown = unpacked(service, service.get(name))
    assert (shown.percent, shown.cancel_requested) == (50, True)


@pytest.mark.parametrize("metadata", [Flagless, Requiring])
def test_metadata_that_cannot_show_the_request_stay_absent(service, metadata):
    """Metadata stay absent if their class cannot show a cancel request.

    The filter ``cancel_requested()`` still finds the operation.
    """
    name = declared(service, metadata=metadata).start(WorkRequest()).name
    service.cancel(name)
    assert service.get(name).metadata is None
    found = service.list(lro.wire.ListOperationsRequest(filter="cancel_requested()")).operations
    assert [one.name for one in found] == [name]


def test_progress_of_a_method_with_its_own_metadata_names_the_cure(service, caplog):
    """The error says to call ``job.report``, and the operation that its metadata is wrong."""

    @service.method(NAME)
    def resize(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.progress(0.5)  # type: ignore[misc]
        return WorkResponse()

    error = resize.start(WorkRequest()).operation.error
    assert error.message == "the metadata of the method cannot be encoded"
    cure = "this method has Job[WorkMetadata]: call job.report(...) instead of job.progress(...)"
    assert cure in caplog.text
