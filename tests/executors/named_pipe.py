"""Lines that functions in other processes send to a test through a named pipe."""

from __future__ import annotations

import os
import select

from tests.waiting import PATIENCE


class Mail:
    """A named pipe to which functions in child processes write lines."""

    def __init__(self, path):
        self.path = str(path)
        os.mkfifo(path)
        self._inbox = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._open = [os.open(path, os.O_WRONLY)]  # keeps the pipe open when a writer closes it
        self._text = b""

    def line(self):
        """Wait for the next line and return it."""
        while b"\n" not in self._text:
            found = self._read()
            assert found, "nothing more will come"
            self._text += found
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def end(self):
        """Return when every other process that held the pipe open has ended."""
        os.close(self._open.pop())
        while self._read():
            pass

    def close(self):
        """Close the pipe."""
        for end in (*self._open, self._inbox):
            os.close(end)

    def _read(self):
        assert select.select([self._inbox], [], [], PATIENCE)[0], "nothing was written"
        return os.read(self._inbox, 1000)
