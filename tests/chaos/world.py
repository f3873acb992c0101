"""A new store, the servers on it, and the callers of those servers."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any, Final

import attrs

from tests.chaos.callers import Callers
from tests.chaos.server import Setting
from tests.chaos.servers import Server
from tests.chaos.stalls import Stalls
from tests.chaos.stories import Journal, Story
from tests.chaos.traps import Point, Trap
from tests.chaos.verdict import Facts
from tests.waiting import until_async


@attrs.frozen(kw_only=True)
class Ground:
    """The environment of a trial.

    Times are in seconds. Callers must know the state of lost work ``margin`` after a lease's end.
    """

    folder: Path
    store: str
    """The path or URL of a new store."""
    executor: str
    lease: float
    margin: float
    stalls: Stalls
    broker: str = ""


@attrs.frozen
class Host:
    """A server: the process that is called and the process that works, which may be the same."""

    web: Server
    worker: Server
    victim: Server
    """The process that has the trap, or ``web`` if there is no trap."""

    @property
    def parts(self) -> tuple[Server, ...]:
        """The processes of this server."""
        return (self.web,) if self.web is self.worker else (self.web, self.worker)

    async def ready(self) -> float:
        """Wait until the server answers and works; return the time, by the monotonic clock."""
        return max([await part.ready() for part in self.parts])

    async def kill(self) -> None:
        """Kill all processes of this server."""
        for part in self.parts:
            part.signal(signal.SIGKILL)
        for part in self.parts:
            await part.gone()


_BY_WORKERS: Final = frozenset(
    {Point.CLAIM, Point.RENEW, Point.REPORT, Point.WORK, Point.ENCODE, Point.END}
    | {Point.ACKNOWLEDGE, Point.RELEASE}
)


class World:
    """Servers on one store, and their callers."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self.ground = ground
        self.folder = ground.folder
        self.journal = Journal(seed)
        self.random = self.journal.random
        self.servers: list[Server] = []
        self._unfit: set[int] = set()
        self.callers = Callers(self.journal, self._callable, ground.stalls)

    @property
    def remote(self) -> bool:
        """Whether the processes that do the work differ from the processes that are called."""
        return self.ground.executor == "celery"

    def _callable(self) -> list[Server]:
        return [
            server
            for server in self.servers
            if server.alive and server.pid not in self._unfit and server.setting.role == "web"
        ]

    async def host(
        self, trap: Trap | None = None, *, only_scans: bool = False, **options: Any
    ) -> Host:
        """Start a server without waiting for it; with ``only_scans`` it has no Celery worker."""
        if not self.remote or only_scans:
            web = self._make(trap, "web", options)
            return Host(web, web, web)
        works = trap is not None and trap.point in _BY_WORKERS
        web = self._make(None if works else trap, "web", options)
        worker = self._make(trap if works else None, "worker", options)
        return Host(web, worker, worker if works else web)

    def _make(self, trap: Trap | None, role: str, options: dict[str, Any]) -> Server:
        ground = self.ground
        setting = Setting(
            store=ground.store,
            folder=str(ground.folder),
            executor=ground.executor,
            role=role,
            lease=ground.lease,
            broker=ground.broker,
            trap=trap,
            **options,
        )
        self.servers.append(Server(setting))
        return self.servers[-1]

    def shun(self, server: Server) -> None:
        """Keep callers from calling this server."""
        self._unfit.add(server.pid)

    def unshun(self, server: Server) -> None:
        """Let callers call this server again."""
        self._unfit.discard(server.pid)

    async def work_begins(self, stories: list[Story], count: int = 0) -> None:
        """Wait until callers have seen ``count`` of these stories begin; zero means all of them."""

        def begun() -> int:
            return sum(any(s.metadata.attempt for s in story.sights) for story in stories)

        await until_async(begun, lambda found: found >= (count or len(stories)))

    async def settle(self) -> None:
        """Wait until callers have seen the end of every operation that they know of.

        If some operations never end, the verdict reports them.
        """
        with contextlib.suppress(AssertionError):
            await until_async(lambda: not self.journal.unsettled)

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the callers, and kill all servers."""
        await self.callers.end()
        for server in self.servers:
            server.signal(signal.SIGKILL)
        for server in self.servers:
            await server.gone()
            await server.close()

    def facts(self, **more: Any) -> Facts:
        """Return the facts of this world, after all deaths of the trial."""
        silent = {s.pid: s.died_at for s in self.servers if not s.alive}
        silent.update(more.pop("silent", {}))
        limit = self.ground.lease + self.ground.margin
        stalled = self.ground.stalls.within
        return Facts(folder=self.folder, silent=silent, limit=limit, stalled=stalled, **more)
