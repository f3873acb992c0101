"""Sample pictures that ship inside scikit-image, files made of arrays, and recorded progress."""

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
    """Progress that records its calls, and is cancelled at the given call (from 0)."""

    def __init__(self, cancel_at: int = -1) -> None:
        self.calls: list[tuple[str, int] | int] = []
        self._cancel_at = cancel_at

    def stage(self, name: str, total: int = 0) -> None:
        self._note((name, total))

    def step(self, units: int = 1) -> None:
        self._note(units)

    @property
    def stages(self) -> list[str]:
        """The names of the stages that were entered."""
        return [call[0] for call in self.calls if isinstance(call, tuple)]

    def units(self, stage: str) -> tuple[int, int]:
        """Units done and units announced of a stage."""
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
    """The reference server, for tests that mind only their own operations."""
    server = Server.on(tmp_path_factory.mktemp("server") / "operations.db")
    yield server
    server.close()


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A reference server where nothing may ever be stored."""
    server = Server.on(tmp_path_factory.mktemp("empty") / "operations.db")
    yield server
    server.close()


@attrs.frozen
class Analysis:
    """An analysis of its sample as a polling client saw it: a reply, metadata, the response."""

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
    """Posts a bad request (JSON, or the bytes of a body); gives the field that is complained of."""

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
    """A bundled file as it is."""
    return Image(content=(resources.files("skimage") / "data" / name).read_bytes())


@functools.cache
def opened(name: str) -> PIL.Image.Image:
    """A bundled picture, to make others from; do not change it in place."""
    picture = PIL.Image.open(io.BytesIO(encoded(name).content))
    picture.load()
    return picture


def levels(name: str) -> npt.NDArray[np.uint8]:
    """The pixels of a bundled picture, to make others from."""
    return np.array(opened(name))


def saved(
    picture: PIL.Image.Image | npt.NDArray[np.generic], form: str = "PNG", **options: object
) -> Image:
    """A picture or an array as a file of this format."""
    made = PIL.Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    file = io.BytesIO()
    made.save(file, form, **options)
    return Image(content=file.getvalue())


def film(form: str, pictures: Sequence[PIL.Image.Image], **options: object) -> Image:
    """Pictures as the frames or pages of one file."""
    return saved(pictures[0], form, save_all=True, append_images=pictures[1:], **options)


def oriented(orientation: int) -> PIL.Image.Exif:
    """The tag that says which side of a picture is up; 6: it is turned clockwise when shown."""
    exif = PIL.Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def flat(width: int, height: int, mode: str = "RGB", color: object = None) -> Image:
    return saved(PIL.Image.new(mode, (width, height), color or 0))


def refused(call: Callable[[], object]) -> InvalidArgument:
    """The complaint of a call that must fail."""
    with pytest.raises(InvalidArgument) as caught:
        call()
    return caught.value


def through_json(message: object) -> object:
    """The message as it arrives at the other side."""
    text = json.dumps(TYPES.dump(message), allow_nan=False)
    return TYPES.load(json.loads(text), type(message))


def answer(request: Any, progress: Recorder | None = None) -> Any:
    """The response to a request, once it has passed its check, as it arrives at the other side."""
    verb = type(request).__name__.removesuffix("Request").lower()
    module = import_module(f"examples.analysis.verbs.{verb}")
    module.check(request)
    found = getattr(module, verb)(request, progress or Recorder())
    assert through_json(found) == found  # and no number in it is NaN or infinite
    return found


def cancelled_everywhere(work: Callable[[Recorder], object], calls: Sequence[int]) -> None:
    """Check that a cancellation at each of these calls ends the work there and then."""
    for call in calls:
        progress = Recorder(cancel_at=call)
        with pytest.raises(Cancelled):
            work(progress)
        assert len(progress.calls) == call


def iou(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Intersection over union of two boxes (x, y, width, height)."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = one, other
    wide = max(0.0, min(ax + aw, bx + bw) - max(ax, bx))
    high = max(0.0, min(ay + ah, by + bh) - max(ay, by))
    return wide * high / (aw * ah + bw * bh - wide * high)
