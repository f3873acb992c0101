"""The fixtures of the tests of the client."""

from tests.client.conftest import clock, face, server

__all__ = ["clock", "face", "server"]
