"""The handle of an operation on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from lro import GetOperationRequest, Operation
from lro_client import _handle_flows, _requests
from lro_client._client_state import ClientState
from lro_client._flow import polling, single
from lro_client._flow.drivers import AsyncDriver
from lro_client._handles import HandleBase, Meta, Resp, Update
from lro_client._observer import KnownOperation


class AsyncOperationHandle(HandleBase[Resp, Meta]):
    """An operation: cached values as properties, verbs as methods. Only verbs ask the server.

    ``await operation`` is its result. As a context it cancels an operation that is not done when
    the block is left, for whatever reason. Otherwise nothing does: who stops waiting, by the
    cancellation of a task or the end of the process, leaves the operation to go on.
    """

    __slots__ = ("_driver",)

    def __init__(
        self,
        known: KnownOperation,
        *,
        response: type[Resp] | None,
        metadata: type[Meta] | None,
        state: ClientState,
        driver: AsyncDriver,
    ) -> None:
        super().__init__(known, response=response, metadata=metadata, state=state)
        self._driver = driver

    async def refresh(self) -> Operation:
        """Ask for the latest state, once.

        Raises:
            CallError: The call failed.
        """
        self._check_there()
        flow = single.single(self._state.config, GetOperationRequest(self.name))
        return self._seen(single.read(await self._driver.run(flow)))

    async def wait(self, timeout: timedelta | float | None = None) -> Operation:
        """Wait until the operation is done; its last state, whatever the outcome.

        ``timeout`` from now, a timedelta or seconds, is kept to within 50 ms; None waits for
        ever (spec §11.4).

        Raises:
            PollTimeout: The time is over; the operation goes on.
            OperationGone: It was deleted or has expired.
            CallError: A poll failed for a reason that does not pass.
        """
        return await self._driver.run(
            _handle_flows.wait(self._state, self, _requests.seconds(timeout))
        )

    async def result(self, timeout: timedelta | float | None = None) -> Resp:
        """Wait as :meth:`wait` does, then give the response.

        Raises:
            OperationFailed: The operation ended with an error.
            OperationCancelled: It was cancelled.
            DecodingError: The response is not of the declared type.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        return await self._driver.run(
            _handle_flows.result(self._state, self, _requests.seconds(timeout))
        )

    def future(self) -> asyncio.Future[Resp]:
        """The result as a future of this event loop; costs no task while it waits.

        Its callbacks are called once each, whatever becomes of the operation: it has the result, or
        what :meth:`result` raises, or says that the client was closed. To cancel the future is to
        stop waiting; the operation goes on.
        """
        return _handle_flows.async_future(self._state, self)

    async def updates(
        self, timeout: timedelta | float | None = None, *, every: float = 1.0
    ) -> AsyncGenerator[Update[Meta], None]:
        """Each changed state until the operation is done, looked for at most ``every`` seconds.

        Raises:
            InvalidArgument: ``every`` is not more than 0.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        limit = _requests.seconds(timeout)
        flow = polling.until_done(
            self._state.config,
            self.name,
            self.operation,
            limit,
            self._polled,
            self._fits,
            every,
        )
        async with aclosing(self._driver.walk(flow)) as steps:
            async for operation in steps:
                yield Update(self, self._seen(operation))

    async def cancel(self) -> None:
        """Ask for the work to stop; what becomes of it, :meth:`result` tells.

        Raises:
            CallError: The call failed.
        """
        await self._driver.run(_handle_flows.cancel(self._state, self))

    async def cancel_and_wait(self, timeout: timedelta | float | None = None) -> Operation:
        """Ask for the work to stop, then wait: it may be cancelled, or have come to its end first.

        Raises:
            PollTimeout: The time is over before it has stopped.
            OperationGone, CallError: As for :meth:`cancel` and :meth:`wait`.
        """
        limit = _requests.seconds(timeout)
        return await self._driver.run(_handle_flows.cancel_and_wait(self._state, self, limit))

    async def delete(self) -> None:
        """Remove the record; does not stop the work.

        Raises:
            CallError: The call failed.
        """
        await self._driver.run(_handle_flows.delete(self._state, self))

    async def __aenter__(self) -> AsyncOperationHandle[Resp, Meta]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._driver.run(_handle_flows.leave(self._state, [self]))

    def __await__(self) -> Generator[Any, None, Resp]:
        return self.result().__await__()
