"""Each test of a client runs for both of its faces, each test of a server for both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.faces import FACES, Face


@pytest.fixture(params=list(FACES.values()), ids=list(FACES))
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Makes clients of one face, and closes them."""
    made: Face = request.param()
    yield made
    made.close()


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of server."""
    found: str = request.param
    return found
