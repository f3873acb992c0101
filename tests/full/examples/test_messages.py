"""The messages: names, bounds, JSON in and out."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.analysis import messages
from examples.analysis.bounds import between
from examples.analysis.messages import (
    AnalysisMetadata,
    AuthenticateRequest,
    CompareResponse,
    DetectRequest,
    DetectResponse,
    ExplainRequest,
    ExtractRequest,
    Feature,
    Foreground,
    Image,
    Scope,
    ScoreRequest,
    SegmentMethod,
    SegmentRequest,
    TrackRequest,
    VerifyRequest,
)
from lro import InvalidArgument, TypeRegistry
from lro.types import full_name
from tests.full.examples.conftest import refused, through_json

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
    """The message that a JSON body says, read as a server reads requests."""
    return TypeRegistry().load(value, cls, strict=True)  # type: ignore[arg-type]  # any JSON


def test_names() -> None:
    """Each method has its request and response, and all the parts are there, once."""
    names = sorted(str(full_name(cls)) for cls in NAMED)
    wanted = [f"{verb}{kind}" for verb in VERBS for kind in ("Request", "Response")]
    assert names == sorted(PACKAGE + name for name in (*wanted, *PARTS, "AnalysisMetadata"))


def test_all_can_be_registered() -> None:
    """Every message has a shape that travels, under its own name."""
    registry = TypeRegistry(*NAMED)
    assert {registry.name_of(cls) for cls in NAMED} == {PACKAGE + cls.__name__ for cls in NAMED}


@pytest.mark.parametrize("verb", VERBS)
def test_every_response_has_scale_and_size(verb: str) -> None:
    """Scale and size of the picture stand in each response."""
    fields = attrs.fields_dict(getattr(messages, f"{verb}Response"))
    assert {"scale", "image_width", "image_height"} <= fields.keys()


def test_error_of_open_bound_names_it() -> None:
    """The message says whether a bound itself is allowed."""
    error = refused(lambda: VerifyRequest(ratio=1.0))
    assert str(error) == "ratio: must be greater than 0.0 and less than 1.0, got 1.0"
    error = refused(lambda: VerifyRequest(max_error_px=math.nan))
    assert str(error) == "max_error_px: must be greater than 0.0 and at most 20.0, got nan"


@given(st.floats(), st.booleans(), st.booleans())
def test_between(value: float, above: bool, below: bool) -> None:
    """A number is taken exactly if it is between the bounds that are not left out."""
    checks = attrs.make_class(
        "Checks", {"x": attrs.field(validator=between(-1.0, 2.0, above=above, below=below))}
    )
    wanted = -1 < value < 2 or (value == -1 and not above) or (value == 2 and not below)
    try:
        checks(value)
    except InvalidArgument:
        assert not wanted
    else:
        assert wanted


def test_request_in_json() -> None:
    """Camel case and snake case are both read, bytes are base64."""
    content = bytes(range(256))
    text = base64.b64encode(content).decode()
    wanted = DetectRequest(image=Image(content=content, mime_type="image/png"), min_size_px=50)
    camel_case = {"image": {"content": text, "mimeType": "image/png"}, "minSizePx": 50}
    snake_case = {"image": {"content": text, "mime_type": "image/png"}, "min_size_px": 50}
    assert load(DetectRequest, camel_case) == load(DetectRequest, snake_case) == wanted


def test_enums_by_name() -> None:
    """Enums travel by name; the first is the default."""
    body = {"method": "SUPERPIXELS", "foreground": "DARK"}
    wanted = SegmentRequest(method=SegmentMethod.SUPERPIXELS, foreground=Foreground.DARK)
    assert load(SegmentRequest, body) == wanted
    assert SegmentRequest().method is SegmentMethod.OBJECTS
    assert SegmentRequest().foreground is Foreground.BRIGHT
    assert AuthenticateRequest().scope is Scope.CONTENT
    found = load(ExtractRequest, {"features": ["METADATA", "PALETTE"]})
    assert found == ExtractRequest(features=(Feature.METADATA, Feature.PALETTE))
    assert refused(lambda: load(SegmentRequest, {"method": "GRABCUT"})).field == "method"


def test_absent_doubles() -> None:
    """Without a PSNR there is no field; with one of 0 there is."""
    registry = TypeRegistry()
    shown = registry.dump(CompareResponse(identical=True))
    assert shown == {"scale": 1, "identical": True}
    assert registry.dump(CompareResponse(psnr_db=0.0)) == {"scale": 1, "psnrDb": 0}


def test_metadata_in_json() -> None:
    """The metadata of the document's example, field by field."""
    time = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    metadata = AnalysisMetadata(
        create_time=time,
        start_time=time,
        target="images/b0793d2a",
        verb="score",
        stage="DONE",
        progress_percent=100,
        work_done=7,
        work_total=7,
    )
    assert TypeRegistry().dump(metadata) == {
        "createTime": "2030-01-02T03:04:05Z",
        "startTime": "2030-01-02T03:04:05Z",
        "target": "images/b0793d2a",
        "verb": "score",
        "stage": "DONE",
        "progressPercent": 100,
        "workDone": 7,
        "workTotal": 7,
        "apiVersion": "v1",
    }


@pytest.mark.parametrize(
    "message",
    [
        ScoreRequest(image=Image(content=b"\0\xff", mime_type="image/png")),
        TrackRequest(frames=(Image(content=b"a"), Image(content=b"b")), min_score=0.0),
        ExplainRequest(label="sky", seed=-(2**31)),
        DetectResponse(scale=0.25, image_width=3, image_height=4),
        AnalysisMetadata(),
    ],
)
def test_round_trip(message: object) -> None:
    """What is written is read again as the same."""
    assert through_json(message) == message


def test_pictures_are_not_printed() -> None:
    """A log of a request has the size of the picture, not its content."""
    assert "<1000 bytes>" in repr(DetectRequest(image=Image(content=bytes(1000))))
