"""Stop each host (server program) under load, and start it again: no acknowledged work is lost.

The hosts and their files are on the page docs/how-to/run-stops.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
import pytest

from lro.stores.sqlite import SQLiteStore
from tests.services.hosts import BROKER, ROOT, Host, HttpLoad, Load, running, until
from tests.services.redis import redis_server

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups")

PAGE: Final = ROOT / "docs" / "how-to" / "run-stops.md"
FILE: Final = re.compile(r"```python\n# (?P<name>\w[\w.]*\.py)\n(?P<text>.*?)```", re.DOTALL)


OUR_TRACEBACK: Final = re.compile(r'File ".*[/\\]lro[/\\].*')
"""A traceback line of the library; hypercorn prints tracebacks of its own when it cancels calls."""
WORK: Final = """
import logging
logging.basicConfig(level=logging.INFO)  # waitress logs where it listens
from tests.full.stopping.app import *
"""


HELD: Final = -1
"""The ``milliseconds`` of a request whose work runs until the test creates the file ``go``."""


@attrs.frozen
class Kind:
    """A host: the packages that it needs, its command, and how many calls it gets."""

    needs: tuple[str, ...]
    command: tuple[str, ...]
    waits: int = 6
    """The number of calls that wait: at most 3 do in a process under WSGI (``max_waiting``)."""
    starters: int = 2
    worker: tuple[str, ...] = ()
    """The command of the worker process, if the host does not do the work itself."""
    grpc: bool = False
    held_to_their_end: bool = False
    """Whether this host lets waits run to their end, so that they return 200."""
    held: int = 2
    """The number of operations whose work runs until the test creates the file ``go``.

    With Celery, each worker process runs one of these operations. If the signal came while the
    worker sends a message to a free process, Celery 5.7 would never stop (the page has a
    workaround).
    """


def gunicorn(*options: str, app: str = "wsgi_app") -> tuple[str, ...]:
    """Return a gunicorn command on a free port; without options gunicorn reads the page's file."""
    return ("-m", "gunicorn", "--bind", "127.0.0.1:0", *options, f"work:{app}")


def lro_serve(*options: str) -> tuple[str, ...]:
    """Return the command of ``lro serve`` on a free port."""
    return ("-m", "lro.cli", "serve", "work:service", "--port", "0", *options)


def within(app: str) -> tuple[str, ...]:
    """Return a gunicorn command for a framework's application, on a free port."""
    bound = ("--bind", "127.0.0.1:0", "-c", "/dev/null", "--threads", "12")
    return ("-m", "gunicorn", *bound, app)


def hypercorn(*options: str) -> tuple[str, ...]:
    """Return a hypercorn command on a free port."""
    bound = ("--bind", "127.0.0.1:0", "--graceful-timeout", "1")
    return ("-m", "hypercorn", *bound, *options, "work:asgi_app")


FREE: Final = ("--factory", "--port", "0", "--timeout-graceful-shutdown", "5")
KINDS: Final = {
    "uvicorn": Kind(("uvicorn",), ("-m", "uvicorn", "work:asgi_app", "--port", "0")),
    "uvicorn, processes": Kind(
        ("uvicorn",), ("-m", "uvicorn", "work:asgi_app", "--port", "0", "--workers", "2")
    ),
    "lro serve": Kind(("click", "uvicorn"), lro_serve()),
    "lro serve, processes": Kind(("click", "uvicorn"), lro_serve("--workers", "2")),
    "hypercorn": Kind(("hypercorn",), hypercorn("--workers", "0")),
    "hypercorn, processes": Kind(
        ("hypercorn",), hypercorn(), held_to_their_end=sys.version_info >= (3, 12, 1)
    ),
    "gunicorn, uvicorn workers": Kind(
        ("gunicorn", "uvicorn_worker"), gunicorn("-k", "workers.Worker", app="asgi_app")
    ),
    "gunicorn, sync": Kind(("gunicorn",), gunicorn("-c", "/dev/null", "-w", "3"), 2, 1),
    "gunicorn, threads": Kind(("gunicorn",), gunicorn("-c", "/dev/null", "--threads", "12"), 3),
    "gunicorn, threads, preload": Kind(("gunicorn",), gunicorn("--threads", "12", "--preload"), 3),
    "Flask": Kind(("flask", "gunicorn"), within("tests.full.stopping.in_frameworks:flask()"), 3),
    **{
        name: Kind(
            (name, "uvicorn"), ("-m", "uvicorn", f"tests.full.stopping.in_frameworks:{name}", *FREE)
        )
        for name in ("fastapi", "starlette", "litestar", "quart")
    },
    "Django": Kind(("django", "gunicorn"), within("tests.full.stopping.in_django:application"), 3),
    "aiohttp": Kind(("aiohttp",), ("-m", "tests.full.stopping.in_aiohttp")),
    "waitress": Kind(("waitress",), ("serve.py",), 3),
    "gRPC": Kind(("grpc", "google.longrunning"), ("grpc_server.py",), grpc=True),
    "gRPC, asyncio": Kind(("grpc", "google.longrunning"), ("grpc_aio_server.py",), grpc=True),
    "HTTP and gRPC": Kind(
        ("grpc", "google.longrunning", "starlette", "uvicorn"),
        ("-m", "uvicorn", "both:app", "--port", "0"),
        grpc=True,
    ),
    "Celery worker": Kind(
        ("celery", "redis", "uvicorn"),
        ("-m", "uvicorn", "work:asgi_app", "--port", "0"),
        worker=("-m", "celery", "-A", "work", "worker", "-c", "3", "--without-mingle"),
        held=3,
    ),
}


@pytest.fixture(params=KINDS)
def kind(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kind]:
    found = KINDS[request.param]
    skip_without(found.needs)
    with contextlib.ExitStack() as stack:
        if found.worker:
            broker = stack.enter_context(redis_server(tmp_path))
            monkeypatch.setenv(BROKER, broker.url)
            monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")  # as the page recommends
        yield found


@pytest.fixture
def port() -> Iterator[int]:
    """Reserve a port: only servers that share ports, such as gRPC's, can listen there."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        line.bind(("127.0.0.1", 0))
        yield line.getsockname()[1]


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Path:
    """Make a folder with the page's files, and the application as ``work.py``."""
    for file in FILE.finditer(PAGE.read_text(encoding="utf-8")):
        text = file["text"].replace(":8000", ":0").replace(":50051", f":{port}")
        (tmp_path / file["name"]).write_text(text)
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


def skip_without(packages: tuple[str, ...]) -> None:
    """Skip the test unless all these packages are installed."""
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(f"{package} is not installed")


@contextlib.contextmanager
def begun(kind: Kind, folder: Path, port: int, log: str) -> Iterator[tuple[list[Host], Load]]:
    """Start a host, and its worker if it has one; yield the processes and a load on the host."""
    with contextlib.ExitStack() as stack:
        commands = {f"worker-{log}": kind.worker, log: kind.command}
        hosts = [
            stack.enter_context(running(command, folder, name))
            for name, command in commands.items()
            if command
        ]
        load: Load
        if kind.grpc:
            from tests.full.stopping.grpc_load import GrpcLoad

            load = GrpcLoad(port)
        else:
            load = HttpLoad(hosts[-1].port())
        yield hosts, stack.enter_context(load)


def count(folder: Path, log: str, text: str) -> int:
    """Return how often this text occurs in one of the application's logs."""
    file = folder / log
    return file.read_text().count(text) if file.exists() else 0


def both_begun(folder: Path) -> list[str]:
    """Return the names of the script's two operations once their work has begun."""
    until(lambda: count(folder, "begun", "\n") == 2)
    return (folder / "begun").read_text().split()


def no_message_is_left() -> bool:
    import redis

    with redis.Redis.from_url(os.environ[BROKER]) as broker:
        return broker.llen("celery") == 0 and broker.hlen("unacked") == 0


def stop(hosts: Sequence[Host], folder: Path, load: Load | None = None) -> None:
    """Stop all hosts with SIGTERM during this load, and check that they leave nothing behind."""
    for host in hosts:
        host.ask_to_stop()
    for host in hosts:
        host.end()
    if load is not None:
        load.end()
    check_left(hosts, folder)


def check_left(hosts: Sequence[Host], folder: Path) -> None:
    """Check that stopped hosts leave no process, no log of the store and no lease behind."""
    until(lambda: not any(host.alive for host in hosts))
    for host in hosts:
        assert OUR_TRACEBACK.search(host.output) is None, host.output
    assert not (folder / "operations.db-wal").exists(), "the store was not closed"
    with contextlib.closing(SQLiteStore(folder / "operations.db")) as store:
        records = store.page("", None, 1000).records
    assert [record for record in records if not record.done and record.owner] == []


def test_sigterm_under_load_loses_nothing(kind: Kind, folder: Path, port: int) -> None:
    """After SIGTERM, waits return 503 and the host stops; a restart lets all operations succeed."""
    with begun(kind, folder, port, "first.log") as (first, load):
        held = [load.start(HELD) for _ in range(kind.held)]
        for number in range(kind.waits):
            load.wait(held[number % kind.held])
        until(lambda: count(folder, "calls", "WaitOperation") == kind.waits)
        until(lambda: count(folder, "begun", "\n") == len(held))
        for _ in range(kind.starters):
            load.go_on(100)
        until(lambda: len(load.acknowledged) > 10)
        stop(first, folder, load)
    well = 200 if kind.held_to_their_end else 503
    assert {answer.status for answer in load.waits} <= {well, 503}
    assert [one for one in load.waits if one.status == 503 and not one.stopping] == []
    assert [answer for answer in load.refusals if answer.status and not answer.stopping] == []

    (folder / "go").touch()
    with begun(kind, folder, port, "second.log") as (second, again):
        lost = {
            name: answer
            for name in load.acknowledged
            if not (answer := again.result(name)).done or "response" not in answer.body
        }
        assert lost == {}, "".join(host.output for host in (*first, *second))
        if kind.worker:
            until(no_message_is_left)
        stop(second, folder)


@pytest.mark.parametrize("closing", ["with service", "at exit"])
def test_sigterm_to_a_script_loses_nothing(closing: str, folder: Path) -> None:
    """A script with or without ``with``, and a worker, release their work after SIGTERM."""
    if closing == "at exit":
        script = (folder / "script.py").read_text()
        (folder / "script.py").write_text(script.replace("with service:", "if service:"))
    with running(("script.py",), folder, "first.log") as script_host:
        names = both_begun(folder)
        assert script_host.stop() == 1
        check_left([script_host], folder)
    with running(("worker.py",), folder, "second.log") as worker:
        until(lambda: count(folder, "begun", "\n") == 3)
        assert worker.stop() == 0
        check_left([worker], folder)
    skip_without(("waitress",))
    with begun(KINDS["waitress"], folder, 0, "third.log") as (third, again):
        assert ["response" in again.result(name).body for name in names] == [True] * 2
        stop(third, folder)
