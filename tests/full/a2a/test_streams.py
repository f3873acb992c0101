"""Streams of A2A: their events, the order of events, and the end (A2A 3.1.2, 3.1.6, 3.5.2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

from a2a.types import SendMessageRequest, SubscribeToTaskRequest, a2a_pb2, a2a_pb2_grpc
from a2a.utils.errors import UnsupportedOperationError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf import json_format

from tests.full.a2a.serving import CONTEXT, JSONRPC, REST, Agent, make_agent, message, serving
from tests.http.counting_service import DOMAIN, CountMetadata, build
from tests.waiting import until


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """Serve an agent on real sockets."""
    with serving(build()) as served:
        yield served


def by_get(agent: Agent, task_id: str) -> Iterator[Any]:
    """Subscribe to a task over HTTP+JSON with GET, as in the proto file."""
    return _of_sse(agent, "GET", f"{REST}/tasks/{task_id}:subscribe")


def by_post(agent: Agent, task_id: str) -> Iterator[Any]:
    """Subscribe to a task over HTTP+JSON with POST, as in the specification's text (A2A 11.3.2)."""
    return _of_sse(agent, "POST", f"{REST}/tasks/{task_id}:subscribe")


def by_jsonrpc(agent: Agent, task_id: str) -> Iterator[Any]:
    """Subscribe to a task over JSON-RPC."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
    for event in _of_sse(agent, "POST", JSONRPC, json=call):
        yield event["result"]


def by_grpc(agent: Agent, task_id: str) -> Iterator[Any]:
    """Subscribe to a task over gRPC."""
    stub: Any = a2a_pb2_grpc.A2AServiceStub(agent.channel)
    request = a2a_pb2.SubscribeToTaskRequest(id=task_id)
    for event in stub.SubscribeToTask(request, timeout=60):
        yield json_format.MessageToDict(event)


def _of_sse(agent: Agent, *request: str, **more: Any) -> Iterator[Any]:
    with agent.http.stream(*request, **more) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def summary(event: Any) -> str:
    """Return a short text that describes an event."""
    kind = next(iter(event))
    if kind == "artifactUpdate":
        return f"artifact {event[kind]['artifact']['parts'][0]['data']['total']:.0f}"
    state = event[kind]["status"]["state"].removeprefix("TASK_STATE_")
    metadata = event[kind]["metadata"].get(f"{DOMAIN}/metadata", {})
    return f"{kind} {state} {metadata['percent']:.0f}" if metadata else f"{kind} {state}"


@pytest.mark.parametrize("subscribe", [by_get, by_post, by_jsonrpc, by_grpc])
def test_subscribers_see_the_task_then_changes_then_the_end(
    agent: Agent, subscribe: Callable[[Agent, str], Iterator[Any]]
) -> None:
    """All subscribers get the same events in the same order; the artifact comes before the end."""
    name = agent.counting.start()
    task_id = name.rpartition("/")[2]
    streams = [subscribe(agent, task_id) for _ in range(3)]
    seen: list[list[str]] = [[summary(next(one))] for one in streams]
    for percent in (10, 20):
        agent.service.reporter(name).report(CountMetadata(percent=percent))
        for events, one in zip(seen, streams, strict=True):
            events.append(summary(next(one)))
    streams.pop().close()  # closing one stream does not end the others
    agent.counting.finish(name)
    for events, one in zip(seen, streams, strict=False):
        events.extend(map(summary, one))
    begun = ["task SUBMITTED", "statusUpdate SUBMITTED 10", "statusUpdate SUBMITTED 20"]
    whole = [*begun, "artifact 3", "statusUpdate COMPLETED 20"]
    assert seen == [whole, whole, begun]


def test_send_streaming_message_starts_and_follows(agent: Agent) -> None:
    """The first event is the new task; a repeated message gets the same task."""
    call = {"message": message("stream-1")}
    stream = _of_sse(agent, "POST", f"{REST}/message:stream", json=call)
    task = next(stream)["task"]
    again = _of_sse(agent, "POST", f"{REST}/message:stream", json=call)
    assert next(again)["task"]["id"] == task["id"]
    agent.service.cancel(f"operations/{task['id']}", caller="ann")
    agent.service.reporter(f"operations/{task['id']}").acknowledge_cancel()
    assert [summary(one) for one in stream][-1] == "statusUpdate CANCELED"
    assert [summary(one) for one in again][-1] == "statusUpdate CANCELED"
    ended = _of_sse(agent, "POST", f"{REST}/message:stream", json=call)
    assert [summary(one) for one in ended] == ["task CANCELED"]


def test_a_stream_whose_reader_leaves_is_ended(agent: Agent) -> None:
    task_id = agent.counting.start().rpartition("/")[2]
    streams = [ask(agent, task_id) for ask in (by_get, by_jsonrpc, by_grpc)]
    for one in streams:
        next(one)
    assert agent.service.edges.waiters.watching == 3
    for one in streams:
        one.close()
    until(lambda: agent.service.edges.waiters.watching, lambda count: count == 0)


def test_an_error_in_a_stream_of_version_0_3_is_its_last_event(agent: Agent) -> None:
    name = agent.counting.start()
    url = f"{REST}/v1/tasks/{name.rpartition('/')[2]}:subscribe"
    stream = _of_sse(agent, "GET", url, headers={"a2a-version": "0.3"})
    next(stream)
    agent.service.delete(name)
    assert [one["error"]["status"] for one in stream] == ["NOT_FOUND"]


async def events(stream: AsyncIterator[Any]) -> list[str]:
    return [summary(json_format.MessageToDict(to_stream_response(one))) async for one in stream]


def test_a_service_that_stops_ends_its_streams() -> None:
    """A service that stops ends its streams without a final status, so that clients reconnect."""

    async def watched() -> None:
        counting, handler = make_agent(build())
        name = counting.start()
        stream = handler.on_subscribe_to_task(
            SubscribeToTaskRequest(id=name.rpartition("/")[2]), CONTEXT
        )
        await anext(stream)
        rest = asyncio.create_task(events(stream))
        await asyncio.sleep(0)
        counting.service.close(timedelta(0))
        assert await rest == []

    asyncio.run(watched())


def test_streaming_call_without_streams_is_unsupported() -> None:
    """If the card or the service has no streams, a streaming call is unsupported (A2A 3.3.4)."""

    async def refused(handler: Any) -> str:
        request = json_format.ParseDict({"message": message()}, SendMessageRequest())
        with pytest.raises(UnsupportedOperationError) as caught:
            await anext(handler.on_message_send_stream(request, CONTEXT))
        return caught.value.message

    verbs = ["WaitOperation"]
    counting, handler = make_agent(build(verbs=verbs))
    assert "WatchOperations" in asyncio.run(refused(handler))
    counting.service.close(0)
    counting, handler = make_agent(build())
    handler.card.capabilities.streaming = False
    assert asyncio.run(refused(handler)) == "this agent does not stream"
    counting.service.close(0)
