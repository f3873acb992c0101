"""What holds for the console in every framework: a module gives the fixture ``console``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urljoin

import attrs
import httpx

from lro.console import Console, page_files
from tests.http.servers import HOST, uvicorn_serving
from tests.integrations.counting import ANN, BOB, Counting, CountRequest, build

__all__ = [
    "test_console_acts_for_the_caller_of_the_framework",
    "test_console_knows_the_caller_of_the_framework",
    "test_console_refuses_pages_of_other_sites",
    "test_console_without_a_caller_is_for_this_machine",
    "test_page_of_the_console_is_served_with_its_files",
]

CONSOLE = Console("/console", title="Counts", actions=("cancel",))


@attrs.frozen
class ServedConsole:
    """A console in an application behind a server, and one whose callers have no names."""

    counting: Counting
    http: httpx.Client
    unnamed: httpx.Client
    streams: bool

    def start(self) -> str:
        """The name of an operation of Ann, which waits."""
        return self.counting.count.start(CountRequest(steps=-1), caller="ann").name


@contextlib.contextmanager
def serving_console(
    make: Callable[[Counting, Callable[..., Any] | None], Any],
    caller: Callable[..., Any],
    base: str = "",
    *,
    serve: Callable[[Any], AbstractContextManager[int]] = uvicorn_serving,
    streams: bool = True,
) -> Iterator[ServedConsole]:
    """Applications that ``make`` makes of a service and of what gives the caller, or of None."""
    counting, other = build(), build(owner_only=False, authorize=None)
    with serve(make(counting, caller)) as port, serve(make(other, None)) as beside:
        urls = [f"http://{HOST}:{one}{base}/console" for one in (port, beside)]
        clients = [httpx.Client(base_url=url, timeout=60) for url in urls]
        with clients[0] as http, clients[1] as unnamed:
            try:
                yield ServedConsole(counting, http, unnamed, streams)
            finally:
                counting.go.set()
    for one in (counting, other):
        one.service.close()


def test_page_of_the_console_is_served_with_its_files(console: ServedConsole) -> None:
    """To every caller; the path without a slash leads to the one with it."""
    at = f"{str(console.http.base_url).rstrip('/')}"
    moved = httpx.get(f"{at}?x=1")
    assert (moved.status_code, urljoin(at, moved.headers["location"])) == (307, f"{at}/?x=1")
    for path, file in page_files().items():
        reply = console.http.get(path)
        assert (reply.status_code, reply.content) == (200, file.content)
        assert "trusted-types" in reply.headers["content-security-policy"]
        assert console.http.post(path).status_code in (403, 405)


def test_console_knows_the_caller_of_the_framework(console: ServedConsole) -> None:
    """By the framework's own authentication; without it there is no data."""
    refused = console.http.get("/session")
    assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    session = console.http.get("/session", headers=ANN).json()
    assert (session["caller"], session["title"], session["actions"]) == (
        "ann",
        "Counts",
        ["cancel"],
    )
    assert (session["watches"], session["parents"]) == (console.streams, [""])
    assert console.http.get("/v1/operations").status_code == 401
    assert console.http.get("/unknown", headers=ANN).status_code == 404


def test_console_acts_for_the_caller_of_the_framework(console: ServedConsole) -> None:
    """Others' operations are not there, and a console that cannot delete does not."""
    name = console.start()
    call = console.http.post
    assert [
        one["name"] for one in console.http.get("/v1/operations", headers=ANN).json()["operations"]
    ] == [name]
    assert console.http.get("/v1/operations", headers=BOB).json() == {}
    assert console.http.delete(f"/v1/{name}", headers=ANN).status_code == 403
    assert call(f"/v1/{name}:cancel", headers=BOB).status_code == 404
    assert call(f"/v1/{name}:cancel", headers=ANN).status_code == 200
    described = call("/v1/operations:describe", json={"names": [name]}, headers=ANN).json()
    assert (
        described["descriptions"][0]["cancelRequested"] or described["descriptions"][0]["endTime"]
    )
    assert call("/v1/operations:batchGet", json={"names": [name]}, headers=ANN).status_code == 200


def test_console_refuses_pages_of_other_sites(console: ServedConsole) -> None:
    """As the operations do."""
    other = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    for headers in (ANN | other, other):
        refused = console.http.post("/v1/operations/x:cancel", headers=headers)
        assert refused.status_code in (401, 403)


def test_console_without_a_caller_is_for_this_machine(console: ServedConsole) -> None:
    """A call through a proxy is refused, and one for another host."""
    assert console.unnamed.get("/session").json()["caller"] == ""
    for headers in ({"via": "1.1 proxy"}, {"host": "console.example.com"}):
        for path in ("/", "/session", "/v1/operations"):
            refused = console.unnamed.get(path, headers=headers)
            assert (refused.status_code, path) == (403, path)
            assert "authenticate=" in refused.text
