"""track: follow a box through frames (fast normalised cross-correlation, Lewis 1995).

Changes of size and rotation are not followed.
"""
# scikit-image has no annotations
# mypy: untyped-calls-exclude=skimage

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import PIL.Image
from skimage.feature import match_template

from examples.analysis.messages import BoundingBox, TrackedPosition, TrackRequest, TrackResponse
from examples.analysis.pictures import (
    MAX_FRAME_PIXELS,
    MAX_FRAMES,
    Grey,
    check_header,
    decode,
    frames,
    grey,
    is_animated,
    working_copy,
)
from examples.analysis.progress import DECODING, Progress
from lro import InvalidArgument

STAGES: Final = ("TRACKING",)
LONGEST: Final = 1024
SMALLEST: Final = 8
MIN_BOX_SIDE: Final = 4
LEARNING_RATE: Final = 0.1
"""The fraction of the patch that is renewed from each frame in which the target is found."""


def check(request: TrackRequest) -> None:
    if bool(request.frames) == (request.image is not None):
        raise InvalidArgument("frames", "exactly one of frames and image is required")
    if request.image is not None:
        check_header(request.image, "image", min_side=SMALLEST, longest=LONGEST)
        if not is_animated(request.image):
            raise InvalidArgument("image.content", "shows one picture, at least 2 are required")
    else:
        _check_frames(request)
    box = request.box
    if box is None:
        raise InvalidArgument("box", "is required")
    if min(box.width, box.height) < MIN_BOX_SIDE:
        raise InvalidArgument(
            "box",
            f"must have sides of at least {MIN_BOX_SIDE} pixels, got {box.width} x {box.height}",
        )
    for name, place in (("x", box.x), ("y", box.y)):
        if place < 0:
            raise InvalidArgument(f"box.{name}", f"must be at least 0, got {place}")


def track(request: TrackRequest, progress: Progress) -> TrackResponse:
    """Find the box in every frame; the first position is the given box, with score 1."""
    pictures, size, scale = _working_frames(request, progress)
    box = _inside(request.box, size)
    target = _Target.marked(grey(pictures[0]), box, scale, request.search_margin_px)
    progress.stage("TRACKING", len(pictures) - 1)
    positions = [TrackedPosition(frame_index=0, bounding_box=box, score=1.0, found=True)]
    for index, picture in enumerate(pictures[1:], start=1):
        score, found = target.look(grey(picture), request.min_score)
        place = target.box_from(box, scale, size)
        positions.append(
            TrackedPosition(frame_index=index, bounding_box=place, score=score, found=found)
        )
        progress.step()
    return TrackResponse(
        scale=scale,
        image_width=size[0],
        image_height=size[1],
        positions=tuple(positions),
        found_count=sum(position.found for position in positions),
        frame_count=len(positions),
    )


@attrs.define(kw_only=True)
class _Target:
    """The tracked object: its picture, and its last place in working pixels."""

    patch: Grey
    left: int
    top: int
    start: tuple[int, int]
    margin: int
    lost: int = 0

    @classmethod
    def marked(cls, frame: Grey, box: BoundingBox, scale: float, margin_px: int) -> _Target:
        """Make a target of a box in a frame; ``margin_px`` 0 means the box's longer side."""
        width = max(round(box.width * scale), MIN_BOX_SIDE)
        height = max(round(box.height * scale), MIN_BOX_SIDE)
        left = min(round(box.x * scale), frame.shape[1] - width)
        top = min(round(box.y * scale), frame.shape[0] - height)
        margin = max(round((margin_px or max(box.width, box.height)) * scale), 1)
        patch = frame[top : top + height, left : left + width]
        return cls(patch=patch, left=left, top=top, start=(left, top), margin=margin)

    def look(self, frame: Grey, min_score: float) -> tuple[float, bool]:
        """Search around the last place, and move to the best match if its score is high enough.

        Each successive frame without the target enlarges the search by one margin.
        """
        height, width = self.patch.shape
        reach = self.margin * (1 + self.lost)
        left, top = max(self.left - reach, 0), max(self.top - reach, 0)
        bottom, right = self.top + height + reach, self.left + width + reach
        scores = match_template(frame[top:bottom, left:right], self.patch)
        row, column = np.unravel_index(np.argmax(scores), scores.shape)
        score = min(float(scores[row, column]), 1.0)
        if score < min_score:
            self.lost += 1
            return score, False
        self.left, self.top, self.lost = left + int(column), top + int(row), 0
        seen = frame[self.top : self.top + height, self.left : self.left + width]
        self.patch = (1 - LEARNING_RATE) * self.patch + LEARNING_RATE * seen
        return score, True

    def box_from(self, box: BoundingBox, scale: float, size: tuple[int, int]) -> BoundingBox:
        """Return the given box, moved as far as the target, but kept inside the original frame."""
        x = box.x + round((self.left - self.start[0]) / scale)
        y = box.y + round((self.top - self.start[1]) / scale)
        x, y = min(x, size[0] - box.width), min(y, size[1] - box.height)
        return attrs.evolve(box, x=max(x, 0), y=max(y, 0))


def _check_frames(request: TrackRequest) -> None:
    if not 2 <= len(request.frames) <= MAX_FRAMES:
        raise InvalidArgument(
            "frames", f"must have from 2 to {MAX_FRAMES} pictures, got {len(request.frames)}"
        )
    pixels = 0
    for index, frame in enumerate(request.frames):
        header = check_header(frame, f"frames[{index}]", min_side=SMALLEST, longest=LONGEST)
        pixels += header.width * header.height
    if pixels > MAX_FRAME_PIXELS:
        raise InvalidArgument(
            "frames", f"must have at most {MAX_FRAME_PIXELS:,} pixels together, got {pixels:,}"
        )


def _working_frames(
    request: TrackRequest, progress: Progress
) -> tuple[list[PIL.Image.Image], tuple[int, int], float]:
    """Return the working copies of all frames, the size of the originals, and the scale."""
    progress.stage(DECODING, len(request.frames))
    copies: list[PIL.Image.Image] = []
    size, scale = (0, 0), 1.0
    for field, picture in _decoded(request):
        if copies and picture.size != size:
            raise InvalidArgument(
                field,
                f"frame {len(copies)} is {picture.width} x {picture.height} pixels, "
                f"but the first is {size[0]} x {size[1]}",
            )
        size = picture.size
        copy, scale = working_copy(picture, LONGEST)
        copies.append(copy)
        progress.step()
    if len(copies) < 2:
        raise InvalidArgument("image.content", "shows one picture, at least 2 are required")
    return copies, size, scale


def _decoded(request: TrackRequest) -> Iterator[tuple[str, PIL.Image.Image]]:
    if request.image is not None:
        for picture in frames(request.image, "image"):
            yield "image.content", picture
    for index, frame in enumerate(request.frames):
        yield f"frames[{index}].content", decode(frame, f"frames[{index}]")


def _inside(box: BoundingBox | None, size: tuple[int, int]) -> BoundingBox:
    if box is None:
        raise InvalidArgument("box", "is required")
    if not (0 <= box.x <= size[0] - box.width and 0 <= box.y <= size[1] - box.height):
        raise InvalidArgument(
            "box",
            f"must lie inside the frame of {size[0]} x {size[1]} pixels, "
            f"got {box.width} x {box.height} at ({box.x}, {box.y})",
        )
    return box
