"""The main job from end to end: a real server, ten real analyses through the client, on screen."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.analysis import messages as m
from examples.analysis.messages import AnalysisMetadata, BoundingBox, Image
from examples.analysis.pictures import as_png
from examples.analysis.router import NAMES
from lro_client import Client, OperationCancelled

Request = Any
Summary = Callable[[Any], str]


def picture(name: str) -> Image:
    """A picture that scikit-image brings along."""
    return Image(content=(files("skimage") / "data" / name).read_bytes())


def requests() -> Iterator[tuple[Request, type[Any], Summary]]:
    """The ten calls: request, response class, and the function that puts its result into a line."""
    astronaut, camera = picture("astronaut.png"), picture("camera.png")
    yield m.DetectRequest(image=astronaut), m.DetectResponse, _faces
    same = m.VerifyRequest(image=astronaut, reference=astronaut)
    yield same, m.VerifyResponse, lambda r: f"same scene: {r.verified}, {r.inlier_count} points"
    left, right = picture("motorcycle_left.png"), picture("motorcycle_right.png")
    pair = m.CompareRequest(image=left, reference=right)
    yield pair, m.CompareResponse, lambda r: f"SSIM {r.ssim:.3f}, {r.changed_fraction:.1%} differs"
    coins = m.SegmentRequest(image=picture("coins.png"))
    yield coins, m.SegmentResponse, lambda r: f"{r.region_count} coins on a table"
    grass = m.ClassifyRequest(image=picture("grass.png"))
    yield grass, m.ClassifyResponse, lambda r: f"{r.label} ({r.score:.3f}), known: {r.known}"
    signed = _signed(camera)
    yield signed, m.AuthenticateResponse, lambda r: f"authentic: {r.authentic}"
    photo = m.ScoreRequest(image=camera)
    yield photo, m.ScoreResponse, lambda r: f"{r.overall:.1f} of 100, blur {r.blur:.2f}"
    brick = m.ExplainRequest(image=picture("brick.png"))
    yield brick, m.ExplainResponse, lambda r: f"{r.label}, says a model of {len(r.regions)} parts"
    coffee = m.ExtractRequest(image=picture("coffee.png"))
    yield coffee, m.ExtractResponse, lambda r: f"mostly {r.palette[0].color}"
    box = BoundingBox(x=300, y=200, width=60, height=60)
    yield m.TrackRequest(frames=(left, right), box=box), m.TrackResponse, _positions


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


def slow_request() -> Request:
    """A request that takes seconds: 32 frames, which make small files, and a wide search."""
    squares = np.random.default_rng(0).integers(0, 255, (70, 70), dtype=np.uint8)
    scene = squares.repeat(10, axis=0).repeat(10, axis=1)
    frames = []
    for shift in range(32):
        frames.append(as_png(np.roll(scene, shift, axis=1)))
    box = BoundingBox(x=300, y=300, width=80, height=80)
    return m.TrackRequest(frames=tuple(frames), box=box, search_margin_px=300)


def main(arguments: list[str]) -> None:
    """Run the demo; ends with exit status 0 when all ten have given their result."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.analysis demo",
        description="Serve for a while, and have ten pictures analysed through the client.",
    )
    parser.add_argument("--open", action="store_true", help="show the demo page until Ctrl-C")
    console = Console()
    if parser.parse_args(arguments).open:
        with suppress(KeyboardInterrupt), serving() as url:
            console.print(f"The demo page is at [bold]{url}/[/]; Ctrl-C ends the server")
            webbrowser.open(f"{url}/")
            threading.Event().wait()
        return
    with serving() as url, Client(url) as client:
        console.print(f"The reference server answers at [bold]{url}[/]\n")
        _ten(client, console)
        _cancel(client, console)
        _wait(client, console)


def _ten(client: Client, console: Console) -> None:
    results = Table("endpoint", "result", title="Ten analyses")
    with _progress(console) as progress:
        for verb, (request, response, summary) in zip(NAMES, requests(), strict=True):
            bar = progress.add_task(verb, total=100, stage="")
            operation = client.start(
                f"/v1/{verb}", request, response=response, metadata=AnalysisMetadata
            )
            for update in operation.updates(timeout=120, every=0.1):
                seen = update.metadata
                if seen is not None:
                    progress.update(bar, completed=seen.progress_percent, stage=seen.stage)
            results.add_row(f"POST /v1/{verb}", summary(operation.result()))
    console.print(results)


def _cancel(client: Client, console: Console) -> None:
    operation = client.start(
        "/v1/track", slow_request(), response=m.TrackResponse, metadata=AnalysisMetadata
    )
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
    request = m.ScoreRequest(image=picture("retina.jpg"))
    operation = client.start(
        "/v1/score", request, response=m.ScoreResponse, metadata=AnalysisMetadata
    )
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
