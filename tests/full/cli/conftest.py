"""The fixtures of the tests of commands."""

from tests.cli.conftest import asked, call, drawing, harness, here, listening, measured

__all__ = ["asked", "call", "drawing", "harness", "here", "listening", "measured"]
