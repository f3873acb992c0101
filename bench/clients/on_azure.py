"""azure-core, which polls a status URL."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from azure.core import AsyncPipelineClient, PipelineClient
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.core.polling import AsyncLROPoller, LROPoller
from azure.core.polling.async_base_polling import AsyncLROBasePolling
from azure.core.polling.base_polling import LROBasePolling
from azure.core.rest import HttpRequest

from bench.clients.ways import Way, each_in_a_task, each_in_a_thread

BEGIN = "/status/begin/"


def ways(url: str) -> Mapping[str, Way]:
    """Return two ways: ``threads`` with a client for each operation, ``asyncio`` with only one."""

    def blocking(name: str) -> Callable[[], object]:
        client: Any = PipelineClient(url, transport=RequestsTransport())

        def wait() -> object:
            asked = HttpRequest("POST", url + BEGIN + name)
            first = client.send_request(asked, _return_pipeline_response=True)
            return LROPoller(client, first, lambda reply: reply, LROBasePolling()).result()

        return wait

    def awaiting(name: str) -> Callable[[], Awaitable[object]]:
        client = shared()

        async def wait() -> object:
            asked = HttpRequest("POST", url + BEGIN + name)
            first = await client.send_request(asked, _return_pipeline_response=True)
            polling: Any = AsyncLROBasePolling()
            return await AsyncLROPoller(client, first, lambda reply: reply, polling).result()

        return wait

    @functools.cache
    def shared() -> Any:
        return AsyncPipelineClient(url, transport=AioHttpTransport())

    return {"threads": each_in_a_thread(blocking), "asyncio": each_in_a_task(awaiting)}
