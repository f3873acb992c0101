"""Races: the first one wins, exactly once, and its result stays (spec §2.8)."""

from __future__ import annotations

import threading

import pytest

from lro import Code, Job, Status
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
