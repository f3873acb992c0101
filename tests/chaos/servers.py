"""The harness's side of the server processes: starts, calls over HTTP, signals and deaths.

Servers are forked from a process that has imported all modules but started no threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import httpx

from lro_client import NO_RETRY, AsyncClient, CallError
from tests.chaos.server import COUNT_PATH, Setting, serve
from tests.waiting import PATIENCE, PAUSE_SECONDS, until_async

T = TypeVar("T")

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.chaos.server"])


class Stuck(Exception):
    """An expected event did not happen: a fault of the harness, or of the code under test."""


async def insist(ask: Callable[[], Awaitable[T]], what: str) -> T:
    """Call ``ask`` until it returns a true value; return the value. An error names ``what``."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not (answer := await ask()):
                await asyncio.sleep(PAUSE_SECONDS)
            return answer
    except TimeoutError:
        raise Stuck(f"{what} has not come about") from None


class Server:
    """A new server process and a client for it. Calls may be made before the server is ready."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.dead = asyncio.Event()
        self.died_at = 0.0
        """The time at which the process was found dead, by the monotonic clock."""
        # The socket is bound before the fork, so that clients can connect at once.
        with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
            self.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._process = FORKS.Process(target=serve, args=(setting, listener))
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._await_death, args=(loop,), daemon=True).start()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(limits=limits, trust_env=False)
        self.client = AsyncClient(
            self.base_url, http=self._http, retry=NO_RETRY, call_seconds=PATIENCE
        )

    def _await_death(self, loop: asyncio.AbstractEventLoop) -> None:
        # This runs in a thread, because a busy event loop would record the death too late.
        multiprocessing.connection.wait([self._process.sentinel])
        self.died_at = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._die)

    def _die(self) -> None:
        self._process.join()
        self.dead.set()

    @property
    def code(self) -> int | None:
        """The exit status, or minus the number of the signal that killed the process."""
        return self._process.exitcode

    @property
    def alive(self) -> bool:
        return not self.dead.is_set()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless the server is dead; SIGKILL, SIGSTOP and SIGCONT go to its group."""
        whole_group = number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                leads = os.getpgid(self.pid) == self.pid  # false until the process leads its group
                (os.killpg if whole_group and leads else os.kill)(self.pid, number)

    async def ready(self) -> float:
        """Wait until the server answers; return the time, by the monotonic clock."""
        worker = Path(self.setting.folder) / f"ready-{self.pid}"

        async def answers() -> float:
            if not self.alive:
                raise Stuck(f"server {self.pid} does not answer; exit status {self.code}")
            if worker.exists():
                return time.monotonic()
            with contextlib.suppress(CallError):
                async for _ in self.client.list(page_size=1).pages():
                    return time.monotonic()
            return 0.0

        return await insist(answers, f"an answer of server {self.pid}")

    async def gone(self) -> None:
        """Wait until the process is dead."""
        await asyncio.wait_for(self.dead.wait(), PATIENCE)

    async def frozen(self) -> None:
        """Wait until a signal has stopped the process."""
        stat = Path(f"/proc/{self.pid}/stat")
        await until_async(lambda: stat.read_text("utf-8").rpartition(")")[2].split()[0] == "T")

    async def late_writes(self) -> int:
        """Return how many late writes of the server's workers were refused."""
        # Use a new connection, because the server may close an idle connection just now.
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
            return int((await http.get(self.base_url + COUNT_PATH)).text)

    async def close(self) -> None:
        """Close the client's connections."""
        await self._http.aclose()
