"""verify: do two pictures show the same flat thing or scene (SIFT, Lowe 2004; not a face match)."""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

from typing import Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
from skimage.feature import SIFT, match_descriptors
from skimage.measure import ransac
from skimage.transform import ProjectiveTransform

from examples.analysis.messages import VerifyRequest, VerifyResponse
from examples.analysis.pictures import Grey, check_header, grey, opened
from examples.analysis.progress import Progress

STAGES: Final = ("EXTRACTING", "MATCHING", "FITTING")
LONGEST: Final = 800
SMALLEST: Final = 32
MAX_KEYPOINTS: Final = 3000

Matrix: TypeAlias = npt.NDArray[np.float64]


@attrs.frozen
class Keypoints:
    """Positions (x, y in working pixels) and their descriptors, one keypoint per row."""

    places: Matrix
    descriptors: npt.NDArray[np.uint8]


def check(request: VerifyRequest) -> None:
    check_header(request.image, "image", min_side=SMALLEST, longest=LONGEST)
    check_header(request.reference, "reference", min_side=SMALLEST, longest=LONGEST)


def verify(request: VerifyRequest, progress: Progress) -> VerifyResponse:
    """Find a projective map that fits enough of the matches between keypoints of the pictures."""
    image, reference = opened(LONGEST, progress, image=request.image, reference=request.reference)
    progress.stage("EXTRACTING", 2)
    there = _keypoints(grey(image.copy))
    progress.step()
    here = _keypoints(grey(reference.copy))
    progress.step()
    progress.stage("MATCHING")
    source, target = _matches(here, there, request.ratio)
    progress.stage("FITTING")
    model, inliers = _fit(source, target, request.max_error_px)
    required = 8 + 0.3 * len(source)
    if model is None or inliers <= required or not _keeps_orientation(model):
        homography: tuple[float, ...] = ()
    else:
        homography = _in_original(model, image.scale, reference.scale)
    return VerifyResponse(
        **image.sizes,
        verified=bool(homography),
        inlier_count=inliers,
        match_count=len(source),
        image_keypoints=len(there.places),
        reference_keypoints=len(here.places),
        required_inliers=required,
        homography=homography,
    )


def _keypoints(levels: Grey) -> Keypoints:
    """Return the coarsest keypoints, at most 3000: coarse keypoints survive a change of size."""
    sift = SIFT(upsampling=1)
    try:
        sift.detect_and_extract(levels)
    except RuntimeError:  # SIFT has found no keypoint
        return Keypoints(np.empty((0, 2)), np.empty((0, 128), np.uint8))
    first = np.argsort(-np.asarray(sift.sigmas), kind="stable")[:MAX_KEYPOINTS]
    places = np.asarray(sift.positions, dtype=np.float64)[first, ::-1]
    return Keypoints(places, np.asarray(sift.descriptors)[first])


def _matches(here: Keypoints, there: Keypoints, ratio: float) -> tuple[Matrix, Matrix]:
    """Return the matched positions in ``here`` and in ``there``, row by row."""
    if not (len(here.places) and len(there.places)):
        return np.empty((0, 2)), np.empty((0, 2))
    pairs = match_descriptors(
        here.descriptors, there.descriptors, cross_check=True, max_ratio=ratio
    )
    return here.places[pairs[:, 0]], there.places[pairs[:, 1]]


def _fit(source: Matrix, target: Matrix, max_error_px: float) -> tuple[Matrix | None, int]:
    """Return the projective map that fits the most points of ``source``, and how many it fits."""
    if len(source) < 4:
        return None, 0
    model, inliers = ransac(
        (source, target),
        ProjectiveTransform,
        min_samples=4,
        residual_threshold=max_error_px,
        max_trials=1000,
        rng=0,
    )
    return (model.params, int(np.count_nonzero(np.asarray(inliers)))) if model else (None, 0)


def _keeps_orientation(model: Matrix) -> bool:
    """Return False if a map mirrors, or changes areas 1000-fold.

    Repeated patterns may fit such a map.
    """
    return bool(1e-3 < np.linalg.det(model[:2, :2] / model[2, 2]) < 1e3)


def _in_original(model: Matrix, scale: float, reference_scale: float) -> tuple[float, ...]:
    shrink = np.diag([reference_scale, reference_scale, 1.0])
    enlarge = np.diag([1 / scale, 1 / scale, 1.0])
    matrix = enlarge @ model @ shrink
    return tuple((matrix / matrix[2, 2]).ravel().tolist())
