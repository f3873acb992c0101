"""Actions on one or many operations, by mouse and by keyboard; paused methods."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

import lro
from tests.full.browser.conftest import Show
from tests.full.browser.reading import act, dialog, open_operation, row, shows
from tests.full.browser.staged import ResizeRequest, Stage
from tests.waiting import until

expect = pytest.importorskip("playwright.sync_api").expect


def test_cancel_explains_itself_and_shows_the_request(stage: Stage, show: Show) -> None:
    """The dialog explains Cancel; until the work stops, the page shows "not stopped yet"."""
    name = stage.start("busy")
    page = show()
    expect(row(page, name)).to_contain_text("Resize")  # wait until the page has the description
    open_operation(page, name)
    stage.pause("busy")
    page.get_by_role("button", name="Cancel…").click()
    expect(dialog(page)).to_contain_text("Cancel Resize")
    expect(dialog(page)).to_contain_text("stops when it next looks")
    dialog(page).get_by_role("button", name="Yes, cancel").click()
    expect(dialog(page)).to_have_count(0)
    expect(page.get_by_text("not stopped yet")).to_be_visible()
    stage.go_on("busy")
    expect(page.locator(".big")).to_have_text("Cancelled")


def test_dismissed_dialog_changes_nothing(stage: Stage, work: str, show: Show) -> None:
    """Escape closes the dialog of Delete, deletes nothing and returns the focus to the button."""
    page = show(f"#/{work}")
    button = page.get_by_role("button", name="Delete…")
    button.click()
    expect(dialog(page)).to_contain_text("Delete does not stop it")
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    expect(button).to_be_focused()
    assert not stage.service.get(work).done


def test_marked_rows_are_cancelled_together(stage: Stage, show: Show) -> None:
    """The dialog lists the result of Cancel for each marked operation."""
    names = [stage.start(f"work {number}") for number in range(3)]
    page = show()
    for name in names[:2]:
        row(page, name).get_by_role("checkbox").check()
    expect(page.get_by_text("2 marked")).to_be_visible()
    act(page, "Cancel")
    expect(dialog(page)).to_contain_text("2 done, 0 refused.")
    expect(dialog(page).get_by_role("listitem")).to_have_count(2)
    dialog(page).get_by_role("button", name="Close").click()
    for name in names[:2]:
        shows(page, name, "Cancelled")
    expect(row(page, names[2])).not_to_contain_text("Cancelled")


def test_all_that_the_filter_matches_is_deleted(stage: Stage, show: Show) -> None:
    names = [stage.start(f"work {number}") for number in range(60)]
    for number, name in enumerate(names):
        stage.succeed(f"work {number}")
        stage.ended(name)
    kept = stage.start("kept")
    page = show("#/?filter=state()%20%3D%20SUCCEEDED%20OR%20done%20%3D%20true")
    expect(page.get_by_role("row")).to_have_count(51)
    page.get_by_role("checkbox", name="Mark all that are shown").check()
    page.get_by_label("all that the filter matches").check()
    act(page, "Delete")
    expect(dialog(page)).to_contain_text("60 done, 0 refused.")
    left = stage.service.list(lro.wire.ListOperationsRequest()).operations
    assert [one.name for one in left] == [kept]


def test_first_refusal_stops_the_rest(stage: Stage, beside: Show) -> None:
    """After a PERMISSION_DENIED, the page sends no more requests for the other marked rows."""
    for number in range(20):
        stage.start(f"work {number}")
    asked = []

    def allow(caller: str, action: str, name: str) -> bool:
        asked.append(name)
        return not name  # an empty name asks whether the page shows the buttons

    page = beside(allow=allow)
    page.get_by_role("checkbox", name="Mark all that are shown").check()
    act(page, "Cancel")
    expect(dialog(page)).to_contain_text("the server allows no more")
    assert 1 <= len([name for name in asked if name]) <= 8


def test_failed_work_is_rerun_by_its_button(stage: Stage, show: Show, beside: Show) -> None:
    """If the console allows reruns, a button starts failed work again as a new operation."""
    name = stage.start("work")
    stage.fail("work", lro.StatusError(lro.Code.UNAVAILABLE, "away"))
    assert stage.ended(name).error
    page = beside(actions=("delete",))
    open_operation(page, name)
    expect(page.get_by_role("button", name="Delete…")).to_be_visible()
    expect(page.get_by_role("button", name="Start again…")).to_have_count(0)
    page = show(f"#/{name}")
    page.get_by_role("button", name="Start again…").click()
    expect(dialog(page)).to_contain_text("with the same request")
    dialog(page).get_by_role("button", name="Yes, start").click()
    expect(page.locator(".big")).to_have_text("In progress")
    expect(page.get_by_role("button", name="Start again…")).to_have_count(0)
    listed = stage.service.list(lro.wire.ListOperationsRequest()).operations
    (again,) = [one.name for one in listed if one.name != name]
    assert page.url.endswith(again)
    page = show(f"#/{name}")
    expect(page.get_by_role("link", name=again)).to_be_visible()
    expect(page.get_by_role("button", name="Start again…")).to_have_count(0)


RESIZE = "acme.images.v1.Images.Resize"


def card(page: Any) -> Any:
    """Return the card of the method Resize."""
    return page.locator("section.card").filter(has=page.get_by_role("heading", name="Resize"))


def test_method_is_paused_and_resumed(stage: Stage, show: Show) -> None:
    """The page asks for confirmation before a pause, then shows since when the method is paused."""
    page = show("#/methods")
    resize = card(page)
    resize.get_by_role("button", name="Pause…").click()
    expect(dialog(page)).to_contain_text("Pause Resize?")
    dialog(page).get_by_role("button", name="Close").click()
    assert stage.service.paused() == {}
    resize.get_by_role("button", name="Pause…").click()
    dialog(page).get_by_role("button", name="Yes, pause").click()
    expect(resize).to_contain_text("Paused since")
    expect(resize.get_by_role("button", name="Resume")).to_be_focused()
    assert [*stage.service.paused()] == [RESIZE]
    resize.get_by_role("button", name="Resume").click()
    expect(resize.get_by_role("button", name="Pause…")).to_be_focused()
    expect(resize).not_to_contain_text("Paused since")
    assert stage.service.paused() == {}


def test_pauses_and_schedules_are_shown_to_those_who_only_look(stage: Stage, beside: Show) -> None:
    """Without the action "pause" the page only shows pauses; a refused action shows an error."""
    stage.service.schedule("nightly", timedelta(days=1), stage.resize, ResizeRequest())
    stage.service.edges.start_maintenance()
    (known,) = until(stage.service.schedules)
    stage.service.pause(RESIZE)
    page = beside(actions=("cancel",))
    page.get_by_role("link", name="Methods").click()
    nightly = page.get_by_role("row").filter(has_text="nightly")
    expect(nightly).to_contain_text("Resize")
    expect(nightly).to_contain_text("every 1 day")
    shown = nightly.locator("time").get_attribute("datetime") or ""
    assert datetime.fromisoformat(shown) == known.next_tick
    expect(card(page)).to_contain_text("Paused since")
    assert page.get_by_role("button", name="Resume").count() == 0
    page = beside(allow=lambda caller, action, name: not name)
    page.get_by_role("link", name="Methods").click()
    card(page).get_by_role("button", name="Resume").click()
    expect(page.get_by_role("alert").filter(has_text="may not do this")).to_be_visible()
    assert [*stage.service.paused()] == [RESIZE]


def test_every_action_works_by_keyboard(stage: Stage, show: Show) -> None:
    """The keyboard alone can filter, move, mark, cancel, open and delete."""
    first, second = stage.start("first"), stage.start("second")
    page = show()
    expect(row(page, first)).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Filter")).to_be_focused()
    page.keyboard.type("done = false")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(row(page, second)).to_be_visible()
    page.keyboard.press("j")
    expect(row(page, second).get_by_role("link")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(row(page, first).get_by_role("link")).to_be_focused()
    page.keyboard.press("x")
    expect(row(page, first).get_by_role("checkbox")).to_be_checked()
    page.keyboard.press("c")
    expect(dialog(page)).to_be_visible()
    page.keyboard.press("Tab")
    expect(dialog(page).get_by_role("button", name="Yes, cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog(page)).to_have_count(0)
    shows(page, first, "Cancelled")
    expect(row(page, first).get_by_role("link")).to_be_focused()
    page.keyboard.press("x")
    page.keyboard.press("Enter")
    expect(page.locator(".big")).to_have_text("Cancelled")
    page.keyboard.press("d")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(row(page, second)).to_be_visible()
    expect(row(page, first)).to_have_count(0)
    with pytest.raises(lro.errors.OperationNotFound):
        stage.service.get(first)


def test_single_keys_can_be_switched_off(stage: Stage, show: Show) -> None:
    """Single-key shortcuts can be switched off (WCAG 2.1.4); the choice survives a reload."""
    stage.start("work")
    page = show()
    page.get_by_role("button", name="Keys and settings").click()
    dialog(page).get_by_label("Single keys are on").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    expect(page.get_by_role("row")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("?")
    expect(dialog(page)).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).not_to_be_focused()
