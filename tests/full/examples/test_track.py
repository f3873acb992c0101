"""track: a box is followed through frames, lost, and found again."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest

from examples.analysis.messages import BoundingBox, Image, TrackRequest, TrackResponse
from examples.analysis.verbs.track import check, track
from tests.full.examples.conftest import Recorder, answer, encoded, film, levels, refused, saved

BOX = BoundingBox(x=10, y=12, width=16, height=16)


def places(response: TrackResponse) -> list[tuple[int, int]]:
    return [(one.bounding_box.x, one.bounding_box.y) for one in response.positions]


def window(x: int, y: int, width: int = 300, height: int = 300) -> npt.NDArray[np.uint8]:
    """Return a part of the astronaut's picture."""
    return np.ascontiguousarray(levels("astronaut.png")[y : y + height, x : x + width])


def sliding(*corners: tuple[int, int]) -> list[PIL.Image.Image]:
    """Return windows of 64 x 64 on the astronaut's face; the face moves against the window."""
    return [PIL.Image.fromarray(window(x, y, 64, 64)) for x, y in corners]


def files(pictures: list[PIL.Image.Image]) -> tuple[Image, ...]:
    return tuple(saved(picture) for picture in pictures)


STEPS = [(200, 100), (203, 98), (206, 97), (208, 99)]
MOVED = [(30, 30), (27, 32), (24, 33), (22, 31)]
START = BoundingBox(x=30, y=30, width=16, height=16)


def test_object_moves_by_the_disparity_of_a_stereo_pair() -> None:
    """In the right picture of a stereo pair, an object has moved by its disparity of 50 pixels."""
    request = TrackRequest(
        frames=(encoded("motorcycle_left.png"), encoded("motorcycle_right.png")),
        box=BoundingBox(x=300, y=200, width=60, height=60),
    )
    first, second = answer(request).positions
    assert (first.bounding_box, first.score, first.found) == (request.box, 1.0, True)
    assert second.bounding_box.x - 300 == pytest.approx(-50, abs=2)
    assert second.bounding_box.y - 200 == pytest.approx(0, abs=2)
    assert second.found
    assert second.score > 0.9


def test_face_is_tracked_over_thirty_frames() -> None:
    """A face under a sliding window is followed over thirty frames without any error."""
    corners = [(int(60 + 40 * math.sin(i / 6)), 20 + i) for i in range(30)]
    request = TrackRequest(
        frames=tuple(saved(window(x, y)) for x, y in corners),
        box=BoundingBox(x=117, y=47, width=95, height=95),
    )
    found = answer(request)
    assert places(found) == [(177 - x, 67 - y) for x, y in corners]
    assert found.found_count == found.frame_count == 30
    assert [position.frame_index for position in found.positions] == list(range(30))
    assert (found.scale, found.image_width, found.image_height) == (1.0, 300, 300)


@pytest.mark.parametrize(
    ("form", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("GIF", {})],
    ids=["png", "webp", "tiff", "gif"],
)
def test_animated_file_gives_the_result_of_separate_frames(
    form: str, options: dict[str, object]
) -> None:
    """The frames of an animated file have the same result as separate pictures."""
    progress = Recorder()
    request = TrackRequest(image=film(form, sliding(*STEPS), **options), box=START)
    found = answer(request, progress)
    assert (places(found), found.found_count) == (MOVED, 4)
    assert progress.units("DECODING") == (4, 0)  # the number of frames is not known beforehand
    assert progress.units("TRACKING") == (3, 3)


def test_hidden_object_is_found_again() -> None:
    """A hidden object keeps its place, and is found again further away than one margin."""
    shown = sliding((200, 100), (200, 100), (200, 100), (213, 100))
    hidden = PIL.Image.new("RGB", (64, 64))
    pictures = [shown[0], hidden, hidden, shown[3]]
    request = TrackRequest(frames=files(pictures), box=START, search_margin_px=5)
    found = answer(request)
    assert [position.found for position in found.positions] == [True, False, False, True]
    assert places(found) == [(30, 30), (30, 30), (30, 30), (17, 30)]
    assert found.found_count == 2
    at_once = answer(
        TrackRequest(frames=files([shown[0], shown[3]]), box=START, search_margin_px=5)
    )
    assert places(at_once)[1] != (17, 30)
    near = files(sliding((200, 100), (216, 100)))  # the default margin is the object's own size
    assert places(answer(TrackRequest(frames=near, box=START)))[1] == (14, 30)


def test_object_below_min_score_is_not_found() -> None:
    """An object that looks too different is not found, and its score is returned."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    frames = files([*sliding((200, 100)), PIL.Image.fromarray(noise)])
    _, second = answer(TrackRequest(frames=frames, box=START)).positions
    assert not second.found
    assert second.score < 0.5
    assert second.bounding_box == START
    _, second = answer(TrackRequest(frames=frames, box=START, min_score=0.0)).positions
    assert second.found


def test_patch_of_one_colour_is_not_found_again() -> None:
    """A patch of one colour is not found in the next frame, which is not an error."""
    picture = saved(PIL.Image.new("RGB", (64, 64), "red"))
    found = answer(TrackRequest(frames=(picture, picture), box=START))
    assert [position.found for position in found.positions] == [True, False]
    assert found.positions[1].score == 0


def test_large_frames_are_searched_on_copies() -> None:
    """Copies of 1024 pixels are searched, but positions are in pixels of the originals."""
    pictures = [
        PIL.Image.fromarray(window(x, y)).resize((2100, 2100)) for x, y in [(100, 20), (110, 26)]
    ]
    box = BoundingBox(x=539, y=329, width=665, height=665)
    request = TrackRequest(frames=tuple(saved(p, "JPEG") for p in pictures), box=box)
    found = answer(request)
    assert found.scale == pytest.approx(1024 / 2100)
    (first, second) = (position.bounding_box for position in found.positions)
    assert first == box
    assert (second.x, second.y) == pytest.approx((539 - 70, 329 - 42), abs=3)
    assert (second.width, second.height) == (665, 665)


def test_box_of_four_pixels_is_tracked() -> None:
    """A box of 4 pixels is followed although it is smaller than a pixel of the copy."""
    picture = saved(PIL.Image.new("L", (4000, 300)))
    box = BoundingBox(x=3996, y=296, width=4, height=4)
    found = answer(TrackRequest(frames=(picture, picture), box=box))
    assert found.positions[1].bounding_box == box


TWO = files(sliding(*STEPS[:2]))


def test_frames_have_a_limit_of_pixels_together() -> None:
    """All frames together may have up to 64 MP."""
    frame = saved(PIL.Image.new("1", (4000, 3300)))
    request = TrackRequest(frames=(frame,) * 5, box=BOX)
    error = refused(lambda: check(request))
    assert error.description == "must have at most 64,000,000 pixels together, got 66,000,000"


def test_animation_with_fewer_frames_than_announced_is_refused() -> None:
    """An animation that has fewer frames than it announces is refused when its frames are read."""
    content = film("PNG", sliding(*STEPS[:2])).content
    second = content.rindex(b"fcTL") - 4
    request = TrackRequest(image=Image(content=content[:second] + content[-12:]), box=BOX)
    check(request)
    assert refused(lambda: track(request, Recorder())).field == "image.content"
