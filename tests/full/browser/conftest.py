"""One browser for all tests, a new window for each test, and a real server with a console."""

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
else:  # tests can import these names without playwright
    Browser = BrowserContext = Page = Playwright = Any

OpenPage: TypeAlias = "Callable[..., Page]"
Serve: TypeAlias = Callable[..., str]
Show: TypeAlias = "Callable[..., Page]"

PATIENCE: int = 60_000
"""Milliseconds that a test waits for an expected state: many tests share two processors."""

REPORTS = """
    window.reports = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.reports.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
"""Records violations of the content security policy."""


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    """Playwright, only while this package's tests run: its event loop must not affect others."""
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
    """Return a function that serves a service's console with these options and returns its URL."""
    with ExitStack() as stack:
        yield lambda service, **options: stack.enter_context(console_of(service, **options))


@pytest.fixture
def stage(serve: Serve) -> Iterator[Stage]:
    """A service whose work the test controls; the work ends before a server would wait for it."""
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

    If a handler fails because its page was closed, Playwright raises the error in a later test.
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
    """One test's browser context, closed before a server would wait for its connections."""
    with window(browser, viewport={"width": 1280, "height": 900}) as opened:
        opened.add_init_script(REPORTS)
        yield opened


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[OpenPage]:
    """Return a function that opens a URL in a tab; check that no script fails or breaks the CSP."""
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
    """Return a function that opens the console of ``stage`` at a fragment of its URL."""
    return lambda fragment="": open_page(site + fragment)


@pytest.fixture
def scripted(context: BrowserContext) -> Scripted:
    """Scripted replies to the page's requests."""
    made = Scripted()
    made.answer_for(context)
    return made


@pytest.fixture
def work(stage: Stage) -> str:
    """The name of an operation of ``stage`` whose steps have the key ``work``."""
    return stage.start("work")


@pytest.fixture
def beside(stage: Stage, open_page: OpenPage, serve: Serve) -> Show:
    """Return a function that serves another console of ``stage`` with options and opens it."""
    return lambda **options: open_page(serve(stage.service, **options))


@pytest.fixture
def page(show: Show) -> Page:
    """The console of ``stage``, open at its list."""
    return show()
