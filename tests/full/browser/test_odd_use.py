"""Odd addresses, data and clicks: the page reports errors and stays usable."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pytest

from tests.full.browser.conftest import PATIENCE, BrowserContext, Page, Show
from tests.full.browser.reading import dialog, panel, row, shows
from tests.full.browser.scripted import SESSION, Scripted
from tests.full.browser.staged import Stage

expect = pytest.importorskip("playwright.sync_api").expect

GO: Final = "(hash) => { location.hash = hash; }"
HOURS: Final = """
    const real = Date.now, late = 5 * 3600 * 1000;
    Date.now = () => real() + late;
"""
COUNT_WRITES: Final = """
    window.writes = 0;
    const write = JSON.stringify;
    JSON.stringify = (...given) => { window.writes++; return write(...given); };
"""
ANSWER_CANCELS: Final = """
    const real = fetch;
    window.most = window.open_ = 0;
    window.fetch = async (url, options) => {
        if (!String(url).endsWith(":cancel")) return real(url, options);
        window.most = Math.max(window.most, ++window.open_);
        await new Promise((done) => setTimeout(done));
        window.open_--;
        const busy = /7:cancel$/.test(url);
        const error = {error: {code: 9, status: "FAILED_PRECONDITION", message: "It is busy."}};
        return new Response(JSON.stringify(busy ? error : {}), {status: busy ? 400 : 200});
    };
"""
"""A script that answers Cancel requests in the page: a test would answer 1,000 too slowly."""

EACH_TAB: Final = """async (names) => {
    const frame = () => new Promise(requestAnimationFrame), found = [];
    for (const name of names) {
        document.querySelector(".view").remove();
        location.hash = `#/${name}`;
        while (!document.querySelector(".now")?.checkVisibility()) await frame();
        for (const each of document.querySelectorAll("[role=tab]")) {
            each.click();
            await frame();
        }
        found.push([name, document.querySelector("#panel").textContent]);
    }
    return found;
}"""
"""A script that opens each tab of each operation and returns the text of the last tab, Raw."""


def test_any_url_fragment_shows_a_view(page: Page, site: str) -> None:
    """For any URL fragment the page shows a view and sends requests only to its usual paths."""
    asked: list[str] = []
    page.on("request", lambda one: asked.append(urlsplit(one.url).path))
    for hash in (
        "#",
        "#/?",
        "#/?filter=%E0%A4%A&parent=%00",
        "#/?filter=a&filter=b&__proto__=c",
        "#/?parent=projects/x/../../..",
        "#/operations/",
        "#/operations/..%2F..%2Fsession",
        "#/operations/x?tab=__proto__",
        "#/operations/a%3Ab%3Acancel",
        "#/../session",
        "#/%2e%2e/session?tab=raw",
        "#/toString",
        "#/overview?minutes=99999999999",
        "#/" + "a/" * 2_000,
        "#/" + quote("\u202e😀"),
        "#<img src=x onerror=alert(1)>",
    ):
        page.evaluate(GO, hash)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.evaluate(GO, "#/")
    expect(page.get_by_text("There are no operations yet.")).to_be_visible()
    page.reload()
    below = ("/v1/", "/tally", "/session", "/console.", "/views.", "/icon.")
    assert [path for path in asked if path != "/" and not path.startswith(below)] == []
    assert asked.count("/session") == 1


def test_deleted_operations_are_marked_as_gone(stage: Stage, show: Show) -> None:
    """If a shown operation is deleted elsewhere, the page marks it and offers no action for it."""
    ended, running, kept = stage.start("ended"), stage.start("running"), stage.start("kept")
    stage.succeed("ended")
    stage.ended(ended)
    page = show()
    shows(page, ended, "Succeeded")
    shows(page, running, "In progress")
    stage.service.delete(ended)
    stage.service.delete(running)
    shows(page, ended, "Gone")
    shows(page, running, "Gone")
    shows(page, kept, "In progress")
    page.get_by_role("link", name=ended[-8:]).click()
    expect(page.get_by_text("there is no operation")).to_be_visible()
    page.go_back()
    expect(row(page, ended)).to_have_count(0)
    page.get_by_role("link", name=kept[-8:]).click()
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()
    stage.service.delete(kept)
    expect(page.get_by_text("It is no longer there")).to_be_visible()
    expect(page.get_by_role("button", name="…")).to_have_count(0)


def test_ages_follow_the_clock_of_the_server(
    context: BrowserContext, stage: Stage, show: Show
) -> None:
    """If the browser's clock is five hours fast, the page still shows correct ages."""
    context.add_init_script(HOURS)
    name = stage.start("work")
    stage.progress("work", 0.5)
    page = show()
    expect(row(page, name)).to_contain_text("s ago")
    expect(row(page, name)).not_to_contain_text(re.compile(r"\d h "))
    page.get_by_label("Created", exact=True).select_option("3600")
    expect(row(page, name)).to_be_visible()
    page.get_by_role("link", name=name[-8:]).click()
    expect(page.locator(".timeline")).to_contain_text("Began")
    assert not re.search(r"\d h ", page.locator(".now").inner_text())


def test_response_of_5_megabytes_is_written_once(
    context: BrowserContext, show: Show, scripted: Scripted
) -> None:
    """The page shows the beginning of a large response and does not serialize it every second."""
    context.add_init_script(COUNT_WRITES)
    context.clock.install()
    response = {f"key{number}": "x" * 90 for number in range(50_000)}
    made = {"name": "operations/big", "done": True, "response": response}
    scripted.operations["operations/big"] = made
    page = show("#/operations/big")
    expect(panel(page)).to_contain_text("The first 64 KB of 5.4 MB.")
    expect(page.get_by_role("button", name="Show all")).to_have_count(0)
    before = page.evaluate("window.writes")
    page.clock.run_for(2_200)
    assert page.evaluate("window.writes") - before < 50
    with page.expect_download() as loading:
        page.get_by_role("button", name="Download").click()
    assert json.loads(loading.value.path().read_text()) == response


def test_1000_operations_are_cancelled_though_some_refuse(
    context: BrowserContext, show: Show, scripted: Scripted
) -> None:
    """Eight Cancel requests run at a time; all results are shown, also after refusals."""
    context.add_init_script(ANSWER_CANCELS)
    for number in range(1_003):
        name = f"operations/{number:08}"
        scripted.operations[name] = {"name": name}
    page = show()
    page.get_by_label("Mark 00000000").check()
    page.get_by_label("all that the filter matches").check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Yes, cancel").dblclick()
    done = "900 done, 100 refused. Only the first 1,000 of them."
    expect(dialog(page)).to_contain_text(done, timeout=5 * PATIENCE)  # 1,000 results are slow
    assert page.evaluate("window.most") == 8
    expect(dialog(page).get_by_role("listitem")).to_have_count(1_000)
    expect(dialog(page).get_by_role("listitem").filter(has_text="It is busy.")).to_have_count(100)


def test_reload_closes_a_dialog_without_its_action(stage: Stage, work: str, page: Page) -> None:
    """Reload, Back and Forward close an open dialog without running its action."""
    page.get_by_role("link", name=work[-8:]).click()
    page.get_by_role("button", name="Cancel…").click()
    page.reload()
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()
    expect(dialog(page)).to_have_count(0)
    page.get_by_role("button", name="Delete…").dblclick()
    expect(dialog(page)).to_have_count(1)
    page.go_back()
    expect(row(page, work)).to_be_visible()
    expect(dialog(page)).to_have_count(0)
    page.go_forward()
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()
    assert not stage.service.get(work, view="FULL").description.cancel_requested


def deep(levels: int) -> dict[str, Any]:
    """Return a JSON object nested to this depth."""
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"a": found}
    return found


ODD: Final[list[Any]] = [
    None, 0, "", "text", [], {}, True, [None, 1, "x", []], {"@type": 5}, {"@type": None}, deep(300)
]  # fmt: skip


def test_messages_of_any_form_are_shown(show: Show, scripted: Scripted) -> None:
    """Each tab shows messages of any JSON form, which a foreign server may send."""
    for at, field in enumerate(("metadata", "response", "error", "details", "more")):
        for number, value in enumerate(ODD):
            name = f"operations/{field}-{number:04}"
            made = {"name": name, "done": field != "metadata", field: value}
            if field == "details":
                made["error"] = {"code": "x", "message": value, field: value}
            scripted.operations[name] = made
            scripted.descriptions[name] = {"name": name, "method": value, "createTime": value}
            scripted.descriptions[name] |= {"startTime": value} if at % 2 else {}
    scripted.session = {**SESSION, "links": {"logs": "https://x.test/{name}"}}
    scripted.page_size = len(scripted.operations)
    page = show()
    expect(page.get_by_role("row")).to_have_count(len(scripted.operations) + 1)
    for name, shown in page.evaluate(EACH_TAB, list(scripted.operations)):
        assert f'"{name}"' in shown


@pytest.mark.parametrize(
    "answer",
    ["null", "[]", "5", '""', "{}", '{"operations": 5}', '{"operations": [null, 5, {}]}', "<p>"],
)
def test_invalid_reply_to_a_list_shows_an_error(
    context: BrowserContext, show: Show, answer: str
) -> None:
    """After an invalid reply to a List, the page shows an error and its other views work."""
    context.route("**/v1/operations?*", lambda route: route.fulfill(body=answer))
    page = show()
    expect(page.locator("#trouble, .note").filter(has_text=".")).not_to_have_count(0)
    page.get_by_role("link", name="Methods").click()
    expect(page.get_by_role("heading", name="Methods")).to_be_visible()
