"""Jobs for tests that call the function of a method by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lro._engine.job import Job, JobControl


def job_for(publish: Callable[[Any], None], *, metadata: object | None = None) -> Job[Any]:
    """Return the job of a first attempt without a time limit.

    ``publish`` is called with each report, and what it raises is raised by ``job.report``.
    ``metadata`` is what callers see before the first report.
    """
    control = JobControl(
        name="operations/test",
        attempt=1,
        publish=publish,
        recall=lambda: metadata,
        clock=time.monotonic,
    )
    return control.job
