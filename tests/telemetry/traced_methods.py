"""Functions that return the span they run in; child processes import these functions too."""

from __future__ import annotations

from opentelemetry import baggage, trace

from lro import Job
from tests.telemetry.collected import hex_ids
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


def said() -> str:
    """Return the current span's IDs and two baggage values."""
    current = trace.get_current_span().get_span_context()
    return f"{hex_ids(current)} {baggage.get_baggage('tenant')} {baggage.get_baggage('secret')}"


def plain(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Return the span of the work, as a plain function."""
    return WorkResponse(said())


async def coroutine(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """Return the span of the work, as a coroutine function."""
    return WorkResponse(said())
