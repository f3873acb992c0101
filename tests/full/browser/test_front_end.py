"""The programs of docs/how-to/front-end.md, in Chromium, with tsc and in Node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("markdown_it")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright.sync_api")

from playwright.sync_api import expect

from tests.full.browser.conftest import window
from tests.full.site.conftest import served
from tests.page_texts import DOCS, blocks, files
from tests.services.hosts import running
from tests.services.npm import FRONT_END, node_modules, run_node
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

PAGE: Final = DOCS / "how-to" / "front-end.md"
ORIGIN: Final = "http://localhost:5173"
ADDRESS: Final = "http://localhost:8000"
WATCH: Final = re.compile(r"/v1/operations/[^/]+:watch$")
GET: Final = re.compile(r"/v1/operations/[^/:]+$")
START: Final = "**/v1/exports:start"
LONG: Final = 100_000
"""So many rows that their export does not end before a test cancels it."""
RECORD: Final = """
    window.streams = [];
    window.EventSource = class extends EventSource {
        constructor(...given) { super(...given); streams.push(this); }
    };
"""
"""A script that keeps every stream that a page opens."""
CLOSED: Final = "streams.length > 0 && streams.every((one) => one.readyState === 2)"
REACT: Final = """<!doctype html>
<div id="root"></div>
<script src="react.js"></script>
<script src="react-dom.js"></script>
<script type="importmap">{"imports": {"react": "./react-module.js"}}</script>
<script type="module">
  import { useOperation } from "./operation.js";
  const Shown = ({ name }) =>
    React.createElement("p", null, useOperation(name)?.metadata?.progressPercent ?? "none");
  window.root = ReactDOM.createRoot(document.getElementById("root"));
  window.draw = (name) => root.render(React.createElement(Shown, { name }));
  draw("");
</script>
"""
"""A page that draws the progress of an operation with the page's hook."""
ERRORS: Final = """
import { CallError, Client, OperationError } from "./client.js";

const client = new Client("URL");
const caught = <E>(failed: Promise<unknown>) =>
  failed.then(() => { throw new Error("no error"); }, (error: E) => error);

const refused = await caught<CallError>(client.cancel({ name: "operations/none" }));
console.log(refused instanceof CallError, refused.status, refused.message);

type Verb = { verb: string };
const long = await client.start<{ url: string }, Verb>("/v1/exports:start", { rows: 100000 });
long.metadata?.verb.toLowerCase();
console.log(long.done, long.response);
await client.cancel(long);
const failed = await caught<OperationError>(client.result(long));
console.log(failed instanceof OperationError, failed.code);

let calls: string[] = [];
const real = fetch;
globalThis.fetch = async (url, request) => {
  calls.push(String(request?.body));
  if (calls.length === 1) throw new TypeError("no connection");
  return calls.length === 2 ? new Response("busy", { status: 503 }) : real(url, request);
};
const again = await client.start<{ url: string }>("/v1/exports:start", { rows: 0 });
console.log(calls.length, new Set(calls).size, (await client.result(again)).url);

globalThis.fetch = async () => { throw new TypeError("no connection"); };
const later = setTimeout;
const soon = (next: () => void, _: number, ...more: unknown[]) => later(next, 0, ...more);
globalThis.setTimeout = soon as typeof setTimeout;
const down = await caught<CallError>(client.start("/v1/exports:start", {}));
console.log(down.status, down.message);
"""
"""A program that uses the page's client, and prints how calls and operations fail."""
GENERATED: Final = """
import { Client } from "./client.js";
import type { components } from "./api.js";

type Exported = components["schemas"]["acme__v1__ExportResponse"];
const client = new Client("URL");
const operation = await client.start<Exported>("/v1/exports:start", { rows: 1 });
const url: string | undefined = (await client.result(operation)).url;
console.log(url);
"""
TSC: Final = (
    *("--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--lib", "es2022,dom"),
    *("--module", "es2022", "--moduleResolution", "bundler"),
    *("--erasableSyntaxOnly", "--verbatimModuleSyntax"),  # as in Vite's template
)


@attrs.frozen
class World:
    """The folder with the page's files, the server of `exports.py`, and that of other pages."""

    folder: Path
    url: str
    other: str

    def start(self, rows: int) -> str:
        """Start an export, and return its name."""
        reply = httpx.post(f"{self.url}/v1/exports:start", json={"rows": rows})
        assert "done" not in reply.json()
        return str(reply.json()["name"])

    def cancel(self, name: str) -> None:
        httpx.post(f"{self.url}/v1/{name}:cancel", json={}).raise_for_status()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve the page's application as the page says, and an empty page at the other origin."""
    folder, elsewhere = tmp_path_factory.mktemp("front-end"), tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "index.html").write_text("<!doctype html><title>Vite</title>", "utf-8")
    with served(elsewhere) as other:
        for path, text in files(PAGE).items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text.replace(ORIGIN, other.rstrip("/")), "utf-8")
        with running(["-m", "uvicorn", "exports:app", "--port", "0"], folder, "log") as host:
            yield World(folder, f"http://127.0.0.1:{host.port()}", other)


@pytest.fixture
def page(browser: Browser, world: World) -> Iterator[Page]:
    """A tab whose streams are recorded; none of its scripts may fail."""
    failed: list[str] = []
    with window(browser) as context:
        context.add_init_script(RECORD)
        opened = context.new_page()
        opened.on("pageerror", lambda error: failed.append(str(error)))
        yield opened
    assert failed == []


def click_export(page: Page, world: World) -> None:
    page.goto(world.url)
    page.get_by_role("button", name="Export").click()


def shows_the_end(page: Page) -> None:
    """Check that the bar is full, and that the text is the result."""
    expect(page.locator("#text")).to_have_text("/exports/1.csv")
    expect(page.locator("#bar")).to_have_js_property("value", 100)


def make_long(page: Page) -> None:
    """Let the page's button start an export that lasts until it is cancelled."""

    def changed(route: Route) -> None:
        body = {**json.loads(route.request.post_data or ""), "rows": LONG}
        route.continue_(post_data=json.dumps(body))

    page.route(START, changed)


def exported(page: Page) -> str:
    """Return the name of the operation that the page has started."""
    page.wait_for_function("sessionStorage.getItem('export')")
    return str(page.evaluate("sessionStorage.getItem('export')"))


def test_bar_is_full_at_the_end_and_the_stream_is_closed(page: Page, world: World) -> None:
    click_export(page, world)
    shows_the_end(page)
    assert page.evaluate(CLOSED)
    assert page.evaluate("streams.length") == 1


def test_bar_shows_progress_after_a_reload_until_the_cancel(page: Page, world: World) -> None:
    make_long(page)
    click_export(page, world)
    name = exported(page)
    expect(page.locator("#text")).to_have_text(re.compile("row [0-9]+"))
    page.reload()
    expect(page.locator("#text")).to_have_text(re.compile("row [0-9]+"))
    assert not page.evaluate(CLOSED)
    world.cancel(name)
    expect(page.locator("#text")).to_have_text(re.compile("cancel"))
    assert page.evaluate(CLOSED)


def test_browser_connects_again_after_a_broken_stream(page: Page, world: World) -> None:
    """A stream that ends early is opened again, and the bar becomes full."""
    begun: list[str] = []

    def broken(route: Route) -> None:
        begun.append(route.request.url)
        if len(begun) > 1:
            route.continue_()
            return
        event = {"name": "operations/one", "metadata": {"progressPercent": 42}}
        body = f"id: 1\nevent: operation\ndata: {json.dumps(event)}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route(WATCH, broken)
    click_export(page, world)
    expect(page.locator("#bar")).to_have_js_property("value", 42)
    shows_the_end(page)
    assert len(begun) == 2
    assert page.evaluate(CLOSED)


def test_page_polls_a_server_without_streams(page: Page, world: World) -> None:
    """After 501, which servers under WSGI answer, the page reads the operation until its end."""
    polled: list[str] = []
    page.on("request", lambda one: polled.append(one.url) if GET.search(one.url) else None)
    page.route(WATCH, lambda route: route.fulfill(status=501, json={"error": {"code": 501}}))
    click_export(page, world)
    shows_the_end(page)
    assert len(polled) > 1
    assert page.evaluate("streams.length") == 1


def test_poll_goes_on_after_failures_until_a_refusal(page: Page, world: World) -> None:
    """Polling outlasts a lost connection and 503, and ends at 403, whose error it shows."""
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.abort()
        elif len(asked) == 2:
            route.fulfill(status=503, json={"error": {"message": "stopping"}})
        else:
            route.fulfill(status=403, json={"error": {"message": "not yours"}})

    page.route(GET, answer)
    page.goto(world.url)
    shown = page.evaluate(
        """() => new Promise(async (done) => {
            const { poll } = await import("./follow.js");
            poll("operations/one", done);
        })"""
    )
    assert shown == {"error": {"message": "not yours"}}
    assert len(asked) == 3


def test_poll_shows_nothing_after_its_stop(page: Page, world: World) -> None:
    """The function that `poll` returns ends the polling."""
    name = world.start(LONG)
    page.clock.install()
    page.goto(world.url)
    page.evaluate(
        """(name) => new Promise(async (done) => {
            const { poll } = await import("./follow.js");
            const ask = window.fetch;
            window.asked = window.shown = 0;
            window.fetch = (...given) => { asked += 1; return ask(...given); };
            const stop = poll(name, () => { shown += 1; stop(); done(); });
        })""",
        name,
    )
    page.clock.run_for(10_000)
    assert page.evaluate("[asked, shown]") == [1, 1]
    world.cancel(name)


def test_page_says_that_an_operation_is_gone(page: Page, world: World) -> None:
    page.add_init_script("sessionStorage.setItem('export', 'operations/none')")
    page.goto(world.url)
    expect(page.locator("#text")).to_have_text("deleted or expired")
    assert page.evaluate(CLOSED)


def test_react_hook_shows_progress_and_closes_its_stream(page: Page, world: World) -> None:
    """With React itself: the hook shows the progress, and its cleanup closes the stream."""
    home, static = node_modules(FRONT_END) / "node_modules", world.folder / "static"
    shutil.copy(home / "react/umd/react.development.js", static / "react.js")
    shutil.copy(home / "react-dom/umd/react-dom.development.js", static / "react-dom.js")
    module = "export const { useEffect, useState } = window.React;\n"
    (static / "react-module.js").write_text(module, "utf-8")
    (static / "react.html").write_text(REACT, "utf-8")
    name = world.start(LONG)
    page.goto(f"{world.url}/react.html")
    expect(page.locator("p")).to_have_text("none")
    page.evaluate("(name) => draw(name)", name)
    expect(page.locator("p")).to_have_text(re.compile("[0-9]+"))
    assert not page.evaluate(CLOSED)
    page.evaluate("root.unmount()")
    page.wait_for_function(CLOSED)
    world.cancel(name)


def test_page_of_a_listed_origin_may_start_and_watch(page: Page, world: World) -> None:
    """A page of the origin in `ORIGINS` may call the server; a page of another origin may not."""
    call = """async (url) => {
        const options = { method: "POST", headers: { "Content-Type": "application/json" } };
        const reply = await fetch(`${url}/v1/exports:start`, { ...options, body: "{}" });
        if (!reply.ok) throw new Error(`refused: ${reply.status}`);
        const operation = await reply.json();
        const states = new EventSource(`${url}/v1/${operation.name}:watch`);
        return new Promise((done) => states.addEventListener("operation", (event) => {
            if (JSON.parse(event.data).done) done(event.type);
        }));
    }"""
    page.goto(world.other)
    assert page.evaluate(call, world.url) == "operation"
    page.goto(world.other.replace("127.0.0.1", "localhost"))
    with pytest.raises(Exception, match="Failed to fetch"):
        page.evaluate(call, world.url)


def test_start_of_an_unlisted_origin_is_refused(world: World) -> None:
    headers = {"origin": "http://localhost:1", "sec-fetch-site": "cross-site"}
    reply = httpx.post(f"{world.url}/v1/exports:start", json={}, headers=headers)
    assert reply.status_code == 403
    assert reply.json()["error"]["details"][0]["reason"] == "CROSS_SITE_REQUEST"


def test_empty_list_and_operation_in_progress_lack_fields(world: World) -> None:
    """An empty list has no `operations`, and an operation in progress has no `done`."""
    listed = httpx.get(f"{world.url}/v1/operations", params={"filter": "error.code = 5"})
    assert listed.json() == {}
    name = world.start(LONG)
    assert "done" not in httpx.get(f"{world.url}/v1/{name}").json()
    world.cancel(name)


def compiled(world: World, name: str, text: str) -> str:
    """Compile a program and the page's client in strict mode, run it, return what it prints."""
    home = node_modules(FRONT_END)
    source = text.replace("URL", world.url).replace(ADDRESS, world.url)
    (world.folder / f"{name}.ts").write_text(source, "utf-8")
    (world.folder / "package.json").write_text('{"type": "module"}', "utf-8")
    tsc = home / "node_modules" / ".bin" / "tsc"
    done = subprocess.run(
        [tsc, *TSC, "--outDir", "out", f"{name}.ts"],
        cwd=world.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return run_node(world.folder, f'await import("./out/{name}.js");')


def test_typescript_client_waits_and_has_the_result(world: World) -> None:
    printed = compiled(world, "main", files(PAGE)["main.ts"]).splitlines()
    assert printed[-2:] == ["100", "/exports/1.csv"]


def test_typescript_client_is_short() -> None:
    assert len(files(PAGE)["client.ts"].splitlines()) <= 60


def test_typescript_client_tells_failures_apart_and_repeats_starts(world: World) -> None:
    """Refused calls and failed operations have classes; a repeated start has one request id."""
    assert compiled(world, "errors", ERRORS).splitlines() == [
        "true NOT_FOUND there is no operation 'operations/none'",
        "undefined undefined",
        "true 1",
        "3 1 /exports/1.csv",
        "UNAVAILABLE no answer",
    ]


def test_types_from_the_openapi_document_fit_the_client(world: World) -> None:
    """The page's command generates types of the messages, which the client takes."""
    (command,) = [one.text for one in blocks(PAGE) if "commands: types" in one.comment]
    npx, package, url, *options = command.split()
    assert (npx, url) == ("npx", f"{ADDRESS}/openapi.json")
    assert package in FRONT_END
    home = node_modules(FRONT_END)
    tool = home / "node_modules" / ".bin" / package.partition("@")[0]
    asked = [str(tool), url.replace(ADDRESS, world.url), *options]
    subprocess.run(asked, cwd=world.folder, capture_output=True, timeout=PATIENCE, check=True)
    assert compiled(world, "generated", GENERATED) == "/exports/1.csv\n"
