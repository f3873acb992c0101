"""Each host is told to stop under load and begun again: no acknowledged work is lost (defects 8, 21).

The hosts, and what they need, are those of the table in docs/how-to/stopping.md.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import attrs
import pytest

from lro import ListOperationsRequest
from lro.stores.sqlite import SQLiteStore
from tests.stopping.hosts import Load, call, running, until

pytestmark = pytest.mark.skipif(
    not hasattr(__import__("os"), "killpg"), reason="this system has no process groups"
)


@attrs.frozen
class Kind:
    """A host: how it is begun, and how many calls it can hold at once."""

    command: tuple[str, ...]
    needs: str
    waits: int = 6
    starters: int = 2


def gunicorn(*options: str, app: str = "wsgi_app") -> tuple[str, ...]:
    """The command for gunicorn on a free port."""
    return ("-m", "gunicorn", "--bind", "127.0.0.1:0", *options, f"work:{app}")


KINDS = {
    "uvicorn": Kind(("-m", "uvicorn", "work:asgi_app", "--port", "0"), "uvicorn"),
    "hypercorn": Kind(
        ("-m", "hypercorn", "--bind", "127.0.0.1:0", "work:asgi_app"), "hypercorn"
    ),
    "gunicorn, uvicorn workers": Kind(
        gunicorn("-w", "2", "-k", "uvicorn_worker.UvicornWorker", app="asgi_app"), "uvicorn_worker"
    ),
    "gunicorn, sync": Kind(gunicorn("-w", "3"), "gunicorn", waits=2, starters=1),
    "gunicorn, threads": Kind(gunicorn("-w", "2", "--threads", "8"), "gunicorn"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the application, under the name that it has in the page."""
    (tmp_path / "work.py").write_text("from tests.stopping.app import asgi_app, service, wsgi_app\n")
    return tmp_path


def calls(folder: Path, end: str) -> int:
    """How many calls to paths with this end have come."""
    log = folder / "calls"
    return sum(line.endswith(end) for line in log.read_text().split()) if log.exists() else 0


@pytest.mark.parametrize("kind", KINDS)
def test_sigterm_under_load_loses_nothing(kind: str, folder: Path) -> None:
    """Waiters get an answer or 503, the host ends, and the next one ends every operation well."""
    host = KINDS[kind]
    if importlib.util.find_spec(host.needs) is None:
        pytest.skip(f"{host.needs} is not installed")
    with running(host.command, folder, "first.log") as first:
        load = Load(first.port())
        # Two that end while the service drains, and two that are handed back.
        names = [load.start(milliseconds) for milliseconds in (100, 100, 1500, 1500)]
        assert all(names), first.output
        for number in range(host.waits):
            load.wait(names[2 + number % 2])
        until(lambda: calls(folder, ":wait") == host.waits)
        for _ in range(host.starters):
            load.go_on(10)
        until(lambda: len(load.acknowledged) > 10)
        first.stop()
        load.end()
        assert not first.alive
        assert "Traceback" not in first.output
    print([(a.status, a.body) for a in load.waits], len(load.acknowledged), load.refusals)
    assert [answer for answer in load.waits if answer.status != 200 and not answer.stopping] == []
    assert [answer for answer in load.refusals if answer.status and not answer.stopping] == []

    with running(host.command, folder, "second.log") as second:
        port = second.port()

        def ended(name: str) -> bool:
            return bool(call(port, "GET", f"/v1/{name}").body["done"])

        for name in load.acknowledged:
            operation = call(port, "POST", f"/v1/{name}:wait", {"timeout": "30s"})
            assert "response" in operation.body, (operation, first.output, second.output)
        second.stop()
        assert not second.alive
        assert "Traceback" not in second.output
