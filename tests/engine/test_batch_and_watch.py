"""BatchGet, Watch and the FULL view of a service, on every store (spec §3.11)."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import timedelta
from typing import Any

import attrs
import pytest

from lro import InvalidArgument, Limits, OperationDescription, Service
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
    Unavailable,
)
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.wire import (
    BatchGetOperationsResponse,
    ListOperationsRequest,
    ListOperationsResponse,
    MissingOperation,
)
from tests.engine.engine_parts import EACH_STORE, NAME, declared, method_of
from tests.virtual_loop import on_a_loop
from tests.waiting import PATIENCE, until_async
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

SHARED = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)


class Harness:
    """A service whose method has no function: tests report progress and end the operations."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.method = declared(service)

    def start(self, parent: str = "", caller: str = "") -> str:
        return self.method.start(WorkRequest(), parent=parent, caller=caller).name

    def report(self, name: str, percent: int) -> None:
        self.service.reporter(name).report(WorkMetadata(percent=percent))

    def finish(self, name: str) -> None:
        assert self.service.reporter(name).complete(WorkResponse("done"))


@pytest.fixture
def harness(store, make_service):
    """A harness on each store."""
    return Harness(make_service(store, InlineExecutor()))


# -- names ----------------------------------------------------------------------------------------


MANY = {
    "batch_get": lambda service, *names, **options: service.batch_get(*names, **options),
    "watch": lambda service, *names, **options: asyncio.run(service.watch(*names, **options)),
}
EACH = pytest.mark.parametrize("call", MANY.values(), ids=MANY)


@EACH
@pytest.mark.parametrize(
    ("names", "error", "field", "words"),
    [
        ([], MalformedRequest, "names", "got 0"),
        (["operations/a"] * 1001, MalformedRequest, "names", "got 1001"),
        (["operations/a", "operations/"], InvalidOperationName, "names[1]", "empty"),
        (["operations/secret"] * 3 + [""], InvalidOperationName, "names[3]", "names no operation"),
        (["operations"], InvalidOperationName, "names[0]", "no collection"),
    ],
)
def test_invalid_names_are_refused(make_service, call, names, error, field, words):
    """Invalid names are refused before any hook is called; the error names the first such name."""
    service = make_service(authorize=Guard(AssertionError()))
    with pytest.raises(error, match=words) as caught:
        call(service, names)
    assert type(caught.value) is error
    assert caught.value.field == field


class Guard:
    """An ``authorize`` hook that records its calls and refuses names that end in "secret"."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked: list[tuple[str, str, str]] = []

    def __call__(self, caller: str, verb: str, name: str) -> None:
        self.asked.append((caller, verb, name))
        if name.endswith("secret"):
            raise self.error


@EACH
def test_hook_is_called_for_each_name(make_service, call):
    guard = Guard(PermissionDenied("not you"))
    names = [f"operations/{one}" for one in ("a", "secret", "b")]
    with pytest.raises(NameRefused, match="operations/secret: not you") as caught:
        call(make_service(authorize=guard), names, caller="ann")
    assert guard.asked == [("ann", "GetOperation", name) for name in names[:2]]
    info, resource = caught.value.details("acme.test")
    assert (info.reason, info.metadata) == ("PERMISSION_DENIED", {"name": "operations/secret"})
    assert resource.resource_name == "operations/secret"
    again = NameRefused(*caught.value.args)
    assert (str(again), again.name) == (str(caught.value), "operations/secret")


class Embargoed(PermissionDenied):
    """A subclass of PermissionDenied that an application defines."""

    reason = "EMBARGOED"


@EACH
@pytest.mark.parametrize(
    "error", [Embargoed("secret"), Unavailable("no directory"), ZeroDivisionError()]
)
def test_other_errors_of_a_hook_are_raised_unchanged(make_service, call, error):
    with pytest.raises(type(error)) as caught:
        call(make_service(authorize=Guard(error)), ["operations/secret"])
    assert caught.value is error


@EACH_STORE
def test_other_peoples_operations_are_missing(store, make_service):
    """With ``owner_only``, others' operations are missing and do not count towards a byte limit."""
    limits = Limits(page_bytes=2000)
    service = make_service(store, InlineExecutor(), owner_only=True, limits=limits)
    harness = Harness(service)
    hers, *his = (harness.start(caller=caller) for caller in ("ann", *["bob"] * 5))
    for name in his:
        service.reporter(name).complete(WorkResponse("x" * 1500))
    found = service.batch_get([hers, *his], caller="ann")
    assert ([one.name for one in found.operations], found.missing) == ([hers], tuple(his))
    full = service.batch_get([*his, hers], view="FULL", caller="ann")
    assert ([one.name for one in full.operations], full.missing) == ([hers], tuple(his))
    (seen, missing) = asyncio.run(two_of(service, [hers, his[0]], caller="ann"))
    assert (seen.name, missing) == (hers, MissingOperation(his[0]))
    assert service.get(hers, view="FULL", caller="ann").name == hers
    with pytest.raises(OperationNotFound) as refused:
        service.get(his[0], view="FULL", caller="ann")
    with pytest.raises(OperationNotFound) as absent:
        service.get("operations/none", view="FULL", caller="ann")
    assert str(refused.value).replace(his[0], "operations/none") == str(absent.value)


# -- BatchGet ---------------------------------------------------------------------------------


@EACH_STORE
def test_batch_get_returns_operations_in_order(harness, clock):
    """BatchGet returns each operation once. Deleted, expired and unknown operations are missing."""
    running, done, deleted, expired = (harness.start("projects/p") for _ in range(4))
    harness.finish(expired)
    clock.advance(days=29)
    harness.finish(done)
    clock.advance(days=1)
    harness.service.delete(deleted)
    asked = [done, "operations/none", expired, running, deleted, done, "operations/none"]
    found = harness.service.batch_get(asked)
    wanted = (harness.service.get(done), harness.service.get(running))
    missing = ("operations/none", expired, deleted)
    assert found == BatchGetOperationsResponse(wanted, missing)
    full = harness.service.batch_get(asked, view="FULL")
    assert full.missing == missing
    for one, name in zip(full.operations, (done, running), strict=True):
        assert one == harness.service.get(name, view="FULL")
        basic = attrs.evolve(one, description=OperationDescription())
        assert basic == harness.service.get(name) != one
    for name in missing:
        with pytest.raises(OperationNotFound):
            harness.service.get(name, view="FULL")


def test_the_extensions_can_be_switched_off(make_service):
    """BatchGet and Watch are on by default. The ``verbs`` option can leave out either of them."""
    assert VERBS[5:] == ("BatchGetOperations", "WatchOperations")
    service = make_service(verbs=["ListOperations", "WatchOperations"])
    with pytest.raises(MethodNotSupported, match="BatchGetOperations"):
        service.batch_get([])
    asyncio.run(service.watch(["operations/a"]))
    service = make_service(verbs=set(VERBS) - {"WatchOperations"})
    service.edges.access.require("ListOperations")
    with pytest.raises(MethodNotSupported, match="WatchOperations"):
        asyncio.run(service.watch([]))
    assert service.batch_get(["operations/a"]).missing == ("operations/a",)


# -- Watch ------------------------------------------------------------------------------------


async def two_of(service: Service, names: list[str], **options: Any) -> list[Any]:
    """Return the first two results of a watch."""
    stream = aiter(await service.watch(names, **options))
    found = [await anext(stream) for _ in range(2)]
    await stream.aclose()
    return found


@EACH_STORE
def test_watch_reports_snapshots_progress_and_ends(harness):
    """A watch yields each name's snapshot, then each change, until all operations have ended."""
    first, second = harness.start(), harness.start()
    acts = [
        lambda: harness.report(first, 50),
        lambda: harness.finish(first),
        lambda: harness.service.delete(second),
    ]

    async def main() -> list[Any]:
        seen = []
        watching = await harness.service.watch([first, "operations/none", second])
        async for sighting in watching:
            seen.append(sighting)
            if len(seen) >= 3 and acts:
                assert harness.service.edges.waiters.watching == 1
                await asyncio.to_thread(acts.pop(0))
        return seen

    seen = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    names = [one.name for one in seen]
    assert sorted(names[:3]) == sorted([first, "operations/none", second])
    assert names[3:] == [first, first, second]
    assert [one.done for one in seen[3:5]] == [False, True]
    assert seen[5] == MissingOperation(second)
    assert harness.service.edges.waiters.watching == 0


@SHARED
def test_unavailable_store_fails_the_watch_at_once(harness):
    """If the store is unavailable, ``watch`` itself raises instead of returning a stream."""
    name = harness.start()
    harness.service.store.close()
    with pytest.raises(Unavailable):
        asyncio.run(harness.service.watch([name]))


@EACH_STORE
@on_a_loop
async def test_closing_the_service_ends_watches(harness):
    name = harness.start()

    stream = aiter(await harness.service.watch([name]))
    await anext(stream)
    following = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(harness.service.close, timedelta(0))
    with pytest.raises(Unavailable, match="stopping"):
        await asyncio.wait_for(following, PATIENCE)
    assert harness.service.edges.waiters.watching == 0


@SHARED
def test_changes_of_another_process_reach_waiters_and_watchers(store, tmp_path, clock):
    """Another process's reports, ends and deletions reach the waits and watches of this process."""
    if isinstance(store, SQLiteStore):
        other: Store = SQLiteStore(tmp_path / "operations.db", clock=clock)
    else:
        address = store._address
        other = type(store)(address.url, schema=address.schema, clock=clock)
    with (
        closing(Service(store, InlineExecutor(), maintenance=False)) as here,
        closing(Service(other, InlineExecutor(), maintenance=False)) as there,
    ):
        harness, far = Harness(here), Harness(there)
        name, other = far.start(), far.start()

        async def main() -> tuple[list[Any], list[Any]]:
            waits = [
                wait
                for each in (name, other)
                for wait in (
                    asyncio.create_task(here.wait_async(each, PATIENCE)),
                    asyncio.create_task(asyncio.to_thread(here.wait, each, PATIENCE)),
                )
            ]
            await until_async(lambda: here.edges.waiters.waits == 4)
            acts = [lambda: far.report(name, 7), lambda: far.finish(name)]
            acts.append(lambda: there.delete(other))
            seen = []
            async for sighting in await harness.service.watch([name, other]):
                seen.append(sighting)
                if len(seen) > 1 and acts:
                    await asyncio.to_thread(acts.pop(0))
            return seen, await asyncio.gather(*waits, return_exceptions=True)

        seen, waited = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert [one.name for one in seen[2:]] == [name, name, other]
    assert [one.done for one in seen[2:4]] == [False, True]
    assert [one.done for one in waited[:2]] == [True, True]
    assert [type(one) for one in waited[2:]] == [OperationNotFound] * 2


# -- descriptions ---------------------------------------------------------------------------------


@EACH_STORE
def test_description_follows_life_of_operation(store, make_service, clock):
    """Each event of an operation changes its description. Times are those of the store's clock."""
    service = make_service(store, InlineExecutor())
    began = clock()
    started = declared(service).start(WorkRequest("secret"), request_id="", caller="ann")
    found = service.get(started.name, view="FULL")
    waiting = found.description
    assert attrs.evolve(found, description=OperationDescription()) == started.operation
    assert waiting == OperationDescription(
        state="IN_PROGRESS",
        method=NAME,
        create_time=began,
        update_time=began,
        start_time=waiting.start_time,
    )
    clock.advance(seconds=5)
    service.cancel(started.name)
    asked = service.get(started.name, view="FULL").description
    assert (asked.cancel_requested, asked.update_time) == (True, began + timedelta(seconds=5))
    clock.advance(seconds=5)
    service.reporter(started.name).complete(WorkResponse("done"))
    over = service.get(started.name, view="FULL").description
    assert over.attempt == 0
    ended = began + timedelta(seconds=10)
    assert (over.state, over.end_time, over.update_time) == ("SUCCEEDED", ended, ended)
    assert over.expire_time == ended + timedelta(days=30)
    assert over.create_time == began


def test_description_survives_restart(tmp_path, make_service, clock):
    """A new process that does not know the method still shows the operation's description."""
    path = tmp_path / "operations.db"
    service = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    name = method_of(service).start(WorkRequest("x")).name
    before = service.get(name, view="FULL").description
    assert (before.method, before.attempt, before.start_time) == (NAME, 1, clock())
    service.close()
    clock.advance(seconds=5)
    after = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    assert after.get(name, view="FULL").description == before


@EACH_STORE
def test_event_loop_gets_the_same(store, make_service):
    """The async forms of Get, BatchGet and List return the same as the blocking forms."""
    service = make_service(store, InlineExecutor())
    name = declared(service).start(WorkRequest()).name

    async def each() -> tuple[object, ...]:
        return (
            await service.get_async(name, view="FULL"),
            await service.batch_get_async([name], view="FULL"),
            await service.list_async(ListOperationsRequest(), view="FULL"),
        )

    full = service.get(name, view="FULL")
    assert full.description.method == NAME
    batch = BatchGetOperationsResponse((full,))
    assert asyncio.run(each()) == (full, batch, ListOperationsResponse((full,)))


SHOWN = "state method create_time update_time start_time end_time expire_time"
SHOWN += " cancel_requested cancel_time attempt lost_attempts trace_id"
SHOWN += " failed_attempts due_time begin_before priority origin rerun"
FOR_OPERATORS = "failures worker_host worker_pid"


def test_nothing_else_of_record_is_shown(make_service):
    """A FULL view hides the caller, the lease owner, the index keys, the target and the request."""
    service = make_service()
    name = method_of(service).start(WorkRequest("secret"), caller="ann").name
    found = service.get(name, view="FULL", caller="ann").description
    assert set(attrs.asdict(found)) == {*SHOWN.split(), *FOR_OPERATORS.split()}


def test_large_operations_are_refused_together(make_service):
    """Messages and descriptions count towards the byte limit, but one operation always fits."""
    service = make_service(MemoryStore(), limits=Limits(page_bytes=2700))
    method = declared(service)
    names = [method.start(WorkRequest()).name for _ in range(5)]
    assert len(service.batch_get(names).operations) == 5
    assert len(service.batch_get(names[:3], view="FULL").operations) == 3
    for _ in range(2):
        with pytest.raises(BatchTooLarge, match="ask for fewer names at once"):
            service.batch_get(names, view="FULL")
        for name in names:
            service.reporter(name).complete(WorkResponse("x" * 2000))
    assert service.batch_get(names[:1], view="FULL").missing == ()


def test_page_of_full_view_is_bounded(make_service):
    """With the FULL view, the bytes of descriptions count towards the size of a page."""
    service = make_service(MemoryStore(), limits=Limits(page_bytes=2700))
    method = declared(service)
    names = [method.start(WorkRequest()).name for _ in range(5)]
    page = service.list(ListOperationsRequest(), view="FULL")
    assert [one.name for one in page.operations] == names[:1:-1]
    assert page.next_page_token
    assert len(service.list(ListOperationsRequest()).operations) == 5


@pytest.mark.parametrize("view", ["full", "", None, 2])
def test_view_that_does_not_exist_is_refused(make_service, view):
    """An invalid view is refused before any hook is called."""
    service = make_service(authorize=Guard(AssertionError()))
    for call in (
        lambda: service.get("operations/a", view=view),
        lambda: service.batch_get(["operations/a"], view=view),
        lambda: service.list(ListOperationsRequest(), view=view),
    ):
        with pytest.raises(InvalidArgument, match="must be BASIC or FULL") as caught:
            call()
        assert caught.value.field == "view"
