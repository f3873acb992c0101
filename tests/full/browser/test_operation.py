"""The view of one operation: state, timeline, messages, and commands to copy."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest

import lro
from lro.types import BadRequest, FieldViolation, Help, HelpLink, RetryInfo
from tests.full.browser.conftest import Page, Show
from tests.full.browser.reading import open_operation, panel, tab
from tests.full.browser.scripted import Scripted
from tests.full.browser.staged import ImportMetadata, ImportResponse, Stage

expect = pytest.importorskip("playwright.sync_api").expect


def test_progress_and_time_line_follow_the_work(stage: Stage, work: str, page: Page) -> None:
    """Progress and timeline are updated from start to end without a reload."""
    open_operation(page, work)
    expect(page.get_by_role("heading", level=1)).to_have_text("ReResize")
    stage.progress("work", 0.25, "scaling")
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.25")
    expect(page.get_by_text("25 %")).to_be_visible()
    line = page.get_by_role("list").filter(has_text="Created")
    expect(line).to_contain_text("Began")
    stage.succeed("work")
    expect(line).to_contain_text("Succeeded")
    expect(line).to_contain_text("Expires")
    expect(page.get_by_role("button", name="Cancel…")).to_be_hidden()


def test_details_of_errors_are_drawn_by_their_types(stage: Stage, work: str, show: Show) -> None:
    """BadRequest is shown as a table of fields and Help as links; unsafe links become text."""
    violation = FieldViolation(field="source.rows", description="is too long")
    links = (
        HelpLink(description="the manual", url="https://acme.test/manual"),
        HelpLink(description="a trap", url="javascript:alert(1)"),
    )
    extra = (BadRequest(field_violations=(violation,)), Help(links=links), RetryInfo())
    stage.fail("work", lro.StatusError(lro.Code.INVALID_ARGUMENT, "rows are wrong", extra=extra))
    stage.ended(work)
    page = show(f"#/{work}")
    expect(tab(page, "Error")).to_have_attribute("aria-selected", "true")
    expect(panel(page)).to_contain_text("INVALID_ARGUMENT rows are wrong")
    expect(panel(page).get_by_role("row", name="source.rows")).to_contain_text("is too long")
    expect(panel(page).get_by_role("link")).to_have_count(1)
    expect(panel(page).get_by_role("link")).to_have_attribute("href", "https://acme.test/manual")
    expect(panel(page)).to_contain_text("a trap (javascript:alert(1))")


def test_failed_attempts_are_shown_as_they_happen(stage: Stage, work: str, show: Show) -> None:
    """Without a reload the view shows the worker, the failed attempt, and the next due time."""
    page = show(f"#/{work}")
    facts = page.locator(".side section").first
    expect(facts).to_contain_text(f"Worker{socket.gethostname()}, PID {os.getpid()}")
    tried = page.get_by_role("region", name="Failed attempts")
    expect(tried).to_be_hidden()
    text = "<img src=x onerror=alert(1)>"
    stage.fail("work", lro.RetryLater(timedelta(hours=1), text))
    expect(tried.get_by_role("row")).to_have_count(2)
    expect(tried.get_by_role("columnheader").first).to_have_text("Attempt")
    expect(tried.get_by_role("row").last).to_contain_text("RetryLater")
    expect(tried.get_by_role("cell").last).to_have_text(text)
    expect(facts).to_contain_text("Due")
    expect(facts).not_to_contain_text("process")
    line = page.get_by_role("list").filter(has_text="Created")
    expect(line.get_by_role("listitem").nth(2)).to_contain_text("waits until")
    expect(line).not_to_contain_text("ran")


@pytest.mark.parametrize(
    ("due", "text"),
    [("2130-01-02T12:04:05Z", "waits until"), ("2020-01-02T12:04:05Z", "waits for a worker")],
)
def test_waiting_work_says_for_what_it_waits(scripted: Scripted, show: Show, due, text) -> None:
    """Work that is due later waits for its time, and work that is due waits for a worker."""
    scripted.operations["operations/b"] = {"name": "operations/b"}
    created = {"createTime": "2020-01-02T12:04:05Z", "dueTime": due}
    scripted.descriptions["operations/b"] = {"name": "operations/b", **created}
    page = show("#/operations/b")
    line = page.get_by_role("list").filter(has_text="Created")
    expect(line).to_contain_text(text)
    expect(line).to_contain_text("Not begun")
    expect(page.locator(".meter")).to_contain_text(text)


def test_expiry_priority_and_origin_are_shown_in_rows(scripted: Scripted, show: Show) -> None:
    """Rows show latest start, priority and origin; an origin that is an operation is a link."""
    moment = "2030-01-02T12:04:05Z"
    scripted.operations["operations/b"] = {"name": "operations/b"}
    known = {"name": "operations/b", "state": "IN_PROGRESS", "origin": "p/q/operations/a b"}
    scripted.descriptions["operations/b"] = {**known, "beginBefore": moment, "priority": -5}
    page = show("#/operations/b")
    facts = page.locator(".side section").first
    expect(facts).to_contain_text("Begins before2 Jan 2030")
    expect(facts).to_contain_text("Priority-5")
    link = facts.get_by_role("link", name="p/q/operations/a b")
    expect(link).to_have_attribute("href", "#/p/q/operations/a%20b")
    scripted.descriptions["operations/b"] = {**known, "origin": "schedule nightly"}
    page.reload()
    expect(facts).to_contain_text("Started byschedule nightly")
    expect(facts.get_by_role("link")).to_have_count(0)
    expect(facts).not_to_contain_text("Priority")


def test_tabs_are_moved_by_arrows(work: str, show: Show) -> None:
    page = show(f"#/{work}")
    tab(page, "Metadata").focus()
    page.keyboard.press("ArrowRight")
    expect(tab(page, "Response")).to_be_focused()
    expect(panel(page)).to_contain_text("There is no response yet.")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(tab(page, "Raw")).to_be_focused()
    assert "tab=raw" in page.url


def test_node_with_many_fields_is_collapsed_at_first(stage: Stage, show: Show) -> None:
    labels = {f"label {number}": "x" for number in range(150)}
    name = stage.start("work", load=True)
    stage.do("work", lambda job: job.report(ImportMetadata(dataset="a", labels=labels)))
    page = show(f"#/{name}")
    expect(panel(page).get_by_text("150 fields")).to_be_visible()
    expect(panel(page).get_by_text("label 7:")).to_have_count(0)
    panel(page).get_by_text("150 fields").click()
    expect(panel(page).get_by_text("label 7", exact=True)).to_be_visible()
    panel(page).get_by_role("button", name="50 more").click()
    expect(panel(page).get_by_text("label 149", exact=True)).to_be_visible()
    stage.do("work", lambda job: job.report(ImportMetadata(dataset="b", labels=labels)))
    expect(panel(page)).to_contain_text('"b"')
    expect(panel(page).get_by_text("label 7", exact=True)).to_be_visible()


def test_large_messages_are_cut_until_the_reader_expands_them(stage: Stage, show: Show) -> None:
    """Of a large message the panel shows the first 64 KB; buttons show or download all of it."""
    name = stage.start("work", load=True)
    stage.do("work", lambda job: job.report(ImportMetadata(dataset="x" * 100_000 + "end")))
    stage.do("work", lambda _: ImportResponse(rows=1))
    stage.ended(name)
    page = show(f"#/{name}?tab=metadata")
    expect(panel(page)).to_contain_text("The first 64 KB")
    expect(panel(page)).not_to_contain_text("xend")
    with page.expect_download() as download:
        panel(page).get_by_role("button", name="Download").click()
    assert download.value.path().stat().st_size > 100_000
    panel(page).get_by_role("button", name="Show all").click()
    expect(panel(page)).to_contain_text("xend")


def test_commands_name_the_server(work: str, show: Show, site: str) -> None:
    """The commands to copy name the URL of the console's server and are quoted for a shell."""
    page = show(f"#/{work}")
    expect(page.get_by_text(f"curl '{site}v1/{work}'")).to_be_visible()
    expect(page.get_by_text(f"lro watch '{work}' --server {site.rstrip('/')}")).to_be_visible()
    expect(page.get_by_text(f'client.operation("{work}")')).to_be_visible()


def test_commands_name_the_server_of_the_session(scripted: Scripted, show: Show, site: str) -> None:
    """Commands name the session's server, not the page's secret URL; curl may send a token."""
    scripted.operations["operations/b"] = {"name": "operations/b"}
    scripted.session |= {"server": "https://counts.example.com/api/v1beta1", "caller": ""}
    page = show("#/operations/b")
    url = "https://counts.example.com/api/v1beta1/operations/b"
    expect(page.get_by_text(f"curl '{url}'")).to_be_visible()
    server = "https://counts.example.com/api"
    way = f"lro watch 'operations/b' --server {server} --prefix /v1beta1"
    expect(page.get_by_text(way)).to_be_visible()
    expect(page.get_by_text(f'with Client("{server}", routes=Routes.below(')).to_be_visible()
    assert site.split("//")[1] not in page.locator(".side").inner_text()
    scripted.session["token"] = True
    page.reload()
    bearer = '-H "Authorization: Bearer $LRO_TOKEN"'
    expect(page.get_by_text(f"curl {bearer} '{url}'")).to_be_visible()
    scripted.session |= {"token": False, "caller": "ann"}
    page.reload()
    expect(page.get_by_text(f"curl {bearer} '{url}'")).to_be_visible()


def test_copy_without_a_clipboard_shows_the_text(work: str, show: Show, site: str) -> None:
    """If the browser has no clipboard (plain HTTP), a dialog shows the text to copy."""
    page = show(f"#/{work}")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.get_by_role("button", name="Copy lro").click()
    box = page.get_by_role("textbox", name="Copy this text")
    expect(box).to_have_value(f"lro watch '{work}' --server {site.rstrip('/')}")
