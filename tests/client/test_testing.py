"""The scripted server and the virtual clock, with which users test their clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import httpx
import pytest

import lro
from lro_client import NO_RETRY, CallError, OperationFailed, OperationGone, Polling, Retry
from lro_client.testing import Fault, ScriptedServer, UnscriptedCall, VirtualClock
from tests.client.faces import AsyncFace, Awaited, Face
from tests.client.messages import NAME, TYPES, ResizeMetadata, ResizeRequest, ResizeResponse

PATH = "/v1/images:resize"
HOUR = 3600.0


@attrs.frozen
class Unnamed:
    """A message class without a full name."""

    size: int = 0


@attrs.define
class Making:
    """Makes blocking or async clients of scripted servers."""

    face: Face

    def client(self, server: ScriptedServer, **options: Any) -> Any:
        if isinstance(self.face, AsyncFace):
            return Awaited(self.face, server.async_client(**options))
        return server.client(**options)

    def operation(self, server: ScriptedServer, **options: Any) -> Any:
        return self.client(server, **options).operation(NAME, **TYPES)


@pytest.fixture
def making(face: Face) -> Making:
    return Making(face)


def verbs(server: ScriptedServer) -> list[str]:
    return [call.verb for call in server.calls]


@pytest.mark.parametrize("wait", [True, False])
def test_hour_long_operation_is_polled_in_virtual_time(making: Making, wait: bool) -> None:
    """The polls follow the policy, although the hour passes in virtual time."""
    server = ScriptedServer(wait=wait)
    server.operation(NAME, ends_after=HOUR, response=ResizeResponse(7), metadata=ResizeMetadata(1))
    handle = making.operation(server, polling=Polling(jitter=0.0))
    began = time.monotonic()
    assert handle.result() == ResizeResponse(7)
    assert time.monotonic() - began < 60  # even on a slow machine
    passed = server.clock() - 1000.0
    if wait:
        assert passed == pytest.approx(HOUR)
        assert len(server.calls) == HOUR / 20
    else:
        assert HOUR <= passed <= HOUR + 20
        assert len(server.calls) < 220
        assert passed == pytest.approx(sum(server.clock.sleeps))
    assert handle.metadata == ResizeMetadata(1)


def test_each_start_begins_an_operation_but_for_known_request_ids(making: Making) -> None:
    """Each start makes a new operation, except one that repeats a request id."""
    server = ScriptedServer()
    server.method(
        PATH, ends_after=5.0, response=lambda request: ResizeResponse(note=request["source"])
    )
    client = making.client(server)
    ids = ["9a1b2c3d-4e5f-4a6b-8c7d-0e1f2a3b4c5d", "9A1B2C3D-4e5f-4a6b-8c7d-0e1f2a3b4c5d", "", ""]
    handles = [
        client.start(PATH, ResizeRequest(source="a.png"), request_id=one, **TYPES) for one in ids
    ]
    assert [handle.name for handle in handles] == [f"operations/{n}" for n in (1, 1, 2, 3)]
    assert handles[0].result() == ResizeResponse(note="a.png")
    assert server.calls[0].verb == "Start"
    assert server.calls[0].name == PATH
    server.operation("operations/5", ends_after=None)  # the next name is taken
    again = [client.start(PATH, {"source": ""}, **TYPES).name for _ in range(2)]
    assert again == ["operations/6", "operations/7"]
    server = ScriptedServer()
    server.method(PATH, parent="projects/p/locations/l")
    handle = making.client(server).start(PATH, ResizeRequest(), **TYPES)
    assert (handle.name, handle.result()) == ("projects/p/locations/l/operations/1", None)


@pytest.mark.parametrize("broken", ["response", "metadata"])
def test_an_error_of_the_test_itself_is_raised_in_the_test(broken: str, making: Making) -> None:
    """An error in the script is raised, not answered as INTERNAL, which a retry might hide."""
    server = ScriptedServer()
    script: dict[str, Any] = {broken: lambda _: [][0]}
    server.method(PATH, **script)
    for _ in range(2):
        with pytest.raises(IndexError):
            making.client(server).start(PATH, ResizeRequest(), **TYPES)


def test_results_of_each_kind_reach_the_client(making: Making) -> None:
    """A result may be missing, an error, an Any, JSON, or of a class without a full name."""
    server = ScriptedServer()
    status = lro.Status(lro.Code.NOT_FOUND, "no such file")
    server.operation("operations/1", error=status)
    server.operation("operations/2")
    url = "type.googleapis.com/acme.images.v1.ResizeResponse"
    server.operation("operations/3", response=lro.AnyMessage(url, {"note": "any"}))
    server.operation("operations/4", response={"@type": url, "note": "json"})
    server.operation("operations/5", response=Unnamed(5))
    server.operation("operations/6", response=Unnamed(6))
    client = making.client(server)
    with pytest.raises(OperationFailed, match="no such file"):
        client.operation("operations/1", **TYPES).result()
    found = [client.operation(f"operations/{n}", **TYPES).result() for n in (2, 3, 4)]
    assert found == [None, ResizeResponse(note="any"), ResizeResponse(note="json")]
    for n in (5, 6):
        handle = client.operation(f"operations/{n}", response=Unnamed, metadata=Unnamed)
        assert handle.result() == Unnamed(n)


def test_metadata_follows_the_seconds_run_up_to_the_end(making: Making) -> None:
    """Metadata may depend on the seconds since the start, and stays fixed after the end."""
    server = ScriptedServer()
    server.operation(
        NAME, ends_after=10.0, metadata=lambda seconds: ResizeMetadata(int(seconds) * 10)
    )
    seen = [update.metadata.percent for update in making.operation(server).updates()]
    assert seen[0] == 0
    assert seen[-1] == 100
    assert seen == sorted(seen)
    server.clock.advance(HOUR)
    assert making.operation(server).refresh().done
    assert server.calls[-1].verb == "GetOperation"


def test_a_wait_is_held_by_its_timeout_the_server_limit_and_the_end(making: Making) -> None:
    """The server holds a Wait until its timeout, the server's limit or the operation's end."""
    server = ScriptedServer(max_hold=30.0)
    server.operation(NAME, ends_after=75.5)
    client = making.client(server)
    times = []
    for timeout in (0, 20, 1000, None):
        client.wait(NAME, timeout=timeout)
        times.append(server.clock() - 1000.0)
    assert times == pytest.approx([0.0, 20.0, 50.0, 75.5])
    assert [call.hold for call in server.calls] == [0.0, 20.0, 1000.0, None]


def test_cancel_of_one_task_ends_the_wait_of_another_soon() -> None:
    """After one task cancels the operation, the Wait of another task ends within 5 s."""
    server = ScriptedServer()
    server.operation(NAME, ends_after=None, cancels_after=2.0)

    async def main() -> float:
        client = server.async_client()
        handle = client.operation(NAME, response=ResizeResponse, metadata=ResizeMetadata)
        waiting = asyncio.create_task(handle.wait())
        await server.clock.asleep(10.0)
        await handle.cancel()
        assert (await waiting).state == "CANCELLED"
        return server.clock()

    assert asyncio.run(main()) - 1000.0 == pytest.approx(12.0, abs=5.0)


@pytest.mark.parametrize(
    ("cancels_after", "ends_after", "state", "seconds"),
    [
        (0.0, 5.0, "CANCELLED", 0.0),
        (3.0, 5.0, "CANCELLED", 3.0),
        (3.0, None, "CANCELLED", 3.0),
        (6.0, 5.0, "SUCCEEDED", 5.0),  # the operation ends before the delay is over
        (None, 5.0, "SUCCEEDED", 5.0),
    ],
)
def test_a_cancelled_operation_ends_after_its_scripted_delay(
    making: Making,
    cancels_after: float | None,
    ends_after: float | None,
    state: str,
    seconds: float,
) -> None:
    """A cancelled operation ends after the scripted delay, unless it ends by itself first."""
    server = ScriptedServer()
    server.operation(NAME, ends_after=ends_after, cancels_after=cancels_after)
    handle = making.operation(server)
    handle.cancel()
    assert handle.wait().state == state
    handle.cancel()
    assert handle.refresh().state == state
    assert server.clock() - 1000.0 == pytest.approx(seconds)


def test_deleted_and_expired_operations_are_not_found(making: Making) -> None:
    """Deleted, expired and unknown operations are NOT_FOUND."""
    server = ScriptedServer()
    server.operation(NAME, ends_after=None, gone_after=60.0)
    handle = making.operation(server)
    with pytest.raises(OperationGone):
        handle.result()
    assert server.clock() - 1000.0 == pytest.approx(60.0)
    server.operation(NAME)
    handle.delete()
    server.operation("operations/hidden", ends_after=5.0)
    making.client(server).delete("operations/hidden")
    server.clock.advance(5.0)  # its work ends after the delete
    assert list(making.client(server).list()) == []
    for name in (NAME, "operations/never"):
        with pytest.raises(CallError, match="no operation") as caught:
            making.client(server).get(name)
        assert caught.value.code is lro.Code.NOT_FOUND


def test_a_verb_that_is_left_out_is_unimplemented(making: Making) -> None:
    """Verbs that are switched off are UNIMPLEMENTED, and waits work without them."""
    server = ScriptedServer(wait=False, lists=False)
    server.operation(NAME, ends_after=1.0)
    client = making.client(server)
    assert client.operation(NAME, **TYPES).result() is None
    assert verbs(server)[:2] == ["WaitOperation", "GetOperation"]
    assert server.calls[0].status == 501
    with pytest.raises(CallError, match="ListOperations is not supported") as caught:
        list(client.list())
    assert caught.value.code is lro.Code.UNIMPLEMENTED


def test_lists_are_paged_by_parent_and_filtered_by_name(making: Making) -> None:
    """List returns the operations of a parent, page by page, or only those that a filter names."""
    server = ScriptedServer()
    for number in range(5):
        server.operation(f"operations/{number}")
    server.operation("projects/p/operations/6")
    server.operation("operations/7", gone_after=0.0)
    client = making.client(server)
    assert [one.name for one in client.list(page_size=2)] == [f"operations/{n}" for n in range(5)]
    assert len(server.calls) == 3
    assert [one.name for one in client.list("projects/p")] == ["projects/p/operations/6"]
    some = 'name = "operations/1" OR name = "operations/3"'
    assert [one.name for one in client.list(filter=some)] == ["operations/1", "operations/3"]
    assert len(list(client.list(filter="done = true"))) == 5


def test_filters_know_the_fields_of_scripted_messages(making: Making) -> None:
    """A filter may use the fields of scripted messages. An unknown field is refused."""
    server = ScriptedServer()
    for number in range(4):
        metadata, response = ResizeMetadata(10 * number), ResizeResponse(number)
        ends = 5.0 if number % 2 else None
        server.operation(
            f"operations/{number}", ends_after=ends, metadata=metadata, response=response
        )
    client = making.client(server)

    def found(text: str) -> list[str]:
        return [one.name.rpartition("/")[2] for one in client.list(filter=text)]

    assert found("metadata.percent >= 20") == ["2", "3"]
    assert found("response.size_bytes > 0") == []
    server.clock.advance(5.0)
    assert found("response.size_bytes > 0") == ["1", "3"]
    assert found("state() = IN_PROGRESS") == ["0", "2"]
    with pytest.raises(CallError, match="percents") as caught:
        found("metadata.percents >= 20")
    assert caught.value.code is lro.Code.INVALID_ARGUMENT


def test_batch_get_gives_operations_and_missing_names() -> None:
    """BatchGet returns the operations that exist, and the names of missing operations (§3.11)."""
    server = ScriptedServer(batch_get=True)
    server.operation(NAME, ends_after=None)
    url = server.url + "/v1/operations:batchGet"
    with httpx.Client(transport=server.transport) as http:
        reply = http.post(url, json={"names": [NAME, "operations/x"]})
        assert reply.json() == {"operations": [{"name": NAME}], "missing": ["operations/x"]}
        bodies: list[Any] = [{"names": []}, {"names": "a"}, [1], {}]
        for body in bodies:
            assert http.post(url, json=body).status_code == 400
        assert http.post(url, content=b"{").status_code == 400
    assert {call.verb for call in server.calls} == {"BatchGetOperations"}


EVENTS = [
    'event: operation\ndata: {"name":"operations/1"}',
    'event: missing\ndata: {"name":"operations/x"}',
    'event: operation\ndata: {"name":"operations/1","done":true}',
    ":",
    'event: missing\ndata: {"name":"operations/2"}',
]


def watched(text: str) -> list[str]:
    """Return the events of a stream, without the first event of the second operation."""
    snapshot = 'event: operation\ndata: {"name":"operations/2"}'
    return [one for one in text.split("\n\n") if one not in ("", snapshot)]


@pytest.fixture
def watching() -> ScriptedServer:
    server = ScriptedServer(watch=True)
    server.operation("operations/1", ends_after=2.5)
    server.operation("operations/2", ends_after=None, gone_after=20.0)
    return server


def test_a_watch_of_many_streams_changes_until_all_are_over(watching: ScriptedServer) -> None:
    """A stream sends the state of each operation, then the changes, and comments in between."""
    names = {"names": ["operations/1", "operations/x", "operations/2"]}
    with httpx.Client(transport=watching.transport) as http:
        reply = http.post(watching.url + "/v1/operations:watch", json=names)
    assert reply.headers["content-type"] == "text/event-stream"
    assert watched(reply.text) == EVENTS
    assert watching.clock() - 1000.0 == pytest.approx(20.0)


def test_a_watch_of_one_streams_on_an_event_loop(watching: ScriptedServer) -> None:
    """On an event loop, a watch of one name streams the changes of its operation."""

    async def main() -> str:
        async with httpx.AsyncClient(transport=watching.transport) as http:
            return (await http.get(watching.url + "/v1/operations/1:watch")).text

    assert watched(asyncio.run(main())) == [EVENTS[0], EVENTS[2]]
    assert watching.clock() - 1000.0 == pytest.approx(2.5)


FAULTS: dict[str, tuple[Fault, str, lro.Code]] = {
    "no connection": (Fault(error=httpx.ConnectError), "scripted: GetOp", lro.Code.UNAVAILABLE),
    "a status": (Fault(status=503), "scripted", lro.Code.UNAVAILABLE),
    "an odd status": (Fault(status=418), "scripted", lro.Code.FAILED_PRECONDITION),
    "a proxy": (Fault(status=502, body=b"<h1>502</h1>"), "UNAVAILABLE", lro.Code.UNAVAILABLE),
    "a foreign body": (Fault(body=b"<h1>hello</h1>"), "is not JSON", lro.Code.UNKNOWN),
    "a body cut short": (Fault(keep=9), "is not JSON", lro.Code.UNKNOWN),
    "too slow": (Fault(seconds=31.0), "no answer in time", lro.Code.DEADLINE_EXCEEDED),
}


@pytest.mark.parametrize(("fault", "text", "code"), FAULTS.values(), ids=FAULTS)
def test_a_fault_fails_the_call_as_a_network_would(
    making: Making, fault: Fault, text: str, code: lro.Code
) -> None:
    """A fault causes the same error in the client as on a real network."""
    server = ScriptedServer()
    server.operation(NAME)
    server.fault(fault)
    with pytest.raises(CallError, match=text) as caught:
        making.client(server, retry=NO_RETRY).get(NAME)
    assert caught.value.code is code
    assert server.calls[0].status == (caught.value.http_status or 0)
    assert server.clock() - 1000.0 <= 30.0 + 1e-6


def test_slow_reply_within_the_timeout_succeeds(making: Making) -> None:
    """Latencies add up. A client may use another clock, HTTP client and URL."""
    server = ScriptedServer(VirtualClock(5.0), url="http://other.test", latency=0.5)
    server.operation(NAME)
    server.fault(Fault(seconds=20.0))
    http = making.face.http(transport=server.transport, headers={"x-mine": "1"})
    assert making.client(server, http=http, retry=Retry(attempts=1)).get(NAME).done
    assert server.clock() == pytest.approx(25.5)


def test_faults_apply_by_number_verb_and_time(making: Making) -> None:
    """A fault may apply to some call numbers, a verb or a time. The first match is used."""
    server = ScriptedServer()
    server.operation(NAME, ends_after=None)
    server.fault(Fault(status=401), verb="CancelOperation")
    server.fault(Fault(status=403), calls={2})
    server.fault(Fault(status=409), since=10.0, until=20.0)
    server.fault(Fault(status=404), verb="GetOperation", calls={2, 3})
    client = making.client(server, retry=NO_RETRY)

    def get(name: str) -> None:
        client.get(name)

    def found(call: Callable[[str], object]) -> int | None:
        try:
            call(NAME)
        except CallError as exc:
            return exc.http_status
        return 200

    statuses = [found(one) for one in (get, get, get, get, client.cancel)]
    server.clock.advance(10.0)
    statuses.append(found(get))
    server.clock.advance(10.0)
    statuses.append(found(get))
    assert statuses == [200, 403, 404, 200, 401, 409, 200]
    assert [call.status for call in server.calls] == statuses
    assert [call.at for call in server.calls] == [0.0] * 5 + [10.0, 20.0]


def test_calls_of_any_version_are_served_and_others_raise_in_the_test() -> None:
    """Any path segment can replace v1. The error for an unknown call lists the known methods."""
    server = ScriptedServer()
    server.method(PATH)
    server.operation("projects/p/operations/1", ends_after=None)
    with httpx.Client(transport=server.transport) as http:
        url = server.url + "/v1beta/projects/p/operations/1:wait"
        reply = http.post(url, json={"timeout": "3s"}, timeout=None)
        assert reply.json() == {"name": "projects/p/operations/1"}
        assert server.clock() - 1000.0 == 3.0
        for called in ("POST /v1/cats:feed", "PUT /v1/operations/a", "GET /v1/", "GET /health"):
            method, path = called.split()
            wanted = f"{called} is not a call of the interface; methods: {PATH}"
            with pytest.raises(UnscriptedCall, match=wanted):
                http.request(method, server.url + path)
    assert len(server.calls) == 1


def test_sleeps_of_threads_add_up() -> None:
    """Each sleep of a thread moves the clock by its full length."""
    clock = VirtualClock(0.0)
    threads = [threading.Thread(target=clock.sleep, args=(0.5,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock() == 25.0
    assert clock.sleeps == [0.5] * 50


def test_sleeping_tasks_wake_in_the_order_of_their_times() -> None:
    """Sleeping tasks wake by time, whatever the order in which they began to sleep."""
    clock = VirtualClock(0.0)
    woken: list[tuple[float, int]] = []

    async def sleep(number: int, *naps: float) -> None:
        for nap in naps:
            await clock.asleep(nap)
            woken.append((clock(), number))

    async def main() -> None:
        await asyncio.gather(sleep(1, 5.0, 5.0), sleep(2, 3.0, 3.0), sleep(3, 3.0), sleep(4, -1.0))

    asyncio.run(main())
    assert woken == [(0.0, 4), (3.0, 2), (3.0, 3), (5.0, 1), (6.0, 2), (10.0, 1)]
    assert clock() == 10.0


def test_cancelled_sleep_does_not_delay_others() -> None:
    """If one sleeping task is cancelled, the other tasks still wake in time."""
    clock = VirtualClock(0.0)

    async def main() -> None:
        long = asyncio.create_task(clock.asleep(1.0))
        other = asyncio.create_task(clock.asleep(2.0))
        same = asyncio.create_task(clock.asleep(2.0))
        await asyncio.sleep(0)
        long.cancel()
        await clock.asleep(1.5)
        same.cancel()
        await other
        alone = asyncio.create_task(clock.asleep(9.0))
        await asyncio.sleep(0)
        alone.cancel()
        for _ in range(9):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert clock() == 2.0


def test_restarted_sleeps_delay_others_for_a_limited_time() -> None:
    """A task that restarts its sleep again and again delays other tasks only for a limited time."""
    clock = VirtualClock(0.0)

    async def main() -> int:
        short = asyncio.create_task(clock.asleep(1.0))
        begun = 0
        while not short.done() and begun < 5000:
            restarted = asyncio.create_task(clock.asleep(50.0))
            await asyncio.sleep(0)
            restarted.cancel()
            begun += 1
        short.cancel()
        return begun

    assert asyncio.run(main()) < 5000
    assert clock() == 1.0


@pytest.mark.parametrize(
    "seconds", [float("nan"), float("inf"), 10**400], ids=["NaN", "infinity", "beyond a float"]
)
def test_seconds_that_never_pass_are_refused(seconds: float) -> None:
    """Every method that lets time pass refuses NaN and infinity, and leaves the clock unchanged."""
    clock = VirtualClock(5.0)
    wanted = "^seconds: must be a finite number of seconds, got "
    for blocks in (clock.sleep, clock.advance):
        with pytest.raises(ValueError, match=wanted):
            blocks(seconds)
    for awaited in (clock.asleep, clock.aadvance):
        with pytest.raises(ValueError, match=wanted):
            asyncio.run(awaited(seconds))
    assert (clock(), clock.sleeps) == (5.0, [])
