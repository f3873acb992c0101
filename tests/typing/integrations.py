"""Types of the integrations: the result of a start has the classes of its method."""

from __future__ import annotations

from typing import assert_type

from litestar import Litestar
from quart import Quart, Response
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as StarletteResponse

import lro
import lro.integrations.fastapi
import lro.integrations.litestar
import lro.integrations.quart
import lro.integrations.starlette
from tests.typing.messages import ResizeMetadata, ResizeRequest, ResizeResponse

ResizeMethod = lro.Method[ResizeRequest, ResizeResponse, ResizeMetadata]


async def in_fastapi(
    here: lro.integrations.fastapi.RequestOperations, resize: ResizeMethod
) -> lro.integrations.fastapi.Operation[ResizeResponse, ResizeMetadata]:
    """A FastAPI endpoint can return the result of a start."""
    started = await here.start(resize, ResizeRequest(), metadata=ResizeMetadata())
    assert_type(started.operation, lro.Operation)
    return started


async def in_litestar(
    here: lro.integrations.litestar.LitestarOperations, resize: ResizeMethod
) -> lro.integrations.litestar.Operation[ResizeResponse, ResizeMetadata]:
    """A Litestar handler can return the result of a start."""
    return await here.start(resize)


async def in_others(
    starlette: lro.integrations.starlette.StarletteOperations,
    quart: lro.integrations.quart.QuartOperations,
    resize: ResizeMethod,
    request: Request,
) -> None:
    """In Starlette and Quart, a start returns a response of the framework."""
    assert_type(await starlette.start(request, resize), StarletteResponse)
    assert_type(await quart.start(resize, ResizeRequest()), Response)


def applications(service: lro.Service) -> None:
    """Each framework accepts the service's lifespan, plugin or extension."""
    Starlette(lifespan=service.lifespan)
    Litestar(plugins=[lro.integrations.litestar.OperationsPlugin(service, parents=["a/*"])])
    lro.integrations.quart.QuartOperations(service).init_app(Quart("app"))
