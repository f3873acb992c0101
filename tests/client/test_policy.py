"""Pauses between polls: the number of polls, and the delay of the result (§11.2(2), (3))."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from tenacity import RetryCallState, wait_fixed

import lro
from lro_client import CallError, Polling, Retry
from lro_client.waits import Wait, wait_exponential, wait_proportional
from tests.client.simulation import Simulation

PLAIN = Polling(jitter=0.0, wait_first=False)
"""The default policy without jitter and Waits, so that its pauses are exact."""

run_times = st.floats(0, 3600)


def pauses(wait: Wait, count: int, every: float = 0.0) -> list[float]:
    """Return the first ``count`` pauses of a policy if each poll takes ``every`` seconds."""
    polling = Polling(wait=wait, jitter=0.0)
    found: list[float] = []
    for poll in range(1, count + 1):
        found.append(polling.pause(poll, sum(found) + every * poll, None, 0.5))
    return found


@pytest.mark.parametrize(("seconds", "about", "exactly"), [(10, 25, 23), (600, 61, 58)])
def test_default_policy_makes_few_polls(seconds: float, about: int, exactly: int) -> None:
    """As specified, the policy makes about 25 polls in 10 s, and 61 in 10 minutes."""
    simulation = Simulation(ends_at=seconds)
    simulation.wait(PLAIN)
    assert len(simulation.asked) == exactly == pytest.approx(about, rel=0.1)


@given(run_times)
def test_default_policy_pauses_a_quarter_of_the_elapsed_time(run_time: float) -> None:
    """Each pause is a quarter of the time since the start, but between 0.05 s and 20 s."""
    simulation = Simulation(ends_at=run_time)
    simulation.wait(PLAIN)
    times = [when for when, _ in simulation.asked]
    assert times[0] == 0
    for before, after in itertools.pairwise(times):
        assert after - before == pytest.approx(min(max(before / 4, 0.05), 20.0))


@given(st.floats(0, 1000), st.floats(0, 1))
def test_jitter_shortens_pauses_by_a_tenth(seconds: float, chance: float) -> None:
    """Jitter shortens a pause by at most a tenth. With jitter 0 the pause is exact."""
    plain = PLAIN.pause(1, seconds, None, chance)
    changed = Polling().pause(1, seconds, None, chance)
    assert plain == wait_at(seconds)
    assert changed == pytest.approx(plain * (1 - 0.1 * chance))


def wait_at(seconds: float) -> float:
    return min(max(seconds * 0.25, 0.05), 20.0)


def test_jitter_uses_the_random_source_of_the_flow() -> None:
    """A flow gets one random number from its source for each pause."""
    chances = [0.5, 1.0, 0.0]
    simulation = Simulation(ends_at=0.14)
    polling = Polling(wait=wait_exponential(0.05, 1.0), wait_first=False)
    simulation.wait(polling, chance=chances.pop)
    assert simulation.pauses == pytest.approx([0.05, 0.045, 0.0475])


def test_share_and_bounds_of_the_proportional_policy_can_be_set() -> None:
    """The caller can set the share of the elapsed time, and the shortest and longest pause."""
    assert pauses(wait_proportional(0.5, 1.0, 3.0), 5) == [1.0, 1.0, 1.0, 1.5, 2.25]
    assert pauses(wait_proportional(0.5, 1.0, 3.0), 8)[-1] == 3.0


def test_exponential_policy_grows_from_1_s_by_half_up_to_20_s() -> None:
    """The first pause is 1 s; each later pause is 1.5 times the previous one, up to 20 s."""
    assert pauses(wait_exponential(), 4) == [1.0, 1.5, 2.25, 3.375]
    assert pauses(wait_exponential(), 2000)[-1] == 20.0
    assert pauses(wait_exponential(2.0, 3.0, 10.0), 3) == [2.0, 6.0, 10.0]


@given(st.floats(-10, 0) | st.none())
def test_retry_after_of_zero_or_less_is_ignored(retry_after: float | None) -> None:
    """A Retry-After of zero or less is ignored."""
    assert PLAIN.pause(1, 100.0, retry_after, 0.0) == 20.0


@given(st.floats(0, 1000, exclude_min=True))
def test_retry_after_replaces_the_pause(retry_after: float) -> None:
    """Retry-After may exceed the policy's maximum, has no jitter, and obeys ``max_retry_after``."""
    assert Polling().pause(1, 100.0, retry_after, 0.0) == retry_after
    bounded = Polling(max_retry_after=30.0).pause(1, 100.0, retry_after, 0.0)
    assert bounded == min(retry_after, 30.0)
    assert Polling(jitter=0.0, max_retry_after=0.0).pause(1, 40.0, retry_after, 0.0) == 10.0


def test_tenacity_wait_sees_the_error_of_the_failed_call() -> None:
    """A tenacity wait gets the error of a failed call; after a good poll it gets no error."""
    error = CallError("GetOperation", lro.Status(lro.Code.UNAVAILABLE), retry_after=7.0)
    seen: list[Any] = []

    def look(state: RetryCallState) -> float:
        assert state.outcome is not None
        seen.append(state.outcome.exception())
        return 1.0

    assert Retry(wait=look).pause(error, 1, 0.0) == 1.0
    assert Polling(wait=look, jitter=0).pause(1, 0.0, None, 0.0) == 1.0
    assert seen == [error, None]
    if not hasattr(tenacity, "wait_exception"):
        pytest.skip("this tenacity is older than its wait_exception")
    by_error = tenacity.wait_exception(lambda exc: getattr(exc, "retry_after", None) or 0.0)
    assert Retry(wait=by_error).pause(error, 1, 0.0) == 7.0
    second = tenacity.wait_fixed(1)
    for wait in (by_error, second + by_error, tenacity.wait_chain(second, second + by_error)):
        with pytest.raises(lro.DeclarationError, match="wait: must be one for polls without"):
            Polling(wait=wait)
    assert Polling(wait=tenacity.wait_chain(second + second), jitter=0).pause(1, 0, None, 0) == 2.0


def test_sum_of_waits_pauses_for_both_as_in_tenacity() -> None:
    """A sum of two waits pauses for their total time, also if the sum was made by ``sum``."""
    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    both = wait_exponential(1.0, 1.0) + wait_fixed(2.0)
    assert both(state) == 3.0
    assert sum([wait_exponential(1.0, 1.0), wait_fixed(2.0)])(state) == 3.0
