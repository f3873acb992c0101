"""Learns surface textures by their uniform local binary patterns, for classify and explain.

Ojala, Pietikäinen, Mäenpää (2002), "Multiresolution gray-scale and rotation invariant texture
classification with local binary patterns". The codes of a picture are computed once. A texture is
described by how often each code occurs, which can be counted exactly in any part of the picture.
"""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree
from skimage.feature import local_binary_pattern
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from examples.analysis.messages import Example, Image
from examples.analysis.pictures import Grey, check_header, decode, grey, working_copy
from examples.analysis.progress import Progress
from lro import InvalidArgument

Codes: TypeAlias = npt.NDArray[np.uint8]
"""An array of scales x rows x columns: the pattern around each pixel."""
Floats: TypeAlias = npt.NDArray[np.float64]

LEARNING: Final = "LEARNING"
MIN_SIDE: Final = 64
LONGEST: Final = 2048
BUILT_IN: Final = ("brick", "grass", "gravel")
BUILT_IN_ROWS: Final = 256
"""Number of rows that are learned from the top of each picture; tests classify the other half."""

SCALES: Final = ((8, 1), (16, 2), (24, 3))
"""Each scale is a number P of neighbours and a distance in pixels, with P + 2 uniform patterns."""
TILE_PX: Final = 64
STEP_PX: Final = 32
MAX_TILES: Final = 4096
"""Maximum number of tiles. A larger number is thinned out evenly, as the search is quadratic."""

_BINS: Final = tuple(points + 2 for points, _ in SCALES)
_LEAST_DISTANCE: Final = 1e-6
"""The typical distance of tiles that is used if all tiles are equal."""


def lbp_codes(light: Grey, look: Callable[[], object] = lambda: None) -> Codes:
    """Return the local binary patterns of a picture, computed on its 8-bit grey levels.

    A scale of a large picture takes a second or two. ``look`` is called after each scale, so that
    a cancel need not wait for the other scales.
    """
    levels = np.rint(light * 255).astype(np.uint8)
    codes = np.empty((len(SCALES), *levels.shape), dtype=np.uint8)
    for scale, (points, px) in enumerate(SCALES):
        codes[scale] = local_binary_pattern(levels, points, px, "uniform")
        look()
    return codes


def count(codes: Codes) -> Floats:
    """Count each pattern of each scale in a part of a picture, and return these 54 counts."""
    planes = zip(codes, _BINS, strict=True)
    return np.concatenate([np.bincount(c.ravel(), minlength=n) for c, n in planes]).astype(float)


def histograms(counts: Floats) -> Floats:
    """Turn rows of counts into descriptions.

    The counts of each scale are divided by their sum, and replaced by their square roots. A row
    without pixels gives zeros.
    """
    scales = np.split(counts, np.cumsum(_BINS)[:-1], axis=1)
    return np.hstack([np.sqrt(part / np.maximum(part.sum(1, keepdims=True), 1)) for part in scales])


class Textures:
    """A learned model of the labels, and the tiles from which it was learned."""

    def __init__(self, labels: Sequence[str], tiles: Floats) -> None:
        """Learn a model from ``tiles``, which has a description per row, and the label of each row.

        At least two labels must differ.
        """
        self.labels = tuple(sorted(set(labels)))
        self.tile_count = len(tiles)
        self._model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        self._model.fit(tiles, [self.labels.index(label) for label in labels])
        self._tree = KDTree(tiles)
        nearest, _ = self._tree.query(tiles, k=2)  # the nearest tile is the tile itself
        self._usual = max(float(np.percentile(nearest[:, 1], 99)), _LEAST_DISTANCE)

    def probabilities(self, descriptions: Floats) -> Floats:
        """Return a row for each description, with a column for each label; rows sum to 1."""
        scores: Floats = self._model.predict_proba(descriptions)
        return scores

    def novelty(self, description: Floats) -> float:
        """Return the distance to the nearest tile.

        Within distance 1, 99 % of the tiles have another tile. The distance is needed because the
        model finds a known texture in every picture, even in a portrait.
        """
        distance, _ = self._tree.query(description)
        return float(distance) / self._usual


def check_examples(examples: Sequence[Example]) -> frozenset[str]:
    """Refuse examples that cannot be learned; return the labels that the model will have."""
    if not examples:
        return frozenset(BUILT_IN)
    if not 2 <= len(examples) <= 64:
        raise InvalidArgument(
            "examples", f"must have no elements or from 2 to 64, got {len(examples)}"
        )
    for index, example in enumerate(examples):
        check_header(example.image, f"examples[{index}].image", min_side=MIN_SIDE, longest=LONGEST)
    labels = frozenset(example.label for example in examples)
    if len(labels) < 2:
        raise InvalidArgument(
            "examples", f"must have at least 2 different labels, all have {examples[0].label!r}"
        )
    return labels


def learn(examples: Sequence[Example], progress: Progress) -> Textures:
    """Learn the examples, or the built-in set if there are none; report the stage LEARNING."""
    progress.stage(LEARNING, len(examples) or len(BUILT_IN))
    if not examples:
        learned = built_in()
        progress.step(len(BUILT_IN))
        return learned
    labels: list[str] = []
    tiles: list[Floats] = []
    for index, example in enumerate(examples):
        picture = decode(example.image, f"examples[{index}].image")
        picture, _ = working_copy(picture, LONGEST)
        codes = lbp_codes(grey(picture), lambda: progress.step(0))
        found = _tiles(codes, MAX_TILES // len(examples))
        tiles.append(found)
        labels += [example.label] * len(found)
        progress.step()
    return Textures(labels, np.vstack(tiles))


_one_at_a_time: Final = threading.Lock()


def built_in() -> Textures:
    """Return the built-in set, learned at the first call and kept for the life of the process."""
    with _one_at_a_time:
        return _learn_built_in()


@functools.cache
def _learn_built_in() -> Textures:
    labels: list[str] = []
    tiles: list[Floats] = []
    for name in BUILT_IN:
        content = (files("skimage") / "data" / f"{name}.png").read_bytes()
        picture = decode(Image(content=content), name)
        found = _tiles(lbp_codes(grey(picture)[:BUILT_IN_ROWS]), MAX_TILES)
        tiles.append(found)
        labels += [name] * len(found)
    return Textures(labels, np.vstack(tiles))


def _tiles(codes: Codes, most: int) -> Floats:
    """Return the descriptions of at most ``most`` tiles, chosen evenly if there are more."""
    _, height, width = codes.shape
    corners = [
        (top, left)
        for top in range(0, height - TILE_PX + 1, STEP_PX)
        for left in range(0, width - TILE_PX + 1, STEP_PX)
    ]
    chosen = np.linspace(0, len(corners) - 1, min(most, len(corners))).astype(int)
    rows = []
    for top, left in (corners[place] for place in chosen):
        rows.append(count(codes[:, top : top + TILE_PX, left : left + TILE_PX]))
    return histograms(np.array(rows))
