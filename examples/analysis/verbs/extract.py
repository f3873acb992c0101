"""extract: the palette of a picture, its fingerprint, and the metadata of its file."""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL import ExifTags
from scipy.fft import dctn
from skimage.color import lab2rgb, rgb2lab
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from examples.analysis.messages import (
    EmbeddedMetadata,
    ExtractRequest,
    ExtractResponse,
    Feature,
    Fingerprint,
    Image,
    PaletteColor,
)
from examples.analysis.pictures import (
    MAX_PIXELS,
    MIME_TYPES,
    array,
    check_header,
    count_frames,
    decode,
    hex_color,
)
from examples.analysis.progress import DECODING, Progress
from lro import InvalidArgument

STAGES: Final[tuple[str, ...]] = tuple(feature.value for feature in Feature)
MIN_SIDE: Final = 1
LONGEST: Final = MAX_PIXELS
"""Longest side of the working copy; no picture has a longer side, so the original is used."""
SAMPLED_PIXELS: Final = 20_000
MAX_ROUNDS: Final = 1000
"""Maximum rounds of the clustering; pictures in measurements took at most 160 rounds."""
MAX_TAGS: Final = 256
MAX_TAG_CHARS: Final = 1000
_POINTERS: Final = frozenset({ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo, ExifTags.IFD.Interop})
"""Tags that only point to another block of tags."""

Blocks: TypeAlias = tuple[tuple[Mapping[int, object], Mapping[int, str]], ...]
"""Blocks of tags: each has the values of its tags by number, and their names by number."""


def check(request: ExtractRequest) -> None:
    check_header(request.image, "image", min_side=MIN_SIDE, longest=LONGEST)
    for index, feature in enumerate(request.features):
        if feature in request.features[:index]:
            raise InvalidArgument(f"features[{index}]", f"must not repeat {feature.value}")


def extract(request: ExtractRequest, progress: Progress) -> ExtractResponse:
    """Extract the requested features, or all features if the request names none."""
    progress.stage(DECODING, 1)
    picture = decode(request.image, "image")
    image = request.image or Image()
    progress.step()
    wanted = request.features or tuple(Feature)
    found: ExtractResponse = ExtractResponse(image_width=picture.width, image_height=picture.height)
    if Feature.PALETTE in wanted:
        progress.stage(Feature.PALETTE.value, 1)
        found = attrs.evolve(found, palette=_palette(picture, request.palette_size))
        progress.step()
    if Feature.FINGERPRINT in wanted:
        progress.stage(Feature.FINGERPRINT.value, 1)
        digest = hashlib.sha256(image.content).hexdigest()
        fingerprint = Fingerprint(content_sha256=digest, perceptual_hash=perceptual_hash(picture))
        found = attrs.evolve(found, fingerprint=fingerprint)
        progress.step()
    if Feature.METADATA in wanted:
        progress.stage(Feature.METADATA.value, 1)
        found = attrs.evolve(found, metadata=_metadata(image, picture.size))
        progress.step()
    return found


def _palette(picture: PIL.Image.Image, size: int) -> tuple[PaletteColor, ...]:
    """Return the mean colours of clusters, largest first; distances are those of CIELAB."""
    pixels = array(picture.convert("RGB")).reshape(-1, 3)
    if len(pixels) > SAMPLED_PIXELS:
        chosen = np.random.default_rng(0).choice(
            len(pixels), SAMPLED_PIXELS, replace=False, shuffle=False
        )
        pixels = pixels[chosen]
    colors, counts = np.unique(pixels, axis=0, return_counts=True)
    lab = rgb2lab(colors[np.newaxis] / 255)[0]
    # With a tolerance of 0, clustering ends when no pixel changes its cluster.
    clusters = KMeans(
        min(size, len(colors)),
        n_init=3,  # pyright: ignore[reportArgumentType]  # pyright infers str from the default
        random_state=0,
        tol=0,
        max_iter=MAX_ROUNDS,
    )
    with threadpool_limits(1, user_api="openmp"):  # several threads would add in random order
        labels: npt.NDArray[np.int32] = clusters.fit_predict(lab, sample_weight=counts)
    shares: dict[str, float] = {}
    for label in np.unique(labels):
        mine = labels == label
        mean = np.average(lab[mine], axis=0, weights=counts[mine])
        color = hex_color(lab2rgb(mean[np.newaxis])[0] * 255)
        shares[color] = shares.get(color, 0.0) + float(counts[mine].sum()) / len(pixels)
    order = sorted(shares, key=lambda color: (-shares[color], color))
    return tuple(PaletteColor(color=color, fraction=shares[color]) for color in order)


def perceptual_hash(picture: PIL.Image.Image) -> str:
    """Return the pHash (Zauner 2010) in 16 hex digits: similar pictures differ in few bits.

    Its bits compare the lowest 8 x 8 frequencies of a 32 x 32 copy with their median.
    """
    small = picture.convert("L").resize((32, 32), PIL.Image.Resampling.LANCZOS)
    levels = np.asarray(small, dtype=float)
    # Round the frequencies, so that those of a flat picture are exactly 0.
    waves = np.round(np.asarray(dctn(levels, type=2))[:8, :8].ravel(), 6)
    bits = waves > np.median(waves[1:])  # the first value is the mean brightness
    return np.packbits(bits).tobytes().hex()


def _metadata(image: Image, upright_size: tuple[int, int]) -> EmbeddedMetadata:
    header = check_header(image, "image", min_side=MIN_SIDE, longest=LONGEST)
    frame_count = count_frames(image, "image")
    with PIL.Image.open(io.BytesIO(image.content), formats=tuple(MIME_TYPES)) as picture:
        has_alpha = picture.has_transparency_data
        blocks = _exif_blocks(picture)
    return EmbeddedMetadata(
        format=header.format,
        mime_type=header.mime_type,
        width=upright_size[0],
        height=upright_size[1],
        mode=header.mode,
        frame_count=frame_count,
        has_alpha=has_alpha,
        tags=_tags(blocks),
    )


def _exif_blocks(picture: PIL.Image.Image) -> Blocks:
    """Return the EXIF blocks of picture, camera and place, each with the names of its tags."""
    try:
        exif = picture.getexif()
        return (
            (dict(exif), ExifTags.TAGS),
            (exif.get_ifd(ExifTags.IFD.Exif), ExifTags.TAGS),
            (exif.get_ifd(ExifTags.IFD.GPSInfo), ExifTags.GPSTAGS),
        )
    except Exception:  # an unreadable EXIF block is ignored, as in decoding
        return ()


def _tags(blocks: Blocks) -> dict[str, str]:
    """Return the first ``MAX_TAGS`` tags by name, in the order of the file."""
    named = (
        (names.get(number, f"0x{number:04x}"), _text(value))
        for block, names in blocks
        for number, value in block.items()
        if number not in _POINTERS
    )
    return dict(itertools.islice(named, MAX_TAGS))


def _text(value: object) -> str:
    """Return a tag's value in at most ``MAX_TAG_CHARS`` characters, or the size of binary data."""
    if isinstance(value, bytes):
        text = value.rstrip(b"\0").decode("ascii", "replace")
        value = text if text.isprintable() and "\ufffd" not in text else f"{len(value)} bytes"
    elif isinstance(value, tuple):
        value = ", ".join(str(part) for part in value[:MAX_TAG_CHARS])
    text = str(value).replace("\0", "").strip()
    return text[:MAX_TAG_CHARS].encode("utf-8", "replace").decode("utf-8")
