"""detect: find frontal faces (Viola & Jones 2001, multi-block LBP of Zhang et al. 2007)."""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

import functools
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from skimage.data import lbp_frontal_face_cascade_filename
from skimage.feature import Cascade

from examples.analysis.messages import DetectRequest, DetectResponse, Face
from examples.analysis.pictures import Grey, check_header, grey, opened, original_box
from examples.analysis.progress import Progress

STAGES: Final = ("SCANNING", "GROUPING")
LONGEST: Final = 640
SMALLEST: Final = 24
"""The side in pixels of the windows with which the cascade was trained."""
GROWTH: Final = 1.1

Boxes: TypeAlias = npt.NDArray[np.float64]
"""One row per hit: left, top, right, bottom, in working pixels."""


def check(request: DetectRequest) -> None:
    check_header(request.image, "image", min_side=SMALLEST, longest=LONGEST)


def detect(request: DetectRequest, progress: Progress) -> DetectResponse:
    """Find frontal faces; those with the most support come first."""
    (work,) = opened(LONGEST, progress, image=request.image)
    hits = _scan(grey(work.copy), max(request.min_size_px * work.scale, SMALLEST), progress)
    progress.stage("GROUPING")
    faces = [
        Face(bounding_box=original_box(tuple(box), work.scale, work.original.size), support=support)
        for box, support in _group(hits, request.min_neighbors)[: request.max_results]
    ]
    return DetectResponse(**work.sizes, faces=tuple(faces))


@functools.cache
def _cascade() -> Cascade:
    return Cascade(lbp_frontal_face_cascade_filename())


def _scan(levels: Grey, smallest: float, progress: Progress) -> Boxes:
    """Find all windows that look like a face, with one call of the cascade per window size."""
    sizes = _sizes(smallest, min(levels.shape))
    # Centre the levels on zero, because the float32 integral image then loses less precision.
    centred = levels - levels.mean()
    progress.stage("SCANNING", len(sizes))
    hits = []
    for size in sizes:
        found = _cascade().detect_multi_scale(
            img=centred,
            scale_factor=GROWTH,
            step_ratio=1,
            min_size=(size, size),
            max_size=(size * 1.05, size * 1.05),  # an exclusive bound below the next size
            min_neighbor_number=1,
            intersection_score_threshold=1.1,  # no score exceeds 1, so no windows are merged
        )
        hits += [
            (hit["c"], hit["r"], hit["c"] + hit["width"], hit["r"] + hit["height"]) for hit in found
        ]
        progress.step()
    return np.array(hits, dtype=np.float64).reshape(-1, 4)


def _sizes(smallest: float, largest: int) -> list[float]:
    """Return the sides of the windows, from the smallest, each 1.1 times the previous."""
    sizes = []
    while smallest <= largest:
        sizes.append(smallest)
        smallest *= GROWTH
    return sizes


def _group(hits: Boxes, min_support: int) -> list[tuple[Boxes, int]]:
    """Return the mean box and the support of each group of overlapping hits, largest first."""
    groups = []
    while len(hits):
        overlap = _iou(hits)
        near = overlap >= 0.4
        best = int(near.sum(axis=1).argmax())
        support = int(near[best].sum())
        if support < min_support:
            break
        box = hits[near[best]].mean(axis=0)
        groups.append((box, support))
        hits = hits[_iou(hits, box[None])[:, 0] < 0.1]
    return groups


def _iou(boxes: Boxes, others: Boxes | None = None) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each box with each of ``others``, or of ``boxes``."""
    a = boxes[:, None]
    b = (boxes if others is None else others)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = sides.clip(min=0).prod(axis=-1)
    union = np.prod(a[..., 2:] - a[..., :2], axis=-1) + np.prod(b[..., 2:] - b[..., :2], axis=-1)
    ratio: npt.NDArray[np.float64] = common / (union - common)
    return ratio
