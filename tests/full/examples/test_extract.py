"""extract: palette, fingerprint and embedded metadata of bundled and generated pictures."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from itertools import combinations
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags
from PIL.TiffImagePlugin import IFDRational

from examples.analysis.messages import ExtractRequest, Feature, Image
from examples.analysis.verbs.extract import MAX_TAG_CHARS, MAX_TAGS, STAGES, perceptual_hash
from tests.full.examples.conftest import Recorder, answer, encoded, opened, oriented, saved


def run(image: Image, *features: Feature, palette_size: int = 5) -> Any:
    request = ExtractRequest(image=image, features=features, palette_size=palette_size)
    return answer(request)


def palette(image: Image, size: int = 5) -> dict[str, float]:
    colors = run(image, Feature.PALETTE, palette_size=size).palette
    return {each.color: each.fraction for each in colors}


def rgb(color: str) -> list[int]:
    return list(bytes.fromhex(color.removeprefix("#")))


def bits_apart(one: str, other: str) -> int:
    return (int(one, 16) ^ int(other, 16)).bit_count()


def metadata_of(image: Image) -> Any:
    return run(image, Feature.METADATA).metadata


def tags_of(exif: PIL.Image.Exif) -> dict[str, str]:
    return dict(metadata_of(saved(PIL.Image.new("RGB", (9, 5)), "JPEG", exif=exif)).tags)


def test_palette_of_the_logo_has_its_three_colours() -> None:
    """Green, orange and the white background are found within 8 levels, with shares within 0.02."""
    colors = run(encoded("logo.png"), Feature.PALETTE, palette_size=3).palette
    assert colors[0].fraction == pytest.approx(0.36, abs=0.02)
    assert rgb(colors[0].color) == pytest.approx(rgb("#92c249"), abs=8)
    others = sorted(colors[1:], key=lambda each: each.color)
    for found, expected in zip(others, ("#ff9a4c", "#fffcf9"), strict=True):
        assert rgb(found.color) == pytest.approx(rgb(expected), abs=8)
        assert found.fraction == pytest.approx(0.32, abs=0.02)


def test_palette_is_computed_until_clusters_converge() -> None:
    """The rocket's palette has the shares of converged clusters, not of a few iterations."""
    found = palette(encoded("rocket.jpg"), 3)
    assert list(found.values()) == pytest.approx([0.5055, 0.4357, 0.0588], abs=0.0001)


@pytest.mark.parametrize("size", [1, 5, 16])
def test_palette_fractions_fall_and_sum_to_one(size: int) -> None:
    found = palette(encoded("astronaut.png"), size)
    assert len(found) == size
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert sum(found.values()) == pytest.approx(1)


def test_palette_of_three_colours_has_three_entries() -> None:
    """A picture of three colours has a palette of exactly these colours."""
    colors = np.zeros((4, 10, 3), dtype=np.uint8)
    colors[:, 4:7] = (17, 200, 3)
    colors[:, 7:] = (255, 255, 255)
    colors[3, 9] = (17, 200, 3)
    found = palette(saved(colors), 16)
    assert list(found.items()) == [
        ("#000000", pytest.approx(0.4)),
        ("#11c803", pytest.approx(13 / 40)),
        ("#ffffff", pytest.approx(11 / 40)),
    ]


def test_fingerprint_changes_little_under_strong_compression() -> None:
    """Strong compression changes at most 8 of the 64 bits of the perceptual hash."""
    picture = opened("astronaut.png")
    small, poor = saved(picture.resize((128, 128))), saved(picture, "JPEG", quality=10)
    for image, bits in ((encoded("astronaut.png"), 4), (small, 8), (poor, 8)):
        found = run(image, Feature.FINGERPRINT).fingerprint
        assert found.content_sha256 == hashlib.sha256(image.content).hexdigest()
        assert bits_apart(found.perceptual_hash, "c2924c5532bddfc8") <= bits


def test_unrelated_pictures_have_other_hashes() -> None:
    """The hashes of any two bundled pictures of different things differ in at least 20 bits."""
    names = {entry.name for entry in (files("skimage") / "data").iterdir()}
    names -= {"chessboard_GRAY.png", "motorcycle_right.png"}  # other pictures show the same things
    hashes = [perceptual_hash(opened(name)) for name in names if name.endswith((".png", ".jpg"))]
    assert len(hashes) >= 20
    assert min(bits_apart(one, other) for one, other in combinations(hashes, 2)) >= 20


def test_flat_picture_has_a_hash() -> None:
    """The hash of a flat picture depends on its brightness only, not on rounding errors."""
    assert perceptual_hash(PIL.Image.new("L", (50, 40), 93)) == "8000000000000000"


def test_metadata_has_size_and_tags_of_the_file() -> None:
    """The metadata has the size and the tags that are stored in the file."""
    found = metadata_of(encoded("hubble_deep_field.jpg"))
    assert (found.format, found.mime_type, found.mode) == ("JPEG", "image/jpeg", "RGB")
    assert (found.width, found.height, found.frame_count) == (1000, 872, 1)
    assert found.tags["Software"] == "Adobe Photoshop CS5 Macintosh"
    assert found.tags["DateTime"] == "2012-09-17T15:53:45-04:00"
    assert "ExifOffset" not in found.tags
    assert "Photoshop" not in repr(found)  # tags may name a person, so logs hide them


def test_exif_tags_of_camera_and_gps_are_read() -> None:
    """EXIF tags of camera and GPS are read too; binary values are shown as their size."""
    exif = PIL.Image.Exif()
    exif[ExifTags.Base.Artist] = "Ada"
    exif[0xBEEF] = "no name"
    exif.get_ifd(ExifTags.IFD.Exif).update(
        {ExifTags.Base.FNumber: IFDRational(28, 10), ExifTags.Base.MakerNote: b"\xff\x00\x07"}
    )
    exif.get_ifd(ExifTags.IFD.GPSInfo).update(
        {ExifTags.GPS.GPSLatitudeRef: "N", ExifTags.GPS.GPSLatitude: (52.0, 30.0, 0.5)}
    )
    assert tags_of(exif) == {
        "Artist": "Ada",
        "0xbeef": "no name",
        "FNumber": "2.8",
        "MakerNote": "3 bytes",
        "GPSLatitudeRef": "N",
        "GPSLatitude": "52.0, 30.0, 0.5",
    }


def test_number_and_length_of_tags_are_bounded() -> None:
    """A long text is cut, and a long list of tags ends at ``MAX_TAGS``."""
    exif = PIL.Image.Exif()
    exif[ExifTags.Base.ImageDescription] = "x" * 5000
    assert tags_of(exif) == {"ImageDescription": "x" * MAX_TAG_CHARS}
    for number in range(0xC800, 0xC800 + 2 * MAX_TAGS):
        exif[number] = "many"
    assert len(tags_of(exif)) == MAX_TAGS


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow warns of tags that it skips
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=6))
def test_picture_with_any_exif_block_is_analysed(changes: list[tuple[int, int]]) -> None:
    """A picture with any damaged EXIF block is still analysed, and its tags are texts."""
    exif = PIL.Image.Exif()
    exif[ExifTags.Base.Artist] = "Ada"
    exif[ExifTags.Base.XResolution] = IFDRational(0, 0)
    exif.get_ifd(ExifTags.IFD.Exif).update({ExifTags.Base.UserComment: b"ASCII\0\0\0words"})
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({ExifTags.GPS.GPSLatitude: (52.0, 30.0, 0.5)})
    block = bytearray(exif.tobytes())
    for place, value in changes:
        block[place % len(block)] = value
    file = saved(PIL.Image.new("RGB", (9, 5)), "JPEG", exif=bytes(block))
    assert run(file, Feature.METADATA).metadata


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_leaves_other_features(form: str) -> None:
    """If the EXIF block is broken, the other features are still extracted."""
    broken = saved(PIL.Image.new("RGB", (9, 5)), form, exif=b"Exif\0\0XX*\0nonsense")
    found = metadata_of(broken)
    assert (found.width, found.height, dict(found.tags)) == (9, 5, {})


def test_size_of_a_rotated_file_is_upright() -> None:
    """The size of a file that EXIF rotates is the upright picture's size."""
    found = run(saved(PIL.Image.new("RGB", (9, 5)), "JPEG", exif=oriented(6)))
    assert (found.metadata.width, found.metadata.height) == (5, 9)
    assert (found.image_width, found.image_height) == (5, 9)


@pytest.mark.parametrize(
    ("name", "mode", "frame_count", "has_alpha"),
    [
        ("no_time_for_that_tiny.gif", "P", 24, False),
        ("multipage.tif", "L", 2, False),
        ("logo.png", "RGBA", 1, True),
        ("camera.png", "L", 1, False),
    ],
)
def test_response_has_mode_frames_and_transparency(
    name: str, mode: str, frame_count: int, has_alpha: bool
) -> None:
    """The response has the mode, the number of frames, and whether the picture has transparency."""
    found = metadata_of(encoded(name))
    assert (found.mode, found.frame_count, found.has_alpha) == (mode, frame_count, has_alpha)


@pytest.mark.parametrize(
    ("features", "stages"),
    [
        ((), STAGES),
        ((Feature.METADATA, Feature.PALETTE), ("PALETTE", "METADATA")),
        ((Feature.FINGERPRINT,), ("FINGERPRINT",)),
    ],
)
def test_progress_has_a_stage_for_each_feature(
    features: tuple[Feature, ...], stages: tuple[str, ...]
) -> None:
    """The stages of features come in the order of ``STAGES``, so that progress never falls."""
    progress = Recorder()
    answer(ExtractRequest(image=saved(PIL.Image.new("RGB", (3, 3))), features=features), progress)
    assert progress.calls[0::2] == [("DECODING", 1), *((stage, 1) for stage in stages)]
    assert progress.calls[1::2] == [1] * (1 + len(stages))
