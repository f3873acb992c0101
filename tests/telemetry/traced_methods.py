"""Functions that say what span they run in, found by import in child processes too."""

from __future__ import annotations

from opentelemetry import baggage, trace

from lro import Job
from tests.telemetry.collected import hex_ids
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


def said() -> str:
    """The current span, and what the baggage has of two keys."""
    current = trace.get_current_span().get_span_context()
    return f"{hex_ids(current)} {baggage.get_baggage('tenant')} {baggage.get_baggage('secret')}"


def plain(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """A plain function."""
    return WorkResponse(said())


async def coroutine(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
    """An async one."""
    return WorkResponse(said())
