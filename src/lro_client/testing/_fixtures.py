"""The parts of the pytest fixtures: a service in memory, and its client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

from lro import Service
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro_client._client.client import Client
from lro_client.testing._clock import VirtualClock
from lro_client.testing._script import moment
from lro_client.transports import LocalTransport


@contextlib.contextmanager
def service_in_memory(clock: VirtualClock) -> Iterator[Service]:
    """Yield a service that does an operation's work during its start. Close it afterwards.

    A Wait returns the current state at once, so that only the client's pauses let time pass.

    Raises:
        AssertionError: At the end, work is still running, or a wait or a watch is open.
    """
    service = Service(
        MemoryStore(lambda: moment(clock())),
        InlineExecutor(),
        max_wait=timedelta(0),
        maintenance=False,
        clock=clock,
    )
    try:
        yield service
    finally:
        left = [
            f"the work of {name} is still running" for name in sorted(service.edges.work.held())
        ]
        waits = service.edges.waiters.open
        if waits:
            left.append(f"waits or watches of operations are still open: {waits}")
        service.close(0)
    if left:
        raise AssertionError(f"lro_service: {'; '.join(left)}")


def client_of(service: Service, clock: VirtualClock) -> Client:
    """Return a client that calls a local service and sleeps on a virtual clock.

    After each sleep, a service without background threads does the work that has become due.
    """

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if not service.edges.maintained:
            service.run_maintenance()

    return Client(transport=LocalTransport(service), clock=clock, sleep=sleep)
