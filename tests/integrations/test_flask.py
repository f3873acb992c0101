"""The integration into Flask: views, callers, decorators, limits, errors."""

from __future__ import annotations

from typing import Any

import pytest

import lro
from tests.http.servers import waitress_serving
from tests.integrations.counting import (
    ANN,
    CONSOLE,
    OPTIONS,
    OWN,
    START,
    Counting,
    name_of,
    refused,
    served_by,
)
from tests.integrations.wsgi_checks import *  # noqa: F403

flask = pytest.importorskip("flask")

from werkzeug.exceptions import ClientDisconnected  # noqa: E402

from lro.integrations.flask import FlaskOperations  # noqa: E402


def caller() -> str:
    """Return the caller of the current request."""
    if status := refused(flask.request.headers):
        flask.abort(status, "not you")
    return name_of(flask.request.headers.get("authorization"))


def application(counting: Counting, **options: Any) -> Any:
    """Make an application with a view of its own beside the operations."""
    app = flask.Flask(__name__)
    operations = FlaskOperations(counting.service, caller=caller, starts=True, **OPTIONS)
    operations.init_app(app, **options)

    @app.post(OWN)
    def own() -> Any:
        return operations.start(counting.count)

    return app


def prefixed(counting: Counting) -> Any:
    """Make an application with the operations below a prefix with a variable."""
    app = application(counting, url_prefix="/api/<tenant>")
    app.before_request(lambda: flask.request.form.get("theme"))
    return app


def unnamed(counting: Counting) -> Any:
    """Make an application with a console and no ``caller``."""
    app = flask.Flask(__name__)
    FlaskOperations(counting.service, console=CONSOLE).init_app(app)
    return app


WSGI: Any = {"serve": waitress_serving, "streams": False, "closes": False}
served = served_by(
    plain=(application, {**WSGI, "unnamed": unnamed}),
    prefixed=(prefixed, {**WSGI, "prefix": "/api/%C3%BC%20b"}),
)


@pytest.fixture
def wsgi_app(counting: Counting) -> Any:
    """The application without a server."""
    return application(counting)


def test_decorators_guard_every_view(counting: Counting) -> None:
    """An HTTP error that a decorator raises gets our format; a redirect is sent unchanged."""
    seen: list[str] = []

    def guard(view: Any) -> Any:
        def guarded(**values: Any) -> Any:
            seen.append(flask.request.path)
            if flask.request.args.get("colour") == "red":
                flask.abort(flask.redirect("/sign-in"))
            if "authorization" not in flask.request.headers:
                flask.abort(401, "sign in first")
            return view(**values)

        return guarded

    caller = application(counting, decorators=[guard]).test_client()
    refused = caller.get("/v1/operations")
    assert (refused.status_code, refused.json["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert refused.json["error"]["message"] == "sign in first"
    assert caller.get("/v1/operations", headers=ANN).status_code == 200
    assert caller.get("/v1/operations?colour=red").headers["location"] == "/sign-in"
    assert seen == ["/v1/operations"] * 3


def test_body_limit_of_the_application_counts_if_it_is_smaller(counting: Counting) -> None:
    """A body over Flask's MAX_CONTENT_LENGTH gets 413, though our limit is larger."""
    app = application(counting)
    app.config["MAX_CONTENT_LENGTH"] = 100
    large = app.test_client().post(START, data=b" " * 101, headers=ANN)
    assert (large.status_code, "100 bytes" in large.json["error"]["message"]) == (413, True)


def test_views_have_the_names_that_flask_extensions_expect(counting: Counting) -> None:
    """Each view has a module and a name, by which Flask-WTF identifies it."""
    app = flask.Flask(__name__)
    routes = FlaskOperations(counting.service, caller=caller).init_app(app)
    views = [view for name, view in app.view_functions.items() if name.startswith(routes.name)]
    assert views
    assert all(f"{view.__module__}.{view.__name__}" for view in views)


def test_body_that_cannot_be_read_is_malformed(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the client disconnects while the body is read, the reply is 400."""

    def broken(_: object) -> bytes:
        raise ClientDisconnected

    monkeypatch.setattr(flask.Request, "get_data", broken)
    reply = application(counting).test_client().post(START, json={}, headers=ANN)
    assert (reply.status_code, reply.json["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_invalid_flask_application_or_function_is_refused(counting: Counting) -> None:
    """A wrong application, no ``caller`` and an async ``caller`` each raise a DeclarationError."""
    with pytest.raises(lro.DeclarationError, match="a Flask application"):
        FlaskOperations(counting.service, caller=caller).init_app(object())  # type: ignore[arg-type]
    with pytest.raises(lro.DeclarationError, match="owner_only"):
        FlaskOperations(counting.service)

    async def wrong() -> str:
        return "ann"

    with pytest.raises(lro.DeclarationError, match="a plain function"):
        FlaskOperations(counting.service, caller=wrong)  # type: ignore[arg-type]
