"""detect: frontal faces in bundled pictures, and none in pictures without faces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.analysis.messages import DetectRequest, DetectResponse, Face, Image
from tests.full.examples.conftest import answer, encoded, flat, iou, levels, opened, saved

FACE = (177, 66, 95, 95)
"""The box of the astronaut's face according to another method, OpenCV's Haar cascade."""


def run(image: Image, **options: int) -> Any:
    return answer(DetectRequest(image=image, **options))


def place(face: Face) -> tuple[int, int, int, int]:
    box = face.bounding_box
    return box.x, box.y, box.width, box.height


@pytest.fixture(scope="module")
def astronaut() -> DetectResponse:
    """Detect the astronaut's face with default options."""
    return run(encoded("astronaut.png"))


def test_face_of_the_astronaut_is_found(astronaut: DetectResponse) -> None:
    """One face is found, where OpenCV finds it too, and 15 to 27 windows support it."""
    (face,) = astronaut.faces
    assert iou(place(face), FACE) > 0.6
    assert 15 <= face.support <= 27
    assert (astronaut.scale, astronaut.image_width, astronaut.image_height) == (1.0, 512, 512)


def test_two_faces_are_found_best_first() -> None:
    """Both faces of a picture are found, the one with more support first."""
    both = np.hstack([levels("astronaut.png"), levels("astronaut.png")[:, ::-1]])
    found = run(saved(both))
    assert found.scale == 0.625
    assert len(found.faces) == 2
    assert found.faces[0].support >= found.faces[1].support
    left, right = sorted(place(face) for face in found.faces)
    assert iou(left, FACE) > 0.6
    assert iou(right, (1024 - 177 - 95, 66, 95, 95)) > 0.6
    assert run(saved(both), max_results=1).faces == found.faces[:1]


def test_box_of_a_face_is_in_pixels_of_the_large_original() -> None:
    """A face's box is in pixels of the original of 9 MP, although a small copy is searched."""
    found = run(saved(opened("astronaut.png").resize((3000, 3000)), "JPEG"))
    assert found.scale == pytest.approx(640 / 3000)
    factor = 3000 / 512
    x, y, width, height = FACE
    wanted = (x * factor, y * factor, width * factor, height * factor)
    assert iou(place(found.faces[0]), wanted) > 0.5


@pytest.mark.parametrize(
    "image",
    [
        *map(encoded, ("camera.png", "coffee.png", "rocket.jpg", "coins.png", "text.png")),
        flat(300, 300, color=(90, 20, 30)),
        flat(24, 24),
    ],
)
def test_no_face_is_found_without_faces(image: Image) -> None:
    """In a picture without faces no face is found, even if it has the smallest allowed size."""
    assert run(image).faces == ()


def test_higher_support_or_size_finds_no_face(astronaut: DetectResponse) -> None:
    """No face is found if more support or a larger size is required than the face has."""
    support = astronaut.faces[0].support
    assert run(encoded("astronaut.png"), min_neighbors=support).faces == astronaut.faces
    for options in ({"min_neighbors": support + 1}, {"min_size_px": 200}, {"min_size_px": 2048}):
        assert run(encoded("astronaut.png"), **options).faces == ()
