"""What is drawn of results: of all ten, of those that found nothing, and by the command."""

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
from examples.analysis.drawing import GREEN, RED, YELLOW, Drawing, draw, paint
from examples.analysis.messages import BoundingBox
from examples.analysis.methods import first_picture
from examples.analysis.pictures import decode
from examples.analysis.router import NAMES
from lro import InvalidArgument
from tests.full.examples.conftest import encoded, flat
from tests.full.examples.serving import ROOT, TYPES, Server, listening

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
def results(server: Server) -> dict[str, Any]:
    """The response to the sample of each analysis."""
    names = {verb: server.start(verb, sample(verb))["name"] for verb in NAMES}
    found = {}
    for verb, name in names.items():
        body = server.finish(name)["response"]
        kind = getattr(m, f"{verb.capitalize()}Response")
        found[verb] = TYPES.load({key: body[key] for key in body.keys() - {"@type"}}, kind)
    return found


def drawn(results: dict[str, Any], verb: str) -> Drawing:
    """The drawing of the result of a sample."""
    second = getattr(sample(verb), "reference", None)
    return draw(results[verb], decode(second, "reference").size if second else None)


def levels(drawing: Drawing) -> npt.NDArray[np.uint8]:
    """The overlay as rows x columns x 4."""
    return np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(drawing.overlay))))


@pytest.mark.parametrize("verb", NAMES)
def test_each_result_is_drawn_on_its_picture(verb: str, results: dict[str, Any]) -> None:
    """Each of the ten has its title and changes the picture, which becomes 960 pixels long."""
    drawing, picture = drawn(results, verb), decode(first_picture(sample(verb)), "image")
    assert drawing.title == TITLES[verb]
    assert drawing.size == picture.size
    width, height = (round(side * 960 / max(picture.size)) for side in picture.size)
    painted = paint(picture, drawing)
    assert painted.width == width
    assert painted.height > height
    before = np.asarray(picture.convert("RGB").resize((width, height)))
    assert (np.asarray(painted)[:height] != before).any(axis=2).sum() > 1000
    json.dumps([shape.points for shape in drawing.shapes], allow_nan=False)


def test_faces_and_changes_are_boxes(results: dict[str, Any]) -> None:
    """The box is that of the response; a face says how often it was seen."""
    face = results["detect"].faces[0]
    shape = drawn(results, "detect").shapes[0]
    box = face.bounding_box
    assert shape.points[0] == (box.x, box.y)
    assert shape.points[2] == (box.x + box.width, box.y + box.height)
    assert (shape.label, shape.closed) == (f"{face.support} hits", True)
    assert drawn(results, "compare").shapes[0].points[0] == (40, 40)


def test_reference_is_outlined_where_it_lies(results: dict[str, Any]) -> None:
    """The detail was cut out around (320, 200), after a turn by 25 degrees around (300, 200)."""
    shapes = drawn(results, "verify").shapes
    assert len(shapes) == 10
    middle = np.mean([shape.points for shape in shapes], axis=(0, 1))
    assert np.hypot(*(middle - (318, 208))) < 10


def test_regions_and_weights_are_overlays(results: dict[str, Any]) -> None:
    """Objects are coloured and the ground is not; green lies where the brick is."""
    coins = levels(drawn(results, "segment"))
    assert 0.3 < (coins[:, :, 3] > 0).mean() < 0.4
    assert len(np.unique(coins[coins[:, :, 3] > 0][:, :3], axis=0)) == 8
    heat = levels(drawn(results, "explain"))
    red_left = heat[:, :240, 0].astype(int) > heat[:, :240, 1]
    red_right = heat[:, 272:, 0].astype(int) > heat[:, 272:, 1]
    assert red_left.mean() > 0.9
    assert red_right.mean() < 0.1


def test_palette_is_a_strip_as_wide_as_its_shares(results: dict[str, Any]) -> None:
    """The lowest eighth shows each colour, and its row has a bar of that colour."""
    strip = levels(drawn(results, "extract"))
    assert set(np.unique(strip[:-1, :, 3])) == {0}
    first = results["extract"].palette[0]
    color = tuple(bytes.fromhex(first.color[1:]))
    assert (strip[-1, :, :3] == color).all(axis=1).mean() == pytest.approx(first.fraction, abs=0.01)
    rows = drawn(results, "extract").rows
    assert rows[0] == (first.color, f"{first.fraction:.1%}", first.fraction, first.color)
    assert ("format", "PNG", -1.0, rows[-1][3]) in rows


def test_track_has_a_box_in_each_frame_and_a_way(results: dict[str, Any]) -> None:
    """Thirty boxes, each in its own frame, and one open line in all frames."""
    *boxes, way = drawn(results, "track").shapes
    assert [box.frame for box in boxes] == list(range(30))
    assert {box.color for box in boxes} == {YELLOW}
    assert (len(way.points), way.closed, way.frame) == (30, False, -1)


def test_numbers_are_rows_and_shares_have_bars(results: dict[str, Any]) -> None:
    """A share of 0..1 has a bar, another number has none; size and scale are left out."""
    rows = {name: (text, share) for name, text, share, _ in drawn(results, "score").rows}
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
def test_result_that_found_nothing_is_a_frame(result: Any, title: str, color: str) -> None:
    """Then the whole picture is framed, and the frame says so."""
    (shape,) = draw(result).shapes
    assert (shape.points, shape.label, shape.color) == (CORNERS, title, color)
    assert draw(result).overlay == ""
    assert paint(PIL.Image.new("L", (60, 40)), draw(result)).width == 960


def test_lost_box_is_red() -> None:
    """Where the thing was not found the box is red and says so."""
    position = m.TrackedPosition(bounding_box=BoundingBox(width=5, height=5), score=0.1)
    shape = draw(m.TrackResponse(positions=(position,), frame_count=1, **SIZE)).shapes[0]
    assert (shape.label, shape.color) == ("lost", RED)


@pytest.mark.parametrize("size", [(1, 20), (20, 1), (1, 1)])
def test_smallest_pictures_can_be_painted(size: tuple[int, int]) -> None:
    """A picture of one pixel, and the narrowest ones."""
    result = m.ExtractResponse(image_width=size[0], image_height=size[1])
    assert max(paint(PIL.Image.new("RGB", size), draw(result)).size) >= 960


def test_projection_to_infinity_stays_a_number() -> None:
    """A homography may send a corner behind the picture."""
    wild = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, -0.05, 0.0, 1.0)
    result = m.VerifyResponse(verified=True, homography=wild, **SIZE)
    for shape in draw(result, (100, 100)).shapes:
        assert all(abs(place) <= 1e5 for point in shape.points for place in point)


def test_pictures_and_options_replace_those_of_the_sample() -> None:
    """One picture or several frames for track, two for compare, further fields as JSON."""
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
def test_what_an_analysis_does_not_take_is_refused(
    verb: str, count: int, options: str, field: str
) -> None:
    """The complaint names the field."""
    with pytest.raises(InvalidArgument) as caught:
        request_of(verb, [flat(64, 64)] * count, options)
    assert caught.value.field == field


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command ``draw``."""
    return subprocess.run(
        [sys.executable, "-m", "examples.analysis", "draw", *arguments],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )


def test_draw_writes_a_png(tmp_path: Path) -> None:
    """The command starts a server, shows the progress, and writes the picture."""
    out = tmp_path / "out.png"
    ran = run("detect", "astronaut.png", "-o", str(out))
    assert (ran.returncode, ran.stdout) == (0, "")
    assert re.fullmatch(r"detect \S+ 100% \S+ +DONE\n", ran.stderr)
    with PIL.Image.open(out) as picture:
        assert (picture.format, picture.width) == ("PNG", 960)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["detect", str(ROOT / "README.md")],
            "is not a readable PNG, JPEG, GIF, TIFF, WEBP or BMP",
        ),
        (["detect", "nothing.png"], "No such file or directory"),
        (["compare", "coins.png"], "reference: is required"),
        (["score", "--options", "[]"], "options must be a JSON object, got []"),
        (["score", "--options", "{"], "Expecting property name"),
        (["score", "--server", "http://127.0.0.1:1"], "UNAVAILABLE"),
        (["score", "--server", "nowhere"], "nowhere"),
        (["paint"], "invalid choice: 'paint'"),
    ],
)
def test_draw_says_in_one_sentence_why_not(arguments: list[str], sentence: str) -> None:
    """The last line says it, without a traceback."""
    ran = run(*arguments, "-o", "/nowhere/out.png")
    assert ran.returncode != 0
    assert sentence in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr


def test_draw_says_that_it_cannot_write() -> None:
    """The folder of the picture has to exist."""
    ran = run("score", "-o", "/nowhere/out.png")
    assert ran.returncode != 0
    last = ran.stderr.splitlines()[-1]
    assert last == "draw: [Errno 2] No such file or directory: '/nowhere/out.png'"


def test_draw_uses_the_server_that_is_given(server: Server) -> None:
    """It is a client of any server of these ten."""
    before = len(server.listed(pageSize=1000))
    with listening(server) as url:
        ran = run("score", "--server", url, "-o", "/dev/null")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert len(server.listed(pageSize=1000)) == before + 1
