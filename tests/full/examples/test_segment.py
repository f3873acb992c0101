"""segment: coins and discs are objects, and superpixels follow the colours."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from skimage.measure import label

from examples.analysis.messages import (
    Foreground,
    Image,
    SegmentMethod,
    SegmentRequest,
    SegmentResponse,
)
from examples.analysis.verbs.segment import STAGES
from tests.full.examples.conftest import (
    Recorder,
    answer,
    cancelled_everywhere,
    encoded,
    flat,
    levels,
    opened,
    saved,
)

DISCS = (60, 60, 30), (60, 100, 25), (140, 200, 40), (60, 240, 20), (60, 270, 20)
"""Row, column and radius of discs: two pairs that touch, and a single disc."""


def run(image: Image, progress: Recorder | None = None, **options: Any) -> Any:
    return answer(SegmentRequest(image=image, **options), progress)


def label_map(response: SegmentResponse) -> npt.NDArray[np.uint16]:
    assert response.label_map is not None
    with PIL.Image.open(io.BytesIO(response.label_map.content)) as picture:
        assert picture.mode == "I;16"
        return np.asarray(picture)


def discs(*chosen: tuple[int, int, int]) -> Image:
    """Return a picture of 200 x 300 with these bright discs on a dark background."""
    rows, columns = np.mgrid[:200, :300]
    pixels = np.full((200, 300), 30, dtype=np.uint8)
    for row, column, radius in chosen:
        pixels[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = 220
    return saved(pixels)


@pytest.fixture(scope="module")
def coins() -> SegmentResponse:
    """Segment the picture of coins with default options."""
    return run(encoded("coins.png"))


@pytest.fixture(scope="module")
def superpixels() -> SegmentResponse:
    """Segment the astronaut into about a hundred superpixels."""
    return run(encoded("astronaut.png"), method=SegmentMethod.SUPERPIXELS)


def test_segment_finds_24_coins_with_their_areas(coins: SegmentResponse) -> None:
    """Twenty-four coins are found in four rows of six, with the right areas."""
    assert coins.region_count == len(coins.regions) == 24
    heights = sorted(region.centroid.y for region in coins.regions)
    rows = [np.mean(heights[start : start + 6]) for start in range(0, 24, 6)]
    assert rows == pytest.approx([53, 124, 196, 264], abs=4)
    areas = sorted(region.area_px for region in coins.regions)
    assert (areas[0], areas[-1]) == pytest.approx((1097, 3070), rel=0.05)
    largest = max(coins.regions, key=lambda region: region.area_px).bounding_box
    found = (largest.x, largest.y, largest.width, largest.height)
    assert found == pytest.approx((315, 156, 65, 61), abs=3)


def test_label_map_has_each_label_at_its_pixels(coins: SegmentResponse) -> None:
    """The label map has each region's label at the region's pixels, and 0 elsewhere."""
    labels = label_map(coins)
    assert labels.shape == (303, 384)
    assert coins.foreground_fraction == pytest.approx((labels > 0).mean())
    for region in coins.regions:
        rows, columns = np.nonzero(labels == region.label)
        assert region.area_px == len(rows)
        assert (region.centroid.x, region.centroid.y) == pytest.approx(
            (columns.mean(), rows.mean())
        )
        assert region.bounding_box.x == columns.min()
        assert region.bounding_box.height == rows.max() - rows.min() + 1
        mean = round(float(levels("coins.png")[rows, columns].mean()))
        assert region.mean_color == f"#{mean:02x}" + f"{mean:02x}" * 2


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (saved(opened("coins.png").resize((192, 151))), {}),
        (saved(255 - levels("coins.png")), {"foreground": Foreground.DARK}),
        (encoded("coins.png"), {"split_touching": True}),
    ],
    ids=["half size", "inverted", "split"],
)
def test_coins_are_found_at_half_size_inverted_or_split(
    image: Image, options: dict[str, object]
) -> None:
    """The same 24 coins are found at half size, inverted, or with touching objects split."""
    assert run(image, **options).region_count == 24


def test_touching_discs_are_one_object_unless_split() -> None:
    """Discs that touch are one object, or two objects with ``split_touching``."""
    assert run(discs(*DISCS)).region_count == 3
    assert run(discs(*DISCS), split_touching=True).region_count == 5


def test_objects_below_min_area_are_left_out() -> None:
    """Objects smaller than ``min_area_px``, in pixels of the original, are left out."""
    image = discs((60, 60, 30), (140, 200, 40))
    assert run(image, min_area_px=3500).region_count == 1
    assert run(image, min_area_px=16_000_000).region_count == 0
    with PIL.Image.open(io.BytesIO(image.content)) as picture:
        large = saved(picture.resize((3000, 2000)))
    found = run(large, min_area_px=350_000)
    assert found.scale == pytest.approx(1024 / 3000)
    (region,) = found.regions
    assert (region.centroid.x, region.centroid.y) == pytest.approx((2005, 1405), abs=5)
    assert region.area_px == pytest.approx(np.pi * 400**2, rel=0.02)
    assert label_map(found).shape == (683, 1024)


@pytest.mark.parametrize("split_touching", [False, True])
def test_one_colour_has_no_objects(split_touching: bool) -> None:
    """A flat picture has no objects, even at the smallest size."""
    for image in (flat(300, 200, color=(90, 90, 90)), flat(16, 16)):
        found = run(image, split_touching=split_touching)
        assert (found.region_count, found.regions, found.foreground_fraction) == (0, (), 0)
        assert not label_map(found).any()


def test_superpixels_cover_every_pixel(superpixels: SegmentResponse) -> None:
    """Superpixels are 40 to 110 connected regions, which together cover every pixel."""
    labels = label_map(superpixels)
    assert 40 <= superpixels.region_count <= 110
    assert superpixels.foreground_fraction == 1
    assert labels.min() == 1
    assert len(np.unique(labels)) == superpixels.region_count
    assert label(labels, connectivity=1).max() == superpixels.region_count
    assert sum(region.area_px for region in superpixels.regions) == labels.size
    region = superpixels.regions[10]
    means = levels("astronaut.png")[labels == region.label].mean(axis=0)
    assert region.mean_color == "#" + "".join(f"{round(mean):02x}" for mean in means)


def test_superpixels_of_a_grey_picture_differ_in_size() -> None:
    """Superpixels of a grey picture are not a plain grid: their sizes differ widely."""
    found = run(encoded("camera.png"), method=SegmentMethod.SUPERPIXELS)
    areas = sorted(region.area_px for region in found.regions)
    assert areas[-1] > 3 * areas[0]


def test_only_the_first_thousand_regions_are_described() -> None:
    """Only the first 1000 regions are described, but all regions are counted and in the map."""
    found = run(flat(100, 100), method=SegmentMethod.SUPERPIXELS, segment_count=2000)
    assert found.region_count > 1000
    assert [region.label for region in found.regions] == list(range(1, 1001))
    assert label_map(found).max() == found.region_count


def test_superpixels_have_the_stages_of_objects() -> None:
    """Superpixels have the same stages as objects, and a cancellation at any call ends the work."""
    image, progress = saved(opened("coins.png").resize((96, 76))), Recorder()
    run(image, progress, method=SegmentMethod.SUPERPIXELS)
    assert progress.stages == ["DECODING", *STAGES]
    cancelled_everywhere(
        lambda recorder: run(image, recorder, method=SegmentMethod.SUPERPIXELS),
        range(len(progress.calls)),
    )
