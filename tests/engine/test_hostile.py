"""What a hostile tester found, held down: what callers are told, and loops that cannot be made."""

from __future__ import annotations

import json
import threading

import pytest

from lro import InvalidArgument, TypeRegistry
from lro.errors import HttpMethodNotAllowed, RouteNotFound
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.threads import ThreadExecutor
from lro.http import error_reply
from lro.wire import loads_strict
from tests.service_steps import WORK
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


def test_error_details_with_surrogates_are_escaped():
    """Also in the name of the wrong field: the caller gets INVALID_ARGUMENT, not INTERNAL."""
    description = "no file \\udcff.png"
    error = InvalidArgument("half\ud800", "no file \udcff.png")
    types = TypeRegistry()
    status = types.status_of(error, "d")
    info, wrong = (detail.payload for detail in status.details)
    assert info["metadata"] == {"field": "half\\ud800"}
    assert wrong["fieldViolations"] == [{"field": "half\\ud800", "description": description}]
    reply = error_reply(error, types, "d")
    assert reply.status == 400
    assert description in json.loads(reply.body)["error"]["message"]


def test_an_async_method_without_a_loop(make_service, monkeypatch):
    """No event loop can be made: the work is dropped, for its lease to run out."""
    tried = threading.Event()

    def no_loop(coroutine):
        coroutine.close()
        tried.set()
        raise OSError("too many open files")

    monkeypatch.setattr("asyncio.run", no_loop)
    executor = ThreadExecutor(1)
    service = make_service(executor=executor)

    @service.method(WORK, metadata=WorkMetadata)
    async def method(_: WorkRequest) -> WorkResponse:
        raise AssertionError

    method.start(WorkRequest())
    assert tried.wait(PATIENCE)
    assert executor.join(PATIENCE)
    assert not service.workers.held()


def test_a_number_of_too_many_digits():
    """Python's advice to itself is not passed on."""
    with pytest.raises(ValueError, match="too many digits"):
        loads_strict("1" * 5000)


@pytest.mark.parametrize("error", [RouteNotFound, lambda at: HttpMethodNotAllowed("PUT", at, ())])
def test_long_paths_are_not_echoed_whole(error):
    """Neither in the sentence nor in the facts."""
    made = error("/" + "x" * 5000)
    assert len(str(made)) < 300
    assert len(made.facts()["path"]) < 300


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: AsyncioExecutor(0),
        lambda: AsyncioExecutor(1, queue=-1),
        lambda: ThreadExecutor(1, queue=-1),
    ],
)
def test_executor_without_room_is_refused(make_it):
    """Where it is made, and not when the first operation meets it."""
    with pytest.raises(ValueError):
        make_it()
