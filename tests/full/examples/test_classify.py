"""classify: learned textures are recognised, and other textures are reported as unknown."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from examples.analysis import textures
from examples.analysis.messages import ClassifyRequest, Example
from tests.full.examples.conftest import answer, levels, saved

LOWER_SCORES = {"brick": 0.9999, "grass": 0.9997, "gravel": 0.998}
ROCKET = levels("rocket.jpg")


def example(label: str, pixels: npt.NDArray[np.uint8]) -> Example:
    return Example(label=label, image=saved(pixels))


SKY_AND_GROUND = (example("sky", ROCKET[:150, :200]), example("ground", ROCKET[330:, :300]))


def run(pixels: npt.NDArray[np.uint8], *examples: Example, max_results: int = 5) -> Any:
    image = saved(pixels)
    return answer(ClassifyRequest(image=image, examples=examples, max_results=max_results))


@pytest.mark.parametrize("label", textures.BUILT_IN)
def test_lower_halves_of_the_textures_get_the_right_label(label: str) -> None:
    """The lower half of each texture, which was not learned, gets the right label and is known."""
    found = run(levels(f"{label}.png")[256:])
    assert found.label == label
    assert found.score == pytest.approx(LOWER_SCORES[label], abs=0.001)
    assert 0.5 < found.novelty < 1.2
    assert found.known
    assert found.training_tiles == 315
    assert (found.scale, found.image_width, found.image_height) == (1.0, 512, 256)
    one_tile = levels(f"{label}.png")[320:384, 200:264]
    assert run(one_tile).label == label


def test_photograph_that_is_not_a_texture_is_novel() -> None:
    """A portrait gets the label brick with a high score, but its novelty marks it as unknown."""
    found = run(levels("astronaut.png"))
    assert (found.label, found.known) == ("brick", False)
    assert found.score > 0.99
    assert found.novelty == pytest.approx(2.5, abs=0.1)


@pytest.mark.parametrize(
    ("label", "part"), [("sky", ROCKET[:150, 420:]), ("ground", ROCKET[330:, 340:])]
)
def test_two_given_examples_are_enough_to_classify(label: str, part: npt.NDArray[np.uint8]) -> None:
    """With two parts of a photograph as examples, its other parts are recognised."""
    found = run(part, *SKY_AND_GROUND)
    assert found.label == label
    assert found.score > 0.9
    assert found.training_tiles == 3 * 5 + 2 * 8


def test_scores_are_best_first_and_sum_to_one() -> None:
    """All labels are returned, best first, or only the best ``max_results``."""
    tile = levels("gravel.png")[300:400, 300:400]
    found = run(tile)
    scores = [each.score for each in found.results]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1)
    assert {each.label for each in found.results} == set(textures.BUILT_IN)
    assert (found.results[0].label, found.results[0].score) == (found.label, found.score)
    assert run(tile, max_results=2).results == found.results[:2]


def test_labels_are_any_texts_and_may_repeat() -> None:
    """Examples with equal labels are learned together; labels that look equal are kept apart."""
    brick, grass = levels("brick.png"), levels("grass.png")
    parts = [("a", brick[:128]), ("a\0", grass[:128]), ("a", brick[128:256])]
    examples = [example(label, part) for label, part in parts]
    for picture, label in ((brick, "a"), (grass, "a\0")):
        found = run(picture[256:], *examples)
        assert (found.label, len(found.results)) == (label, 2)
        assert found.training_tiles == 3 * 45


def test_equal_examples_get_equal_finite_scores() -> None:
    """Equal examples with different labels get equal scores, and every number is finite."""
    same = np.full((64, 64), 90, dtype=np.uint8)
    found = run(same, example("one", same), example("other", same))
    assert [each.score for each in found.results] == pytest.approx([0.5, 0.5])
    assert found.novelty == 0
    other = run(levels("brick.png"), example("one", same), example("other", same))
    assert not other.known


def test_number_of_tiles_of_large_examples_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a limited number of tiles of large examples is learned, and the label is still right."""
    monkeypatch.setattr(textures, "MAX_TILES", 20)
    examples = [example(name, levels(f"{name}.png")[:256]) for name in textures.BUILT_IN]
    found = run(levels("grass.png")[256:], *examples)
    assert found.training_tiles == 18
    assert found.label == "grass"


def test_a_large_picture_is_classified_on_a_copy() -> None:
    """For a large picture, the response has the scale of the copy and the size of the original."""
    wide = np.tile(levels("brick.png")[256:384], (1, 5))
    found = run(wide)
    assert (found.scale, found.image_width, found.image_height) == (0.8, 2560, 128)


def test_built_in_textures_are_learned_once() -> None:
    """Built-in textures are learned once per process, even if several threads need them at once."""
    spec = importlib.util.find_spec(textures.__name__)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    computed: list[int] = []
    real = fresh.local_binary_pattern
    fresh.local_binary_pattern = lambda *given: computed.append(1) or real(*given)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: fresh.built_in(), range(8)))
    assert len(computed) == len(fresh.BUILT_IN) * len(fresh.SCALES)
    assert all(one is found[0] for one in found)
