"""compare: how much two pictures differ, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.analysis.messages import BoundingBox, CompareRequest, Image
from tests.full.examples.conftest import answer, encoded, flat, levels, opened, saved

CAMERA = encoded("camera.png")


def run(image: Image, reference: Image = CAMERA, **options: Any) -> Any:
    return answer(CompareRequest(image=image, reference=reference, **options))


def damaged(*boxes: tuple[int, int, int, int]) -> Image:
    """Return the cameraman with dark and bright swapped in these boxes (x, y, width, height)."""
    pixels = levels("camera.png")
    for x, y, width, height in boxes:
        part = pixels[y : y + height, x : x + width]
        part[:] = np.where(part < 128, 255, 0)
    return saved(pixels)


def test_picture_is_identical_to_itself() -> None:
    """A picture is identical to itself, and its PSNR, which is infinite, is left out."""
    found = run(CAMERA)
    assert found.ssim == pytest.approx(1)
    assert (found.mse, found.psnr_db, found.identical) == (0, None, True)
    assert (found.changed_fraction, found.changed_regions) == (0, ())
    assert (found.scale, found.image_width, found.image_height) == (1.0, 512, 512)


def test_changed_box_is_found_to_the_pixel() -> None:
    """A changed box is found to the pixel."""
    found = run(damaged((200, 100, 60, 40)))
    (region,) = found.changed_regions
    assert region.bounding_box == BoundingBox(x=200, y=100, width=60, height=40)
    assert region.area_px == 2400
    assert found.changed_fraction == pytest.approx(0.00916, abs=1e-5)
    assert not found.identical


def test_brighter_picture_differs_within_the_tolerance() -> None:
    """A picture that is ten levels brighter differs, but its changes are within the tolerance."""
    brighter = np.minimum(levels("camera.png").astype(int) + 10, 255).astype(np.uint8)
    found = run(saved(brighter))
    assert found.mse == pytest.approx(99.64, abs=0.01)
    assert found.psnr_db == pytest.approx(28.146, abs=0.01)
    assert found.ssim == pytest.approx(0.971, abs=0.001)
    assert found.changed_regions == ()
    assert run(saved(brighter), tolerance=0.03).changed_fraction > 0.9


def test_shift_or_mirror_lowers_the_ssim() -> None:
    """A shift by one column or a mirror image lowers the SSIM."""
    pixels = levels("camera.png")
    found = [
        run(saved(np.ascontiguousarray(one))).ssim
        for one in (np.roll(pixels, 1, 1), pixels[:, ::-1])
    ]
    assert found == pytest.approx([0.757, 0.306], abs=0.0005)


def test_regions_are_ordered_and_limited() -> None:
    """The largest region comes first, and at most ``max_regions`` regions are returned."""
    boxes = (10, 10, 20, 20), (300, 300, 50, 50), (100, 400, 30, 30)
    found = run(damaged(*boxes))
    assert [region.area_px for region in found.changed_regions] == [2500, 900, 400]
    assert run(damaged(*boxes), max_regions=2).changed_regions == found.changed_regions[:2]
    assert run(damaged(*boxes), max_regions=0).changed_regions == ()


def test_pieces_up_to_four_pixels_apart_are_one_region() -> None:
    """Changes up to four pixels apart form one region; its area counts only changed pixels."""
    found = run(damaged((100, 100, 10, 10), (114, 100, 10, 10)))
    (region,) = found.changed_regions
    assert region.bounding_box == BoundingBox(x=100, y=100, width=24, height=10)
    assert region.area_px == 200
    assert len(run(damaged((100, 100, 10, 10), (115, 100, 10, 10))).changed_regions) == 2


def test_grey_and_colour_pictures_are_compared_in_colour() -> None:
    """If one of the pictures has colour, both are compared in colour."""
    colour = saved(opened("camera.png").convert("RGB"))
    for found in (run(colour), run(CAMERA, colour)):
        assert found.identical
        assert found.ssim == pytest.approx(1)
    red = levels("camera.png")[..., None].repeat(3, axis=2)
    red[50:60, 70:90, 1:] ^= 0x80
    (region,) = run(saved(red)).changed_regions
    assert region.bounding_box == BoundingBox(x=70, y=50, width=20, height=10)


def test_black_and_white_have_the_largest_difference() -> None:
    """Black and white differ by the largest possible amount, which a tolerance of 1 accepts."""
    black, white = flat(20, 20, "L", 0), flat(20, 20, "L", 255)
    found = run(black, white)
    assert (found.mse, found.psnr_db, found.changed_fraction) == (255**2, 0, 1)
    assert run(black, white, tolerance=1.0).changed_fraction == 0


def test_large_pictures_are_compared_on_copies() -> None:
    """Copies with sides up to 2048 pixels are compared; the regions are in original pixels."""
    plain = np.zeros((1024, 4096), dtype=np.uint8)
    marked = plain.copy()
    marked[400:600, 1000:1400] = 255
    found = run(saved(marked), saved(plain))
    assert found.scale == 0.5
    (region,) = found.changed_regions
    box = region.bounding_box
    assert (box.x, box.y, box.width, box.height) == pytest.approx((1000, 400, 400, 200), abs=8)
    assert region.area_px == pytest.approx(400 * 200, rel=0.05)
