"""A valid request for every endpoint, and requests with one invalid picture."""

from __future__ import annotations

import base64

import numpy as np

from examples.analysis.messages import Image
from examples.analysis.router import NAMES
from tests.full.examples.conftest import saved
from tests.full.examples.serving import Json, as_json

NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
OTHER = NOISE.T.copy()
PICTURE = saved(NOISE).content
KEY = base64.b64encode(bytes([9] * 32)).decode()


def image(content: bytes, mime_type: str = "") -> Json:
    """Return a picture as JSON."""
    return as_json(Image(content=content, mime_type=mime_type))


def good(verb: str) -> Json:
    """Return a request that this endpoint accepts."""
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
    """Return a valid request in which one field has this picture."""
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
"""Each endpoint with each of its fields that hold a picture."""
