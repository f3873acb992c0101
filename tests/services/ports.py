"""Ports for servers that tests stop and start again."""

from __future__ import annotations

import secrets
import socket
from typing import Final

_OURS: Final = range(15_000, 32_000)
"""These ports are below the range that Linux, macOS and Windows assign automatically."""


def free_port() -> int:
    """Return a local port on which nothing listens.

    The system assigns the port to no other program, so that a stopped server can use it again.
    """
    while True:
        with socket.socket() as probe:
            port = secrets.choice(_OURS)  # Hypothesis seeds ``random`` equally in each process
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # the port is in use
                continue
            return port
