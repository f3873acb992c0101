"""The interface with which a server is called: five methods that return raw replies."""

from __future__ import annotations

from typing import Protocol

from lro_conform.server._answers import Answer


class Target(Protocol):
    """A server, called over one transport. Whatever the server does, no method raises."""

    transport: str
    address: str

    async def get(self, name: str) -> Answer:
        """Call GetOperation."""
        ...

    async def list(
        self,
        parent: str,
        *,
        page_size: int | None = None,
        page_token: str | None = None,
        filter: str | None = None,
    ) -> Answer:
        """Call ListOperations; arguments that are None are not sent."""
        ...

    async def cancel(self, name: str) -> Answer:
        """Call CancelOperation."""
        ...

    async def delete(self, name: str) -> Answer:
        """Call DeleteOperation."""
        ...

    async def wait(self, name: str, timeout: float | None = None) -> Answer:
        """Call WaitOperation; a timeout of None is not sent. The timeout may be negative."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...
