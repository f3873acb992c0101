"""One browser for all tests; for each test a new window and a real server with a console."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.full.browser.scripted import Scripted
from tests.full.browser.staged import Stage, console_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Playwright
else:  # tests can import these names without Playwright
    Browser = BrowserContext = Page = Playwright = Any

OpenPage: TypeAlias = "Callable[..., Page]"
Serve: TypeAlias = Callable[..., str]
Show: TypeAlias = "Callable[..., Page]"

PATIENCE: int = 60_000
"""Milliseconds for which a test waits for an expected state: many, for the CPU may be busy."""

REPORTS = """
    window.reports = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.reports.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
"""A script that records violations of the content security policy (CSP)."""


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    """Playwright, stopped after this package, because its event loop disturbs other tests."""
    pytest.importorskip("playwright.sync_api")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """The system's Chromium, headless."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium on the PATH")
    with playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as launched:
        yield launched


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that serves the console of a service with options and returns its URL."""
    with ExitStack() as stack:
        yield lambda service, **options: stack.enter_context(console_of(service, **options))


@pytest.fixture
def stage(serve: Serve) -> Iterator[Stage]:
    """A service whose work the test controls; it closes before the servers, which await work."""
    made = Stage()
    yield made
    made.close()


@pytest.fixture
def site(stage: Stage, serve: Serve) -> str:
    """The URL of the console of ``stage``."""
    return serve(stage.service, title="Acme", refresh_seconds=1)


@contextmanager
def window(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """Open a window with empty storage, and close it once no route handler runs.

    If a handler failed on a closed page, Playwright would raise the error in a later test.
    """
    with browser.new_context(**options) as opened:
        opened.set_default_timeout(PATIENCE)
        try:
            yield opened
        finally:
            for one in (*opened.pages, opened):
                one.unroute_all(behavior="wait")


@pytest.fixture
def context(browser: Browser, serve: Serve) -> Iterator[BrowserContext]:
    """A browser context, closed before the servers, which wait for its connections."""
    with window(browser, viewport={"width": 1280, "height": 900}) as opened:
        opened.add_init_script(REPORTS)
        yield opened


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[OpenPage]:
    """A function that opens a URL in a tab; no script of the page may fail or break the CSP."""
    found: list[str] = []
    pages: list[Any] = []

    def opened(url: str) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: found.append(str(error)))
        pages.append(page)
        page.goto(url)
        return page

    yield opened
    for page in pages:
        if not page.is_closed() and page.url != "about:blank":
            found += page.evaluate("window.reports")
    assert found == []


@pytest.fixture
def show(open_page: OpenPage, site: str) -> Show:
    """A function that opens the console of ``stage`` at this URL fragment."""
    return lambda fragment="": open_page(site + fragment)


@pytest.fixture
def scripted(context: BrowserContext) -> Scripted:
    """Scripted replies that the page gets instead of the server's."""
    made = Scripted()
    made.answer_for(context)
    return made


@pytest.fixture
def work(stage: Stage) -> str:
    """The name of an operation of ``stage`` whose steps have the key ``work``."""
    return stage.start("work")


@pytest.fixture
def beside(stage: Stage, open_page: OpenPage, serve: Serve) -> Show:
    """A function that serves a second console of ``stage`` with options and opens it."""
    return lambda **options: open_page(serve(stage.service, **options))


@pytest.fixture
def page(show: Show) -> Page:
    """The console of ``stage``, open at its list."""
    return show()
