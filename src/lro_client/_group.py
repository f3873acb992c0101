"""A group of operations, waited for by a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Generic

from lro_client import _group_flows, _handle_flows, _requests
from lro_client._client_state import ClientState
from lro_client._flow.drivers import Driver
from lro_client._group_flows import GroupResult
from lro_client._handle_flows import LAST_WORD_SECONDS
from lro_client._handles import Meta, Resp, Update
from lro_client._operation_handle import OperationHandle


class Group(Generic[Resp, Meta]):
    """Operations that are waited for together, however many they are.

    A client of a server that offers Watch or BatchGet needs few calls for all of them; elsewhere it
    lists by names, or asks for each through a few connections. As a context it cancels what is not
    done when the block is left, for whatever reason.
    """

    def __init__(
        self,
        handles: Iterable[OperationHandle[Resp, Meta]],
        *,
        state: ClientState,
        driver: Driver,
    ) -> None:
        self.handles = _group_flows.members(handles)
        """The operations, in the order that was given."""
        self._state = state
        self._driver = driver

    def as_completed(
        self, timeout: timedelta | float | None = None
    ) -> Iterator[OperationHandle[Resp, Meta]]:
        """The handles in the order of their end.

        Of one that is gone, or cannot be asked for any more, ``result()`` tells why.

        Raises:
            GroupTimeout: The time is over; its ``pending`` are not done.
        """
        limit = _requests.seconds(timeout)
        yield from self._driver.walk(_group_flows.as_completed(self._state, self.handles, limit))

    def wait(
        self, count: int | None = None, timeout: timedelta | float | None = None
    ) -> GroupResult[OperationHandle[Resp, Meta]]:
        """Wait until ``count`` of them are over (1: any, None: all), or the time is.

        Returns:
            Those who are ``done``, the first one first, and those who are ``pending``.
        """
        limit = _requests.seconds(timeout)
        return self._driver.run(_group_flows.wait(self._state, self.handles, count, limit))

    def results(self, timeout: timedelta | float | None = None) -> list[Resp]:
        """All results, in the order of the handles; the first failure is raised at once.

        Raises:
            OperationFailed: An operation ended with an error.
            GroupTimeout: The time is over.
            OperationGone, CallError, DecodingError: As for a handle's ``result``.
        """
        limit = _requests.seconds(timeout)
        flow = _group_flows.results(self._state, self.handles, limit, collect=False)
        return self._driver.run(flow)

    def outcomes(self, timeout: timedelta | float | None = None) -> list[Resp | Exception]:
        """All results, in the order of the handles; what failed is there as its exception.

        Raises:
            GroupTimeout: The time is over.
        """
        limit = _requests.seconds(timeout)
        flow = _group_flows.results(self._state, self.handles, limit, collect=True)
        return self._driver.run(flow)

    def updates(self, timeout: timedelta | float | None = None) -> Iterator[Update[Meta]]:
        """Each changed state of each operation, until all are over; states may be skipped.

        Raises:
            GroupTimeout: The time is over.
        """
        limit = _requests.seconds(timeout)
        yield from self._driver.walk(_group_flows.updates(self._state, self.handles, limit))

    def cancel(self) -> None:
        """Ask for all work to stop that is not done; what cannot be cancelled goes on.

        Takes no longer than one call may, for all of them.
        """
        self._cancel(self._state.config.call_seconds)

    def __len__(self) -> int:
        return len(self.handles)

    def __enter__(self) -> Group[Resp, Meta]:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel(LAST_WORD_SECONDS)

    def _cancel(self, seconds: float) -> None:
        self._driver.run(_handle_flows.leave(self._state, self.handles, seconds))
