"""The harness's side of the server processes: made, called over HTTP, signalled, mourned."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx

from lro_client import NO_RETRY, AsyncClient, CallError
from tests.chaos.server import COUNT_PATH, Setting
from tests.waiting import PATIENCE

ROOT: Final = Path(__file__).resolve().parents[2]


class Stuck(Exception):
    """Something that had to happen has not: a fault of the harness, or of what it tests."""


class Server:
    """A server process, and a client of it."""

    def __init__(self, pid: int, port: int, setting: Setting) -> None:
        self.pid = pid
        self.setting = setting
        self.stopped = asyncio.Event()
        self.dead = asyncio.Event()
        self.died_at = 0.0
        """When it was found dead, by the monotonic clock."""
        self.code: int | None = None
        """Its exit status: minus the number of the signal that has ended it."""
        self.base_url = f"http://127.0.0.1:{port}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(limits=limits, trust_env=False)
        self.client = AsyncClient(
            self.base_url, http=self._http, retry=NO_RETRY, call_seconds=PATIENCE
        )

    @property
    def alive(self) -> bool:
        """Whether its end has not been reported yet."""
        return not self.dead.is_set()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it is dead; what kills or stops it, its children get too."""
        whole_group = number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if whole_group else os.kill)(self.pid, number)

    async def ready(self) -> float:
        """Wait until it answers; when that was, by the monotonic clock."""
        end = time.monotonic() + PATIENCE
        worker = Path(self.setting.folder) / f"ready-{self.pid}"
        while self.alive and time.monotonic() < end:
            if worker.exists():
                return time.monotonic()
            with contextlib.suppress(CallError):
                async for _ in self.client.list(page_size=1).pages():
                    return time.monotonic()
            await asyncio.sleep(0.02)
        raise Stuck(f"server {self.pid} does not answer; exit status {self.code}")

    async def gone(self, seconds: float = PATIENCE) -> None:
        """Wait until it is dead."""
        try:
            await asyncio.wait_for(self.dead.wait(), seconds)
        except TimeoutError:
            raise Stuck(f"server {self.pid} goes on living") from None

    async def frozen(self) -> None:
        """Wait until it is stopped by a signal."""
        try:
            await asyncio.wait_for(self.stopped.wait(), PATIENCE)
        except TimeoutError:
            raise Stuck(f"server {self.pid} does not stop") from None

    async def late_writes(self) -> int:
        """How many late writes of its workers were refused."""
        # Not by a connection that lay idle: the server may close it at this very moment.
        async with httpx.AsyncClient(trust_env=False) as http:
            return int((await http.get(self.base_url + COUNT_PATH)).text)

    async def close(self) -> None:
        """Close the connections to it."""
        await self._http.aclose()


class ForkServer:
    """The process that makes servers, as the harness holds it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._servers: dict[int, Server] = {}
        self._asked: asyncio.Queue[tuple[Setting, asyncio.Future[Server]]] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen())

    async def make(self, setting: Setting) -> Server:
        """A new server process. It may not answer yet, but can be called."""
        assert self._process.stdin is not None
        born: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((setting, born))
        self._process.stdin.write(setting.dumps().encode() + b"\n")
        try:
            return await asyncio.wait_for(born, PATIENCE)
        except TimeoutError:
            raise Stuck("no server is made any more") from None

    async def close(self) -> None:
        """Kill what is left, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._listening
        for server in self._servers.values():
            await server.close()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            news = json.loads(line)
            if news["event"] == "born":
                setting, born = self._asked.get_nowait()  # they are made in the order of asking
                server = self._servers[news["pid"]] = Server(news["pid"], news["port"], setting)
                if not born.done():
                    born.set_result(server)
            else:
                self._take(self._servers[news["pid"]], news)

    @staticmethod
    def _take(server: Server, news: dict[str, Any]) -> None:
        if news["event"] == "died":
            server.code, server.died_at = news["code"], news["at"]
            server.dead.set()
        elif news["event"] == "stopped":
            server.stopped.set()
        else:
            server.stopped.clear()


@contextlib.asynccontextmanager
async def fork_server(log: Path) -> AsyncIterator[ForkServer]:
    """A fork server, which is closed with all its servers; ``log`` takes what they print."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.chaos.fork_server"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    made = ForkServer(process)
    try:
        yield made
    finally:
        await made.close()
