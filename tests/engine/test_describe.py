"""What a service knows of operations beside their messages, over every store (spec §3.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

import lro
from lro._engine.access import VERBS
from lro.adapters import Store
from lro.errors import (
    BatchTooLarge,
    InvalidOperationName,
    MalformedRequest,
    MethodNotSupported,
    NameRefused,
    OperationNotFound,
    PermissionDenied,
)
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.service_fixtures import MakeService, store_of
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = "acme.v1.Work.Do"
OWN = "acme.v1.Work.Own"
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


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    with store_of(request.param, clock, tmp_path) as made:
        yield made


def declared(service: lro.Service) -> Any:
    """A method whose work is done outside."""
    return service.declare(
        METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )


def with_function(service: lro.Service) -> Any:
    """A method whose work is done here."""

    def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        return WorkResponse("done")

    return service.method(OWN)(work)


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
        method=METHOD,
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


def test_many_are_described_in_order_asked_for(
    store: Store, make_service: MakeService, clock: ManualClock
) -> None:
    """Each once; what is deleted, expired or unknown is missing."""
    service = make_service(store, InlineExecutor())
    method = declared(service)
    running, done, deleted, expired = (method.start(WorkRequest()).name for _ in range(4))
    service.reporter(expired).complete(WorkResponse())
    clock.advance(days=29)
    service.reporter(done).complete(WorkResponse())
    clock.advance(days=1)
    service.delete(deleted)
    asked = [done, "operations/none", expired, running, deleted, done, "operations/none"]
    found = service.describe_many(asked)
    assert found.missing == ("operations/none", expired, deleted)
    assert [one.name for one in found.descriptions] == [done, running]
    for one in found.descriptions:
        alone = attrs.asdict(service.describe(one.name), recurse=False)
        alone.pop("operation")
        assert one == lro.OperationDescription(**alone)
    for name in (expired, deleted, "operations/none"):
        with pytest.raises(OperationNotFound):
            service.describe(name)


def test_description_survives_restart(
    tmp_path: Path, make_service: MakeService, clock: ManualClock
) -> None:
    """It is made of what the store keeps; the next process need not even know the method."""
    path = tmp_path / "operations.db"
    service = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    name = with_function(service).start(WorkRequest("x")).name
    before = service.describe(name)
    assert (before.method, before.attempt, before.start_time) == (OWN, 1, clock())
    service.close()
    clock.advance(seconds=5)
    after = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    assert after.describe(name) == before


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
    name = with_function(service).start(WorkRequest("secret"), caller="ann").name
    found = service.describe_many([name], caller="ann").descriptions[0]
    assert set(attrs.asdict(found)) == SHOWN
    assert {field.name for field in attrs.fields(lro.DescribedOperation)} == {*SHOWN, "operation"}


@pytest.mark.parametrize("verb", ["describe", "describe_many"])
def test_describe_can_be_switched_off(verb: str, make_service: MakeService) -> None:
    """By its name; whatever the arguments."""
    service = make_service(verbs=set(VERBS) - {"DescribeOperations"})
    with pytest.raises(MethodNotSupported, match="DescribeOperations"):
        getattr(service, verb)("")


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


def test_operations_of_others_are_missing(store: Store, make_service: MakeService) -> None:
    """Where operations belong to the caller who started them, as with Get."""
    service = make_service(store, InlineExecutor(), owner_only=True)
    method = declared(service)
    hers, his = (method.start(WorkRequest(), caller=caller).name for caller in ("ann", "bob"))
    found = service.describe_many([hers, his], caller="ann")
    assert ([one.name for one in found.descriptions], found.missing) == ([hers], (his,))
    assert service.describe(hers, caller="ann").name == hers
    with pytest.raises(OperationNotFound) as refused:
        service.describe(his, caller="ann")
    with pytest.raises(OperationNotFound) as absent:
        service.describe("operations/none", caller="ann")
    assert str(refused.value).replace(his, "operations/none") == str(absent.value)


def test_who_may_get_may_describe(make_service: MakeService) -> None:
    """The hook is asked for GetOperation, once for each name, when all are well-formed."""
    asked: list[tuple[str, str, str]] = []

    def authorize(caller: str, verb: str, name: str) -> None:
        asked.append((caller, verb, name))
        if name.endswith("secret"):
            raise PermissionDenied("not you")

    service = make_service(authorize=authorize)
    with pytest.raises(MalformedRequest):
        service.describe_many([], caller="ann")
    with pytest.raises(InvalidOperationName):
        service.describe_many(["operations/secret", "x"], caller="ann")
    with pytest.raises(InvalidOperationName):
        service.describe("x", caller="ann")
    assert asked == []
    with pytest.raises(NameRefused, match="operations/secret: not you"):
        service.describe_many(["operations/a", "operations/secret", "operations/b"], caller="ann")
    assert asked == [("ann", "GetOperation", f"operations/{one}") for one in ("a", "secret")]
    with pytest.raises(PermissionDenied, match="not you"):
        service.describe("operations/secret", caller="bob")
    assert asked[2:] == [("bob", "GetOperation", "operations/secret")]
