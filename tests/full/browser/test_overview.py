"""The overview's charts and tables, and the view of methods."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import lro
from tests.full.browser.conftest import Show
from tests.full.browser.reading import row
from tests.full.browser.staged import WORKERS, ImportMetadata, Stage

expect = pytest.importorskip("playwright.sync_api").expect

RESIZE = "acme.images.v1.Images.Resize"
COUNTS = {
    "ends.succeeded": 90,
    "ends.failed.UNAVAILABLE": 8,
    "ends.failed.ABORTED": 2,
    "ends.cancelled": 5,
    "queue.4": 100,
    "queue.sum": 80,
    "attempt.succeeded.6": 90,
    "attempt.failed.UNAVAILABLE.8": 8,
    "attempt.lost.8": 50,
    "attempt.succeeded.sum": 600,
    "lost.retried": 3,
}


def counted(stage: Stage, minutes_ago: int, counts: Mapping[str, float]) -> None:
    """Add counts of the method Resize to the store, for a past minute."""
    store: Any = stage.service.store
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    store.add_counts(minute, {RESIZE: counts, "": {"refused_writes": 1}})


def test_overview_sums_what_was_counted(stage: Stage, show: Show) -> None:
    counted(stage, 3, COUNTS)
    counted(stage, 10, COUNTS)
    counted(stage, 200, COUNTS)
    page = show("#/overview")
    tile = page.locator(".tile")
    expect(tile.filter(has_text="Ended")).to_have_text("210Ended, 60 minutes")
    expect(tile.filter(has_text="Failed")).to_have_text("20Failed, 60 minutes")
    expect(tile.filter(has_text="Lost workers")).to_have_text("6Lost workers, 60 minutes")
    expect(tile.filter(has_text="Refused writes")).to_have_text("2Refused writes, 60 minutes")
    expect(page.get_by_role("img", name="Ended, per minute: 210 in all, most 105")).to_be_visible()
    # Bucket 4 is 0.5 to 1 s, 6 is 5 to 10 s, 8 is 30 to 60 s; lost attempts are left out.
    expect(
        page.get_by_role("img", name="queue: p50 about 750 ms, p95 about 975 ms")
    ).to_be_visible()
    expect(page.get_by_role("img", name="work: p50 about 7.7 s, p95 about 41 s")).to_be_visible()
    expect(tile.filter(has_text="Running now")).to_have_count(1)
    waits = page.get_by_role("figure").filter(has_text="Time in the queue")
    expect(waits.get_by_text("The axis is logarithmic.")).to_be_visible()
    expect(waits.get_by_text("logarithmic", exact=True)).to_be_visible()
    # The points of two isolated minutes are 6 pixels wide, even if the chart is
    # stretched.
    points = waits.locator("path.dot").first
    assert (points.get_attribute("d") or "").count("M") == 2
    assert points.evaluate("one => getComputedStyle(one).strokeWidth") == "6px"
    expect(page.get_by_role("row", name="UNAVAILABLE")).to_contain_text("16")
    figure = page.get_by_role("figure").filter(has_text="Ended, per minute")
    figure.get_by_text("As a table").click()
    expect(figure.get_by_role("row")).to_have_count(3)
    page.get_by_role("link", name="6 hours").click()
    expect(tile.filter(has_text="Ended")).to_have_text("315Ended, 6 hours")
    assert "minutes=360" in page.url


def test_overview_shows_what_runs_and_what_waits(stage: Stage, show: Show) -> None:
    """The overview shows running and waiting counts, the lease holder and the oldest operation."""
    names = [stage.start(f"work {number}") for number in range(WORKERS + 3)]
    page = show("#/overview")
    here = page.get_by_role("row").filter(has_text="Resize")
    expect(here.get_by_role("cell").nth(1)).to_have_text(str(WORKERS))
    expect(here.get_by_role("cell").nth(2)).to_have_text("3")
    leases = page.get_by_role("region", name="Who holds leases")
    expect(leases.get_by_role("cell").last).to_have_text(str(WORKERS))
    here.get_by_role("link").click()
    expect(page.get_by_text(names[0]).first).to_be_visible()


def test_methods_lead_to_their_operations(stage: Stage, show: Show) -> None:
    """A method's card links to its operations and to a filter on each metadata field."""
    resized, loaded = stage.start("resize"), stage.start("load", load=True)
    stage.do("load", lambda job: job.report(ImportMetadata(dataset="births")))
    page = show()
    page.get_by_role("link", name="Methods").click()
    card = page.locator("section").filter(has=page.get_by_role("heading", name="Import"))
    expect(card).to_contain_text("acme.data.v1.Data")
    expect(card).to_contain_text("30 d")
    card.get_by_role("link", name="See its operations").click()
    expect(row(page, loaded)).to_be_visible()
    expect(row(page, resized)).to_have_count(0)
    page.go_back()
    card.get_by_text("Filter by", exact=True).click()
    card.get_by_role("link", name="metadata.dataset").click()
    box = page.get_by_role("searchbox", name="Filter")
    test = 'metadata.dataset = "a*"'
    expect(box).to_have_value(f"type(metadata) = acme.data.v1.ImportMetadata AND {test}")
    expect(page.get_by_text("No operation matches this filter.")).to_be_visible()
    page.get_by_label("Method").select_option("Resize")
    expect(box).to_have_value(f"{test} AND type(metadata) = lro.v1.OperationMetadata")


def test_method_card_shows_limits_for_each_key_and_no_path_that_is_not_served(
    stage: Stage, show: Show
) -> None:
    limits: Any = {"concurrency": 1, "rate": (10, timedelta(minutes=5))}
    for name, key in (("Take", str), ("Wait", None)):

        @stage.service.method(f"acme.turns.v1.Turns.{name}", concurrency_key=key, **limits)
        def turn(request: lro.Empty) -> lro.Empty:
            return request

    page = show("#/methods")
    for name, each in (("Take", " for each key"), ("Wait", "")):
        card = page.locator("section").filter(has=page.get_by_role("heading", name=name))
        expect(card.get_by_role("definition").nth(3)).to_have_text(f"1{each}")
        expect(card.get_by_role("definition").nth(4)).to_have_text(f"10 in 300s{each}")
        expect(card).not_to_contain_text("Path")


def test_every_example_of_a_filter_is_valid(show: Show) -> None:
    """The server accepts each example of a filter in the view of methods."""
    page = show("#/methods")
    expect(page.locator("section details a").first).to_be_attached()
    links = page.locator("section details a").evaluate_all("links => links.map(a => a.href)")
    assert len(links) > 10
    for link in links:
        page.goto(link)
        expect(
            page.get_by_text("There are no operations yet.").or_(
                page.get_by_text("No operation matches this filter.")
            )
        ).to_be_visible()
