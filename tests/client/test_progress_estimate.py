"""The estimated end: exact at a constant rate, and never negative or NaN."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro_client.progress import Estimate
from tests.client.faces import Clock


@pytest.fixture
def estimate(clock: Clock) -> Estimate:
    """An estimate on a virtual clock."""
    return Estimate(clock=clock)


def test_estimate_is_unknown_before_progress(estimate: Estimate, clock: Clock) -> None:
    assert estimate.seconds_left is None
    estimate.add(None)
    estimate.add(math.nan)
    assert estimate.seconds_left is None
    estimate.add(0.5)
    assert estimate.seconds_left is None
    clock.sleep(1)
    estimate.add(0.5)
    assert estimate.seconds_left is None
    estimate.add(1.5)  # 1.5 counts as 1, so no time is left
    assert estimate.seconds_left == 0


@given(
    seconds=st.floats(0.1, 1e6),
    marks=st.lists(st.integers(1, 999), min_size=2, unique=True).map(sorted),
    window=st.floats(1, 1e4),
)
def test_constant_rate_gives_the_exact_end(seconds: float, marks: list[int], window: float) -> None:
    clock = Clock()
    began = clock.now = 0.0
    estimate = Estimate(window_seconds=window, clock=clock)
    for mark in marks:
        clock.now = began + mark / 1000 * seconds
        estimate.add(mark / 1000)
    assert estimate.seconds_left == pytest.approx(seconds - clock.now, rel=1e-6)


def test_estimate_counts_down_between_two_reports(estimate: Estimate, clock: Clock) -> None:
    """The estimate counts down during a pause that is no longer than the previous one."""
    for percent in (0, 10, 20):
        estimate.add(percent / 100)
        clock.sleep(10)
    assert estimate.seconds_left == pytest.approx(70)


def test_stalled_progress_makes_the_estimate_grow(estimate: Estimate, clock: Clock) -> None:
    """The longer progress stands still, the later the estimated end is."""
    for percent in (0, 10, 20):
        estimate.add(percent / 100)
        clock.sleep(10)
    seen = []
    for _ in range(10):
        clock.sleep(60)
        estimate.add(0.2)
        seen.append(estimate.seconds_left or 0.0)
    assert seen == sorted(seen)
    assert seen[-1] > 600


def test_progress_that_falls_lengthens_the_estimate(estimate: Estimate, clock: Clock) -> None:
    """If progress falls, work was lost and must be done again, so the estimate grows."""
    for percent in (0, 40, 30):
        estimate.add(percent / 100)
        clock.sleep(10)
    left = estimate.seconds_left
    assert left is not None
    assert 30 < left < 60


def test_second_pass_is_estimated_by_its_own_rate(estimate: Estimate, clock: Clock) -> None:
    """A second pass is estimated from its own rate alone."""
    for percent in (0, 90, 0):
        estimate.add(percent / 100)
        clock.sleep(1)
    assert estimate.seconds_left is None
    clock.now += 9
    estimate.add(0.1)
    assert estimate.seconds_left == pytest.approx(90)


def test_older_report_is_ignored(estimate: Estimate, clock: Clock) -> None:
    """If ``add`` gets a report with an earlier time than the last report, the report is ignored."""
    estimate.add(0.0, clock.now - 10)
    estimate.add(0.5)
    estimate.add(0.1, clock.now - 5)
    assert estimate.seconds_left == pytest.approx(10)


def test_rate_that_is_too_small_gives_no_estimate(clock: Clock) -> None:
    """If the rate is too small to divide by, there is no estimate."""
    estimate = Estimate(clock=clock)
    estimate.add(0.0)
    clock.now += 1e300
    estimate.add(5e-324)
    assert estimate.seconds_left is None


@given(
    st.lists(
        st.tuples(st.floats(0, 1e9), st.none() | st.floats(allow_nan=True, allow_infinity=True))
    )
)
def test_estimate_is_never_negative_or_nan(reports: list[tuple[float, float | None]]) -> None:
    clock = Clock()
    estimate = Estimate(clock=clock)
    for pause, fraction in reports:
        estimate.add(fraction)
        clock.now += pause
        left = estimate.seconds_left
        assert left is None or 0 <= left < math.inf
