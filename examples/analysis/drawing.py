"""What a result looks like: shapes on the picture, and rows of numbers beside it.

The demo page draws this with SVG, ``python -m examples.analysis draw detect -o out.png`` with
Pillow. A new analysis needs a title, and shapes if a frame is not enough; its rows come by
themselves.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from examples.analysis import demo, pictures, samples
from examples.analysis import messages as m
from examples.analysis.messages import AnalysisMetadata, BoundingBox, Image
from examples.analysis.methods import first_picture
from examples.analysis.router import NAMES
from lro import LroError
from lro_client import Client, ClientError
from lro_client.progress import show_rich

YELLOW, GREEN, RED, BLUE = "#ffd23f", "#2fd6a8", "#ff5d8f", "#7aa2ff"
COLORS: Final = (YELLOW, GREEN, RED, BLUE, "#ff9f1c", "#c77dff", "#a5e65a", "#4cc9f0")
BARS: Final = {"sharpness", "cleanness", "contrast", "exposure", "score", "fidelity", "ssim"}
UNSEEN: Final = {"scale", "image_width", "image_height"}


@attrs.frozen
class Shape:
    """A line through pixels, one point is a dot; in one ``frame`` of a film, -1: in each."""

    points: tuple[tuple[float, float], ...]
    label: str = ""
    color: str = YELLOW
    frame: int = -1
    closed: bool = True
    filled: bool = False


@attrs.frozen
class Row:
    """A name, its value, and a bar if ``share`` is 0..1."""

    name: str
    text: str
    share: float = -1.0
    color: str = BLUE


@attrs.frozen
class Drawing:
    """``overlay`` is a transparent PNG in base64 that covers the picture; empty: none."""

    title: str
    size: tuple[int, int]
    shapes: tuple[Shape, ...]
    rows: tuple[Row, ...]
    overlay: str


def draw(result: Any, reference: tuple[int, int] | None = None) -> Drawing:
    """The drawing of a response; ``reference`` is the size of the second picture of verify."""
    size, title = (result.image_width, result.image_height), _TITLES[type(result)](result)
    if isinstance(result, m.VerifyResponse) and result.verified:
        shapes = _quad(result, reference or size)
    else:
        shapes = _SHAPES.get(type(result), lambda _: [])(result)
    good = getattr(result, "known", getattr(result, "authentic", True))
    whole = BoundingBox(width=size[0], height=size[1])
    drawn = tuple(shapes) or (_box(whole, title, GREEN if good else RED),)
    return Drawing(title, size, drawn, tuple(_rows(result)), _overlay(result))


def _box(box: BoundingBox, label: str, color: str = YELLOW, frame: int = -1) -> Shape:
    left, top, right, bottom = box.x, box.y, box.x + box.width, box.y + box.height
    return Shape(((left, top), (right, top), (right, bottom), (left, bottom)), label, color, frame)


def _quad(result: m.VerifyResponse, size: tuple[int, int]) -> Iterator[Shape]:
    """The outline of the reference, and a grid in it, where they lie in the picture."""
    at = (0.25, 0.5, 0.75)
    lines = [[(x, 0.0), (x, 1.0)] for x in at] + [[(0.0, y), (1.0, y)] for y in at]
    for line in [*lines, [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]]:
        flat = np.array([(x * size[0], y * size[1], 1) for x, y in line])
        *there, depth = np.reshape(result.homography, (3, 3)) @ flat.T
        places = np.clip(np.transpose(there) / np.maximum(depth, 1e-6)[:, None], -1e5, 1e5)
        label, color = ("the reference", GREEN) if len(line) > 2 else ("", BLUE)
        yield Shape(tuple(map(tuple, places.tolist())), label, color)


def _palette(result: m.ExtractResponse) -> Iterator[Shape]:
    """A strip of colours at the lower edge, as wide as their shares."""
    left, bottom, top = 0.0, result.image_height, result.image_height * 0.88
    for one in result.palette:
        right = left + one.fraction * result.image_width
        corners = ((left, top), (right, top), (right, bottom), (left, bottom))
        yield Shape(corners, color=one.color, filled=True)
        left = right


def _trail(result: m.TrackResponse) -> Iterator[Shape]:
    """The box in each frame, and the way of its middle."""
    for one in result.positions:
        label, color = (f"{one.score:.2f}", YELLOW) if one.found else ("lost", RED)
        yield _box(one.bounding_box, label, color, one.frame_index)
    boxes = [one.bounding_box for one in result.positions]
    way = tuple((box.x + box.width / 2, box.y + box.height / 2) for box in boxes)
    yield Shape(way, color=GREEN, closed=False)


def _overlay(result: Any) -> str:
    """Regions in colours with a firm edge, or parts that speak for the label: red is against."""
    file = getattr(result, "label_map", getattr(result, "heatmap", None))
    if file is None:
        return ""
    levels = np.asarray(Pillow.open(io.BytesIO(file.content))).astype(int)
    if isinstance(result, m.SegmentResponse):
        near = np.pad(levels, 1, mode="edge")
        edge = (levels != near[2:, 1:-1]) | (levels != near[1:-1, 2:])
        which, alpha = levels % len(COLORS), np.where(levels > 0, np.where(edge, 255, 105), 0)
    else:
        which, alpha = np.where(levels > 128, 1, 2), np.minimum(abs(levels - 128) * 2, 215)
    colors = np.array([tuple(bytes.fromhex(color[1:])) for color in COLORS])[which]
    png = pictures.as_png(np.dstack([colors, alpha]).astype(np.uint8))
    return base64.b64encode(png.content).decode()


def _rows(value: Any) -> Iterator[Row]:
    """Every number and text of a response."""
    items = value if isinstance(value, Mapping) else attrs.asdict(value, recurse=False)
    for key, item in items.items():
        name = key.replace("_", " ")
        if isinstance(item, m.Fingerprint | m.EmbeddedMetadata | Mapping):
            yield from _rows(item)
        elif key == "results":
            yield from (Row(one.label, f"{one.score:.1%}", one.score) for one in item)
        elif key == "palette":
            for one in item:
                yield Row(one.color, f"{one.fraction:.1%}", one.fraction, one.color)
        elif isinstance(item, float) and key not in UNSEEN:
            share = max(item, 0.0) if key in BARS or key.endswith("_fraction") else -1.0
            yield Row(name, f"{item:.4g}", share)
        elif isinstance(item, int | str) and key not in UNSEEN:
            yield Row(name, str(item))


_TITLES: Final[Mapping[type, Callable[[Any], str]]] = {
    m.DetectResponse: lambda r: f"Faces found: {len(r.faces)}",
    m.VerifyResponse: lambda r: "The same scene" if r.verified else "Not the same scene",
    m.CompareResponse: lambda r: f"{r.changed_fraction:.1%} of the picture changed",
    m.SegmentResponse: lambda r: f"Regions found: {r.region_count}",
    m.ClassifyResponse: lambda r: r.label if r.known else f"{r.label}? Unlike all examples",
    m.AuthenticateResponse: lambda r: "Authentic" if r.authentic else "Signed by none of the keys",
    m.ScoreResponse: lambda r: f"{r.overall:.0f} of 100",
    m.ExplainResponse: lambda r: f"Green speaks for {r.label}, red against",
    m.ExtractResponse: lambda r: f"Mostly {r.palette[0].color}" if r.palette else "Features",
    m.TrackResponse: lambda r: f"Found in {r.found_count} of {r.frame_count} frames",
}
_SHAPES: Final[Mapping[type, Callable[[Any], Any]]] = {
    m.DetectResponse: lambda r: [_box(one.bounding_box, f"{one.support} hits") for one in r.faces],
    m.CompareResponse: lambda r: [
        _box(one.bounding_box, f"{one.area_px} px", RED) for one in r.changed_regions
    ],
    m.SegmentResponse: lambda r: [
        Shape(((one.centroid.x, one.centroid.y),), str(one.label)) for one in r.regions[:60]
    ],
    m.ExtractResponse: _palette,
    m.TrackResponse: _trail,
}


def paint(picture: Pillow.Image, drawing: Drawing) -> Pillow.Image:
    """The picture, its longest side now 960 pixels, with the drawing on it and below it."""
    scale = 960 / max(picture.size)
    width, height = (max(round(side * scale), 1) for side in picture.size)
    rows = [Row(drawing.title, ""), *drawing.rows[:40]]
    canvas = Pillow.new("RGB", (max(width, 640), height + 24 * len(rows) + 24), "#16181d")
    canvas.paste(picture.convert("RGB").resize((width, height)))
    if drawing.overlay:
        cover = Pillow.open(io.BytesIO(base64.b64decode(drawing.overlay))).resize((width, height))
        canvas.paste(cover, mask=cover)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(16)
    for shape in (one for one in drawing.shapes if one.frame <= 0):
        points = [(x * scale, y * scale) for x, y in shape.points]
        if shape.filled:
            pen.polygon(points, shape.color)
        for color, thick in () if shape.filled else (("black", 6), (shape.color, 3)):
            pen.line([*points, *points[: shape.closed]], color, thick, "curve")
        place = max(points[0][0] + 4, 6), max(points[0][1] - 6, 22)
        pen.text(place, shape.label, shape.color, font, "ls", stroke_width=2, stroke_fill="black")
    for top, row in enumerate(rows):
        y = height + 12 + 24 * top
        pen.text((12, y), row.name, "white", font)
        pen.text((200, y), row.text[:90], "white", font)
        if row.share >= 0:
            pen.rectangle((280, y + 3, 280 + 240 * row.share, y + 15), row.color)
    return canvas


def main(arguments: list[str]) -> None:
    """Run one analysis on a server, and write what it found as a PNG."""
    parser = argparse.ArgumentParser(prog="python -m examples.analysis draw")
    parser.add_argument("analysis", choices=NAMES)
    parser.add_argument(
        "picture",
        nargs="*",
        help=f"files, or of {', '.join(samples.PICTURES)}: the picture, then the reference of "
        "verify and compare, or the frames of track; without any: a fitting sample",
    )
    parser.add_argument("-o", "--out", required=True, help="the PNG file to write")
    parser.add_argument("--box", help="X,Y,WIDTH,HEIGHT: what track follows")
    parser.add_argument("--server", help="the address of a server; without: one is started")
    given = parser.parse_args(arguments)
    verb = given.analysis
    try:
        request = samples.assigned(verb, [_read(name) for name in given.picture], given.box)
        server = contextlib.nullcontext(given.server) if given.server else demo.serving()
        with server as url, Client(url) as client:
            kind = getattr(m, f"{verb.capitalize()}Response")
            call = client.start(f"/v1/{verb}", request, response=kind, metadata=AnalysisMetadata)
            result = show_rich(call, 120, every=0.1, description=verb)
        second = getattr(request, "reference", None)
        reference = pictures.decode(second, "reference").size if second else None
        picture = pictures.decode(first_picture(request), "image")
        paint(picture, draw(result, reference)).save(given.out)
    except (LroError, ClientError, OSError, ValueError) as exc:
        parser.error(str(exc))


def _read(name: str) -> Image:
    return (
        demo.picture(name) if name in samples.PICTURES else Image(content=Path(name).read_bytes())
    )
