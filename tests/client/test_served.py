"""The blocking and the async client against a real service, over each transport."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import lro
from lro.wire import BatchGetOperationsResponse
from lro_client import (
    CallError,
    OperationCancelled,
    OperationFailed,
    OperationGone,
    Polling,
    PollTimeout,
)
from tests.client.faces import Face
from tests.client.messages import TYPES, ResizeMetadata, ResizeRequest, ResizeResponse
from tests.client.real_service import FULL_NAME, WAYS, Harness, Way


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def way(request: pytest.FixtureRequest, harness: Harness, face: Face) -> Way:
    made: Way = request.param(harness, face, lambda: request.getfixturevalue("listening"))
    return made


@pytest.fixture
def client(way: Way) -> Any:
    """A client of the service."""
    return way.client()


def percents(steps: Iterator[Any]) -> Iterator[int | None]:
    """Yield the progress of each update."""
    for update in steps:
        yield None if update.metadata is None else update.metadata.percent


def test_second_wait_after_a_timeout_gets_the_result(way: Way, client: Any) -> None:
    """A timeout cancels nothing, and a second wait gets the result."""
    operation = way.start(client)
    assert not operation.done
    assert operation.metadata is None
    with pytest.raises(PollTimeout) as caught:
        operation.result(timeout=0.06)
    assert caught.value.name == operation.name
    assert not way.harness.service.get(operation.name).done
    way.harness.say(ResizeMetadata(percent=100), ResizeResponse(size_bytes=2**40))
    assert operation.result(timeout=120) == ResizeResponse(size_bytes=2**40)
    assert operation.metadata == ResizeMetadata(percent=100)
    assert operation.operation.state == "SUCCEEDED"


@pytest.mark.parametrize("waits", [True, False], ids=["with Wait", "without Wait"])
def test_updates_show_progress_and_end(waits: bool, way: Way) -> None:
    """Updates show the progress while the work runs, and at last the end."""
    client = way.client(polling=Polling(wait_first=waits))
    operation = way.start(client)
    steps = percents(operation.updates(timeout=120, every=0.05))
    assert next(steps) is None
    for percent in (10, 60):
        way.harness.say(ResizeMetadata(percent=percent))
        assert next(steps) == percent
    way.harness.say(ResizeResponse(size_bytes=1))
    assert next(steps) == 60
    assert list(steps) == []
    assert operation.done
    assert operation.result() == ResizeResponse(size_bytes=1)


def test_views_have_method_times_and_attempt(way: Way, client: Any) -> None:
    """``get``, ``batch_get`` and ``list`` return the description if the view is FULL."""
    operation = way.start(client)
    way.harness.say(ResizeResponse(size_bytes=1))
    operation.result(timeout=120)
    whole = client.get(operation.name, view="FULL")
    found = whole.description
    assert (whole.name, found.state, found.attempt) == (operation.name, "SUCCEEDED", 1)
    assert found.method == FULL_NAME
    assert found.create_time <= found.start_time <= found.end_time < found.expire_time
    several = client.batch_get([operation.name, "operations/none"], view="FULL")
    assert several == BatchGetOperationsResponse((whole,), ("operations/none",))
    assert whole in [*client.list(view="FULL")]
    basic = lro.OperationDescription()
    assert client.get(operation.name).description == basic
    assert client.batch_get([operation.name]).operations[0].description == basic


def test_error_arrives_with_its_details(way: Way, client: Any) -> None:
    """The client gets the error of the work with its details."""
    operation = way.start(client)
    violation = lro.types.PreconditionViolation(type="DISK", subject="a.png", description="is gone")
    extra = lro.types.PreconditionFailure(violations=(violation,))
    code = lro.Code.FAILED_PRECONDITION
    way.harness.say(lro.StatusError(code, "no such file", (extra,), "FILE_GONE"))
    with pytest.raises(OperationFailed, match="FAILED_PRECONDITION: no such file") as caught:
        operation.result(timeout=120)
    info, detail = caught.value.details()
    assert isinstance(info, lro.types.ErrorInfo)
    assert (info.reason, info.domain) == ("FILE_GONE", "acme.test")
    assert detail == extra
    operation = way.start(client)
    way.harness.say(ZeroDivisionError("secret"))  # an error from a bug shows no internals
    with pytest.raises(OperationFailed) as caught:
        operation.result(timeout=120)
    assert caught.value.code is lro.Code.INTERNAL
    assert "secret" not in str(caught.value)


def test_cancel_stops_the_work(way: Way, client: Any) -> None:
    """The operation is cancelled once its work has stopped."""
    operation = way.start(client)
    way.harness.say(None)
    operation.cancel()
    with pytest.raises(OperationCancelled):
        operation.result(timeout=120)
    assert operation.operation.state == "CANCELLED"


def test_deleted_operation_is_gone(way: Way, client: Any) -> None:
    """After a delete, calls answer NOT_FOUND, and an iteration of updates raises OperationGone."""
    operation, another = way.start(client), way.start(client)
    another.delete()
    steps = operation.updates(timeout=120, every=0.05)
    next(steps)
    way.harness.service.delete(operation.name)
    with pytest.raises(OperationGone):
        next(steps)
    for verb in (operation.delete, another.refresh):
        with pytest.raises(CallError, match="NOT_FOUND"):
            verb()
    assert list(client.list()) == []


def test_wait_returns_at_the_timeout_or_the_end(way: Way, client: Any) -> None:
    """``client.wait`` returns the state at its timeout or at the end, whichever is first."""
    operation = way.start(client)
    assert not client.wait(operation.name, timeout=0).done
    assert not client.wait(operation.name, timeout=timedelta(milliseconds=20)).done
    way.harness.say(ResizeResponse())
    assert client.wait(operation.name).done
    with pytest.raises(CallError) as caught:
        client.wait(operation.name, timeout=-1)
    assert caught.value.code is lro.Code.INVALID_ARGUMENT


@pytest.mark.parametrize("harness", [{"verbs": ["GetOperation"]}], indirect=True)
def test_result_is_polled_from_a_server_without_wait(way: Way) -> None:
    """A client gets the result from a server that has only GetOperation."""
    client = way.client(polling=Polling(max_retry_after=0.01))
    operation = way.start(client)
    way.harness.say(ResizeResponse(size_bytes=4))
    assert operation.result(timeout=120) == ResizeResponse(size_bytes=4)
    with pytest.raises(CallError) as caught:
        client.cancel(operation.name)
    assert caught.value.code is lro.Code.UNIMPLEMENTED


def test_name_becomes_a_handle_in_another_client(way: Way, client: Any) -> None:
    """Another client makes a handle from a stored name."""
    name = way.start(client).name
    client.close()
    another = way.client().operation(name, **TYPES)
    assert (another.name, another.done, another.metadata) == (name, False, None)
    way.harness.say(ResizeMetadata(percent=9), ResizeResponse(size_bytes=8))
    assert another.result(timeout=120) == ResizeResponse(size_bytes=8)
    assert another.metadata == ResizeMetadata(percent=9)


def test_repeated_request_id_starts_once(way: Way, client: Any) -> None:
    """A repeated request id returns the same operation, but is an error with another request."""
    request_id = str(uuid.UUID(int=1))
    first = way.start(client, request_id=request_id)
    assert way.start(client, request_id=request_id).name == first.name
    assert way.start(client).name != first.name
    with pytest.raises(CallError, match="INVALID_ARGUMENT") as caught:
        way.start(client, ResizeRequest(source="b.png"), request_id=request_id)
    info = caught.value.details()[0]
    assert isinstance(info, lro.types.ErrorInfo)
    assert info.reason == "REQUEST_ID_CONFLICT"


def test_refused_start_has_its_details_and_stores_nothing(way: Way, client: Any) -> None:
    """If the method's validation fails, the error has its details, and nothing is stored."""
    assert way.start(client, validate_only=True).done
    for validate_only in (False, True):
        with pytest.raises(CallError, match="INVALID_ARGUMENT: source:") as caught:
            way.start(client, ResizeRequest(), validate_only=validate_only)
        info, bad = caught.value.details()
        assert isinstance(info, lro.types.ErrorInfo)
        assert info.domain == "acme.test"
        violation = lro.types.FieldViolation("source", "must not be empty")
        assert bad == lro.types.BadRequest((violation,))
    with pytest.raises(CallError):
        client.start("/v1/operations", ResizeRequest(source="a"), **TYPES)
    assert list(client.list()) == []


def test_list_is_filtered_and_paged(way: Way, client: Any) -> None:
    """List is filtered and paged, and a listed operation can become a handle."""
    names = [way.start(client).name for _ in range(5)]
    way.harness.say(ResizeResponse(size_bytes=3))
    while not (ended := list(client.list(filter="done = true"))):
        way.harness.service.wait(names[0], timedelta(milliseconds=20))
    assert len(ended) == 1
    handle = client.operation(ended[0], **TYPES)
    assert handle.result() == ResizeResponse(size_bytes=3)
    pages = list(client.list("operations", page_size=2).pages())
    assert [len(page.operations) for page in pages] == [2, 2, 1]
    listed = [one.name for page in pages for one in page.operations]
    assert sorted(listed) == sorted(names)
    assert list(client.list("projects/p")) == []
    with pytest.raises(CallError, match="INVALID_ARGUMENT: filter"):
        list(client.list(filter="done ="))


def test_missing_and_invalid_names_are_different_errors(way: Way, client: Any) -> None:
    """An unknown name is NOT_FOUND, an invalid name INVALID_ARGUMENT. A name may have a colon."""
    for name, code in [
        ("operations/none", lro.Code.NOT_FOUND),
        ("operations/a:cancel", lro.Code.NOT_FOUND),
        ("operations/ü/x", lro.Code.NOT_FOUND),
        ("operations/-", lro.Code.INVALID_ARGUMENT),
    ]:
        with pytest.raises(CallError) as caught:
            client.get(name)
        assert caught.value.code is code, name


def test_threads_and_tasks_share_a_client(way: Way, client: Any) -> None:
    """Several threads or tasks wait with one client, and each gets its own result."""
    operations = [way.start(client) for _ in range(4)]
    way.harness.say(*[ResizeResponse(size_bytes=n) for n in range(4)])
    found = way.face.together([one.result for one in operations])
    assert sorted(one.size_bytes for one in found) == [0, 1, 2, 3]
