"""The main job from end to end: a real server, ten real analyses through the client, on screen."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from PIL import Image as Pillow
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.analysis import messages as m
from examples.analysis.messages import AnalysisMetadata, BoundingBox, Image
from lro_client import Client, OperationCancelled

Request = Any


def picture(name: str) -> Image:
    """A picture that scikit-image brings along."""
    return Image(content=(files("skimage") / "data" / name).read_bytes())


def requests() -> Iterator[tuple[str, Request, type[Any], Any]]:
    """The ten calls: verb, request, response class, and how its result reads in a line."""
    astronaut, camera = picture("astronaut.png"), picture("camera.png")
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    box = BoundingBox(x=300, y=200, width=60, height=60)
    stereo = (picture("motorcycle_left.png"), picture("motorcycle_right.png"))
    yield (
        "detect",
        m.DetectRequest(image=astronaut),
        m.DetectResponse,
        lambda r: f"{len(r.faces)} face(s), the first at {_box(r.faces[0].bounding_box)}",
    )
    yield (
        "verify",
        m.VerifyRequest(image=astronaut, reference=astronaut),
        m.VerifyResponse,
        (lambda r: f"same scene: {r.verified}, {r.inlier_count} of {r.match_count} points agree"),
    )
    yield (
        "compare",
        m.CompareRequest(image=stereo[0], reference=stereo[1]),
        m.CompareResponse,
        (lambda r: f"SSIM {r.ssim:.3f}, {r.changed_fraction:.1%} of the pixels differ"),
    )
    yield (
        "segment",
        m.SegmentRequest(image=picture("coins.png")),
        m.SegmentResponse,
        (lambda r: f"{r.region_count} coins, the largest of {r.regions[0].area_px} pixels"),
    )
    yield (
        "classify",
        m.ClassifyRequest(image=picture("grass.png")),
        m.ClassifyResponse,
        (lambda r: f"{r.label} ({r.score:.3f}), novelty {r.novelty:.2f}"),
    )
    yield (
        "authenticate",
        m.AuthenticateRequest(
            image=camera, signature=key.sign(camera.content), public_keys=(public,)
        ),
        m.AuthenticateResponse,
        lambda r: f"authentic: {r.authentic}, by key {r.key_fingerprint[:8]}",
    )
    yield (
        "score",
        m.ScoreRequest(image=camera),
        m.ScoreResponse,
        (lambda r: f"{r.overall:.1f} of 100, noise {r.noise_sigma:.2f}, blur {r.blur:.2f}"),
    )
    yield (
        "explain",
        m.ExplainRequest(image=picture("brick.png")),
        m.ExplainResponse,
        (lambda r: f"{r.label}, because of {len(r.regions)} parts; fidelity {r.fidelity:.2f}"),
    )
    yield (
        "extract",
        m.ExtractRequest(image=picture("coffee.png")),
        m.ExtractResponse,
        (lambda r: f"{r.palette[0].color} leads, fingerprint {r.fingerprint.perceptual_hash}"),
    )
    yield (
        "track",
        m.TrackRequest(frames=stereo, box=box),
        m.TrackResponse,
        (
            lambda r: (
                f"found in {r.found_count} of {r.frame_count} frames, moved to "
                f"{_box(r.positions[-1].bounding_box)}"
            )
        ),
    )


def slow_request() -> Request:
    """A request that takes seconds: 32 frames, a wide search."""
    scene = np.random.default_rng(0).integers(0, 255, (700, 700), dtype=np.uint8)
    frames = []
    for shift in range(32):
        file = io.BytesIO()
        Pillow.fromarray(np.roll(scene, shift, axis=1)).save(file, "BMP")
        frames.append(Image(content=file.getvalue()))
    box = BoundingBox(x=300, y=300, width=80, height=80)
    return m.TrackRequest(frames=tuple(frames), box=box, search_margin_px=300)


def main(_: list[str]) -> None:
    """Run the demo; ends with exit status 0 when all ten have given their result."""
    console = Console()
    with _server() as url, Client(url) as client:
        console.print(f"The reference server answers at [bold]{url}[/]\n")
        _ten(client, console)
        _cancel(client, console)
        _wait(client, console)


def _ten(client: Client, console: Console) -> None:
    results = Table("endpoint", "result", title="Ten analyses")
    with _progress(console) as progress:
        for verb, request, response, tell in requests():
            bar = progress.add_task(verb, total=100, stage="")
            operation = client.start(
                f"/v1/{verb}", request, response=response, metadata=AnalysisMetadata
            )
            for update in operation.updates(timeout=120, every=0.1):
                seen = update.metadata
                if seen is not None:
                    progress.update(bar, completed=seen.progress_percent, stage=seen.stage)
            results.add_row(f"POST /v1/{verb}", tell(operation.result()))
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
        console.print(f"\nCancelled at {percent} %: {exc}")


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
def _server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "operations.db")
        command = [sys.executable, "-m", "examples.analysis", "serve"]
        server = subprocess.Popen([*command, "--port", str(port), "--database", database])
        url = f"http://127.0.0.1:{port}"
        try:
            _await_health(url, server)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=30)


def _await_health(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{url}/v1/health").json()["ok"]:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise SystemExit("the reference server did not start")
