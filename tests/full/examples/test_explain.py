"""explain: the parts of a picture that have a label's texture support the label."""

from __future__ import annotations

import functools
import io

import attrs
import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest

from examples.analysis.messages import ClassifyRequest, Example, ExplainRequest, ExplainResponse
from examples.analysis.textures import BUILT_IN
from examples.analysis.verbs.classify import classify
from examples.analysis.verbs.explain import nearness
from tests.full.examples.conftest import Recorder, answer, flat, levels, saved

GRASS, BRICK = levels("grass.png"), levels("brick.png")
HALVES = saved(np.hstack([GRASS[256:, :256], BRICK[256:, 256:]]))
FLAT = flat(64, 64, "L", 90)


@functools.cache
def halves(label: str) -> ExplainResponse:
    return answer(ExplainRequest(image=HALVES, label=label))


def weights(found: ExplainResponse) -> dict[tuple[int, int], float]:
    return {(each.bounding_box.x, each.bounding_box.y): each.weight for each in found.regions}


def heat(found: ExplainResponse) -> npt.NDArray[np.uint8]:
    assert found.heatmap is not None
    assert found.heatmap.mime_type == "image/png"
    return np.array(PIL.Image.open(io.BytesIO(found.heatmap.content)))


@pytest.mark.parametrize(("label", "sign"), [("grass", 1), ("brick", -1)])
def test_each_half_supports_its_own_label(label: str, sign: int) -> None:
    """The grass half supports grass and opposes brick; the brick half does the reverse."""
    found = halves(label)
    left = [each.weight for each in found.regions if each.bounding_box.x < 256]
    right = [each.weight for each in found.regions if each.bounding_box.x >= 256]
    assert (len(left), len(right)) == (32, 32)
    assert sign * np.mean(left) > 0.03
    assert sign * np.mean(right) < -0.03
    assert all((each.bounding_box.x < 256) == (sign > 0) for each in found.regions[:10])
    assert found.fidelity == pytest.approx(0.975, abs=0.01)
    assert (found.label, found.scale, found.image_width, found.image_height) == (label, 1, 512, 256)


def test_weights_of_a_part_sum_to_zero_over_the_labels() -> None:
    """The weights of a part add up to 0 over all labels, because probabilities add up to 1."""
    tables = [weights(halves(label)) for label in BUILT_IN]
    for place in tables[0]:
        assert abs(sum(table[place] for table in tables)) < 1e-9


def test_predicted_label_is_explained_by_default() -> None:
    """Without a label, the label that ``classify`` predicts is explained, with the same score."""
    found = halves("")
    classified = classify(ClassifyRequest(image=HALVES), Recorder())
    assert (found.label, found.score) == (classified.label, classified.score)
    assert found == halves(found.label)
    assert halves("gravel").score == classified.results[-1].score


def test_regions_are_heaviest_first_and_cover_the_picture() -> None:
    """The heaviest part comes first, and each pixel is in exactly one part, even at an odd size."""
    odd = np.pad(BRICK[:131, :203], ((0, 0), (0, 34)), mode="reflect")
    found = answer(ExplainRequest(image=saved(odd), segment_count=50, sample_count=50))
    falling = [each.weight for each in found.regions]
    assert falling == sorted(falling, reverse=True)
    assert len(found.regions) == 49  # a grid of 7 x 7 is closest to 50 parts
    covered = np.zeros((131, 237), dtype=int)
    for each in found.regions:
        box = each.bounding_box
        covered[box.y : box.y + box.height, box.x : box.x + box.width] += 1
        assert each.area_px == box.width * box.height
    assert (covered == 1).all()


def test_heatmap_is_128_at_zero_and_255_or_1_at_the_heaviest_part() -> None:
    """In the heatmap, weight 0 is grey level 128, and the heaviest part is 255 or 1."""
    found = halves("grass")
    map_ = heat(found)
    assert map_.shape == (256, 512)
    largest = max(abs(each.weight) for each in found.regions)
    for each in found.regions:
        box = each.bounding_box
        part = map_[box.y : box.y + box.height, box.x : box.x + box.width]
        assert (part == round(128 + 127 * each.weight / largest)).all()


def test_a_large_picture_is_explained_on_a_copy() -> None:
    """For a large picture, boxes are in pixels of the original, the heatmap in those of a copy."""
    wide = saved(np.tile(BRICK[256:391], (1, 5)))
    found = answer(ExplainRequest(image=wide, segment_count=4, sample_count=50))
    assert (found.scale, found.image_width, found.image_height) == (0.8, 2560, 135)
    assert heat(found).shape == (108, 2048)
    boxes = {attrs.astuple(each.bounding_box) for each in found.regions}
    assert boxes == {
        (0, 0, 1280, 68), (1280, 0, 1280, 68), (0, 68, 1280, 67), (1280, 68, 1280, 67)
    }  # fmt: skip


def test_flat_picture_has_zero_weights() -> None:
    """A flat picture's parts all have weight 0, and every number is finite."""
    for segments in (4, 256):
        found = answer(ExplainRequest(image=FLAT, segment_count=segments, sample_count=50))
        assert all(abs(each.weight) < 1e-9 for each in found.regions)
        assert found.fidelity <= 1
        assert (heat(found) == 128).all()


def test_the_same_request_gives_the_same_response() -> None:
    """The same request has an identical response; with another seed the weights differ."""
    request = ExplainRequest(image=HALVES, label="grass", sample_count=200)
    assert answer(request) == answer(request)
    others = [answer(attrs.evolve(request, seed=seed)) for seed in (-(2**31), -1, 2**31 - 1)]
    assert len({str(weights(found)) for found in (answer(request), *others)}) == 4


def test_labels_are_those_of_the_given_examples() -> None:
    """The labels of given examples are explained, not the built-in ones."""
    examples = (
        Example(label="lawn", image=saved(GRASS[:128])),
        Example(label="wall", image=saved(BRICK[:128])),
    )
    request = ExplainRequest(image=HALVES, examples=examples, sample_count=200)
    lawn, wall = (answer(attrs.evolve(request, label=label)) for label in ("lawn", "wall"))
    assert all(each.bounding_box.x < 256 for each in lawn.regions[:10])
    assert all(each.bounding_box.x >= 256 for each in wall.regions[:10])
    assert lawn.score + wall.score == pytest.approx(1)


def test_nearness_weight_falls_with_the_hidden_share() -> None:
    """A sample's weight falls with its share of hidden parts: from 1 for none to nearly 0."""
    samples = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=float)
    assert nearness(samples) == pytest.approx(np.exp([0, -4, -16]))


def test_progress_has_a_unit_for_each_sample() -> None:
    """Each sample is a unit of progress; units are reported at least every 100 samples."""
    progress = Recorder()
    answer(ExplainRequest(image=FLAT, sample_count=250), progress)
    assert progress.units("PERTURBING") == (250, 250)
    assert [call for call in progress.calls if call == 100] == [100, 100]
    assert progress.units("LEARNING") == (3, 3)
