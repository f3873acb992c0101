"""Fixtures: the blocking and the async client, a service, servers, and a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import respx

from lro_client._flow import polling
from tests.client.faces import FACES, URL, Clock, Face
from tests.client.real_service import Harness, Switch, serving


@pytest.fixture(params=list(FACES.values()), ids=list(FACES))
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Makes and closes the blocking or async clients of a test. Each test runs with both kinds."""
    made: Face = request.param()
    yield made
    made.close()


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A service. A test passes options to the fixture by indirect parametrization."""
    made = Harness(**getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture(scope="session")
def listening() -> Iterator[tuple[Switch, str]]:
    """A server on a socket, and the switch with which a test replaces the server's application."""
    switch = Switch()
    with serving(switch) as url:
        yield switch, url


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A virtual clock for the policies of a client. Only a client's sleeps advance it."""
    # The last poll's reply may arrive this many real seconds late; a machine under load needs them.
    monkeypatch.setattr(polling, "GRACE_SECONDS", 30.0)
    return Clock()


@pytest.fixture
def server() -> Iterator[respx.Router]:
    """A mock server that answers as the test configures it, and fails on any other request."""
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        yield router
