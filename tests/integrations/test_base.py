"""What the integrations share, and what they need installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator

import pytest

import lro
from lro.http import OperationsEdge, drive
from lro.integrations._base import below_prefix, error_of, make_edge, path_rules
from tests.integrations.counting import CountRequest, build


@pytest.mark.parametrize(
    ("status", "code", "http"),
    [
        (400, lro.Code.INVALID_ARGUMENT, 400),
        (401, lro.Code.UNAUTHENTICATED, 401),
        (403, lro.Code.PERMISSION_DENIED, 403),
        (404, lro.Code.NOT_FOUND, 404),
        (413, lro.Code.INVALID_ARGUMENT, 413),
        (415, lro.Code.INVALID_ARGUMENT, 415),
        (429, lro.Code.RESOURCE_EXHAUSTED, 429),
        (503, lro.Code.UNAVAILABLE, 503),
    ],
)
def test_exception_of_a_framework_becomes_the_error_of_its_status(
    status: int, code: lro.Code, http: int
) -> None:
    """With its text and its status; transient errors say when to try again."""
    service = build().service
    reply = lro.http.error_reply(error_of(status, "no"), service.types, service.domain)
    assert reply.status == http
    assert f'"status":"{code.name}"' in reply.body.decode()
    assert '"no"' in reply.body.decode() or ": no" in reply.body.decode()
    assert ("retry-after" in dict(reply.headers)) == (status in (429, 503))
    service.close()


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        (None, "Bearer"),
        ({"X-A": "b", "WWW-Authenticate": 'Basic realm="a"'}, 'Basic realm="a"'),
        ({"www-authenticate": "bad\n"}, "Bearer"),
    ],
)
def test_challenge_of_an_exception_is_kept_if_it_is_valid(
    headers: dict[str, str] | None, challenge: str
) -> None:
    """Every 401 has one."""
    error = error_of(401, "who?", headers)
    assert isinstance(error, lro.errors.Unauthenticated)
    assert error.challenge == challenge


def test_rules_name_parameters_after_their_collections() -> None:
    """As Google's discovery documents do; a collection within itself gets another name."""
    service = build(owner_only=False, authorize=None).service
    edge = make_edge(
        service, caller=None, starts=True, options={"parents": ["a-b/*/a-b/*", "fixed/eu"]}
    )
    rules = path_rules(edge)
    paths = {rule.path("<*>", "<path:*>") for rule in rules}
    assert "/v1/a-b/<a_b>/a-b/<a_b_>/operations/<path:operation>:wait" in paths
    assert {"/v1/fixed/eu/operations", "/v1/operations:batchGet", "/v1/things:count"} <= paths
    verbs = [rule for rule in rules if rule.parts[-1] in (":cancel", ":wait", ":watch")]
    others = [rule for rule in rules if rule.rpc in ("GetOperation", "DeleteOperation")]
    assert max(map(rules.index, verbs)) < min(map(rules.index, others))
    service.close()


@pytest.mark.parametrize(
    ("raw", "decoded", "own", "below"),
    [
        ("/v1/operations/a", "/v1/operations/a", "/v1/operations/a", "/v1/operations/a"),
        ("/p/v1/operations/a%2Fb", "/p/v1/operations/a/b", "/v1/operations/a/b", None),
        ("/%C3%BC/q/v1/operations/a%2Fb", "/ü/q/v1/operations/a/b", "/v1/operations/a/b", None),
    ],
)
def test_prefix_is_cut_from_the_raw_path(
    raw: str, decoded: str, own: str, below: str | None
) -> None:
    """Escapes below it stay."""
    assert below_prefix(raw, decoded, own) == (below or "/v1/operations/a%2Fb")


def test_missing_caller_is_called_caller(caplog: pytest.LogCaptureFixture) -> None:
    """In the error, and in the warning of a service with ``authorize`` alone."""
    counting = build()
    with pytest.raises(lro.DeclarationError, match="caller=lambda request: None"):
        make_edge(counting.service, caller=None, starts=False, options={})
    counting.service.close()
    asked = build(owner_only=False)
    make_edge(asked.service, caller=None, starts=False, options={})
    assert [record.getMessage() for record in caplog.records if record.name == "lro"] == [
        "the integration has no caller: authorize gets no names of callers"
    ]
    asked.service.close()


@pytest.mark.parametrize(
    "name", ["aiohttp", "django", "fastapi", "flask", "litestar", "quart", "starlette"]
)
def test_missing_framework_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    for module in [name, *(one for one in sys.modules if one.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    ours = f"lro.integrations.{name}"
    for module in [ours, *(one for one in sys.modules if one.startswith(f"{ours}."))]:
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(lro.errors.MissingExtra, match=rf"pip install 'lro\[{name}\]'"):
        importlib.import_module(ours)


def test_start_of_a_method_of_another_service_is_refused() -> None:
    """An edge starts what its own service declares."""
    one, other = build(), build()
    edge = OperationsEdge(one.service, authenticate=lambda headers: "ann")
    request = lro.http.HttpRequest(method="POST", path="/")
    with pytest.raises(lro.errors.HookFailed, match="not declared by this service"):
        next(edge.start(request, other.count))
    one.service.close()
    other.service.close()


def test_endpoint_of_the_application_may_start_by_get() -> None:
    """What pages of other sites may ask for is the application's to say."""
    counting = build(owner_only=False)
    edge = OperationsEdge(counting.service, authenticate=lambda headers: "ann")
    headers = {"sec-fetch-site": "cross-site"}
    request = lro.http.HttpRequest(method="GET", path="/", headers=headers)
    steps = edge.start(request, counting.count, CountRequest(steps=1))
    assert drive(steps, counting.service)[0].name
    counting.service.close()


def test_service_is_closed_before_what_the_application_closes() -> None:
    """The state that the application's lifespan yields is passed on."""
    counting, seen = build(), []

    @contextlib.asynccontextmanager
    async def mine(app: str) -> AsyncIterator[dict[str, str]]:
        seen.append("opened")
        yield {"app": app}
        with pytest.raises(lro.errors.Unavailable):
            counting.count.start(CountRequest())
        seen.append("closed")

    async def run() -> None:
        async with counting.service.lifespan_around(mine)("app") as state:
            assert state == {"app": "app"}
            await counting.count.start_async(CountRequest(), caller="ann")

    asyncio.run(run())
    assert seen == ["opened", "closed"]
