"""Ports for servers that tests stop and start again."""

from __future__ import annotations

import secrets
import socket
from typing import Final

_OURS: Final = range(15_000, 32_000)
"""Below the ports that Linux, macOS and Windows give to connections and to ``bind`` on port 0."""


def free_port() -> int:
    """A port of this machine on which nothing listens.

    While its server is stopped, no system gives it to another program: a server that had such
    a port could not start again.
    """
    while True:
        with socket.socket() as probe:
            port = secrets.choice(_OURS)  # Hypothesis seeds ``random`` alike in every process
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # in use
                continue
            return port
