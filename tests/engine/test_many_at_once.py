"""Cancelling, deleting and rerunning all operations that match a filter."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import lro
from lro import InvalidArgument
from lro.adapters import Store
from lro.errors import InvalidFilter, ResourceExhausted, Unavailable
from lro.executors.inline import InlineExecutor
from lro.testing import ManualClock
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import EACH_STORE, NAME, Held, declared, method_of, once, raising
from tests.service_fixtures import MakeService
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

ALL = "name:*"
OPEN = "state() = IN_PROGRESS"


@pytest.fixture
def service(make_service: MakeService) -> lro.Service:
    """A service with a memory store."""
    return make_service(executor=InlineExecutor())


def start(service: lro.Service, count: int, **options: Any) -> list[str]:
    """Start operations of a method without a function, and return their names."""
    method = declared(service, f"acme.v1.Works.Many{len(service.edges.specs)}")
    return [one.name for one in method.start_many([WorkRequest()] * count, **options)]


def left(service: lro.Service, wanted: str = "", parent: str = "") -> int:
    """Return how many operations match a filter, counting at most a thousand."""
    found = service.list(ListOperationsRequest(name=parent, filter=wanted, page_size=1000))
    return len(found.operations)


@EACH_STORE
def test_all_that_match_are_deleted(store: Store, make_service: MakeService) -> None:
    """``delete_all`` deletes matches on several pages of one parent. A dry run only counts them."""
    service = make_service(store, InlineExecutor())
    names = start(service, 450)
    other = start(service, 3, parent="projects/p")
    for name in names[100:320]:
        assert service.reporter(name).complete(WorkResponse())
    assert service.delete_all("done = true", dry_run=True) == 220
    assert left(service) == 450
    assert service.delete_all("done = true") == 220
    assert service.delete_all("done = true") == 0
    assert (left(service), left(service, parent="projects/p")) == (230, 3)
    assert service.delete_all(ALL, parent="projects/p") == len(other)
    assert (left(service), left(service, parent="projects/p")) == (230, 0)


@EACH_STORE
def test_all_in_progress_that_match_are_cancelled(store: Store, make_service: MakeService) -> None:
    """``cancel_all`` neither counts nor changes operations that have ended."""
    service = make_service(store, InlineExecutor())
    names = start(service, 250)
    assert service.reporter(names[0]).complete(WorkResponse())
    assert service.cancel_all(ALL, dry_run=True) == 249
    assert not any(service.get(name, view="FULL").description.cancel_requested for name in names)
    assert service.cancel_all(ALL) == 249
    assert [service.get(name, view="FULL").description.cancel_requested for name in names].count(
        True
    ) == 249


def test_work_that_waits_ends_at_once(make_service: MakeService) -> None:
    """``cancel_all`` ends waiting operations at once, as a single cancel does."""
    service = make_service(executor=None, maintenance=False)
    front = lro.Service(service.store, None, maintenance=False)

    @front.method("acme.v1.Works.Wait")
    def wait(request: WorkRequest) -> WorkResponse:
        return WorkResponse(request.text)

    for _ in range(3):
        wait.start(WorkRequest())
    assert front.cancel_all(OPEN) == 3
    assert left(front, "state() = CANCELLED") == 3
    assert front.cancel_all(OPEN) == 0


@pytest.mark.parametrize("verb", ["cancel_all", "delete_all"])
def test_workers_are_read_once_for_a_page_of_undeclared_methods(
    service: lro.Service, verb: str
) -> None:
    """For methods that the service does not declare, the workers are read only once per page."""
    count = 450
    start(service, count)
    other = lro.Service(service.store, InlineExecutor(), maintenance=False)
    reads: list[str] = []
    store: Any = service.store
    workers = store.workers

    def noted() -> object:
        reads.append("workers")
        return workers()

    store.workers = noted
    assert getattr(other, verb)(ALL) == count
    assert 1 <= len(reads) <= 5
    other.close()


def test_operations_removed_during_delete_all_are_left_out(service: lro.Service) -> None:
    names = start(service, 5)
    store: Any = service.store
    once(store, "update", lambda *_: service.delete(names[3]))
    assert service.delete_all(ALL) == 4
    assert left(service) == 0


def test_operations_started_during_delete_all_are_kept(
    service: lro.Service, clock: ManualClock
) -> None:
    """``delete_all`` keeps operations started after the call began, so that it always ends."""
    start(service, 3)
    clock.advance(1)
    store: Any = service.store
    once(store, "update", lambda *_: start(service, 2))
    assert service.delete_all(ALL) == 3
    assert left(service) == 2


def test_outage_during_delete_all_is_raised(service: lro.Service) -> None:
    """Deletions before an outage stay. The next call deletes the remaining operations."""
    start(service, 3)
    store: Any = service.store
    once(store, "page", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        service.delete_all(ALL)
    once(store, "update", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        service.delete_all(ALL)
    assert service.delete_all(ALL) == 1


def test_empty_filter_for_all_operations_is_refused(service: lro.Service) -> None:
    """An empty filter, which would match all operations, is refused in favour of ``name:*``."""
    start(service, 1)
    for verb in (service.cancel_all, service.delete_all, service.rerun_all):
        for empty in ("", "  "):
            with pytest.raises(InvalidArgument, match="name:\\* matches all operations"):
                verb(empty)
        with pytest.raises(InvalidFilter):
            verb("done = ")
        with pytest.raises(InvalidArgument):
            verb(ALL, parent="projects")
        with pytest.raises(lro.DeclarationError):
            verb(1)  # type: ignore[arg-type]
    assert left(service) == 1


def test_hook_is_not_asked_and_every_owner_is_included(make_service: MakeService) -> None:
    """Calls for operators run no hook and include the operations of all owners."""
    asked: list[tuple[str, ...]] = []
    service = make_service(
        executor=InlineExecutor(), owner_only=True, authorize=lambda *about: asked.append(about)
    )
    start(service, 2, caller="ann")
    del asked[:]
    assert service.cancel_all(ALL) == service.delete_all(ALL) == 2
    assert asked == []


# -- rerunning ------------------------------------------------------------------------------------


class Server:
    """A function that fails with UNAVAILABLE while its server is away."""

    def __init__(self) -> None:
        self.away = True
        self.seen: list[str] = []

    def __call__(self, request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        self.seen.append(request.text)
        if self.away:
            raise lro.StatusError(lro.Code.UNAVAILABLE, "away")
        return WorkResponse(request.text)


@EACH_STORE
def test_rerunning_all_twice_starts_nothing_twice(
    store: Store, make_service: MakeService, clock: ManualClock
) -> None:
    """Failed and cancelled operations of the parent are rerun, each at most once."""
    service, work = make_service(store, InlineExecutor()), Server()
    method = method_of(service, work)
    texts = [str(count) for count in range(230)]
    failed = [method.start(WorkRequest(text)).name for text in texts]
    method.start(WorkRequest("other"), parent="projects/p")
    work.away = False
    method.start(WorkRequest("succeeded"))
    (cancelled, running) = start(service, 2)
    service.cancel(cancelled)
    assert service.reporter(cancelled).acknowledge_cancel()
    clock.advance(1)
    del work.seen[:]
    assert service.rerun_all(ALL, dry_run=True) == 231
    assert work.seen == []
    assert service.rerun_all(ALL) == 231
    assert sorted(work.seen) == sorted(texts)
    assert left(service) == 233 + 231
    assert service.rerun_all(ALL, dry_run=True) == service.rerun_all(ALL) == 0
    assert left(service) == 233 + 231
    origins = {
        service.get(one.name, view="FULL").description.origin for one in newest(service, 231)
    }
    assert origins == {*failed, cancelled}
    assert not service.get(running).done
    clock.advance(timedelta(hours=24).total_seconds())
    assert service.rerun_all(f'name = "{failed[0]}"') == 0
    assert left(service) == 233 + 231


def newest(service: lro.Service, count: int) -> list[lro.Operation]:
    """Return the operations that were created last."""
    page = service.list(ListOperationsRequest(page_size=count))
    return list(page.operations)


@EACH_STORE
def test_operations_that_cannot_be_rerun_are_left_out(
    store: Store, make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """An operation whose method is gone or refuses the request is skipped, and the log says why."""
    first, work = make_service(store, InlineExecutor()), Server()
    method = method_of(first, work)
    names = [method.start(WorkRequest(text)).name for text in ("a", "b", "c")]
    gone = declared(first, "acme.v1.Works.Gone").start(WorkRequest()).name
    assert first.reporter(gone).fail(lro.Status(lro.Code.INTERNAL, "why"))
    service = make_service(store, InlineExecutor())
    work.away = False
    method_of(service, work, validate=lambda request: request.text != "b")
    del work.seen[:]
    with caplog.at_level(logging.WARNING, "lro"):
        assert service.rerun_all(ALL) == 2
    assert sorted(work.seen) == ["a", "c"]
    lines = [one.getMessage() for one in caplog.records if "is not rerun" in one.getMessage()]
    assert len(lines) == 2
    assert any(gone in line and "does not declare its method" in line for line in lines)
    assert any(names[1] in line and "refused by the method" in line for line in lines)


def test_rerunning_all_ends_where_the_queue_is_full_and_can_be_called_again(
    make_service: MakeService, clock: ManualClock
) -> None:
    """An error that would also stop the remaining reruns, such as a full queue, ends the call."""
    service, work = make_service(executor=InlineExecutor()), Server()
    method = method_of(service, work)
    for text in ("a", "b", "c"):
        method.start(WorkRequest(text))
    work.away = False
    full = make_service(service.store, Held(busy=True), limits=lro.Limits(backlog=1))
    waiting = method_of(full, work).start(WorkRequest("d")).name
    clock.advance(2)
    with pytest.raises(ResourceExhausted, match="the queue is full"):
        full.rerun_all("state() = FAILED")
    full.cancel(waiting)
    store: Any = service.store
    once(store, "insert", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        service.rerun_all("state() = FAILED")
    assert service.rerun_all("state() = FAILED") == 3
    assert sorted(work.seen) == ["a", "a", "b", "b", "c", "c"]


def test_rerunning_all_awaits_hooks_of_a_loop(make_service: MakeService) -> None:
    """The async form of ``rerun_all`` can await coroutine hooks, which a thread cannot."""

    asked: list[str] = []

    async def authorize(caller: str, verb: str, name: str) -> None:
        await asyncio.sleep(0)
        asked.append(verb)

    service, work = make_service(executor=InlineExecutor(), authorize=authorize), Server()
    method = method_of(service, work)

    async def run() -> tuple[int, int]:
        await method.start_async(WorkRequest("a"))
        work.away = False
        count = await service.rerun_all_async(ALL, dry_run=True)
        return count, await service.rerun_all_async("state() = FAILED")

    assert asyncio.run(run()) == (1, 1)
    assert (work.seen, asked) == (["a", "a"], [NAME, NAME])


def test_async_forms_cancel_and_delete_all(service: lro.Service) -> None:
    start(service, 2)

    async def both() -> tuple[int, int]:
        return await service.cancel_all_async(ALL), await service.delete_all_async(ALL)

    assert asyncio.run(both()) == (2, 2)
