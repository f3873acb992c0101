"""A PostgreSQL server for tests, with its own port and directory; tests may crash the server."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import pytest

from tests.services.ports import free_port
from tests.waiting import PATIENCE

UNHURRIED: Final = {"connect_seconds": PATIENCE, "statement_seconds": PATIENCE}
"""Options of a store whose statements do not time out even on a busy machine."""

_DEBIAN: Final = Path("/usr/lib/postgresql")
_GUARD: Final = 'read _; kill -QUIT "$0" && kill -CONT "$0" && sleep 1; rm -rf -- "$1"'
"""A script that stops the server and removes its folder when the end of the tests closes stdin."""

_READY: Final = "ready to accept connections"
_LOCALE: Final = ("-E", "UTF8", "--locale", "C")
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "lc_messages": "C",
    "log_line_prefix": "",
    "deadlock_timeout": "200ms",
    # No sync is needed, because the system's cache survives a crash of the server. On a busy disk,
    # syncs would delay commits.
    "fsync": "off",
}


class PostgresServer:
    """A server whose data survive every stop and crash of the server.

    If the tests run as root, which PostgreSQL refuses, the server runs as ``postgres`` or
    ``nobody``.
    """

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        self._as = as_other_user(folder)
        self._process: subprocess.Popen[str] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._log: list[str] = []
        self._names = itertools.count()
        self.port = free_port()
        self.url = f"postgresql://lro@127.0.0.1:{self.port}/postgres"
        subprocess.run(
            [
                *self._as,
                binaries / "initdb",
                "-D",
                folder / "data",
                "-U",
                "lro",
                "-A",
                "trust",
                "-N",
                *_LOCALE,
            ],
            check=True,
            capture_output=True,
            cwd=folder,
        )

    def start(self) -> None:
        """Start the server, and return once it accepts connections."""
        assert self._process is None, "it runs already"
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": self._folder}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [*self._as, self._binaries / "postgres", "-D", self._folder / "data", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=self._folder,
            start_new_session=True,  # Ctrl-C is only for the tests, which stop the server
        )
        self._guardian = subprocess.Popen(
            ["sh", "-c", _GUARD, str(self._process.pid), self._folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        ready = threading.Event()
        assert self._process.stderr is not None
        reader = threading.Thread(target=self._read, args=(self._process.stderr, ready))
        reader.daemon = True
        reader.start()
        assert ready.wait(PATIENCE), f"it does not start: {self.log}"
        assert self._process.poll() is None, f"it has not started: {self.log}"

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Disconnect all clients and stop the server, if it runs; return once it has stopped."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None
        if self._guardian is not None:
            self._guardian.kill()
            self._guardian.communicate()
            self._guardian = None

    def crash(self) -> None:
        """Stop the server at once, without a checkpoint, as in a crash."""
        self.stop(signal.SIGQUIT)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Crash the server, and start it again after the block."""
        self.crash()
        try:
            yield
        finally:
            self.start()

    def save(self) -> None:
        """Stop the server, copy its data, and start it again."""
        self.stop()
        self._copy("data", "saved")
        self.start()

    def restore(self) -> None:
        """Crash the server and start it with the saved data, so that later changes are lost."""
        self.crash()
        shutil.rmtree(self._folder / "data")
        self._copy("saved", "data")
        self.start()

    def _copy(self, source: str, target: str) -> None:
        subprocess.run(["cp", "-a", source, target], check=True, cwd=self._folder)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Pause the server during the block: it accepts connections but does not reply."""
        self._signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_all(signal.SIGCONT)

    def fresh_schema(self) -> str:
        """Return an unused name for a schema."""
        return f"lro_{os.getpid()}_{next(self._names)}"

    @property
    def log(self) -> str:
        return "".join(self._log)

    def _signal_all(self, what: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for pid in (self._process.pid, *map(int, children.read_text().split())):
            os.kill(pid, what)

    def _read(self, lines: IO[str], ready: threading.Event) -> None:
        with lines:
            for line in lines:
                self._log.append(line)
                if _READY in line:
                    ready.set()
        ready.set()  # the server may have ended without becoming ready


@functools.cache
def shared_server() -> PostgresServer:
    """Return the server of this test run, which the first call starts; skip without PostgreSQL."""
    return new_server()


def new_server() -> PostgresServer:
    """Start a server that runs until it is stopped or this process ends."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip(f"PostgreSQL is not installed: no initdb in PATH or in {_DEBIAN}/*/bin")
    folder = Path(tempfile.mkdtemp(prefix="lro-postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = PostgresServer(binaries, folder)
    atexit.register(server.stop)
    server.start()
    return server


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """Return the server that all tests of this run share."""
    return shared_server()


def store_maker(server: PostgresServer, **options: Any) -> Callable[..., Any]:
    """Return a function that opens an empty store with a clock, in a new schema of this server."""
    options = {**UNHURRIED, **options}
    from lro.stores.postgres import PostgresStore  # imported only if there is a server

    def make(clock: Callable[[], Any] | None = None) -> PostgresStore:
        store = PostgresStore(server.url, schema=server.fresh_schema(), clock=clock, **options)
        store.secret()  # the first use makes the schema
        return store

    return make


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def as_other_user(folder: Path) -> Sequence[str]:
    """Return a prefix that runs commands as an unprivileged user; give the folder to this user."""
    if os.geteuid() != 0:
        return ()
    user = _other_user()
    os.chown(folder, user.pw_uid, user.pw_gid)
    return _as_user(user)


def _other_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.skip("PostgreSQL does not run as root, and there is neither 'postgres' nor 'nobody'")


def _as_user(user: pwd.struct_passwd) -> Sequence[str]:
    """Return a prefix that runs a command as this user.

    ``Popen(user=...)`` uses ``fork()``, after which grpcio's fork handlers run in the child. They
    sometimes ended the child before it became the server. Without ``user``, Popen uses ``vfork()``.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("PostgreSQL does not run as root, and util-linux's setpriv is not installed")
    return (setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--")
