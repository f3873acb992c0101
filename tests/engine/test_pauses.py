"""Pausing a method: its starts are accepted but wait, while running work continues."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import lro
from lro import InvalidArgument
from lro.adapters import PAUSES_CHANGED, WORK_WAITS, Store
from lro.errors import Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.engine.engine_parts import EACH_STORE, NAME, Held, declared, method_of, once, raising
from tests.service_fixtures import MakeService
from tests.service_steps import Step
from tests.services.postgres import shared_server
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkRequest

OTHER = "acme.v1.Works.Other"


def method_as(service: lro.Service, name: str = OTHER, **options: Any) -> Any:
    """Register a method under this name, with a function that does nothing."""

    def work(request: WorkRequest) -> lro.Empty:
        return lro.Empty()

    return service.method(name, **options)(work)


@EACH_STORE
def test_starts_of_a_paused_method_wait(
    store: Store, make_service: MakeService, clock: ManualClock
) -> None:
    """A pause outlives its process and leaves other methods alone. After a resume, work begins."""
    service = make_service(store, InlineExecutor())
    method, beside = method_of(service), method_as(service)
    assert method.start(WorkRequest()).done
    service.pause(NAME)
    since = clock()
    assert service.paused() == {NAME: since}
    waiting = [method.start(WorkRequest()).name for _ in range(3)]
    assert beside.start(WorkRequest()).done
    service.run_maintenance()
    clock.advance(60)
    later = make_service(store, InlineExecutor())
    method_of(later)
    waiting.append(later.start(NAME, WorkRequest()).name)
    for one in (service, later):
        one.run_maintenance()
        assert one.paused() == {NAME: since}
        assert not any(one.get(name).done for name in waiting)
    later.resume(NAME)
    assert service.paused() == {}
    later.run_maintenance()
    assert all(service.get(name).done for name in waiting)
    clock.advance(60)
    service.run_maintenance()
    assert method.start(WorkRequest()).done


def test_running_work_of_a_paused_method_continues(make_service: MakeService, step: Step) -> None:
    """A pause leaves running work alone, and waiting work can still be cancelled."""
    service = make_service(executor=ThreadExecutor(2))
    method = method_of(service, lambda *_: step())
    running = method.start(WorkRequest("a"))
    step.reached()
    service.pause(NAME)
    waiting = method.start(WorkRequest("b"))
    service.cancel(waiting.name)
    assert service.get(waiting.name).state == "CANCELLED"
    step.go.set()
    assert running.result(PATIENCE).text == "a"


def test_work_under_an_alias_is_paused_too(make_service: MakeService) -> None:
    """A method's alias and name both pause and resume its work. ``paused`` lists the name."""
    before = make_service(executor=Held(busy=True))
    name = method_of(before).start(WorkRequest()).name
    service = make_service(before.store, InlineExecutor())
    renamed = method_as(service, "acme.v1.Works.Renamed", aliases=(NAME,))
    for paused, resumed in ((NAME, "acme.v1.Works.Renamed"), ("acme.v1.Works.Renamed", NAME)):
        service.pause(paused)
        assert [*service.paused()] == ["acme.v1.Works.Renamed"]
        assert not renamed.start(WorkRequest()).done
        service.run_maintenance()
        assert not service.get(name).done
        service.resume(resumed)
        assert service.paused() == {}
    service.run_maintenance()
    assert service.get(name).done


@EACH_STORE
@pytest.mark.parametrize("sent", [False, True])
def test_pause_by_an_old_name_holds_for_the_present_one(
    store: Store, make_service: MakeService, sent: bool
) -> None:
    """A pause that an earlier release has set by an old name holds for the current name."""

    def renamed(service: lro.Service) -> Any:
        return method_as(service, "acme.v1.Works.Renamed", aliases=(NAME,))

    front = renamed(make_service(store, Held(busy=True)))
    waiting = front.start(WorkRequest())
    store.pause(NAME)
    service = make_service(store, InlineExecutor())
    method = renamed(service)
    if sent:  # a Celery worker gets the name like this
        service.edges.work.run_operation(waiting.name)
    names = [waiting.name, method.start(WorkRequest()).name]
    service.run_maintenance()
    assert [*service.paused()] == ["acme.v1.Works.Renamed"]
    assert not any(service.get(name).done for name in names)
    service.resume("acme.v1.Works.Renamed")
    service.run_maintenance()
    assert all(service.get(name).done for name in names)


def test_unknown_method_is_refused_unless_its_work_waits(make_service: MakeService) -> None:
    """A pause of an unknown method without waiting work is refused. The name may be misspelled."""
    before = make_service(executor=Held(busy=True))
    service = make_service(before.store, InlineExecutor())
    for call in (service.pause, service.resume):
        with pytest.raises(InvalidArgument, match="is not declared by this service, and no work"):
            call(NAME)
        with pytest.raises(lro.DeclarationError):
            call(1)  # type: ignore[arg-type]
    declared(service, "acme.v1.Works.Long" + "Name" * 20)
    with pytest.raises(InvalidArgument, match=r"waits; did you mean acme.v1.Works.Long(Name)+\?$"):
        service.pause("acme.v1.Works.Long" + "Nmae" * 20)
    with pytest.raises(InvalidArgument, match=r"no work of it waits$"):
        service.pause("x" * 100_000)
    method_of(before).start(WorkRequest())
    service.pause(NAME)
    service.pause(NAME)
    before.cancel_all("name:*")
    assert [*service.paused()] == [NAME]
    service.resume(NAME)
    assert service.paused() == {}


def test_new_process_reads_which_methods_are_paused(make_service: MakeService) -> None:
    """In a new process, a start of a paused method waits, and fails if the store is unreadable."""
    first = make_service(executor=InlineExecutor())
    method_of(first)
    first.pause(NAME)
    service = make_service(first.store, InlineExecutor())
    method = method_of(service)
    store: Any = service.store
    once(store, "paused", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        method.start(WorkRequest())
    assert not method.start(WorkRequest()).done


def test_lost_notification_is_made_good_within_a_minute(
    make_service: MakeService, clock: ManualClock
) -> None:
    service = make_service(executor=InlineExecutor())
    method = method_of(service)
    service.run_maintenance()
    service.store.pause(NAME)
    clock.advance(59)
    service.run_maintenance()
    assert method.start(WorkRequest()).done
    clock.advance(1)
    service.run_maintenance()
    assert not method.start(WorkRequest()).done


def test_worker_that_is_sent_a_name_leaves_paused_work(make_service: MakeService) -> None:
    """A worker that is sent the name of paused work, as in Celery, leaves the work at once."""
    front = make_service(executor=Held(busy=True))
    service = make_service(front.store, InlineExecutor())
    names = [one.start(WorkRequest()).name for one in (method_of(front, concurrency=1),) * 2]
    method_of(service, concurrency=1)
    service.pause(NAME)
    service.edges.work.run_operation(names[0])
    assert not service.get(names[0]).done
    service.resume(NAME)
    service.edges.work.run_operation(names[0])
    assert service.get(names[0]).done


def test_pause_and_resume_notify_other_processes(make_service: MakeService) -> None:
    service = make_service(executor=InlineExecutor())
    method_of(service)
    said: list[str] = []
    store: Any = service.store
    store.notify_others = said.append
    service.pause(NAME)
    assert said == [PAUSES_CHANGED]
    service.resume(NAME)
    assert said[1:] == [PAUSES_CHANGED, WORK_WAITS]


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_pause_and_resume_reach_other_processes_at_once(
    store: Store, make_service: MakeService
) -> None:
    """Other processes hold back starts after a pause, and claim waiting work after a resume."""
    operator = make_service(store, InlineExecutor())
    method_of(operator)
    with lro.Service(another(store), InlineExecutor(), lease=timedelta(seconds=5)) as service:
        method = method_of(service)
        until(lambda: method.start(WorkRequest()).done)
        operator.pause(NAME)
        until(lambda: not method.start(WorkRequest()).done)
        name = method.start(WorkRequest()).name
        assert not service.get(name).done
        operator.resume(NAME)
        assert service.wait(name, PATIENCE).done
        until(lambda: method.start(WorkRequest()).done)


def another(store: Any) -> Store:
    """Open another store on the same file or schema, as another process would."""
    if isinstance(store, SQLiteStore):
        return SQLiteStore(store.path)
    from lro.stores.postgres import PostgresStore

    return PostgresStore(shared_server().url, schema=store.schema)


def test_async_forms_pause_and_resume(make_service: MakeService, clock: ManualClock) -> None:
    service = make_service(executor=InlineExecutor())
    method_of(service)

    async def all_three() -> list[str]:
        await service.pause_async(NAME)
        found = [*await service.paused_async()]
        await service.resume_async(NAME)
        return [*found, *await service.paused_async()]

    assert asyncio.run(all_three()) == [NAME]
