"""Start analyses with raw pictures as bodies, and below parents."""

from __future__ import annotations

import httpx
import pytest

from examples.analysis.messages import Image, ScoreRequest
from examples.analysis.router import NAMES
from tests.full.examples.conftest import Refused, encoded, flat
from tests.full.examples.serving import Server, as_json

RAW_VERBS = ("detect", "segment", "classify", "score", "explain", "extract")
GRAVEL = encoded("gravel.png").content
SMALL = as_json(ScoreRequest(image=flat(16, 16)))


def raw(server: Server, verb: str, content_type: str) -> httpx.Response:
    """POST a picture as the body and return the reply."""
    headers = {"content-type": content_type}
    return server.call("POST", f"/v1/{verb}", content=GRAVEL, headers=headers)


@pytest.mark.parametrize("verb", NAMES)
def test_verb_of_one_picture_accepts_it_as_the_body(verb: str, server: Server) -> None:
    """Verbs of one picture accept it as the body; other verbs refuse it and ask for JSON."""
    assert raw(server, verb, "application/octet-stream").status_code == 415
    reply = raw(server, verb, "image/PNG; version=1")
    if verb not in RAW_VERBS:
        assert reply.status_code == 415
        assert "application/json" in reply.json()["error"]["message"]
        return
    assert reply.status_code == 200, reply.text
    in_json = server.start(verb, {"image": as_json(Image(content=GRAVEL))})
    first, second = (server.finish(one["name"]) for one in (reply.json(), in_json))
    assert first["response"] == second["response"]
    assert first["metadata"]["target"] == second["metadata"]["target"]


def test_invalid_raw_body_is_refused_with_its_field(refused_by: Refused) -> None:
    """The error names the field of a body that is empty, invalid or of another media type."""
    assert refused_by("score", b"", "image/png") == "image.content"
    assert refused_by("score", b"<svg/>", "image/svg+xml") == "image.content"
    assert refused_by("score", GRAVEL, "image/jpeg") == "image.mime_type"


@pytest.mark.parametrize("parent", ["projects/p", "projects/p/locations/eu-1"])
def test_operation_of_a_project_is_found_only_below_it(parent: str, server: Server) -> None:
    """An operation that was started for a project is found only below the project."""
    name = server.start("score", SMALL, params={"parent": parent})["name"]
    assert name.startswith(f"{parent}/operations/")
    assert server.finish(name)["done"]
    assert name not in [one["name"] for one in server.listed()]
    assert [one["name"] for one in server.listed(parent)] == [name]
    assert server.ask("DELETE", f"/v1/{name}") == {}
    assert server.call("GET", f"/v1/{name}").status_code == 404


@pytest.mark.parametrize("parent", ["projects", "projects/p/", "folders/f", "projects/-", "a//b"])
def test_start_below_an_unknown_parent_is_refused(parent: str, refused_by: Refused) -> None:
    """A start is refused if its operation could not be read below the given parent."""
    assert refused_by(f"score?parent={parent}", SMALL) == "parent"
