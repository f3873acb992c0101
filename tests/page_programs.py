"""Run the Python code of a page as one program, forked from a process with most imports done.

``python -m tests.page_programs`` is that process: it forks a program for each input line, and
prints the program's exit status.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.page_texts import ROOT, blocks, files, program
from tests.services.ports import free_port
from tests.services.postgres import shared_server

PORT: Final = re.compile(r"<!--.*\bserved\b.* on port (\d+)\s*-->")
TESTS: Final = re.compile(r"<!--\s*run by pytest\s*-->")
"""The comment that marks a block of tests, which run after the page's program."""
SERVING: Final = """
import atexit, socket, subprocess, sys, threading, time, urllib.request, uvicorn

def run(command, port):
    words = [sys.executable, "-m", "lro.cli", *command.split()[1:], "--port", str(port)]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    atexit.register(server.wait)
    atexit.register(server.terminate)
    ready = urllib.request.Request(f"http://127.0.0.1:{port}/readyz")
    while True:
        assert server.poll() is None
        try:
            return urllib.request.urlopen(ready).close()
        except OSError:  # it does not listen yet
            time.sleep(0.01)

def serve(app, port):
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)

    def stop():  # a thread that runs on while the interpreter ends may crash it
        server.should_exit = True
        thread.join(60)

    atexit.register(stop)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
"""
DATABASE: Final = "://localhost/shop"
"""The address of the PostgreSQL server on pages; the tests' own server replaces it."""

LONG: Final = frozenset(
    {"a2a", "command-line", "conform", "conform-clients", "mcp", "migrate-from-celery", "testing"}
)
"""Pages that run commands or workers, or import much; their code runs in the full tier."""

COMMON: Final = (
    *("asyncio", "concurrent.futures.thread", "encodings.idna", "sqlite3", "stringprep"),
    *("fastapi", "h2.connection", "httpcore", "httpx", "starlette.testclient", "tenacity"),
    *("opentelemetry.metrics", "opentelemetry.trace.propagation.tracecontext"),
    *("uvicorn.lifespan.on", "uvicorn.protocols.http.h11_impl"),
    *("lro.asgi", "lro.http", "lro.testing"),
    *("lro.executors.asyncio", "lro.executors.inline", "lro.executors.threads", "lro.telemetry"),
    *("lro.stores.memory", "lro.stores.sqlite", "lro.webhooks"),
    *("lro_client.testing", "lro_client.transports.local"),
)
"""Modules that most programs import, and that the forking process imports for them."""

SECONDS: Final = 360
"""The most seconds that a program may run."""


def run_code(page: Path, folder: Path) -> None:
    """Run the program of a page in an empty folder, and then the page's tests, if any."""
    source = program(page)
    if not source.strip():
        return
    for port in set(PORT.findall(page.read_text(encoding="utf-8"))):
        source = source.replace(port, str(free_port()))
    if DATABASE in source:
        source = source.replace(DATABASE, shared_server().url.removeprefix("postgresql"))
    for path, text in {"page.py": source, "serving.py": SERVING, **files(page)}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    status, said = run(folder, "page.py")
    assert status == 0, f"{page.name}, by its own line numbers:\n{said}"
    if any(TESTS.search(block.comment) for block in blocks(page)):
        plugins = ["-p", "pytest_lro", "-p", "no:cacheprovider"]
        status, said = run(folder, "-m", "pytest", "-q", "-W", "error", *plugins, "page.py")
        assert status == 0, said


@functools.cache
def parent() -> subprocess.Popen[str]:
    """Start the process that forks each program; it ends with the current process."""
    # other tests in this process may have set up Django, whose settings Celery would look for
    alone = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-W", "error", "-m", __name__]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**alone, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run Python with these arguments in a folder; return its exit status and all its output."""
    process, output = parent(), folder.with_name(f"{folder.name}.out")
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([str(folder), str(output), arguments]), file=process.stdin, flush=True)
    return int(process.stdout.readline()), output.read_text("utf-8")


def fork_for_each_line() -> None:
    """Fork a program for each input line; in the child, run it and return."""
    for name in COMMON:
        importlib.import_module(name)
    gc.freeze()  # otherwise each program copies memory that it only reads
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            become(*json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(folder: str, output: str, arguments: Sequence[str]) -> None:
    """Run a script or a module in this process, as Python runs it with these arguments."""
    signal.alarm(SECONDS)
    os.chdir(folder)
    for descriptor, path in ((0, os.devnull), (1, output), (2, output)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
    sys.path[0] = folder
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = arguments
    main = types.ModuleType("__main__")
    main.__file__ = f"{folder}/{arguments[0]}"
    sys.modules["__main__"] = main
    source = Path(main.__file__).read_text("utf-8")
    exec(compile(source, arguments[0], "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    fork_for_each_line()
