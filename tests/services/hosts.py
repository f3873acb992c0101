"""Servers as users run them: each is a process of its own, which a signal stops."""

from __future__ import annotations

import abc
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import attrs

from tests.waiting import PATIENCE, until

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = "LRO_STOPPING_FOLDER"
"""The environment variable with the folder of the store and the logs."""
BROKER: Final = "LRO_STOPPING_BROKER"
"""The environment variable with the URL of Celery's broker, if Celery does the work."""
START_PATH: Final = "/v1/works:work"

_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


@attrs.frozen
class Answer:
    """A reply to a call; status 0 means that the connection ended without a reply."""

    status: int
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: Any = None

    @property
    def done(self) -> bool:
        return self.status == 200 and bool(self.body.get("done"))

    @property
    def stopping(self) -> bool:
        """Return whether this is the complete reply with which a stopping service refuses calls."""
        if self.status != 503 or not isinstance(self.body, dict):
            return False
        error = self.body["error"]
        kinds = {detail["@type"].rpartition(".")[2] for detail in error["details"]}
        return bool(
            error["status"] == "UNAVAILABLE"
            and int(self.headers["retry-after"]) >= 1
            and {"ErrorInfo", "RetryInfo"} <= kinds
        )


class Host:
    """A running server with all its processes."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env={
                    **os.environ,
                    FOLDER: str(folder),
                    "PYTHONPATH": os.pathsep.join(
                        [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
                    ),
                    "PYTHONUNBUFFERED": "1",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # all its processes share one process group
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def port(self) -> int:
        """Return the port that the server prints."""
        return int(self.says(_ADDRESS)[1])

    def says(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until the server's output matches this pattern."""
        found: list[re.Match[str]] = []

        def said() -> bool:
            assert self.process.poll() is None, self.output
            match = pattern.search(self.output)
            found.extend([match] if match else [])
            return bool(found)

        until(said)
        return found[0]

    def stop(self) -> int:
        """Stop the server and return its exit status."""
        self.ask_to_stop()
        return self.end()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the server's first process, as systemd and Kubernetes do."""
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait until the server's first process has ended; return its exit status."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not stop:\n{self.output}") from None

    @property
    def alive(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """Kill all processes of the server."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path, log: str) -> Iterator[Host]:
    """Run a server; at the end, kill the processes that are left."""
    host = Host(command, folder, folder / log)
    try:
        yield host
    finally:
        host.kill()


def call(port: int, method: str, path: str, body: object = None) -> Answer:
    """Call a server over a new connection."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        text = None if body is None else json.dumps(body)
        line.request(method, path, text, {"content-type": "application/json"} if text else {})
        reply = line.getresponse()
        content = reply.read()
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException):
        return Answer(0)
    finally:
        line.close()
    headers = {name.lower(): value for name, value in reply.headers.items()}
    try:
        return Answer(reply.status, headers, json.loads(content))
    except ValueError:
        return Answer(reply.status, headers, content)


class Load(abc.ABC):
    """Clients that start operations until a start is refused, and clients that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.acknowledged: list[str] = []
        self.refusals: list[Answer] = []
        self.waits: list[Answer] = []

    def start(self, milliseconds: int) -> str:
        """Start an operation; return its name, or "" if the start is refused."""
        answer = self._start(milliseconds)
        with self._lock:
            if answer.status == 200:
                self.acknowledged.append(answer.body["name"])
                return str(answer.body["name"])
            self.refusals.append(answer)
            return ""

    def result(self, name: str) -> Answer:
        """Return the reply to a Wait that lasts until the operation is done."""
        return self._wait(name, 60)

    def wait(self, name: str) -> None:
        """Wait for an operation in another thread, and record the reply."""

        def wait() -> None:
            answer = self._wait(name, 50)
            with self._lock:
                self.waits.append(answer)

        self._spawn(wait)

    def go_on(self, milliseconds: int) -> None:
        """In another thread, start operations one after another until a start is refused."""

        def go_on() -> None:
            while self.start(milliseconds):
                pass

        self._spawn(go_on)

    def end(self) -> None:
        """Wait until all calls have returned."""
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a call hangs"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027
        """Free the resources that all clients share."""

    @abc.abstractmethod
    def _start(self, milliseconds: int) -> Answer: ...

    @abc.abstractmethod
    def _wait(self, name: str, seconds: int) -> Answer: ...

    def _spawn(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        self._threads.append(thread)


class HttpLoad(Load):
    """Clients that call over HTTP, with a new connection for each call."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        # some servers print their address before they listen
        until(lambda: call(port, "GET", "/v1/operations").status == 200)

    def _start(self, milliseconds: int) -> Answer:
        return call(self._port, "POST", START_PATH, {"milliseconds": milliseconds})

    def _wait(self, name: str, seconds: int) -> Answer:
        return call(self._port, "POST", f"/v1/{name}:wait", {"timeout": f"{seconds}s"})
