"""Takes the pictures of the demo page for the docs: ``python -m tests.browser.demo_pictures``."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import PIL.Image
from playwright.sync_api import Browser, expect, sync_playwright

from tests.examples.serving import ROOT, SERVE, Process

FOLDER: Final = ROOT / "docs" / "images"
SHOTS: Final = (("segment", "light"), ("track", "dark"))
COLORS: Final = 64


def main() -> None:
    """Write a PNG of few colours for each of ``SHOTS``."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Process(*SERVE, f"sqlite:///{Path(folder) / 'operations.db'}") as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        ) as browser,
    ):
        FOLDER.mkdir(exist_ok=True)
        for verb, theme in SHOTS:
            shot = take(browser, str(server.http.base_url), verb, theme)
            picture = (
                PIL.Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLORS, kmeans=3, dither=0)
            )
            picture.save(FOLDER / f"demo-{verb}.png", optimize=True)


def take(browser: Browser, url: str, verb: str, theme: Any) -> bytes:
    """The page with the result of an analysis."""
    with browser.new_context(
        color_scheme=theme, device_scale_factor=0.8, viewport={"width": 900, "height": 640}
    ) as context:
        page = context.new_page()
        page.goto(url)
        page.locator("label", has=page.get_by_role("radio", name=re.compile(f"^{verb}"))).click()
        expect(page.get_by_role("status")).to_have_text("")
        page.wait_for_load_state("networkidle")
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("status")).to_have_text(re.compile("found", re.I), timeout=60_000)
        page.evaluate("scrollTo(0, 0)")
        return page.screenshot()


if __name__ == "__main__":
    main()
