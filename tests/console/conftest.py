"""The kinds of servers on which consoles are tested."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["uvicorn", "waitress"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the name of an ASGI server in one run of a test, and of a WSGI server in another."""
    return str(request.param)
