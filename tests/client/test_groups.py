"""Groups of operations, and futures, in the blocking and the async client."""

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
    """A scripted server that offers one of the ways to read many operations."""
    return ScriptedServer(**OFFERS[request.param])


def client_of(face: Face, server: ScriptedServer, **options: Any) -> Any:
    """Make a blocking or async client that uses the server's clock."""
    clock = server.clock
    http = face.http(transport=server.transport)
    return face.client(server.url, clock=clock, http=http, **options)


def plan(server: ScriptedServer, count: int, **more: Any) -> list[str]:
    """Plan operations that end one second apart, in reverse order of their numbers."""
    names = [f"operations/{number}" for number in range(count)]
    for number, name in enumerate(names):
        script = {"ends_after": float(count - number), "response": ResizeResponse(number), **more}
        server.operation(name, **script)
    return names


def group_of(face: Face, client: Any, names: Sequence[str | lro.Operation]) -> Any:
    """Make a group of operations, which are given by name or state."""
    return client.group([face.inside(client.operation(name, **TYPES)) for name in names])


def test_group_results_have_the_order_of_the_handles(face: Face, scripted: ScriptedServer) -> None:
    """Results have the order of the handles; reading them a second time makes no call."""
    names = plan(scripted, 8)
    group = group_of(face, client_of(face, scripted), names)
    assert len(group.handles) == len(face.inside(group)) == 8
    assert group.results() == [ResizeResponse(number) for number in range(8)]
    calls = len(scripted.calls)
    assert group.results() == [ResizeResponse(number) for number in range(8)]
    assert len(scripted.calls) == calls


def test_as_completed_yields_in_the_order_of_ends(face: Face, scripted: ScriptedServer) -> None:
    scripted.operation("operations/slow", ends_after=100.0, response=ResizeResponse(1))
    names = ["operations/slow", *plan(scripted, 5)]
    group = group_of(face, client_of(face, scripted), names)
    found = [handle.name for handle in group.as_completed(timeout=1000)]
    assert sorted(found) == sorted(names)
    assert found[-1] == "operations/slow"


def test_wait_returns_after_a_number_of_ends(face: Face, scripted: ScriptedServer) -> None:
    """The wait returns once ``count`` operations are done; all others are pending."""
    names = plan(scripted, 6)
    group = group_of(face, client_of(face, scripted), names)
    for count, least in ((0, 0), (1, 1), (3, 3), (None, 6), (99, 6)):
        waited = group.wait(count)
        assert len(waited.done) >= least
        assert all(handle.done for handle in waited.done)
        assert {handle.name for handle in (*waited.done, *waited.pending)} == {*names}


@pytest.mark.parametrize("verb", ["results", "outcomes", "as_completed", "updates"])
def test_group_timeout_names_the_pending_operations(verb: str, face: Face) -> None:
    """The GroupTimeout is also a PollTimeout, which names the first pending operation."""
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
    waited = group.wait(timeout=30)
    assert len(waited.done) == 6
    assert [handle.name for handle in waited.pending] == ["operations/never"]


def test_the_first_failure_is_raised_and_all_outcomes_are_collected(
    face: Face, scripted: ScriptedServer
) -> None:
    """``results`` raises the first failure; ``outcomes`` returns each exception in its place."""
    names = ["operations/bad", *plan(scripted, 6, ends_after=3.0), "operations/gone"]
    scripted.operation("operations/bad", ends_after=0.5, error=FAILED)
    scripted.operation("operations/gone", ends_after=None, gone_after=2.0)
    client = client_of(face, scripted)
    with pytest.raises(OperationFailed, match="no paper"):
        group_of(face, client, names).results()
    group = group_of(face, client, names)
    failed, *good, gone = group.outcomes()
    assert good == [ResizeResponse(number) for number in range(6)]
    assert isinstance(failed, OperationFailed)
    assert isinstance(gone, OperationGone)
    handles = {handle.name: handle for handle in group.as_completed()}
    assert handles.keys() == {*names}
    with pytest.raises(OperationGone):
        face.run(handles["operations/gone"].result)
    last = {update.name: update for update in group.updates()}["operations/gone"]
    assert isinstance(last.error, OperationGone)
    assert not last.done


def test_group_may_have_an_operation_twice_or_be_empty(face: Face) -> None:
    """If a group has two handles of an operation, both get the result. An empty group has ended."""
    server = ScriptedServer(watch=True)
    names = plan(server, 5)
    group = group_of(face, client_of(face, server), [*names, names[0]])
    assert group.results() == [ResizeResponse(n) for n in (0, 1, 2, 3, 4, 0)]
    assert len(list(group.as_completed())) == 6
    group = group_of(face, client_of(face, ScriptedServer()), [])
    assert group.results() == group.outcomes() == list(group.as_completed()) == []
    assert group.wait(1) == group.wait()


@pytest.mark.parametrize("way", ["watch", "batch"])
def test_updates_of_a_group_show_each_change(
    way: str, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of each operation is shown once, even if an older update arrives after it."""
    late: list[Any] = []

    def notify_all(found: list[Any]) -> None:
        for listeners, news in (*found, *late):
            for listener in listeners:
                listener(news)
        late.extend(one for one in found if not one[1].operation.done)

    monkeypatch.setattr("lro_client._watch.poller.notify_all", notify_all)
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


def test_group_cancels_unfinished_operations(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    """``cancel`` and the end of a group's block cancel only the operations that are not done."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6)
    for number in range(3):
        server.operation(f"operations/never-{number}", ends_after=None)
    client = client_of(face, server)
    group = group_of(face, client, [*names, "operations/never-0"])
    group.wait(6)
    group.cancel()
    assert isinstance(group.outcomes()[-1], OperationCancelled)
    with face.entering(group_of(face, client, ["operations/never-1"])):
        pass
    more = [f"operations/more-{number}" for number in range(3)]
    for name in more:
        server.operation(name, ends_after=None)
    server.fault(Fault(status=503), verb="CancelOperation", calls=[4, 6])
    with caplog.at_level(logging.WARNING, "lro_client"):
        group_of(face, client, more).cancel()
        with face.entering(client.operation("operations/never-2", **TYPES)):
            pass
    assert caplog.text.count("no longer waited for: CancelOperation failed") == 2
    cancelled = [call.name for call in server.calls if call.verb == "CancelOperation"]
    assert cancelled[:2] == ["operations/never-0", "operations/never-1"]
    assert sorted(cancelled[2:]) == [*more, "operations/never-2"]
    # If no cancel is answered, only eight of forty are sent; meanwhile no poll sleeps.
    client.close()
    client = client_of(face, server)
    server.fault(Fault(seconds=1000.0), verb="CancelOperation")
    names, began = plan(server, 40, ends_after=None), server.clock()
    with face.entering(group_of(face, client, names)):
        pass
    assert len([call for call in server.calls if call.verb == "CancelOperation"]) == 6 + 8
    # On this clock, the sleeps of threads add up, but those of tasks overlap.
    naps = 8 if face.name == "sync" else 1
    assert server.clock() - began == pytest.approx(naps * 5.0, abs=0.1)


def test_a_thousand_operations_share_one_stream(face: Face) -> None:
    """A single stream serves 1500 operations."""
    server = ScriptedServer(watch=True)
    names = plan(server, 1500, ends_after=5.0)
    assert len(group_of(face, client_of(face, server), names).results()) == 1500
    assert len(server.calls) <= 5


def outcome(face: Face, handle: Any, *closing: Any) -> Any:
    """Return the outcome of a handle's future, after closing the given clients."""

    def taken() -> Any:
        future = handle.future()
        for client in closing:
            client.close()
        try:
            return future.result(120)
        except Exception as exc:
            return exc

    async def awaited() -> Any:
        future = handle.future()
        for client in closing:
            await client.close()
        [found] = await asyncio.wait_for(asyncio.gather(future, return_exceptions=True), 120)
        return found

    return face.run(taken if face.name == "sync" else awaited)


def test_future_has_the_result_or_the_error_of_the_operation(
    face: Face, scripted: ScriptedServer
) -> None:
    """The future has the result or the exception; for a finished operation it makes no call."""
    [name] = plan(scripted, 1)
    scripted.operation("operations/bad", error=FAILED)
    scripted.operation("operations/gone", ends_after=None, gone_after=0.5)
    client = client_of(face, scripted)
    handle, bad, gone = (
        face.inside(client.operation(one, **TYPES))
        for one in (name, "operations/bad", "operations/gone")
    )
    assert outcome(face, handle) == ResizeResponse(0)
    calls = len(scripted.calls)
    assert outcome(face, handle) == ResizeResponse(0)
    assert len(scripted.calls) == calls
    assert isinstance(outcome(face, bad), OperationFailed)
    assert isinstance(outcome(face, gone), OperationGone)


def test_closing_the_client_ends_its_futures_and_groups(face: Face) -> None:
    """Futures and groups end with an error that says that the client was closed."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6, ends_after=None)
    client = client_of(face, server)
    group = group_of(face, client, names)
    error = outcome(face, group.handles[0], face.inside(client))
    assert isinstance(error, CallError)
    assert error.code is lro.Code.CANCELLED
    assert "the client was closed" in str(error)
    for verb in (group.wait, group.results, group.outcomes):
        with pytest.raises(CallError, match="the client was closed"):
            verb()


def test_callbacks_are_called_once_each_and_do_not_hold_up_each_other() -> None:
    """A callback that raises an error or never returns does not delay the other callbacks."""
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
    """If a future is cancelled, the operation continues, but the client stops waiting."""
    server = ScriptedServer(watch=True)
    server.operation("operations/long", ends_after=5.0, response=ResizeResponse(1))
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
    assert outcome(face, handle) == ResizeResponse(1)
    assert "CancelOperation" not in [call.verb for call in server.calls]


def test_many_single_waits_share_few_connections() -> None:
    """The first four waits use a call each; the other waits share one stream."""
    server = ScriptedServer(watch=True)
    names = plan(server, 50, ends_after=3.0)

    async def main() -> list[Any]:
        async with server.async_client() as client:
            handles = [client.operation(name, **TYPES) for name in names]
            return await asyncio.gather(*[handle.result() for handle in handles])

    assert len(asyncio.run(main())) == 50
    verbs = [call.verb for call in server.calls]
    assert (verbs.count("WaitOperation"), verbs.count("WatchOperations")) == (4, 1)


def test_deadline_of_each_of_many_single_waits_is_kept(face: Face) -> None:
    """Waits that share calls also end at their deadlines; each error has its operation's name."""
    server = ScriptedServer(batch_get=True)
    names = plan(server, 9, ends_after=None, metadata=ResizeMetadata(percent=5))
    client = client_of(face, server)
    errors = face.together([client.operation(name, **TYPES).result for name in names], 20.0)
    assert {type(error) for error in errors} == {PollTimeout}
    assert {error.name for error in errors} == {*names}


def test_leaving_a_block_cancels_the_unfinished_operation(face: Face) -> None:
    """Leaving the block of a handle cancels the operation, unless the operation is done."""
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


def test_task_cancelled_in_its_block_cancels_the_operation() -> None:
    """If a task is cancelled inside the block of a handle, the operation is cancelled too."""
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


def test_cancel_and_wait_returns_the_end_of_the_operation(face: Face) -> None:
    """``cancel_and_wait`` returns the operation as cancelled, or done if it cannot be cancelled."""
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
    assert deaf.response is None
    assert deaf.cancel_and_wait(timeout=60).state == "SUCCEEDED"
    assert (deaf.response, obeys.response) == (ResizeResponse(3), None)  # this makes no call
    assert deaf.result() == ResizeResponse(3)
    assert deaf.cancel_and_wait().done
    assert [call.verb for call in server.calls].count("CancelOperation") == 2


def test_interrupted_wait_does_not_cancel_the_operation() -> None:
    """A KeyboardInterrupt during a wait does not cancel the operation."""

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
    """An exception of another library, which cannot be copied because of its extra argument."""

    def __init__(self, text: str, *, request: object) -> None:
        super().__init__(text)
        self.request = request


def refusing(_: Any) -> None:
    """Raise an exception, as a hook of an HTTP client might."""
    raise Uncopyable("of a hook", request=None)


async def arefusing(_: Any) -> None:
    """Raise an exception, as a hook of an async HTTP client might."""
    refusing(_)


def test_exception_that_cannot_be_copied_is_raised_itself(face: Face) -> None:
    """If an exception cannot be copied, groups and futures raise the exception itself."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6)
    hook = refusing if face.name == "sync" else arefusing
    http = face.http(transport=server.transport, event_hooks={"response": [hook]})
    client = face.client(server.url, clock=server.clock, http=http)
    group = group_of(face, client, names)
    with pytest.raises(Uncopyable, match="of a hook"):
        group.results()
    assert {type(one) for one in group.outcomes()} == {Uncopyable}
    handle = face.inside(client.operation(names[0], **TYPES))
    assert isinstance(outcome(face, handle), Uncopyable)


@pytest.mark.parametrize(
    "timeout",
    [float("inf"), 1e10, 1e300, 10**400, timedelta.max],
    ids=lambda timeout: f"{timeout!r:.7}",
)
def test_timeout_beyond_the_range_of_clocks_means_no_timeout(timeout: Any, face: Face) -> None:
    """A timeout beyond the range of the clocks means no timeout, for an operation or a group."""
    server = ScriptedServer(watch=True)
    names = plan(server, 6)
    client = client_of(face, server)
    assert len(group_of(face, client, names).results(timeout)) == 6
    assert client.operation(names[0], **TYPES).result(timeout) == ResizeResponse(0)
