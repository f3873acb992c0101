"""What a service knows of operations beside their messages, over every store (spec §3.11)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import attrs
import pytest

import lro
from lro.adapters import Store
from lro.errors import (
    BatchTooLarge,
    InvalidOperationName,
    PermissionDenied,
)
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.engine.engine_parts import EACH_STORE, NAME, declared, method_of
from tests.service_fixtures import MakeService
from tests.work_messages import WorkRequest, WorkResponse

SHOWN = {
    "name",
    "state",
    "method",
    "create_time",
    "update_time",
    "start_time",
    "end_time",
    "expire_time",
    "cancel_requested",
    "cancel_time",
    "attempt",
    "lost_attempts",
    "trace_id",
}


@EACH_STORE
def test_description_follows_life_of_operation(
    store: Store, make_service: MakeService, clock: ManualClock
) -> None:
    """From the start to the end, each time by the store's clock."""
    service = make_service(store, InlineExecutor())
    began = clock()
    started = declared(service).start(WorkRequest("secret"), request_id="", caller="ann")
    waiting = service.describe(started.name)
    assert waiting == lro.DescribedOperation(
        name=started.name,
        state="IN_PROGRESS",
        method=NAME,
        create_time=began,
        update_time=began,
        start_time=waiting.start_time,
        operation=started.operation,
    )
    clock.advance(seconds=5)
    service.cancel(started.name)
    asked = service.describe(started.name)
    assert (asked.cancel_requested, asked.update_time) == (True, began + timedelta(seconds=5))
    clock.advance(seconds=5)
    service.reporter(started.name).complete(WorkResponse("done"))
    over = service.describe(started.name)
    assert over.attempt == 0
    ended = began + timedelta(seconds=10)
    assert (over.state, over.end_time, over.update_time) == ("SUCCEEDED", ended, ended)
    assert over.expire_time == ended + timedelta(days=30)
    assert (over.create_time, over.operation) == (began, service.get(started.name))


def test_description_survives_restart(
    tmp_path: Path, make_service: MakeService, clock: ManualClock
) -> None:
    """It is made of what the store keeps; the next process need not even know the method."""
    path = tmp_path / "operations.db"
    service = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    name = method_of(service).start(WorkRequest("x")).name
    before = service.describe(name)
    assert (before.method, before.attempt, before.start_time) == (NAME, 1, clock())
    service.close()
    clock.advance(seconds=5)
    after = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    assert after.describe(name) == before


@EACH_STORE
def test_event_loop_gets_the_same(store: Store, make_service: MakeService) -> None:
    """Of one and of many."""
    service = make_service(store, InlineExecutor())
    name = declared(service).start(WorkRequest()).name

    async def both() -> tuple[object, object]:
        return await service.describe_async(name), await service.describe_many_async([name])

    assert asyncio.run(both()) == (service.describe(name), service.describe_many([name]))


def test_nothing_else_of_record_is_shown(make_service: MakeService) -> None:
    """Not the caller, the owner of the lease, the keys, the target or the request."""
    service = make_service()
    name = method_of(service).start(WorkRequest("secret"), caller="ann").name
    found = service.describe_many([name], caller="ann").descriptions[0]
    assert set(attrs.asdict(found)) == SHOWN
    assert {field.name for field in attrs.fields(lro.DescribedOperation)} == {*SHOWN, "operation"}


def test_large_operations_are_refused_together(make_service: MakeService) -> None:
    """Their messages are read too, so they count; one alone is always described."""
    service = make_service(MemoryStore(), limits=lro.Limits(page_bytes=2000))
    method = declared(service)
    names = [method.start(WorkRequest()).name for _ in range(5)]
    for name in names:
        service.reporter(name).complete(WorkResponse("x" * 1500))
    with pytest.raises(BatchTooLarge, match="ask for fewer names at once"):
        service.describe_many(names)
    assert service.describe_many(names[:1]).missing == ()


def test_descriptions_are_bounded_too(make_service: MakeService) -> None:
    """They may have more bytes than the operations."""
    service = make_service(MemoryStore(), limits=lro.Limits(page_bytes=2000))
    method = declared(service)
    names = [method.start(WorkRequest()).name for _ in range(5)]
    assert len(service.batch_get(names).operations) == 5
    with pytest.raises(BatchTooLarge):
        service.describe_many(names)
    assert len(service.describe_many(names[:3]).descriptions) == 3


def test_who_may_get_may_describe(make_service: MakeService) -> None:
    """The hook is asked for GetOperation, when the name is well-formed."""
    asked: list[tuple[str, str, str]] = []

    def authorize(caller: str, verb: str, name: str) -> None:
        asked.append((caller, verb, name))
        raise PermissionDenied("not you")

    service = make_service(authorize=authorize)
    with pytest.raises(InvalidOperationName):
        service.describe("x", caller="ann")
    assert asked == []
    with pytest.raises(PermissionDenied, match="not you"):
        service.describe("operations/secret", caller="bob")
    assert asked == [("bob", "GetOperation", "operations/secret")]
