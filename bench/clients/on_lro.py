"""This library's client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

import lro
import lro_client
from bench.clients.ways import Results, Way, each_in_a_task, each_in_a_thread, together

TYPES: dict[str, Any] = {"response": lro.types.StringValue, "metadata": lro.Struct}


def ways(url: str) -> Mapping[str, Way]:
    """Return the ways by name; in ``threads`` and ``asyncio`` each operation has its own client.

    In ``group``, ``async_group`` and ``tasks`` one client is shared; ``tasks`` uses ``result()``.
    """
    _ = lro_client.Client, lro_client.AsyncClient  # the first use imports each class
    context = httpx.create_ssl_context()  # made once, because this takes longer than the rest

    def blocking(name: str) -> Callable[[], object]:
        client = lro_client.Client(url, http=httpx.Client(verify=context))
        return client.operation(name, **TYPES).result

    def awaiting(name: str) -> Callable[[], Awaitable[object]]:
        client = lro_client.AsyncClient(url, http=httpx.AsyncClient(verify=context))
        return client.operation(name, **TYPES).result

    def shared() -> Callable[[str], Callable[[], Awaitable[object]]]:
        client = lro_client.AsyncClient(url)
        return lambda name: client.operation(name, **TYPES).result

    return {
        "threads": each_in_a_thread(blocking),
        "asyncio": each_in_a_task(awaiting),
        "group": lambda names, _: group(url, names),
        "async_group": together(lambda names: async_group(url, names)),
        "tasks": lambda names, begins: each_in_a_task(shared())(names, begins),
    }


def group(url: str, names: Sequence[str]) -> Results:
    """Wait for all operations in one thread."""
    at: Results = {}
    with lro_client.Client(url) as client:
        handles = [client.operation(name, **TYPES) for name in names]
        for handle in client.group(handles).as_completed():
            handle.result()
            at[handle.name] = time.monotonic()
    return at


async def async_group(url: str, names: Sequence[str]) -> Results:
    """Wait for all operations in one coroutine."""
    at: Results = {}
    async with lro_client.AsyncClient(url) as client:
        handles = [client.operation(name, **TYPES) for name in names]
        async for handle in client.group(handles).as_completed():
            await handle.result()
            at[handle.name] = time.monotonic()
    return at
