"""Pages of other sites: they start nothing, cancel nothing, read nothing, and frame nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

import lro
from tests.full.browser.conftest import Serve
from tests.full.browser.staged import Stage
from tests.http.servers import HOST

expect = pytest.importorskip("playwright.sync_api").expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

ASK: Final = """async ([url, options]) => {
    if (options.blob !== undefined) options.body = new Blob([options.blob]);
    try {
        const reply = await fetch(url, options);
        return [reply.type, reply.status, await reply.text()];
    } catch (error) {
        return ["failed", 0, ""];
    }
}"""
FORM: Final = """([url, kind, inputs]) => {
    const form = document.createElement("form"), frame = document.createElement("iframe");
    frame.name = `hole${frames.length}`;
    Object.assign(form, {action: url, method: "post", enctype: kind, target: frame.name});
    for (const name of inputs) {
        const input = document.createElement("input");
        input.name = name;
        form.append(input);
    }
    document.body.append(frame, form);
    return new Promise((done) => { frame.onload = () => done(); form.submit(); });
}"""
FRAME: Final = """(url) => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.onload = () => {
        let seen;
        try { seen = frame.contentDocument?.body?.innerHTML ?? null; } catch { seen = null; }
        done([frame.contentWindow.length, seen]);
    };
    frame.src = url;
    document.body.append(frame);
})"""


@contextmanager
def site_of_others() -> Iterator[int]:
    """The port of a server with an empty page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><body>")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def asked_to_stop(stage: Stage, name: str) -> bool:
    """Whether some caller has cancelled an operation."""
    return stage.service.describe(name).cancel_requested


@pytest.fixture(scope="module")
def evil() -> Iterator[int]:
    """The port of the other site."""
    with site_of_others() as port:
        yield port


@pytest.fixture
def page(browser: Browser, evil: int, stage: Stage) -> Iterator[Page]:
    """A page of the other site, on another host and port than the console."""
    with browser.new_context() as context:
        opened = context.new_page()
        opened.goto(f"http://localhost:{evil}/")
        yield opened


def test_other_sites_cannot_act_or_read(page: Page, stage: Stage, site: str) -> None:
    """By requests that need no preflight, with and without a type, by forms, and by those that do.

    The console has no authentication: every caller that reaches it is let in, as by a cookie.
    """
    name = stage.start("work")
    cancel, delete = f"{site}v1/{name}:cancel", f"{site}v1/{name}"
    for options in (
        {"method": "POST", "mode": "no-cors"},
        {"method": "POST", "mode": "no-cors", "blob": "{}"},
        {"method": "POST", "mode": "no-cors", "body": "{}"},
        {"method": "POST", "mode": "cors", "blob": "{}", "credentials": "include"},
        {"method": "POST", "mode": "cors", "headers": {"content-type": "application/json"}},
    ):
        kind, status, text = page.evaluate(ASK, [cancel, options])
        assert (kind, status, text) in (("opaque", 0, ""), ("failed", 0, ""))
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain"):
        page.evaluate(FORM, [cancel, kind, ["{}"]])
        page.evaluate(FORM, [cancel, kind, []])
    for plain in ({"method": "DELETE"}, {"method": "GET"}, {"headers": {"x-a": "b"}}):
        assert page.evaluate(ASK, [delete, plain])[0] == "failed"
    for path in ("", "session", "tally", "v1/operations", f"v1/{name}"):
        assert page.evaluate(ASK, [site + path, {"mode": "no-cors"}])[2] == ""
        sizes = page.evaluate(
            """(src) => new Promise((done) => {
                const image = new Image();
                image.onload = image.onerror = () => done([image.width, image.height]);
                image.src = src;
            })""",
            site + path,
        )
        assert sizes == [0, 0]
    assert not stage.service.get(name).done
    assert not asked_to_stop(stage, name)


def test_other_ports_of_the_same_host_are_other_sites_too(
    page: Page, evil: int, stage: Stage, site: str
) -> None:
    """A browser calls them same-site, and sends cookies."""
    name = stage.start("work")
    page.goto(f"http://{HOST}:{evil}/")
    for options in ({"blob": "{}"}, {"body": "{}"}, {}):
        options = {"method": "POST", "mode": "no-cors", "credentials": "include", **options}
        page.evaluate(ASK, [f"{site}v1/{name}:cancel", options])
    page.evaluate(FORM, [f"{site}v1/{name}:cancel", "text/plain", []])
    assert not asked_to_stop(stage, name)


def test_other_sites_cannot_frame_the_console(
    page: Page, evil: int, stage: Stage, site: str, serve: Serve
) -> None:
    """A window that they open keeps no hold of them, and they none of it."""
    refused: list[str] = []
    page.on("console", lambda one: refused.append(one.text))
    assert page.evaluate(FRAME, site) == [0, None]
    assert any("frame-ancestors 'none'" in one for one in refused)
    with page.expect_popup() as opening:
        page.evaluate("(url) => { window.hold = window.open(url); }", site)
    popup = opening.value
    expect(popup.get_by_role("heading", name="Operations")).to_be_visible()
    assert popup.evaluate("[window.opener, window.name]") == [None, ""]
    assert page.evaluate("window.hold.closed")
    open_to = serve(stage.service, frame=[f"http://localhost:{evil}"])
    page.evaluate(FRAME, open_to)
    frame = page.frame(url=lambda url: url.startswith(open_to))
    assert frame is not None
    expect(frame.get_by_role("heading", name="Operations")).to_be_visible()


def test_name_that_leads_to_this_machine_is_refused(
    playwright: Playwright, stage: Stage, site: str
) -> None:
    """DNS rebinding: a page of another name, whose address has become that of the console."""
    name = stage.start("work")
    port = urlsplit(site).port
    path = shutil.which("chromium")
    args = ["--no-sandbox", f"--host-resolver-rules=MAP evil.test {HOST}"]
    with playwright.chromium.launch(executable_path=path, args=args) as launched:
        page = launched.new_page()
        reply = page.goto(f"http://evil.test:{port}/")
        assert reply is not None
        assert reply.status == 403
        assert "authenticate=" in reply.text()
        url = f"http://evil.test:{port}/v1/{name}"
        for path, method in (("", "GET"), ("", "DELETE"), (":cancel", "POST")):
            kind, status, text = page.evaluate(ASK, [url + path, {"method": method}])
            assert (kind, status) == ("basic", 403)
            assert "for the host 'evil.test" in text
    assert not asked_to_stop(stage, name)


def test_reply_of_the_console_is_no_script_for_others(page: Page, site: str) -> None:
    """Not even where it is loaded as one: its type and its policy forbid that."""
    found = page.evaluate(
        """(urls) => Promise.all(urls.map((src) => new Promise((done) => {
            const script = document.createElement("script");
            script.onload = () => done("ran");
            script.onerror = () => done("refused");
            script.src = src;
            document.head.append(script);
        })))""",
        [f"{site}session", f"{site}v1/operations", f"{site}tally"],
    )
    assert found == ["refused"] * 3


def test_refusal_says_which_option_lets_a_site_in(page: Page, stage: Stage, serve: Serve) -> None:
    """And with it, that site may act."""
    name = stage.start("work")
    origin = page.evaluate("location.origin")
    site = serve(stage.service, authenticate=lambda headers: "ann", trusted_origins=[origin])
    options = {"method": "POST", "mode": "no-cors", "blob": "{}"}
    page.evaluate(ASK, [f"{site}v1/{name}:cancel", options])
    error = stage.ended(name).error
    assert error is not None
    assert error.code == lro.Code.CANCELLED
