"""The list of operations: its columns, live updates and filter."""

from __future__ import annotations

import pytest

import lro
from tests.full.browser.conftest import BrowserContext, Page, Show
from tests.full.browser.reading import row, shows
from tests.full.browser.scripted import SESSION, Scripted
from tests.full.browser.staged import Stage

expect = pytest.importorskip("playwright.sync_api").expect


def test_row_shows_state_method_progress_and_error(stage: Stage, show: Show) -> None:
    moving, failed = stage.start("moving"), stage.start("failed")
    stage.fail("failed", lro.StatusError(lro.Code.UNAVAILABLE, "the disk is full"))
    stage.ended(failed)
    stage.progress("moving", 0.4, "reading rows")
    page = show()
    shows(page, moving, "In progress", "Resize", "40 %", "reading rows")
    shows(page, failed, "Failed", "UNAVAILABLE", "the disk is full")


def test_progress_is_shown_while_it_happens(stage: Stage, work: str, page: Page) -> None:
    """A row is updated without a reload, and its link keeps the focus."""
    here = row(page, work)
    link = here.get_by_role("link")
    link.focus()
    for fraction in (0.1, 0.5, 0.9):
        stage.progress("work", fraction, f"step {fraction}")
        expect(here).to_contain_text(f"{round(100 * fraction)} %")
    stage.succeed("work")
    expect(here).to_contain_text("Succeeded")
    expect(link).to_be_focused()


def test_new_operations_wait_behind_a_button(stage: Stage, show: Show) -> None:
    """New operations appear when a button is pressed, so that no row moves under the pointer."""
    first = stage.start("first")
    page = show()
    expect(row(page, first)).to_be_visible()
    top = page.locator("table.ops").evaluate("node => node.getBoundingClientRect().top")
    second = stage.start("second")
    button = page.get_by_role("button", name="1 new")
    expect(button).to_be_visible()
    expect(row(page, second)).to_have_count(0)
    # The button covers no column header, and the rows do not move.
    edges = "node => [node.getBoundingClientRect().top, node.getBoundingClientRect().bottom]"
    assert button.evaluate(edges)[1] <= page.locator("#filter").evaluate(edges)[0]
    assert page.locator("table.ops").evaluate(edges)[0] == top
    with page.expect_request("**/tally*"):  # the counts are read again
        button.click()
    expect(row(page, second)).to_be_visible()
    expect(page.get_by_role("row").nth(1)).to_contain_text(second[-8:])


def test_chips_write_the_filter_and_the_address_keeps_it(stage: Stage, show: Show) -> None:
    """A chip adds a condition to filter and URL; a second press removes it; Back restores it."""
    running, failed = stage.start("running"), stage.start("failed")
    stage.fail("failed", lro.StatusError(lro.Code.ABORTED, "no"))
    stage.ended(failed)
    page = show()
    page.get_by_role("button", name="Failed").click()
    expect(page.get_by_role("searchbox", name="Filter")).to_have_value("state() = FAILED")
    expect(row(page, failed)).to_be_visible()
    expect(row(page, running)).to_have_count(0)
    assert "filter=state" in page.url
    page.reload()
    expect(page.get_by_role("button", name="Failed")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Failed").click()
    expect(row(page, running)).to_be_visible()
    page.go_back()
    expect(row(page, running)).to_have_count(0)


def test_chips_keep_the_other_tests_of_a_filter(page: Page) -> None:
    box = page.get_by_role("searchbox", name="Filter")
    rest = 'name = "a AND b" AND (done = true OR NOT (done = true AND name = "c)"))'
    box.fill(f"{rest} AND state() = FAILED")
    box.press("Enter")
    page.get_by_role("button", name="Succeeded").click()
    expect(box).to_have_value(f"{rest} AND state() = SUCCEEDED")


def test_wrong_filter_is_marked_at_its_character(page: Page) -> None:
    """The wrong part of a filter is marked, and a button applies the server's correction."""
    box = page.get_by_role("searchbox", name="Filter")
    box.fill('name = "😀" AND state = FAILED')
    box.press("Enter")
    expect(page.locator("mark")).to_have_text("state")
    expect(page.get_by_role("alert")).to_contain_text("at character 15")
    page.get_by_role("button", name="state()").click()
    expect(box).to_have_value('name = "😀" AND state() = FAILED')
    expect(page.get_by_text("No operation matches this filter.")).to_be_visible()


def test_parents_are_chosen_from_a_list(stage: Stage, beside: Show) -> None:
    here, there = stage.start("here"), stage.start("there", "projects/p")
    page = beside(parents=["projects/p"])
    expect(row(page, here)).to_be_visible()
    page.get_by_label("Parent").select_option("projects/p")
    expect(row(page, there)).to_be_visible()
    expect(row(page, here)).to_have_count(0)
    page.get_by_role("link", name=there[-8:]).click()
    expect(page.get_by_text(there).first).to_be_visible()


def test_list_works_if_the_server_refuses_views(
    context: BrowserContext, scripted: Scripted, show: Show
) -> None:
    """If a request with ``view`` is refused, the page sends no more of them and still works."""
    scripted.views, scripted.session = False, {**SESSION, "refreshSeconds": 1}
    for name in ("operations/first000", "operations/other000"):
        scripted.operations[name] = {"name": name, "done": True}
    asked: list[str] = []
    context.on("request", lambda one: asked.append(one.url))
    page = show()
    shows(page, "operations/other000", "Succeeded")
    del scripted.operations["operations/first000"]
    shows(page, "operations/first000", "Gone")
    shows(page, "operations/other000", "Succeeded")
    assert sum("view=" in url for url in asked) == 1
