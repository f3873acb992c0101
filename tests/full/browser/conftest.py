"""One browser for these tests, a window of its own for each, and a real server with a console."""

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
else:  # so that tests can import them from here where there is no playwright
    Browser = BrowserContext = Page = Playwright = Any

OpenPage: TypeAlias = "Callable[..., Page]"
Serve: TypeAlias = Callable[..., str]
Show: TypeAlias = "Callable[..., Page]"

PATIENCE: int = 60_000
"""Milliseconds that a test waits for what it expects to see; two processors serve many tests."""

REPORTS = """
    window.reports = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.reports.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
"""Keeps what the content security policy has refused."""


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    """Playwright, until the tests of this package are over: its loop must not meet other tests."""
    pytest.importorskip("playwright.sync_api")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Chromium of the system, without a window."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium on the PATH")
    with playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as launched:
        yield launched


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves the console of a service, with options of ``ConsoleEdge``; gives its address."""
    with ExitStack() as stack:
        yield lambda service, **options: stack.enter_context(console_of(service, **options))


@pytest.fixture
def stage(serve: Serve) -> Iterator[Stage]:
    """A service whose work does what the test says; it ends before a server waits for it."""
    made = Stage()
    yield made
    made.close()


@pytest.fixture
def site(stage: Stage, serve: Serve) -> str:
    """The address of the console of ``stage``."""
    return serve(stage.service, title="Acme", refresh_seconds=1)


@contextmanager
def window(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A window with nothing remembered, closed when no handler of a route is at work any more.

    What a handler raises because its page has gone, Playwright raises in whichever test runs then.
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
    """The cookies and the storage of one test; it is closed before a server waits for it."""
    with window(browser, viewport={"width": 1280, "height": 900}) as opened:
        opened.add_init_script(REPORTS)
        yield opened


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[OpenPage]:
    """Opens an address in a tab; at the end no script has failed, and no policy was broken."""
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
    """Opens the console of ``stage`` in a tab, by what follows its address."""
    return lambda fragment="": open_page(site + fragment)


@pytest.fixture
def scripted(context: BrowserContext) -> Scripted:
    """What the page is answered in this test."""
    made = Scripted()
    made.answer_for(context)
    return made


@pytest.fixture
def work(stage: Stage) -> str:
    """The name of an operation of ``stage``, whose steps have the key ``work``."""
    return stage.start("work")


@pytest.fixture
def beside(stage: Stage, open_page: OpenPage, serve: Serve) -> Show:
    """Opens another console of ``stage`` in a tab, served with these options."""
    return lambda **options: open_page(serve(stage.service, **options))


@pytest.fixture
def page(show: Show) -> Page:
    """The console of ``stage``, open at its list."""
    return show()
