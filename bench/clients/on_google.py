"""google-api-core with its own polling, over REST."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.api_core import operation, operation_async, operations_v1
from google.auth.credentials import AnonymousCredentials
from google.longrunning import operations_pb2
from google.protobuf import struct_pb2, wrappers_pb2

from bench.clients.ways import Way, each_in_a_task, each_in_a_thread

assert struct_pb2  # the client's parser knows messages only of imported modules
GET = "google.longrunning.Operations.GetOperation"
RULES = {GET: [{"method": "get", "uri": "/v1/{name=operations/**}"}]}
"""A URL rule for names without a parent, which the default rule does not accept."""


def blocking_client(url: str) -> Any:
    """Return a blocking client."""
    transport = operations_v1.OperationsRestTransport(
        host=url, credentials=AnonymousCredentials(), http_options=RULES
    )
    return operations_v1.AbstractOperationsClient(transport=transport)


def async_client(url: str) -> Any:
    """Return a client for the running event loop.

    Raises:
        ImportError: google-api-core's async part is not installed.
    """
    from google.api_core.operations_v1.operations_rest_client_async import AsyncOperationsRestClient
    from google.api_core.operations_v1.transports.rest_asyncio import AsyncOperationsRestTransport
    from google.auth.aio.credentials import AnonymousCredentials as Anonymous

    transport = AsyncOperationsRestTransport(host=url, credentials=Anonymous(), http_options=RULES)
    return AsyncOperationsRestClient(transport=transport)


def ways(url: str) -> Mapping[str, Way]:
    """Return two ways: ``threads`` with a client for each operation, ``asyncio`` with only one."""

    def blocking(name: str) -> Callable[[], object]:
        started = operations_pb2.Operation(name=name)
        waiting = operation.from_gapic(started, blocking_client(url), wrappers_pb2.StringValue)
        return functools.partial(waiting.result, timeout=None)

    def awaiting(name: str) -> Callable[[], Awaitable[object]]:
        started = operations_pb2.Operation(name=name)
        waiting = operation_async.from_gapic(started, shared(), wrappers_pb2.StringValue)
        return functools.partial(waiting.result, timeout=None)

    shared = functools.cache(lambda: async_client(url))
    return {"threads": each_in_a_thread(blocking), "asyncio": each_in_a_task(awaiting)}
