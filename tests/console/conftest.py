"""The servers of consoles."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["uvicorn", "waitress"])
def kind(request: pytest.FixtureRequest) -> str:
    """The name of a server: one of ASGI, one of WSGI."""
    return str(request.param)
