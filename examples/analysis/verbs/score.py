"""score: the technical quality of a photograph, without a reference to compare it to.

Artwork in pure black and white scores 0, because all of it counts as clipped.
"""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import PIL.Image
from skimage.measure import blur_effect, shannon_entropy

from examples.analysis.messages import ScoreRequest, ScoreResponse
from examples.analysis.pictures import Levels, array, check_header, grey, opened
from examples.analysis.progress import Progress

MEASURING: Final = "MEASURING"
STAGES: Final[tuple[str, ...]] = (MEASURING,)
MIN_SIDE: Final = 16
LONGEST: Final = 2048


def check(request: ScoreRequest) -> None:
    check_header(request.image, "image", min_side=MIN_SIDE, longest=LONGEST)


def score(request: ScoreRequest, progress: Progress) -> ScoreResponse:
    """Compute four qualities and their geometric mean from seven measures."""
    (work,) = opened(LONGEST, progress, image=request.image)
    blur, noise, contrast_range, clipped, entropy, colour, luminance = _measure(work.copy, progress)
    sharpness = min(max((0.9 - blur) / 0.6, 0.0), 1.0)
    cleanness = math.exp(-noise / 20)
    contrast = min(1.0, contrast_range / 0.5)
    exposure = 1 - min(1.0, 2 * clipped)
    return ScoreResponse(
        overall=100 * (sharpness * cleanness * contrast * exposure) ** 0.25,
        sharpness=sharpness,
        cleanness=cleanness,
        contrast=contrast,
        exposure=exposure,
        blur=blur,
        noise_sigma=noise,
        contrast_range=contrast_range,
        clipped_fraction=clipped,
        entropy_bits=entropy,
        colorfulness=colour,
        mean_luminance=luminance,
        **work.sizes,
    )


def _measure(picture: PIL.Image.Image, progress: Progress) -> list[float]:
    levels, light = array(picture), grey(picture)
    measures: tuple[Callable[[], float], ...] = (
        lambda: float(np.max(blur_effect(light))),  # Crété-Roffet et al. 2007
        lambda: noise_sigma(levels),
        lambda: float(np.ptp(np.percentile(light, [1, 99]))),
        lambda: float(np.mean((light <= 1 / 255) | (light >= 254 / 255))),
        lambda: float(shannon_entropy(np.rint(light * 255).astype(np.uint8))),
        lambda: colorfulness(levels),
        lambda: float(light.mean()),
    )
    progress.stage(MEASURING, len(measures))
    found = []
    for measure in measures:
        found.append(measure())
        progress.step()
    return found


def noise_sigma(levels: Levels) -> float:
    """Return the standard deviation of the noise in grey levels, as the mean of the channels.

    Donoho & Johnstone (1994): the median of the finest diagonal wavelet coefficients, here of Haar,
    hardly depends on the content of the picture.
    """
    rows, columns = (side // 2 * 2 for side in levels.shape[:2])
    even = levels[:rows, :columns].reshape(rows, columns, -1).astype(float)
    a, b = even[::2, ::2], even[::2, 1::2]
    c, d = even[1::2, ::2], even[1::2, 1::2]
    return float(np.median(np.abs(a - b - c + d) / 2, axis=(0, 1)).mean() / 0.6745)


def colorfulness(levels: Levels) -> float:
    """Measure colourfulness as Hasler & Süsstrunk (2003): 0 is none (grey), 15 slight, 80 high."""
    if levels.ndim == 2:
        return 0.0
    red, green, blue = np.moveaxis(levels.astype(float), 2, 0)
    rg, yb = red - green, (red + green) / 2 - blue
    spread = math.hypot(float(rg.std()), float(yb.std()))
    return spread + 0.3 * math.hypot(float(rg.mean()), float(yb.mean()))
