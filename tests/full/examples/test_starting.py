"""Starting analyses: raw pictures, parents, request ids, dry runs; and finding them again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.analysis.messages import AuthenticateRequest, Image, ScoreRequest
from examples.analysis.router import NAMES
from tests.full.examples.conftest import encoded, flat
from tests.full.examples.serving import Json, Server, as_json, complaint

RAW_VERBS = ("detect", "segment", "classify", "score", "explain", "extract")
GRAVEL = encoded("gravel.png").content
SMALL = as_json(ScoreRequest(image=flat(16, 16)))
CUT = as_json(ScoreRequest(image=Image(content=GRAVEL[: len(GRAVEL) // 2])))
EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    """A server without operations."""
    server = Server.on(tmp_path / "operations.db")
    yield server
    server.close()


def raw(server: Server, verb: str, body: bytes, content_type: str) -> httpx.Response:
    """The reply to a picture sent as it is."""
    headers = {"content-type": content_type}
    return server.call("POST", f"/v1/{verb}", content=body, headers=headers)


def field(reply: httpx.Response) -> str:
    """The field that a refusal complains of."""
    assert reply.status_code == 400, reply.text
    return complaint(error(reply))


def error(reply: httpx.Response) -> Json:
    """The error in a reply."""
    found: Json = reply.json()["error"]
    return found


def names(operations: list[Json]) -> list[str]:
    return [operation["name"] for operation in operations]


@pytest.mark.parametrize("verb", RAW_VERBS)
def test_a_picture_as_the_body(verb: str, server: Server) -> None:
    """The verbs of one picture take it as it is, with the defaults for the rest."""
    reply = raw(server, verb, GRAVEL, "image/PNG; version=1")
    assert reply.status_code == 200, reply.text
    in_json = server.start(verb, {"image": as_json(Image(content=GRAVEL))})
    first, second = (server.finish(name) for name in names([reply.json(), in_json]))
    assert first["response"] == second["response"]
    assert first["metadata"]["target"] == second["metadata"]["target"]


@pytest.mark.parametrize("verb", sorted(set(NAMES) - set(RAW_VERBS)))
def test_a_picture_is_not_enough(verb: str, fresh: Server) -> None:
    """The other verbs need more than a picture, and say which media type they read."""
    reply = raw(fresh, verb, GRAVEL, "image/png")
    assert (reply.status_code, error(reply)["status"]) == (415, "INVALID_ARGUMENT")
    assert "application/json" in error(reply)["message"]
    assert fresh.listed() == []


def test_raw_bodies_are_checked_alike(fresh: Server) -> None:
    """A raw body that is empty, no picture, or of another format is refused in its field."""
    assert field(raw(fresh, "score", b"", "image/png")) == "image.content"
    assert field(raw(fresh, "score", b"<svg/>", "image/svg+xml")) == "image.content"
    assert field(raw(fresh, "score", GRAVEL, "image/jpeg")) == "image.mime_type"
    reply = raw(fresh, "score", GRAVEL, "application/octet-stream")
    assert reply.status_code == 415
    assert fresh.listed() == []


def test_a_dry_run(fresh: Server) -> None:
    """With validateOnly all checks of the start are made, and nothing is stored."""
    reply = fresh.call("POST", "/v1/score", json={**SMALL, "validateOnly": True})
    assert (reply.status_code, reply.json()) == (200, {"done": True, "response": EMPTY})
    bad = fresh.call("POST", "/v1/score", json={"validate_only": True})
    assert field(bad) == "image"
    assert fresh.listed() == []


def test_a_repeated_start(fresh: Server) -> None:
    """The same request id gives the same operation, for a different request an error."""
    request_id = str(uuid.uuid4())
    first = fresh.start("score", {**SMALL, "requestId": request_id})
    done = fresh.finish(first["name"])
    assert fresh.start("score", {**SMALL, "request_id": request_id.upper()}) == done
    other = as_json(ScoreRequest(image=flat(17, 17)))
    refused = fresh.call("POST", "/v1/score", json={**other, "requestId": request_id})
    assert field(refused) == "request_id"
    assert error(refused)["details"][0]["reason"] == "REQUEST_ID_CONFLICT"
    assert names(fresh.listed()) == [first["name"]]


@pytest.mark.parametrize("parent", ["projects/p", "projects/p/locations/eu-1"])
def test_operations_of_a_project(parent: str, fresh: Server) -> None:
    """An operation started for a project lives below it, and nowhere else."""
    name = fresh.start("score", SMALL, params={"parent": parent})["name"]
    assert name.startswith(f"{parent}/operations/")
    assert fresh.finish(name)["done"]
    assert fresh.listed() == []
    listed = fresh.call("GET", f"/v1/{parent}/operations").json()
    assert names(listed["operations"]) == [name]
    assert fresh.call("DELETE", f"/v1/{name}").json() == {}
    assert fresh.call("GET", f"/v1/{name}").status_code == 404


@pytest.mark.parametrize("parent", ["projects", "projects/p/", "folders/f", "projects/-", "a//b"])
def test_no_such_parent(parent: str, fresh: Server) -> None:
    """A parent whose operations could not be read again is refused."""
    reply = fresh.call("POST", "/v1/score", json=SMALL, params={"parent": parent})
    assert field(reply) == "parent"


@pytest.fixture
def stocked(fresh: Server) -> Server:
    """A server with two scores, one of them failed, and an authentication."""
    signed = AuthenticateRequest(
        image=flat(1, 1), signature=bytes(64), public_keys=(bytes([9] * 32),)
    )
    for verb, body in [("score", SMALL), ("score", CUT), ("authenticate", as_json(signed))]:
        fresh.finish(fresh.start(verb, body)["name"])
    return fresh


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", ["authenticate", "score", "score"]),
        ('metadata.verb = "score"', ["score", "score"]),
        ('metadata.verb = "score" AND state() = SUCCEEDED', ["score"]),
        ('NOT metadata.verb = "score"', ["authenticate"]),
        ("metadata.progress_percent >= 50", ["authenticate", "score"]),
        ("metadata.progressPercent < 100 state() = FAILED", ["score"]),
        ("error.code = 3", ["score"]),
        ("response.overall = 0", ["score"]),
        (
            'metadata.stage = "DONE" OR metadata.stage = "FAILED"',
            ["authenticate", "score", "score"],
        ),
        ('type(response) = "*.AuthenticateResponse"', ["authenticate"]),
        ('metadata.target = "images/*" authenticate', ["authenticate"]),
        ('metadata.end_time < "2020-01-01T00:00:00Z"', []),
        ("done = false", []),
    ],
)
def test_filters(wanted: str, found: list[str], stocked: Server) -> None:
    """Operations are found by what their metadata, errors and responses say, newest first."""
    listed = stocked.listed(filter=wanted)
    assert [operation["metadata"]["verb"] for operation in listed] == found


def test_a_filter_that_cannot_be(stocked: Server) -> None:
    """A field that no message has is refused."""
    reply = stocked.call("GET", "/v1/operations", params={"filter": "metadata.speed > 3"})
    assert field(reply) == "filter"
