"""Opening a closed service again: its store, executor, threads and maintenance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

import lro
from lro.adapters import Executor, Store
from lro.errors import Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import counted
from tests.service_steps import work
from tests.services.postgres import shared_server, store_maker
from tests.waiting import PATIENCE, until, until_async
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

NOTHING = timedelta(0)
NAME = "acme.v1.Works.Hold"
STORES = ("memory", "sqlite", "postgres")
EXECUTORS: Mapping[str, Callable[[], Executor]] = {
    "threads": lambda: ThreadExecutor(2),
    "asyncio": AsyncioExecutor,
    "running": lambda: AsyncioExecutor(loop="running"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind, with the clock of this machine."""
    made: Store = MemoryStore()
    if request.param == "sqlite":
        made = SQLiteStore(tmp_path / "operations.db")
    elif request.param == "postgres":
        pytest.importorskip("psycopg")
        made = store_maker(shared_server())(None)
    with contextlib.closing(made):
        yield made


def hold(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Work until the folder has a file ``go``; say in a file ``begun`` that the work has begun."""
    folder = Path(request.text)
    (folder / "begun").touch()
    while not (folder / "go").exists():
        job.sleep(0.005)
    return WorkResponse(str(job.attempt))


async def hold_async(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Work as ``hold`` does, on an event loop."""
    folder = Path(request.text)
    (folder / "begun").touch()
    while not (folder / "go").exists():
        await job.sleep_async(0.005)
    return WorkResponse(str(job.attempt))


def declared(service: lro.Service, kind: str = "threads") -> lro.Method[Any, Any, Any]:
    """Declare the method; executors with an event loop get the coroutine function."""
    body: Any = hold_async if kind in ("asyncio", "running") else hold
    method: lro.Method[Any, Any, Any] = service.method(NAME)(body)
    return method


@attrs.frozen
class Held:
    """What this process has open: files, threads of services, child processes."""

    files: int
    threads: frozenset[str]
    children: frozenset[int]

    def within(self, other: Held) -> bool:
        """Return True if nothing is open that ``other`` lacks; earlier tests may still close."""
        fewer = self.files <= other.files and self.children <= other.children
        return fewer and self.threads <= other.threads


def held_open(earlier: Collection[threading.Thread]) -> Held:
    """Return what is open, without the threads of ``earlier`` tests and those of all services."""
    new = {one.name for one in {*threading.enumerate()} - {*earlier}}
    shared = {"lro-signals", "lro-continuations"}
    children = set()
    for one in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if one.read_text().rpartition(") ")[2].split()[1] == str(os.getpid()):
                children.add(int(one.parent.name))
    threads = {name for name in new if name.startswith("lro-")} - shared
    files = len(os.listdir("/proc/self/fd"))
    return Held(files, frozenset(threads), frozenset(children))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("loops", ["one", "several"])
def test_lifespan_that_starts_again_continues_released_work(
    store: Store, kind: str, loops: str, tmp_path: Path
) -> None:
    """Work in flight at the first end is done after the second start; nothing stays open."""
    check_opening(store, EXECUTORS[kind](), kind, loops, tmp_path)


def check_opening(store: Store, executor: Executor, kind: str, loops: str, tmp_path: Path) -> None:
    """Close a service while work runs, and open it again, in one event loop or in several."""
    earlier = threading.enumerate()
    service = lro.Service(store, executor, drain=NOTHING)
    method = declared(service, kind)

    async def first() -> str:
        async with service.lifespan():
            name = (await method.start_async(WorkRequest(str(tmp_path)))).name
            await until_async((tmp_path / "begun").exists)
        with pytest.raises(Unavailable):
            await method.start_async(WorkRequest(str(tmp_path)))
        return name

    async def second(name: str) -> str:
        async with service.lifespan():
            done = await service.wait_async(name, PATIENCE)
            assert done.response is not None, done
            more = await method.start_async(WorkRequest(str(tmp_path)))
            await more.result_async(PATIENCE)
        return service.types.unpack(done.response, WorkResponse).text

    async def both() -> tuple[str, str]:
        name = await first()
        (tmp_path / "go").touch()
        return name, await second(name)

    if loops == "one":
        name, attempts = asyncio.run(both())
        assert attempts == "2"
    else:
        name = asyncio.run(first())
        (tmp_path / "go").touch()
    at_rest = until(lambda: held_open(earlier), lambda found: not found.threads)
    for attempt in range(3):
        assert asyncio.run(second(name)) == "2", attempt
        until(lambda: held_open(earlier), lambda found: found.within(at_rest))


def test_open_service_stays_open() -> None:
    """``open`` does nothing if the service is open; ``with`` opens a closed one."""
    service = lro.Service(MemoryStore(), InlineExecutor())
    method = work(service)
    service.edges.open()
    assert not service.edges.closed
    service.close()
    assert service.edges.closed
    text = "the service is closed; `with service`, or the start of its application, opens it again"
    with pytest.raises(Unavailable, match=text):
        method.start(WorkRequest("a"))
    with service:
        assert not service.edges.closed
        assert method.start(WorkRequest("a")).result().text == "a"
    assert service.edges.closed


def test_service_is_closed_when_its_last_user_leaves() -> None:
    """A ``with`` or a lifespan within another one does not close the service for the outer one."""
    service = lro.Service(MemoryStore(), InlineExecutor())
    method = work(service)

    async def nested() -> None:
        async with service.lifespan():
            async with service.lifespan():
                assert not service.edges.closed
            assert method.start(WorkRequest("a")).result().text == "a"
            with service:
                assert not service.edges.closed
            assert method.start(WorkRequest("b")).result().text == "b"
        assert service.edges.closed

    for _ in range(2):
        asyncio.run(nested())
    with service:
        service.close()
        assert service.edges.closed  # close() closes it for all users
        with service:
            assert not service.edges.closed
        assert not service.edges.closed
    assert service.edges.closed


def test_failed_start_is_no_user_of_the_service() -> None:
    """After a start that has failed, the service is closed at the end of the next start."""
    store: Any = MemoryStore()
    service = lro.Service(store, InlineExecutor())
    service.close()
    store.reopen = None
    with pytest.raises(lro.DeclarationError):
        service.__enter__()
    store.reopen = lambda: None
    with service:
        pass
    assert service.edges.closed


def test_opened_service_has_another_owner_and_its_background_work(tmp_path: Path) -> None:
    """Schedules, statistics and waits go on, and the process has a new row in the store."""
    store = SQLiteStore(tmp_path / "operations.db")
    service = lro.Service(store, ThreadExecutor(1), drain=NOTHING)
    method = work(service)
    service.schedule("often", timedelta(seconds=1), method, WorkRequest("tick"))
    owners = set()
    for number in range(1, 3):
        with service:
            (worker,) = until(service.workers)
            owners.add(worker.owner)
            known = len(listed(service))
            until(lambda: len(listed(service)), known.__lt__)
            assert method.start(WorkRequest("a")).result(PATIENCE).text == "a"
        assert totals_of(store.path) >= 2 * number
    assert len(owners) == 2


def listed(service: lro.Service) -> list[str]:
    """Return the names of all operations."""
    return [one.name for one in service.list(ListOperationsRequest()).operations]


def totals_of(path: str) -> float:
    """Return the number of starts that a file has counted."""
    with contextlib.closing(SQLiteStore(path)) as store:
        found = counted(store)
        return sum(one.get("starts.started", 0) for one in found.values())


def test_deleted_file_is_made_again(tmp_path: Path) -> None:
    """A SQLite file that was deleted while the service was closed is made again."""
    path = tmp_path / "operations.db"
    service = lro.Service(SQLiteStore(path), ThreadExecutor(1), owner_only=True)
    method = work(service)
    with service:
        method.start(WorkRequest("a"), caller="ann").result(PATIENCE)
    path.unlink()
    with service:
        assert service.list(ListOperationsRequest(), caller="ann").operations == ()
        name = method.start(WorkRequest("b"), caller="ann").name
        found = service.list(ListOperationsRequest(), caller="ann").operations
        assert [one.name for one in found] == [name]


def test_open_waits_for_a_close_in_another_thread(tmp_path: Path) -> None:
    """A service that is being closed is opened once it is closed."""
    service = lro.Service(MemoryStore(), ThreadExecutor(1), drain=timedelta(seconds=PATIENCE))
    method = declared(service)
    name = method.start(WorkRequest(str(tmp_path))).name
    until((tmp_path / "begun").exists)
    closing = threading.Thread(target=service.close)
    closing.start()
    until(lambda: service.edges.closed)
    opening = threading.Thread(target=service.edges.open)
    opening.start()
    assert service.edges.closed
    (tmp_path / "go").touch()
    for one in (closing, opening):
        one.join()
    assert not service.edges.closed
    assert service.get(name).done
    service.close()


class Endless(MemoryStore):
    """A store that cannot be opened again."""

    reopen: Any = None


def test_service_that_cannot_be_opened_again_says_so() -> None:
    """A store without ``reopen`` keeps its service closed, and the error says what to do."""
    service = lro.Service(Endless(), InlineExecutor())
    service.close()
    with pytest.raises(lro.DeclarationError, match="Endless: has no method reopen: make a new"):
        asyncio.run(_entered(service))
    assert service.edges.closed


async def _entered(service: lro.Service) -> None:
    async with service.lifespan():
        raise AssertionError("the service was opened")


def test_service_cannot_be_opened_by_the_thread_that_closes_it() -> None:
    """A callback of ``close`` that opens the service gets an error, and does not wait for ever."""

    class Reopening(InlineExecutor):
        def stop(self) -> None:
            super().stop()
            with pytest.raises(Unavailable, match="the service is stopping"):
                service.edges.open()
            seen.append(True)

    seen: list[bool] = []
    service = lro.Service(MemoryStore(), Reopening())
    service.close()
    assert seen == [True]
