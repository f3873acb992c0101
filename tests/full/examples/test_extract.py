"""extract: palette, fingerprint and embedded metadata of bundled and made pictures."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from itertools import combinations

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags
from PIL.TiffImagePlugin import IFDRational

from examples.analysis.messages import ExtractRequest, ExtractResponse, Feature, Image
from examples.analysis.verbs.extract import (
    MAX_TAG_CHARS,
    MAX_TAGS,
    STAGES,
    check,
    extract,
    perceptual_hash,
)
from tests.full.examples.conftest import (
    Recorder,
    encoded,
    opened,
    saved,
    through_json,
)


def run(
    image: Image, *features: Feature, palette_size: int = 5, progress: Recorder | None = None
) -> ExtractResponse:
    request = ExtractRequest(image=image, features=features, palette_size=palette_size)
    check(request)
    found = extract(request, progress or Recorder())
    assert through_json(found) == found  # and no number in it is NaN or infinite
    return found


def palette(image: Image, size: int = 5) -> dict[str, float]:
    colors = run(image, Feature.PALETTE, palette_size=size).palette
    return {each.color: each.fraction for each in colors}


def rgb(color: str) -> list[int]:
    return list(bytes.fromhex(color.removeprefix("#")))


def bits_apart(one: str, other: str) -> int:
    return (int(one, 16) ^ int(other, 16)).bit_count()


def tags_of(exif: PIL.Image.Exif, form: str = "JPEG") -> dict[str, str]:
    metadata = run(saved(PIL.Image.new("RGB", (9, 5)), form, exif=exif), Feature.METADATA).metadata
    assert metadata is not None
    return dict(metadata.tags)


def test_the_palette_of_the_logo() -> None:
    """Green, orange and the white behind it, each within 8 levels and 0.02."""
    colors = run(encoded("logo.png"), Feature.PALETTE, palette_size=3).palette
    assert colors[0].fraction == pytest.approx(0.36, abs=0.02)
    assert rgb(colors[0].color) == pytest.approx(rgb("#92c249"), abs=8)
    others = sorted(colors[1:], key=lambda each: each.color)
    for found, expected in zip(others, ("#ff9a4c", "#fffcf9"), strict=True):
        assert rgb(found.color) == pytest.approx(rgb(expected), abs=8)
        assert found.fraction == pytest.approx(0.32, abs=0.02)


def test_the_palette_is_that_of_clusters_that_change_no_more() -> None:
    """Ended early, the shares of the rocket were 0.538, 0.403 and 0.059."""
    found = palette(encoded("rocket.jpg"), 3)
    assert list(found.values()) == pytest.approx([0.5055, 0.4357, 0.0588], abs=0.0001)


@pytest.mark.parametrize("size", [1, 5, 16])
def test_fractions_fall_and_sum_to_one(size: int) -> None:
    """As many colours as were asked for, the largest first."""
    found = palette(encoded("astronaut.png"), size)
    assert len(found) == size
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert sum(found.values()) == pytest.approx(1)


def test_fewer_colours_than_asked_for() -> None:
    """A picture of three colours has a palette of three, exactly these."""
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


def test_one_red_pixel() -> None:
    """The smallest picture: one colour, all of it."""
    found = run(saved(PIL.Image.new("RGB", (1, 1), (255, 0, 0))))
    assert [(each.color, each.fraction) for each in found.palette] == [("#ff0000", 1.0)]
    assert (found.scale, found.image_width, found.image_height) == (1.0, 1, 1)


def test_grey_pictures_have_grey_palettes() -> None:
    """Red, green and blue of each colour are equal."""
    assert all(len(set(rgb(color))) == 1 for color in palette(encoded("camera.png")))


def test_the_fingerprint_of_the_astronaut() -> None:
    """The digest of the file, and the known hash of what it shows."""
    image = encoded("astronaut.png")
    found = run(image, Feature.FINGERPRINT).fingerprint
    assert found is not None
    assert found.content_sha256 == hashlib.sha256(image.content).hexdigest()
    assert bits_apart(found.perceptual_hash, "c2924c5532bddfc8") <= 4


def test_hash_changes_little_under_strong_compression() -> None:
    """JPEG of quality 10, a quarter of the size: at most 8 of 64 bits change."""
    picture = opened("astronaut.png")
    original = perceptual_hash(picture)
    for content in (saved(picture, "JPEG", quality=10), saved(picture.resize((128, 128)))):
        found = run(content, Feature.FINGERPRINT).fingerprint
        assert found is not None
        assert bits_apart(original, found.perceptual_hash) <= 8


def test_unrelated_pictures_have_other_hashes() -> None:
    """At least 20 of 64 bits differ for each pair of bundled pictures of different things."""
    names = {
        each.name
        for each in (files("skimage") / "data").iterdir()
        if each.name.endswith((".png", ".jpg"))
    } - {"chessboard_GRAY.png", "motorcycle_right.png"}  # the same things as their twins
    assert len(names) >= 20
    hashes = [
        run(encoded(name), Feature.FINGERPRINT).fingerprint.perceptual_hash
        for name in sorted(names)
    ]
    assert min(bits_apart(one, other) for one, other in combinations(hashes, 2)) >= 20


def test_the_hash_of_a_flat_picture() -> None:
    """Only the mean brightness stands out: rounding errors are no waves."""
    assert perceptual_hash(PIL.Image.new("L", (50, 40), 93)) == "8000000000000000"


def test_the_metadata_of_hubble() -> None:
    """Size and tags as written in the file."""
    found = run(encoded("hubble_deep_field.jpg"), Feature.METADATA).metadata
    assert found is not None
    assert (found.format, found.mime_type, found.mode) == ("JPEG", "image/jpeg", "RGB")
    assert (found.width, found.height, found.frame_count) == (1000, 872, 1)
    assert found.tags["Software"] == "Adobe Photoshop CS5 Macintosh"
    assert found.tags["DateTime"] == "2012-09-17T15:53:45-04:00"
    assert "ExifOffset" not in found.tags


def test_tags_do_not_show_in_logs() -> None:
    """A tag may hold a place or a name: it is not part of the response's repr."""
    assert "Photoshop" not in repr(run(encoded("hubble_deep_field.jpg"), Feature.METADATA))


def test_tags_of_camera_and_place() -> None:
    """The blocks of the camera and of the place are read too; bytes that are no text by size."""
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


def test_tags_are_bounded() -> None:
    """A long text is cut, and so is a long list of tags."""
    exif = PIL.Image.Exif()
    exif[ExifTags.Base.ImageDescription] = "x" * 5000
    assert tags_of(exif) == {"ImageDescription": "x" * MAX_TAG_CHARS}
    for number in range(0xC800, 0xC800 + 2 * MAX_TAGS):
        exif[number] = "many"
    assert len(tags_of(exif)) == MAX_TAGS


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow's, about what it skips
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_exif_block(changes: list[tuple[int, int]]) -> None:
    """However the tags are damaged, the picture is extracted, and the tags are texts."""
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
    """A broken EXIF block does not spoil the rest."""
    broken = saved(PIL.Image.new("RGB", (9, 5)), form, exif=b"Exif\0\0XX*\0nonsense")
    found = run(broken, Feature.METADATA).metadata
    assert found is not None
    assert (found.width, found.height, dict(found.tags)) == (9, 5, {})


def test_metadata_is_upright() -> None:
    """A turned file: the size is that of what is seen."""
    exif = PIL.Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    found = run(saved(PIL.Image.new("RGB", (9, 5)), "JPEG", exif=exif))
    assert found.metadata is not None
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
def test_frames_and_alpha(name: str, mode: str, frame_count: int, has_alpha: bool) -> None:
    """What the file holds beyond its first, opaque picture."""
    found = run(encoded(name), Feature.METADATA).metadata
    assert found is not None
    assert (found.mode, found.frame_count, found.has_alpha) == (mode, frame_count, has_alpha)


@pytest.mark.parametrize(("frames", "counted"), [(64, 64), (65, 65), (90, 65)])
def test_counting_frames_stops(frames: int, counted: int) -> None:
    """65 means more than 64: no file makes the server count on."""
    first, *rest = [PIL.Image.new("L", (2, 2), 2 * level) for level in range(frames)]
    content = saved(first, "GIF", save_all=True, append_images=rest)
    found = run(content, Feature.METADATA).metadata
    assert found is not None
    assert found.frame_count == counted


@pytest.mark.parametrize(
    ("features", "stages"),
    [
        ((), STAGES),
        ((Feature.METADATA, Feature.PALETTE), ("PALETTE", "METADATA")),
        ((Feature.FINGERPRINT,), ("FINGERPRINT",)),
    ],
)
def test_a_stage_for_each_feature(features: tuple[Feature, ...], stages: tuple[str, ...]) -> None:
    """Always in the order of STAGES, so that progress never falls."""
    progress = Recorder()
    run(saved(PIL.Image.new("RGB", (3, 3))), *features, progress=progress)
    assert progress.calls[0::2] == [("DECODING", 1), *((stage, 1) for stage in stages)]
    assert progress.calls[1::2] == [1] * (1 + len(stages))
