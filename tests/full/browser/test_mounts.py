"""The console on each server, below prefixes, twice in one process, and for a foreign server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

import lro
from lro import asgi
from lro.console import ConsoleEdge
from tests.console.other_server import other_server
from tests.console.serving import SERVERS
from tests.full.browser.conftest import OpenPage, Page, Serve
from tests.full.browser.reading import act, dialog, open_operation, panel, row, tab
from tests.full.browser.staged import Stage
from tests.full.console.test_lro_console import proxied
from tests.http.servers import HOST, uvicorn_serving

expect = pytest.importorskip("playwright.sync_api").expect


def everything_works(page: Page, stage: Stage, key: str, name: str) -> None:
    """Check that the page shows progress live, opens each view and can cancel."""
    for fraction in (0.25, 0.75):
        stage.progress(key, fraction)
        expect(row(page, name)).to_contain_text(f"{round(100 * fraction)} %")
    for view in ("Overview", "Methods", "Operations"):
        page.get_by_role("navigation").get_by_role("link", name=view).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(view)
    open_operation(page, name)
    act(page, "Cancel")
    expect(page.locator(".big")).to_have_text("Cancelled")


@pytest.mark.parametrize("kind", SERVERS)
def test_console_works_behind_each_server(stage: Stage, open_page: OpenPage, kind: str) -> None:
    """The whole page works on each server; on WSGI, without streams, it polls with BatchGet."""
    serve, app = SERVERS[kind]
    name = stage.start("work")
    with serve(app(ConsoleEdge(stage.service, refresh_seconds=1))) as port:
        page = open_page(f"http://{HOST}:{port}/")
        asked: list[str] = []
        page.on("request", lambda one: asked.append(urlsplit(one.url).path))
        everything_works(page, stage, "work", name)
        assert any(one.endswith(":batchGet" if kind == "waitress" else ":watch") for one in asked)
        page.close()


def behind_a_proxy(app: Any, prefix: str, asked: list[str]) -> Any:
    """Wrap the application as if a proxy stripped the prefix; record the requested paths."""

    async def cut(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        path = scope["path"].removeprefix(prefix)
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return cut


def test_console_works_below_a_prefix_that_a_proxy_cuts_off(
    stage: Stage, open_page: OpenPage
) -> None:
    """Behind a proxy, the page requests only paths below the prefix, and streams work."""
    name, asked = stage.start("work"), list[str]()
    app = asgi.EdgeApp(
        ConsoleEdge(stage.service, refresh_seconds=1, authenticate=lambda headers: None)
    )
    with uvicorn_serving(behind_a_proxy(app, "/a/b", asked), lifespan="off") as port:
        page = open_page(f"http://{HOST}:{port}/a/b/")
        everything_works(page, stage, "work", name)
        assert all(one.startswith("/a/b/") for one in asked)
        assert any(one.endswith(":watch") for one in asked)
        page.close()


def test_two_services_in_one_process_do_not_mix(stage: Stage, open_page: OpenPage) -> None:
    """Of two consoles on one origin, each shows its own operations and gets only its own token."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    def who(token: str) -> Any:
        def authenticate(headers: Mapping[str, str]) -> str:
            seen.append((token, headers.get("authorization", "")))
            if headers.get("authorization") != f"Bearer {token}":
                raise lro.errors.Unauthenticated(f"this is {token}")
            return token

        return authenticate

    seen: list[tuple[str, str]] = []
    other = Stage()
    try:
        here, there = stage.start("here"), other.start("there")
        routes = [
            Mount(
                f"/{token}",
                asgi.EdgeApp(ConsoleEdge(one.service, authenticate=who(token), title=token)),
            )
            for token, one in (("one", stage), ("two", other))
        ]
        with uvicorn_serving(Starlette(routes=routes)) as port:
            page = open_page(f"http://{HOST}:{port}/one")
            assert urlsplit(page.url).path == "/one/"
            for token, mine, others in (("one", here, there), ("two", there, here)):
                page.goto(f"http://{HOST}:{port}/{token}/")
                expect(dialog(page)).to_contain_text(f"this is {token}")
                dialog(page).get_by_label("A token for the API").fill(token)
                page.keyboard.press("Enter")
                expect(row(page, mine)).to_be_visible()
                expect(row(page, others)).to_have_count(0)
            page.goto(f"http://{HOST}:{port}/one/")
            expect(row(page, here)).to_be_visible()
            page.close()
    finally:
        other.close()
    assert ("one", "Bearer two") not in seen
    assert ("two", "Bearer one") not in seen


def test_console_shows_operations_of_another_server(open_page: OpenPage) -> None:
    """``lro console`` works on a foreign server: the page lists, polls, cancels and deletes."""
    with other_server() as other, proxied(other.url) as client:
        names = [other.add(f"operations/build-{number:03}", percent=number) for number in range(60)]
        page = open_page(str(client.base_url).rstrip("/") + "/")
        expect(page.get_by_role("row")).to_have_count(51)
        page.get_by_role("button", name="Show more").click()
        expect(page.get_by_role("row")).to_have_count(61)
        last = names[-1]
        expect(row(page, last)).to_contain_text("59 %")
        other.operations[last]["metadata"]["progressPercent"] = 80
        expect(row(page, last)).to_contain_text("80 %")
        page.get_by_role("button", name="Succeeded").click()
        expect(page.get_by_text("No operation matches this filter.")).to_be_visible()
        page.get_by_role("button", name="Succeeded").click()
        open_operation(page, last)
        other.operations[last]["metadata"]["progressPercent"] = 90
        expect(page.locator(".now")).to_contain_text("90 %")
        act(page, "Cancel")
        expect(page.locator(".big")).to_have_text("Cancelled")
        tab(page, "Error").click()
        expect(panel(page)).to_contain_text("Operation was cancelled.")
        act(page, "Delete")
        expect(page.get_by_role("heading", level=1)).to_have_text("Operations")
        expect(row(page, names[-2])).to_be_visible()
        expect(row(page, last)).to_have_count(0)
        expect(page.locator("#trouble")).to_be_empty()
        expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(["Operations"])
        page.close()


def test_console_without_actions_has_no_buttons_and_redacts_fields(
    stage: Stage, open_page: OpenPage, serve: Serve
) -> None:
    """Without actions the page has no buttons; values that ``redact`` removes are not shown."""

    def redact(operation: dict[str, Any]) -> dict[str, Any]:
        operation["response"] = {"@type": operation["response"]["@type"], "width": 1}
        return operation

    name = stage.start("work")
    stage.succeed("work", width=640, pixels=4711)
    stage.ended(name)
    page = open_page(serve(stage.service, actions=(), redact=redact))
    expect(row(page, name)).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    page.get_by_role("link", name=name[-8:]).focus()
    for key in "xcd":
        page.keyboard.press(key)
    expect(dialog(page)).to_have_count(0)
    open_operation(page, name)
    for each in ("Response", "Raw"):
        tab(page, each).click()
        expect(panel(page)).to_contain_text("width")
        # Whole words only: times and names may contain the same digits.
        expect(panel(page)).not_to_contain_text(re.compile(r"\b(640|4711)\b"))
    expect(page.get_by_role("button", name="Delete…")).to_have_count(0)
