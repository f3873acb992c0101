"""Bad pictures: refused by their headers alone, or when they are decoded, field and all."""

from __future__ import annotations

import base64
import functools
import io
import json
import struct
import zlib
from importlib import import_module

import numpy as np
import PIL.Image
import pytest

from examples.analysis.messages import Image
from examples.analysis.router import NAMES
from tests.full.examples.conftest import Refused, encoded, flat, saved
from tests.full.examples.serving import Json, Server, complaint
from tests.full.examples.spoiled import NOISE, PICTURE, PLACES, good, image, with_picture

LEAST_SIDES = {
    "detect": 24, "verify": 32, "compare": 16, "segment": 16, "classify": 64, "authenticate": 1,
    "score": 16, "explain": 64, "extract": 1, "track": 8,
}  # fmt: skip


def png(width: int, height: int, rows: bytes) -> bytes:
    """An 8-bit grey PNG of compressed rows."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


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


# --- found in JSON and headers -------------------------------------------------------------------

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
    "a row over 16 MP": zeros(4000, 4001),
    "50 MP in 48 kB": zeros(7072, 7072),
    "400 MP": png(20_000, 20_000, b""),
    "over 20 : 1": zeros(1281, 64),
    "mode F": saved(NOISE.astype(np.float32), "TIFF").content,
    "mode I": saved(NOISE.astype(np.int32), "TIFF").content,
}


@pytest.mark.parametrize(("verb", "field"), PLACES)
@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_picture_beyond_formats_and_limits_is_refused(
    verb: str, field: str, content: bytes, refused_by: Refused
) -> None:
    """What is no picture, or one too large, too long or too deep, is refused undecoded."""
    assert refused_by(verb, with_picture(verb, field, image(content))) == f"{field}.content"


@functools.cache
def too_long() -> bytes:
    return base64.b64encode(PICTURE + bytes(8 * 1024 * 1024 + 1 - len(PICTURE)))


@pytest.mark.parametrize(("verb", "field"), PLACES)
def test_files_over_8_mib(verb: str, field: str, refused_by: Refused) -> None:
    """A file of one byte more than 8 MiB is refused, however small its picture is."""
    body = json.dumps(with_picture(verb, field, {"content": "*"})).encode()
    assert refused_by(verb, body.replace(b"*", too_long())) == f"{field}.content"


@pytest.mark.parametrize(("verb", "field"), [p for p in PLACES if LEAST_SIDES[p[0]] > 1])
def test_small_pictures(verb: str, field: str, refused_by: Refused) -> None:
    """One pixel is too small, and so is one pixel less than the least side."""
    for side in (1, LEAST_SIDES[verb] - 1):
        small = image(flat(side, 64).content if side > 3 else flat(side, side).content)
        assert refused_by(verb, with_picture(verb, field, small)) == f"{field}.content"


@pytest.mark.parametrize(("verb", "field"), PLACES)
def test_wrong_media_type_is_refused(verb: str, field: str, refused_by: Refused) -> None:
    """A media type that is not that of the content is refused."""
    for said in ("image/jpeg", "image/jpg", "text/html", "png"):
        wrong = with_picture(verb, field, image(PICTURE, said))
        assert refused_by(verb, wrong) == f"{field}.mime_type"


@pytest.mark.parametrize(("verb", "field"), PLACES)
def test_invalid_base64_is_refused(verb: str, field: str, refused_by: Refused) -> None:
    """What is not base64 is refused, not decoded in part."""
    for text in ("!!!!", "iVBORw0KGgo=AAAA", "A", "AAAAA", "iVBO Rw0K", "é"):
        assert refused_by(verb, with_picture(verb, field, {"content": text})) == f"{field}.content"


def test_both_alphabets(server: Server) -> None:
    """The standard and the URL-safe alphabet mean the same, with and without padding."""
    content = PICTURE + b"\xfb\xff\xfe" * 3 + bytes(2 - len(PICTURE) % 3)
    standard, safe = base64.b64encode(content).decode(), base64.urlsafe_b64encode(content).decode()
    assert "+" in standard
    assert "/" in standard
    assert standard.endswith("=")
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
    """Who counts the pages finds the one that is too large, who reads only the first does not."""
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


@pytest.mark.parametrize("x", [49, 2**31 - 1])
def test_a_box_outside_the_frame(x: int, server: Server) -> None:
    """Where the box is can be judged only against the upright picture."""
    box = {"x": x, "y": 0, "width": 16, "height": 16}
    error = failed(server, "track", {**good("track"), "box": box})
    assert (error["code"], complaint(error)) == (3, "box")


@pytest.mark.parametrize("verb", NAMES)
def test_defect_of_verb_ends_operation_with_internal(
    verb: str, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect ends the operation with INTERNAL; only the log has its text."""

    def defect(*_: object) -> None:
        raise RuntimeError("the secret of line 7")

    monkeypatch.setattr(import_module(f"examples.analysis.verbs.{verb}"), verb, defect)
    error = failed(server, verb, good(verb))
    assert (error["code"], "secret" in json.dumps(error)) == (13, False)
    assert "the secret of line 7" in caplog.text
