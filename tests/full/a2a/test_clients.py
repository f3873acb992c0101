"""Clients of other projects: a2a-sdk over each binding, in two versions, and an npm package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

import grpc.aio
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotCancelableError, TaskNotFoundError
from google.protobuf import json_format

from tests.full.a2a.serving import Agent, message, working_agent
from tests.services.npm import A2A, node_modules, run_node


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """Serve an agent whose method does the work."""
    with working_agent() as served:
        yield served


def request(message_id: str, steps: int = 3, **more: Any) -> SendMessageRequest:
    """Return a request that starts counting."""
    made = {"message": message(message_id, {"steps": steps}), **more}
    return json_format.ParseDict(made, SendMessageRequest())


AT_ONCE = {"configuration": {"returnImmediately": True}}


async def the_card(agent: Agent, http: httpx.AsyncClient, version: str) -> Any:
    """Return the agent card that the SDK reads, with the interfaces of only one version."""
    card = await A2ACardResolver(http, agent.url).get_agent_card()
    kept = [one for one in card.supported_interfaces if one.protocol_version == version]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)
    return card


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
def test_the_sdks_client_completes_and_cancels_tasks(
    agent: Agent, binding: str, version: str
) -> None:
    """The SDK's client starts, waits, streams, polls, lists and cancels, and recognizes errors."""

    async def used() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for streaming in (False, True):
                config = ClientConfig(
                    streaming=streaming,
                    httpx_client=http,
                    supported_protocol_bindings=[binding],
                    grpc_channel_factory=grpc.aio.insecure_channel,
                )
                card = await the_card(agent, http, version)
                client = ClientFactory(config).create(card)
                await _complete(client, f"{binding}-{version}-{streaming}", streaming)
                await client.close()

    asyncio.run(used())


async def _complete(client: Any, key: str, streaming: bool) -> None:
    found = [one async for one in client.send_message(request(f"{key}-1"))]
    states = [one.task.status.state for one in found if one.HasField("task")]
    states += [one.status_update.status.state for one in found if one.HasField("status_update")]
    assert states[-1] == TaskState.TASK_STATE_COMPLETED
    assert streaming or len(found) == 1
    task_id = found[0].task.id

    task = await client.get_task(GetTaskRequest(id=task_id))
    assert [part.data.struct_value["total"] for part in task.artifacts[0].parts] == [3]
    exact = "0.3" not in key  # a client of version 0.3 does not recognize the class of each error
    with pytest.raises(TaskNotCancelableError if exact else A2AError) as caught:
        await client.cancel_task(CancelTaskRequest(id=task_id))
    assert not exact or "has ended" in str(caught.value)
    with pytest.raises(TaskNotFoundError if exact else A2AError) as caught:
        await client.get_task(GetTaskRequest(id="gone"))
    assert not exact or "there is no task 'gone'" in str(caught.value)
    await _cancel(client, key, streaming)


async def _cancel(client: Any, key: str, streaming: bool) -> None:

    begun = await anext(aiter(client.send_message(request(f"{key}-2", 1000, **AT_ONCE))))
    task_id = begun.task.id
    if streaming:  # a client without streaming cannot subscribe to a task
        events = aiter(client.subscribe(SubscribeToTaskRequest(id=task_id)))
        assert (await anext(events)).task.id == task_id
    await client.cancel_task(CancelTaskRequest(id=task_id))
    if streaming:
        last = [one async for one in events][-1]
        assert last.status_update.status.state == TaskState.TASK_STATE_CANCELED
    if "0.3" not in key:  # version 0.3 has no lists
        page = await client.list_tasks(ListTasksRequest(page_size=1))
        assert (page.tasks[0].id, page.page_size) == (task_id, 1)
        assert page.total_size > 1


SCRIPT = """
import { ClientFactory } from '@a2a-js/sdk/client';
const client = await new ClientFactory().createFromUrl(process.argv[2]);
const message = {
  messageId: 'npm-1', role: 1, contextId: '', taskId: '', extensions: [], referenceTaskIds: [],
  parts: [{ content: { $case: 'data', value: { steps: 5 } }, mediaType: 'application/json',
            filename: '', metadata: undefined }],
  metadata: undefined,
};
const sent = await client.sendMessage({ tenant: '', message, configuration: undefined,
                                        metadata: undefined });
const task = await client.getTask({ tenant: '', id: sent.id ?? sent.payload?.value?.id });
console.log(JSON.stringify(task));
"""


def test_the_client_of_npm_completes_a_task(agent: Agent) -> None:
    """The npm package's client reads the card, starts a task, awaits its end and gets the task."""
    shown = json.loads(run_node(node_modules(A2A), SCRIPT, agent.url))
    assert shown["id"]
    assert "COMPLETED" in str(shown["status"]["state"]) or shown["status"]["state"] == 3
    assert '"total":5' in json.dumps(shown["artifacts"], separators=(",", ":"))
