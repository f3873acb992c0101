"""Live updates of the page: streams, stale lists, tokens, several tabs."""

from __future__ import annotations

from typing import Any

import pytest

import lro
from lro.asgi import EdgeApp
from lro.console import ConsoleEdge
from tests.full.browser.conftest import BrowserContext, OpenPage, Show
from tests.full.browser.reading import dialog, row, shows
from tests.full.browser.staged import Stage
from tests.http.servers import HOST, uvicorn_serving
from tests.services.ports import free_port
from tests.waiting import until

expect = pytest.importorskip("playwright.sync_api").expect


def test_page_is_ready_after_five_requests(show: Show, site: str, context: Any) -> None:
    """A new page requests itself, style, script, session and list, all from its own server."""
    found: list[str] = []
    context.on("request", lambda request: found.append(request.url.removeprefix(site)))
    page = show()
    expect(page.get_by_text("There are no operations yet.")).to_be_visible()
    first = [one for one in found if not one.startswith(("tally", "icon."))]
    assert len(first) <= 5, first
    assert all(not one.startswith("http") for one in found), found


def test_broken_stream_is_reopened_after_an_outage(
    stage: Stage, open_page: OpenPage, context: Any
) -> None:
    """While the server is down the page shows an error; afterwards it reconnects by itself."""
    context.clock.install()
    port, name = free_port(), stage.start("work")
    app = EdgeApp(ConsoleEdge(stage.service, refresh_seconds=1))
    options: dict[str, Any] = {"lifespan": "off", "timeout_graceful_shutdown": 1}
    with uvicorn_serving(app, port, **options):
        page = open_page(f"http://{HOST}:{port}/")
        stage.progress("work", 0.1)
        expect(row(page, name)).to_contain_text("10 %")
    expect(page.get_by_text("The server cannot be reached. Trying again in")).to_be_visible()
    expect(page.locator(".live")).to_have_text("Not connected")
    expect(page.locator(".live.on")).to_have_count(0)
    stage.progress("work", 0.5)
    with uvicorn_serving(app, port, **options):
        page.clock.fast_forward(60_000)  # the longest delay between retries
        expect(row(page, name)).to_contain_text("50 %")
        expect(page.get_by_role("button", name="Try now")).to_have_count(0)
        page.close()


def test_stale_list_does_not_reopen_an_ended_operation(stage: Stage, work: str, page: Any) -> None:
    """If a List reply from before an operation's end arrives late, the page still shows the end."""
    page.get_by_role("searchbox", name="Filter").fill("done = false")
    page.keyboard.press("Enter")
    expect(page.locator(".live.on")).to_have_text("Live")
    lists, held = "**/v1/operations?*", []

    def hold(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route(lists, hold)
    until(lambda: page.evaluate("0") or held)
    stage.succeed("work")
    shows(page, work, "Succeeded")
    route, reply = held[0]
    assert reply.json()["operations"][0]["name"] == work
    with page.expect_response(lists):
        route.fulfill(response=reply)
    with page.expect_response(lists):
        """Wait for one more list."""
    shows(page, work, "Succeeded")


def test_page_asks_for_a_token_and_sends_it_until_it_expires(
    stage: Stage, work: str, beside: Show
) -> None:
    """The page asks for a token when requests are refused, and again when the token expires."""
    valid = {"old"}

    def authenticate(headers: Any) -> str:
        if headers.get("authorization", "").removeprefix("Bearer ") not in valid:
            raise lro.errors.Unauthenticated("a valid token is needed")
        return "ann"

    page = beside(authenticate=authenticate, refresh_seconds=1)
    expect(page.locator(".live")).to_have_text("Not connected")
    for token in ("old", "new"):
        valid.clear()
        valid.add(token)
        expect(dialog(page)).to_contain_text("a valid token is needed")
        dialog(page).get_by_label("A token for the API").fill(token)
        page.keyboard.press("Enter")
        expect(dialog(page)).to_have_count(0)
        expect(row(page, work)).to_be_visible()
        expect(page.locator(".live.on")).to_have_text("Live")
    stage.progress("work", 0.5)
    shows(page, work, "50 %")
    page.keyboard.press("?")
    expect(dialog(page)).to_contain_text("You are ann.")
    assert page.evaluate("localStorage.length") == 0
    page.close()


def test_refused_session_shows_an_error_until_it_is_allowed(
    work: str, beside: Show, context: BrowserContext
) -> None:
    """While its session is refused, the page shows the error and "Not connected"."""
    allowed: list[bool] = []

    def authenticate(_: Any) -> str:
        if not allowed:
            raise lro.errors.PermissionDenied("not for you")
        return "ann"

    context.clock.install()
    page = beside(authenticate=authenticate)
    expect(page.locator("#trouble")).to_contain_text("not for you")
    page.clock.run_for(2500)  # the page updates its error message every second
    expect(page.locator("#trouble")).to_contain_text("not for you")
    expect(page.locator(".live")).to_have_text("Not connected")
    allowed.append(True)
    page.get_by_role("button", name="Try now").click()
    expect(row(page, work)).to_be_visible()
    expect(page.locator("#trouble")).to_be_empty()
    expect(page.locator(".live.on")).to_have_text("Live")


def test_chosen_theme_survives_a_reload(page: Any) -> None:
    button = page.get_by_role("button", name="Theme")
    expect(button).to_have_attribute("aria-label", "Theme: as the system (t)")
    page.keyboard.press("t")
    page.keyboard.press("t")
    expect(button).to_have_attribute("aria-label", "Theme: dark (t)")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_many_tabs_all_follow_an_operation(stage: Stage, work: str, show: Show) -> None:
    """13 tabs follow an operation, though a browser opens only six connections to a server."""
    pages = [show() for _ in range(13)]
    for page in pages:
        expect(row(page, work)).to_be_visible()
    stage.progress("work", 0.5)
    for page in pages:
        shows(page, work, "50 %")
