"""The servers that the kit judges: the rows of the table in the documentation.

``python -m tests.conform.servers`` prints the table.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

import lro.grpc
from lro.asgi import OperationsApp
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.wsgi import OperationsApp as WsgiApp
from lro_conform import Check, ConformanceReport, Level, Verdict
from lro_conform._report import as_text
from lro_conform.server._bench import USUAL_PACE, Pace
from lro_conform.server._grpc import GrpcTarget
from lro_conform.server._http import HttpTarget
from lro_conform.server._judge import CHECKS, judge
from lro_conform.server._starts import FunctionStarter, HttpStarter, RequestTemplate, StartKind
from tests.conform.handmade import Gateway, Operations, serving_handmade
from tests.conform.works import TEMPLATES, serving_works
from tests.grpc.serving import on_asyncio, serving
from tests.http.servers import uvicorn_serving, waitress_serving
from tests.services.postgres import shared_server, store_maker

THREADS: Final = 16
"""The number of threads of a WSGI server, in which each wait holds a thread."""

UNHURRIED: Final = attrs.evolve(USUAL_PACE, end=120.0, slack=30.0)
"""The pace for servers that share a busy machine with the kit."""

Hook: TypeAlias = Callable[[StartKind], Any]


@attrs.frozen
class Served:
    """The address of a server, and how to start operations: by requests or by a function."""

    address: str
    templates: dict[StartKind, RequestTemplate] | None = None
    start: Hook | None = None

    def judge(self, pace: Pace, checks: Collection[Check] = CHECKS) -> ConformanceReport:
        """Run these checks against the server, and return the report."""
        return asyncio.run(self._judge(pace, checks, call_seconds=60))

    async def _judge(
        self, pace: Pace, checks: Collection[Check], call_seconds: float
    ) -> ConformanceReport:
        kind = HttpTarget if self.address.startswith("http") else GrpcTarget
        target = kind(address=self.address, call_seconds=call_seconds)
        starter: Any = FunctionStarter(self.start)
        if self.templates is not None:
            starter = HttpStarter(target, self.templates)
        try:
            return await judge(target, target.log, starter, checks=checks, pace=pace)
        finally:
            await target.aclose()


@contextlib.contextmanager
def store_of(kind: str) -> Iterator[Any]:
    """Yield an empty store of this kind."""
    with tempfile.TemporaryDirectory() as folder:
        match kind:
            case "memory":
                yield MemoryStore()
            case "SQLite":
                yield SQLiteStore(Path(folder, "operations.db"))
            case _:
                yield store_maker(shared_server())()


@contextlib.contextmanager
def works_over(edge: str, store: str) -> Iterator[Served]:
    """Serve the small service of the tests."""
    with store_of(store) as kept, serving_works(kept) as works:
        match edge:
            case "ASGI":
                with uvicorn_serving(
                    OperationsApp(works.service, starts=True), lifespan="off"
                ) as port:
                    yield Served(f"http://127.0.0.1:{port}", TEMPLATES)
            case "WSGI":
                with waitress_serving(WsgiApp(works.service, starts=True), THREADS) as port:
                    yield Served(f"http://127.0.0.1:{port}", TEMPLATES)
            case _:
                with serving("asyncio", works.service) as address:
                    yield Served(address, start=works.start)


def picture(side: int) -> str:
    """Return a square picture of noise in Base64."""
    import numpy as np
    import PIL.Image

    file, noise = io.BytesIO(), np.random.default_rng(1).integers(0, 255, (side, side), np.uint8)
    PIL.Image.fromarray(noise).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def analysis_requests() -> dict[StartKind, tuple[str, dict[str, Any]]]:
    """Return requests whose work takes long, ends soon, or fails on a truncated picture."""
    large, small = ({"content": picture(side), "mimeType": "image/png"} for side in (256, 64))
    cut = {"content": small["content"][: len(small["content"]) // 8 * 4], "mimeType": "image/png"}
    return {
        StartKind.LONG: ("explain", {"image": large, "sampleCount": 10_000, "segmentCount": 256}),
        StartKind.SOON: ("score", {"image": small}),
        StartKind.FAIL: ("score", {"image": cut}),
    }


@contextlib.contextmanager
def analysis_over(edge: str, store: str) -> Iterator[Served]:
    """Serve the reference server, ``examples.analysis``."""
    from examples.analysis.methods import register
    from examples.analysis.server import MAX_BODY, PARENTS, make_app
    from examples.analysis.server import _start as start_of

    requests = analysis_requests()
    templates = {
        kind: RequestTemplate("POST", f"/v1/{verb}", json.dumps(body))
        for kind, (verb, body) in requests.items()
    }
    with store_of(store) as kept:
        service = lro.Service(kept, ThreadExecutor(4), domain="analysis.test")
        try:
            match edge:
                case "ASGI":
                    with uvicorn_serving(make_app(service), lifespan="off") as port:
                        yield Served(f"http://127.0.0.1:{port}", templates)
                case "WSGI":
                    starts = {
                        f"/v1/{verb}": start_of(verb, one)
                        for verb, one in register(service).items()
                    }
                    app = WsgiApp(service, starts=starts, parents=PARENTS, max_body=MAX_BODY)
                    with waitress_serving(app, THREADS) as port:
                        yield Served(f"http://127.0.0.1:{port}", templates)
                case _:
                    methods = register(service)

                    async def start(kind: StartKind) -> str:
                        verb, body = requests[kind]
                        request = service.types.load(body, methods[verb].spec.request)
                        return str((await asyncio.to_thread(methods[verb].start, request)).name)

                    with on_asyncio(lambda server: lro.grpc.add_to(server, service)) as address:
                        yield Served(address, start=start)
        finally:
            service.close(timedelta(0))


@contextlib.contextmanager
def handmade_over(edge: str, _: str) -> Iterator[Served]:
    """Serve the handmade server."""
    servicer = Operations()
    if edge == "gRPC":
        with serving_handmade(servicer) as address:
            yield Served(address, start=servicer.start_name)
    else:
        with uvicorn_serving(Gateway(servicer), lifespan="off") as port:
            yield Served(f"http://127.0.0.1:{port}", start=servicer.start_name)


Serving: TypeAlias = Callable[[str, str], contextlib.AbstractContextManager[Served]]
STORES: Final = ("memory", "SQLite", "PostgreSQL")
SERVERS: Final[dict[tuple[str, str, str], Serving]] = {
    **{
        ("the reference server", edge, store): analysis_over
        for edge in ("ASGI", "WSGI", "gRPC")
        for store in STORES
    },
    **{
        ("a small service on lro", edge, store): works_over
        for edge in ("ASGI", "WSGI", "gRPC")
        for store in STORES
    },
    ("a servicer by hand", "gRPC", "a dict"): handmade_over,
    ("the same behind a gateway", "HTTP", "a dict"): handmade_over,
}
"""The servers, by name, edge and store."""


def counts(report: ConformanceReport) -> str:
    """Return the counts of each level as cells of the table."""
    cells = []
    for level in Level:
        numbers = report.number(level)
        left = numbers[Verdict.ABSENT] + numbers[Verdict.SKIPPED]
        cells.append(f"{numbers[Verdict.PASSED]} / {numbers[Verdict.FAILED]} / {left}")
    return " | ".join(cells)


def row(key: tuple[str, str, str], report: ConformanceReport) -> str:
    """Return the table row of a server, without the duration of its run."""
    return f"| {' | '.join(key)} | {counts(report)} |"


def main() -> None:
    """Judge all servers, and print the table."""
    logging.disable(logging.CRITICAL)  # some operations fail on purpose
    for key, made in SERVERS.items():
        with made(*key[1:]) as served:
            report = served.judge(UNHURRIED)
        print(row(key, report), flush=True)
        print(as_text(report), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
