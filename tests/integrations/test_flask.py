"""Operations in Flask: its routes, its authentication, its errors left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import lro
from lro import wsgi
from tests.http.servers import HOST, waitress_serving
from tests.integrations.work import (
    ANN,
    MAX_BODY,
    PARENTS,
    START,
    BadCall,
    Counting,
    answered,
    build,
    caller_of,
    check_client,
    check_google_client,
    each_bad_call,
)

flask = pytest.importorskip("flask")

from lro.integrations.flask import Operations  # noqa: E402


def caller() -> str:
    """The caller of the present request."""
    return caller_of({key.lower(): value for key, value in flask.request.headers.items()})


def application(counting: Counting, **options: Any) -> Any:
    """An application with views of its own beside the operations."""
    app = flask.Flask(__name__)
    operations = Operations(
        counting.service, caller=caller, starts=True, parents=PARENTS, max_body=MAX_BODY
    )
    operations.init_app(app, **options)

    @app.post("/own")
    def own() -> Any:
        return operations.start(counting.count)

    @app.get("/v1/own")
    def other() -> str:
        return "mine"

    return app


@pytest.fixture(scope="module")
def counting() -> Iterator[Counting]:
    """A service for all tests of this module."""
    made = build()
    with made.service:
        yield made


@pytest.fixture(scope="module")
def url(counting: Counting) -> Iterator[str]:
    """An application behind waitress."""
    with waitress_serving(application(counting)) as port:
        yield f"http://{HOST}:{port}"


@pytest.fixture(scope="module")
def plain(counting: Counting) -> Iterator[str]:
    """The same service behind the plain edge."""
    app = wsgi.OperationsApp(
        counting.service,
        starts=True,
        parents=PARENTS,
        authenticate=caller_of,
        max_body=MAX_BODY,
    )
    with waitress_serving(app) as port:
        yield f"http://{HOST}:{port}"


def test_clients_are_served(url: str, counting: Counting) -> None:
    """Ours and Google's."""
    check_client(url)
    check_google_client(url, counting)


@each_bad_call
def test_bad_call_is_answered_as_by_the_plain_edge(url: str, plain: str, call: BadCall) -> None:
    """Status, headers and body are the same."""
    bobs = httpx.post(f"{plain}{START}", json={}, headers={"authorization": "Bearer b2"})
    name = bobs.json()["name"]
    found = answered(url, call, name)
    assert found == answered(plain, call, name)
    assert found[0] == call.status


def test_view_of_the_application_starts_an_operation(url: str) -> None:
    """The body is read, and errors are those of the plain edge."""
    assert httpx.post(f"{url}/own", json={"number": 3}, headers=ANN).json()["name"]
    assert httpx.post(f"{url}/own", json={"number": "x"}, headers=ANN).status_code == 400
    assert httpx.post(f"{url}/own", json={}).status_code == 401
    large = httpx.post(f"{url}/own", content=b" " * (MAX_BODY + 1), headers=ANN)
    assert (large.status_code, large.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")


def test_errors_of_the_framework_are_left_alone(url: str) -> None:
    """Paths that are not of the operations are answered by Flask."""
    assert httpx.get(f"{url}/v1/own").text == "mine"
    for path in ("/v1/unknown", "/unknown"):
        missing = httpx.get(url + path)
        assert (missing.status_code, missing.headers["content-type"]) == (
            404,
            "text/html; charset=utf-8",
        )
    assert httpx.post(f"{url}/v1/own").status_code == 405
    assert httpx.get(url + START).status_code == 405


def test_operations_below_a_prefix(counting: Counting) -> None:
    """Names and encoded slashes are those below the prefix."""
    with waitress_serving(application(counting, url_prefix="/api")) as port:
        base = f"http://{HOST}:{port}/api"
        name = httpx.post(base + START, json={}, headers=ANN).json()["name"]
        assert httpx.get(f"{base}/v1/{name}", headers=ANN).json()["name"] == name
        assert httpx.get(f"{base}/v1/{name.replace('/', '%2F')}", headers=ANN).status_code == 404


def test_decorators_guard_every_view(counting: Counting) -> None:
    """An HTTP exception of theirs has the format of all errors; a redirect is left alone."""
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


def test_http_exception_of_the_caller_function_is_answered_in_our_format(
    counting: Counting,
) -> None:
    """``abort(403)`` is PERMISSION_DENIED."""
    app = flask.Flask(__name__)
    Operations(counting.service, caller=lambda: flask.abort(403, "not you")).init_app(app)
    refused = app.test_client().get("/v1/operations")
    assert (refused.status_code, refused.json["error"]["message"]) == (403, "not you")


def test_body_limit_of_the_application_counts_if_it_is_smaller(counting: Counting) -> None:
    """Flask's MAX_CONTENT_LENGTH bounds our views too."""
    app = application(counting)
    app.config["MAX_CONTENT_LENGTH"] = 100
    large = app.test_client().post(START, data=b" " * 101, headers=ANN)
    assert (large.status_code, "100 bytes" in large.json["error"]["message"]) == (413, True)


def test_what_is_no_application_or_function_is_refused(counting: Counting) -> None:
    """By a sentence, when it is given."""
    with pytest.raises(lro.DeclarationError, match="a Flask application"):
        Operations(counting.service, caller=caller).init_app(object())  # type: ignore[arg-type]
    with pytest.raises(lro.DeclarationError, match="owner_only"):
        Operations(counting.service)

    async def wrong() -> str:
        return "ann"

    with pytest.raises(lro.DeclarationError, match="a plain function"):
        Operations(counting.service, caller=wrong)  # type: ignore[arg-type]
