"""The page sends few requests while it is in use, and none while it is unused."""

from __future__ import annotations

from typing import Final

import pytest

from lro.asgi import EdgeApp
from lro.console import ConsoleEdge
from tests.full.browser.conftest import BrowserContext, OpenPage, Page, Show
from tests.full.browser.reading import row, shows
from tests.full.browser.staged import Stage
from tests.http.servers import HOST, uvicorn_serving
from tests.services.proxy import proxy_to
from tests.waiting import until

expect = pytest.importorskip("playwright.sync_api").expect

HIDE: Final = """hidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A script that makes the page believe that its tab is hidden or shown again."""

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
"""A script that records the page's requests and counts the pending ones."""


@pytest.fixture
def page(context: BrowserContext, work: str, beside: Show) -> Page:
    """A console with work in progress, recorded requests and a clock that the test moves."""
    context.add_init_script(COUNT)
    context.clock.install()
    opened = beside()
    shows(opened, work, "In progress")
    return opened


def minute(page: Page) -> list[str]:
    """Return the requests that the page sends in a minute of its own clock."""
    page.evaluate("window.asked.length = 0")
    for _ in range(60):
        page.clock.run_for(1_000)
        until(lambda: page.evaluate("window.pending === 0"))  # the CSP forbids wait_for_function
    found: list[str] = page.evaluate("window.asked")
    return found


def test_visible_page_sends_at_most_18_requests_a_minute(page: Page) -> None:
    """The list sends 12 to 18 requests a minute, with the stream; the overview sends 4 to 8."""
    assert 12 <= len(asks := minute(page)) <= 18, asks
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Who holds leases")).to_be_visible()
    assert 4 <= len(asks := minute(page)) <= 8, asks


def test_hidden_page_sends_no_requests(page: Page, stage: Stage, work: str) -> None:
    """A page that is hidden, or unused for 5 minutes, sends no request until it is used again."""
    page.evaluate(HIDE, True)
    stage.progress("work", 0.2)
    assert minute(page) == []
    expect(row(page, work)).not_to_contain_text("20 %")
    page.evaluate(HIDE, False)
    until(lambda: page.evaluate("window.asked.length >= 2"))
    page.clock.run_for(1_000)
    shows(page, work, "20 %")
    page.clock.fast_forward(5 * 60_000)
    expect(page.get_by_text("Paused after 5 minutes without a touch.")).to_be_visible()
    assert minute(page) == []
    stage.progress("work", 0.5)
    page.mouse.move(5, 5)
    page.clock.run_for(1_000)
    shows(page, work, "50 %")


def test_paused_page_sends_no_requests(page: Page, stage: Stage, work: str) -> None:
    """The key ``p`` pauses all requests of the page; the button resumes them."""
    page.keyboard.press("p")
    button = page.get_by_role("button", name="Paused")
    expect(button).to_have_attribute("aria-pressed", "true")
    stage.progress("work", 0.5)
    assert minute(page) == []
    button.click()
    page.clock.run_for(1_000)
    shows(page, work, "50 %")


def test_page_obeys_retry_after(page: Page, work: str) -> None:
    """After a 503 with ``Retry-After: 7`` the page counts down 7 seconds and asks again."""
    page.route("**/*", lambda route: route.fulfill(status=503, headers={"retry-after": "7"}))
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Trying again in 7 s")).to_be_visible()
    page.evaluate("window.asked.length = 0")
    page.clock.run_for(4_000)
    assert [one for one in page.evaluate("window.asked") if "operations?" in one] == []
    expect(page.get_by_text("Trying again in 3 s")).to_be_visible()
    page.unroute_all(behavior="wait")
    page.clock.run_for(6_000)
    shows(page, work, "In progress")
    expect(page.get_by_text("Trying again")).to_have_count(0)


def test_cut_stream_is_reopened_without_losing_updates(stage: Stage, open_page: OpenPage) -> None:
    """If a proxy cuts the stream, the page reopens it, shows later updates and loses no row."""
    names = [stage.start(str(number)) for number in range(3)]
    app = EdgeApp(ConsoleEdge(stage.service, authenticate=lambda headers: None))
    with uvicorn_serving(app, lifespan="off") as port, proxy_to(port) as proxy:
        page = open_page(f"http://{HOST}:{proxy.port}/")
        for turn, name in enumerate(names):
            expect(page.locator(".live.on")).to_have_text("Live")
            proxy.lose_next("answer")
            stage.progress(str(turn), 0.2)
            shows(page, name, "20 %")
            assert proxy.lost.is_set()
        stage.succeed("0")
        shows(page, names[0], "Succeeded")
        expect(page.get_by_role("row")).to_have_count(4)
        expect(page.locator("#trouble")).to_have_text("")
        page.close()
