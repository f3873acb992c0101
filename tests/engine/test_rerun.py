"""Rerunning operations with their stored request, in process and over HTTP (spec §3.12)."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from datetime import timedelta
from typing import Any

import attrs
import pytest

import lro
from lro import Code, InvalidArgument, StatusError
from lro.adapters import Store
from lro.errors import (
    MethodNotSupported,
    NotRerunnable,
    OperationNotFound,
    PermissionDenied,
    RequestIdConflict,
    ResourceExhausted,
    TargetBusy,
    Unavailable,
)
from lro.executors.inline import InlineExecutor
from lro.http import VERBS, HttpReply, OperationsEdge
from lro.openapi import describe
from lro.testing import ManualClock
from tests.engine.engine_parts import EACH_STORE, NAME, Held, declared, method_of, once
from tests.http.counting_service import ask
from tests.service_fixtures import MakeService
from tests.service_steps import reason
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

KEY, OTHER_KEY = str(uuid.UUID(int=7)), "order-17"
RERUN = (*VERBS, "RerunOperation")


class Failing:
    """A function that fails while ``fails`` is set."""

    def __init__(self) -> None:
        self.fails = True
        self.seen: list[str] = []

    def __call__(self, request: WorkRequest, job: lro.Job[WorkMetadata]) -> None:
        self.seen.append(request.text)
        if self.fails:
            raise StatusError(Code.UNAVAILABLE, "the mail server is away")


@pytest.fixture
def work() -> Failing:
    """A function that fails."""
    return Failing()


@lro.message("acme.v1.WorkRequest")
@attrs.frozen
class Changed:
    """The request of another release, in which the text is a number."""

    text: lro.Int32 = 0


def never_read(request: Changed) -> WorkResponse:
    """Fail the test: this release cannot read the stored requests."""
    raise AssertionError(request)


def text_of(service: lro.Service, operation: lro.Operation) -> str:
    """Return the text in an operation's response."""
    assert operation.response is not None
    return service.types.unpack(operation.response, WorkResponse).text


@EACH_STORE
def test_failed_operation_starts_again_with_its_request(
    store: Store, make_service: MakeService, work: Failing
) -> None:
    """A rerun's operation has the same parent and caller. The failed operation does not change."""
    service = make_service(store, InlineExecutor(), owner_only=True)
    method = method_of(service, work)
    failed = method.start(WorkRequest("a"), parent="projects/p", caller="ann").operation
    assert failed.error is not None
    work.fails = False
    again = service.rerun(failed.name)
    assert again.name != failed.name
    assert again.name.startswith("projects/p/operations/")
    assert text_of(service, again) == "a"
    assert work.seen == ["a", "a"]
    assert service.get(failed.name, caller="ann") == failed
    assert service.get(again.name, caller="ann") == again
    assert service.get(again.name, view="FULL", caller="ann").description.origin == failed.name


@EACH_STORE
def test_cancelled_operation_starts_again(store: Store, make_service: MakeService) -> None:
    service = make_service(store, InlineExecutor())
    method = declared(service)
    name = method.start(WorkRequest("a")).name
    service.cancel(name)
    assert service.reporter(name).acknowledge_cancel()
    again = service.rerun(name)
    assert not again.done
    assert again.name != name
    assert store.request(again.name).payload == {"text": "a"}


def test_operation_starts_again_on_an_event_loop(make_service: MakeService, work: Failing) -> None:
    service = make_service(executor=InlineExecutor())
    name = method_of(service, work).start(WorkRequest("a")).name
    work.fails = False
    assert text_of(service, asyncio.run(service.rerun_async(name))) == "a"


def test_work_that_cannot_be_started_again_is_refused_with_the_reason(
    make_service: MakeService, work: Failing
) -> None:
    """A rerun is refused if work runs or has succeeded, or its method or request has changed."""
    service = make_service(executor=InlineExecutor())
    running = declared(service, "acme.v1.Works.Run").start(WorkRequest()).name
    method = method_of(service, work)
    failed = method.start(WorkRequest("a")).name
    work.fails = False
    succeeded = method.start(WorkRequest("b")).name
    later = make_service(service.store, InlineExecutor())
    for where, name, why in (
        (service, running, "it is in progress"),
        (service, succeeded, "its request is gone; that of a success is not kept"),
        (later, failed, f"the service does not declare its method, {NAME}"),
    ):
        with pytest.raises(NotRerunnable, match=why) as caught:
            where.rerun(name)
        assert (caught.value.code, caught.value.name) == (Code.FAILED_PRECONDITION, name)
    later.declare(NAME, request=lro.Duration, response=WorkResponse)
    with pytest.raises(NotRerunnable, match="its stored request cannot be read"):
        later.rerun(failed)
    with pytest.raises(OperationNotFound):
        service.rerun("operations/none")


@EACH_STORE
def test_at_most_once_work_that_had_begun_is_not_rerun(
    store: Store, make_service: MakeService, work: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a rerun, nor one with a request id, nor a rerun of all calls the function again."""
    service = make_service(store, InlineExecutor())
    failed = method_of(service, work, at_most_once=True).start(WorkRequest("a")).name
    why = "at_most_once, and its work had begun: .* check, then start a new operation"
    for request_id in ("", KEY):
        with pytest.raises(NotRerunnable, match=why) as caught:
            service.rerun(failed, request_id=request_id)
        assert caught.value.code == Code.FAILED_PRECONDITION
    with caplog.at_level(logging.WARNING, "lro"):
        assert service.rerun_all("state() = FAILED") == 0
    assert "0 operations are rerun, 1 are left out" in caplog.text
    assert work.seen == ["a"]
    assert service.get(failed, view="FULL").description.rerun == ""


@pytest.mark.parametrize("how", ["cancelled", "expired", "claimed too late", "unreadable"])
def test_at_most_once_work_that_never_began_is_rerun(
    make_service: MakeService, work: Failing, clock: ManualClock, how: str
) -> None:
    """Work that was cancelled or expired while it waited, or could not be read, starts again."""
    executor = Held(busy=True)
    service, minute = make_service(executor=executor), timedelta(minutes=1)
    method = method_of(service, work, at_most_once=True)
    expires = None if how in ("cancelled", "unreadable") else minute
    name = method.start(WorkRequest("a"), expires=expires).name
    store = service.store
    if how == "cancelled":
        service.cancel(name)
    elif how == "expired":
        clock.advance(60)
        service.run_maintenance()
    else:
        later = make_service(store, InlineExecutor())
        if how == "unreadable":
            later.method(NAME, at_most_once=True)(never_read)
        else:
            clock.advance(60)
            method_of(later, work, at_most_once=True)
        later.edges.work.run_operation(name)
    ended = service.get(name)
    assert ended.error is not None
    assert store.get(name).attempt == (how in ("claimed too late", "unreadable"))
    assert work.seen == []
    assert service.rerun(name).name != name


def test_at_most_once_work_of_a_later_attempt_is_not_rerun(
    make_service: MakeService, work: Failing, clock: ManualClock
) -> None:
    """If an earlier release may have called the function, the last attempt does not decide."""
    service = make_service(executor=InlineExecutor())
    one = timedelta(seconds=1)
    method = method_of(service, work, retry=lro.Retry(attempts=2, jitter=0, first_pause=one))
    name = method.start(WorkRequest("a")).name
    later = make_service(service.store, InlineExecutor())
    later.method(NAME, at_most_once=True)(never_read)
    clock.advance(1)
    later.edges.work.run_operation(name)
    assert reason(later.get(name)) == (Code.INTERNAL, "REQUEST_UNREADABLE")
    last = make_service(service.store, InlineExecutor())
    method_of(last, work, at_most_once=True)
    with pytest.raises(NotRerunnable, match="its work had begun"):
        last.rerun(name)
    assert work.seen == ["a"]


@EACH_STORE
def test_second_rerun_returns_the_first_one(
    store: Store, make_service: MakeService, work: Failing, clock: ManualClock
) -> None:
    """An operation is rerun once, also after the day of a request id, and names its rerun."""
    service = make_service(store, InlineExecutor())
    method = method_of(service, work)
    failed = method.start(WorkRequest("a"), caller="ann").operation
    again = service.rerun(failed.name)
    assert service.rerun(failed.name) == again
    assert service.rerun_all("state() = FAILED", dry_run=True) == 1  # only the rerun
    shown = service.get(failed.name, view="FULL").description
    assert (shown.rerun, shown.origin) == (again.name, "")
    assert shown.update_time == shown.end_time
    clock.advance(86_400)
    assert service.rerun(failed.name) == again
    assert work.seen == ["a", "a"]
    last = service.rerun(again.name)  # the rerun is an operation of its own
    assert service.get(again.name, view="FULL").description.rerun == last.name
    service.delete(again.name)
    assert service.rerun(failed.name).name not in (again.name, last.name)


@EACH_STORE
def test_single_rerun_is_left_out_by_a_rerun_of_all(
    store: Store, make_service: MakeService, work: Failing
) -> None:
    service = make_service(store, InlineExecutor())
    method = method_of(service, work)
    names = [method.start(WorkRequest(text)).name for text in ("a", "b")]
    work.fails = False
    service.rerun(names[0])
    assert service.rerun_all("state() = FAILED") == 1
    assert work.seen == ["a", "b", "a", "b"]
    assert service.rerun_all("state() = FAILED") == 0


@EACH_STORE
@pytest.mark.parametrize("everything", [False, True])
def test_rerun_whose_second_write_was_lost_is_found_again(
    store: Store, make_service: MakeService, work: Failing, everything: bool
) -> None:
    """A process dies after it has started the rerun, and before the old operation names it."""
    service = make_service(store, InlineExecutor())
    failed = method_of(service, work).start(WorkRequest("a")).name
    work.fails = False
    updates = []

    def lost(name: str, change: Any) -> Any:
        if name == failed and not updates:
            updates.append(name)
            raise Unavailable("away")
        return update(name, change)

    edited: Any = store
    update, edited.update = store.update, lost
    with pytest.raises(Unavailable):
        service.rerun(failed)
    assert work.seen == ["a", "a"]
    assert service.get(failed, view="FULL").description.rerun == ""
    if everything:
        assert service.rerun_all("state() = FAILED") == 1
    else:
        service.rerun(failed)
    assert work.seen == ["a", "a"]
    again = service.get(failed, view="FULL").description.rerun
    assert service.get(again, view="FULL").description.origin == failed


def test_operation_deleted_during_its_rerun_does_not_stop_the_rerun(
    make_service: MakeService, work: Failing
) -> None:
    service = make_service(executor=InlineExecutor())
    failed = method_of(service, work).start(WorkRequest("a")).name
    work.fails = False
    once(service.store, "insert", lambda *_: service.delete(failed), after=True)
    assert text_of(service, service.rerun(failed)) == "a"
    with pytest.raises(OperationNotFound):
        service.get(failed)


@EACH_STORE
def test_repeated_rerun_with_a_request_id_starts_once(
    store: Store, make_service: MakeService, work: Failing
) -> None:
    """Each request id starts one more rerun. An id of another start or rerun is a conflict."""
    service = make_service(store, InlineExecutor())
    method = method_of(service, work)
    first = method.start(WorkRequest("a"), request_id=OTHER_KEY).name
    second = method.start(WorkRequest("a")).name
    plain = service.rerun(first)
    again = service.rerun(first, request_id=KEY)
    assert service.rerun(first, request_id=KEY) == again != plain
    assert service.get(first, view="FULL").description.rerun == again.name
    assert len(work.seen) == 4
    for name, key in ((second, KEY), (first, OTHER_KEY)):
        with pytest.raises(RequestIdConflict):
            service.rerun(name, request_id=key)


def test_operation_of_a_renamed_method_starts_by_the_present_name(
    make_service: MakeService, work: Failing
) -> None:
    before = make_service(executor=InlineExecutor())
    failed = method_of(before, work).start(WorkRequest("a")).name
    service = make_service(before.store, InlineExecutor())
    service.declare(
        "acme.v1.Works.Renamed",
        request=WorkRequest,
        response=WorkResponse,
        options=lro.Options(aliases=(NAME,)),
    )
    again = service.rerun(failed).name
    assert service.get(again, view="FULL").description.method == "acme.v1.Works.Renamed"


def test_rerun_is_checked_as_any_start(
    make_service: MakeService, work: Failing, clock: ManualClock
) -> None:
    """A rerun fails if the target is busy, the request is now refused or the queue is full."""
    service = make_service(executor=InlineExecutor())
    refused: list[str] = []

    def validate(request: WorkRequest) -> bool:
        return request.text not in refused

    options: dict[str, Any] = {
        "validate": validate,
        "exclusive_target": lambda request: f"things/{request.text}",
    }
    method = method_of(service, work, **options)
    failed, other = [method.start(WorkRequest(text)).name for text in ("a", "b")]
    busy = declared(service, "acme.v1.Works.Run").start(WorkRequest(), target="things/a").name
    with pytest.raises(TargetBusy):
        service.rerun(failed)
    assert service.reporter(busy).complete(WorkResponse())
    refused.append("a")
    with pytest.raises(InvalidArgument, match="refused by the method"):
        service.rerun(failed)
    full = make_service(service.store, Held(busy=True), limits=lro.Limits(backlog=1))
    method_of(full, work)
    full.rerun(failed)
    clock.advance(2)
    with pytest.raises(ResourceExhausted, match="the queue is full"):
        full.rerun(other)


def test_rerun_has_the_target_that_its_first_start_named(make_service: MakeService) -> None:
    service = make_service(executor=InlineExecutor())
    method = declared(service)
    name = method.start(WorkRequest("a"), target="things/a").name
    assert service.reporter(name).fail(lro.Status(Code.INTERNAL, "why"))
    service.rerun(name)
    with pytest.raises(TargetBusy):
        service.rerun(name, request_id=KEY)


def test_callers_need_the_verb_and_permission(make_service: MakeService, work: Failing) -> None:
    """RerunOperation is off by default. The hook authorizes both the rerun and the start."""
    plain = make_service(executor=InlineExecutor())
    failed = method_of(plain, work).start(WorkRequest("a"), caller="ann").name
    with pytest.raises(MethodNotSupported):
        plain.rerun(failed, caller="bob")
    asked: list[tuple[str, str, str]] = []

    def authorize(caller: str, verb: str, name: str) -> None:
        asked.append((caller, verb, name))
        if caller == "eve":
            raise PermissionDenied("go away")

    options = {"verbs": RERUN, "authorize": authorize}
    service = make_service(plain.store, InlineExecutor(), **options)
    method_of(service, work)
    service.rerun(failed, caller="bob")
    assert asked == [("bob", "RerunOperation", failed), ("ann", NAME, "")]
    with pytest.raises(PermissionDenied):
        service.rerun(failed, caller="eve")
    service.rerun(failed)  # a repeated one is checked alike
    assert asked[3:] == [("ann", NAME, "")]
    service.rerun(failed, request_id=KEY)
    assert asked[4:] == [("ann", NAME, "")]
    owned = make_service(plain.store, InlineExecutor(), verbs=RERUN, owner_only=True)
    method_of(owned, work)
    with pytest.raises(OperationNotFound):
        owned.rerun(failed, caller="bob")
    assert owned.rerun(failed, caller="ann").done


# -- over HTTP ------------------------------------------------------------------------------------


def post(service: lro.Service, name: str, body: object, **headers: str) -> HttpReply:
    """Return the reply to a rerun over HTTP. The operation may have a parent."""
    edge = OperationsEdge(service, parents=["projects/*"])
    return edge.handle(ask("POST", f"/v1/{name}:rerun", body, **headers))


@pytest.mark.parametrize("parent", ["", "projects/p"])
def test_rerun_over_http_gives_the_new_operation(make_service: MakeService, parent: str) -> None:
    """A rerun over HTTP gets a start's reply. A repeated request id returns the same operation."""
    service = make_service(executor=InlineExecutor(), verbs=RERUN)
    name = declared(service).start(WorkRequest("a"), parent=parent).name
    assert service.reporter(name).fail(lro.Status(Code.INTERNAL, "why"))
    reply = post(service, name, {"requestId": KEY}, prefer="respond-async, wait=0")
    again = json.loads(reply.body)["name"]
    assert (reply.status, dict(reply.headers)["location"]) == (202, f"/v1/{again}")
    assert again != name
    assert again.rpartition("/")[0] == name.rpartition("/")[0]
    assert json.loads(post(service, name, {"requestId": KEY}).body)["name"] == again
    assert json.loads(post(service, name, {}).body)["name"] == again
    other = json.loads(post(service, name, {"requestId": OTHER_KEY}).body)["name"]
    assert other not in (name, again)


def test_rerun_over_http_is_refused_as_it_says(make_service: MakeService) -> None:
    service = make_service(executor=InlineExecutor(), verbs=RERUN)
    name = declared(service).start(WorkRequest("a")).name
    for body, status, text in (
        ({}, 400, "it is in progress"),
        ({"requestId": 1}, 400, "request_id"),
        ({"validateOnly": True}, 400, "validate_only"),
        ({"name": "operations/other"}, 400, "must be that of the path"),
    ):
        reply = post(service, name, body)
        assert reply.status == status
        assert text in reply.body.decode().replace("validateOnly", "validate_only")
    plain = make_service(service.store, InlineExecutor())
    assert post(plain, name, {}).status == 501
    assert "/v1/operations/{operation}:rerun" not in describe(OperationsEdge(plain))["paths"]  # type: ignore[operator]
    document: Any = describe(OperationsEdge(service))
    assert "post" in document["paths"]["/v1/operations/{operation}:rerun"]
