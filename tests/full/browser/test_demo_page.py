"""The reference server's demo page in a real browser: it draws the results of analyses."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("skimage")
pytest.importorskip("playwright.sync_api")

from playwright.sync_api import expect

from examples.analysis.demo import picture
from tests.full.examples.serving import ROOT, SERVE, Process, slow_request

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, FilePayload, Page, Route

    from tests.full.browser.conftest import OpenPage

DROP = """
    (pictures) => {
        const dataTransfer = new DataTransfer();
        for (const picture of pictures) {
            const bytes = Uint8Array.from(atob(picture), (one) => one.charCodeAt(0));
            dataTransfer.items.add(new File([bytes], "dropped.png"));
        }
        const options = { dataTransfer, bubbles: true, cancelable: true };
        document.querySelector("main").dispatchEvent(new DragEvent("drop", options));
    }
"""
TITLES = {
    "detect": r"Faces found: 1",
    "verify": r"The same scene",
    "segment": r"Regions found: \d+",
    "classify": r"\w+\? Unlike all examples",
    "extract": r"Mostly #[0-9a-f]{6}",
    "track": r"Found in 2 of 2 frames",
}
OVERLAID = {"segment", "extract"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a reference server."""
    store = tmp_path_factory.mktemp("demo") / "operations.db"
    with Process(*SERVE, f"sqlite:///{store}") as process:
        yield str(process.http.base_url)


@pytest.fixture
def page(context: BrowserContext, open_page: OpenPage, demo: str) -> Iterator[Page]:
    """The demo page, which must send no request to another server."""
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = open_page(demo)
    expect(page.get_by_label("Options as JSON")).to_have_value(re.compile("minSizePx"))
    yield page
    assert [url for url in asked if not url.startswith((demo, "data:"))] == []


def choose(page: Page, verb: str) -> None:
    """Choose an analysis and wait until its sample is loaded."""
    with page.expect_response(f"**/samples/{verb}") as sample:
        page.locator("label", has=page.get_by_role("radio", name=re.compile(f"^{verb}"))).click()
    sample.value.finished()
    expect(page.get_by_role("status")).to_have_text("")
    expect(page.locator("#inputs")).to_be_enabled()
    expect(page.locator("#drawing.drag")).to_have_count(int(verb == "track"))


def drop(page: Page, *names: str) -> None:
    """Drop scikit-image's pictures with these names on the page."""
    files = [base64.b64encode(picture(name).content).decode() for name in names]
    shown = f"data:image;base64,{files[0]}"
    page.evaluate(DROP, files)
    expect(page.get_by_alt_text("The picture")).to_have_attribute("src", shown)


def start(page: Page) -> None:
    page.get_by_role("button", name="Start").click()


@pytest.mark.parametrize("verb", TITLES)
def test_dropped_picture_is_analysed_and_its_result_is_drawn(verb: str, page: Page) -> None:
    """Each analysis of a dropped picture shows a title, shapes and rows."""
    if verb != "detect":  # detect is the default
        choose(page, verb)
    drop(page, *["astronaut.png"] * (2 if verb == "track" else 1))
    start(page)
    expect(page.get_by_role("status")).to_have_text(re.compile(TITLES[verb]))
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "100")
    assert page.locator("#drawing .line").count() >= 1
    assert page.locator("#drawing image").count() == (verb in OVERLAID)
    assert page.locator("#rows dt").count() == page.locator("#rows dd").count()
    assert page.locator("#drawing").get_attribute("viewBox") == "0 0 512 512"
    title = page.get_by_role("status").inner_text()
    expect(page.locator("#drawing")).to_have_attribute("aria-label", title)


def test_shapes_are_drawn_at_the_position_of_the_result(page: Page) -> None:
    """The box of the face covers the part of the displayed picture that the result names."""
    start(page)
    expect(page.get_by_role("status")).to_have_text("Faces found: 1")
    image, box = page.locator("#image").bounding_box(), page.locator(".line").bounding_box()
    assert image is not None
    assert box is not None
    scale = image["width"] / 512
    assert (box["x"] - image["x"]) / scale == pytest.approx(175, abs=6)
    assert (box["y"] - image["y"]) / scale == pytest.approx(66, abs=6)
    assert box["width"] / scale == pytest.approx(97, abs=8)


def test_built_in_pictures_replace_the_sample_and_back(page: Page) -> None:
    """After a picture is chosen, Start is disabled until the picture has loaded."""
    answers: list[Route] = []
    page.route("**/pictures/coins.png", lambda route: answers.append(route))
    start = page.get_by_role("button", name="Start")
    expect(start).to_be_enabled()
    with page.expect_request("**/pictures/coins.png"):
        page.get_by_role("button", name="coins.png").click()
    expect(start).to_be_disabled()
    answers[0].continue_()
    expect(start).to_be_enabled()
    image = page.get_by_alt_text("The picture")
    coins = base64.b64encode(picture("coins.png").content).decode()
    expect(image).to_have_attribute("src", f"data:image;base64,{coins}")
    page.get_by_role("button", name="Sample").click()
    expect(image).not_to_have_attribute("src", f"data:image;base64,{coins}")


def test_progress_is_live_and_cancel_stops_the_work(page: Page) -> None:
    """The page shows progress while the work runs; after Cancel, the page can start new work."""
    choose(page, "track")
    frames: list[FilePayload] = [
        {"name": f"{number}.jpg", "mimeType": "image/jpeg", "buffer": frame.content}
        for number, frame in enumerate(slow_request(24).frames)
    ]
    page.locator("#files").set_input_files(frames)
    expect(page.locator("#drawing")).to_have_attribute("viewBox", "0 0 1024 1024")
    page.get_by_text("Options").click()
    options = '{"box": {"x": 450, "y": 450, "width": 80, "height": 80}, "searchMarginPx": 400}'
    page.get_by_label("Options as JSON").fill(options)
    start(page)
    expect(page.get_by_role("status")).to_have_text(re.compile(r"TRACKING \d+ %"))
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("status")).to_have_class("failed")
    expect(page.get_by_role("status")).to_have_text(re.compile("cancel", re.IGNORECASE))
    expect(page.get_by_role("button", name="Start")).to_be_focused()


def test_page_polls_if_streams_do_not_work(page: Page) -> None:
    """If the request for a stream fails, the page polls and shows the result."""
    for break_off in ("abort", "404"):
        page.route(
            "**/v1/*:watch",
            lambda route, how=break_off: (
                route.abort() if how == "abort" else route.fulfill(status=404)
            ),
        )
        start(page)
        expect(page.get_by_role("status")).to_have_text("Faces found: 1")
        page.unroute_all()
        page.get_by_role("button", name="Sample").click()
        expect(page.get_by_role("status")).to_have_text("")


def test_bad_input_gets_a_sentence_and_the_page_can_be_used_again(page: Page) -> None:
    """Invalid JSON, fields and files each get a message; the Sample button still works."""
    page.get_by_text("Options").click()
    status = page.get_by_role("status")
    for options, sentence in [("{", "JSON"), ('{"minSizePx": 1}', "min_size_px"), ("{}", "")]:
        page.get_by_label("Options as JSON").fill(options)
        if options != "{}":
            start(page)
            expect(status).to_have_text(re.compile(sentence))
    page.locator("#files").set_input_files(ROOT / "README.md")
    expect(status).to_have_text(re.compile("This browser cannot show"))
    start(page)
    expect(status).to_have_text(re.compile("is not a readable PNG"))
    expect(status).to_have_class("failed")
    page.get_by_role("button", name="Sample").click()
    expect(status).to_have_text("")


def test_box_is_dragged_and_frames_are_turned(page: Page) -> None:
    """A box that the mouse draws appears in the options; a slider selects the result's frame."""
    choose(page, "track")
    area = page.locator("#drawing").bounding_box()
    assert area is not None
    scale = area["width"] / 240
    page.mouse.move(area["x"] + 77 * scale, area["y"] + 66 * scale)
    page.mouse.down()
    page.mouse.move(area["x"] + 167 * scale, area["y"] + 156 * scale)
    page.mouse.up()
    options = page.get_by_label("Options as JSON")
    expect(options).to_have_value(re.compile(r'"x": 7[678],\s+"y": 6[567],\s+"width": (89|90|91)'))
    start(page)
    expect(page.get_by_role("status")).to_have_text("Found in 30 of 30 frames")
    first = page.get_by_alt_text("The picture").get_attribute("src")
    slider = page.get_by_role("slider", name="Frame")
    expect(page.locator("#drawing g:not(.away)")).to_have_count(2)
    slider.focus()
    page.keyboard.press("End")
    assert slider.input_value() == "29"
    expect(page.locator("#drawing g:not(.away)")).to_have_count(2)
    assert page.get_by_alt_text("The picture").get_attribute("src") != first


def test_keyboard_alone_is_enough(page: Page) -> None:
    """Without a mouse, arrow keys choose an analysis and Enter starts it."""
    page.locator("[value=detect]").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("[value=extract]")).to_be_checked()
    expect(page.get_by_label("Options as JSON")).to_have_value(re.compile("paletteSize"))
    expect(page.get_by_role("button", name="Start")).to_be_enabled()  # now the picture is loaded
    expect(page.locator("[value=extract]")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text(re.compile("Mostly #"))


def test_page_fits_a_small_screen_in_both_themes(page: Page) -> None:
    """At 320 pixels the page needs no horizontal scrolling; the two themes differ."""
    page.set_viewport_size({"width": 320, "height": 640})
    start(page)
    expect(page.get_by_role("status")).to_have_text("Faces found: 1")
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    colors = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colors.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colors) == 2
