"""A typed client for long-running operations: those of ``lro``, of Google, of any server (AIP-151).

:class:`Client` blocks, :class:`AsyncClient` awaits; their verbs are the same. An
:class:`OperationHandle` waits for its operation and gives the result as the declared class.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lro_client._client.async_client import (
        AsyncClient,
        AsyncGroup,
        AsyncOperationHandle,
        AsyncPager,
    )
    from lro_client._client.client import Client, Group, OperationHandle, Pager
    from lro_client._client.group_flows import GroupResult
    from lro_client._client.handles import Update
    from lro_client._errors import (
        CallError,
        ClientError,
        DecodingError,
        GroupTimeout,
        NothingServed,
        OperationCancelled,
        OperationFailed,
        OperationGone,
        PollTimeout,
        UnreadableReply,
    )
    from lro_client._flow.policy import (
        NO_RETRY,
        Polling,
        Retry,
        wait_exponential,
        wait_proportional,
    )
    from lro_client._flow.steps import AsyncTransport, Call, Reply, StartRequest, Transport
    from lro_client.transports.http import AsyncHttpTransport, HttpTransport, Routes
    from lro_client.transports.local import AsyncLocalTransport, LocalTransport
else:  # checkers know the names from above, and report all others

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for module, names in _HOMES.items():
            if name in names.split():
                found = getattr(import_module(module), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]


__all__ = [
    "NO_RETRY",
    "AsyncClient",
    "AsyncGroup",
    "AsyncHttpTransport",
    "AsyncLocalTransport",
    "AsyncOperationHandle",
    "AsyncPager",
    "AsyncTransport",
    "Call",
    "CallError",
    "Client",
    "ClientError",
    "DecodingError",
    "Group",
    "GroupResult",
    "GroupTimeout",
    "HttpTransport",
    "LocalTransport",
    "NothingServed",
    "OperationCancelled",
    "OperationFailed",
    "OperationGone",
    "OperationHandle",
    "Pager",
    "PollTimeout",
    "Polling",
    "Reply",
    "Retry",
    "Routes",
    "StartRequest",
    "Transport",
    "UnreadableReply",
    "Update",
    "wait_exponential",
    "wait_proportional",
]

_HOMES = {
    "lro_client._client.async_client": "AsyncClient AsyncGroup AsyncOperationHandle AsyncPager",
    "lro_client._client.client": "Client Group OperationHandle Pager",
    "lro_client._errors": "CallError ClientError DecodingError GroupTimeout NothingServed"
    " OperationCancelled OperationFailed OperationGone PollTimeout UnreadableReply",
    "lro_client._flow.policy": "NO_RETRY Polling Retry wait_exponential wait_proportional",
    "lro_client._flow.steps": "AsyncTransport Call Reply StartRequest Transport",
    "lro_client._client.group_flows": "GroupResult",
    "lro_client._client.handles": "Update",
    "lro_client.transports.http": "AsyncHttpTransport HttpTransport Routes",
    "lro_client.transports.local": "AsyncLocalTransport LocalTransport",
}
"""The names of each module, which is imported when the first of them is asked for."""
