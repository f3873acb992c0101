"""The console's page in Chromium: first load, 20 open idle pages, and a flood of events.

Targets: first rows within 300 ms with the CPU slowed 4 times; 20 idle pages cost the server at most
5 % of a core, and each sends at most 18 requests a minute; 10,000 events in 10 s cause no frame
longer than 100 ms. ``--keep FOLDER`` keeps the SQLite file of 10^5 operations in that folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from bench import million
from bench.console import Client
from bench.filling import RunResponse
from bench.load import Server
from bench.measure import Absent, Figure, alone
from bench.serving import serve
from lro.asgi import EdgeApp, OperationsApp
from lro.console import ConsoleEdge
from lro.executors.asyncio import AsyncioExecutor
from lro.stores.memory import MemoryStore

PARSER = argparse.ArgumentParser(prog="python -m bench browser")
PARSER.add_argument(
    "--parts", nargs="+", choices=("load", "idle", "flood"), default=["load", "idle", "flood"]
)
PARSER.add_argument("--size", type=int, default=100_000)
PARSER.add_argument("--keep", type=Path, help="the folder in which the SQLite file is kept")

LOADS: Final = 9
PAGES: Final = 20
IDLE_SECONDS: Final = 60
SLOWER: Final = 4
REPORTING: Final = 100
FLOOD_SECONDS: Final = 10
PATH: Final = "/v1/works:run"
SECONDS_BETWEEN: Final = {"flood": 0.1, "idle": 2.0}

DRAWN: Final = """
    new MutationObserver((_, observer) => {
        if (!document.querySelector("table.ops tbody tr")) return;
        observer.disconnect();
        requestAnimationFrame(() => setTimeout(() => { window.drawn = performance.now(); }));
    }).observe(document, { childList: true, subtree: true });
"""
"""JavaScript that records when the first rows are on the screen."""

WATCHED: Final = """
    window.events = 0; window.long = []; window.frames = [];
    const parse = JSON.parse;
    JSON.parse = (text, ...rest) => {
        if (text.startsWith('{"name"')) window.events += 1;
        return parse(text, ...rest);
    };
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.long.push(entry.duration);
    }).observe({ type: "longtask", buffered: true });
    let last = performance.now();
    const frame = (now) => {
        window.frames.push(now - last);
        last = now;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
"""
"""JavaScript that counts events, and records long tasks and the times between frames."""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run the system's Chromium without a window."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise Absent("Chromium is not on the PATH")
    with (
        sync_playwright() as started,
        started.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser,
    ):
        yield browser


def first_loads(browser: Any, url: str, slower: int) -> Iterator[Figure]:
    """Measure the time until the first rows are drawn, with an empty browser cache."""
    times, sizes = [], []
    for _ in range(LOADS):
        with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
            page = context.new_page()
            page.context.new_cdp_session(page).send(
                "Emulation.setCPUThrottlingRate", {"rate": slower}
            )
            page.add_init_script(DRAWN)
            page.wait_for_timeout(500)  # lets the browser's new process settle
            page.goto(url)
            page.locator("table.ops tbody tr").first.wait_for()
            while (drawn := page.evaluate("window.drawn")) is None:
                page.wait_for_timeout(20)
            times.append(drawn)
            sizes.append(
                page.evaluate(
                    "performance.getEntriesByType('resource').filter((each) =>"
                    " each.responseEnd <= window.drawn).length + 1"
                )
            )
    what, target = f"first rows{slowed(slower)}", 300 if slower == SLOWER else None
    yield alone(what, times, unit="ms", measure="time", target=target)
    yield Figure(what=what, measure="requests", ours=max(sizes), unit="requests")


def slowed(slower: int) -> str:
    """Return how the rows name the speed of the CPU."""
    return "" if slower == 1 else f", CPU slowed {slower} times"


def idle_pages(browser: Any, port: int) -> Iterator[Figure]:
    """Measure the server's CPU and the number of requests while many pages are open and idle."""
    asked = 0

    def count(_: Any) -> None:
        nonlocal asked
        asked += 1

    def cpu() -> float:
        return float(Client(port).raw("/cpu"))

    with contextlib.ExitStack() as stack:
        page: Any = None
        for _ in range(PAGES):
            context = stack.enter_context(
                browser.new_context(viewport={"width": 1280, "height": 900})
            )
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{port}/console/")
            page.locator("table.ops tbody tr").first.wait_for()
            page.on("request", count)
        page.wait_for_timeout(5000)
        asked, before, began = 0, cpu(), time.perf_counter()
        page.wait_for_timeout(IDLE_SECONDS * 1000)
        used, took = cpu() - before, time.perf_counter() - began
        number = asked
    what, share = f"{PAGES} idle pages", 100 * used / took
    yield Figure(what=what, measure="CPU", ours=share, unit="% of a core", target=5)
    each = number * 60 / took / PAGES
    yield Figure(what=what, measure="requests a minute", ours=each, unit="requests", target=18)


def flood(browser: Any, port: int, slower: int) -> Iterator[Figure]:
    """Measure the frames of a page that receives many events in a short time."""
    client = Client(port)
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        cdp = context.new_cdp_session(page)
        cdp.send("Emulation.setCPUThrottlingRate", {"rate": slower})
        cdp.send("Performance.enable")
        page.add_init_script(WATCHED)
        for _ in range(REPORTING):
            client.call(PATH, {"seconds": FLOOD_SECONDS + 20})
        page.goto(f"http://127.0.0.1:{port}/console/")
        page.locator("table.ops tbody tr").first.wait_for()
        page.get_by_role("button", name="Show more").click()  # now the page watches all operations
        page.wait_for_timeout(5000)
        heap = _heap(cdp)
        page.evaluate("window.events = 0, window.long = [], window.frames = []")
        page.wait_for_timeout(FLOOD_SECONDS * 1000)
        found = page.evaluate("[window.events, window.long, window.frames]")
        later = _heap(cdp)
    events, long, frames = found
    what, target = f"flood{slowed(slower)}", 100 if slower == 1 else None
    yield Figure(what=what, measure="events", ours=events, unit="events")
    yield Figure(what=what, measure="longest frame", ours=max(frames), unit="ms", target=target)
    yield Figure(what=what, measure="longest task", ours=max(long, default=0), unit="ms")
    yield Figure(
        what=what,
        measure="heap, after / before",
        ours=later,
        floor=heap,
        unit="MB",
        rounds=[later / heap],
    )


def _heap(cdp: Any) -> float:
    cdp.send("HeapProfiler.collectGarbage")
    metrics = cdp.send("Performance.getMetrics")["metrics"]
    size: float = next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize")
    return size / 1e6


def run(options: argparse.Namespace) -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(chromium())
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        where = folder / f"console{options.size}.db"
        if not where.exists() and {"load", "idle"} & {*options.parts}:
            million.fill("sqlite", str(where), options.size)
        if {"load", "idle"} & {*options.parts}:
            with contextlib.closing(Server("browser", "idle", str(where))) as server:
                port = server.port
                for slower in (1, SLOWER) if "load" in options.parts else ():
                    yield from first_loads(browser, f"http://127.0.0.1:{port}/console/", slower)
                if "idle" in options.parts:
                    for _ in range(10):
                        Client(port).call(PATH, {"seconds": 10 * IDLE_SECONDS})
                    yield from idle_pages(browser, port)
        for slower in (1, SLOWER) if "flood" in options.parts else ():
            with contextlib.closing(Server("browser", "flood", "")) as server:
                yield from flood(browser, server.port, slower)


@attrs.frozen
class ReportRequest:
    seconds: lro.Int32 = 0


def main(kind: str, port: int, where: str) -> None:
    """Serve a console and a method whose work reports progress all the time."""
    executor = AsyncioExecutor(2 * REPORTING, loop="running")
    store = MemoryStore() if kind == "flood" else million.store_of("sqlite", where)
    service, _ = million.declared(store, executor)

    @service.method("bench.v1.Bench.Report", path=PATH)
    async def report(request: ReportRequest, job: lro.Job[lro.OperationMetadata]) -> RunResponse:
        end, step = time.monotonic() + request.seconds, 0
        while time.monotonic() < end:
            step += 1
            await job.progress_async(step % 1000 / 1000, f"step {step}")
            await asyncio.sleep(SECONDS_BETWEEN[kind])
        return RunResponse(items=step)

    console = EdgeApp(ConsoleEdge(service, path="/console"), OperationsApp(service, starts=True))
    print("ready", flush=True)
    serve(console, port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
