"""The pytest plugin of lro: fixtures for tests of methods, and of code that calls them.

It is a package of its own, so that a run of pytest without these fixtures imports nothing of lro.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import lro
    from lro_client import Client
    from lro_client.testing import VirtualClock

__all__ = ["lro_client", "lro_clock", "lro_service"]


@pytest.fixture
def lro_clock() -> VirtualClock:
    """The time of ``lro_service`` and ``lro_client``, which passes only while a client sleeps.

    ``lro_clock.advance(3600)`` lets an hour pass.
    """
    from lro_client.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def lro_service(lro_clock: VirtualClock) -> Iterator[lro.Service]:
    """A service in memory that does the work of a start within the start.

    It is closed after the test, which fails if work, a wait or a watch is left over.
    """
    from lro_client.testing._fixtures import service_in_memory

    with service_in_memory(lro_clock) as service:
        yield service


@pytest.fixture
def lro_client(lro_service: lro.Service, lro_clock: VirtualClock) -> Iterator[Client]:
    """A client of ``lro_service`` in this process, whose pauses take no time."""
    from lro_client.testing._fixtures import client_of

    with client_of(lro_service, lro_clock) as client:
        yield client
