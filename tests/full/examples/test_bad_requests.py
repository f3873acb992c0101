"""Every endpoint refuses invalid requests with the right code and field, and stores nothing.

Other tests cover the limits of a single picture or field; these cover each field of a request.
"""

from __future__ import annotations

import base64
import functools
import json

import pytest

from examples.analysis.router import NAMES
from tests.full.examples.conftest import Refused, flat, saved
from tests.full.examples.serving import Json, Server, complaint
from tests.full.examples.spoiled import KEY, NOISE, PICTURE, PLACES, good, image, with_picture

LEAST_SIDES = {
    "detect": 24, "verify": 32, "compare": 16, "segment": 16, "classify": 64, "authenticate": 1,
    "score": 16, "explain": 64, "extract": 1, "track": 8,
}  # fmt: skip


@pytest.mark.parametrize("verb", NAMES)
def test_every_endpoint_refuses_an_empty_or_foreign_body(
    verb: str, empty: Server, refused_by: Refused
) -> None:
    """A valid body is accepted; an empty body or a body of another type is refused."""
    reply = empty.call("POST", f"/v1/{verb}", json={**good(verb), "validateOnly": True})
    assert reply.status_code == 200, reply.text
    for body in (b"", b" \r\n", b"{}", b'{"image": null}'):
        assert refused_by(verb, body) == ("frames" if verb == "track" else "image")
    for body in (b"{", b"[]", b"null", b"\xff\xfe", b'{"seed": NaN}'):
        assert refused_by(verb, body) == "body"
    assert refused_by(verb, {**good(verb), "speed": 1}) == "speed"
    content, headers = json.dumps(good(verb)).encode(), {"content-type": "text/plain"}
    reply = empty.call("POST", f"/v1/{verb}", content=content, headers=headers)
    assert (reply.status_code, reply.json()["error"]["status"]) == (415, "INVALID_ARGUMENT")


def test_body_over_the_limit_is_refused(empty: Server) -> None:
    """A body of 32 MiB is read, and a body that is one byte longer is refused."""
    body = b" " * (32 * 1024 * 1024)
    assert empty.call("POST", "/v1/detect", content=body).status_code == 400
    reply = empty.call("POST", "/v1/detect", content=body + b" ")
    assert (reply.status_code, reply.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")
    assert complaint(reply.json()["error"]) == "body"


@functools.cache
def too_long() -> bytes:
    return base64.b64encode(PICTURE + bytes(8 * 1024 * 1024 + 1 - len(PICTURE)))


@pytest.mark.parametrize(("verb", "field"), PLACES)
def test_each_picture_of_a_request_is_checked_by_its_header(
    verb: str, field: str, refused_by: Refused
) -> None:
    """A picture with invalid content, a wrong type or a wrong size is refused by its header."""
    for content in (b"a cat on a mat", b"", flat(1281, 64, "L").content):
        assert refused_by(verb, with_picture(verb, field, image(content))) == f"{field}.content"
    wrong = with_picture(verb, field, image(PICTURE, "image/jpeg"))
    assert refused_by(verb, wrong) == f"{field}.mime_type"
    no_base64 = with_picture(verb, field, {"content": "iVBO Rw0K"})
    assert refused_by(verb, no_base64) == f"{field}.content"
    with_address = {**image(PICTURE), "url": "http://pictures.example/1"}
    assert refused_by(verb, with_picture(verb, field, with_address)) == f"{field}.url"
    body = json.dumps(with_picture(verb, field, {"content": "*"})).encode()
    assert refused_by(verb, body.replace(b"*", too_long())) == f"{field}.content"
    if side := LEAST_SIDES[verb] - 1:
        small = image(flat(side, max(side, 64 if side > 3 else 1)).content)
        assert refused_by(verb, with_picture(verb, field, small)) == f"{field}.content"


def labelled(*labels: str) -> list[Json]:
    """Return an example for each of these labels."""
    return [{"label": label, "image": image(PICTURE)} for label in labels]


def key(pattern: bytes) -> str:
    return base64.b64encode(pattern).decode()


@pytest.mark.parametrize(
    ("verb", "changes", "field"),
    [
        ("detect", {"minSizePx": 40.5}, "min_size_px"),
        ("detect", {"maxResults": 201}, "max_results"),
        ("segment", {"method": "CUBES"}, "method"),
        ("segment", {"splitTouching": "true"}, "split_touching"),
        ("extract", {"features": ["PALETTE", "SMELL"]}, "features[1]"),
        ("track", {"box": {"x": "left", "width": 9, "height": 9}}, "box.x"),
        *((verb, {"examples": labelled("one")}, "examples") for verb in ("classify", "explain")),
        ("classify", {"examples": labelled("one", "one")}, "examples"),
        ("classify", {"examples": labelled(*("ab" * 33)[:65])}, "examples"),
        ("classify", {"examples": labelled("one", "")}, "examples[1].label"),
        ("classify", {"examples": labelled("x" * 65, "two")}, "examples[0].label"),
        ("classify", {"examples": [*labelled("one"), {"label": "two"}]}, "examples[1].image"),
        ("explain", {"label": "three"}, "label"),
        ("explain", {"label": "x" * 1_000_000}, "label"),
        ("explain", {"label": "three", "examples": labelled("one", "two")}, "label"),
        ("authenticate", {"signature": key(bytes(63))}, "signature"),
        ("authenticate", {"publicKeys": []}, "public_keys"),
        ("authenticate", {"publicKeys": [KEY] * 17}, "public_keys"),
        ("authenticate", {"publicKeys": [KEY, key(bytes(31))]}, "public_keys[1]"),
        ("authenticate", {"publicKeys": [key(b"\1" + bytes(31))]}, "public_keys[0]"),
        ("extract", {"features": ["PALETTE", "PALETTE"]}, "features[1]"),
        ("track", {"frames": [image(PICTURE)]}, "frames"),
        ("track", {"frames": [image(PICTURE)] * 65}, "frames"),
        ("track", {"image": image(PICTURE)}, "frames"),
        ("track", {"frames": [image(PICTURE), {}]}, "frames[1].content"),
        ("track", {"frames": [], "image": image(PICTURE)}, "image.content"),
        ("track", {"box": {"x": -1, "width": 9, "height": 9}}, "box.x"),
        ("track", {"box": {"y": -1, "width": 9, "height": 9}}, "box.y"),
        ("track", {"box": None}, "box"),
        ("track", {"box": {"width": 3, "height": 9}}, "box"),
        ("track", {"box": {"width": 9, "height": -9}}, "box"),
    ],
)
def test_field_that_is_wrong_is_named(
    verb: str, changes: Json, field: str, refused_by: Refused
) -> None:
    """The error names a field that has a wrong type or contradicts other fields."""
    assert refused_by(verb, {**good(verb), **changes}) == field


def failed(server: Server, verb: str, body: Json) -> Json:
    """Start an operation that must fail, and return its error."""
    last = server.finish(server.start(verb, body)["name"])
    assert "response" not in last
    metadata = last["metadata"]
    assert (metadata["stage"], metadata["createTime"] <= metadata["endTime"]) == ("FAILED", True)
    assert metadata.get("progressPercent", 0) < 100
    found: Json = last["error"]
    return found


HALF = image(PICTURE[: len(PICTURE) // 2])


@pytest.mark.parametrize(("verb", "field"), [one for one in PLACES if one != ("track", "image")])
def test_picture_that_cannot_be_decoded_fails_the_operation(
    verb: str, field: str, server: Server
) -> None:
    """A fault that only decoding can find fails the operation; the error names the field."""
    body = with_picture(verb, field, HALF)
    if verb == "authenticate":
        body["scope"] = "PIXELS"
    error = failed(server, verb, body)
    assert (error["code"], complaint(error)) == (3, f"{field}.content")


OTHER_SIZE = image(saved(NOISE[:60]).content)
BOXES = [{"x": x, "y": y, "width": 16, "height": 16} for x, y in ((49, 0), (0, 2**31 - 1))]


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("compare", with_picture("compare", "reference", OTHER_SIZE), "image"),
        ("track", with_picture("track", "frames[1]", OTHER_SIZE), "frames[1].content"),
        *(("track", {**good("track"), "box": box}, "box") for box in BOXES),
    ],
)
def test_box_outside_the_upright_picture_fails_the_operation(
    verb: str, body: Json, field: str, server: Server
) -> None:
    """If a box or a second picture does not fit the first picture, the error states the sizes."""
    error = failed(server, verb, body)
    assert (error["code"], complaint(error)) == (3, field)
    assert "64 x 64" in error["message"]
    assert field == "box" or "64 x 60" in error["message"]
