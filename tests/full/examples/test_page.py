"""The demo page over a real server: its routes, its headers, and what it is refused."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.analysis.demo import PICTURES, picture, sample
from examples.analysis.page import FOLDER
from examples.analysis.router import NAMES
from tests.executors.named_pipe import Mail
from tests.full.examples.conftest import encoded, flat
from tests.full.examples.serving import ROOT, TYPES, Server, as_json, listening, slow_request
from tests.services.processes import killed_at_end

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}


@pytest.fixture(scope="module")
def site(server: Server) -> Iterator[httpx.Client]:
    """The reference server under uvicorn."""
    with listening(server) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/pictures/coins.png", "image"),
    ],
)
def test_files_of_the_page_are_guarded(path: str, kind: str, site: httpx.Client) -> None:
    """Each has its type, a policy without exceptions, and is not kept."""
    reply = site.get(path)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == kind
    directives = (one.split(" ", 1) for one in reply.headers["content-security-policy"].split("; "))
    assert dict(directives) == POLICY
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    head = site.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == reply.headers["content-length"]


def test_page_keeps_to_its_policy() -> None:
    """Nothing inline, no foreign address, no text that is read as HTML."""
    html, script, style = (
        (FOLDER / name).read_text("utf-8") for name in ("page.html", "page.js", "page.css")
    )
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script>|//", html.replace("data:,", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|https?:", script)
    assert not re.search(r"url\(|@import", style)


def test_each_analysis_has_a_sample(site: httpx.Client) -> None:
    """It is the request that the page posts, and the reply is JSON that is not kept."""
    for verb in NAMES:
        reply = site.get(f"/samples/{verb}")
        assert reply.headers["cache-control"] == "no-store"
        assert TYPES.load(reply.json(), type(sample(verb)))


def test_pictures_of_the_page_are_those_that_scikit_image_brings(site: httpx.Client) -> None:
    """Each has a button on the page."""
    script = (FOLDER / "page.js").read_text("utf-8")
    for name in PICTURES:
        assert f'"{name}"' in script
        assert site.get(f"/pictures/{name}").content == picture(name).content


@pytest.mark.parametrize(
    "path",
    [
        "/page.html",
        "/page",
        "/samples/",
        "/samples/paint",
        "/pictures/",
        "/pictures/lfw_subset.npy",
        "/pictures/..%2F__init__.py",
        "/drawings",
        "/drawings/operations/nothing",
    ],
)
def test_what_is_not_there_is_not_found(path: str, site: httpx.Client) -> None:
    """The error is that of the interface."""
    reply = site.get(path)
    assert (reply.status_code, reply.json()["error"]["status"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/drawings/", "/drawings/x", "/drawings/operations/%00"])
def test_name_of_a_drawing_is_checked(path: str, site: httpx.Client) -> None:
    """What names no operation is a mistake of the caller."""
    reply = site.get(path)
    assert reply.status_code == 400
    assert reply.json()["error"]["details"][0]["reason"] == "INVALID_OPERATION_NAME"


def test_path_outside_of_the_page_is_not_read(site: httpx.Client) -> None:
    """Dots are part of no name, even when no client tidies the path."""
    for path in ("/../page.py", "/pictures/../../__init__.py", "/page.css/../page.py"):
        connection = http.client.HTTPConnection(site.base_url.host, site.base_url.port)
        connection.request("GET", path)
        assert connection.getresponse().status == 404
        connection.close()


def test_drawing_is_that_of_the_result(server: Server, site: httpx.Client) -> None:
    """The page reads it by the name of the operation; the query has the size of the reference."""
    name = server.start("verify", sample("verify"))["name"]
    server.finish(name)
    plain = site.get(f"/drawings/{name}").json()
    sized = site.get(f"/drawings/{name}?reference=260x180").json()
    assert plain["title"] == sized["title"] == "The same scene"
    assert plain["size"] == [600, 400]
    assert plain["shapes"][9]["points"] != sized["shapes"][9]["points"]
    for query in ("reference=", "reference=axb", "reference=1x999999", "other=%ff"):
        assert site.get(f"/drawings/{name}?{query}").json() == plain


def test_operation_without_response_has_no_drawing(server: Server, site: httpx.Client) -> None:
    """Neither one that runs, which says so, nor one that has failed."""
    running = server.start("track", slow_request(32))["name"]
    broken = server.start(
        "score", {"image": {"content": as_json(encoded("coins.png"))["content"][:4000]}}
    )
    server.finish(broken["name"])
    for name in (running, broken["name"]):
        reply = site.get(f"/drawings/{name}")
        error = reply.json()["error"]
        assert (reply.status_code, error["status"]) == (400, "FAILED_PRECONDITION")
        assert error["message"] == f"{name} has no response to draw"
    server.call("POST", f"/v1/{running}:cancel")
    server.finish(running)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"image": {"content": ""}}, "must have from 1 to"),
        ({"image": {"content": "PGh0bWw+"}}, "is not a readable PNG"),
        ({"image": {"content": "!"}}, "base64"),
        ({"image": as_json(flat(4, 4))}, "must have sides of at least"),
        ({"image": as_json(flat(64, 64)), "style": "x"}, "is not a field"),
    ],
)
def test_bad_uploads_are_refused_with_a_sentence(
    body: object, sentence: str, site: httpx.Client
) -> None:
    """What the page shows then is the message of the error."""
    reply = site.post("/v1/detect", json=body)
    assert reply.status_code == 400
    assert sentence in reply.json()["error"]["message"]


def test_page_takes_no_other_method(site: httpx.Client) -> None:
    """It is only read."""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert site.request(method, "/").status_code == 404


def test_open_shows_the_page_until_it_is_interrupted(tmp_path: Path) -> None:
    """The browser gets the address that is printed, which works; Ctrl-C ends the server too."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/seen\n')
    browser.chmod(stat.S_IRWXU)
    with (
        contextlib.closing(Mail(tmp_path / "seen")) as seen,
        killed_at_end(
            [sys.executable, "-m", "examples.analysis", "demo", "--open"],
            cwd=ROOT,
            env={**os.environ, "BROWSER": f"{browser} %s", "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        ) as demo,
    ):
        url = seen.line()
        assert "<title>Image analysis</title>" in httpx.get(url).text
        demo.send_signal(signal.SIGINT)
        printed, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (0, "")
    assert printed == f"The demo page is at {url}; Ctrl-C ends the server\n"
    address = httpx.URL(url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.host, address.port or 0))
