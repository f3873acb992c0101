"""Drawings of results: shapes on the picture, and rows beside or below it.

A row has a name, a text, the length of a bar (negative for no bar), and a colour. The demo page
draws a result as SVG; ``python -m examples.analysis draw NAME -o out.png`` uses Pillow.
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

from examples.analysis import demo, pictures
from examples.analysis import messages as m
from examples.analysis.messages import BoundingBox
from examples.analysis.methods import first_picture
from examples.analysis.router import NAMES
from lro import LroError
from lro_client import Client, ClientError
from lro_client.progress import show_rich

YELLOW, GREEN, RED, BLUE = "#ffd23f", "#2fd6a8", "#ff5d8f", "#7aa2ff"
COLORS: Final = (YELLOW, GREEN, RED, BLUE, "#ff9f1c", "#c77dff", "#a5e65a", "#4cc9f0")
BARS: Final = {"sharpness", "cleanness", "contrast", "exposure", "score", "fidelity", "ssim"}


@attrs.frozen
class Shape:
    """A line through pixels of the picture; ``frame`` is a frame of a film, -1 for all frames."""

    points: tuple[tuple[float, float], ...]
    label: str = ""
    color: str = YELLOW
    frame: int = -1
    closed: bool = True


@attrs.frozen
class Drawing:
    """The drawing of a result; ``overlay`` is a transparent PNG in base64, or empty."""

    title: str
    size: tuple[int, int]
    shapes: tuple[Shape, ...]
    rows: tuple[tuple[str, str, float, str], ...]
    overlay: str


def draw(result: Any, reference: tuple[int, int] | None = None) -> Drawing:
    """Return the drawing of a response; ``reference`` is the size of verify's second picture."""
    size, title = (result.image_width, result.image_height), _TITLES[type(result)](result)
    shapes = _SHAPES[type(result)](result, reference or size) if type(result) in _SHAPES else ()
    good = getattr(result, "known", getattr(result, "authentic", True))
    whole = _box(BoundingBox(width=size[0], height=size[1]), title, GREEN if good else RED)
    return Drawing(title, size, tuple(shapes) or (whole,), tuple(_rows(result)), _overlay(result))


def _box(box: BoundingBox, label: str, color: str = YELLOW, frame: int = -1) -> Shape:
    left, top, right, bottom = box.x, box.y, box.x + box.width, box.y + box.height
    return Shape(((left, top), (right, top), (right, bottom), (left, bottom)), label, color, frame)


def _grid(result: m.VerifyResponse, size: tuple[int, int]) -> Iterator[Shape]:
    """Yield the outline of the reference picture and a grid, mapped into the picture."""
    ends = [[(at, 0.0), (at, 1.0)] for at in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for line in [*ends, *([(y, x) for x, y in end] for end in ends)] if result.verified else ():
        flat = np.array([(x * size[0], y * size[1], 1) for x, y in line])
        *there, depth = np.reshape(result.homography, (3, 3)) @ flat.T
        places = np.clip(np.transpose(there) / np.maximum(depth, 1e-6)[:, None], -1e5, 1e5)
        yield Shape(tuple(map(tuple, places.tolist())), color=GREEN)


def _trail(result: m.TrackResponse, _: tuple[int, int]) -> Iterator[Shape]:
    """Yield the box in each frame, and the path of its centre."""
    for one in result.positions:
        label, color = (f"{one.score:.2f}", YELLOW) if one.found else ("lost", RED)
        yield _box(one.bounding_box, label, color, one.frame_index)
    boxes = [one.bounding_box for one in result.positions]
    way = tuple((box.x + box.width / 2, box.y + box.height / 2) for box in boxes)
    yield Shape(way, color=GREEN, closed=False)


def _overlay(result: Any) -> str:
    """Return the overlay of a result as a PNG in base64; empty if the result has none.

    The overlay shows regions with edges, weighted parts (negative parts in red), or a palette.
    """
    file, colors = getattr(result, "label_map", getattr(result, "heatmap", None)), COLORS
    if file is not None:
        levels = np.asarray(Pillow.open(io.BytesIO(file.content))).astype(int)
        near = np.pad(levels, 1, mode="edge")
        edge = (levels != near[2:, 1:-1]) | (levels != near[1:-1, 2:])
        which, alpha = levels % len(COLORS), np.where(levels > 0, np.where(edge, 255, 105), 0)
        if isinstance(result, m.ExplainResponse):
            which, alpha = np.where(levels > 128, 1, 2), np.minimum(abs(levels - 128) * 2, 215)
    elif colors := tuple(one.color for one in getattr(result, "palette", ())):
        columns = np.repeat(range(len(colors)), [round(500 * p.fraction) for p in result.palette])
        which = np.tile(columns, (8, 1))
        alpha = np.where(np.arange(8)[:, None] == 7, 255, 0 * which)
    else:
        return ""
    levels = np.array([tuple(bytes.fromhex(color[1:])) for color in colors])[which]
    png = pictures.as_png(np.dstack([levels, alpha]).astype(np.uint8))
    return base64.b64encode(png.content).decode()


def _rows(value: Any) -> Iterator[tuple[str, str, float, str]]:
    """Yield a row for each number and text of a response."""
    items = value if isinstance(value, Mapping) else attrs.asdict(value, recurse=False)
    for key, item in items.items():
        name = key.replace("_", " ")
        if isinstance(item, m.Fingerprint | m.EmbeddedMetadata | Mapping):
            yield from _rows(item)
        elif key in ("results", "palette"):
            for label, share in map(attrs.astuple, item):
                yield label, f"{share:.1%}", share, label if key == "palette" else BLUE
        elif isinstance(item, bool):
            yield name, "yes" if item else "no", -1.0, BLUE
        elif isinstance(item, float) and key != "scale":
            has_bar = key in BARS or key.endswith("_fraction")
            yield name, f"{item:.4g}", max(item, 0.0) if has_bar else -1.0, BLUE
        elif isinstance(item, int | str) and not key.endswith(("_width", "_height")):
            yield name, str(item), -1.0, BLUE


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
_SHAPES: Final[Mapping[type, Callable[[Any, tuple[int, int]], Any]]] = {
    m.DetectResponse: lambda r, _: [_box(f.bounding_box, f"{f.support} hits") for f in r.faces],
    m.VerifyResponse: _grid,
    m.CompareResponse: lambda r, _: [_box(c.bounding_box, "", RED) for c in r.changed_regions],
    m.TrackResponse: _trail,
}


def paint(picture: Pillow.Image, drawing: Drawing) -> Pillow.Image:
    """Return the picture, scaled to 960 pixels, with the shapes on it and the rows below it."""
    scale = 960 / max(picture.size)
    width, height = (max(round(side * scale), 1) for side in picture.size)
    rows = [(drawing.title, "", -1.0, ""), *drawing.rows[:40]]
    canvas = Pillow.new("RGB", (max(width, 640), height + 24 * len(rows) + 24), "#16181d")
    canvas.paste(picture.convert("RGB").resize((width, height)))
    if drawing.overlay:
        png = Pillow.open(io.BytesIO(base64.b64decode(drawing.overlay)))
        cover = png.resize((width, height), Pillow.Resampling.NEAREST)
        canvas.paste(cover, mask=cover)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(16)
    for shape in (one for one in drawing.shapes if one.frame <= 0):
        points = [(x * scale, y * scale) for x, y in shape.points]
        for color, thick in (("black", 6), (shape.color, 3)):
            pen.line([*points, *points[: shape.closed]], color, thick, "curve")
        place = min(max(points[0][0] + 4, 6), width - 90), max(points[0][1] - 6, 22)
        pen.text(place, shape.label, shape.color, font, "ls", stroke_width=2, stroke_fill="black")
    for y, (name, text, share, color) in zip(range(height + 12, 10**6, 24), rows, strict=False):
        pen.text((12, y), name, "white", font)
        pen.text((200, y), text[:90], "white", font)
        if share >= 0:
            pen.rectangle((280, y + 3, 280 + 240 * share, y + 15), color)
    return canvas


def main(arguments: list[str]) -> None:
    """Run an analysis on a server, and write its drawing as a PNG."""
    parser = argparse.ArgumentParser(prog="python -m examples.analysis draw")
    parser.add_argument("analysis", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("picture", nargs="*", help=f"files, or names of {demo.PICTURES}")
    parser.add_argument("-o", "--out", required=True, help="the PNG file to write")
    parser.add_argument("--options", default="{}", help="further fields of the request as JSON")
    parser.add_argument("--server", help="the URL of a server; by default, starts one")
    given = parser.parse_args(arguments)
    verb, known = given.analysis, demo.PICTURES
    try:
        paths = [one if one in known else str(Path(one).resolve()) for one in given.picture]
        request = demo.request_of(verb, [*map(demo.picture, paths)], given.options)
        server = contextlib.nullcontext(given.server) if given.server else demo.serving()
        with server as url, Client(url) as client:
            operation = demo.start(client, verb, request)
            result = show_rich(operation, 120, every=0.1, description=verb)
        second = getattr(request, "reference", None)
        size = pictures.decode(second, "reference").size if second else None
        picture = pictures.decode(first_picture(request), "image")
        paint(picture, draw(result, size)).save(given.out, "PNG")
    except (LroError, ClientError, OSError, ValueError) as exc:
        raise SystemExit(f"draw: {exc}") from None
