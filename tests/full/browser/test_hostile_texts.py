"""Hostile texts in every place where the page shows text are displayed and never run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import pytest

from tests.full.browser.conftest import Show
from tests.full.browser.hostile_texts import hostile_texts
from tests.full.browser.reading import tab
from tests.full.browser.scripted import SESSION, TALLY, Scripted

expect = pytest.importorskip("playwright.sync_api").expect

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request

TEXTS: Final = hostile_texts()
RPC: Final = "type.googleapis.com/google.rpc."
LEFT: Final = """() => [window.pwned, Object.prototype.polluted, ({}).isAdmin, Array.prototype.x,
    document.querySelectorAll("body script, iframe, object, embed, base, form[action], [onerror],"
        + " [onclick], [onload], [style], link[href*=evil], a[href^=javascript], img").length]"""
OUTSIDE: Final = """() => [...document.body.querySelectorAll("*:not(.scroll *, pre *, .json *)")]
    .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
    .map((each) => `${each.localName}.${each.className}: ${each.textContent.slice(0, 30)}`)"""
LEAVES: Final = """() => [...document.querySelectorAll("#panel .leaf")].map((leaf) => [
    leaf.querySelector(".key")?.textContent ?? "",
    leaf.querySelector(".string, .number, .boolean, .null")?.textContent])"""


def test_there_are_at_least_200_texts() -> None:
    assert len(set(TEXTS)) == len(TEXTS) >= 200


@pytest.fixture
def harmless(context: BrowserContext, site: str) -> Iterator[None]:
    """After the test, check that no script ran and no other server got a request."""
    found: list[str] = []

    def opened(dialog: Dialog) -> None:
        found.append(dialog.message)
        dialog.dismiss()

    def asked(request: Request) -> None:
        if not request.url.startswith(site):
            found.append(request.url)

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            found.append(message.text)

    context.on("dialog", opened)
    context.on("request", asked)
    context.on("console", said)
    yield
    for page in context.pages:
        assert page.evaluate(LEFT) == [None, None, None, None, 0]
    assert [one for one in found if not one.startswith("Failed to load")] == []


def sideways(page: Page) -> list[str]:
    """Return the elements that go beyond the right edge of a narrow or a wide window."""
    found = []
    for width in (320, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found += [f"{width}: {one}" for one in page.evaluate(OUTSIDE)]
    return found


def name_of(number: int, text: str) -> str:
    """Return an operation name that ends with the text, without the slashes."""
    return f"operations/{number}-{text.replace('/', '_') or 'empty'}"


def filled(text: str, number: int) -> dict[str, Any]:
    """Make an operation with the text in every field that the list shows."""
    key = text if text != "@type" else "other"
    return {
        "name": name_of(number, text),
        "metadata": {"@type": f"x/{text}", "statusMessage": text, "verb": text, key: text},
        **(
            {"done": True, "error": {"code": 99 if number % 2 else 14, "message": text}}
            if number % 3
            else {}
        ),
    }


def described(text: str, number: int) -> dict[str, Any]:
    """Make a description with the text as the method, the trace ID and all times."""
    times = dict.fromkeys(("createTime", "startTime", "endTime", "expireTime"), text)
    return {"method": text, "traceId": text, **times}


@pytest.mark.usefixtures("harmless")
def test_list_shows_hostile_texts_as_texts(show: Show, scripted: Scripted) -> None:
    """The list shows hostile texts in names, methods, progress, errors, parents and dialogs."""
    scripted.page_size = len(TEXTS)
    for number, text in enumerate(TEXTS):
        made = filled(text, number)
        scripted.operations[made["name"]] = made
        scripted.descriptions[made["name"]] = described(text, number)
    scripted.session = {
        **SESSION,
        "title": TEXTS[3],
        "caller": TEXTS[4],
        "version": TEXTS[5],
        "cancelSupport": "constructor",
        "parents": ["", *TEXTS],
        "methods": [{"name": text, "metadata": text, "fields": []} for text in TEXTS],
    }
    page = show()
    expect(page.get_by_role("row")).to_have_count(len(TEXTS) + 1)
    expect(page.locator(".brand")).to_have_text(TEXTS[3])
    options = page.get_by_label("Parent").locator("option")
    assert options.evaluate_all("all => all.map((each) => each.value)") == ["", *TEXTS]
    rows = page.locator("table.ops tbody tr").evaluate_all(
        "all => all.map((each) => [each.querySelector('.name').title, each.textContent])"
    )
    for (name, shown), (number, text) in zip(rows, enumerate(TEXTS), strict=True):
        assert name == name_of(number, text)
        if number % 3:
            assert text in shown
    hashes = page.locator(".name").evaluate_all("all => all.map((each) => each.hash)")
    assert hashes == [f"#/operations/{quote(name.split('/')[1], safe=SAFE)}" for name, _ in rows]
    assert sideways(page) == []
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text(f"You are {TEXTS[4]}.")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    for box in page.locator("table.ops tbody input").all()[:12]:
        box.press("Space")  # a click may miss, as rows move when times change
        expect(box).to_be_checked()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Yes, cancel").click()
    expect(page.get_by_role("dialog")).to_contain_text("done, 0 refused.")
    results = page.locator(".results li code").all_text_contents()
    assert sorted(results) == sorted(list(scripted.operations)[:12:3])


SAFE: Final = "!'()*~"
"""The characters that encodeURIComponent keeps but ``quote`` escapes by default."""


@pytest.mark.usefixtures("harmless")
def test_operation_shows_hostile_texts_as_texts(show: Show, scripted: Scripted) -> None:
    """Hostile texts are shown as keys, values and error details; links only lead to the web."""
    pairs = {text: text for text in TEXTS if text != "@type"}
    big = {"small": 2**53 + 1, "double": 1.10, "huge": 10**400, "less": -(2**63), "text": "1" * 30}
    each = {
        "ErrorInfo": {"reason": TEXTS[1], "metadata": pairs},
        "BadRequest": {"fieldViolations": [{"field": t, "description": t} for t in TEXTS]},
        "Help": {"links": [{"url": text, "description": text} for text in TEXTS]},
        "DebugInfo": {"stackEntries": TEXTS, "detail": TEXTS[2]},
        "RetryInfo": {"retryDelay": TEXTS[3]},
    }
    details = [{"@type": f"{RPC}{kind}", **value} for kind, value in each.items()]
    for text in TEXTS[:60]:
        details.append({"@type": f"{RPC}LocalizedMessage", "locale": text, "message": text})
        details.append({"@type": text, text: text})
    error = {"code": "7", "message": TEXTS[0], "details": details}
    made = {"name": "operations/all", "done": True, "response": big, "error": error}
    made["metadata"] = {"@type": "x/y", **pairs}
    body = json.dumps(made).replace('"double": 1.1', '"double": 1.10')
    scripted.operations["operations/all"] = body
    scripted.session = {
        **SESSION,
        "links": {"trace": "javascript:alert(1)//{trace_id}", "logs": "https://logs.test/{name}"},
    }
    told = {"name": "operations/all", "traceId": "$&", "origin": f"operations/{TEXTS[1]}"}
    told["rerun"] = told["origin"]
    told |= dict.fromkeys(("dueTime", "beginBefore", "priority", "workerHost"), TEXTS[2])
    each_failure = ("attempt", "time", "error", "text")
    failures = [*(dict.fromkeys(each_failure, text) for text in TEXTS), None, 5, {"text": [big]}]
    scripted.descriptions["operations/all"] = {**told, "workerPid": TEXTS[3], "failures": failures}
    page = show("#/operations/all")
    failed = page.get_by_role("region", name="Failed attempts").get_by_role("row")
    expect(failed).to_have_count(len(failures) + 1)
    cells = failed.evaluate_all("all => all.map((each) => each.lastChild.textContent)")
    assert cells[1 : len(TEXTS) + 1] == TEXTS
    facts = page.locator(".side section").first
    expect(facts).to_contain_text(f"{TEXTS[2]}, PID {TEXTS[3]}")
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text(TEXTS[0])
    shown = panel.text_content() or ""
    for text in TEXTS:
        assert text in shown
    links = page.locator("#panel a").evaluate_all("all => all.map((each) => each.href)")
    assert links
    assert all(link.startswith(("https://", "http://")) for link in links)
    outside = page.locator(".side a").evaluate_all("all => all.map((each) => each.href)")
    assert outside[2:] == ["https://logs.test/operations%2Fall"]
    here = page.url.partition("#")[0] + "#/operations/"
    assert all(link.startswith(here) for link in outside[:2])
    tab(page, "Metadata").click()
    while (more := page.get_by_role("button", name=" more")).count():
        more.first.click()
    leaves = page.evaluate(LEAVES)
    assert {key: json.loads(value) for key, value in leaves if key != "@type"} == pairs
    tab(page, "Response").click()
    numbers = dict(page.evaluate(LEAVES))
    assert numbers == {
        "small": "9007199254740993",
        "double": "1.10",
        "huge": "1" + "0" * 400,
        "less": "-9223372036854775808",
        "text": json.dumps("1" * 30),
    }
    tab(page, "Raw").click()
    expect(panel).to_contain_text('"operations/all"')
    for each in ("Metadata", "Response", "Error", "Raw"):
        tab(page, each).click()
        assert sideways(page) == []


@pytest.mark.usefixtures("harmless")
def test_other_views_show_hostile_texts_as_texts(show: Show, site: str, scripted: Scripted) -> None:
    """The view of methods and the overview show hostile texts without horizontal scrolling."""
    keys = ("name", "request", "response", "metadata", "path", "keepFor")
    limits = ("concurrency", "rate", "timeLimit", "attempts", "begins", "paused")
    methods = [
        {**dict.fromkeys(keys + limits, text), "fields": [{"path": text, "type": text}]}
        for text in TEXTS
    ]
    scripted.session = {**SESSION, "methods": methods, "actions": ["pause"]}
    now = {"waiting": 1, "running": 1}
    oldest = ("method", "oldestCreateTime", "oldestName")
    load = [now | dict.fromkeys(oldest, text) for text in TEXTS]
    workers = [{"owner": text, "operations": 1} for text in TEXTS]
    counts = {f"ends.failed.{text.replace('.', '')}": 2 for text in TEXTS} | dict.fromkeys(TEXTS, 3)
    points = [{"minute": "2026-11-25T11:59:00Z", "counts": counts}]
    in_progress = {"capped": True, "methods": load, "workers": workers}
    keys = ("name", "method", "expression", "timezone", "nextTick")
    upkeep = {
        "paused": [{"method": text, "since": text} for text in TEXTS],
        "schedules": [dict.fromkeys(keys, text) for text in TEXTS],
    }
    scripted.tally = {**TALLY, "inProgress": in_progress, "points": points, **upkeep}
    page = show("#/methods")
    expect(page.get_by_role("heading", name="Methods")).to_be_visible()
    shown = page.locator("main").text_content() or ""
    assert sideways(page) == []
    page.goto(f"{site}#/overview")
    expect(page.get_by_role("heading", name="Who holds leases")).to_be_visible()
    counted = page.locator("main").text_content() or ""
    assert sideways(page) == []
    assert page.locator(".tile b").first.text_content() == f"{len(TEXTS)}+"
    for text in TEXTS:
        assert text in shown
        assert text in counted


@pytest.mark.usefixtures("harmless")
def test_hostile_address_is_only_a_text(page: Page) -> None:
    """A hostile filter, parent, name, tab or range in the URL fragment does no harm."""
    box = page.get_by_role("searchbox", name="Filter")
    for number, text in enumerate(TEXTS[::7]):
        query = urlencode({"filter": text, "parent": text if number % 2 else ""})
        page.evaluate("(hash) => { location.hash = hash; }", f"#/?{query}")
        expect(box).to_have_value(text.replace("\r", "").replace("\n", ""))
    for text in TEXTS[::9]:
        for hash in (f"#/{text}", f"#/operations/{quote(text)}?tab={quote(text)}"):
            page.evaluate("(hash) => { location.hash = hash; }", hash)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.evaluate("() => { location.hash = '#/overview?minutes=-1e9'; }")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
