"""The application under test in several frameworks, with a factory for each."""

from __future__ import annotations

from typing import Any

from tests.full.stopping.app import service


def nobody(request: Any = None) -> None:
    """Treat every caller as anonymous."""


def flask() -> Any:
    """Make a Flask application, the only WSGI application here; the other frameworks use ASGI."""
    from flask import Flask

    from lro.integrations.flask import FlaskOperations

    app = Flask(__name__)
    FlaskOperations(service, caller=nobody, starts=True).init_app(app)
    return app


def fastapi() -> Any:
    """Make a FastAPI application with our router, which includes the service's lifespan."""
    from fastapi import FastAPI

    from lro.integrations.fastapi import FastAPIOperations

    app = FastAPI()
    app.include_router(FastAPIOperations(service, caller=lambda: None).router(starts=True))
    return app


def starlette() -> Any:
    """Make a Starlette application with the service's lifespan."""
    from starlette.applications import Starlette

    from lro.integrations.starlette import StarletteOperations

    operations = StarletteOperations(service, caller=nobody, starts=True)
    return Starlette(routes=operations.routes, lifespan=service.lifespan)


def litestar() -> Any:
    """Make a Litestar application with our plugin."""
    from litestar import Litestar

    from lro.integrations.litestar import OperationsPlugin

    return Litestar(plugins=[OperationsPlugin(service, caller=nobody, starts=True)])


def quart() -> Any:
    """Make a Quart application with our hooks before and after serving."""
    from quart import Quart

    from lro.integrations.quart import QuartOperations

    app = Quart(__name__)
    QuartOperations(service, caller=nobody, starts=True).init_app(app)
    return app
