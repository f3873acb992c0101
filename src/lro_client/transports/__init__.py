"""Transports, which carry calls to a server, and the types for writing your own transport.

gRPC is in :mod:`lro_client.transports.grpc`, aiohttp in :mod:`lro_client.transports.aiohttp`.
"""

from lro_client._flow.steps import (
    AsyncTransport,
    BatchGetOperationsRequest,
    Call,
    Reply,
    StartRequest,
    Transport,
    WatchOperationsRequest,
)
from lro_client.transports.http import AsyncHttpTransport, HttpTransport
from lro_client.transports.local import AsyncLocalTransport, LocalTransport

__all__ = [
    "AsyncHttpTransport",
    "AsyncLocalTransport",
    "AsyncTransport",
    "BatchGetOperationsRequest",
    "Call",
    "HttpTransport",
    "LocalTransport",
    "Reply",
    "StartRequest",
    "Transport",
    "WatchOperationsRequest",
]
