"""Updates of an operation: each changed state is shown, until the final one (spec §11.2)."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

import lro
import lro.wire
from lro_client import AsyncClient, CallError, DecodingError, Polling, PollTimeout
from tests.client.faces import URL, Clock, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeMetadata,
    ResizeResponse,
    failed,
    packed,
    reply,
    running,
    succeeded,
)
from tests.client.simulation import Simulation, call_error

PLAIN = Polling(jitter=0.0, wait_first=False)


def metadata_every(seconds: float) -> Callable[[float], lro.AnyMessage]:
    """Return a function whose metadata changes after each period of this length."""
    return lambda now: lro.AnyMessage("x/acme.Progress", {"step": int(now / seconds)})


def step_of(operation: lro.Operation) -> int:
    assert operation.metadata is not None
    payload: Any = operation.metadata.payload
    return int(payload["step"])


def answers(*states: Any) -> Callable[[httpx.Request], httpx.Response]:
    """Return a handler that answers with these states in turn."""
    left = list(states)
    return lambda _: reply(left.pop(0))


def test_updates_show_each_change_once(face: Face, clock: Clock, server: respx.Router) -> None:
    """A state equal to the previous one is not shown; the final state is shown last."""
    last = {**succeeded(), "metadata": packed("ResizeMetadata", percent=100)}
    states = [running(), running(), running(10), running(10), running(10), running(50), last]
    route = server.get().mock(side_effect=answers(*states))
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    seen = []
    for update in handle.updates():
        seen.append((update.metadata, update.done))
        assert update.operation is handle.operation
        assert update.state == handle.state == ("SUCCEEDED" if update.done else "IN_PROGRESS")
    assert seen == [
        (None, False),
        (ResizeMetadata(percent=10), False),
        (ResizeMetadata(percent=50), False),
        (ResizeMetadata(percent=100), True),
    ]
    assert route.call_count == len(states)
    assert handle.result() == ResizeResponse(size_bytes=7)


@pytest.mark.parametrize("cls", [dict, lro.OperationMetadata])
def test_progress_of_zero_differs_from_unknown_progress(
    cls: type, face: Face, clock: Clock, server: respx.Router
) -> None:
    """The fraction is None until the work reports one, which may be 0, and 1 at the end."""

    def state(**fields: Any) -> dict[str, Any]:
        return {"name": NAME, "metadata": packed("lro.v1.OperationMetadata", **fields)}

    last = {**succeeded(), "metadata": state(progressPercent=100)["metadata"]}
    states = [state(verb="resize"), state(progressPercent=0), state(progressPercent=50), last]
    server.get().mock(side_effect=answers(*states))
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, metadata=cls)
    progress = [update.progress for update in handle.updates()]
    assert [one and one.fraction for one in progress] == [None, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    "last", [succeeded(), failed(9, "no"), failed(1), {"name": NAME, "done": True}]
)
def test_updates_end_after_success_or_failure(
    last: Any, face: Face, clock: Clock, server: respx.Router
) -> None:
    """Updates end after success and failure alike. A handle that is done makes no call."""
    server.get().mock(side_effect=answers(running(), last))
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    assert [update.done for update in handle.updates()] == [False, True]
    assert [update.operation for update in handle.updates()] == [handle.operation]


def test_first_update_is_shown_at_once(face: Face, clock: Clock, server: respx.Router) -> None:
    """The first Wait is sent with a timeout of 0 s, so that it returns at once."""
    route = server.post(f"/v1/{NAME}:wait").mock(side_effect=answers(running(), succeeded()))
    steps = face.client(clock=clock).operation(NAME, **TYPES).updates()
    assert not next(steps).done
    assert [call.request.content for call in route.calls] == [b'{"timeout":"0s"}']
    assert clock.sleeps == []
    steps.close()


def test_updates_may_be_left_early(face: Face, clock: Clock, server: respx.Router) -> None:
    """If the caller leaves the iteration, no further call is made, and the handle still works."""
    route = server.get().mock(side_effect=answers(running(1), running(2), succeeded()))
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    steps = handle.updates()
    assert next(steps).metadata == ResizeMetadata(percent=1)
    steps.close()
    assert (route.call_count, clock.sleeps) == (1, [])
    assert handle.metadata == ResizeMetadata(percent=1)
    assert [update.done for update in handle.updates()] == [False, True]


def test_break_out_of_async_updates_leaves_no_task(server: respx.Router) -> None:
    """After a plain ``break`` in async updates, no task, generator or flow is left."""
    server.get().mock(side_effect=lambda _: reply(running(1)))

    async def watch() -> set[asyncio.Task[Any]]:
        async with AsyncClient(URL, polling=PLAIN) as client:
            async for _ in client.operation(NAME, **TYPES).updates():
                break
            for _ in range(5):  # the loop closes abandoned generators later
                await asyncio.sleep(0)
            return asyncio.all_tasks() - {asyncio.current_task()}

    before = flows_alive()
    assert asyncio.run(watch()) == set()
    assert flows_alive() <= before


def flows_alive() -> set[int]:
    """Return the ids of all flows in the process that wait for an operation."""
    gc.collect()
    # Unlike isinstance, type() does not read __class__, to which lazy objects would react.
    flows = [one for one in gc.get_objects() if type(one) is GeneratorType]
    return {id(one) for one in flows if one.__name__ == "_watch"}


def test_update_with_metadata_of_another_type_is_shown(face: Face, server: respx.Router) -> None:
    """An update whose metadata has another type is shown; only reading its metadata is an error."""
    state = {**succeeded(), "metadata": packed("acme.images.v9.Progress", at="x")}
    server.route().mock(return_value=reply(state))
    [update] = face.client().operation(NAME, **TYPES).updates()
    with pytest.raises(DecodingError):
        _ = update.metadata
    assert update.operation.metadata.payload == {"at": "x"}


@given(st.floats(0, 200), st.floats(0.2, 30), st.booleans())
def test_updates_poll_within_the_given_interval(ends_at: float, every: float, waits: bool) -> None:
    """Polls are at most ``every`` seconds apart, whether or not the server holds calls."""
    simulation = Simulation(ends_at=ends_at, max_hold=60 if waits else None)
    simulation.watch(Polling(jitter=0.0), every=every)
    times = [when for when, _ in simulation.asked]
    assert all(b - a <= every + 1e-6 for a, b in itertools.pairwise(times))
    assert simulation.now <= ends_at + (0 if waits else min(every, max(ends_at / 4, 0.05))) + 1e-6
    assert simulation.shown[-1].done


@given(st.floats(1, 60), st.floats(0.5, 20), st.booleans())
def test_updates_show_each_step_longer_than_the_interval(
    ends_at: float, step: float, waits: bool
) -> None:
    """Each step that lasts longer than ``every`` is shown, in order."""
    simulation = Simulation(
        ends_at=ends_at, max_hold=60 if waits else None, metadata=metadata_every(step)
    )
    simulation.watch(Polling(jitter=0.0), every=step / 2)
    steps = [step_of(operation) for operation in simulation.shown]
    assert steps == sorted(steps)
    assert set(range(int(ends_at / step))) <= set(steps)
    assert len(simulation.shown) <= len(set(steps)) + 1


def test_updates_without_an_interval_pause_as_the_polling_policy_says(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """Without WaitOperation, the policy decides the pauses, unless the caller gives ``every``."""
    policy = Polling(wait=lambda _: 7.0, jitter=0.0, wait_first=False)
    for options, pause in (({}, 7.0), ({"every": 2.0}, 2.0), ({"every": 9.0}, 7.0)):
        server.get().mock(side_effect=answers(running(), running(1), succeeded()))
        clock.sleeps.clear()
        handle = face.client(clock=clock, polling=policy).operation(NAME, **TYPES)
        assert [update.done for update in handle.updates(**options)] == [False, False, True]
        assert clock.sleeps == [pause, pause]


@given(st.floats(0, 5000))
def test_updates_without_an_interval_poll_as_rarely_as_a_wait(ends_at: float) -> None:
    """If the server lacks WaitOperation, each call is made at the time of a call of ``wait``."""
    waiting, watching = Simulation(ends_at=ends_at), Simulation(ends_at=ends_at)
    waiting.wait(Polling(jitter=0.0))
    watching.watch(Polling(jitter=0.0))
    assert [when for when, _ in watching.asked] == [when for when, _ in waiting.asked]


@given(st.floats(0, 200), st.floats(10, 150))
def test_updates_without_an_interval_are_a_second_late_if_the_server_waits(
    ends_at: float, fails_at: float
) -> None:
    """With WaitOperation, polls are at most a second apart, also after a failed call."""
    failed_calls: list[float] = []

    def fault(now: float) -> CallError | None:
        if now < fails_at or failed_calls:
            return None
        failed_calls.append(now)
        return call_error(lro.Code.UNAVAILABLE, passing=True)

    simulation = Simulation(ends_at=ends_at, max_hold=60, fault=fault)
    simulation.watch(Polling(jitter=0.0))
    times = [when for when, _ in simulation.asked]
    assert all(b - a <= 1.0 + 1e-6 for a, b in itertools.pairwise(times))
    assert simulation.shown[-1].done


def test_updates_pause_as_the_policy_says_if_waits_answer_at_once() -> None:
    """A server whose Waits return at once is polled as if it had no WaitOperation."""
    simulation = Simulation(ends_at=600, max_hold=0)
    simulation.watch(Polling(jitter=0.0))
    assert len(simulation.asked) < 80
    assert max(simulation.pauses) == 20.0


def test_updates_pause_if_waits_answer_at_once() -> None:
    simulation = Simulation(ends_at=60, max_hold=0)
    simulation.watch(Polling(jitter=0.0), every=2.0)
    assert len(simulation.asked) < 60
    assert max(simulation.pauses) == 2.0


class Slow(list[lro.Operation]):
    """A list that simulates a slow reader: each update takes a minute."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def append(self, operation: lro.Operation) -> None:
        super().append(operation)
        self.clock.now += 60


def test_deadline_limits_the_waits_of_updates() -> None:
    """Waits are held at most until the deadline, which may pass while an update is handled."""
    simulation = Simulation(ends_at=60, max_hold=60, metadata=metadata_every(1.0))
    with pytest.raises(PollTimeout) as caught:
        simulation.watch(Polling(), 10.0)
    assert simulation.now == pytest.approx(10.0)
    assert caught.value.operation == simulation.shown[-1]
    simulation = Simulation(ends_at=60, metadata=metadata_every(1.0))
    simulation.shown = Slow(simulation.clock)
    with pytest.raises(PollTimeout):
        simulation.watch(PLAIN, 5.0)
    assert len(simulation.shown) == 1
