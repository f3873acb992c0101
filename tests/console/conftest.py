"""The kinds of servers that consoles are tested on."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["uvicorn", "waitress"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the name of an ASGI server, then of a WSGI server."""
    return str(request.param)
