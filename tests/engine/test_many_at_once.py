"""Cancelling and deleting all operations that match a filter (``cancel_all``, ``delete_all``)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lro
from lro import InvalidArgument, ListOperationsRequest
from lro.adapters import Store
from lro.errors import InvalidFilter, Unavailable
from lro.executors.inline import InlineExecutor
from lro.testing import ManualClock
from tests.engine.engine_parts import EACH_STORE, declared, once, raising
from tests.service_fixtures import MakeService
from tests.work_messages import WorkRequest, WorkResponse

ALL = "name:*"
OPEN = "state() = IN_PROGRESS"


@pytest.fixture
def service(make_service: MakeService) -> lro.Service:
    """A service in memory."""
    return make_service(executor=InlineExecutor())


def start(service: lro.Service, count: int, **options: Any) -> list[str]:
    """Start operations whose work is done elsewhere; their names."""
    method = declared(service, f"acme.v1.Works.Many{len(service.specs)}")
    return [one.name for one in method.start_many([WorkRequest()] * count, **options)]


def left(service: lro.Service, wanted: str = "", parent: str = "") -> int:
    """How many operations a list has, of a thousand at most."""
    found = service.list(ListOperationsRequest(name=parent, filter=wanted, page_size=1000))
    return len(found.operations)


@EACH_STORE
def test_all_that_match_are_deleted(store: Store, make_service: MakeService) -> None:
    """More than a page of them, of one parent, after a count that deletes none."""
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
    """What has ended is neither counted nor touched."""
    service = make_service(store, InlineExecutor())
    names = start(service, 250)
    assert service.reporter(names[0]).complete(WorkResponse())
    assert service.cancel_all(ALL, dry_run=True) == 249
    assert not any(service.describe(name).cancel_requested for name in names)
    assert service.cancel_all(ALL) == 249
    assert [service.describe(name).cancel_requested for name in names].count(True) == 249


def test_work_that_waits_ends_at_once(make_service: MakeService) -> None:
    """As by a single cancel."""
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


def test_what_is_gone_meanwhile_is_left_out(service: lro.Service) -> None:
    names = start(service, 5)
    store: Any = service.store
    once(store, "update", lambda *_: service.delete(names[3]))
    assert service.delete_all(ALL) == 4
    assert left(service) == 0


def test_what_comes_meanwhile_is_left_alone(service: lro.Service, clock: ManualClock) -> None:
    """So it ends, however fast operations are started."""
    start(service, 3)
    clock.advance(1)
    store: Any = service.store
    once(store, "update", lambda *_: start(service, 2))
    assert service.delete_all(ALL) == 3
    assert left(service) == 2


def test_store_that_is_away_is_reported(service: lro.Service) -> None:
    """What was done until then is done; the same call goes on."""
    start(service, 3)
    store: Any = service.store
    once(store, "page", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        service.delete_all(ALL)
    once(store, "update", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        service.delete_all(ALL)
    assert service.delete_all(ALL) == 1


def test_arguments_are_checked(service: lro.Service) -> None:
    """An empty filter would be for all operations: that has to be said."""
    start(service, 1)
    for verb in (service.cancel_all, service.delete_all):
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
    """It is for operators."""
    asked: list[tuple[str, ...]] = []
    service = make_service(
        executor=InlineExecutor(), owner_only=True, authorize=lambda *about: asked.append(about)
    )
    start(service, 2, caller="ann")
    del asked[:]
    assert service.cancel_all(ALL) == service.delete_all(ALL) == 2
    assert asked == []


def test_coroutines_have_them_too(service: lro.Service) -> None:
    start(service, 2)

    async def both() -> tuple[int, int]:
        return await service.cancel_all_async(ALL), await service.delete_all_async(ALL)

    assert asyncio.run(both()) == (2, 2)
