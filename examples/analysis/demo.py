"""The demo: start a server, run ten analyses through the client, and show the results."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.analysis import messages as m
from examples.analysis.messages import AnalysisMetadata, BoundingBox, Image
from examples.analysis.pictures import array, as_png, decode
from examples.analysis.router import NAMES
from lro import TypeRegistry
from lro_client import Client, OperationCancelled, OperationHandle

PICTURES: Final = ("astronaut.png", "chelsea.png", "coffee.png", "coins.png", "rocket.jpg")
PLACES: Final = ("image", "reference", "third picture")  # a third picture is refused

Request = Any
Summary = Callable[[Any], str]


def picture(name: str) -> Image:
    """Read a sample picture of scikit-image."""
    return Image(content=(files("skimage") / "data" / name).read_bytes())


def requests() -> Iterator[tuple[Request, Summary]]:
    """Yield ten requests, each with a function that summarises the result in one line."""
    astronaut, camera = picture("astronaut.png"), picture("camera.png")
    yield m.DetectRequest(image=astronaut), _faces
    same = m.VerifyRequest(image=astronaut, reference=astronaut)
    yield same, lambda r: f"same scene: {r.verified}, {r.inlier_count} points"
    left, right = picture("motorcycle_left.png"), picture("motorcycle_right.png")
    pair = m.CompareRequest(image=left, reference=right)
    yield pair, lambda r: f"SSIM {r.ssim:.3f}, {r.changed_fraction:.1%} differs"
    coins = m.SegmentRequest(image=picture("coins.png"))
    yield coins, lambda r: f"{r.region_count} coins on a table"
    grass = m.ClassifyRequest(image=picture("grass.png"))
    yield grass, lambda r: f"{r.label} ({r.score:.3f}), known: {r.known}"
    yield _signed(camera), lambda r: f"authentic: {r.authentic}"
    yield m.ScoreRequest(image=camera), lambda r: f"{r.overall:.1f} of 100, blur {r.blur:.2f}"
    brick = m.ExplainRequest(image=picture("brick.png"))
    yield brick, lambda r: f"{r.label}, says a model of {len(r.regions)} parts"
    yield m.ExtractRequest(image=picture("coffee.png")), lambda r: f"mostly {r.palette[0].color}"
    box = BoundingBox(x=300, y=200, width=60, height=60)
    yield m.TrackRequest(frames=(left, right), box=box), _positions


def _signed(image: Image) -> Request:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    signature = key.sign(image.content)
    return m.AuthenticateRequest(image=image, signature=signature, public_keys=(public,))


def _faces(response: m.DetectResponse) -> str:
    return f"{len(response.faces)} face, at {_box(response.faces[0].bounding_box)}"


def _positions(response: m.TrackResponse) -> str:
    last = response.positions[-1].bounding_box
    return f"found in {response.found_count} frames, moved to {_box(last)}"


def sample(verb: str) -> Any:
    """Return a verb's request from the demo, or another request if that would show too little."""
    names = ("astronaut", "brick", "coffee", "grass")
    astronaut, brick, coffee, grass = (decode(picture(f"{one}.png"), one) for one in names)
    match verb:
        case "verify":
            detail = array(coffee.rotate(25).crop((190, 110, 450, 290)))
            return m.VerifyRequest(image=as_png(array(coffee)), reference=as_png(detail))
        case "compare":
            after = array(coffee).copy()
            after[40:130, 40:130] = after[60:150, 380:470]
            return m.CompareRequest(image=as_png(after), reference=as_png(array(coffee)))
        case "explain":
            both = np.hstack([array(grass)[256:, :256], array(brick)[256:, 256:]])
            return m.ExplainRequest(image=as_png(both), segment_count=144)
        case "track":
            corners = [(60 + 5 * abs(step % 16 - 8), 2 * step) for step in range(30)]
            views = [astronaut.crop((x, y, x + 240, y + 240)) for x, y in corners]
            box = BoundingBox(x=77, y=66, width=95, height=95)
            return m.TrackRequest(frames=tuple(as_png(array(view)) for view in views), box=box)
    return [request for request, _ in requests()][NAMES.index(verb)]


def request_of(verb: str, files: Sequence[Image], options: str = "{}") -> Any:
    """Return a verb's sample request, with these pictures, if any, and these fields from JSON."""
    types, found, fields = TypeRegistry(), sample(verb), json.loads(options)
    body, pictures = types.dump(found), [types.dump(file) for file in files]
    if not isinstance(body, dict) or not isinstance(fields, dict):
        raise ValueError(f"options must be a JSON object, got {options}")
    if files:
        film = verb == "track" and len(files) > 1
        given = {"frames": pictures} if film else dict(zip(PLACES, pictures, strict=False))
        body = {name: body[name] for name in body.keys() - {*PLACES, "frames"}} | given
    return types.load({**body, **fields}, type(found))


def slow_request() -> Request:
    """Return a request that takes some seconds: it searches wide areas of 32 small frames."""
    squares = np.random.default_rng(0).integers(0, 255, (70, 70), dtype=np.uint8)
    scene = squares.repeat(10, axis=0).repeat(10, axis=1)
    frames = tuple(as_png(np.roll(scene, shift, axis=1)) for shift in range(32))
    box = BoundingBox(x=300, y=300, width=80, height=80)
    return m.TrackRequest(frames=frames, box=box, search_margin_px=300)


def main(arguments: list[str]) -> None:
    """Run the demo; exit with status 0 if all ten analyses succeed."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.analysis demo",
        description="Start a server, and analyse ten pictures through the client.",
    )
    parser.add_argument("--open", action="store_true", help="show the demo page until Ctrl-C")
    console = Console()
    if parser.parse_args(arguments).open:
        with suppress(KeyboardInterrupt), serving() as url:
            console.print(f"The demo page is at [bold]{url}/[/]; Ctrl-C ends the server")
            webbrowser.open(f"{url}/")
            while True:  # a signal that comes just before a sleep does not interrupt the sleep
                time.sleep(1)
        return
    with serving() as url, Client(url) as client:
        console.print(f"The reference server answers at [bold]{url}[/]\n")
        _ten(client, console)
        _cancel(client, console)
        _wait(client, console)


def _ten(client: Client, console: Console) -> None:
    results = Table("endpoint", "result", title="Ten analyses")
    with _progress(console) as progress:
        for verb, (request, summary) in zip(NAMES, requests(), strict=True):
            bar = progress.add_task(verb, total=100, stage="")
            operation = start(client, verb, request)
            for update in operation.updates(timeout=120, every=0.1):
                seen = update.metadata
                if seen is not None:
                    progress.update(bar, completed=seen.progress_percent, stage=seen.stage)
            results.add_row(f"POST /v1/{verb}", summary(operation.result()))
    console.print(results)


def start(client: Client, verb: str, request: Request) -> OperationHandle[Any, AnalysisMetadata]:
    """Start an analysis on the server."""
    response = getattr(m, f"{verb.capitalize()}Response")
    return client.start(f"/v1/{verb}", request, response=response, metadata=AnalysisMetadata)


def _cancel(client: Client, console: Console) -> None:
    operation = start(client, "track", slow_request())
    for update in operation.updates(timeout=120, every=0.1):
        if update.metadata is not None and update.metadata.progress_percent > 0:
            operation.cancel()
            break
    try:
        operation.result(timeout=60)
    except OperationCancelled as exc:
        seen = operation.metadata
        percent = seen.progress_percent if seen is not None else 0
        console.print(f"\nCancelled a long track at {percent} %: it ended {exc.code.name}")


def _wait(client: Client, console: Console) -> None:
    operation = start(client, "score", m.ScoreRequest(image=picture("retina.jpg")))
    began = time.monotonic()
    result = operation.result(timeout=60)
    took = time.monotonic() - began
    console.print(f"Waited {took:.2f} s in one call: retina.jpg scores {result.overall:.1f}")
    done = sum(1 for _ in client.list(filter='state() = SUCCEEDED AND metadata.verb = "score"'))
    console.print(f"The server lists {done} finished scores.")


def _box(box: BoundingBox) -> str:
    return f"({box.x}, {box.y}, {box.width}, {box.height})"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[stage]:<12}"),
        TimeElapsedColumn(),
        console=console,
    )


@contextmanager
def serving() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "operations.db")
        command = [sys.executable, "-m", "examples.analysis", "serve", "--port", "0"]
        server = subprocess.Popen(
            [*command, "--store", f"sqlite:///{database}"], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        with server.stdout:
            try:
                url = server.stdout.readline().strip()
                if not url:
                    raise SystemExit("the reference server did not start")
                yield url
            finally:
                server.terminate()
                server.wait(timeout=30)
