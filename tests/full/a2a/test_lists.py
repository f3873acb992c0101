"""ListTasks: filters, pages and counts (A2A 3.1.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

from a2a.types import ListTasksRequest, ListTasksResponse
from a2a.utils.errors import InvalidParamsError
from google.protobuf import json_format

import lro
from lro.a2a import Handler, _handler
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from tests.full.a2a.serving import CONTEXT, WAYS, Asked, make_agent, serving
from tests.http.counting_service import CountService, build


@attrs.frozen
class Listed:
    """An agent with tasks in every state, created a second apart."""

    clock: ManualClock
    counting: CountService
    handler: Handler
    ids: dict[str, str]

    def list(self, **fields: Any) -> ListTasksResponse:
        request = json_format.ParseDict(fields, ListTasksRequest())
        return asyncio.run(self.handler.on_list_tasks(request, CONTEXT))

    def found(self, **fields: Any) -> str:
        """Return the names of the listed tasks, in the order of the list."""
        names = {task_id: name for name, task_id in self.ids.items()}
        return " ".join(names[task.id] for task in self.list(**fields).tasks)


@pytest.fixture
def listed() -> Iterator[Listed]:
    """Create tasks in every state; each name tells the task's state."""
    clock = ManualClock()
    counting, handler = make_agent(build(MemoryStore(clock), owner_only=True))
    service, ids = counting.service, {}

    def add(name: str) -> str:
        clock.advance(1)
        operation = counting.start(caller="ann")
        ids[name] = operation.rpartition("/")[2]
        return operation

    counting.start(caller="eve")
    counting.finish(add("done"))
    service.reporter(add("failed")).fail(lro.StatusError(lro.Code.INTERNAL, "no"))
    stopped = add("stopped")
    service.cancel(stopped, caller="ann")
    service.reporter(stopped).acknowledge_cancel()
    add("waiting")
    clock.advance(0.0017)
    add("late")
    yield Listed(clock, counting, handler, ids)
    service.close(0)


def test_lists_are_of_the_caller_newest_first(listed: Listed) -> None:
    """A list has only the caller's tasks, newest first, and counts no others (A2A 13.1)."""
    assert listed.found() == "late waiting stopped failed done"
    reply = listed.list()
    assert (reply.page_size, reply.total_size, reply.next_page_token) == (50, 5, "")


def test_list_is_filtered_by_state(listed: Listed) -> None:
    found = {
        "SUBMITTED": "late waiting",
        "COMPLETED": "done",
        "FAILED": "failed",
        "CANCELED": "stopped",
        "UNSPECIFIED": "late waiting stopped failed done",
        **dict.fromkeys(("WORKING", "INPUT_REQUIRED", "REJECTED", "AUTH_REQUIRED"), ""),
    }
    for state, names in found.items():
        assert listed.found(status=f"TASK_STATE_{state}") == names
        assert listed.list(status=f"TASK_STATE_{state}").total_size == len(names.split())


def test_list_is_filtered_by_the_status_timestamp(listed: Listed) -> None:
    """A filter by the timestamp that a client saw finds the task with that timestamp."""
    stamps = {task.id: task.status.timestamp.ToJsonString() for task in listed.list().tasks}
    assert stamps[listed.ids["late"]].endswith(".001Z")
    since = {name: stamps[task_id] for name, task_id in listed.ids.items()}
    assert listed.found(statusTimestampAfter=since["late"]) == "late"
    after = {"statusTimestampAfter": since["stopped"]}
    assert listed.found(**after) == "late waiting stopped"
    assert listed.found(**after, status="TASK_STATE_CANCELED") == "stopped"
    assert listed.found(statusTimestampAfter="9999-12-31T23:59:59Z") == ""


def test_a_time_out_of_range_is_refused(listed: Listed) -> None:
    """A time that only protobuf's binary form can hold is refused."""
    request = ListTasksRequest()
    request.status_timestamp_after.seconds = 2**62
    with pytest.raises(InvalidParamsError, match="status_timestamp_after"):
        asyncio.run(listed.handler.on_list_tasks(request, CONTEXT))


def test_pages_follow_each_other_and_count_the_whole(listed: Listed) -> None:
    """Each task is on one page, and each page has the total number of tasks."""
    found, token, sizes = [], "", []
    while True:
        page = listed.list(pageSize=2, pageToken=token)
        found += [task.id for task in page.tasks]
        sizes.append((page.page_size, page.total_size))
        token = page.next_page_token
        if not token:
            break
    assert found == list(reversed(listed.ids.values()))
    assert sizes == [(2, 5)] * 3


def test_total_of_a_long_list_is_counted_up_to_a_limit(
    listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long list is counted only up to a limit."""
    monkeypatch.setattr(_handler, "MAX_COUNTED", 3)
    assert listed.list(pageSize=2).total_size == 3


def test_page_token_with_another_filter_is_refused(listed: Listed) -> None:
    """A page token is refused if the filter differs from that of the first request."""
    token = listed.list(pageSize=2).next_page_token
    with pytest.raises(InvalidParamsError, match="page_token"):
        listed.list(pageSize=2, pageToken=token, status="TASK_STATE_FAILED")


def test_each_task_has_its_own_context(listed: Listed) -> None:
    """A context ID selects the one task with that context; other context IDs select none."""
    done, late = listed.ids["done"], listed.ids["late"]
    assert listed.found(contextId=done) == "done"
    assert listed.found(contextId=done, status="TASK_STATE_FAILED") == ""
    assert listed.found(contextId=late, pageSize=1) == "late"
    for unknown in ("x", "a/b", "-" + done):
        reply = listed.list(contextId=unknown)
        assert (list(reply.tasks), reply.total_size) == ([], 0)


def test_list_has_artifacts_only_on_request() -> None:
    """A list has artifacts only on request; otherwise the field is missing (A2A 3.1.4)."""
    with serving(build()) as agent:
        agent.counting.finish(agent.counting.start())
        for ask in WAYS.values():
            for more in ({}, {"includeArtifacts": False}):
                reply = ask(agent, Asked("ListTasks", more))
                assert set(reply) == {"tasks", "nextPageToken", "pageSize", "totalSize"}
                assert "artifacts" not in reply["tasks"][0]
            reply = ask(agent, Asked("ListTasks", {"includeArtifacts": True}))
            assert reply["tasks"][0]["artifacts"][0]["artifactId"] == "response"


def test_tasks_below_a_parent_are_listed_there() -> None:
    """Only tasks below the parent that the ``parent`` hook returns are listed."""
    counting, handler = make_agent(build(), parent=lambda caller: f"users/{caller}")
    with counting.service:
        mine = counting.start(parent="users/ann")
        counting.start(parent="users/eve")
        counting.start()
        reply = asyncio.run(handler.on_list_tasks(ListTasksRequest(), CONTEXT))
        assert [task.id for task in reply.tasks] == [mine.rpartition("/")[2]]
    counting.service.close(0)


def test_message_of_an_unknown_type_hides_no_task(listed: Listed) -> None:
    """A task whose message has an unknown type is listed, with an ErrorInfo for the message."""
    listed.counting.start(caller="ann", metadata=lro.AnyMessage("x/acme.v1.Gone", b"\x08"))
    tasks = listed.list().tasks
    assert (len(tasks), str(tasks).count("MESSAGE_UNREADABLE")) == (6, 1)
