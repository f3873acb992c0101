"""Each test runs for both faces of the client, on a clock that only sleeping moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import respx

from lro_client._flow import polling
from tests.client.faces import FACES, URL, Clock, Face
from tests.client.real_service import Harness, Switch, serving


@pytest.fixture(params=list(FACES.values()), ids=list(FACES))
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Makes clients of one face, and closes them."""
    made: Face = request.param()
    yield made
    made.close()


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The service; a test may give it options."""
    made = Harness(**getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture(scope="session")
def listening() -> Iterator[tuple[Switch, str]]:
    """A server on a socket, for one application after the other."""
    switch = Switch()
    with serving(switch) as url:
        yield switch, url


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Virtual time for a client's policies."""
    # A reply to the last poll has this long by the real clock, and a machine under load needs it.
    monkeypatch.setattr(polling, "GRACE_SECONDS", 30.0)
    return Clock()


@pytest.fixture
def server() -> Iterator[respx.Router]:
    """A server that answers as each test says, and refuses what no test declared."""
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        yield router
