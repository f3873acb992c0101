"""The port over which a server is asked: five methods, and raw replies."""

from __future__ import annotations

from typing import Protocol

from lro_conform.server._answers import Answer


class Target(Protocol):
    """A server, asked over one transport. No method raises for anything that the server does."""

    transport: str
    address: str

    async def get(self, name: str) -> Answer:
        """Ask GetOperation."""
        ...

    async def list(
        self,
        parent: str,
        *,
        page_size: int | None = None,
        page_token: str | None = None,
        filter: str | None = None,
    ) -> Answer:
        """Ask ListOperations; what is None is not sent."""
        ...

    async def cancel(self, name: str) -> Answer:
        """Ask CancelOperation."""
        ...

    async def delete(self, name: str) -> Answer:
        """Ask DeleteOperation."""
        ...

    async def wait(self, name: str, timeout: float | None = None) -> Answer:
        """Ask WaitOperation; without a timeout none is sent. Seconds may be negative."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...
