"""compare: how much, and where, do two pictures of one size differ (SSIM, Wang et al. 2004)."""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
from scipy import ndimage
from skimage.measure import label
from skimage.metrics import structural_similarity

from examples.analysis.messages import ChangedRegion, CompareRequest, CompareResponse
from examples.analysis.pictures import array, check_header, grey, opened, original_box
from examples.analysis.progress import Progress
from lro import InvalidArgument

STAGES: Final = ("STRUCTURE", "DIFFERENCE", "REGIONS")
LONGEST: Final = 2048
SMALLEST: Final = 16

Edges: TypeAlias = tuple[int, int, int, int]


def check(request: CompareRequest) -> None:
    check_header(request.image, "image", min_side=SMALLEST, longest=LONGEST)
    check_header(request.reference, "reference", min_side=SMALLEST, longest=LONGEST)


def compare(request: CompareRequest, progress: Progress) -> CompareResponse:
    """Measure the difference of the whole pictures; find the changed regions, largest first."""
    image, reference = opened(LONGEST, progress, image=request.image, reference=request.reference)
    if image.original.size != reference.original.size:
        ours, others = ("{} x {}".format(*one.original.size) for one in (image, reference))
        raise InvalidArgument("image", f"is {ours} pixels, but reference is {others}")
    progress.stage("STRUCTURE")
    ssim = _ssim(image.copy, reference.copy)
    progress.stage("DIFFERENCE")
    difference = _difference(image.copy, reference.copy)
    mse = float(np.mean(np.square(difference, dtype=np.float64)))
    changed = difference.max(axis=2) > request.tolerance * 255
    progress.stage("REGIONS")
    regions = [
        ChangedRegion(
            bounding_box=original_box(edges, image.scale, image.original.size),
            area_px=round(area / image.scale**2),
        )
        for edges, area in _regions(changed)[: request.max_regions]
    ]
    return CompareResponse(
        **image.sizes,
        ssim=ssim,
        mse=mse,
        psnr_db=10 * math.log10(255**2 / mse) if mse else None,
        identical=mse == 0,
        changed_fraction=float(changed.mean()),
        changed_regions=tuple(regions),
    )


def _ssim(picture: PIL.Image.Image, reference: PIL.Image.Image) -> float:
    ssim = structural_similarity(
        grey(picture),
        grey(reference),
        data_range=1,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    return float(np.asarray(ssim))


def _difference(picture: PIL.Image.Image, reference: PIL.Image.Image) -> npt.NDArray[np.int16]:
    """Return differences by row, column and channel (3 if either picture has colour), 0..255."""
    if picture.mode != reference.mode:
        picture, reference = picture.convert("RGB"), reference.convert("RGB")
    return np.atleast_3d(np.abs(array(picture).astype(np.int16) - array(reference)))


def _regions(changed: npt.NDArray[np.bool_]) -> list[tuple[Edges, int]]:
    """Return left, top, right, bottom and area of the changed regions, largest first."""
    joined = ndimage.binary_dilation(changed, np.ones((3, 3)), iterations=2)
    labels = np.asarray(label(joined))
    labels[~changed] = 0  # the dilation only joins pieces; boxes still bound the changed pixels
    areas = np.bincount(labels.ravel())[1:]
    boxes = [
        (columns.start, rows.start, columns.stop, rows.stop)
        for rows, columns in ndimage.find_objects(labels)
    ]
    return [(boxes[i], int(areas[i])) for i in np.argsort(-areas, kind="stable")]
