"""The messages of the package ``lro.examples.analysis.v1``: requests, responses and their parts.

Fields refuse numbers outside their bounds when a message is made or its JSON is read. The ``check``
of each verb refuses missing pictures, lists of a wrong length, and fields that do not fit together.

All positions are pixels with the origin at the top left, x to the right and y down, in the
*upright original* picture (turned as its EXIF tag says), even when the work ran on a smaller copy.
Colours are written as ``#rrggbb``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime

import attrs

from examples.analysis.bounds import between, length_between
from lro import Int32, message

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


@message("lro.examples.analysis.v1.Image")
@attrs.frozen(kw_only=True)
class Image:
    """A picture as a file: PNG, JPEG, GIF, TIFF, WEBP or BMP. ``mime_type`` is optional."""

    content: bytes = attrs.field(default=b"", repr=lambda content: f"<{len(content)} bytes>")
    mime_type: str = ""


@message("lro.examples.analysis.v1.BoundingBox")
@attrs.frozen(kw_only=True)
class BoundingBox:
    """A box: its upper left corner and its sides, in pixels."""

    x: Int32 = 0
    y: Int32 = 0
    width: Int32 = 0
    height: Int32 = 0


@message("lro.examples.analysis.v1.Point")
@attrs.frozen(kw_only=True)
class Point:
    """A place in the picture, in pixels."""

    x: float = 0.0
    y: float = 0.0


@message("lro.examples.analysis.v1.AnalysisMetadata")
@attrs.frozen(kw_only=True)
class AnalysisMetadata:
    """The progress of an analysis. ``work_done`` and ``work_total`` count units of the stage."""

    create_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    target: str = ""
    verb: str = ""
    stage: str = ""
    progress_percent: Int32 = 0
    work_done: Int32 = 0
    work_total: Int32 = 0
    cancel_requested: bool = False
    status_message: str = ""
    api_version: str = "v1"


@attrs.frozen(kw_only=True)
class AnalysisResponse:
    """The fields of every response: ``scale`` is working size / original size, at most 1.

    The sizes are those of the upright picture: of ``image`` if the request has two pictures, and
    of the frames in ``track``.
    """

    scale: float = 1.0
    image_width: Int32 = 0
    image_height: Int32 = 0


@message("lro.examples.analysis.v1.DetectRequest")
@attrs.frozen(kw_only=True)
class DetectRequest:
    """Find frontal faces at least ``min_size_px`` wide."""

    image: Image | None = None
    min_size_px: Int32 = attrs.field(default=40, validator=between(24, 2048))
    min_neighbors: Int32 = attrs.field(default=10, validator=between(1, 1000))
    max_results: Int32 = attrs.field(default=50, validator=between(1, 200))


@message("lro.examples.analysis.v1.Face")
@attrs.frozen(kw_only=True)
class Face:
    """One face; ``support`` is the number of overlapping windows that found it."""

    bounding_box: BoundingBox
    support: Int32 = 0


@message("lro.examples.analysis.v1.DetectResponse")
@attrs.frozen(kw_only=True)
class DetectResponse(AnalysisResponse):
    """The faces; the one with the most support comes first."""

    faces: tuple[Face, ...] = ()


@message("lro.examples.analysis.v1.VerifyRequest")
@attrs.frozen(kw_only=True)
class VerifyRequest:
    """Do ``image`` and ``reference`` show the same flat thing or scene?

    ``max_error_px`` is in pixels of the working copies. ``ratio`` is Lowe's ratio: the best match
    must be nearer than this factor times the second best.
    """

    image: Image | None = None
    reference: Image | None = None
    max_error_px: float = attrs.field(default=3.0, validator=between(0.0, 20.0, above=True))
    ratio: float = attrs.field(default=0.8, validator=between(0.0, 1.0, above=True, below=True))


@message("lro.examples.analysis.v1.VerifyResponse")
@attrs.frozen(kw_only=True)
class VerifyResponse(AnalysisResponse):
    """The finding. ``homography`` maps reference to image: 9 numbers row by row, the last 1.

    The map is in original pixels, and empty unless ``verified``.
    """

    verified: bool = False
    inlier_count: Int32 = 0
    match_count: Int32 = 0
    image_keypoints: Int32 = 0
    reference_keypoints: Int32 = 0
    required_inliers: float = 0.0
    homography: tuple[float, ...] = ()


@message("lro.examples.analysis.v1.CompareRequest")
@attrs.frozen(kw_only=True)
class CompareRequest:
    """How much, and where, does ``image`` differ from ``reference``?

    ``tolerance`` is the largest difference that does not count, as a fraction of full scale.
    """

    image: Image | None = None
    reference: Image | None = None
    tolerance: float = attrs.field(default=0.1, validator=between(0.0, 1.0))
    max_regions: Int32 = attrs.field(default=20, validator=between(0, 1000))


@message("lro.examples.analysis.v1.ChangedRegion")
@attrs.frozen(kw_only=True)
class ChangedRegion:
    """A place where the pictures differ; ``area_px`` counts only changed pixels."""

    bounding_box: BoundingBox
    area_px: Int32 = 0


@message("lro.examples.analysis.v1.CompareResponse")
@attrs.frozen(kw_only=True)
class CompareResponse(AnalysisResponse):
    """The differences: ``ssim`` -1..1, ``mse`` in squared 8-bit levels; the largest region first.

    ``psnr_db`` is absent when the pictures are identical.
    """

    ssim: float = 0.0
    mse: float = 0.0
    psnr_db: float | None = None
    identical: bool = False
    changed_fraction: float = 0.0
    changed_regions: tuple[ChangedRegion, ...] = ()


class SegmentMethod(enum.Enum):
    """The kind of region: an object that stands out, or a patch of similar colour."""

    OBJECTS = "OBJECTS"
    SUPERPIXELS = "SUPERPIXELS"


class Foreground(enum.Enum):
    """The side of the threshold on which the objects are."""

    BRIGHT = "BRIGHT"
    DARK = "DARK"


@message("lro.examples.analysis.v1.SegmentRequest")
@attrs.frozen(kw_only=True)
class SegmentRequest:
    """Cut a picture into regions.

    ``foreground``, ``min_area_px`` (0 means 0.15 % of the picture) and ``split_touching`` are for
    OBJECTS; ``segment_count`` and ``compactness`` for SUPERPIXELS.
    """

    image: Image | None = None
    method: SegmentMethod = SegmentMethod.OBJECTS
    foreground: Foreground = Foreground.BRIGHT
    min_area_px: Int32 = attrs.field(default=0, validator=between(0, 16_000_000))
    split_touching: bool = False
    segment_count: Int32 = attrs.field(default=100, validator=between(2, 2000))
    compactness: float = attrs.field(default=10.0, validator=between(0.01, 100.0))


@message("lro.examples.analysis.v1.Region")
@attrs.frozen(kw_only=True)
class Region:
    """One region; ``label`` is its value in the label map."""

    label: Int32 = 0
    bounding_box: BoundingBox
    area_px: Int32 = 0
    centroid: Point
    mean_color: str = ""


@message("lro.examples.analysis.v1.SegmentResponse")
@attrs.frozen(kw_only=True)
class SegmentResponse(AnalysisResponse):
    """The first 1000 regions, and a label map of all regions.

    ``label_map`` is a 16-bit grey PNG in working size; 0 is the background.
    """

    region_count: Int32 = 0
    regions: tuple[Region, ...] = ()
    foreground_fraction: float = 0.0
    label_map: Image | None = None


@message("lro.examples.analysis.v1.Example")
@attrs.frozen(kw_only=True)
class Example:
    """A picture of a texture, and its name."""

    label: str = attrs.field(default="", validator=length_between(1, 64))
    image: Image | None = None


@message("lro.examples.analysis.v1.ClassifyRequest")
@attrs.frozen(kw_only=True)
class ClassifyRequest:
    """Name the texture, from the given examples or the built-in ones: brick, grass, gravel."""

    image: Image | None = None
    examples: tuple[Example, ...] = ()
    max_results: Int32 = attrs.field(default=5, validator=between(1, 64))


@message("lro.examples.analysis.v1.LabelScore")
@attrs.frozen(kw_only=True)
class LabelScore:
    """The probability of one label, 0..1."""

    label: str = ""
    score: float = 0.0


@message("lro.examples.analysis.v1.ClassifyResponse")
@attrs.frozen(kw_only=True)
class ClassifyResponse(AnalysisResponse):
    """The labels, best first. ``known`` is true if the novelty is at most 2."""

    label: str = ""
    score: float = 0.0
    results: tuple[LabelScore, ...] = ()
    novelty: float = 0.0
    known: bool = False
    training_tiles: Int32 = 0


@message("lro.examples.analysis.v1.ExplainRequest")
@attrs.frozen(kw_only=True)
class ExplainRequest:
    """Which parts of the picture speak for ``label`` (by default the predicted label)?"""

    image: Image | None = None
    examples: tuple[Example, ...] = ()
    label: str = ""
    segment_count: Int32 = attrs.field(default=64, validator=between(4, 256))
    sample_count: Int32 = attrs.field(default=1000, validator=between(50, 10_000))
    seed: Int32 = attrs.field(default=0, validator=between(_INT32_MIN, _INT32_MAX))


@message("lro.examples.analysis.v1.RegionWeight")
@attrs.frozen(kw_only=True)
class RegionWeight:
    """The weight of a part: positive for the label, negative against it."""

    bounding_box: BoundingBox
    area_px: Int32 = 0
    weight: float = 0.0


@message("lro.examples.analysis.v1.ExplainResponse")
@attrs.frozen(kw_only=True)
class ExplainResponse(AnalysisResponse):
    """The parts, heaviest first. ``fidelity`` is R2 of the linear model, at most 1.

    ``heatmap`` is an 8-bit grey PNG: 128 is weight 0, 255 the largest weight for, 1 against.
    """

    label: str = ""
    score: float = 0.0
    fidelity: float = 0.0
    regions: tuple[RegionWeight, ...] = ()
    heatmap: Image | None = None


class Scope(enum.Enum):
    """The signed data: the bytes of the file, or its pixels."""

    CONTENT = "CONTENT"
    PIXELS = "PIXELS"


@message("lro.examples.analysis.v1.AuthenticateRequest")
@attrs.frozen(kw_only=True)
class AuthenticateRequest:
    """Was exactly this picture signed by one of these raw Ed25519 keys (32 bytes each)?"""

    image: Image | None = None
    signature: bytes = b""
    public_keys: tuple[bytes, ...] = ()
    scope: Scope = Scope.CONTENT


@message("lro.examples.analysis.v1.AuthenticateResponse")
@attrs.frozen(kw_only=True)
class AuthenticateResponse(AnalysisResponse):
    """The finding, and the signing key: its index in the list and its SHA-256 in hex.

    The two fields of the key are absent unless ``authentic``.
    """

    authentic: bool = False
    key_index: Int32 | None = None
    key_fingerprint: str | None = None
    payload_sha256: str = ""


@message("lro.examples.analysis.v1.ScoreRequest")
@attrs.frozen(kw_only=True)
class ScoreRequest:
    """How good is this photograph, technically?"""

    image: Image | None = None


@message("lro.examples.analysis.v1.ScoreResponse")
@attrs.frozen(kw_only=True)
class ScoreResponse(AnalysisResponse):
    """The overall score 0..100, the four qualities 0..1 that it combines, and the raw measures.

    ``noise_sigma`` is in grey levels, ``entropy_bits`` 0..8. Artwork in pure black and white has
    an overall score of 0: all of it counts as clipped.
    """

    overall: float = 0.0
    sharpness: float = 0.0
    cleanness: float = 0.0
    contrast: float = 0.0
    exposure: float = 0.0
    blur: float = 0.0
    noise_sigma: float = 0.0
    contrast_range: float = 0.0
    clipped_fraction: float = 0.0
    entropy_bits: float = 0.0
    colorfulness: float = 0.0
    mean_luminance: float = 0.0


class Feature(enum.Enum):
    """The features that can be extracted."""

    PALETTE = "PALETTE"
    FINGERPRINT = "FINGERPRINT"
    METADATA = "METADATA"


@message("lro.examples.analysis.v1.ExtractRequest")
@attrs.frozen(kw_only=True)
class ExtractRequest:
    """Extract the listed features, or all if the list is empty."""

    image: Image | None = None
    features: tuple[Feature, ...] = ()
    palette_size: Int32 = attrs.field(default=5, validator=between(1, 16))


@message("lro.examples.analysis.v1.PaletteColor")
@attrs.frozen(kw_only=True)
class PaletteColor:
    """A colour, and the fraction of the picture that it represents, 0..1."""

    color: str = ""
    fraction: float = 0.0


@message("lro.examples.analysis.v1.Fingerprint")
@attrs.frozen(kw_only=True)
class Fingerprint:
    """SHA-256 of the file (64 hex digits), and pHash of the picture (16 hex digits)."""

    content_sha256: str = ""
    perceptual_hash: str = ""


@message("lro.examples.analysis.v1.EmbeddedMetadata")
@attrs.frozen(kw_only=True)
class EmbeddedMetadata:
    """The metadata of the file. ``tags`` can contain a place or a name: do not log them."""

    format: str = ""
    mime_type: str = ""
    width: Int32 = 0
    height: Int32 = 0
    mode: str = ""
    frame_count: Int32 = 0
    has_alpha: bool = False
    tags: Mapping[str, str] = attrs.field(factory=dict, repr=False)


@message("lro.examples.analysis.v1.ExtractResponse")
@attrs.frozen(kw_only=True)
class ExtractResponse(AnalysisResponse):
    """The requested features; the palette has the most frequent colour first."""

    palette: tuple[PaletteColor, ...] = ()
    fingerprint: Fingerprint | None = None
    metadata: EmbeddedMetadata | None = None


@message("lro.examples.analysis.v1.TrackRequest")
@attrs.frozen(kw_only=True)
class TrackRequest:
    """Follow ``box`` from the first frame through ``frames``, or through the frames of ``image``.

    ``search_margin_px`` 0 means the longer side of the box.
    """

    frames: tuple[Image, ...] = ()
    image: Image | None = None
    box: BoundingBox | None = None
    min_score: float = attrs.field(default=0.5, validator=between(0.0, 1.0))
    search_margin_px: Int32 = attrs.field(default=0, validator=between(0, 4096))


@message("lro.examples.analysis.v1.TrackedPosition")
@attrs.frozen(kw_only=True)
class TrackedPosition:
    """The place of the box in one frame, or its last place if it was not ``found`` in the frame."""

    frame_index: Int32 = 0
    bounding_box: BoundingBox
    score: float = 0.0
    found: bool = False


@message("lro.examples.analysis.v1.TrackResponse")
@attrs.frozen(kw_only=True)
class TrackResponse(AnalysisResponse):
    """One position per frame; the first is the given box with score 1."""

    positions: tuple[TrackedPosition, ...] = ()
    found_count: Int32 = 0
    frame_count: Int32 = 0
