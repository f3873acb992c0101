"""Pictures from scikit-image or made from arrays, reference servers, and a progress recorder."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, resources
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from PIL import ExifTags

from examples.analysis import messages
from examples.analysis.demo import sample
from examples.analysis.messages import Image
from examples.analysis.router import NAMES
from lro import Cancelled, InvalidArgument
from tests.full.examples.serving import TYPES, Json, Server, complaint


class Recorder:
    """Progress that records its calls, and raises Cancelled at the given call (counted from 0)."""

    def __init__(self, cancel_at: int = -1) -> None:
        self.calls: list[tuple[str, int] | int] = []
        self._cancel_at = cancel_at

    def stage(self, name: str, total: int = 0) -> None:
        self._note((name, total))

    def step(self, units: int = 1) -> None:
        self._note(units)

    @property
    def stages(self) -> list[str]:
        """Return the names of the stages that were entered."""
        return [call[0] for call in self.calls if isinstance(call, tuple)]

    def units(self, stage: str) -> tuple[int, int]:
        """Return how many units of a stage were done, and how many were announced."""
        done = total = 0
        inside = False
        for call in self.calls:
            if isinstance(call, tuple):
                inside = call[0] == stage
                total = call[1] if inside else total
            elif inside:
                done += call
        return done, total

    def _note(self, call: tuple[str, int] | int) -> None:
        if len(self.calls) == self._cancel_at:
            raise Cancelled
        self.calls.append(call)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a reference server that tests share; each test may use only its own operations."""
    server = Server.on(tmp_path_factory.mktemp("server") / "operations.db")
    yield server
    server.close()


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a reference server on which only invalid requests are made, so that nothing is stored."""
    server = Server.on(tmp_path_factory.mktemp("empty") / "operations.db")
    yield server
    server.close()


@attrs.frozen
class Analysis:
    """The analysis of a sample as a client sees it: first reply, polled metadata, response."""

    request: Any
    first: Json
    seen: Sequence[Json]
    response: Json
    result: Any


@pytest.fixture(scope="session")
def analyses(server: Server) -> dict[str, Analysis]:
    requests = {verb: sample(verb) for verb in NAMES}
    started = {verb: server.start(verb, request) for verb, request in requests.items()}
    found = {}
    for verb, first in started.items():
        polled: list[Json] = []
        polled.append(server.finish(first["name"], polled.append))
        response = polled[-1]["response"]
        kind = getattr(messages, f"{verb.capitalize()}Response")
        result = TYPES.load({key: response[key] for key in response.keys() - {"@type"}}, kind)
        seen = [one["metadata"] for one in polled]
        found[verb] = Analysis(requests[verb], first, seen, response, result)
    return found


Refused = Callable[..., str]


@pytest.fixture
def refused_by(empty: Server) -> Refused:
    """Return a function that posts an invalid request and returns the field named in the error."""

    def post(verb: str, body: object, content_type: str = "application/json") -> str:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": content_type}
        reply = empty.call("POST", f"/v1/{verb}", content=content, headers=headers)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
        assert reply.headers["cache-control"] == "no-store"
        assert empty.listed() == []
        return complaint(error)

    return post


@functools.cache
def encoded(name: str) -> Image:
    """Return a picture that scikit-image bundles, as its unchanged file."""
    return Image(content=(resources.files("skimage") / "data" / name).read_bytes())


@functools.cache
def opened(name: str) -> PIL.Image.Image:
    """Return a bundled picture, opened; do not change it in place."""
    picture = PIL.Image.open(io.BytesIO(encoded(name).content))
    picture.load()
    return picture


def levels(name: str) -> npt.NDArray[np.uint8]:
    """Return the pixels of a bundled picture."""
    return np.array(opened(name))


def saved(
    picture: PIL.Image.Image | npt.NDArray[np.generic], form: str = "PNG", **options: object
) -> Image:
    """Save a picture or an array as a file of this format."""
    made = PIL.Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    file = io.BytesIO()
    made.save(file, form, **options)
    return Image(content=file.getvalue())


def film(form: str, pictures: Sequence[PIL.Image.Image], **options: object) -> Image:
    """Save pictures as the frames or pages of one file."""
    return saved(pictures[0], form, save_all=True, append_images=pictures[1:], **options)


def oriented(orientation: int) -> PIL.Image.Exif:
    """Return EXIF data with this orientation; with 6, viewers turn the picture clockwise."""
    exif = PIL.Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def flat(width: int, height: int, mode: str = "RGB", color: object = None) -> Image:
    return saved(PIL.Image.new(mode, (width, height), color or 0))


def refused(call: Callable[[], object]) -> InvalidArgument:
    """Return the InvalidArgument error that a call raises."""
    with pytest.raises(InvalidArgument) as caught:
        call()
    return caught.value


def through_json(message: object) -> object:
    """Return the message as a client or server receives it through JSON."""
    text = json.dumps(TYPES.dump(message), allow_nan=False)
    return TYPES.load(json.loads(text), type(message))


def answer(request: Any, progress: Recorder | None = None) -> Any:
    """Check and analyse a request; return the response as it is received through JSON."""
    verb = type(request).__name__.removesuffix("Request").lower()
    module = import_module(f"examples.analysis.verbs.{verb}")
    module.check(request)
    found = getattr(module, verb)(request, progress or Recorder())
    assert through_json(found) == found  # fails if a number is NaN or infinite
    return found


def cancelled_everywhere(work: Callable[[Recorder], object], calls: Sequence[int]) -> None:
    """Check that the work ends at once if it is cancelled at any of these progress calls."""
    for call in calls:
        progress = Recorder(cancel_at=call)
        with pytest.raises(Cancelled):
            work(progress)
        assert len(progress.calls) == call


def iou(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Return the intersection over union of two boxes (x, y, width, height)."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = one, other
    wide = max(0.0, min(ax + aw, bx + bw) - max(ax, bx))
    high = max(0.0, min(ay + ah, by + bh) - max(ay, by))
    return wide * high / (aw * ah + bw * bh - wide * high)
