"""Reports the progress of an analysis as metadata of its operation.

A verb first enters ``DECODING`` (one unit per picture), and then the ``STAGES`` of its module in
order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from examples.analysis.messages import AnalysisMetadata, Image
from lro import Job

QUEUED: Final = "QUEUED"
DECODING: Final = "DECODING"
REPORT_SECONDS: Final = 0.05
"""Minimum seconds between two reports within a stage."""


class Progress:
    """Reports progress as metadata of a job.

    Every stage is an equal part of the whole. The percentage never falls, and becomes 100 only with
    the response. Within a stage, progress is reported at most once in ``REPORT_SECONDS``, but each
    step checks if a cancel was requested.
    """

    def __init__(
        self,
        job: Job[AnalysisMetadata],
        metadata: AnalysisMetadata,
        stages: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``metadata`` has the verb and the target; ``stages`` are the stages after DECODING.

        ``clock`` returns seconds.
        """
        self.metadata = metadata
        self._job = job
        self._stages = (DECODING, *stages)
        self._clock = clock
        self._reported = clock()

    def stage(self, name: str, total: int = 0) -> None:
        """Enter a stage and report it."""
        self._advance(stage=name, done=0, total=total)
        self._report()

    def step(self, units: int = 1) -> None:
        """Count units, and report them if the last report is old enough."""
        now = self.metadata
        self._advance(stage=now.stage, done=now.work_done + units, total=now.work_total)
        if self._clock() - self._reported >= REPORT_SECONDS:
            self._report()
        else:
            self._job.raise_if_cancelled()

    def _advance(self, *, stage: str, done: int, total: int) -> None:
        share = min(done / total, 1.0) if total else 0.0
        percent = int(100 * (self._stages.index(stage) + share) / len(self._stages))
        self.metadata = attrs.evolve(
            self.metadata,
            stage=stage,
            work_done=done,
            work_total=total,
            progress_percent=min(max(percent, self.metadata.progress_percent), 99),
        )

    def _report(self) -> None:
        self._reported = self._clock()
        self._job.report(self.metadata)


def target_of(image: Image) -> str:
    """Return the target of an analysis: ``images/`` and the SHA-256 of the file in hex."""
    return f"images/{hashlib.sha256(image.content).hexdigest()}"


_LAST_STAGES: Final = {"SUCCEEDED": "DONE", "FAILED": "FAILED", "CANCELLED": "CANCELLED"}


def settle(metadata: AnalysisMetadata, state_name: str) -> AnalysisMetadata:
    """Return the metadata of an operation that ended SUCCEEDED, FAILED or CANCELLED.

    After success, the percentage is 100 and all units are done. Otherwise, the percentage and the
    units keep their last values.
    """
    stage = _LAST_STAGES[state_name]
    if stage != "DONE":
        return attrs.evolve(metadata, stage=stage)
    return attrs.evolve(
        metadata,
        stage=stage,
        progress_percent=100,
        work_done=metadata.work_total or metadata.work_done,
    )
