"""How the page follows the server: broken streams, verbs that lack, hidden tabs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import lro
from lro.asgi import ConsoleApp
from lro.wsgi import ConsoleApp as WsgiConsoleApp
from tests.full.browser.conftest import PATIENCE, OpenPage, Serve
from tests.full.browser.reading import dialog, open_operation, row
from tests.full.browser.staged import Stage
from tests.http.servers import HOST, uvicorn_serving, waitress_serving
from tests.services.ports import free_port

expect = pytest.importorskip("playwright.sync_api").expect

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext


def test_page_is_ready_after_five_requests(open_page: OpenPage, site: str, context: Any) -> None:
    """The page, its style, its script, what may be done, and the list."""
    found: list[str] = []
    context.on("request", lambda request: found.append(request.url.removeprefix(site)))
    page = open_page(site)
    expect(page.get_by_text("There are no operations yet.")).to_be_visible()
    first = [one for one in found if not one.startswith(("tally", "icon."))]
    assert len(first) <= 5, first
    assert all(not one.startswith("http") for one in found), found


def test_stream_that_breaks_is_asked_for_again(
    stage: Stage, open_page: OpenPage, context: Any
) -> None:
    """The server is away for a while: the page says so, and goes on by itself."""
    context.clock.install()
    port, name = free_port(), stage.start("work")
    app = ConsoleApp(stage.service, refresh_seconds=1)
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
        page.clock.fast_forward(60_000)  # it may wait so long until it tries again
        expect(row(page, name)).to_contain_text("50 %")
        expect(page.get_by_role("button", name="Try now")).to_have_count(0)
        page.close()


def test_list_that_was_on_its_way_when_an_operation_ended_does_not_reopen_it(
    stage: Stage, open_page: OpenPage, site: str
) -> None:
    """The stream was faster, and says it once; the lists after that leave out what is done."""
    name = stage.start("work")
    page = open_page(site)
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
    while not held:
        page.wait_for_timeout(20)
    stage.succeed("work")
    expect(row(page, name)).to_contain_text("Succeeded")
    route, reply = held[0]
    assert reply.json()["operations"][0]["name"] == name
    with page.expect_response(lists):
        route.fulfill(response=reply)
    with page.expect_response(lists):
        """Another one."""
    expect(row(page, name)).to_contain_text("Succeeded")


def test_batches_are_read_where_there_are_no_streams(stage: Stage, open_page: OpenPage) -> None:
    """Under WSGI."""
    name = stage.start("work")
    with waitress_serving(WsgiConsoleApp(stage.service, refresh_seconds=60)) as port:
        page = open_page(f"http://{HOST}:{port}/")
        for fraction in (0.2, 0.6):
            stage.progress("work", fraction)
            expect(row(page, name)).to_contain_text(f"{round(100 * fraction)} %")
        stage.succeed("work")
        expect(row(page, name)).to_contain_text("Succeeded")
        page.close()


def test_server_with_the_five_verbs_alone_is_enough(serve: Serve, open_page: OpenPage) -> None:
    """As Google's are: no descriptions, no batches, no streams."""
    verbs = ("GetOperation", "ListOperations", "CancelOperation", "DeleteOperation")
    stage = Stage(verbs=verbs)
    try:
        name = stage.start("work")
        page = open_page(serve(stage.service, refresh_seconds=1))
        expect(row(page, name)).to_contain_text("In progress")
        stage.progress("work", 0.3, "half asleep")
        expect(row(page, name)).to_contain_text("30 %")
        open_operation(page, name)
        stage.progress("work", 0.7)
        expect(page.get_by_text("70 %")).to_be_visible()
        page.get_by_role("button", name="Cancel…").click()
        dialog(page).get_by_role("button", name="Yes, cancel").click()
        expect(page.locator(".big")).to_have_text("Cancelled")
    finally:
        stage.close()


def test_token_is_asked_for_and_sent(stage: Stage, open_page: OpenPage, serve: Serve) -> None:
    """For this tab only."""

    def authenticate(headers: Any) -> str:
        if headers.get("authorization") != "Bearer secret":
            raise lro.errors.Unauthenticated("a token is needed")
        return "ann"

    name = stage.start("work")
    page = open_page(serve(stage.service, authenticate=authenticate))
    expect(dialog(page)).to_contain_text("a token is needed")
    expect(page.locator(".live")).to_have_text("Not connected")
    dialog(page).get_by_label("A token for the API").fill("secret")
    page.keyboard.press("Enter")
    expect(row(page, name)).to_be_visible()
    expect(page.locator(".live.on")).to_have_text("Live")
    page.keyboard.press("?")
    expect(dialog(page)).to_contain_text("You are ann.")
    assert page.evaluate("localStorage.length") == 0


def test_refusal_to_begin_stays_until_it_is_over(
    stage: Stage, open_page: OpenPage, serve: Serve, context: BrowserContext
) -> None:
    """A caller who may not see the console never reads that the page is live."""
    allowed: list[bool] = []

    def authenticate(_: Any) -> str:
        if not allowed:
            raise lro.errors.PermissionDenied("not for you")
        return "ann"

    name = stage.start("work")
    context.clock.install()
    page = open_page(serve(stage.service, authenticate=authenticate))
    expect(page.locator("#trouble")).to_contain_text("not for you")
    page.clock.run_for(2500)  # the page looks each second at what goes wrong
    expect(page.locator("#trouble")).to_contain_text("not for you")
    expect(page.locator(".live")).to_have_text("Not connected")
    allowed.append(True)
    page.get_by_role("button", name="Try now").click()
    expect(row(page, name)).to_be_visible()
    expect(page.locator("#trouble")).to_be_empty()
    expect(page.locator(".live.on")).to_have_text("Live")


def test_theme_is_kept(page: Any) -> None:
    """As the system has it, light, dark."""
    button = page.get_by_role("button", name="Theme")
    expect(button).to_have_attribute("aria-label", "Theme: as the system (t)")
    page.keyboard.press("t")
    page.keyboard.press("t")
    expect(button).to_have_attribute("aria-label", "Theme: dark (t)")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_narrow_window_is_not_scrolled_sideways(
    stage: Stage, open_page: OpenPage, site: str, theme: Any
) -> None:
    """At 320 pixels, in each view."""
    name = stage.start("work")
    stage.progress("work", 0.3, "a message " * 20)
    page = open_page(site)
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": 320, "height": 640})
    views = {
        "": "a message",
        f"#/{name}": "waited",
        f"#/{name}?tab=raw": "waited",
        "#/overview": "Who holds leases",
        "#/methods": "Resize",
    }
    for view, shown in views.items():
        page.goto(site + view)
        expect(page.get_by_text(shown).first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, view


def test_many_tabs_leave_connections_for_one_more(
    stage: Stage, open_page: OpenPage, site: str
) -> None:
    """All in sight, and each follows its operation: a browser has six connections to a server."""
    name = stage.start("work")
    pages = [open_page(site) for _ in range(13)]
    for page in pages:
        expect(row(page, name)).to_be_visible()
    stage.progress("work", 0.5)
    for page in pages:
        expect(row(page, name)).to_contain_text("50 %", timeout=3 * PATIENCE)
