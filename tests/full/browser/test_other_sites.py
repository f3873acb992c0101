"""Pages of other sites cannot change or read operations, or frame the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.full.browser.conftest import Browser, Page, Playwright, Serve, window
from tests.full.browser.staged import Stage
from tests.http.servers import HOST, uvicorn_serving

expect = pytest.importorskip("playwright.sync_api").expect

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


async def empty_page(_: Any, receive: Any, send: Any) -> None:
    """Serve the other site: every path is an empty page."""
    headers = [(b"content-type", b"text/html")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"<!doctype html><title>evil</title><body>"})


@pytest.fixture(scope="module")
def evil() -> Iterator[int]:
    """The port of another site."""
    with uvicorn_serving(empty_page, lifespan="off") as port:
        yield port


@pytest.fixture
def page(browser: Browser, evil: int, stage: Stage) -> Iterator[Page]:
    """A page of the other site, which differs from the console in host and port."""
    with window(browser) as context:
        opened = context.new_page()
        opened.goto(f"http://localhost:{evil}/")
        yield opened


@pytest.mark.parametrize("host", ["localhost", HOST])
def test_other_sites_cannot_act_or_read(
    page: Page, evil: int, stage: Stage, site: str, host: str
) -> None:
    """Another site cannot cancel, delete or read by ``fetch``, forms or images.

    The console has no authentication, so each request has access, as if it carried a cookie.
    The other site may even be on the same host, with another port, where cookies are shared.
    """
    page.goto(f"http://{host}:{evil}/")
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
    assert not stage.service.get(name, view="FULL").description.cancel_requested


def test_other_sites_cannot_frame_the_console(
    page: Page, evil: int, stage: Stage, site: str, serve: Serve
) -> None:
    """Only origins in ``frame`` can frame the console; a console has no ``window.opener``."""
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
    """If another host name resolves to the console's address (DNS rebinding), requests get 403."""
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
    assert not stage.service.get(name, view="FULL").description.cancel_requested
