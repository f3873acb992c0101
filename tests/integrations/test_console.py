"""The console in each framework, with the framework's own authentication."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lro.errors import DeclarationError
from tests.http.servers import waitress_serving
from tests.integrations.console_checks import *  # noqa: F403
from tests.integrations.console_checks import CONSOLE, ServedConsole, serving_console
from tests.integrations.counting import Counting, build, name_of

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated inferred style")

Served = contextlib.AbstractContextManager[ServedConsole]


def starlette() -> Served:
    """Below a mount."""
    pytest.importorskip("starlette")
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import Mount

    from lro.integrations.starlette import Operations

    def make(counting: Counting, caller: Any) -> Any:
        operations = Operations(counting.service, caller=caller, console=CONSOLE)
        return Starlette(
            routes=[Mount("/in ü", routes=operations.routes)], lifespan=counting.service.lifespan
        )

    def caller(request: Request) -> str:
        return name_of(request.headers.get("authorization"))

    return serving_console(make, caller, "/in%20ü")


def fastapi() -> Served:
    """Below a prefix, with a dependency."""
    pytest.importorskip("fastapi")
    from fastapi import FastAPI, Request

    from lro.integrations.fastapi import Operations

    def make(counting: Counting, caller: Any) -> Any:
        app = FastAPI()
        operations = Operations(counting.service, caller=caller)
        app.include_router(operations.router(console=CONSOLE), prefix="/api")
        return app

    async def caller(request: Request) -> str:
        return name_of(request.headers.get("authorization"))

    caller.__annotations__["request"] = Request
    return serving_console(make, caller, "/api")


def litestar() -> Served:
    """Below a prefix, with a dependency."""
    pytest.importorskip("litestar")
    from litestar import Litestar, Request

    from lro.integrations.litestar import OperationsPlugin

    def make(counting: Counting, caller: Any) -> Any:
        plugin = OperationsPlugin(counting.service, caller=caller, prefix="/api", console=CONSOLE)
        return Litestar(plugins=[plugin], logging_config=None)

    def caller(request: Any) -> str:
        return name_of(request.headers.get("authorization"))

    caller.__annotations__["request"] = Request[Any, Any, Any]
    return serving_console(make, caller, "/api")


def quart() -> Served:
    """Below a prefix."""
    pytest.importorskip("quart")
    from quart import Quart, request

    from lro.integrations.quart import Operations

    def make(counting: Counting, caller: Any) -> Any:
        app = Quart("console")
        operations = Operations(counting.service, caller=caller, console=CONSOLE)
        operations.init_app(app, prefix="/api")
        return app

    return serving_console(make, lambda: name_of(request.headers.get("authorization")), "/api")


def aiohttp() -> Served:
    """In a part of an application."""
    pytest.importorskip("aiohttp")
    from aiohttp import web

    from lro.integrations.aiohttp import Operations
    from tests.integrations.test_aiohttp import aiohttp_serving, caller

    def make(counting: Counting, found: Any) -> Any:
        whole, part = web.Application(), web.Application()
        Operations(counting.service, caller=found, console=CONSOLE).setup(part)
        whole.add_subapp("/api", part)
        return whole

    return serving_console(make, caller, "/api", serve=aiohttp_serving)


def flask() -> Served:
    """Below a prefix of the blueprint."""
    module = pytest.importorskip("flask")
    from lro.integrations.flask import Operations

    def make(counting: Counting, caller: Any) -> Any:
        app = module.Flask(__name__)
        operations = Operations(counting.service, caller=caller, console=CONSOLE)
        operations.init_app(app, url_prefix="/api")
        return app

    def caller() -> str:
        return name_of(module.request.headers.get("authorization"))

    return serving_console(make, caller, "/api", serve=waitress_serving, streams=False)


FRAMEWORKS: dict[str, Callable[[], Served]] = {
    one.__name__: one for one in (starlette, fastapi, litestar, quart, aiohttp, flask)
}


@pytest.fixture(params=FRAMEWORKS, scope="module")
def console(request: pytest.FixtureRequest) -> Iterator[ServedConsole]:
    """An application behind a server of its kind."""
    with FRAMEWORKS[request.param]() as found:
        yield found


def test_console_is_a_path_or_says_more() -> None:
    """By default there is none; what is neither is named."""
    counting = build(owner_only=False, authorize=None)
    integration = pytest.importorskip("lro.integrations.starlette")
    plain = integration.Operations(counting.service).routes
    assert len(integration.Operations(counting.service, console="/console/").routes) > len(plain)
    for wrong in (7, "console", "/"):
        with pytest.raises(DeclarationError):
            integration.Operations(counting.service, console=wrong)
    counting.service.close()
