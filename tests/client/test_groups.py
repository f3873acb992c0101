"""Groups of operations and futures, on both faces."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import queue
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import lro
from lro_client import (
    CallError,
    Client,
    GroupTimeout,
    OperationCancelled,
    OperationFailed,
    OperationGone,
    PollTimeout,
)
from lro_client.testing import Fault, ScriptedServer
from tests.client.faces import Face
from tests.client.messages import TYPES, ResizeMetadata, ResizeResponse

FAILED = lro.Status(lro.Code.ABORTED, "no paper")
OFFERS: dict[str, dict[str, bool]] = {
    "watch": {"watch": True, "batch_get": True},
    "batch": {"batch_get": True},
    "list": {},
    "get": {"lists": False, "wait": False},
}


@pytest.fixture(params=OFFERS)
def scripted(request: pytest.FixtureRequest) -> ScriptedServer:
    """A server that offers one of the ways."""
    return ScriptedServer(**OFFERS[request.param])


def client_of(face: Face, server: ScriptedServer, **options: Any) -> Any:
    """A client of this face, on the server's clock."""
    clock = server.clock
    http = face.http(transport=server.transport)
    return face.client(server.url, clock=clock, http=http, **options)


def plan(server: ScriptedServer, count: int, **more: Any) -> list[str]:
    """Operations that end a second after each other, the last one first."""
    names = [f"operations/{number}" for number in range(count)]
    for number, name in enumerate(names):
        script = {"ends_after": float(count - number), "response": ResizeResponse(number), **more}
        server.operation(name, **script)
    return names


def group_of(face: Face, client: Any, names: Sequence[str | lro.Operation]) -> Any:
    """A group of these operations."""
    return client.group([face.inside(client.operation(name, **TYPES)) for name in names])


def test_results_are_in_order(face: Face, scripted: ScriptedServer) -> None:
    """In the order of their ends."""
    names = plan(scripted, 12)
    group = group_of(face, client_of(face, scripted), names)
    assert len(group.handles) == 12
    assert group.results() == [ResizeResponse(number) for number in range(12)]
    assert group.results() == [ResizeResponse(number) for number in range(12)]


def test_as_completed(face: Face, scripted: ScriptedServer) -> None:
    """Each once, the first end first."""
    scripted.operation("operations/slow", ends_after=100.0, response=ResizeResponse(1))
    names = ["operations/slow", *plan(scripted, 8)]
    group = group_of(face, client_of(face, scripted), names)
    found = [handle.name for handle in group.as_completed(timeout=1000)]
    assert sorted(found) == sorted(names)
    assert found[-1] == "operations/slow"


@pytest.mark.parametrize(("count", "least"), [(1, 1), (3, 3), (None, 6), (99, 6), (0, 0)])
def test_waiting_for_some(
    count: int | None, least: int, face: Face, scripted: ScriptedServer
) -> None:
    """Any, so many, or all; the others are pending."""
    names = plan(scripted, 6)
    group = group_of(face, client_of(face, scripted), names)
    waited = group.wait(count)
    assert len(waited.done) >= least
    assert all(handle.done for handle in waited.done)
    assert {handle.name for handle in (*waited.done, *waited.pending)} == {*names}


def test_waiting_for_some_time(face: Face) -> None:
    """Who is not done by then is pending; nothing is raised."""
    server = ScriptedServer(batch_get=True)
    names = [*plan(server, 6, ends_after=1.0), "operations/never"]
    server.operation("operations/never", ends_after=None)
    waited = group_of(face, client_of(face, server), names).wait(timeout=30)
    assert len(waited.done) == 6
    assert [handle.name for handle in waited.pending] == ["operations/never"]


@pytest.mark.parametrize("verb", ["results", "outcomes", "as_completed", "updates"])
def test_a_timeout_names_the_pending_operations(verb: str, face: Face) -> None:
    """It is a poll timeout too, of the first of them."""
    server = ScriptedServer(batch_get=True)
    names = [*plan(server, 6, ends_after=1.0), "operations/never"]
    server.operation("operations/never", ends_after=None)
    group = group_of(face, client_of(face, server), names)
    with pytest.raises(GroupTimeout) as caught:
        list(getattr(group, verb)(timeout=30))
    assert isinstance(caught.value, PollTimeout)
    assert caught.value.pending == ("operations/never",)
    assert caught.value.name == "operations/never"
    assert caught.value.timeout == 30
    assert "1 operation is not done; operations/never was not done" in str(caught.value)


def test_the_first_failure_is_raised(face: Face, scripted: ScriptedServer) -> None:
    """Long before the others are done."""
    names = plan(scripted, 6)
    scripted.operation("operations/bad", ends_after=0.5, error=FAILED)
    scripted.operation("operations/never", ends_after=None)
    group = group_of(
        face, client_of(face, scripted), [*names, "operations/bad", "operations/never"]
    )
    with pytest.raises(OperationFailed, match="no paper"):
        group.results()


def test_outcomes_are_collected(face: Face, scripted: ScriptedServer) -> None:
    """What failed is there as its exception, in its place."""
    names = plan(scripted, 6)
    scripted.operation("operations/bad", ends_after=0.5, error=FAILED)
    scripted.operation("operations/gone", ends_after=None, gone_after=2.0)
    group = group_of(face, client_of(face, scripted), ["operations/bad", *names, "operations/gone"])
    failed, *good, gone = group.outcomes()
    assert good == [ResizeResponse(number) for number in range(6)]
    assert isinstance(failed, OperationFailed)
    assert isinstance(gone, OperationGone)


def test_the_handle_of_a_gone_operation_raises(face: Face, scripted: ScriptedServer) -> None:
    """It comes like the others, and its result says why there is none."""
    names = [*plan(scripted, 6), "operations/gone"]
    scripted.operation("operations/gone", ends_after=None, gone_after=2.0)
    group = group_of(face, client_of(face, scripted), names)
    handles = {handle.name: handle for handle in group.as_completed()}
    assert handles.keys() == {*names}
    with pytest.raises(OperationGone):
        face.run(handles["operations/gone"].result)


def test_one_operation_twice(face: Face) -> None:
    """Each handle gets the error."""
    server = ScriptedServer(watch=True)
    names = plan(server, 5)
    group = group_of(face, client_of(face, server), [*names, names[0]])
    assert group.results() == [ResizeResponse(n) for n in (0, 1, 2, 3, 4, 0)]
    assert len(list(group.as_completed())) == 6


def test_an_empty_group(face: Face) -> None:
    """Is over at once."""
    group = group_of(face, client_of(face, ScriptedServer()), [])
    assert group.results() == group.outcomes() == list(group.as_completed()) == []
    assert group.wait(1) == group.wait()


@pytest.mark.parametrize("way", ["watch", "batch"])
def test_updates_of_all(way: str, face: Face) -> None:
    """Each change of each operation, the end included, by its update."""
    server = ScriptedServer(**OFFERS[way])
    names = plan(server, 6, metadata=lambda seconds: ResizeMetadata(percent=int(seconds)))
    group = group_of(face, client_of(face, server), names)
    ends = []
    for update in group.updates():
        assert update.name in names
        assert update.error is None
        assert update.metadata.percent >= 0
        if update.done:
            ends.append(update.name)
    assert sorted(ends) == names


def test_an_update_of_one_that_is_gone(face: Face) -> None:
    """It says why there will be no more."""
    server = ScriptedServer(batch_get=True)
    names = [*plan(server, 6), "operations/gone"]
    server.operation("operations/gone", ends_after=None, gone_after=2.0)
    group = group_of(face, client_of(face, server), names)
    last = {update.name: update for update in group.updates()}
    assert isinstance(last["operations/gone"].error, OperationGone)
    assert not last["operations/gone"].done


def test_the_rest_is_cancelled(face: Face) -> None:
    """By a word, or by leaving the block; those that are done are let alone."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6)
    for number in range(3):
        server.operation(f"operations/never-{number}", ends_after=None)
    group = group_of(face, client_of(face, server), [*names, "operations/never-0"])
    group.wait(6)
    group.cancel()
    assert isinstance(group.outcomes()[-1], OperationCancelled)
    with face.entering(group_of(face, client_of(face, server), ["operations/never-1"])):
        pass
    cancelled = [call.name for call in server.calls if call.verb == "CancelOperation"]
    assert cancelled == ["operations/never-0", "operations/never-1"]


def test_a_cancel_that_fails_does_not_hold_up_the_others(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged."""
    server = ScriptedServer(watch=True)
    for number in range(3):
        server.operation(f"operations/{number}", ends_after=None)
    server.fault(Fault(status=503), verb="CancelOperation", calls=[2])
    group = group_of(face, client_of(face, server), [f"operations/{n}" for n in range(3)])
    with caplog.at_level(logging.WARNING, "lro_client"):
        group.cancel()
    assert [call.verb for call in server.calls] == ["CancelOperation"] * 3
    assert caplog.text.count("no longer waited for: CancelOperation failed") == 1


def test_thousands_take_few_calls(face: Face) -> None:
    """Of a server that streams: one stream for each thousand."""
    server = ScriptedServer(watch=True)
    names = plan(server, 2000, ends_after=5.0)
    assert len(group_of(face, client_of(face, server), names).results()) == 2000
    assert len(server.calls) <= 5


def test_futures(face: Face, scripted: ScriptedServer) -> None:
    """Each has the result; no call is made for one that is done."""
    names = plan(scripted, 8)
    client = client_of(face, scripted)
    handles = [face.inside(client.operation(name, **TYPES)) for name in names]

    def results() -> Any:
        futures = [handle.future() for handle in handles]
        if face.name == "sync":
            return [future.result(120) for future in futures]
        return asyncio.wait_for(asyncio.gather(*futures), 120)

    expected = [ResizeResponse(number) for number in range(8)]
    assert face.run(results) == expected
    calls = len(scripted.calls)
    assert face.run(results) == expected
    assert len(scripted.calls) == calls


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({"error": FAILED}, OperationFailed),
        ({"ends_after": None, "gone_after": 0.5}, OperationGone),
    ],
)
def test_futures_of_what_fails(script: dict[str, Any], error: type, face: Face) -> None:
    """They have the exception that the result would raise."""
    server = ScriptedServer(watch=True)
    server.operation("operations/bad", **script)
    handle = face.inside(client_of(face, server).operation("operations/bad", **TYPES))

    def failure() -> Any:
        future = handle.future()
        if face.name == "sync":
            return future.exception(120)
        return caught(future)

    assert isinstance(face.run(failure), error)


async def caught(future: asyncio.Future[Any]) -> BaseException | None:
    """The exception of a future that fails."""
    try:
        await asyncio.wait_for(future, 120)
    except Exception as exc:
        return exc
    return None


def test_closing_ends_what_is_waited_for(face: Face) -> None:
    """A future raises that the client was closed; no caller is left to wait for ever."""
    server = ScriptedServer(watch=True)
    server.operation("operations/never", ends_after=None)
    client = client_of(face, server)
    handle = face.inside(client.operation("operations/never", **TYPES))

    def failure() -> Any:
        future = handle.future()
        if face.name == "sync":
            client.close()
            return future.exception(120)
        return closed(face.inside(client), future)

    error = face.run(failure)
    assert isinstance(error, CallError)
    assert error.code is lro.Code.CANCELLED
    assert "the client was closed" in str(error)


async def closed(client: Any, future: asyncio.Future[Any]) -> BaseException | None:
    """What a future says when its client is closed."""
    await client.close()
    return await caught(future)


def test_callbacks_are_called_once_each_and_do_not_hold_up_each_other() -> None:
    """One that raises, and one that never comes back, are no reason for others to wait."""
    server = ScriptedServer(watch=True)
    names = plan(server, 20, ends_after=1.0)
    done_names: queue.SimpleQueue[str] = queue.SimpleQueue()
    hold = threading.Event()
    face = Face()

    def note(name: str, _: concurrent.futures.Future[Any]) -> None:
        done_names.put(name)
        if name == names[0]:
            hold.wait(120)
        if name == names[1]:
            raise ZeroDivisionError("of a callback")

    client = client_of(face, server)
    for name in names:
        client.operation(name, **TYPES).future().add_done_callback(functools.partial(note, name))
    try:
        assert sorted(done_names.get(timeout=120) for _ in names) == sorted(names)
    finally:
        hold.set()
        face.close()
    assert done_names.empty()


def test_a_future_that_is_cancelled_stops_waiting(face: Face) -> None:
    """The operation goes on; the client does not ask for it any more."""
    server = ScriptedServer(watch=True)
    server.operation("operations/long", ends_after=None)
    client = client_of(face, server)
    handle = face.inside(client.operation("operations/long", **TYPES))

    async def cancelled() -> bool:
        future = handle.future()
        await asyncio.sleep(0)
        future.cancel()
        await asyncio.sleep(0)
        return future.cancelled()

    if face.name == "sync":
        future = handle.future()
        assert future.cancel()
    else:
        assert face.run(cancelled)
    assert face.inside(client)._state.registry.entries == {}
    assert "CancelOperation" not in [call.verb for call in server.calls]


def test_many_single_waits_share_few_connections() -> None:
    """The first few have a call each; the others join a stream."""
    server = ScriptedServer(watch=True)
    names = plan(server, 50, ends_after=3.0)

    async def main() -> list[Any]:
        async with server.async_client() as client:
            handles = [client.operation(name, **TYPES) for name in names]
            return await asyncio.gather(*[handle.result() for handle in handles])

    assert len(asyncio.run(main())) == 50
    verbs = [call.verb for call in server.calls]
    assert (verbs.count("WaitOperation"), verbs.count("WatchOperations")) == (4, 1)


def test_a_deadline_among_many(face: Face) -> None:
    """The wait that joined the others ends in time, and says what was seen."""
    server = ScriptedServer(batch_get=True)
    names = plan(server, 9, ends_after=None, metadata=ResizeMetadata(percent=5))
    client = client_of(face, server)
    handles = [client.operation(name, **TYPES) for name in names]

    def timed(handle: Any) -> Any:
        if face.name == "async":
            inner = face.inside(handle)

            async def late() -> Any:
                return await caught(asyncio.ensure_future(inner.result(20.0)))

            call: Any = lambda: None  # noqa: E731
            call.__wrapped__ = late
            return call
        return functools.partial(_caught, handle)

    errors = face.together([timed(handle) for handle in handles])
    assert {type(error) for error in errors} == {PollTimeout}
    assert {error.name for error in errors} == {*names}


def _caught(handle: Any) -> BaseException | None:
    try:
        handle.result(20.0)
    except PollTimeout as exc:
        return exc
    return None


def test_leaving_a_block_cancels(face: Face) -> None:
    """Unless it is done; without the block nothing would."""
    server = ScriptedServer()
    server.operation("operations/long", ends_after=None)
    server.operation("operations/short", ends_after=1.0, response=ResizeResponse(1))
    client = client_of(face, server)
    with face.entering(client.operation("operations/short", **TYPES)) as handle:
        face.run(handle.result)
    assert "CancelOperation" not in [call.verb for call in server.calls]
    with (
        pytest.raises(ZeroDivisionError),
        face.entering(client.operation("operations/long", **TYPES)),
    ):
        raise ZeroDivisionError
    assert [call.verb for call in server.calls][-1] == "CancelOperation"


def test_a_task_that_is_cancelled_in_its_block() -> None:
    """The operation is cancelled on the way out."""
    server = ScriptedServer()
    server.operation("operations/long", ends_after=None)

    async def main() -> None:
        async with server.async_client() as client:
            entered = asyncio.Event()

            async def work() -> None:
                async with client.operation("operations/long", **TYPES):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert [call.verb for call in server.calls] == ["CancelOperation"]


def test_cancel_and_wait(face: Face) -> None:
    """Cancelled, or ended before: the result is there then."""
    server = ScriptedServer()
    server.operation("operations/obeys", ends_after=None, cancels_after=3.0)
    server.operation(
        "operations/deaf", ends_after=5.0, response=ResizeResponse(3), cancels_after=None
    )
    client = client_of(face, server)
    obeys = client.operation("operations/obeys", **TYPES)
    assert obeys.cancel_and_wait().state == "CANCELLED"
    with pytest.raises(OperationCancelled):
        obeys.result()
    deaf = client.operation("operations/deaf", **TYPES)
    assert deaf.cancel_and_wait(timeout=60).state == "SUCCEEDED"
    assert deaf.result() == ResizeResponse(3)
    assert deaf.cancel_and_wait().done
    assert [call.verb for call in server.calls].count("CancelOperation") == 2


def test_detached_by_default() -> None:
    """A thread that is interrupted while it waits leaves the operation alone."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    server = ScriptedServer(wait=False)
    server.operation("operations/long", ends_after=None)
    client: Client = server.client(sleep=interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.operation("operations/long", **TYPES).result()
    assert "CancelOperation" not in [call.verb for call in server.calls]
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 60


class Uncopyable(Exception):
    """Of a library whose exceptions need more than their text."""

    def __init__(self, text: str, *, request: object) -> None:
        super().__init__(text)
        self.request = request


def refusing(_: Any) -> None:
    """A hook of an HTTP client that raises."""
    raise Uncopyable("of a hook", request=None)


async def arefusing(_: Any) -> None:
    """The same for event loops."""
    refusing(_)


def test_exceptions_that_cannot_be_copied_are_raised_as_they_are(face: Face) -> None:
    """To groups and futures, and no caller waits for ever."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6)
    hook = refusing if face.name == "sync" else arefusing
    http = face.http(transport=server.transport, event_hooks={"response": [hook]})
    client = face.client(server.url, clock=server.clock, http=http)
    group = group_of(face, client, names)
    with pytest.raises(Uncopyable, match="of a hook"):
        group.outcomes()
    handle = face.inside(client.operation(names[0], **TYPES))

    def failure() -> Any:
        future = handle.future()
        return future.exception(120) if face.name == "sync" else caught(future)

    assert isinstance(face.run(failure), Uncopyable)


def test_closing_ends_groups(face: Face) -> None:
    """They say so, rather than take what is lost for done."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6, ends_after=None)
    client = client_of(face, server)
    group = group_of(face, client, names)
    client.close()
    for verb in (group.wait, group.results, group.outcomes):
        with pytest.raises(CallError, match="the client was closed"):
            verb()


@pytest.mark.parametrize("timeout", [float("inf"), 1e10, timedelta.max])
def test_timeouts_beyond_all_clocks_are_none(timeout: Any, face: Face) -> None:
    """For one and for many."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6)
    client = client_of(face, server)
    assert len(group_of(face, client, names).results(timeout)) == 6
    assert client.operation(names[0], **TYPES).result(timeout) == ResizeResponse(0)


@pytest.mark.parametrize("timeout", [float("nan"), "2", [1]])
def test_timeouts_that_are_none_at_all(timeout: Any, face: Face) -> None:
    """Are refused at once."""
    client = client_of(face, ScriptedServer())
    for verb in (client.operation("operations/a", **TYPES).result, group_of(face, client, []).wait):
        with pytest.raises(TypeError, match="a timeout is a timedelta, or seconds"):
            verb(timeout=timeout)


def test_what_is_no_group(face: Face) -> None:
    """Names are not handles, and counts are whole numbers."""
    client = client_of(face, ScriptedServer())
    with pytest.raises(TypeError, match="a group is of handles"):
        client.group(["operations/a"])
    with pytest.raises(TypeError, match=r"a whole number, got 0\.2"):
        group_of(face, client, []).wait(0.2)


def test_leaving_a_group_on_a_deaf_server_takes_one_last_word(face: Face) -> None:
    """Not one for each."""
    server = ScriptedServer(watch=True)
    names = plan(server, 40, ends_after=None)
    server.fault(Fault(seconds=1000.0), verb="CancelOperation")
    began = server.clock()
    with face.entering(group_of(face, client_of(face, server), names)):
        pass
    calls = [call for call in server.calls if call.verb == "CancelOperation"]
    assert len(calls) == 8
    # The naps of threads come one after the other on this clock, those of tasks at once.
    naps = 8 if face.name == "sync" else 1
    assert server.clock() - began == pytest.approx(naps * 5.0, abs=0.1)


def test_good_news_after_bad_ones(face: Face) -> None:
    """What was wrong before is not reported for a state that was seen since."""
    server = ScriptedServer()
    server.operation("operations/a", ends_after=50.0, response=ResizeResponse(1))
    handle = client_of(face, server).operation("operations/a", **TYPES)
    face.inside(handle)._give_up(ZeroDivisionError())
    assert [update.error for update in handle.updates()][-1] is None


def test_the_response_without_a_call(face: Face) -> None:
    """Typed, once it is there; None before, and for what failed."""
    server = ScriptedServer()
    server.operation("operations/a", ends_after=5.0, response=ResizeResponse(1))
    server.operation("operations/b", ends_after=5.0, error=FAILED)
    client = client_of(face, server)
    good, bad = (client.operation(f"operations/{name}", **TYPES) for name in "ab")
    assert good.response is None
    good.wait()
    bad.wait()
    assert (good.response, bad.response) == (ResizeResponse(1), None)
