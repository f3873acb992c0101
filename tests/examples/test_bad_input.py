"""Bad input: every endpoint refuses it at the right place, with the right code, field and words."""

from __future__ import annotations

import base64
import functools
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

import numpy as np
import PIL.Image
import pytest

from examples.analysis.messages import Image
from examples.analysis.router import NAMES
from tests.examples.conftest import encoded, flat, saved
from tests.examples.serving import Json, Server, as_json

NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
OTHER = NOISE.T.copy()
PICTURE = saved(NOISE).content
KEY = base64.b64encode(bytes([9] * 32)).decode()


def image(content: bytes, mime_type: str = "") -> Json:
    """A picture in JSON."""
    return as_json(Image(content=content, mime_type=mime_type))


def good(verb: str) -> Json:
    """A request that the endpoint takes."""
    if verb == "track":
        box = {"x": 8, "y": 8, "width": 16, "height": 16}
        return {"frames": [image(PICTURE), image(PICTURE)], "box": box}
    body: Json = {"image": image(PICTURE)}
    if verb in ("verify", "compare"):
        body["reference"] = image(PICTURE)
    if verb in ("classify", "explain"):
        body["examples"] = [
            {"label": label, "image": image(saved(pixels).content)}
            for label, pixels in (("one", NOISE), ("two", OTHER // 4))
        ]
    if verb == "authenticate":
        body |= {"signature": base64.b64encode(bytes(64)).decode(), "publicKeys": [KEY]}
    return body


def with_picture(verb: str, field: str, picture: Json) -> Json:
    """A good request, but for the picture in one place."""
    body = good(verb)
    match field:
        case "frames[1]":
            body["frames"][1] = picture
        case "examples[1].image":
            body["examples"][1]["image"] = picture
        case "image" if verb == "track":
            del body["frames"]
            body["image"] = picture
        case _:
            body[field] = picture
    return body


PLACES = [
    *((verb, "image") for verb in NAMES),
    *((verb, "reference") for verb in ("verify", "compare")),
    *((verb, "examples[1].image") for verb in ("classify", "explain")),
    ("track", "frames[1]"),
]
"""Where pictures stand in requests."""
LEAST_SIDES = {
    "detect": 24, "verify": 32, "compare": 16, "segment": 16, "classify": 64, "authenticate": 1,
    "score": 16, "explain": 64, "extract": 1, "track": 8,
}  # fmt: skip


def complaint(error: Json) -> str:
    """The one field that an error complains of; the error is well-formed and discreet."""
    kinds = [detail["@type"].rpartition(".")[2] for detail in error["details"]]
    assert kinds.count("ErrorInfo") == 1
    assert error["message"]
    assert not {"Traceback", "PIL", "Errno", "UnidentifiedImageError"} & set(
        error["message"].replace(".", " ").split()
    )
    violations = error["details"][kinds.index("BadRequest")]["fieldViolations"]
    assert len(violations) == 1
    assert violations[0]["description"]
    field: str = violations[0]["field"]
    return field


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server where nothing may ever be stored."""
    server = Server.on(tmp_path_factory.mktemp("bad") / "operations.db")
    yield server
    server.close()


Refused = Callable[[str, object], str]


@pytest.fixture
def refused(empty: Server) -> Refused:
    """Posts a bad request (JSON, or the bytes of a body); gives the field that is complained of."""

    def post(verb: str, body: object) -> str:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        reply = empty.call("POST", f"/v1/{verb}", content=content, headers=headers)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
        assert reply.headers["cache-control"] == "no-store"
        assert empty.listed() == []
        return complaint(error)

    return post


def png(width: int, height: int, rows: bytes) -> bytes:
    """An 8-bit grey PNG of compressed rows."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


@functools.cache
def zeros(width: int, height: int) -> bytes:
    """A black PNG, as small as a bomb can be."""
    return png(width, height, zlib.compress(bytes((width + 1) * height), 9))


def half(picture: Image) -> bytes:
    return picture.content[: len(picture.content) // 2]


def broken_sum(png: bytes) -> bytes:
    """The same PNG with one wrong bit in the checksum of its pixels."""
    place = png.rindex(b"IEND") - 5
    return png[:place] + bytes([png[place] ^ 1]) + png[place + 1 :]


def pages(*pictures: PIL.Image.Image) -> bytes:
    """A TIFF with a page for each picture."""
    file = io.BytesIO()
    pictures[0].save(
        file, "TIFF", save_all=True, append_images=pictures[1:], compression="tiff_deflate"
    )
    return file.getvalue()


def test_the_good_requests_are_good(empty: Server) -> None:
    """What the other tests spoil is taken as it is."""
    for verb in NAMES:
        reply = empty.call("POST", f"/v1/{verb}", json={**good(verb), "validateOnly": True})
        assert reply.status_code == 200, reply.text


# --- the body ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", NAMES)
@pytest.mark.parametrize("body", [b"", b" \r\n", b"{}", b'{"image": null}'])
def test_nothing_is_sent(verb: str, body: bytes, refused: Refused) -> None:
    """An empty body lacks the picture, or the frames."""
    assert refused(verb, body) == ("frames" if verb == "track" else "image")


@pytest.mark.parametrize("verb", NAMES)
@pytest.mark.parametrize(
    "body",
    [
        b"{", b"nope", b'{"image": }', b"{} {}", b"{'image': {}}", b'{"image": {},}', b"\xff\xfe",
        b"[]", b'"image"', b"7", b"null", b"true", b'{"image": {}, "image": {}}', b"[" * 5000,
        b'{"seed": NaN}', b'{"ratio": Infinity}', b'{"ratio": -Infinity}', b'{"image": "\\ud800"}',
    ],
)  # fmt: skip
def test_no_json_object(verb: str, body: bytes, refused: Refused) -> None:
    """A body that is not one JSON object is refused as such."""
    assert refused(verb, body) == "body"


@pytest.mark.parametrize("verb", NAMES)
def test_unknown_fields(verb: str, refused: Refused) -> None:
    """A field that the message has not is refused, also inside a picture."""
    assert refused(verb, {**good(verb), "speed": 1}) == "speed"
    assert refused(verb, {**good(verb), "Image": {}}) == "Image"
    field = "frames[1]" if verb == "track" else "image"
    spoilt = with_picture(verb, field, {**image(PICTURE), "url": "http://pictures.example/1"})
    assert refused(verb, spoilt) == f"{field}.url"


@pytest.mark.parametrize("verb", NAMES)
def test_both_spellings(verb: str, refused: Refused) -> None:
    """A field may be given in camelCase or snake_case, not in both."""
    field = "frames[1]" if verb == "track" else "image"
    twice = {**image(PICTURE, "image/png"), "mime_type": "image/png"}
    assert refused(verb, with_picture(verb, field, twice)).startswith(field)


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
    verb: str, name: str, proto: str, low: float, high: float, empty: Server, refused: Refused
) -> None:
    """The bounds themselves are taken, what lies beyond is refused, under its proto name."""
    step = 1 if isinstance(low, int) else 0.0001
    for value in (low - step, high + step, low - 10**9, high + 10**9):
        assert refused(verb, {**good(verb), name: value}) == proto
    for value in (low, high, None):
        body = {**good(verb), proto: value, "validateOnly": True}
        assert empty.call("POST", f"/v1/{verb}", json=body).status_code == 200


@pytest.mark.parametrize(("verb", "name", "proto", "values"), OPEN_BOUNDS)
def test_open_bounds(
    verb: str, name: str, proto: str, values: list[float], refused: Refused
) -> None:
    """A bound that does not belong to the range is refused as well."""
    for value in values:
        assert refused(verb, {**good(verb), name: value}) == proto


@pytest.mark.parametrize(("verb", "name", "proto"), EITHER)
@pytest.mark.parametrize("value", ["many", "", True, [3], {"value": 3}, "NaN", "Infinity", " 30"])
def test_no_number(verb: str, name: str, proto: str, value: object, refused: Refused) -> None:
    """Texts, booleans, lists and what is no finite number are refused."""
    assert refused(verb, {**good(verb), name: value}) == proto


@pytest.mark.parametrize(
    ("verb", "changes", "field"),
    [
        ("detect", {"minSizePx": 40.5}, "min_size_px"),
        ("detect", {"minSizePx": 2**31}, "min_size_px"),
        ("detect", {"image": "cat.png"}, "image"),
        ("detect", {"image": [image(PICTURE)]}, "image"),
        ("detect", {"image": {"content": 7}}, "image.content"),
        ("detect", {"image": {"content": PICTURE.hex(), "mimeType": 7}}, "image.mime_type"),
        ("detect", {"requestId": 7}, "request_id"),
        ("detect", {"requestId": "7"}, "request_id"),
        ("detect", {"validateOnly": "yes"}, "validate_only"),
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
def test_wrong_types(verb: str, changes: Json, field: str, refused: Refused) -> None:
    """A value of another type is refused with the whole path to it."""
    assert refused(verb, {**good(verb), **changes}) == field


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
        ("track", {"image": image(PICTURE)}, "frames"),
        ("track", {"frames": [], "image": image(PICTURE)}, "image.content"),
        ("track", {"box": None}, "box"),
        ("track", {"box": {"width": 3, "height": 9}}, "box"),
        ("track", {"box": {"width": 9, "height": -9}}, "box"),
    ],
)
def test_what_does_not_go_together(verb: str, changes: Json, field: str, refused: Refused) -> None:
    """Fields that are well-formed each, but not as a request."""
    assert refused(verb, {**good(verb), **changes}) == field


# --- pictures, found in JSON and headers ---------------------------------------------------------

UNREADABLE = {
    "text": b"a cat on a mat",
    "html": b"<!doctype html><title>404</title>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"/>',
    "pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n%%EOF",
    "zip": b"PK\3\4" + bytes(60),
    "signature alone": b"\x89PNG\r\n\x1a\n",
    "unreadable tiff": encoded("multipage_rgb.tif").content,
    "ppm": b"P5 64 64 255\n" + bytes(64 * 64),
    "empty": b"",
    "half a WEBP": half(saved(NOISE, "WEBP")),  # its header cannot be read without the rest
}
TOO_MUCH = {
    "a row over 16 MP": lambda: zeros(4000, 4001),
    "50 MP in 48 kB": lambda: zeros(7072, 7072),
    "400 MP": lambda: png(20_000, 20_000, b""),
    "over 20 : 1": lambda: zeros(1281, 64),
    "mode F": lambda: saved(NOISE.astype(np.float32), "TIFF").content,
    "mode I": lambda: saved(NOISE.astype(np.int32), "TIFF").content,
}


@pytest.mark.parametrize(("verb", "field"), PLACES)
@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_no_picture(verb: str, field: str, content: bytes, refused: Refused) -> None:
    """What is no picture of the six formats is refused in its field."""
    assert refused(verb, with_picture(verb, field, image(content))) == f"{field}.content"


@pytest.mark.parametrize(("verb", "field"), PLACES)
@pytest.mark.parametrize("make", TOO_MUCH.values(), ids=TOO_MUCH)
def test_pictures_beyond_the_limits(
    verb: str, field: str, make: Callable[[], bytes], refused: Refused
) -> None:
    """Pictures that are too large, too long, or too deep are refused before they are decoded."""
    assert refused(verb, with_picture(verb, field, image(make()))) == f"{field}.content"


@functools.cache
def too_long() -> bytes:
    return base64.b64encode(PICTURE + bytes(8 * 1024 * 1024 + 1 - len(PICTURE)))


@pytest.mark.parametrize(("verb", "field"), PLACES)
def test_files_over_8_mib(verb: str, field: str, refused: Refused) -> None:
    """A file of one byte more than 8 MiB is refused, however small its picture is."""
    body = json.dumps(with_picture(verb, field, {"content": "*"})).encode()
    assert refused(verb, body.replace(b"*", too_long())) == f"{field}.content"


@pytest.mark.parametrize(("verb", "field"), [p for p in PLACES if LEAST_SIDES[p[0]] > 1])
def test_small_pictures(verb: str, field: str, refused: Refused) -> None:
    """One pixel is too small, and so is one pixel less than the least side."""
    for side in (1, LEAST_SIDES[verb] - 1):
        small = image(flat(side, 64).content if side > 3 else flat(side, side).content)
        assert refused(verb, with_picture(verb, field, small)) == f"{field}.content"


@pytest.mark.parametrize(("verb", "field"), PLACES)
def test_another_format_than_said(verb: str, field: str, refused: Refused) -> None:
    """A media type that is not that of the content is refused."""
    for said in ("image/jpeg", "image/jpg", "text/html", "png"):
        wrong = with_picture(verb, field, image(PICTURE, said))
        assert refused(verb, wrong) == f"{field}.mime_type"


@pytest.mark.parametrize(("verb", "field"), PLACES)
@pytest.mark.parametrize("text", ["!!!!", "iVBORw0KGgo=AAAA", "A", "AAAAA", "iVBO Rw0K", "é"])
def test_no_base64(verb: str, field: str, text: str, refused: Refused) -> None:
    """What is not base64 is refused, not decoded in part."""
    assert refused(verb, with_picture(verb, field, {"content": text})) == f"{field}.content"


def test_both_alphabets(server: Server) -> None:
    """The standard and the URL-safe alphabet mean the same, with and without padding."""
    content = PICTURE + b"\xfb\xff\xfe"
    standard, safe = base64.b64encode(content).decode(), base64.urlsafe_b64encode(content).decode()
    assert set("+/") & set(standard)
    targets = set()
    for text in (standard, safe, standard.rstrip("="), safe.rstrip("=")):
        started = server.start("authenticate", {**good("authenticate"), "image": {"content": text}})
        targets.add(server.finish(started["name"])["metadata"]["target"])
    assert len(targets) == 1


# --- found by decoding ---------------------------------------------------------------------------


def failed(server: Server, verb: str, body: Json) -> Json:
    """The error that an operation ends with."""
    last = server.finish(server.start(verb, body)["name"])
    assert "response" not in last
    assert last["metadata"]["stage"] == "FAILED"
    assert last["metadata"].get("progressPercent", 0) < 100
    found: Json = last["error"]
    return found


DECODED = [place for place in PLACES if place != ("track", "image")]
BROKEN = {
    "half a PNG": half(saved(NOISE)),
    "half a JPEG": half(saved(NOISE, "JPEG")),
    "half a GIF": half(saved(NOISE, "GIF")),
    "half a BMP": half(saved(NOISE, "BMP")),
    "half a TIFF": half(saved(NOISE, "TIFF")),
    "wrong checksum": broken_sum(PICTURE),
}


@pytest.mark.parametrize(("verb", "field"), DECODED)
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_broken_pictures(verb: str, field: str, content: bytes, server: Server) -> None:
    """A picture that breaks off is found by decoding it, and fails the operation."""
    body = with_picture(verb, field, image(content))
    if verb == "authenticate":
        body["scope"] = "PIXELS"
    error = failed(server, verb, body)
    assert (error["code"], complaint(error)) == (3, f"{field}.content")


PAGE = PIL.Image.fromarray(NOISE).convert("1")
LARGER_PAGES = {
    "of another size": pages(PAGE, PAGE.resize((128, 128))),
    "over 16 MP": pages(PAGE, PIL.Image.new("1", (4001, 4000))),
    "over 20 : 1": pages(PAGE, PIL.Image.new("1", (2000, 64))),
}


@pytest.mark.parametrize("content", LARGER_PAGES.values(), ids=LARGER_PAGES)
def test_a_second_page(content: bytes, server: Server) -> None:
    """The pages after the first are looked at when the work comes to them."""
    error = failed(server, "track", with_picture("track", "image", image(content)))
    assert (error["code"], complaint(error)) == (3, "image.content")


def test_a_second_page_that_is_only_counted(server: Server) -> None:
    """Whoever counts the pages finds the one that is too large, whoever reads the first does not."""
    content = image(LARGER_PAGES["over 16 MP"])
    error = failed(server, "extract", {"image": content})
    assert (error["code"], complaint(error)) == (3, "image.content")
    scored = server.finish(server.start("score", {"image": content})["name"])
    assert scored["response"]["imageWidth"] == 64


def test_broken_animations(server: Server) -> None:
    """A film that breaks off in its second picture is no shorter film."""
    content = encoded("no_time_for_that_tiny.gif").content
    body = with_picture("track", "image", image(content[: len(content) // 2]))
    body["box"] = {"width": 4, "height": 4}
    error = failed(server, "track", body)
    assert (error["code"], complaint(error)) == (3, "image.content")


@pytest.mark.parametrize(
    ("verb", "place", "field"),
    [("compare", "reference", "image"), ("track", "frames[1]", "frames[1].content")],
)
def test_pictures_of_two_sizes(verb: str, place: str, field: str, server: Server) -> None:
    """Pictures that must have one size are refused with both sizes, once they are upright."""
    error = failed(server, verb, with_picture(verb, place, image(saved(NOISE[:60]).content)))
    assert (error["code"], complaint(error)) == (3, field)
    assert "64 x 64" in error["message"]
    assert "64 x 60" in error["message"]


@pytest.mark.parametrize("x", [-1, 49, 2**31 - 1])
def test_a_box_outside_the_frame(x: int, server: Server) -> None:
    """Where the box is can be judged only against the upright picture."""
    box = {"x": x, "y": 0, "width": 16, "height": 16}
    error = failed(server, "track", {**good("track"), "box": box})
    assert (error["code"], complaint(error)) == (3, "box")


@pytest.mark.parametrize("verb", NAMES)
def test_what_nobody_foresaw(
    verb: str, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect fails the operation with INTERNAL; its text goes into the log, and nowhere else."""

    def defect(*_: object) -> None:
        raise RuntimeError("the secret of line 7")

    monkeypatch.setattr(import_module(f"examples.analysis.verbs.{verb}"), verb, defect)
    error = failed(server, verb, good(verb))
    assert (error["code"], "secret" in json.dumps(error)) == (13, False)
    assert "the secret of line 7" in caplog.text
