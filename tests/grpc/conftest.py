"""Fixtures that run tests with the blocking and async client, or both kinds of server."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

from tests.client.conftest import face, harness

__all__ = ["face", "harness"]


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of gRPC server: on threads or on asyncio."""
    found: str = request.param
    return found
