"""A request to cancel shows in the metadata, where these have a flag for it (spec §2.6, §9.6)."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from lro import ListOperationsRequest, Service
from lro.adapters import Store
from lro.executors.inline import InlineExecutor
from tests.service_fixtures import MakeService
from tests.service_steps import unpacked
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)

NAME = "acme.v1.Works.Work"


@attrs.frozen
class Flagless:
    """Metadata without a conventional flag."""

    percent: int = 0


@attrs.frozen
class Requiring:
    """Metadata with a flag, and with a part without which no message of it can be made."""

    part: Flagless
    requested_cancellation: bool = False


def declared(service: Service, metadata: type = WorkMetadata) -> Any:
    """A method whose work no worker does."""
    return service.declare(NAME, request=WorkRequest, response=WorkResponse, metadata=metadata)


@pytest.fixture
def service(store: Store, make_service: MakeService) -> Service:
    """A service on each store."""
    return make_service(store, InlineExecutor())


FIRST = pytest.mark.parametrize("first", [None, WorkMetadata(percent=7)])


@FIRST
def test_get_and_list_show_the_flag_after_a_cancel(
    service: Service, first: WorkMetadata | None
) -> None:
    """Whether the work has reported metadata or not."""
    method = declared(service)
    name = method.start(WorkRequest(), metadata=first).name
    method.start(WorkRequest())
    service.cancel(name)
    seen = unpacked(service, service.get(name))
    assert (seen.cancel_requested, seen.percent) == (True, 7 if first else 0)
    assert seen.create_time is not None
    for query in ("cancel_requested()", "metadata.cancel_requested = true"):
        found = service.list(ListOperationsRequest(filter=query)).operations
        assert [one.name for one in found] == [name]
        assert unpacked(service, found[0]).cancel_requested


@FIRST
def test_watch_sends_an_event_when_the_flag_is_set(
    service: Service, first: WorkMetadata | None
) -> None:
    """One, and none for a second request to cancel."""
    name = declared(service).start(WorkRequest(), metadata=first).name

    def end() -> None:
        service.cancel(name)
        service.reporter(name).acknowledge_cancel()

    acts = [lambda: service.cancel(name), end]

    async def main() -> list[bool | None]:
        seen: list[bool | None] = []
        async for one in await service.watch([name]):
            metadata = None if one.metadata is None else unpacked(service, one)
            seen.append(metadata and metadata.cancel_requested)
            if acts:
                await asyncio.to_thread(acts.pop(0))
        return seen

    seen = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert seen == [None if first is None else False, True, True]


def test_the_flag_stays_when_the_work_reports_afterwards(service: Service) -> None:
    """The worker replaces the metadata as a whole, and does not take the mark away."""
    name = declared(service).start(WorkRequest()).name
    service.cancel(name)
    assert service.reporter(name).report(WorkMetadata(percent=50))
    seen = unpacked(service, service.get(name))
    assert (seen.percent, seen.cancel_requested) == (50, True)


@pytest.mark.parametrize("metadata", [Flagless, Requiring])
def test_metadata_that_cannot_show_the_request_stay_absent(
    service: Service, metadata: type
) -> None:
    """They have no flag, or no message can be made of the flag alone; the filter finds it."""
    name = declared(service, metadata).start(WorkRequest()).name
    service.cancel(name)
    assert service.get(name).metadata is None
    found = service.list(ListOperationsRequest(filter="cancel_requested()")).operations
    assert [one.name for one in found] == [name]
