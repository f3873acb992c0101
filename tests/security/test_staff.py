"""``staff``: with ``owner_only``, some callers see all operations (spec §3.1(5))."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lro
from lro import Code, http
from lro.adapters import Store
from lro.errors import HookFailed, OperationNotFound
from lro.executors.inline import InlineExecutor
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import EACH_STORE, NAME, declared, method_of, raising
from tests.http.counting_service import build
from tests.security.guarded import (
    ASYNC,
    FIVE,
    PLACES,
    START,
    STORES,
    VERBS,
    Place,
    Saying,
    asgi_app,
    guarded,
    wsgi_app,
)
from tests.security.test_owner_only import SEEN
from tests.service_fixtures import MakeService
from tests.work_messages import WorkRequest, WorkResponse

MISSING = "operations/missing"
ONE_EACH = [(edge, kind) for edge, kind in PLACES if kind in ("function", "coroutine function")]


@pytest.fixture(params=ONE_EACH)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A service with staff behind each edge, over SQLite, with each kind of hook."""
    edge, kind = request.param
    with guarded(edge, kind, "sqlite", tmp_path, staff=True) as made:
        yield made


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("edge", VERBS)
def test_staff_use_each_verb_on_operations_of_others(edge: str, store: str, tmp_path: Path) -> None:
    """Staff see and change an operation of another caller; others cannot tell that it exists."""
    with guarded(edge, "function", store, tmp_path, staff=True) as place:
        name = place.start("ann")
        place.counting.finish(name)
        for verb in sorted(place.verbs, key=lambda verb: verb == "DeleteOperation"):
            gone = "operations/" + "x" * len(name.removeprefix("operations/"))
            hidden, missing = place.call(verb, name, "bob"), place.call(verb, gone, "bob")
            assert hidden.code is (Code.OK if verb in SEEN else Code.NOT_FOUND), verb
            if verb != START:  # its reply has the name of the new operation
                assert hidden.text.replace(name, gone) == missing.text, verb
            shown = place.call(verb, name, "sam")
            assert shown.code is Code.OK, verb
            if verb not in ("DeleteOperation", "CancelOperation", START):
                assert name in shown.text, verb


def test_authorize_still_decides_what_staff_do(place: Place) -> None:
    """``authorize`` may refuse a verb to staff."""
    name = place.start("ann")
    place.script.authorize = lambda caller, verb, name: verb != "CancelOperation"
    assert place.call("CancelOperation", name, "sam").code is Code.PERMISSION_DENIED
    assert place.call("GetOperation", name, "sam").code is Code.OK


@pytest.mark.parametrize("error", [KeyError("s3cret"), Saying()], ids=["any error", "own error"])
def test_caller_is_not_staff_if_hook_raises(
    place: Place, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """If ``staff`` raises, the caller sees only own operations, and the log has the error."""
    theirs, own = place.start("ann"), place.start("sam")
    place.script.staff = raising(error)
    assert place.call("GetOperation", own, "sam").code is Code.OK
    for name in (theirs, MISSING):
        answer = place.call("GetOperation", name, "sam")
        assert (answer.code, "s3cret" in answer.text) == (Code.NOT_FOUND, False)
    listed = place.call("ListOperations", "", "sam")
    assert (own in listed.text, theirs in listed.text) == (True, False)
    found = [one for one in caplog.records if "staff has failed for sam" in one.message]
    assert len(found) == 3
    assert all(one.levelname == "ERROR" and one.exc_info for one in found)


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_answer_of_staff_that_is_not_bool_is_refused(
    place: Place, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Every call that asks ``staff`` then fails with INTERNAL, and the log says why."""
    theirs, own = place.start("ann"), place.start("sam")
    place.script.staff = lambda caller: answer
    assert place.call("GetOperation", own, "sam").code is Code.OK
    for verb in (one for one in FIVE if one in place.verbs):
        for name in (theirs, MISSING):
            assert place.call(verb, name, "sam").code is Code.INTERNAL, verb
    assert f"staff must return True or False, got {answer!r}" in caplog.text
    assert place.counting.service.store.get(theirs).cancel_time is None


def test_staff_is_asked_alike_about_hidden_and_missing_operations(place: Place) -> None:
    """The time of a reply does not tell whether an operation of another caller exists."""
    theirs, own, asked = place.start("ann"), place.start("bob"), []

    def staff(caller: str) -> bool:
        asked.append(caller)
        return False

    place.script.staff = staff
    for name, wanted in ((own, []), (theirs, ["bob"]), (MISSING, ["bob"])):
        asked.clear()
        place.call("GetOperation", name, "bob")
        assert asked == wanted


def test_caller_without_name_is_never_staff(place: Place) -> None:
    """``staff`` is not asked about a caller without a name."""
    name = place.start("ann")
    place.script.authenticate = lambda headers: None
    place.script.staff = lambda caller: True
    assert place.call("GetOperation", name).code is Code.NOT_FOUND
    assert name not in place.call("ListOperations", "").text


def test_coroutine_staff_is_refused_without_event_loop() -> None:
    """An edge or a call in a thread cannot await ``staff``."""
    hook = ASYNC["coroutine function"](lambda caller: True)
    counting = build(owner_only=True, staff=hook)
    allow: Any = {"authenticate": lambda headers: "sam"}
    with ThreadPoolExecutor(1) as pool:
        grpc = pytest.importorskip("grpc")
        for make in (
            functools.partial(wsgi_app, counting),
            functools.partial(_grpc_on, grpc.server(pool), counting.service),
        ):
            with pytest.raises(lro.DeclarationError, match=r"^staff: must be a plain function"):
                make(**allow)
    asgi_app(counting, **allow)
    name = counting.start(caller="ann")
    with pytest.raises(HookFailed, match=r"^staff is a coroutine function"):
        counting.service.get(name, caller="sam")
    assert counting.service.get(name, caller="ann").name == name


def _grpc_on(server: Any, service: lro.Service, **options: Any) -> None:
    pytest.importorskip("google.longrunning.operations_proto_pb2")
    import lro.grpc

    lro.grpc.add_to(server, service, **options)


def sees_all(make_service: MakeService, store: Store, **options: Any) -> lro.Service:
    """Return a service in which Sam is staff."""
    return make_service(
        store, InlineExecutor(), owner_only=True, staff=lambda caller: caller == "sam", **options
    )


@EACH_STORE
def test_lists_of_staff_have_all_and_page_tokens_leak_nothing(
    make_service: MakeService, store: Store, clock: Any
) -> None:
    """A page token of staff shows another caller only own operations, and the reverse works too."""
    service = sees_all(make_service, store)
    declared(service)
    names: dict[str, list[str]] = {"ann": [], "bob": [], "sam": []}
    for number in range(9):
        clock.advance(1)
        caller = ("ann", "bob", "sam")[number % 3]
        names[caller].insert(0, service.start(NAME, WorkRequest(), caller=caller).name)

    def listed(caller: str, token: str = "", size: int = 0) -> tuple[list[str], str]:
        wanted = ListOperationsRequest(page_size=size, page_token=token)
        page = service.list(wanted, caller=caller)
        return [one.name for one in page.operations], page.next_page_token

    everything = [name for triple in zip(*reversed(names.values()), strict=True) for name in triple]
    first, of_staff = listed("sam", size=4)
    assert (first, listed("sam", of_staff)) == (everything[:4], (everything[4:], ""))
    assert listed("bob", of_staff) == (names["bob"][1:], "")
    mine, of_bob = listed("bob", size=1)
    assert mine == names["bob"][:1]
    assert listed("sam", of_bob) == (everything[2:], "")
    filtered = service.list(ListOperationsRequest(filter="NOT done"), caller="bob")
    assert [one.name for one in filtered.operations] == names["bob"]


@EACH_STORE
def test_staff_rerun_for_owner(make_service: MakeService, store: Store) -> None:
    """A rerun by staff belongs to the caller of the first start."""
    service = sees_all(make_service, store, verbs=(*http.VERBS, "RerunOperation"))
    method = method_of(service, raising(lro.StatusError(Code.UNAVAILABLE, "away")))
    first = method.start(WorkRequest("a"), caller="ann").name
    with pytest.raises(OperationNotFound):
        service.rerun(first, caller="bob")
    again = service.rerun(first, caller="sam")
    assert store.get(again.name).caller == "ann"
    full = service.get(again.name, view="FULL", caller="sam")
    assert full.description.method == NAME


@EACH_STORE
def test_staff_watch_and_read_batches(make_service: MakeService, store: Store) -> None:
    """Watch and BatchGet show staff all operations, and others only their own."""
    service = sees_all(make_service, store)
    method = method_of(service)
    names = [method.start(WorkRequest(), caller=caller).name for caller in ("ann", "bob")]

    async def watched(caller: str) -> list[tuple[str, bool]]:
        found = await service.watch(names, caller=caller)
        return [(one.name, isinstance(one, lro.Operation)) async for one in found]

    for caller, seen in (("sam", names), ("bob", names[1:])):
        batch = service.batch_get(names, caller=caller)
        assert [one.name for one in batch.operations] == seen
        assert list(batch.missing) == [name for name in names if name not in seen]
        assert sorted(asyncio.run(watched(caller))) == sorted((n, n in seen) for n in names)


@pytest.mark.parametrize(("edge", "kind"), ONE_EACH)
def test_large_operation_is_shown_to_staff(edge: str, kind: str, tmp_path: Path) -> None:
    """A large operation, which an edge reads twice, is shown to staff and hidden from others."""
    with guarded(edge, kind, "memory", tmp_path, staff=True) as place:
        service = place.counting.service
        large = method_of(service, lambda request, job: WorkResponse("x" * 300_000))
        name = asyncio.run(large.start_async(WorkRequest(), caller="ann")).name
        for verb in ("GetOperation", "WaitOperation"):
            assert "x" * 1000 in place.call(verb, name, "sam").text
            assert place.call(verb, name, "bob").code is Code.NOT_FOUND
