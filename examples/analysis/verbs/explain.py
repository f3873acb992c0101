"""explain: which parts of a picture speak for a label, and which against it.

Ribeiro, Singh, Guestrin (2016), "Why should I trust you?" (LIME): switch parts of the picture off
at random, watch the classifier, and fit a linear model to its results. A part is switched off
*exactly*: its local patterns are left out of the counts that the classifier gets. If it were
painted grey instead, the grey patch would be a texture itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from sklearn.linear_model import Ridge

from examples.analysis.messages import (
    BoundingBox,
    ExplainRequest,
    ExplainResponse,
    Image,
    RegionWeight,
)
from examples.analysis.pictures import as_png, check_header, grey, opened
from examples.analysis.progress import Progress
from examples.analysis.textures import (
    LEARNING,
    LONGEST,
    MIN_SIDE,
    Codes,
    Floats,
    Textures,
    check_examples,
    count,
    histograms,
    lbp_codes,
    learn,
)
from lro import InvalidArgument

PERTURBING: Final = "PERTURBING"
FITTING: Final = "FITTING"
STAGES: Final[tuple[str, ...]] = (LEARNING, PERTURBING, FITTING)
BATCH: Final = 100
"""Number of samples between two reports."""
KERNEL_WIDTH: Final = 0.25
_NO_WEIGHT: Final = 1e-9
"""If no weight is larger, all are rounding errors: the label does not depend on any part."""


def check(request: ExplainRequest) -> None:
    check_header(request.image, "image", min_side=MIN_SIDE, longest=LONGEST)
    labels = check_examples(request.examples)
    if request.label and request.label not in labels:
        raise InvalidArgument(
            "label", f"must be one of {', '.join(sorted(labels))}, got {request.label[:64]!r}"
        )


def explain(request: ExplainRequest, progress: Progress) -> ExplainResponse:
    """Weigh the parts of the picture, in a grid of about ``segment_count`` parts."""
    (work,) = opened(LONGEST, progress, image=request.image)
    textures = learn(request.examples, progress)
    progress.stage(PERTURBING, request.sample_count)
    side = round(request.segment_count**0.5)
    parts = _count_parts(lbp_codes(grey(work.copy), lambda: progress.step(0)), side)
    whole = textures.probabilities(histograms(parts.sum(0, keepdims=True)))[0]
    label = request.label or textures.labels[int(whole.argmax())]
    column = textures.labels.index(label)
    samples = draw_samples(request.sample_count, side * side, request.seed)
    answers = _ask(textures, samples, parts, progress)[:, column]
    progress.stage(FITTING, 1)
    weights, fidelity = _fit(samples, answers)
    progress.step()
    return ExplainResponse(
        label=label,
        score=float(whole[column]),
        fidelity=fidelity,
        regions=_regions(weights, work.original.size, side),
        heatmap=_heatmap(weights, work.copy.size, side),
        **work.sizes,
    )


def _cuts(length: int, side: int) -> list[int]:
    """Return the positions, including both ends, that cut ``length`` pixels into ``side`` parts."""
    return [round(length * place / side) for place in range(side + 1)]


def _count_parts(codes: Codes, side: int) -> Floats:
    """Return a row of pattern counts for each part of the grid."""
    strips = np.split(codes, _cuts(codes.shape[1], side)[1:-1], axis=1)
    cuts = _cuts(codes.shape[2], side)[1:-1]
    return np.array([count(part) for strip in strips for part in np.split(strip, cuts, axis=2)])


def draw_samples(number: int, parts: int, seed: int) -> Floats:
    """Return a row per sample, with 1 for each part that is on, else 0; row 0 is all 1."""
    samples = np.random.default_rng(seed % 2**32).integers(0, 2, (number, parts)).astype(float)
    samples[0] = 1
    return samples


def nearness(samples: Floats) -> Floats:
    """Return the weight of each sample, 0..1, which grows with the number of parts that are on."""
    near: Floats = np.exp(-(((1 - np.sqrt(samples.mean(1))) / KERNEL_WIDTH) ** 2))
    return near


def _ask(textures: Textures, samples: Floats, parts: Floats, progress: Progress) -> Floats:
    """Return the classifier's row of probabilities for each sample."""
    answers = []
    for start in range(0, len(samples), BATCH):
        batch = samples[start : start + BATCH]
        answers.append(textures.probabilities(histograms(batch @ parts)))
        progress.step(len(batch))
    return np.vstack(answers)


def _fit(samples: Floats, answers: Floats) -> tuple[Floats, float]:
    """Fit a linear model, and return the weight of each part and the fit (R2)."""
    near = nearness(samples)
    model = Ridge(alpha=1).fit(samples, answers, sample_weight=near)
    return model.coef_, float(model.score(samples, answers, near))


def _regions(weights: Floats, size: tuple[int, int], side: int) -> tuple[RegionWeight, ...]:
    """Return the parts in pixels of the original picture, heaviest first."""
    xs, ys = _cuts(size[0], side), _cuts(size[1], side)
    regions = []
    for place in np.argsort(-weights, kind="stable"):
        row, column = divmod(int(place), side)
        width, height = xs[column + 1] - xs[column], ys[row + 1] - ys[row]
        box = BoundingBox(x=xs[column], y=ys[row], width=width, height=height)
        weight = float(weights[place])
        regions.append(RegionWeight(bounding_box=box, area_px=width * height, weight=weight))
    return tuple(regions)


def _heatmap(weights: Floats, size: tuple[int, int], side: int) -> Image:
    """Draw the weights as a picture with the size of the working copy."""
    largest = float(np.abs(weights).max())
    shares = weights / largest if largest > _NO_WEIGHT else np.zeros_like(weights)
    levels = np.rint(128 + 127 * shares).astype(np.uint8).reshape(side, side)
    tall = np.repeat(levels, np.diff(_cuts(size[1], side)), axis=0)
    return as_png(np.repeat(tall, np.diff(_cuts(size[0], side)), axis=1))
