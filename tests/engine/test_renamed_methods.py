"""Methods that had another name in an earlier release: their work, metrics and starts."""

from __future__ import annotations

import uuid
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

import lro
from lro.adapters import Observer, OperationEnded, OperationStarted, Store, WorkLost
from lro.errors import RequestIdConflict, TargetBusy
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.engine.engine_parts import EACH_STORE, Held
from tests.service_fixtures import MakeService
from tests.waiting import until

OLD = "acme.prints.v1.Printing.PrintOne"
NEW = "acme.prints.v1.Prints.Print"
KEPT = timedelta(days=2)
KEY = str(uuid.UUID(int=7))


@lro.message("acme.prints.v1.Job")
@attrs.frozen
class OldRequest:
    title: str = ""


@lro.message("acme.prints.v1.JobMetadata")
@attrs.frozen
class OldMetadata:
    pages: lro.Int32 = 0
    cancel_requested: bool = False


@lro.message("acme.prints.v1.JobResponse")
@attrs.frozen
class OldResponse:
    text: str = ""


@lro.message("acme.prints.v1.PrintRequest", aliases=("acme.prints.v1.Job",))
@attrs.frozen
class Request:
    title: str = ""


@lro.message("acme.prints.v1.PrintMetadata", aliases=("acme.prints.v1.JobMetadata",))
@attrs.frozen
class Metadata:
    pages: lro.Int32 = 0
    cancel_requested: bool = False


@lro.message("acme.prints.v1.PrintResponse", aliases=("acme.prints.v1.JobResponse",))
@attrs.frozen
class Response:
    text: str = ""


class Seen(Observer):
    """An observer that records the method of each event."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def started(self, event: OperationStarted) -> None:
        self.methods.append(event.method)

    def lost(self, event: WorkLost) -> None:
        self.methods.append(event.method)

    def ended(self, event: OperationEnded) -> None:
        self.methods.append(event.method)


def version_1(service: lro.Service, **options: Any) -> Any:
    """Register the method and its messages under their old names."""

    def work(request: OldRequest, job: lro.Job[OldMetadata]) -> OldResponse:
        job.report(OldMetadata(pages=3))
        return OldResponse(request.title)

    return service.method(OLD, **options)(work)


def version_2(service: lro.Service, calls: list[Any] | None = None, **options: Any) -> Any:
    """Register the method and its messages under their new names."""

    def work(request: Request, job: lro.Job[Metadata]) -> Response:
        if calls is not None:
            calls.append((request, job.attempt, job.metadata, job.method))
        return Response(request.title)

    return service.method(NEW, aliases=(OLD,), **options)(work)


def maintained(service: lro.Service, clock: ManualClock, name: str) -> lro.Operation:
    """Run maintenance until the operation is done. Lost work needs a lease time and two scans."""

    def looked() -> lro.Operation:
        service.run_maintenance()
        clock.advance(1)
        return service.get(name)

    return until(looked, lambda found: found.done)


def leave(service: lro.Service, store: Store, executor: Held, **options: Any) -> tuple[str, str]:
    """Start two operations by the old name. The first begins but never ends. The second waits."""
    method = version_1(service, **options)
    lost = method.start(OldRequest("lost"), metadata=OldMetadata(pages=1)).name
    executor.busy = True
    waiting = method.start(OldRequest("waiting")).name
    assert (store.get(lost).attempt, store.get(waiting).attempt) == (1, 0)
    return waiting, lost


def test_next_release_finishes_what_the_last_one_has_left(
    make_service: MakeService, clock: ManualClock, tmp_path: Path
) -> None:
    """Version 2 finishes work that version 1 left waiting or running when it was killed."""
    path, calls, seen = tmp_path / "operations.db", [], Seen()
    with (
        closing(SQLiteStore(path, clock=clock)) as first,
        closing(SQLiteStore(path, clock=clock)) as second,
    ):
        executor = Held()
        waiting, lost = leave(make_service(first, executor), first, executor)
        clock.advance(20)
        service = make_service(second, observers=[seen])
        method = version_2(service, calls, keep_for=KEPT)
        for name, title in ((waiting, "waiting"), (lost, "lost")):
            done = maintained(service, clock, name)
            assert done.response is not None
            assert service.types.unpack(done.response, Response) == Response(title)
            assert done.response.type_name == "acme.prints.v1.PrintResponse"
            assert service.get(name, view="FULL").description.method == NEW
            assert method.handle(name).result() == Response(title)
            record = second.get(name)
            assert record.end_time is not None
            assert record.expire_time == record.end_time + KEPT
        assert sorted(calls, key=lambda one: one[1]) == [
            (Request("waiting"), 1, None, NEW),
            (Request("lost"), 2, Metadata(pages=1), NEW),
        ]
        # The worker notifies observers after it has stored the end.
        assert until(lambda: seen.methods, lambda methods: len(methods) >= 3) == [NEW] * 3


@pytest.fixture
def left(make_service: MakeService, store: Store) -> tuple[str, str]:
    """The names of an operation that waits, and of one that has begun and lost its worker."""
    executor = Held()
    return leave(make_service(store, executor), store, executor)


@EACH_STORE
def test_filter_by_method_finds_work_of_an_old_name_under_the_new_one(
    left: tuple[str, str], make_service: MakeService, store: Store
) -> None:
    """A filter by the new name finds old work. Without the alias, only the stored name finds it."""
    service, front = make_service(store, Held()), make_service(store, Held(), maintenance=False)
    version_2(service)
    fresh = service.start(NEW, Request("new")).name
    for where, name, names in (
        (service, NEW, {fresh, *left}),
        (service, OLD, set()),
        (front, NEW, {fresh}),
        (front, OLD, {*left}),
    ):
        wanted = lro.wire.ListOperationsRequest(filter=f'method() = "{name}"')
        assert {one.name for one in where.list(wanted).operations} == names
    assert service.cancel_all("method() = 'acme.prints.v1.Prints.*'", dry_run=True) == 3


@EACH_STORE
def test_options_of_the_new_release_hold_for_what_is_lost(
    left: tuple[str, str], make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    service = make_service(store)
    version_2(service, at_most_once=True)
    clock.advance(20)
    waiting, lost = left
    found = maintained(service, clock, lost)
    assert found.error is not None
    assert found.error.details[0].payload["reason"] == "WORKER_LOST"  # type: ignore[call-overload,index]
    assert maintained(service, clock, waiting).state == "SUCCEEDED"


@EACH_STORE
def test_work_of_an_old_name_is_cancelled(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """A cancel ends waiting work at once and lost work at its recovery.

    The operation's metadata show the cancel request.
    """
    executor = Held()
    method = version_1(make_service(store, executor))
    lost = method.start(OldRequest(), metadata=OldMetadata(pages=1)).name
    executor.busy = True
    waiting = method.start(OldRequest(), metadata=OldMetadata(pages=2)).name
    service = make_service(store)
    version_2(service, keep_for=KEPT)
    service.cancel(waiting)
    record = store.get(waiting)
    assert record.done
    assert record.end_time is not None
    assert record.expire_time == record.end_time + KEPT
    service.cancel(lost)
    clock.advance(20)
    assert maintained(service, clock, lost).state == "CANCELLED"
    for name, pages in ((waiting, 2), (lost, 1)):
        metadata = service.get(name).metadata
        assert metadata is not None
        assert metadata.type_name == "acme.prints.v1.JobMetadata"
        assert service.types.unpack(metadata, Metadata) == Metadata(pages, cancel_requested=True)


def test_operations_are_shown_as_of_the_new_name(
    left: tuple[str, str], make_service: MakeService, store: Store
) -> None:
    """Get and List show the new method name, and a filter finds values in old messages."""
    service = make_service(store, Held(busy=True))
    new = version_2(service).start(Request(), metadata=Metadata(pages=1)).name
    names = [*left, new]
    full = service.batch_get(names, view="FULL").operations
    assert [one.description.method for one in full] == [NEW] * 3
    page = service.list(lro.wire.ListOperationsRequest(), view="FULL").operations
    assert {one.description.method for one in page} == {NEW}
    found = service.list(lro.wire.ListOperationsRequest(filter="metadata.pages = 1")).operations
    assert {one.name for one in found} == {left[1], new}


def test_worker_that_is_sent_a_name_does_the_work(
    left: tuple[str, str], make_service: MakeService, store: Store
) -> None:
    service = make_service(store)
    version_2(service, concurrency=2)  # the lost operation counts, too
    service.edges.work.run_operation(left[0])
    assert service.get(left[0]).state == "SUCCEEDED"


@EACH_STORE
def test_concurrency_counts_each_name_by_itself(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    old = version_1(make_service(store, Held(busy=True)), concurrency=2)
    executor = Held()
    service = make_service(store, executor)
    new = version_2(service, concurrency=2)
    for _ in range(3):
        old.start(OldRequest())
        new.start(Request())
    service.run_maintenance()
    assert len(executor.tasks) == 4
    executor.tasks[0].run()
    clock.advance(5)
    service.run_maintenance()
    assert len(executor.tasks) == 5


# -- starts ---------------------------------------------------------------------------------------


@EACH_STORE
def test_repeated_start_finds_the_operation_of_the_old_name(
    make_service: MakeService, store: Store
) -> None:
    """A repeat finds the old start, even if its target is locked. Another request is refused."""
    target = {"exclusive_target": lambda request: "t"}
    old = version_1(make_service(store, Held()), **target)
    first = old.start(OldRequest("x"), request_id=KEY).name
    seen = Seen()
    new = version_2(make_service(store, Held(), observers=[seen]), **target)
    assert new.start(Request("x"), request_id=KEY).name == first
    assert new.start_many([Request("x")], request_ids=[KEY])[0].name == first
    assert new.start(Request("x"), request_id=KEY, validate_only=True).name == ""
    assert seen.methods == [NEW] * 2
    with pytest.raises(RequestIdConflict):
        new.start(Request("y"), request_id=KEY)
    with pytest.raises(TargetBusy):
        new.start(Request("x"), request_id=str(uuid.UUID(int=8)))
    store.update(first, lambda record: None)
    again = new.start(Request("z"), request_id=str(uuid.UUID(int=9))).name
    assert new.start(Request("z"), request_id=str(uuid.UUID(int=9))).name == again


def test_start_by_an_old_name_is_refused(make_service: MakeService) -> None:
    service = make_service()
    version_2(service)
    with pytest.raises(lro.DeclarationError, match=f"^{OLD}: is not declared by this service$"):
        service.start(OLD, Request())


def test_work_that_is_done_outside_is_reported_on_by_the_new_release(
    make_service: MakeService, store: Store
) -> None:
    classes = {"request": OldRequest, "response": OldResponse, "metadata": OldMetadata}
    name = make_service(store).declare(OLD, **classes).start(OldRequest()).name
    service = make_service(store)
    options = lro.Options(aliases=[OLD], keep_for=KEPT)  # type: ignore[arg-type]  # a list is valid
    service.declare(NEW, request=Request, response=Response, metadata=Metadata, options=options)
    reporter = service.reporter(name)
    assert reporter.report(Metadata(pages=2))
    assert reporter.complete(Response("x"))
    assert service.get(name).state == "SUCCEEDED"
    assert store.get(name).method == OLD


# -- declarations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aliases", "text"),
    [
        ("a.v1.A.Old", r"^aliases: must be a tuple of full names, got 'a\.v1\.A\.Old'$"),
        (("Old",), r"^'Old': is not a method's full name such as"),
        ((OLD, OLD), rf"^aliases: have {OLD} twice: give it once$"),
        ((NEW,), rf"^aliases: {NEW} is its present name: give the names of earlier releases only$"),
        (
            ("a.v1.A.Other",),
            rf"^a\.v1\.A\.Other: is declared as a method, so it cannot be an alias of {NEW}: "
            "leave it out",
        ),
        (
            ("a.v1.A.Alias",),
            rf"^a\.v1\.A\.Alias: is an alias of a\.v1\.A\.Other already, "
            f"so it cannot be one of {NEW}: ",
        ),
    ],
)
def test_alias_that_is_not_free_is_refused(
    make_service: MakeService, aliases: Any, text: str
) -> None:
    """If an alias is already taken, the declaration fails and the method is not registered."""
    service = make_service()
    other = {"request": Request, "response": Response, "metadata": Metadata}
    service.declare("a.v1.A.Other", **other, options=lro.Options(aliases=("a.v1.A.Alias",)))
    with pytest.raises(lro.DeclarationError, match=text):
        service.method(NEW, aliases=aliases, **other)(lambda request: Response())
    assert [*service.edges.specs] == ["a.v1.A.Other"]
    version_2(service)


def test_method_whose_name_is_an_alias_is_refused(make_service: MakeService) -> None:
    service = make_service()
    version_2(service)
    text = rf"^{OLD}: is an alias of {NEW}: take it out of the aliases there, or declare one of"
    with pytest.raises(lro.DeclarationError, match=text):
        version_1(service)
