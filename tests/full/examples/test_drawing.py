"""Drawings of results: for all ten analyses, for results without findings, and by the command."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest

from examples.analysis import messages as m
from examples.analysis.demo import request_of, sample
from examples.analysis.drawing import GREEN, RED, YELLOW, Drawing, draw, main, paint
from examples.analysis.messages import BoundingBox
from examples.analysis.methods import first_picture
from examples.analysis.pictures import decode
from examples.analysis.router import NAMES
from tests.full.examples.conftest import Analysis, encoded, flat, refused
from tests.full.examples.serving import ROOT, Server, listening
from tests.waiting import PATIENCE

TITLES = {
    "detect": "Faces found: 1",
    "verify": "The same scene",
    "compare": "2.8% of the picture changed",
    "segment": "Regions found: 24",
    "classify": "grass",
    "authenticate": "Authentic",
    "score": "98 of 100",
    "explain": "Green speaks for brick, red against",
    "extract": "Mostly #c1733f",
    "track": "Found in 30 of 30 frames",
}
SIZE = {"image_width": 60, "image_height": 40}
CORNERS = ((0, 0), (60, 0), (60, 40), (0, 40))


@pytest.fixture(scope="module")
def results(analyses: dict[str, Analysis]) -> dict[str, Any]:
    """Return the response to each analysis's sample."""
    return {verb: analysis.result for verb, analysis in analyses.items()}


@pytest.fixture(scope="module")
def drawings(analyses: dict[str, Analysis]) -> dict[str, Drawing]:
    coffee = analyses["verify"].request.reference  # only this picture's size is used
    size = decode(coffee, "reference").size
    return {verb: draw(one.result, size) for verb, one in analyses.items()}


def levels(drawing: Drawing) -> npt.NDArray[np.uint8]:
    """Return the overlay as an array of rows, columns and four channels."""
    return np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(drawing.overlay))))


@pytest.mark.parametrize("verb", NAMES)
def test_each_result_is_drawn_on_its_picture(
    verb: str, analyses: dict[str, Analysis], drawings: dict[str, Drawing]
) -> None:
    """Each drawing has a title and changes its picture, whose longest side becomes 960 pixels."""
    drawing, picture = drawings[verb], decode(first_picture(analyses[verb].request), "image")
    assert drawing.title == TITLES[verb]
    assert drawing.size == picture.size
    width, height = (round(side * 960 / max(picture.size)) for side in picture.size)
    painted = paint(picture, drawing)
    assert painted.width == width
    assert painted.height > height
    before = np.asarray(picture.convert("RGB").resize((width, height)))
    assert (np.asarray(painted)[:height] != before).any(axis=2).sum() > 1000
    json.dumps([shape.points for shape in drawing.shapes], allow_nan=False)


def test_faces_and_changes_are_boxes(results: dict[str, Any], drawings: dict[str, Drawing]) -> None:
    """Each drawn box has the position from the response; a face shows its number of windows."""
    face = results["detect"].faces[0]
    shape = drawings["detect"].shapes[0]
    box = face.bounding_box
    assert shape.points[0] == (box.x, box.y)
    assert shape.points[2] == (box.x + box.width, box.y + box.height)
    assert (shape.label, shape.closed) == (f"{face.support} hits", True)
    assert drawings["compare"].shapes[0].points[0] == (40, 40)


def test_reference_is_outlined_where_it_lies(drawings: dict[str, Drawing]) -> None:
    """The reference's outline is where the sample's detail was cut out and turned."""
    shapes = drawings["verify"].shapes
    assert len(shapes) == 10
    middle = np.mean([shape.points for shape in shapes], axis=(0, 1))
    assert np.hypot(*(middle - (318, 208))) < 10


def test_regions_and_weights_are_overlays(drawings: dict[str, Drawing]) -> None:
    """Objects are coloured but the background is not; the weights of the brick half are green."""
    coins = levels(drawings["segment"])
    assert 0.3 < (coins[:, :, 3] > 0).mean() < 0.4
    assert len(np.unique(coins[coins[:, :, 3] > 0][:, :3], axis=0)) == 8
    heat = levels(drawings["explain"])
    red_left = heat[:, :240, 0].astype(int) > heat[:, :240, 1]
    red_right = heat[:, 272:, 0].astype(int) > heat[:, 272:, 1]
    assert red_left.mean() > 0.9
    assert red_right.mean() < 0.1


def test_palette_is_a_strip_as_wide_as_its_shares(
    results: dict[str, Any], drawings: dict[str, Drawing]
) -> None:
    """Each palette colour fills its share of the strip; each row has a bar of its colour."""
    strip = levels(drawings["extract"])
    assert set(np.unique(strip[:-1, :, 3])) == {0}
    first = results["extract"].palette[0]
    color = tuple(bytes.fromhex(first.color[1:]))
    assert (strip[-1, :, :3] == color).all(axis=1).mean() == pytest.approx(first.fraction, abs=0.01)
    rows = drawings["extract"].rows
    assert rows[0] == (first.color, f"{first.fraction:.1%}", first.fraction, first.color)
    assert ("format", "PNG", -1.0, rows[-1][3]) in rows


def test_track_is_drawn_as_a_box_in_each_frame_and_a_line(drawings: dict[str, Drawing]) -> None:
    """A track of thirty frames has a box in each frame and one open line in all frames."""
    *boxes, way = drawings["track"].shapes
    assert [box.frame for box in boxes] == list(range(30))
    assert {box.color for box in boxes} == {YELLOW}
    assert (len(way.points), way.closed, way.frame) == (30, False, -1)


def test_numbers_are_drawn_as_rows_and_shares_as_bars(
    results: dict[str, Any], drawings: dict[str, Drawing]
) -> None:
    """A share from 0 to 1 has a bar, and other numbers have none; size and scale are left out."""
    rows = {name: (text, share) for name, text, share, _ in drawings["score"].rows}
    assert rows["sharpness"] == (f"{results['score'].sharpness:.4g}", results["score"].sharpness)
    assert rows["noise sigma"][1] == -1
    assert not {"scale", "image width", "image height"} & rows.keys()


@pytest.mark.parametrize(
    ("result", "title", "color"),
    [
        (m.DetectResponse(**SIZE), "Faces found: 0", GREEN),
        (m.VerifyResponse(**SIZE), "Not the same scene", GREEN),
        (m.CompareResponse(**SIZE), "0.0% of the picture changed", GREEN),
        (m.ClassifyResponse(label="moss", **SIZE), "moss? Unlike all examples", RED),
        (m.AuthenticateResponse(**SIZE), "Signed by none of the keys", RED),
        (m.ExtractResponse(**SIZE), "Features", GREEN),
    ],
)
def test_result_without_findings_is_drawn_as_a_frame(result: Any, title: str, color: str) -> None:
    """If a result has no findings, the whole picture gets a frame with the result's title."""
    (shape,) = draw(result).shapes
    assert (shape.points, shape.label, shape.color) == (CORNERS, title, color)
    assert draw(result).overlay == ""
    assert paint(PIL.Image.new("L", (60, 40)), draw(result)).width == 960


def test_lost_box_is_red() -> None:
    """If a frame lacks the object, the box is red and labelled "lost"."""
    position = m.TrackedPosition(bounding_box=BoundingBox(width=5, height=5), score=0.1)
    shape = draw(m.TrackResponse(positions=(position,), frame_count=1, **SIZE)).shapes[0]
    assert (shape.label, shape.color) == ("lost", RED)


def test_tiny_narrow_and_degenerate_pictures_can_be_drawn() -> None:
    """Pictures of one pixel, narrow pictures and extreme homographies can be drawn."""
    for width, height in ((1, 20), (20, 1), (1, 1)):
        drawing = draw(m.ExtractResponse(image_width=width, image_height=height))
        assert max(paint(PIL.Image.new("RGB", (width, height)), drawing).size) >= 960
    wild = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, -0.05, 0.0, 1.0)
    drawing = draw(m.VerifyResponse(verified=True, homography=wild, **SIZE), (100, 100))
    places = [place for shape in drawing.shapes for point in shape.points for place in point]
    assert max(map(abs, places)) <= 1e5


def test_pictures_and_options_replace_those_of_the_sample() -> None:
    """Given pictures and options replace those of the sample; track takes one or more pictures."""
    coins, moon = encoded("coins.png"), encoded("moon.png")
    film = request_of("track", [coins, moon], '{"box": {"x": 1, "width": 9, "height": 9}}')
    assert (film.frames, film.image, film.box.x) == ((coins, moon), None, 1)
    assert request_of("track", [coins]) == m.TrackRequest(image=coins, box=sample("track").box)
    assert request_of("compare", [coins, moon]).reference == moon
    assert request_of("segment", [], '{"splitTouching": true}').split_touching


@pytest.mark.parametrize(
    ("verb", "count", "options", "field"),
    [
        ("detect", 2, "{}", "reference"),
        ("verify", 3, "{}", "third picture"),
        ("detect", 0, '{"box": {}}', "box"),
        ("detect", 0, '{"min_size_px": 1}', "min_size_px"),
    ],
)
def test_unsupported_picture_or_option_is_refused(
    verb: str, count: int, options: str, field: str
) -> None:
    """An unsupported picture or option is refused with an error that names its field."""
    assert refused(lambda: request_of(verb, [flat(64, 64)] * count, options)).field == field


def test_draw_writes_a_png(tmp_path: Path) -> None:
    """The draw command starts a server, shows the progress and writes the picture."""
    out = tmp_path / "out.png"
    ran = subprocess.run(
        [sys.executable, "-m", "examples.analysis", "draw", "detect", "astronaut.png", "-o", out],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    assert re.fullmatch(r"detect \S+ 100% \S+ +DONE\n", ran.stderr)
    with PIL.Image.open(out) as picture:
        assert (picture.format, picture.width) == ("PNG", 960)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"detect {ROOT}/README.md", "is not a readable PNG, JPEG, GIF, TIFF, WEBP or BMP"),
        ("detect nothing.png", "No such file or directory"),
        ("compare coins.png", "reference: is required"),
        ("score --options []", "options must be a JSON object, got []"),
        ("score --options {", "Expecting property name"),
        ("score --server http://127.0.0.1:1", "UNAVAILABLE"),
        ("score --server nowhere", "nowhere"),
    ],
)
def test_draw_command_fails_with_one_sentence(words: str, sentence: str, server: Server) -> None:
    with listening(server) as url, pytest.raises(SystemExit) as caught:
        main(["--server", url, *words.split(), "-o", "/nowhere/out.png"])
    assert str(caught.value).startswith("draw: ")
    assert sentence in str(caught.value)


def test_draw_uses_the_server_that_is_given(server: Server, tmp_path: Path) -> None:
    """The draw command can use a given server; it fails if the picture's folder does not exist."""
    before = len(server.listed(pageSize=1000))
    with listening(server) as url:
        main(["score", "--server", url, "-o", str(tmp_path / "out.png")])
        with pytest.raises(SystemExit, match="No such file or directory"):
            main(["score", "--server", url, "-o", "/nowhere/out.png"])
    assert len(server.listed(pageSize=1000)) == before + 2
