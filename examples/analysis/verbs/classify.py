"""classify: name the surface texture of a picture, and decide if the texture is known."""

from __future__ import annotations

from typing import Final

import numpy as np

from examples.analysis.messages import ClassifyRequest, ClassifyResponse, LabelScore
from examples.analysis.pictures import check_header, grey, opened
from examples.analysis.progress import Progress
from examples.analysis.textures import (
    LEARNING,
    LONGEST,
    MIN_SIDE,
    check_examples,
    count,
    histograms,
    lbp_codes,
    learn,
)

DESCRIBING: Final = "DESCRIBING"
PREDICTING: Final = "PREDICTING"
STAGES: Final[tuple[str, ...]] = (LEARNING, DESCRIBING, PREDICTING)
KNOWN_UP_TO: Final = 2.0
"""The highest novelty at which a texture counts as known."""


def check(request: ClassifyRequest) -> None:
    check_header(request.image, "image", min_side=MIN_SIDE, longest=LONGEST)
    check_examples(request.examples)


def classify(request: ClassifyRequest, progress: Progress) -> ClassifyResponse:
    """Compute the probability of each label for the whole picture."""
    (work,) = opened(LONGEST, progress, image=request.image)
    textures = learn(request.examples, progress)
    progress.stage(DESCRIBING, 1)
    codes = lbp_codes(grey(work.copy), lambda: progress.step(0))
    description = histograms(count(codes)[np.newaxis])
    progress.step()
    progress.stage(PREDICTING, 1)
    scores = textures.probabilities(description)[0]
    order = np.argsort(-scores, kind="stable")
    results = [LabelScore(label=textures.labels[i], score=float(scores[i])) for i in order]
    novelty = textures.novelty(description[0])
    progress.step()
    return ClassifyResponse(
        label=results[0].label,
        score=results[0].score,
        results=tuple(results[: request.max_results]),
        novelty=novelty,
        known=novelty <= KNOWN_UP_TO,
        training_tiles=textures.tile_count,
        **work.sizes,
    )
