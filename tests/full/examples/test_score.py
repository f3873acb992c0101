"""score: the technical quality of a photograph, which falls with blur, noise and low contrast."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from skimage.filters import gaussian

from examples.analysis.messages import Image, ScoreRequest, ScoreResponse
from tests.full.examples.conftest import answer, encoded, levels, saved

CAMERA = encoded("camera.png")
LEVELS = levels("camera.png")


def run(image: Image) -> Any:
    return answer(ScoreRequest(image=image))


def run_on(grey: npt.ArrayLike) -> ScoreResponse:
    return run(saved(np.rint(grey).clip(0, 255).astype(np.uint8)))


def test_score_of_the_cameraman_has_the_measured_values() -> None:
    """The cameraman has the values that were measured once."""
    found = run(CAMERA)
    assert found.blur == pytest.approx(0.288, rel=0.01)
    assert found.noise_sigma == pytest.approx(1.48, rel=0.01)
    assert found.contrast_range == pytest.approx(0.886, rel=0.01)
    assert found.entropy_bits == pytest.approx(7.23, rel=0.01)
    assert found.overall == pytest.approx(98.06, rel=0.01)
    assert found.colorfulness == 0.0
    assert found.mean_luminance == pytest.approx(LEVELS.mean() / 255)
    assert (found.scale, found.image_width, found.image_height) == (1.0, 512, 512)


def test_the_overall_score_is_the_geometric_mean() -> None:
    """The overall score is 100 times the fourth root of the product of four qualities (0 to 1)."""
    found = run(encoded("rocket.jpg"))
    qualities = (found.sharpness, found.cleanness, found.contrast, found.exposure)
    assert all(0 <= quality <= 1 for quality in qualities)
    assert found.overall == pytest.approx(100 * math.prod(qualities) ** 0.25)
    assert found.exposure == pytest.approx(1 - min(1, 2 * found.clipped_fraction))


def test_blur_lowers_the_score() -> None:
    """More blur lowers the score."""
    scores = [run_on(gaussian(LEVELS / 255, sigma) * 255).overall for sigma in (1, 2, 4)]
    assert scores == pytest.approx([93.7, 84.0, 63.1], rel=0.01)


def test_noise_is_measured_and_lowers_the_score() -> None:
    """The measured noise is about the noise that was added, and more noise lowers the score."""
    noise = np.random.default_rng(0).normal(size=LEVELS.shape)
    found = [run_on(LEVELS + sigma * noise) for sigma in (5, 10, 20)]
    assert [each.noise_sigma for each in found] == pytest.approx([6.7, 11.1, 20.0], abs=1)
    scores = [98.06, *(each.overall for each in found)]
    assert scores == sorted(scores, reverse=True)


def test_picture_without_contrast_is_scored_without_division_by_zero() -> None:
    """A flat colour scores 0; stripes, which do not change along one axis, have a valid blur."""
    for color, mode in product([(0, 0, 0), (255, 255, 255), (10, 200, 77)], ["RGB", "L"]):
        flat = PIL.Image.new("RGB", (40, 30), color).convert(mode)
        assert run(saved(flat)).overall == 0
    stripes = np.tile(np.array([0, 255], dtype=np.uint8), (16, 8))
    for grey in (stripes, stripes.T):
        assert 0 <= run(saved(grey)).blur <= 1


def test_black_and_white_artwork_scores_zero() -> None:
    found = run(encoded("horse.png"))
    assert found.clipped_fraction > 0.9
    assert (found.exposure, found.overall) == (0.0, 0.0)


def test_colourfulness_of_half_red_half_blue_is_as_calculated() -> None:
    """The colourfulness of half red and half blue equals the value calculated by hand."""
    colors = np.zeros((16, 32, 3), dtype=np.uint8)
    colors[:, :16, 0] = 255
    colors[:, 16:, 2] = 255
    spread = math.hypot(127.5, 191.25)  # rg is 255 and 0, yb is 127.5 and -255
    means = math.hypot(127.5, -63.75)
    assert run(saved(colors)).colorfulness == pytest.approx(spread + 0.3 * means)


def test_grey_as_rgb_scores_the_same() -> None:
    """A grey picture has the same scores as an RGB picture with three equal channels."""
    grey, rgb = run(CAMERA), run(saved(np.dstack([LEVELS] * 3)))
    assert attrs.astuple(rgb) == pytest.approx(attrs.astuple(grey), abs=1e-3)


def test_a_large_picture_is_scored_on_a_copy() -> None:
    """For a large picture, the response has its copy's scale and its upright original's size."""
    found = run(saved(PIL.Image.linear_gradient("L").resize((3000, 400))))
    assert (found.scale, found.image_width, found.image_height) == (2048 / 3000, 3000, 400)
