"""What several processes on one store see of each other while they wait."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import attrs
import pytest

import lro
from lro.errors import OperationNotFound
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore


@attrs.frozen
class AskRequest:
    """A request."""


@attrs.frozen
class AskMetadata:
    """Metadata."""

    seen: lro.Int32 = 0


@attrs.frozen
class AskResponse:
    """A response."""

    answer: str = ""


def asking(path):
    """A service on this file whose work is done elsewhere."""
    service = lro.Service(SQLiteStore(path), InlineExecutor(), maintenance=False)
    method = service.declare(
        "acme.v1.Asks.Ask", request=AskRequest, response=AskResponse, metadata=AskMetadata
    )
    return service, method


@pytest.mark.parametrize("ending", ["complete", "delete"])
def test_waiters_hear_of_another_process(tmp_path, ending):
    """Two services on one file: what one writes, the waiters of the other learn of."""
    (here, method), (there, _) = asking(tmp_path / "a.db"), asking(tmp_path / "a.db")
    name = method.start(AskRequest()).name

    async def main():
        waiters = [asyncio.create_task(here.wait_async(name)) for _ in range(3)]
        while here.waiting < 3:
            await asyncio.sleep(0)
        if ending == "complete":
            there.reporter(name).complete(AskResponse("yes"))
        else:
            there.delete(name)
        return await asyncio.gather(*waiters, return_exceptions=True)

    found = asyncio.run(main())
    if ending == "complete":
        assert [one.done for one in found] == [True] * 3
    else:
        assert [type(one) for one in found] == [OperationNotFound] * 3
    here.close()
    there.close()


def test_a_number_is_a_timeout_in_seconds():
    """Service.wait takes seconds, a timedelta or a Duration, and says so of anything else."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
    method = service.declare(
        "acme.v1.Asks.Ask", request=AskRequest, response=AskResponse, metadata=AskMetadata
    )
    name = method.start(AskRequest()).name
    for timeout in (0, 0.0, timedelta(), lro.Duration()):
        assert not service.wait(name, timeout).done
    for timeout in ("5", -1, float("nan")):
        with pytest.raises(lro.errors.InvalidTimeout):
            service.wait(name, timeout)
    service.close(0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time_limit", 5),
        ("time_limit", timedelta()),
        ("keep_for", 3600),
        ("concurrency", 0),
        ("attempts", 0),
        ("max_lost", True),
        ("exclusive_target", "folder"),
        ("validate", 1),
        ("final_metadata", "x"),
    ],
)
def test_an_option_is_refused_where_it_is_declared(name, value):
    """Not by a worker, hours later."""
    with pytest.raises(lro.DeclarationError, match=name):
        lro.Options(**{name: value})


def test_a_bare_decorator_gets_the_right_form():
    """``@service.method`` without a name says what to write."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
    with pytest.raises(lro.DeclarationError, match=r"service\.method"):
        service.method(lambda request: None)


def test_a_job_recalls_what_callers_see():
    """Before its first report, ``job.metadata`` is what the start gave."""
    seen = []
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:

        @service.method("acme.v1.Asks.Recall", response=AskResponse)
        def recall(_: AskRequest, job: lro.Job[AskMetadata]):
            seen.append(job.metadata)
            job.report(AskMetadata(8))
            seen.append(job.metadata)
            return AskResponse()

        recall.start(AskRequest(), metadata=AskMetadata(7))
        recall.start(AskRequest())
        foreign = lro.Any("x/acme.v1.Other", {})
        recall.start(AskRequest(), metadata=foreign)
    assert seen == [AskMetadata(7), AskMetadata(8), None, AskMetadata(8), None, AskMetadata(8)]


def test_one_waiting_thread_hears_of_another_process(tmp_path):
    """The same for a blocking wait."""
    (here, method), (there, _) = asking(tmp_path / "a.db"), asking(tmp_path / "a.db")
    name = method.start(AskRequest()).name
    other = threading.Thread(target=lambda: there.reporter(name).complete(AskResponse("yes")))
    other.start()
    assert here.wait(name, 30).done
    other.join()
    here.close()
    there.close()
