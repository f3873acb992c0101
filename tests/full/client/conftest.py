"""Fixtures that are shared with tests/client."""

from tests.client.conftest import clock, face, server

__all__ = ["clock", "face", "server"]
