"""The part of the /v1 router that does no I/O (spec §10)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.analysis.router import (
    Allowed,
    Answer,
    ToHealth,
    ToRouter,
    default_answer,
    health,
    route,
)
from lro import LroError
from lro.errors import HttpMethodNotAllowed, MalformedRequest, MethodNotSupported, RouteNotFound
from tests.vector_files import vectors

CASES = vectors("service_routers")["cases"]
ROUTE_CASES = [case for case in CASES if case.get("kind") != "health"]
HEALTH_CASES = [case for case in CASES if case.get("kind") == "health"]


def answer_of(method: str, path: str) -> dict[str, Any]:
    """Return the route or the error of a request, in the format of the test vectors."""
    try:
        answer: Answer = route(method, path)
    except HttpMethodNotAllowed as refused:
        return {"http": 405, "status": refused.code.name, "allow": ", ".join(refused.allow)}
    except LroError as refused:
        return {"http": refused.code.http, "status": refused.code.name}
    match answer:
        case ToRouter(name, rest):
            return {"router": name, "rest": rest}
        case Allowed(allow):
            return {"http": 204, "allow": ", ".join(allow)}
        case ToHealth():
            return {"handler": "health"}


@pytest.mark.parametrize("case", ROUTE_CASES, ids=lambda case: case["id"])
def test_request_is_routed_as_its_vector_says(case: dict[str, Any]) -> None:
    """Every request in service_routers.json has the route or the error of its vector."""
    assert answer_of(case["method"], case["path"]) == case["expect"]


@pytest.mark.parametrize("case", HEALTH_CASES, ids=lambda case: case["id"])
def test_health_report_is_as_its_vector_says(case: dict[str, Any]) -> None:
    """Every health report has the status, the body and the order of keys of its vector."""
    status, body = health(datetime.fromisoformat(case["now"]), case["ok"], case["status_value"])
    assert (status, body) == (case["expect"]["http"], case["expect"]["body"])
    assert list(body) == case["expect"]["key_order"]


@pytest.mark.parametrize("path", ["/v1/nothing/%zz", "%", "/v1/track/%ff", "/v1/health/\udc80"])
def test_malformed_path_is_refused_before_routing(path: str) -> None:
    """A malformed path is refused before any route is chosen."""
    with pytest.raises(MalformedRequest):
        route("POST", path)


def test_head_of_the_health_report_has_no_body() -> None:
    """HEAD of the health report is routed like GET, but has no body."""
    assert route("GET", "/v1/health") == ToHealth(head=False)
    assert route("HEAD", "/%761/health") == ToHealth(head=True)


def test_root_of_a_router_accepts_post_only() -> None:
    """A router's root allows only POST and finds no deeper path, with or without a handler."""
    for rest in ("", "/"):
        assert default_answer("POST", ToRouter("score", rest), "handler") == "handler"
    with pytest.raises(MethodNotSupported, match="POST /v1/track is not supported"):
        default_answer("POST", ToRouter("track", ""), None)
    for handler in ("handler", None):
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post"):
            with pytest.raises(HttpMethodNotAllowed) as refused:
                default_answer(method, ToRouter("score", "/"), handler)
            assert (refused.value.allow, refused.value.path) == (("POST",), "/v1/score/")
        for method, rest in product(("POST", "GET"), ("/x", "//", "/x/y", "/%20")):
            with pytest.raises(RouteNotFound, match="/v1/score/"):
                default_answer(method, ToRouter("score", rest), handler)


def test_timestamp_of_the_health_report_is_utc_in_milliseconds() -> None:
    """The timestamp is converted to UTC, and fractions of a millisecond are cut off."""
    zone = timezone(timedelta(hours=2))
    _, body = health(datetime(2030, 1, 1, 1, 0, 0, 999_999, zone))
    assert body["timestamp"] == "2029-12-31T23:00:00.999Z"


@pytest.mark.parametrize(
    ("now", "ok", "status"),
    [
        (datetime(2030, 1, 1), True, "operational"),
        (datetime(2030, 1, 1, tzinfo=UTC), True, "degraded"),
        (datetime(2030, 1, 1, tzinfo=UTC), False, "operational"),
    ],
)
def test_contradictory_health_report_is_refused(now: datetime, ok: bool, status: str) -> None:
    """A time without zone, or an ``ok`` that contradicts the status, raises a ValueError."""
    with pytest.raises(ValueError, match=r"time zone|cannot be"):
        health(now, ok, status)


PIECES = st.sampled_from(["/", "v1", "detect", "health", "%2F", "%", "%c3", "é", "x", "\udc80"])


@given(st.sampled_from(["GET", "POST", "OPTIONS", "x"]), st.lists(PIECES).map("".join))
def test_any_path_is_routed_or_refused_with_our_errors(method: str, path: str) -> None:
    """Every path has a route or is refused with an error of ours."""
    assert answer_of(method, path)
    assert answer_of(method, f"/v1/detect{path}")
