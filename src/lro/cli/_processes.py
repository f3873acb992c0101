"""Several processes that serve together on one socket, and the one that looks after them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from lro.cli._serving import HANDED_ON, warn

_READY: Final = b"."
_PAUSE_SECONDS: Final = 1.0
"""How long after the end of a process that had begun well another one begins in its place."""
_MOST_PAUSE_SECONDS: Final = 30.0
"""The longest pause before another try; it is twice the last one after each that cannot begin."""


@attrs.frozen
class Inherited:
    """What a process gets from the one that looks after it: the socket to serve on, and a link."""

    listener: socket.socket
    link: socket.socket

    @classmethod
    def of(cls, text: str) -> Inherited:
        """What stands in the command line."""
        listener, link = map(int, text.split(","))
        return cls(socket.socket(fileno=listener), socket.socket(fileno=link))

    def watch(self) -> None:
        """Stop this process, as by SIGTERM, when the one that looks after it has gone."""
        threading.Thread(target=self._watch, name="lro-parent", daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended before it read our report
            self.link.recv(1)  # nothing is sent this way: it returns when the other process ends
        os.kill(os.getpid(), signal.SIGTERM)

    def report_ready(self) -> None:
        """Report that this process serves."""
        with contextlib.suppress(OSError):  # the other process has ended, which is noticed above
            self.link.sendall(_READY)


class Processes:
    """``count`` processes of one command, which share a socket.

    Each that ends before it is asked to is replaced. If one of the first cannot begin to serve, all
    are stopped. SIGTERM and SIGINT are handed on, each time that they come.
    """

    def __init__(self, command: Sequence[str], count: int, listener: socket.socket) -> None:
        self._command = command
        self._count = count
        self._listener = listener
        self._running: set[asyncio.subprocess.Process] = set()
        self._ready = 0
        self._stop = asyncio.Event()
        self.interrupted = False
        """Whether the signal was SIGINT, as of Control-C."""
        self.status = 0
        """The exit status of a process that could not begin; 0 if all could."""

    async def run(self, announce: Callable[[], None]) -> None:
        """Run them until a signal comes; ``announce`` is called once all serve."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        await asyncio.gather(*(self._keep_one(announce) for _ in range(self._count)))

    def _signalled(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self._end()

    def _end(self) -> None:
        self._stop.set()
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                process.send_signal(HANDED_ON)

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
            end = "has ended" if ready else "could not begin, and ended"
            warn(f"a worker process {end} with status {status}; another one begins in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)

    async def _run_one(self, announce: Callable[[], None]) -> tuple[bool, int]:
        """Run a process to its end; return whether it has served, and its exit status."""
        link, other_end = socket.socketpair()
        with link:
            with other_end:
                given = self._listener.fileno(), other_end.fileno()
                process = await asyncio.create_subprocess_exec(
                    *self._command, "--inherited", "{},{}".format(*given), pass_fds=given
                )
            self._running.add(process)
            if self._stop.is_set():  # the signal came meanwhile
                self._end()
            link.setblocking(False)
            ready = await asyncio.get_running_loop().sock_recv(link, 1) == _READY
            if ready:
                self._ready += 1
                if self._ready == self._count:
                    announce()
            status = await process.wait()
            self._running.discard(process)
        return ready, status
