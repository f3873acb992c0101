"""How much the page asks for: little while it is looked at, nothing while it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from lro.asgi import ConsoleApp
from tests.full.browser.conftest import OpenPage, Serve
from tests.full.browser.reading import row
from tests.full.browser.relaying import Relay, relay
from tests.full.browser.staged import Stage
from tests.http.servers import HOST, uvicorn_serving

expect = pytest.importorskip("playwright.sync_api").expect

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

HIDE: Final = """hidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""What the browser does when the tab goes out of sight, or comes back."""

COUNT: Final = """
    window.asked = [];
    window.pending = 0;
    const real = window.fetch;
    window.fetch = async (url, options) => {
        window.asked.push(String(url));
        window.pending++;
        try { return await real(url, options); } finally { window.pending--; }
    };
"""
"""Notes what the page asks for, and how much of it is not answered yet."""


@pytest.fixture
def watched(context: BrowserContext) -> None:
    """The requests of pages are counted, and their clocks go as the test says."""
    context.add_init_script(COUNT)
    context.clock.install()


@contextmanager
def minute(page: Page) -> Iterator[list[str]]:
    """What the page asks for in a minute of its own clock, when this is over."""
    found: list[str] = []
    page.evaluate("window.asked.length = 0")
    for _ in range(60):
        page.clock.run_for(1_000)
        until(page, lambda: page.evaluate("window.pending === 0"))
    found += page.evaluate("window.asked")
    yield found


def until(page: Page, happened: Callable[[], bool]) -> None:
    """Wait for something that the page does not show; its policy forbids to look from within."""
    for _ in range(1_000):
        if happened():
            return
        page.wait_for_timeout(10)
    raise AssertionError("it has not happened")


@pytest.mark.usefixtures("watched")
def test_page_that_is_looked_at_asks_18_times_a_minute_at_most(
    stage: Stage, open_page: OpenPage, serve: Serve
) -> None:
    """With work in progress, whose stream is one of them; the overview asks for less."""
    name = stage.start("work")
    page = open_page(serve(stage.service))
    expect(row(page, name)).to_contain_text("In progress")
    with minute(page) as list_asks:
        assert 12 <= len(list_asks) <= 18, list_asks
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Who holds leases")).to_be_visible()
    with minute(page) as overview_asks:
        assert 4 <= len(overview_asks) <= 8, overview_asks


@pytest.mark.usefixtures("watched")
def test_page_that_is_not_looked_at_asks_for_nothing(
    stage: Stage, open_page: OpenPage, serve: Serve
) -> None:
    """Hidden, or untouched for 5 minutes; it goes on when it is seen or touched again."""
    name = stage.start("work")
    page = open_page(serve(stage.service))
    expect(row(page, name)).to_contain_text("In progress")
    page.evaluate(HIDE, True)
    stage.progress("work", 0.2)
    with minute(page) as hidden_asks:
        assert hidden_asks == []
    expect(row(page, name)).not_to_contain_text("20 %")
    page.evaluate(HIDE, False)
    until(page, lambda: page.evaluate("window.asked.length >= 2"))
    page.clock.run_for(1_000)
    expect(row(page, name)).to_contain_text("20 %")
    page.clock.fast_forward(5 * 60_000)
    expect(page.get_by_text("Paused after 5 minutes without a touch.")).to_be_visible()
    with minute(page) as idle_asks:
        assert idle_asks == []
    stage.progress("work", 0.5)
    page.mouse.move(5, 5)
    page.clock.run_for(1_000)
    expect(row(page, name)).to_contain_text("50 %")


@pytest.mark.usefixtures("watched")
def test_page_that_is_paused_asks_for_nothing_until_that_ends(
    stage: Stage, open_page: OpenPage, serve: Serve
) -> None:
    """By the key p, and by its button."""
    name = stage.start("work")
    page = open_page(serve(stage.service))
    expect(row(page, name)).to_contain_text("In progress")
    page.keyboard.press("p")
    button = page.get_by_role("button", name="Paused")
    expect(button).to_have_attribute("aria-pressed", "true")
    stage.progress("work", 0.5)
    with minute(page) as asks:
        assert asks == []
    button.click()
    page.clock.run_for(1_000)
    expect(row(page, name)).to_contain_text("50 %")


@pytest.mark.usefixtures("watched")
def test_server_that_is_busy_is_left_alone_for_as_long_as_it_says(
    stage: Stage, open_page: OpenPage
) -> None:
    """503 with Retry-After: all wait 7 s, the page says so, and then goes on."""
    name = stage.start("work")

    def act(proxy: Relay) -> None:
        page = open_page(f"http://{HOST}:{proxy.port}/")
        expect(row(page, name)).to_contain_text("In progress")
        proxy.away = True
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_text("Trying again in 7 s")).to_be_visible()
        page.evaluate("window.asked.length = 0")
        page.clock.run_for(4_000)
        assert [one for one in page.evaluate("window.asked") if "operations?" in one] == []
        expect(page.get_by_text("Trying again in 3 s")).to_be_visible()
        proxy.away = False
        page.clock.run_for(6_000)
        expect(row(page, name)).to_contain_text("In progress")
        expect(page.get_by_text("Trying again")).to_have_count(0)
        page.close()

    through_a_proxy(stage, act)


def test_stream_that_is_cut_is_asked_for_again(stage: Stage, open_page: OpenPage) -> None:
    """In the middle, by a proxy: what happened meanwhile is seen, and no row is lost."""
    names = [stage.start(str(number)) for number in range(3)]

    def act(proxy: Relay) -> None:
        page = open_page(f"http://{HOST}:{proxy.port}/")
        for turn, share in enumerate((0.2, 0.4, 0.6)):
            stage.progress(str(turn), share)
            expect(row(page, names[turn])).to_contain_text(f"{round(100 * share)} %")
            until(page, lambda: len(streams(proxy)) > turn)  # noqa: B023
            proxy.cut()
        stage.succeed("0")
        expect(row(page, names[0])).to_contain_text("Succeeded")
        expect(page.get_by_role("row")).to_have_count(4)
        expect(page.locator("#trouble")).to_have_text("")
        page.close()

    through_a_proxy(stage, act)


def streams(proxy: Relay) -> list[str]:
    """The streams that the page has asked for."""
    return [one for one in proxy.requests if ":watch" in one]


def through_a_proxy(stage: Stage, act: Callable[[Relay], None]) -> None:
    """Have something happen with the console of a stage behind a proxy."""
    app = ConsoleApp(stage.service, authenticate=lambda headers: None)
    with uvicorn_serving(app, lifespan="off") as port, relay(port) as proxy:
        act(proxy)
