"""Races: the first one wins, exactly once, and its result stays (spec §2.8)."""

from __future__ import annotations

import threading

import pytest

from lro import Code, Job, ListOperationsRequest, LroError, Status
from lro.errors import OperationNotFound
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.testing._samples import together
from tests.service_steps import answer, ended
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

THREADS = 100


def declare(service):
    return service.declare(
        "acme.v1.Works.Work", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )


def test_cancellation_against_completion(store, make_service):
    """100 threads a round: one write is applied, all others raise, the record is the winner's."""
    service = make_service(store, InlineExecutor())
    method = declare(service)
    names = [method.start(WorkRequest()).name for _ in range(12)]
    for name in names:
        service.cancel(name)

    def end(name, number):
        reporter = service.reporter(name)
        match number % 3:
            case 0:
                return reporter.complete(WorkResponse(str(number)))
            case 1:
                return reporter.fail(Status(Code.ABORTED, str(number)))
            case _:
                return reporter.acknowledge_cancel(metadata=WorkMetadata(note=str(number)))

    gate = threading.Barrier(THREADS)

    def race(number):
        applied = []
        for name in names:
            gate.wait(PATIENCE)
            applied.append(end(name, number))
        return applied

    rounds = zip(*together(THREADS, race), strict=True)
    for name, applied in zip(names, rounds, strict=True):
        assert sorted(applied) == [False] * (THREADS - 1) + [True]
        winner = applied.index(True)
        operation = service.get(name)
        if winner % 3 == 0:
            assert answer(service, operation) == str(winner)
        elif winner % 3 == 1:
            assert operation.error == Status(Code.ABORTED, str(winner))
        else:
            metadata = service.types.unpack(operation.metadata, WorkMetadata)
            assert (operation.state, metadata.note) == ("CANCELLED", str(winner))


def test_deletion_against_completion(store, make_service):
    """After the deletion the record is gone, whatever else was applied before it."""
    service = make_service(store, InlineExecutor())
    method = declare(service)
    names = [method.start(WorkRequest()).name for _ in range(5)]

    def race(number):
        found = []
        for name in names:
            try:
                if number % 2:
                    found.append(service.delete(name) is None)
                else:
                    found.append(service.reporter(name).complete(WorkResponse()))
            except OperationNotFound:
                found.append(False)
        return found

    for applied in zip(*together(20, race), strict=True):
        assert sum(applied[1::2]) == 1  # deleted once
        assert sum(applied[0::2]) <= 1  # and completed once, if at all
    assert service.list(ListOperationsRequest()).operations == ()


@pytest.mark.parametrize("make_executor", [lambda: ThreadExecutor(4), AsyncioExecutor])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_cancelling_work_that_is_about_to_end(store, make_service, make_executor, colour):
    """The state is that of the one or the other, and it never changes again."""
    service = make_service(store, make_executor())
    gates = {}

    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        gates[request.text].wait(PATIENCE)
        job.raise_if_cancelled()
        return WorkResponse(request.text)

    async def awork(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await job.report_async(WorkMetadata(50))
        return WorkResponse(request.text)

    method = service.method("acme.v1.Works.Work")(work if colour == "sync" else awork)
    for number in range(15):
        text = str(number)
        gate = gates[text] = threading.Barrier(2 if colour == "sync" else 1)
        operation = method.start(WorkRequest(text))
        if colour == "sync":
            gate.wait(PATIENCE)
        service.cancel(operation.name)
        found = ended(service, operation)
        assert found.state in ("SUCCEEDED", "CANCELLED")
        assert found.state == "CANCELLED" or answer(service, found) == text
        service.cancel(operation.name)
        assert not service.reporter(operation.name).fail(Status(Code.ABORTED))
        assert service.get(operation.name) == found


def test_one_request_id_from_many_threads(store, make_service):
    """One operation is started, its work is done once, and every caller gets its name."""
    service = make_service(store, ThreadExecutor(2))
    calls = []

    @service.method("acme.v1.Works.Work", metadata=WorkMetadata)
    def work(request: WorkRequest) -> WorkResponse:
        calls.append(request.text)
        return WorkResponse()

    request_id = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"
    found = together(20, lambda _: work.start(WorkRequest("x"), request_id=request_id))
    assert not [one for one in found if isinstance(one, LroError)]
    assert len({one.name for one in found}) == 1
    ended(service, found[0])
    assert calls == ["x"]


def test_one_target_from_many_threads(store, make_service):
    """One operation works on it; the others get the error that it is busy."""
    service = make_service(store, ThreadExecutor(2))
    gate = threading.Event()

    @service.method(
        "acme.v1.Works.Work", metadata=WorkMetadata, exclusive_target=lambda request: "t"
    )
    def work(request: WorkRequest) -> WorkResponse:
        gate.wait(PATIENCE)
        return WorkResponse()

    found = together(20, lambda _: work.start(WorkRequest()))
    started = [one for one in found if not isinstance(one, LroError)]
    gate.set()
    assert [one.code for one in found if isinstance(one, LroError)] == [Code.ABORTED] * 19
    ended(service, started[0])
    again = ended(service, work.start(WorkRequest()))
    assert again.state == "SUCCEEDED"
