"""The states of the console's page: a service to show, and how to reach each state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

import lro
from lro import types
from tests.full.browser.staged import ImportMetadata, Stage, console_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

DETAILS: Final = (
    types.BadRequest(
        field_violations=(
            types.FieldViolation(field="source.uri", description="There is no such bucket."),
            types.FieldViolation(field="steps", description="Must be at least 1."),
        )
    ),
    types.RetryInfo(retry_delay=timedelta(seconds=30)),
    types.Help(links=(types.HelpLink(description="Buckets", url="https://example.com/buckets"),)),
    types.LocalizedMessage(locale="de", message="Der Eimer ist weg."),
    types.DebugInfo(stack_entries=("at a.py:1", "at b.py:2"), detail="errno 5"),
)
"""Error details, one of each type that the page displays in a special way."""


@attrs.frozen
class Scene:
    """A state of the page: its path below the console's URL, and the actions that lead to it.

    ``shows`` is a text that appears once the page has drawn the replies.
    """

    name: str
    path: str
    shows: str
    then: Callable[[Page], object] = lambda page: None
    before: Callable[[Page], object] = lambda page: None


@attrs.frozen
class Shown:
    """The URL of a console, and the names of its operations by their kind."""

    site: str
    names: dict[str, str]


@contextmanager
def one_of_each(**options: Any) -> Iterator[Shown]:
    """Serve a console with operations in every state and some counts for the overview."""
    stage = Stage()
    names = {}
    for key in ("succeeded", "failed", "cancelled", "gone"):
        names[key] = stage.start(key)
        if key != "cancelled":
            stage.progress(key, 0.6)
    stage.fail("failed", lro.StatusError(lro.Code.UNAVAILABLE, "The disk is full.", DETAILS))
    stage.succeed("succeeded")
    stage.succeed("gone")
    stage.service.cancel(names["cancelled"])
    for name in names.values():
        stage.ended(name)
    for key in ("moving", "moving too", "stopping", "fourth", "waiting"):
        names[key] = stage.start(key, load=key == "moving")
    stage.do("moving", lambda job: job.report(_loaded(4_200)))
    stage.do("moving too", lambda job: job.progress(0.25, "Reading what the customers have sent"))
    stage.progress("stopping", 0.5, "Not to be stopped")
    stage.pause("stopping")
    stage.await_calm("moving", "moving too", "stopping")
    stage.service.cancel(names["stopping"])
    store: Any = stage.service.store  # the MemoryStore keeps counts
    store.add_counts(
        store.now() - timedelta(minutes=3),
        {
            "acme.images.v1.Images.Resize": {
                "ends.succeeded": 40,
                "ends.failed.UNAVAILABLE": 6,
                "ends.cancelled": 2,
                "queue.2": 30,
                "queue.5": 10,
                "attempt.succeeded.6": 30,
                "attempt.succeeded.8": 10,
                "lost.retried": 1,
            }
        },
    )
    with console_of(stage.service, parents=["projects/empty"], title="Acme", **options) as site:
        try:
            yield Shown(site, names)
        finally:  # the server's stop waits for the work
            stage.go_on("stopping")
            stage.close()


def _loaded(done: int) -> ImportMetadata:
    return ImportMetadata(dataset="customers", done=done, total=10_000, labels={"region": "eu"})


def scenes(names: dict[str, str]) -> list[Scene]:
    """Return the states of the page, given the names of the operations by kind."""

    def at(key: str, tab: str = "") -> str:
        return f"#/{names[key]}" + (f"?tab={tab}" if tab else "")

    def press(*labels: str) -> Callable[[Page], object]:
        def act(page: Page) -> None:
            for label in labels:
                page.get_by_role("button", name=label).last.click()

        return act

    def mark(page: Page) -> None:
        page.get_by_label("Mark all that are shown").check()

    def bulk(page: Page) -> None:
        for key in ("failed", "cancelled"):
            page.get_by_label(f"Mark {names[key][-8:]}").check()
        page.route("**/v1/operations/*", _answer(409, "ABORTED"))
        press("Delete…", "Delete")(page)
        page.get_by_role("button", name="Close").wait_for()

    listed, when = names["moving"][-8:], "waited"
    return [
        Scene("list", "#/", listed),
        Scene("empty", "#/?parent=projects/empty", "There are no operations yet."),
        Scene("wrong filter", "#/?filter=state+%3D+FAILED", "expected one of the fields"),
        Scene("nothing found", "#/?filter=error.code+%3D+3", "No operation matches this filter."),
        Scene("short page", "#/", names["waiting"][-8:], before=_cut_pages),
        Scene("marked", "#/", listed, mark),
        Scene("bulk over", "#/", listed, bulk),
        Scene("cancel asked", at("moving"), when, press("Cancel…")),
        Scene("delete asked", at("moving"), when, press("Delete…")),
        Scene("in progress", at("moving"), when),
        Scene("stopping", at("stopping"), when),
        Scene("failed", at("failed"), when),
        Scene("succeeded", at("succeeded", "raw"), when),
        Scene("not there", "#/operations/none", "there is no operation"),
        Scene("overview", "#/overview", "Ended, per minute: 52 in all"),
        Scene("methods", "#/methods", "Filter by", _open_all),
        Scene("pause asked", "#/methods", "Filter by", _ask_for_pause),
        Scene("help", "#/", listed, lambda page: page.keyboard.press("?")),
        Scene("token asked", "#/", "A token for the API", before=_refused("**/session", 401)),
        Scene("trouble", "#/", "Trying again", before=_refused("**/v1/operations?*", 503)),
        Scene("paused", "#/", listed, press("Live")),
    ]


def _open_all(page: Page) -> None:
    for each in page.locator("summary").all():
        each.click()


def _ask_for_pause(page: Page) -> None:
    page.get_by_role("button", name="Pause…").first.click()


def _cut_pages(page: Page) -> None:
    """Cut each page of the list short, like a server that finds only two matches in 0.5 s."""

    def cut(route: Any) -> None:
        reply = route.fetch()
        short = {"operations": reply.json().get("operations", [])[:2], "nextPageToken": "more"}
        route.fulfill(response=reply, json=short)

    page.route("**/v1/operations?*", cut)


def _refused(pattern: str, status: int) -> Callable[[Page], object]:
    """Return a function that makes requests to matching URLs fail with this status."""
    return lambda page: page.route(pattern, _answer(status))


def _answer(status: int, word: str = "UNAVAILABLE") -> Callable[[Any], None]:
    error = {"code": status, "message": "The database is away.", "status": word}

    def answer(route: Any) -> None:
        route.fulfill(status=status, json={"error": error}, headers={"retry-after": "600"})

    return answer
