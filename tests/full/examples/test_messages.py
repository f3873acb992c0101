"""The messages: names, bounds and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import pytest

from examples.analysis import messages
from examples.analysis.messages import DetectRequest, Image, VerifyRequest
from lro import TypeRegistry
from lro.types import full_name
from tests.full.examples.conftest import refused

PACKAGE = "lro.examples.analysis.v1."
VERBS = (
    "Detect", "Verify", "Compare", "Segment", "Classify", "Authenticate", "Score", "Explain",
    "Extract", "Track",
)  # fmt: skip
PARTS = (
    "Image", "BoundingBox", "Point", "Face", "ChangedRegion", "Region", "Example", "LabelScore",
    "RegionWeight", "PaletteColor", "Fingerprint", "EmbeddedMetadata", "TrackedPosition",
)  # fmt: skip
MESSAGES = [cls for cls in vars(messages).values() if isinstance(cls, type) and attrs.has(cls)]
NAMED = [cls for cls in MESSAGES if full_name(cls)]


def load(cls: type, value: object) -> object:
    """Parse a message from JSON strictly, as the server parses requests."""
    return TypeRegistry().load(value, cls, strict=True)  # type: ignore[arg-type]  # any JSON


def test_each_method_has_its_request_and_response_registered_once() -> None:
    """Each method has a request and a response, and every message is registered once."""
    names = sorted(str(full_name(cls)) for cls in NAMED)
    wanted = [f"{verb}{kind}" for verb in VERBS for kind in ("Request", "Response")]
    assert names == sorted(PACKAGE + name for name in (*wanted, *PARTS, "AnalysisMetadata"))
    registry = TypeRegistry(*NAMED)  # a registry refuses classes of an invalid shape
    assert {registry.name_of(cls) for cls in NAMED} == {PACKAGE + cls.__name__ for cls in NAMED}


BOUNDS: Sequence[tuple[type, str, float, float]] = [
    (messages.DetectRequest, "min_size_px", 24, 2048),
    (messages.DetectRequest, "min_neighbors", 1, 1000),
    (messages.DetectRequest, "max_results", 1, 200),
    (messages.CompareRequest, "max_regions", 0, 1000),
    (messages.SegmentRequest, "min_area_px", 0, 16_000_000),
    (messages.SegmentRequest, "segment_count", 2, 2000),
    (messages.ClassifyRequest, "max_results", 1, 64),
    (messages.ExplainRequest, "segment_count", 4, 256),
    (messages.ExplainRequest, "sample_count", 50, 10_000),
    (messages.ExplainRequest, "seed", -(2**31), 2**31 - 1),
    (messages.ExtractRequest, "palette_size", 1, 16),
    (messages.TrackRequest, "search_margin_px", 0, 4096),
    (messages.CompareRequest, "tolerance", 0.0, 1.0),
    (messages.SegmentRequest, "compactness", 0.01, 100.0),
    (messages.TrackRequest, "min_score", 0.0, 1.0),
    (messages.VerifyRequest, "max_error_px", 0.0001, 20.0),
    (messages.VerifyRequest, "ratio", 0.0001, 0.9999),
]


@pytest.mark.parametrize(("cls", "name", "low", "high"), BOUNDS)
def test_values_beyond_the_bounds_are_refused(
    cls: type, name: str, low: float, high: float
) -> None:
    """The bounds themselves are accepted and values beyond them are refused, even in JSON."""
    step = 1 if isinstance(low, int) else 0.0001
    for value in (low, high):
        assert getattr(cls(**{name: value}), name) == value
        assert load(cls, {name: value}) == cls(**{name: value})
    for value in (low - step, high + step, low - 10**9, high + 10**9):
        assert refused(lambda: cls(**{name: value})).field == name  # noqa: B023
        assert refused(lambda: load(cls, {name: value})).field == name  # noqa: B023


def test_error_of_open_bound_names_it() -> None:
    """The error for a value beyond a bound says whether the bound itself is allowed."""
    error = refused(lambda: VerifyRequest(ratio=1.0))
    assert str(error) == "ratio: must be greater than 0.0 and less than 1.0, got 1.0"
    error = refused(lambda: VerifyRequest(max_error_px=math.nan))
    assert str(error) == "max_error_px: must be greater than 0.0 and at most 20.0, got nan"


def test_pictures_are_not_printed() -> None:
    """The repr of a request has the size of its picture, not the content."""
    assert "<1000 bytes>" in repr(DetectRequest(image=Image(content=bytes(1000))))
