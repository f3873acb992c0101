"""The site in Chromium: no external requests, search, both themes, small screens, accessibility."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("griffe")
pytest.importorskip("playwright.sync_api")
pytest.importorskip("axe_playwright_python")

import axe_playwright_python as axe
from playwright.sync_api import expect

from tests.full.browser.conftest import window
from tests.full.browser.test_accessibility import QUIET, RULES, RUN
from tests.full.site.conftest import served
from tools.site.building import sections

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

LOOKED_AT: Final = (
    "index.html",
    "tutorial/first-service.html",
    "how-to/write-a-method.html",
    "reference/stores-and-executors.html",
    "reference/api/lro_client.progress.html",
)
"""Pages that together have each kind of content: prose, code, tables, images, signatures."""
QUESTIONS: Final = tomllib.loads(Path(__file__).with_name("questions.toml").read_text("utf-8"))[
    "question"
]
SEEN: Final = 5
"""The number of search results at which a reader is expected to look."""


def pages() -> list[str]:
    """Return the HTML files of the first and the last page of each section."""
    ends = [entry for entries in sections().values() for entry in (entries[0], entries[-1])]
    return [re.sub(r"\.md$", ".html", page) for _, page in ends]


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open a tab; check at the end that no script failed, and no external request was sent."""
    failed: list[str] = []
    opened = context.new_page()
    opened.on("pageerror", lambda error: failed.append(str(error)))
    opened.on("requestfailed", lambda asked: failed.append(f"{asked.url}: {asked.failure}"))
    opened.on("request", lambda asked: None if own(asked.url) else failed.append(asked.url))
    yield opened
    opened.close()
    # The browser aborts requests when the reader leaves a page.
    assert [one for one in failed if not one.endswith("net::ERR_ABORTED")] == []


def own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:http://127.0.0.1:"))


def search(page: Page, words: str) -> Locator:
    """Type words into the search field, and return the results."""
    page.get_by_role("button", name="Search").click()
    page.get_by_role("combobox", name="Search").fill(words)
    return page.get_by_role("listbox", name="Search results").locator("a")


def test_pages_send_no_request_to_other_servers(page: Page, address: str) -> None:
    """Neither a page of any kind nor the search sends a request to another server."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in dict.fromkeys([*pages(), *LOOKED_AT, "404.html"]):
        page.goto(address + path)
    search(page, "operation")
    page.wait_for_load_state("networkidle")
    assert len(asked) > 100  # the fixture checks that every request goes to this server


def test_dark_theme_follows_the_system_and_the_button(page: Page, address: str) -> None:
    """The theme follows the system until the reader chooses one, which the next page keeps."""
    page.goto(address)
    body = page.locator("body")
    expect(body).to_have_attribute("data-md-color-scheme", "default")
    page.get_by_title("Switch to dark mode").click()
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    page.goto(address + "how-to/client.html")
    expect(body).to_have_attribute("data-md-color-scheme", "slate")


@pytest.mark.parametrize("path", LOOKED_AT)
def test_page_is_accessible(browser: Browser, address: str, path: str) -> None:
    """Pages meet WCAG 2.2 AA in both themes, and nothing is wider than a screen of 320 px."""
    script = (Path(axe.__file__).parent / "axe.min.js").read_text()
    found = []
    for theme, width in (("light", 1280), ("dark", 320)):
        size = {"width": width, "height": 900}
        with window(browser, color_scheme=theme, viewport=size) as context:
            page = context.new_page()
            page.goto(address + path)
            page.add_style_tag(content=QUIET)
            page.evaluate(script)
            found += [f"{theme} {width}: {one}" for one in page.evaluate(RUN, [RULES, False])]
            sideways = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if sideways > 0:
                found.append(f"{theme} {width}: {sideways} pixels go sideways")
    assert not found, "\n".join(found)


def test_site_works_below_a_path(page: Page, built: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "1.2").symlink_to(built)
    with served(tmp_path) as url:
        page.goto(f"{url}docs/1.2/how-to/client.html")
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "default")
        page.get_by_role("link", name="Operate").first.click()
        assert page.url.startswith(f"{url}docs/1.2/how-to/")
        search(page, "WaitTimeout").first.click()
        page.wait_for_url(f"{url}docs/1.2/reference/api/**")


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked["asks"])
def test_answer_is_two_clicks_or_one_search_away(
    page: Page, address: str, built: Path, asked: Mapping[str, Any]
) -> None:
    """Each question's answer is at most two clicks from the front page, or one search away."""
    page.goto(address)
    clicks = asked.get("clicks", ())
    assert len(clicks) <= 2
    assert bool(clicks) != ("search" in asked)
    for text in clicks:
        page.get_by_role("link", name=text, exact=True).filter(visible=True).first.click()
    if not clicks:
        found = search(page, asked["search"])
        expect(found.first).to_be_visible()
        offered = [str(link.get_attribute("href")) for link in found.all()[:SEEN]]
        assert any(asked["page"] in link for link in offered), offered
        found.nth([asked["page"] in link for link in offered].index(True)).click()
    page.wait_for_url(f"{address}{asked['page']}*")
    expect(page.get_by_role("article")).to_contain_text(asked["says"], ignore_case=True)
