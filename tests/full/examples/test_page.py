"""The demo page on a real server: its routes, its headers, and refused requests."""

from __future__ import annotations

import contextlib
import http.client
import os
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
from tests.full.examples.conftest import encoded
from tests.full.examples.serving import ROOT, TYPES, Server, listening, slow_request
from tests.full.examples.spoiled import image
from tests.services.processes import killed_at_end
from tests.waiting import PATIENCE

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture(scope="module")
def site(server: Server) -> Iterator[httpx.Client]:
    """Serve the reference server with uvicorn, and yield an HTTP client."""
    with listening(server) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
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
def test_files_of_the_page_have_security_headers(path: str, kind: str, site: httpx.Client) -> None:
    """Each file has its media type and a strict content security policy, and is not cached."""
    reply = site.get(path)
    assert (reply.status_code, reply.headers["content-type"]) == (200, kind)
    assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
    head = site.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == reply.headers["content-length"]


def test_each_analysis_has_a_sample(site: httpx.Client) -> None:
    """Each analysis has a sample, the JSON request that the page posts; samples are not cached."""
    for verb in NAMES:
        reply = site.get(f"/samples/{verb}")
        assert reply.headers["cache-control"] == "no-store"
        assert TYPES.load(reply.json(), type(sample(verb)))


def test_pictures_of_the_page_are_those_that_scikit_image_brings(site: httpx.Client) -> None:
    script = (FOLDER / "page.js").read_text("utf-8")
    for name in PICTURES:
        assert f'"{name}"' in script
        assert site.get(f"/pictures/{name}").content == picture(name).content


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/page.html", 404),
        ("/page", 404),
        ("/samples/paint", 404),
        ("/pictures/", 404),
        ("/pictures/lfw_subset.npy", 404),
        ("/pictures/..%2F__init__.py", 404),
        ("/drawings", 404),
        ("/drawings/operations/nothing", 404),
        ("/drawings/x", 400),
        ("/drawings/operations/%00", 400),
    ],
)
def test_unknown_path_of_the_page_is_not_found(path: str, status: int, site: httpx.Client) -> None:
    """An unknown path is NOT_FOUND, and an invalid name is INVALID_ARGUMENT, as in the API."""
    reply = site.get(path)
    assert reply.status_code == reply.json()["error"]["code"] == status


def test_path_outside_of_the_page_is_not_read(site: httpx.Client) -> None:
    """A path with dots finds no file, even if the client does not normalize the path."""
    for path in ("/../page.py", "/pictures/../../__init__.py", "/page.css/../page.py"):
        connection = http.client.HTTPConnection(site.base_url.host, site.base_url.port)
        connection.request("GET", path)
        assert connection.getresponse().status == 404
        connection.close()


def test_drawing_is_that_of_the_result(server: Server, site: httpx.Client) -> None:
    """A drawing shows an operation's response; the query may give the reference picture's size."""
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
    """The drawing of a running or failed operation is refused with FAILED_PRECONDITION."""
    running = server.start("track", slow_request(32))["name"]
    broken = server.start("score", {"image": image(encoded("coins.png").content[:3000])})
    server.finish(broken["name"])
    for name in (running, broken["name"]):
        reply = site.get(f"/drawings/{name}")
        error = reply.json()["error"]
        assert (reply.status_code, error["status"]) == (400, "FAILED_PRECONDITION")
        assert error["message"] == f"{name} has no response to draw"
    server.call("POST", f"/v1/{running}:cancel")
    server.finish(running)


def test_open_shows_the_page_until_it_is_interrupted(tmp_path: Path) -> None:
    """``demo --open`` opens the printed address in the browser; Ctrl-C ends the server."""
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
        assert "<title>Image analysis</title>" in httpx.get(url, timeout=PATIENCE).text
        demo.send_signal(signal.SIGINT)
        printed, errors = demo.communicate(timeout=PATIENCE)
    assert (demo.returncode, errors) == (0, "")
    assert printed == f"The demo page is at {url}; Ctrl-C ends the server\n"
    address = httpx.URL(url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.host, address.port or 0))
