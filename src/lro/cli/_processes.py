"""Several server processes on one socket, and the process that supervises them.

uvicorn's supervisor would break promises of ``lro serve``. It ignores a second signal. If it is
killed, its workers keep the port. It restarts workers that cannot begin, and does not pause between
attempts. It kills a worker that holds the interpreter's lock for five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Final

from lro.cli._serving import LINK_BYTE, warn

_PAUSE_SECONDS: Final = 1.0
"""Seconds before the replacement of a process that had served."""
_MOST_PAUSE_SECONDS: Final = 30.0
"""Longest pause before a retry, in seconds; the pause doubles when a process cannot begin."""


class Processes:
    """Runs ``count`` processes that share a socket; ``command`` makes the command of a process.

    ``command`` gets the two descriptors that the process inherits: the socket, and a link to this
    process. A process that ends by itself is replaced. If one of the first processes cannot begin
    to serve, all processes are stopped. Each SIGTERM and SIGINT is passed on as one request to
    stop.
    """

    def __init__(
        self, command: Callable[[Sequence[int]], Sequence[str]], count: int, listener: socket.socket
    ) -> None:
        self._command = command
        self._count = count
        self._listener = listener
        self._links: dict[asyncio.subprocess.Process, socket.socket] = {}
        self._ready = 0
        self._stop = asyncio.Event()
        self.interrupted = False
        """True after SIGINT, as sent by Ctrl-C."""
        self.status = 0
        """The exit status of a process that could not begin; 0 if all processes could."""

    async def run(self, announce: Callable[[], None]) -> None:
        """Run the processes until a signal comes; call ``announce`` once all processes serve."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        await asyncio.gather(*(self._keep_one(announce) for _ in range(self._count)))

    def _signalled(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self._end()

    def _end(self) -> None:
        self._stop.set()
        for process, link in self._links.items():
            with contextlib.suppress(OSError):  # the process has just ended
                link.send(LINK_BYTE)
                process.terminate()  # in case the process does not read the link yet

    async def _keep_one(self, announce: Callable[[], None]) -> None:
        pause = _PAUSE_SECONDS
        while not self._stop.is_set():
            ready, status = await self._run_one(announce)
            if self._stop.is_set():
                return
            if not ready and self._ready < self._count:
                self.status = status if status > 0 else 1
                self._end()
                return
            pause = _PAUSE_SECONDS if ready else min(2 * pause, _MOST_PAUSE_SECONDS)
            end = "ended" if ready else "could not begin, and ended"
            warn(f"a worker process {end} with status {status}; another one begins in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)

    async def _run_one(self, announce: Callable[[], None]) -> tuple[bool, int]:
        """Run a process to its end; return whether it served, and its exit status."""
        link, other_end = socket.socketpair()
        with link:
            with other_end:
                given = self._listener.fileno(), other_end.fileno()
                process = await asyncio.create_subprocess_exec(
                    *self._command(given), pass_fds=given
                )
            self._links[process] = link
            if self._stop.is_set():  # a signal came while the process was created
                self._end()
            link.setblocking(False)
            ready = False
            with contextlib.suppress(OSError):  # the process ended before it read the link
                ready = await asyncio.get_running_loop().sock_recv(link, 1) == LINK_BYTE
            if ready:
                self._ready += 1
                if self._ready == self._count:
                    announce()
            status = await process.wait()
            del self._links[process]
        return ready, status
