"""A Redis server for tests, with its own port and directory; tests may kill the server."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.ports import free_port
from tests.waiting import PATIENCE, until


class Redis:
    """A server without persistence, which is empty after a restart."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, and return once it replies."""
        assert self._process is None, "it runs already"
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *self._options()], stdout=log, stderr=log, cwd=self._directory
            )
        until(self._answers)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server, if it runs, and return once it has stopped."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        self.stop(signal.SIGKILL)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Pause the server during the block: it accepts connections but does not reply."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def ask(self, *words: str) -> bytes:
        """Return the server's reply to a command, as the bytes on the wire."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{parts}".encode())
            return connection.recv(65536)

    def _options(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._directory),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log()
        try:
            return self.ask("PING") == b"+PONG\r\n"
        except OSError:
            return False

    def _log(self) -> str:
        return (self._directory / "redis.log").read_text("utf-8", "replace")


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[Redis]:
    """Run a server in this directory during the block; skip the test if Redis is not installed."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed")
    server = Redis(binary, directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()
