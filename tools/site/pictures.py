"""Takes the pictures of README and docs: ``python -m tools.site.pictures``."""

from __future__ import annotations

import functools
import io
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import PIL.Image
import PIL.ImageDraw
from playwright.sync_api import Browser, FilePayload, Page, expect, sync_playwright
from rich.console import Console
from rich.text import Text

import lro
from tests.full.browser.staged import ImportMetadata, Stage, console_of
from tests.full.examples.serving import ROOT, SERVE, Process

FOLDER: Final = ROOT / "docs" / "images"
COLORS: Final = 64
_PATIENCE: Final = 60_000


def main() -> None:
    """Write an SVG of the terminal with the demo, and a PNG of few colours for each page."""
    FOLDER.mkdir(exist_ok=True)
    take_terminal()
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        ) as browser,
    ):
        take_demo(browser)
        take_console(browser)


def take_terminal() -> None:
    """What stands on a terminal when ``python3 run.py demo`` has ended."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "examples.analysis", "demo"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"},
        stdout=theirs,
    ):
        os.close(theirs)
        printed = b"".join(iter(functools.partial(read_terminal, ours), b"")).decode()
    os.close(ours)
    final = printed.rpartition("\x1b[2K")[2]  # what was drawn before, rich has erased
    shown = Text.from_ansi("$ python3 run.py demo\n\n" + re.sub(r"\x1b\[\?25h|\r", "", final))
    screen = Console(record=True, width=80, file=io.StringIO())
    screen.print(shown)
    drawn = screen.export_svg(title="python3 run.py demo", unique_id="demo")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # a font of other hosts
    (FOLDER / "demo.svg").write_text(drawn.replace("\u00a0", " "), encoding="utf-8")


def read_terminal(file: int) -> bytes:
    """What was written to a terminal next; nothing at its end, which Linux shows as an error."""
    try:
        return os.read(file, 65_536)
    except OSError:
        return b""


def take_demo(browser: Browser) -> None:
    """The demo page with the result of an analysis of a picture that is drawn here."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Process(*SERVE, f"sqlite:///{Path(folder) / 'operations.db'}") as server,
    ):
        page = opened(browser, "light", str(server.http.base_url))
        page.get_by_role("radio", name="segment").locator("..").click()
        expect(page.get_by_role("status")).to_have_text("", timeout=_PATIENCE)
        page.wait_for_load_state("networkidle")
        file: FilePayload = {"name": "discs.png", "mimeType": "image/png", "buffer": discs()}
        page.locator("input[type=file]").set_input_files(file)
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("status")).to_contain_text("found", timeout=_PATIENCE)
        page.locator("#pictures").evaluate("part => part.remove()")
        keep(page, "demo-segment")


def take_console(browser: Browser) -> None:
    """The list, one operation and the overview of a service at work."""
    stage = Stage()
    with console_of(stage.service, title="Acme images") as url:
        try:
            names = play(stage)
            keep(opened(browser, "light", url), "console-list")
            keep(opened(browser, "dark", f"{url}#/{names[4]}"), "console-operation")
            keep(opened(browser, "light", f"{url}#/overview"), "console-overview")
        finally:
            stage.close()


def play(stage: Stage) -> list[str]:
    """Have operations started, some ended and others on their way."""
    for place in range(60):
        stage.start(f"past {place}")
        stage.succeed(f"past {place}")
    names = [stage.start(f"{place}", load=place % 3 == 2) for place in range(8)]
    stage.succeed("0")
    stage.succeed("1")
    stage.fail("3", lro.StatusError(lro.Code.NOT_FOUND, "there is no picture images/7"))
    for place in (2, 5):
        loaded = ImportMetadata("customers", 1200 * place, 10_000)
        stage.do(str(place), functools.partial(report, loaded))
    stage.progress("4", 0.6, "resizing")
    stage.service.wait(names[3], 10)
    assert stage.service.statistics is not None
    stage.service.statistics.flush()
    return names


def report(metadata: ImportMetadata, job: Any) -> None:
    """Have a job report this."""
    job.report(metadata)


def opened(browser: Browser, theme: str, url: str) -> Page:
    """A page in a window of its own, when it has got what it asks for."""
    context = browser.new_context(
        color_scheme="dark" if theme == "dark" else "light",
        device_scale_factor=0.75,
        viewport={"width": 1200, "height": 760},
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(3000)
    return page


def discs() -> bytes:
    """A PNG of discs of several sizes on a dark ground."""
    chance = random.Random(7)
    picture = PIL.Image.new("RGB", (480, 320), (36, 38, 48))
    drawn = PIL.ImageDraw.Draw(picture)
    for place in range(24):
        x, y = 50 + 76 * (place % 6), 50 + 74 * (place // 6)
        r, light = chance.randint(18, 30), chance.randint(150, 235)
        drawn.ellipse((x - r, y - r, x + r, y + r), fill=(light, light - 20, light - 50))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def keep(page: Page, name: str) -> None:
    """Write what the page shows."""
    page.evaluate("scrollTo(0, 0)")
    shot = PIL.Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shot.quantize(COLORS, kmeans=3, dither=PIL.Image.Dither.NONE).save(
        FOLDER / f"{name}.png", optimize=True
    )
    page.context.close()


if __name__ == "__main__":
    main()
