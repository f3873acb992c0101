"""Progress as metadata: which progress is reported, how often, and where the work is cancelled."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.analysis.messages import AnalysisMetadata
from examples.analysis.progress import DECODING, Progress, settle
from lro import Cancelled
from lro_client.testing import VirtualClock


class Job:
    """A job that keeps its reports and is cancelled at the given check."""

    def __init__(self, cancel_at: int = -1) -> None:
        self.reports: list[AnalysisMetadata] = []
        self.looks = 0
        self._cancel_at = cancel_at

    def report(self, metadata: AnalysisMetadata) -> None:
        self.raise_if_cancelled()
        self.reports.append(metadata)

    def raise_if_cancelled(self) -> None:
        if self.looks == self._cancel_at:
            raise Cancelled
        self.looks += 1


START = AnalysisMetadata(verb="detect", target="images/ab", stage="QUEUED")


def progress_of(job: Job, clock: VirtualClock | None = None) -> Progress:
    return Progress(job, START, ("SCANNING", "GROUPING"), clock or VirtualClock())


def test_stages_are_reported_at_once() -> None:
    """Entering a stage is reported with the stage's units; other metadata stay the same."""
    job = Job()
    progress = progress_of(job)
    progress.stage(DECODING, 1)
    progress.stage("SCANNING", 27)
    progress.stage("GROUPING")
    assert [(m.stage, m.work_total, m.progress_percent) for m in job.reports] == [
        ("DECODING", 1, 0),
        ("SCANNING", 27, 33),
        ("GROUPING", 0, 66),
    ]
    assert {(m.verb, m.target) for m in job.reports} == {("detect", "images/ab")}


def test_steps_are_reported_twenty_times_a_second() -> None:
    """A thousand steps in a second make about twenty reports, but each checks for cancellation."""
    job, clock = Job(), VirtualClock()
    progress = progress_of(job, clock)
    progress.stage("SCANNING", 1000)
    for _ in range(1000):
        clock.now += 0.001
        progress.step()
    assert 18 <= len(job.reports) - 1 <= 20
    assert job.looks == 1001
    assert progress.metadata.work_done == 1000
    clock.now += 0.3  # a slow step is reported at once
    progress.step(0)
    assert (job.reports[-1].work_done, job.reports[-1].progress_percent) == (1000, 66)


@pytest.mark.parametrize("look", range(4))
def test_cancellation_stops_the_work_at_every_progress_call(look: int) -> None:
    """Every progress call stops cancelled work, whether or not the call reports."""
    job = Job(cancel_at=look)
    progress = progress_of(job)

    def work() -> None:
        progress.stage(DECODING, 1)
        progress.step()
        progress.stage("SCANNING", 2)
        progress.step()

    with pytest.raises(Cancelled):
        work()
    assert job.looks == look


calls = st.lists(
    st.one_of(
        st.integers(1, 9),
        st.tuples(st.sampled_from([DECODING, "SCANNING", "GROUPING"]), st.integers(0, 9)),
    )
)


@given(calls)
def test_progress_never_falls(said: list[int | tuple[str, int]]) -> None:
    """The percentage never falls and never reaches 100, whatever calls an analysis makes."""
    job, clock = Job(), VirtualClock()
    progress = progress_of(job, clock)
    progress.stage(DECODING)
    for call in said:
        clock.now += 1
        if isinstance(call, int):
            progress.step(call)
        else:
            progress.stage(*call)
    percents = [m.progress_percent for m in job.reports]
    assert percents == sorted(percents)
    assert percents[-1] < 100


MIDDLE = attrs.evolve(START, stage="SCANNING", progress_percent=41, work_done=3, work_total=7)


def test_only_success_reports_100_percent() -> None:
    """After success the progress is 100 percent; after any other end it stays where it was."""
    last = settle(MIDDLE, "SUCCEEDED")
    assert last == attrs.evolve(MIDDLE, stage="DONE", progress_percent=100, work_done=7)
    for state in ("FAILED", "CANCELLED"):
        assert settle(MIDDLE, state) == attrs.evolve(MIDDLE, stage=state)
    with pytest.raises(KeyError):
        settle(MIDDLE, "IN_PROGRESS")
