"""Client tests run for the blocking and the async client, server tests for both kinds."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

from tests.client.conftest import face, harness

__all__ = ["face", "harness"]


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of gRPC server."""
    found: str = request.param
    return found
