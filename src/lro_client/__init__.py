"""A typed client for long-running operations (AIP-151) on servers of ``lro``, Google and others.

:class:`Client` blocks, and :class:`AsyncClient` is for event loops. Both have the same methods. An
:class:`OperationHandle` waits for its operation and returns the result as the declared class.
Transports are in :mod:`lro_client.transports`, pauses between polls in :mod:`lro_client.waits`.
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
        OperationCancelled,
        OperationFailed,
        OperationGone,
        PathNotServed,
        PollTimeout,
        UnreadableReply,
    )
    from lro_client._flow.policy import NO_RETRY, Polling, Retry
    from lro_client.transports.http import Routes

__all__ = [
    "NO_RETRY",
    "AsyncClient",
    "AsyncGroup",
    "AsyncOperationHandle",
    "AsyncPager",
    "CallError",
    "Client",
    "ClientError",
    "DecodingError",
    "Group",
    "GroupResult",
    "GroupTimeout",
    "OperationCancelled",
    "OperationFailed",
    "OperationGone",
    "OperationHandle",
    "Pager",
    "PathNotServed",
    "PollTimeout",
    "Polling",
    "Retry",
    "Routes",
    "UnreadableReply",
    "Update",
]

_HOMES = {
    "lro_client._client.async_client": "AsyncClient AsyncGroup AsyncOperationHandle AsyncPager",
    "lro_client._client.client": "Client Group OperationHandle Pager",
    "lro_client._client.group_flows": "GroupResult",
    "lro_client._client.handles": "Update",
    "lro_client._errors": "CallError ClientError DecodingError GroupTimeout"
    " OperationCancelled OperationFailed OperationGone PathNotServed PollTimeout UnreadableReply",
    "lro_client._flow.policy": "NO_RETRY Polling Retry",
    "lro_client.transports.http": "Routes",
}
"""The public names by module. A module is imported when one of its names is first used."""

if not TYPE_CHECKING:  # if a type checker saw __getattr__, it would accept any name

    def __getattr__(name: str) -> object:
        import sys
        from importlib import import_module

        for module, names in _HOMES.items():
            if name in names.split():
                found = getattr(import_module(module), name)
                globals()[name] = found
                return found
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules.get(__name__))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
