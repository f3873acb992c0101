"""Bad input: every endpoint refuses it with the right code and field, and nothing is stored."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import pytest

from examples.analysis.router import NAMES
from tests.full.examples.conftest import Refused
from tests.full.examples.serving import Json, Server, complaint
from tests.full.examples.spoiled import KEY, PICTURE, good, image, with_picture


def test_the_good_requests_are_good(empty: Server) -> None:
    """What the other tests spoil is taken as it is."""
    for verb in NAMES:
        reply = empty.call("POST", f"/v1/{verb}", json={**good(verb), "validateOnly": True})
        assert reply.status_code == 200, reply.text


# --- the body ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", NAMES)
@pytest.mark.parametrize("body", [b"", b" \r\n", b"{}", b'{"image": null}'])
def test_empty_body_is_refused(verb: str, body: bytes, refused_by: Refused) -> None:
    """An empty body lacks the picture, or the frames."""
    assert refused_by(verb, body) == ("frames" if verb == "track" else "image")


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"nope", b'{"image": }', b"{} {}", b"{'image': {}}", b'{"image": {},}', b"\xff\xfe",
        b"[]", b'"image"', b"7", b"null", b"true", b'{"image": {}, "image": {}}', b"[" * 5000,
        b'{"seed": NaN}', b'{"ratio": Infinity}', b'{"ratio": -Infinity}', b'{"image": "\\ud800"}',
    ],
)  # fmt: skip
def test_no_json_object(body: bytes, refused_by: Refused) -> None:
    """A body that is not one JSON object is refused as such."""
    assert {refused_by(verb, body) for verb in NAMES} == {"body"}


@pytest.mark.parametrize("verb", NAMES)
def test_unknown_fields(verb: str, refused_by: Refused) -> None:
    """A field that the message has not is refused, also inside a picture."""
    assert refused_by(verb, {**good(verb), "speed": 1}) == "speed"
    assert refused_by(verb, {**good(verb), "Image": {}}) == "Image"
    field = "frames[1]" if verb == "track" else "image"
    spoilt = with_picture(verb, field, {**image(PICTURE), "url": "http://pictures.example/1"})
    assert refused_by(verb, spoilt) == f"{field}.url"


@pytest.mark.parametrize("verb", NAMES)
def test_both_spellings(verb: str, refused_by: Refused) -> None:
    """A field may be given in camelCase or snake_case, not in both."""
    field = "frames[1]" if verb == "track" else "image"
    twice = {**image(PICTURE, "image/png"), "mime_type": "image/png"}
    assert refused_by(verb, with_picture(verb, field, twice)).startswith(field)


@pytest.mark.parametrize("verb", NAMES)
def test_bodies_over_the_limit(verb: str, empty: Server) -> None:
    """32 MiB are taken, one more byte is not read."""
    body = b" " * (32 * 1024 * 1024)
    assert empty.call("POST", f"/v1/{verb}", content=body).status_code == 400
    reply = empty.call("POST", f"/v1/{verb}", content=body + b" ")
    assert (reply.status_code, reply.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")
    assert complaint(reply.json()["error"]) == "body"


@pytest.mark.parametrize("verb", NAMES)
@pytest.mark.parametrize("media", ["text/plain", "multipart/form-data; boundary=x", "text/json"])
def test_other_media_types(verb: str, media: str, empty: Server) -> None:
    """JSON under another name, and forms, are not read."""
    content = json.dumps(good(verb)).encode()
    reply = empty.call("POST", f"/v1/{verb}", content=content, headers={"content-type": media})
    assert (reply.status_code, reply.json()["error"]["status"]) == (415, "INVALID_ARGUMENT")
    assert empty.listed() == []


# --- numbers, names, lists -----------------------------------------------------------------------

BOUNDS: Sequence[tuple[str, str, str, float, float]] = [
    ("detect", "minSizePx", "min_size_px", 24, 2048),
    ("detect", "minNeighbors", "min_neighbors", 1, 1000),
    ("detect", "maxResults", "max_results", 1, 200),
    ("compare", "maxRegions", "max_regions", 0, 1000),
    ("segment", "minAreaPx", "min_area_px", 0, 16_000_000),
    ("segment", "segmentCount", "segment_count", 2, 2000),
    ("classify", "maxResults", "max_results", 1, 64),
    ("explain", "segmentCount", "segment_count", 4, 256),
    ("explain", "sampleCount", "sample_count", 50, 10_000),
    ("explain", "seed", "seed", -(2**31), 2**31 - 1),
    ("extract", "paletteSize", "palette_size", 1, 16),
    ("track", "searchMarginPx", "search_margin_px", 0, 4096),
    ("compare", "tolerance", "tolerance", 0.0, 1.0),
    ("segment", "compactness", "compactness", 0.01, 100.0),
    ("track", "minScore", "min_score", 0.0, 1.0),
]
OPEN_BOUNDS = [
    ("verify", "maxErrorPx", "max_error_px", [0, -1, 20.000001]),
    ("verify", "ratio", "ratio", [0, 1, -0.5, 2]),
]
EITHER = [(verb, name, proto) for verb, name, proto, *_ in [*BOUNDS, *OPEN_BOUNDS]]


@pytest.mark.parametrize(("verb", "name", "proto", "low", "high"), BOUNDS)
def test_bounds(
    verb: str, name: str, proto: str, low: float, high: float, empty: Server, refused_by: Refused
) -> None:
    """The bounds themselves are taken, what lies beyond is refused, under its proto name."""
    step = 1 if isinstance(low, int) else 0.0001
    for value in (low - step, high + step, low - 10**9, high + 10**9):
        assert refused_by(verb, {**good(verb), name: value}) == proto
    for value in (low, high, None):
        body = {**good(verb), proto: value, "validateOnly": True}
        assert empty.call("POST", f"/v1/{verb}", json=body).status_code == 200


@pytest.mark.parametrize(("verb", "name", "proto", "values"), OPEN_BOUNDS)
def test_open_bounds(
    verb: str, name: str, proto: str, values: list[float], refused_by: Refused
) -> None:
    """A bound that does not belong to the range is refused as well."""
    for value in values:
        assert refused_by(verb, {**good(verb), name: value}) == proto


@pytest.mark.parametrize(("verb", "name", "proto"), EITHER)
def test_no_number(verb: str, name: str, proto: str, refused_by: Refused) -> None:
    """Texts, booleans, lists and what is no finite number are refused."""
    for value in ("many", "", True, [3], {"value": 3}, "NaN", "Infinity", " 30"):
        assert refused_by(verb, {**good(verb), name: value}) == proto


@pytest.mark.parametrize(
    ("verb", "changes", "field"),
    [
        ("detect", {"minSizePx": 40.5}, "min_size_px"),
        ("detect", {"minSizePx": 2**31}, "min_size_px"),
        ("detect", {"image": "cat.png"}, "image"),
        ("detect", {"image": [image(PICTURE)]}, "image"),
        ("detect", {"image": {"content": 7}}, "image.content"),
        ("detect", {"image": {"content": PICTURE.hex(), "mimeType": 7}}, "image.mime_type"),
        ("segment", {"method": "CUBES"}, "method"),
        ("segment", {"method": "objects"}, "method"),
        ("segment", {"method": 9}, "method"),
        ("segment", {"foreground": True}, "foreground"),
        ("segment", {"splitTouching": "true"}, "split_touching"),
        ("classify", {"examples": {}}, "examples"),
        ("classify", {"examples": [None]}, "examples[0]"),
        ("explain", {"label": 7}, "label"),
        ("authenticate", {"scope": "EVERYTHING"}, "scope"),
        ("authenticate", {"signature": "!!!!"}, "signature"),
        ("authenticate", {"publicKeys": "key"}, "public_keys"),
        ("authenticate", {"publicKeys": [KEY, 7]}, "public_keys[1]"),
        ("extract", {"features": ["PALETTE", "SMELL"]}, "features[1]"),
        ("extract", {"features": "PALETTE"}, "features"),
        ("track", {"box": [1, 2, 3, 4]}, "box"),
        ("track", {"box": {"x": "left", "width": 9, "height": 9}}, "box.x"),
        ("track", {"frames": {}}, "frames"),
    ],
)
def test_wrong_types(verb: str, changes: Json, field: str, refused_by: Refused) -> None:
    """A value of another type is refused with the whole path to it."""
    assert refused_by(verb, {**good(verb), **changes}) == field


def labelled(*labels: str) -> list[Json]:
    """Examples with these labels."""
    return [{"label": label, "image": image(PICTURE)} for label in labels]


def key(pattern: bytes) -> str:
    return base64.b64encode(pattern).decode()


@pytest.mark.parametrize(
    ("verb", "changes", "field"),
    [
        *((verb, {"examples": labelled("one")}, "examples") for verb in ("classify", "explain")),
        ("classify", {"examples": labelled("one", "one")}, "examples"),
        ("classify", {"examples": labelled(*("ab" * 33)[:65])}, "examples"),
        ("classify", {"examples": labelled("one", "")}, "examples[1].label"),
        ("classify", {"examples": labelled("x" * 65, "two")}, "examples[0].label"),
        ("classify", {"examples": [*labelled("one"), {"label": "two"}]}, "examples[1].image"),
        ("explain", {"label": "three"}, "label"),
        ("authenticate", {"signature": ""}, "signature"),
        ("authenticate", {"signature": key(bytes(63))}, "signature"),
        ("authenticate", {"publicKeys": []}, "public_keys"),
        ("authenticate", {"publicKeys": [KEY] * 17}, "public_keys"),
        ("authenticate", {"publicKeys": [KEY, key(bytes(31))]}, "public_keys[1]"),
        ("authenticate", {"publicKeys": [key(b"\1" + bytes(31))]}, "public_keys[0]"),
        ("authenticate", {"publicKeys": [key(b"\xec" + b"\xff" * 31)]}, "public_keys[0]"),
        ("extract", {"features": ["PALETTE", "PALETTE"]}, "features[1]"),
        ("track", {"frames": [image(PICTURE)]}, "frames"),
        ("track", {"frames": [image(PICTURE)] * 65}, "frames"),
        ("explain", {"label": "x" * 1_000_000}, "label"),
        ("explain", {"label": "three", "examples": labelled("one", "two")}, "label"),
        ("track", {"image": image(PICTURE)}, "frames"),
        ("track", {"frames": [image(PICTURE), {}]}, "frames[1].content"),
        ("track", {"box": {"x": -1, "width": 9, "height": 9}}, "box.x"),
        ("track", {"box": {"y": -1, "width": 9, "height": 9}}, "box.y"),
        ("track", {"frames": [], "image": image(PICTURE)}, "image.content"),
        ("track", {"box": None}, "box"),
        ("track", {"box": {"width": 3, "height": 9}}, "box"),
        ("track", {"box": {"width": 9, "height": -9}}, "box"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    verb: str, changes: Json, field: str, refused_by: Refused
) -> None:
    """Fields that are well-formed each, but not as a request."""
    assert refused_by(verb, {**good(verb), **changes}) == field
