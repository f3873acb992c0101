"""Fixtures: each test runs for both faces of the client, on a clock that only sleeping moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import respx

from lro_client._flow import polling
from tests.client.faces import FACES, URL, Clock, Face
from tests.client.real_service import Harness, Switch, serving


@pytest.fixture(params=list(FACES.values()), ids=list(FACES))
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """A face of the client: it makes clients, and closes them after the test."""
    made: Face = request.param()
    yield made
    made.close()


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The service; a test may pass options by indirect parametrization."""
    made = Harness(**getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture(scope="session")
def listening() -> Iterator[tuple[Switch, str]]:
    """A server on a socket, whose application each test may replace."""
    switch = Switch()
    with serving(switch) as url:
        yield switch, url


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A virtual clock for the policies of a client."""
    # Real seconds that the reply to the last poll may take: a machine under load needs them.
    monkeypatch.setattr(polling, "GRACE_SECONDS", 30.0)
    return Clock()


@pytest.fixture
def server() -> Iterator[respx.Router]:
    """A mock server that answers as the test declares, and fails on any other request."""
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        yield router
