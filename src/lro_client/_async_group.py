"""A group of operations, waited for on an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import timedelta
from typing import Generic

from lro_client import _group_flows, _handle_flows, _requests
from lro_client._async_operation_handle import AsyncOperationHandle
from lro_client._client_state import ClientState
from lro_client._flow.drivers import AsyncDriver
from lro_client._group_flows import GroupResult
from lro_client._handle_flows import LAST_WORD_SECONDS
from lro_client._handles import Meta, Resp, Update


class AsyncGroup(Generic[Resp, Meta]):
    """Operations that are waited for together, however many they are.

    A client of a server that offers Watch or BatchGet needs few calls for all of them; elsewhere it
    lists by names, or asks for each through a few connections. As a context it cancels what is not
    done when the block is left, for whatever reason.
    """

    def __init__(
        self,
        handles: Iterable[AsyncOperationHandle[Resp, Meta]],
        *,
        state: ClientState,
        driver: AsyncDriver,
    ) -> None:
        self.handles = _group_flows.members(handles)
        """The operations, in the order that was given."""
        self._state = state
        self._driver = driver

    async def as_completed(
        self, timeout: timedelta | float | None = None
    ) -> AsyncGenerator[AsyncOperationHandle[Resp, Meta], None]:
        """The handles in the order of their end.

        Of one that is gone, or cannot be asked for any more, ``result()`` tells why.

        Raises:
            GroupTimeout: The time is over; its ``pending`` are not done.
        """
        limit = _requests.seconds(timeout)
        flow = _group_flows.as_completed(self._state, self.handles, limit)
        async with aclosing(self._driver.walk(flow)) as steps:
            async for handle in steps:
                yield handle

    async def wait(
        self, count: int | None = None, timeout: timedelta | float | None = None
    ) -> GroupResult[AsyncOperationHandle[Resp, Meta]]:
        """Wait until ``count`` of them are over (1: any, None: all), or the time is.

        Returns:
            Those who are ``done``, the first one first, and those who are ``pending``.
        """
        limit = _requests.seconds(timeout)
        return await self._driver.run(_group_flows.wait(self._state, self.handles, count, limit))

    async def results(self, timeout: timedelta | float | None = None) -> list[Resp]:
        """All results, in the order of the handles; the first failure is raised at once.

        Raises:
            OperationFailed: An operation ended with an error.
            GroupTimeout: The time is over.
            OperationGone, CallError, DecodingError: As for a handle's ``result``.
        """
        limit = _requests.seconds(timeout)
        flow = _group_flows.results(self._state, self.handles, limit, collect=False)
        return await self._driver.run(flow)

    async def outcomes(self, timeout: timedelta | float | None = None) -> list[Resp | Exception]:
        """All results, in the order of the handles; what failed is there as its exception.

        Raises:
            GroupTimeout: The time is over.
        """
        limit = _requests.seconds(timeout)
        flow = _group_flows.results(self._state, self.handles, limit, collect=True)
        return await self._driver.run(flow)

    async def updates(
        self, timeout: timedelta | float | None = None
    ) -> AsyncGenerator[Update[Meta], None]:
        """Each changed state of each operation, until all are over; states may be skipped.

        Raises:
            GroupTimeout: The time is over.
        """
        limit = _requests.seconds(timeout)
        flow = _group_flows.updates(self._state, self.handles, limit)
        async with aclosing(self._driver.walk(flow)) as steps:
            async for update in steps:
                yield update

    async def cancel(self) -> None:
        """Ask for all work to stop that is not done; what cannot be cancelled goes on.

        Takes no longer than one call may, for all of them.
        """
        await self._cancel(self._state.config.call_seconds)

    def __len__(self) -> int:
        return len(self.handles)

    async def __aenter__(self) -> AsyncGroup[Resp, Meta]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cancel(LAST_WORD_SECONDS)

    async def _cancel(self, seconds: float) -> None:
        await self._driver.run(_handle_flows.leave(self._state, self.handles, seconds))
