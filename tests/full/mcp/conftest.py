"""MCP servers with the tasks extension, for tests that send raw requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import lro

if TYPE_CHECKING:
    from tests.full.mcp.served import Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves a service over HTTP until the test ends."""
    from mcp.server.mcpserver import MCPServer

    from lro.mcp import TasksExtension
    from tests.full.mcp.served import Caller, served

    with ExitStack() as stack:

        def made(service: lro.Service, *methods: Any, **options: Any) -> Caller:
            extension = TasksExtension(service, methods or None, **options)
            return stack.enter_context(served(MCPServer("things", extensions=[extension])))

        yield made
