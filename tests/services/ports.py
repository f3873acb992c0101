"""Ports for servers that tests stop and restart."""

from __future__ import annotations

import secrets
import socket
from typing import Final

_OURS: Final = range(15_000, 32_000)
"""Below the ports that Linux, macOS and Windows assign to connections and to port 0."""


def free_port() -> int:
    """Return a local port on which nothing listens.

    No system assigns it to another program, so that a stopped server can listen on it again.
    """
    while True:
        with socket.socket() as probe:
            port = secrets.choice(_OURS)  # Hypothesis seeds ``random`` alike in all processes
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # it is in use
                continue
            return port
