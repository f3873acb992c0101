"""What both faces of a client hold: settings, types, the table of what is waited for, a journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from lro import Code, Status, TypeRegistry
from lro_client._calls import Box, Flow
from lro_client._errors import CallError
from lro_client._flows import Setting
from lro_client._journal import Journal
from lro_client._lanes import Lanes
from lro_client._policy import Polling, Retry
from lro_client._table import Table
from lro_client._tokens import public_address
from lro_client._work import Choice, How

_SINGLES: Final = 4
"""Up to so many operations are waited for by a call each; more of them share a few connections."""

_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")


class Runner(Protocol):
    """What of a driver is the same on both faces."""

    def aside(self, flow: Flow[None]) -> None:
        """Have a flow run beside the caller."""
        ...

    def ring(self) -> None:
        """End the rest of the one flow that rests."""
        ...

    def box(self) -> Box:
        """A box that the driver can take from."""
        ...

    def lanes(self, wanted: int) -> int:
        """How many flows may run aside at once."""
        ...


class Core:
    """The part of a client that does nothing by itself."""

    def __init__(
        self,
        transport: object,
        runner: Runner,
        *,
        types: TypeRegistry,
        polling: Polling | None,
        retry: Retry | None,
        clock: Callable[[], float],
        call_seconds: float,
        journal: Journal | None,
    ) -> None:
        self.types = types
        self.journal = journal
        self.address = public_address(str(getattr(transport, "address", "")))
        self.setting = Setting(
            clock=clock,
            retry=retry or Retry(),
            polling=polling or Polling(),
            call_seconds=call_seconds,
        )
        self._runner = runner
        self.table = Table(
            clock,
            most=lambda: runner.lanes(self.setting.lanes),
            hire=lambda: runner.aside(self._lanes.lane()),
            ring=runner.ring,
        )
        choice = Choice(self.setting, self.table, _offered(transport))
        self._lanes = Lanes(self.setting, self.table, choice)
        self._most_alone = getattr(transport, "calls_at_once", _SINGLES)
        self._lock = threading.Lock()

    def box(self) -> Box:
        """A box that the face's driver can take from."""
        return self._runner.box()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether a wait may have a call for itself, rather than join all others."""
        server = self.setting.server
        with self._lock:
            has = server.held < self._most_alone
            server.held += has
        try:
            yield has
        finally:
            with self._lock:
                server.held -= has

    def close(self) -> None:
        """Send home everybody who waits."""
        self.table.close(CallError("GetOperation", _CLOSED))


def _offered(transport: object) -> frozenset[How]:
    found = {How.ONE, How.HOLD, How.LISTED}
    if getattr(transport, "batches", False):
        found.add(How.BATCH)
    if hasattr(transport, "stream"):
        found.add(How.STREAM)
    return frozenset(found)
