"""Applications that start again after their end: the service of each framework works again."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from lro.asgi import OperationsApp
from tests.http.servers import HOST, uvicorn_serving
from tests.integrations.counting import ANN, START, Counting, CountRequest, build, name_of
from tests.waiting import PATIENCE


def bare(counting: Counting) -> Any:
    """Make an ASGI application without a framework."""

    def authenticate(headers: Any) -> str:
        return name_of(headers.get("authorization"))

    return OperationsApp(counting.service, starts=True, authenticate=authenticate)


def within(counting: Counting) -> Any:
    """Make an application whose fallback, made with Starlette, has a lifespan of its own."""
    starlette = pytest.importorskip("starlette.applications")

    def authenticate(headers: Any) -> str:
        return name_of(headers.get("authorization"))

    fallback = starlette.Starlette(lifespan=counting.service.lifespan)
    return OperationsApp(
        counting.service, starts=True, authenticate=authenticate, fallback=fallback
    )


def _of(framework: str, name: str) -> Callable[[Counting], Any]:
    def make(counting: Counting) -> Any:
        pytest.importorskip(framework)
        found = importlib.import_module(f"tests.integrations.test_{framework}")
        return getattr(found, name)(counting)

    return make


APPLICATIONS = {
    "bare": bare,
    "within": within,
    "fastapi": _of("fastapi", "by_header"),
    "starlette": _of("starlette", "by_header"),
    "litestar": _of("litestar", "plain"),
    "quart": _of("quart", "plain"),
}


@pytest.fixture
def counting() -> Iterator[Counting]:
    """A service that is closed after the test."""
    made = build(drain=timedelta(0))
    try:
        yield made
    finally:
        made.go.set()
        made.service.close()


@pytest.mark.filterwarnings("ignore:.*(deprecated inferred style|without a body marker)")
@pytest.mark.parametrize("kind", APPLICATIONS)
def test_application_that_starts_again_serves_its_operations(kind: str, counting: Counting) -> None:
    """After each start, one application starts, waits for and lists operations."""
    app, names = APPLICATIONS[kind](counting), []
    for number in range(3):
        with (
            uvicorn_serving(app) as port,
            httpx.Client(base_url=f"http://{HOST}:{port}", headers=ANN) as client,
        ):
            waiting = {"prefer": "wait=60"}
            reply = client.post(START, json={"steps": number}, headers=waiting)
            assert reply.status_code == 200, reply.text
            assert reply.json()["done"], reply.text
            names.append(reply.json()["name"])
            listed = client.get("/v1/operations").json()["operations"]
            assert sorted(one["name"] for one in listed) == sorted(names)
        assert counting.service.edges.closed


def test_aiohttp_application_that_starts_again_serves_its_operations(counting: Counting) -> None:
    """An aiohttp application belongs to one event loop, in which it can start again."""
    web = pytest.importorskip("aiohttp.web")
    app = _of("aiohttp", "application")(counting)

    async def served() -> None:
        for number in range(1, 4):
            runner = web.AppRunner(app)
            await runner.setup()
            assert not counting.service.edges.closed
            handle = await counting.count.start_async(CountRequest(steps=number), caller="ann")
            assert (await handle.result_async(PATIENCE)).total == number
            await runner.cleanup()
            assert counting.service.edges.closed

    asyncio.run(served())


@pytest.mark.parametrize("kind", ["bare", "within", "fastapi", "starlette"])
def test_application_that_starts_twice_at_once_works_until_its_last_end(
    kind: str, counting: Counting
) -> None:
    """A test within another one, each with a TestClient, does not end the service of the outer."""
    TestClient = pytest.importorskip("starlette.testclient").TestClient
    app = APPLICATIONS[kind](counting)
    with TestClient(app, headers=ANN) as outer:
        with TestClient(app, headers=ANN) as inner:
            assert inner.post(START, json={"steps": 1}).status_code == 200
        reply = outer.post(START, json={"steps": 2}, headers={"prefer": "wait=60"})
        assert reply.json()["done"], reply.text
    assert counting.service.edges.closed
    refused = TestClient(app, headers=ANN).post(START, json={"steps": 1})
    assert refused.status_code == 503
    text = "the service is closed; `with service`, or the start of its application, opens it again"
    assert refused.json()["error"]["message"] == text
