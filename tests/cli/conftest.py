"""Fixtures that run the command in an empty folder, without a server or with one.

The server is a real one on a local socket.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("uvicorn")

import lro.asgi
from tests.cli.asking import Asked, Lro
from tests.client.conftest import harness, listening
from tests.client.real_service import Harness, Switch, application

__all__ = ["harness", "listening"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder; the variables of ``lro`` are unset, and ``sys.path`` is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("LRO_SERVER", "LRO_TOKEN", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """If coverage is measured, measure it in the processes of the command too."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is not None:
        config = copy.deepcopy(current.config)
        config.data_file, config.parallel = current.get_data().base_filename(), True
        monkeypatch.setenv("COVERAGE_PROCESS_CONFIG", config.serialize())


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Lro:
    """The command ``lro``, without a server."""
    return Lro(capsys)


@pytest.fixture
def asked(harness: Harness, listening: tuple[Switch, str]) -> Asked:
    """The service of ``harness`` on a socket; the application records the requests."""
    switch, url = listening
    switch.app = made = Asked(application(lro.asgi, harness), url)
    return made


@pytest.fixture
def call(asked: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lro:
    """The command ``lro``, with the service of ``asked`` as its server."""
    monkeypatch.setenv("LRO_SERVER", asked.url)
    return Lro(capsys)


@pytest.fixture
def drawing(call: Lro, monkeypatch: pytest.MonkeyPatch) -> Lro:
    """The command ``lro`` with a server, and a terminal as standard output."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return Lro(call.capsys, terminal=True)
