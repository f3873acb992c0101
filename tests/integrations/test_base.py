"""The code that all integrations share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import lro
from lro.http import OperationsEdge, run
from lro.integrations._base import FrameworkOperations, error_of
from tests.integrations.counting import Counting, CountRequest


def test_challenge_that_is_not_valid_is_replaced() -> None:
    """If a 401 of the framework has no valid challenge, the reply has the challenge ``Bearer``."""
    error = error_of(401, "who?", {"www-authenticate": "bad\n"})
    assert isinstance(error, lro.errors.Unauthenticated)
    assert error.challenge == "Bearer"


def test_error_and_warning_name_the_option_caller(
    counting: Counting, make_counting: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages about missing authentication name the integration's option ``caller``."""
    with pytest.raises(lro.DeclarationError, match="caller=lambda request: None"):
        FrameworkOperations(counting.service)
    FrameworkOperations(make_counting(owner_only=False).service)
    assert [record.getMessage() for record in caplog.records if record.name == "lro"] == [
        "the integration has no caller: authorize gets no names of callers"
    ]


def test_invalid_console_option_is_refused(shared: Counting) -> None:
    """By default there is no console; an invalid ``console`` raises a DeclarationError."""
    make = pytest.importorskip("lro.integrations.starlette").StarletteOperations
    plain = make(shared.service).routes
    assert len(make(shared.service, console="/console/").routes) > len(plain)
    for wrong in (7, "console", "/"):
        with pytest.raises(lro.DeclarationError):
            make(shared.service, console=wrong)


def test_endpoint_of_the_application_may_start_by_get(make_counting: Any) -> None:
    """A cross-site GET may start an operation, so applications must protect their endpoints."""
    counting = make_counting(owner_only=False)
    edge = OperationsEdge(counting.service, authenticate=lambda headers: "ann")
    headers = {"sec-fetch-site": "cross-site"}
    request = lro.http.HttpRequest(method="GET", path="/", headers=headers)
    steps = edge.start(request, counting.count, CountRequest(steps=1))
    assert run(steps)[0].name


def test_service_is_closed_before_what_the_application_closes(counting: Counting) -> None:
    """The service is already closed when the application's own lifespan cleans up."""
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def mine() -> AsyncIterator[None]:
        seen.append("opened")
        async with counting.service.lifespan():
            yield
        with pytest.raises(lro.errors.Unavailable):
            counting.count.start(CountRequest())
        seen.append("closed")

    async def run() -> None:
        async with mine():
            await counting.count.start_async(CountRequest(), caller="ann")

    asyncio.run(run())
    assert seen == ["opened", "closed"]
