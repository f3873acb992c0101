"""The fixtures of the command tests."""

from tests.cli.conftest import asked, call, command, drawing, harness, here, listening, measured

__all__ = ["asked", "call", "command", "drawing", "harness", "here", "listening", "measured"]
