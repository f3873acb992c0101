"""verify: recognises a flat object, even turned or cropped, but no mirror image or other object."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import PIL.Image
import pytest
from skimage.transform import rotate

from examples.analysis.messages import Image, VerifyRequest, VerifyResponse
from examples.analysis.verbs import verify as module
from tests.full.examples.conftest import answer, encoded, flat, levels, opened, saved

SAME = {
    frozenset({"motorcycle_left.png", "motorcycle_right.png"}),
    frozenset({"chessboard_GRAY.png", "chessboard_RGB.png"}),
}
"""Pairs of bundled pictures in which both show the same object."""
DATA = resources.files("skimage") / "data"
BUNDLED = {
    entry.name: Image(content=entry.read_bytes())
    for entry in DATA.iterdir()
    if entry.name.endswith((".png", ".jpg"))
}


def run(image: Image, reference: Image, **options: float) -> Any:
    return answer(VerifyRequest(image=image, reference=reference, **options))


def against_astronaut(pixels: np.ndarray) -> VerifyResponse:
    return run(saved(np.ascontiguousarray(pixels)), encoded("astronaut.png"))


@pytest.fixture(scope="module")
def turned() -> VerifyResponse:
    """Verify a copy of the astronaut, turned by 30 degrees, against the original."""
    return against_astronaut(np.rint(rotate(levels("astronaut.png"), 30) * 255).astype(np.uint8))


def test_picture_turned_by_30_degrees_matches_a_rotation(turned: VerifyResponse) -> None:
    """Most matches of a picture turned by 30 degrees fit a rotation by that angle."""
    assert turned.verified
    assert turned.inlier_count > 250
    assert turned.match_count == pytest.approx(353, abs=20)
    assert turned.required_inliers == 8 + 0.3 * turned.match_count
    matrix = np.reshape(turned.homography, (3, 3))
    assert matrix[:2, :2] == pytest.approx(np.array([[0.866, 0.5], [-0.5, 0.866]]), abs=0.02)
    assert matrix[2, 2] == 1


def test_crop_is_found_where_it_was_cut_out() -> None:
    """The homography of a crop maps the reference to the place where the crop was cut out."""
    found = against_astronaut(levels("astronaut.png")[40:340, 100:400])
    assert found.verified
    assert (found.homography[2], found.homography[5]) == pytest.approx((-100, -40), abs=1)
    assert (found.scale, found.image_width, found.image_height) == (1.0, 300, 300)


def test_mirror_image_does_not_verify() -> None:
    """A mirror image is not verified, because no homography that keeps the orientation fits it."""
    found = against_astronaut(levels("astronaut.png")[:, ::-1])
    assert not found.verified
    assert found.inlier_count > found.required_inliers
    assert found.homography == ()


def test_picture_of_one_colour_has_no_keypoints() -> None:
    """A picture of one colour has no keypoints, which is not an error."""
    found = run(flat(200, 200, color=(90, 90, 90)), encoded("astronaut.png"))
    assert not found.verified
    assert (found.image_keypoints, found.match_count, found.inlier_count) == (0, 0, 0)
    assert found.reference_keypoints > 500
    assert found.required_inliers == 8


def test_homography_is_in_pixels_of_the_original() -> None:
    """The homography is in original pixels, although a smaller copy is searched."""
    large = opened("astronaut.png").resize((1536, 1536))
    found = run(saved(large, "JPEG", quality=95), encoded("astronaut.png"))
    assert found.verified
    assert found.scale == pytest.approx(800 / 1536)
    assert found.homography[0] == pytest.approx(3, rel=0.01)
    assert found.homography[4] == pytest.approx(3, rel=0.01)
    back = run(encoded("astronaut.png"), saved(large, "JPEG", quality=95))
    assert back.homography[0] == pytest.approx(1 / 3, rel=0.01)


@pytest.mark.filterwarnings("ignore:No inliers found")
def test_keypoints_on_one_line_give_no_homography() -> None:
    """Keypoints on one line give no homography, however many of them match."""
    rows, columns = np.mgrid[:120, :200]
    pixels = np.full((120, 200), 30, dtype=np.uint8)
    for index in range(7):
        radius = 3 + index / 2
        pixels[(rows - 60) ** 2 + (columns - 20 - 25 * index) ** 2 < radius**2] = 220
    found = run(saved(pixels), saved(pixels))
    assert found.match_count > 12
    assert not found.verified


def test_keypoints_are_at_most_3000_and_the_coarsest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the keypoints of noise, the 3000 coarsest are kept; they survive a change of size."""
    noise = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 150), np.uint8))
    large = noise.resize((600, 600), PIL.Image.Resampling.BICUBIC)
    assert run(saved(large), flat(32, 32)).image_keypoints == 3000
    monkeypatch.setattr(module, "MAX_KEYPOINTS", 200)
    small = saved(opened("astronaut.png").resize((256, 256)))
    found = run(small, encoded("astronaut.png"))
    assert (found.reference_keypoints, found.verified) == (200, True)


def test_unrelated_pictures_do_not_verify() -> None:
    """Of the bundled pictures, only the two pairs that show the same object are verified."""
    names = sorted(BUNDLED)[::3]
    pairs = [*zip(names, [*names[1:], names[0]], strict=True), *map(sorted, SAME)]
    verified = {
        frozenset(pair) for pair in pairs if run(*(BUNDLED[name] for name in pair)).verified
    }
    assert len(pairs) > 8
    assert verified == SAME
