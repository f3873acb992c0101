"""The docs site, built once for all test processes, and a browser for the site."""

from __future__ import annotations

import fcntl
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.full.browser.conftest import browser, playwright, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

    from tools.site.api import Api

__all__ = ["browser", "playwright"]

Serve: TypeAlias = Callable[[Path], str]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once, and return the site's folder."""
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings_handlers.python")
    from tools.site.building import build

    home = tmp_path_factory.getbasetemp()
    if home.name.startswith("popen-"):  # pytest-xdist gives each test process its own folder
        home = home.parent
    folder = home / "site-build"
    with (home / "site-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            folder.mkdir()
            build(folder)
            (folder / "done").touch()
    return folder / "site"


@pytest.fixture(scope="session")
def api() -> Api:
    from tools.site.api import Api

    return Api()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback interface, and yield the URL."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="package")
def address(built: Path) -> Iterator[str]:
    """Serve the site, and yield the site's URL."""
    with served(built) as url:
        yield url


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Open a browser context without cookies or storage, in the light theme."""
    size = {"width": 1280, "height": 900}
    with window(browser, viewport=size, color_scheme="light") as opened:
        yield opened
