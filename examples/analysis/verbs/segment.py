"""segment: cut a picture into objects (Otsu 1979) or superpixels (SLIC, Achanta et al. 2012)."""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
from scipy import ndimage
from skimage.feature import peak_local_max
from skimage.filters import gaussian, threshold_otsu
from skimage.measure import label, regionprops
from skimage.morphology import disk, remove_small_objects
from skimage.segmentation import slic, watershed

from examples.analysis.messages import (
    Foreground,
    Point,
    Region,
    SegmentMethod,
    SegmentRequest,
    SegmentResponse,
)
from examples.analysis.pictures import (
    Grey,
    array,
    as_png,
    check_header,
    grey,
    hex_color,
    opened,
    original_box,
)
from examples.analysis.progress import Progress

STAGES: Final = ("CLUSTERING", "LABELLING", "MEASURING")
LONGEST: Final = 1024
SMALLEST: Final = 16
MAX_REGIONS: Final = 1000
MAX_LABEL: Final = 2**16 - 1
MIN_AREA_FRACTION: Final = 0.0015

Mask: TypeAlias = npt.NDArray[np.bool_]
Labels: TypeAlias = npt.NDArray[np.int64]


def check(request: SegmentRequest) -> None:
    check_header(request.image, "image", min_side=SMALLEST, longest=LONGEST)


def segment(request: SegmentRequest, progress: Progress) -> SegmentResponse:
    """Find the regions, in the order of their labels, and the label map."""
    (work,) = opened(LONGEST, progress, image=request.image)
    if request.method is SegmentMethod.OBJECTS:
        labels = _objects(request, grey(work.copy), work.scale, progress)
    else:
        labels = _superpixels(request, work.copy, progress)
    labels[labels > MAX_LABEL] = 0  # a pixel of the map has 16 bits
    progress.stage("MEASURING")
    return SegmentResponse(
        **work.sizes,
        region_count=int(labels.max()),
        regions=_measured(labels, work.copy, work.scale, work.original.size),
        foreground_fraction=float((labels > 0).mean()),
        label_map=as_png(labels.astype(np.uint16)),
    )


def _objects(request: SegmentRequest, levels: Grey, scale: float, progress: Progress) -> Labels:
    """Label the connected pieces that are brighter (or darker) than their surroundings."""
    progress.stage("CLUSTERING")
    mask = _foreground(levels if request.foreground is Foreground.BRIGHT else 1 - levels)
    min_area = request.min_area_px * scale**2 or MIN_AREA_FRACTION * mask.size
    progress.stage("LABELLING")
    large = remove_small_objects(mask, max_size=max(round(min_area) - 1, 0), connectivity=2)
    return _split(large) if request.split_touching else np.asarray(label(large))


def _foreground(levels: Grey) -> Mask:
    # Subtract the uneven light, because otherwise a whole bright corner could be foreground.
    level = gaussian(levels, 1) - gaussian(levels, 0.1 * min(levels.shape))
    if np.ptp(level) < 1e-6:
        return np.zeros(levels.shape, dtype=np.bool_)
    mask = ndimage.binary_fill_holes(level > threshold_otsu(level))
    return np.asarray(ndimage.binary_opening(mask, disk(1)), dtype=np.bool_)


def _split(mask: Mask) -> Labels:
    """Split touching objects at their waist (watershed, Vincent & Soille 1991)."""
    short = min(mask.shape)
    depth = gaussian(ndimage.distance_transform_edt(mask), 0.015 * short)
    apart = max(round(0.03 * short), 1)
    peaks = peak_local_max(depth, min_distance=apart, labels=label(mask), exclude_border=False)
    markers = np.zeros(mask.shape, dtype=np.int64)
    markers[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
    parts: Labels = watershed(-depth, markers, mask=mask)
    return parts


def _superpixels(request: SegmentRequest, copy: PIL.Image.Image, progress: Progress) -> Labels:
    progress.stage("CLUSTERING")
    # Use RGB, because SLIC scales compactness differently for grey pictures.
    patches = slic(
        array(copy.convert("RGB")),
        n_segments=request.segment_count,
        compactness=request.compactness,
        start_label=1,
    )
    progress.stage("LABELLING")
    labels: Labels = patches
    return labels


def _measured(
    labels: Labels, copy: PIL.Image.Image, scale: float, size: tuple[int, int]
) -> tuple[Region, ...]:
    first = np.where(labels <= MAX_REGIONS, labels, 0)
    regions = []
    for region in regionprops(first, intensity_image=array(copy)):
        top, left, bottom, right = region.bbox
        row, column = (float(middle + 0.5) / scale - 0.5 for middle in region.centroid)
        regions.append(
            Region(
                label=int(region.label),
                bounding_box=original_box((left, top, right, bottom), scale, size),
                area_px=round(region.area / scale**2),
                centroid=Point(x=column, y=row),
                mean_color=hex_color(region.intensity_mean),
            )
        )
    return tuple(regions)
