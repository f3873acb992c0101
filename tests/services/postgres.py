"""A PostgreSQL server of our own for tests: on a free port, in a directory, crashed at will."""

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
"""Options of a store whose statements a busy machine does not interrupt."""

_DEBIAN: Final = Path("/usr/lib/postgresql")
_GUARD: Final = 'read _; kill -QUIT "$0" && kill -CONT "$0" && sleep 1; rm -rf -- "$1"'
"""Outlives a test run that is killed, and clears up after it: its standard input ends then."""

_READY: Final = "ready to accept connections"
_LOCALE: Final = ("-E", "UTF8", "--locale", "C")
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "lc_messages": "C",
    "log_line_prefix": "",
    "deadlock_timeout": "200ms",
    # What is in the system's cache outlives a crash of the server, and a busy disk delays commits.
    "fsync": "off",
}


class PostgresServer:
    """One server; its data outlive every stop, however rude.

    PostgreSQL refuses to run as root, so there it runs as ``postgres``, or as ``nobody``.
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
        """Start it, and return when it takes connections."""
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
            start_new_session=True,  # Ctrl-C is for the tests, which then stop it
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
        """Disconnect all clients and stop; return when it has stopped. Idempotent."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None
        if self._guardian is not None:
            self._guardian.kill()
            self._guardian.communicate()
            self._guardian = None

    def crash(self) -> None:
        """Stop in immediate mode, as after a crash: nothing is rounded off."""
        self.stop(signal.SIGQUIT)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Crash it, and have it back after the block."""
        self.crash()
        try:
            yield
        finally:
            self.start()

    def save(self) -> None:
        """Stop it, keep a copy of its data, and start it again."""
        self.stop()
        self._copy("data", "saved")
        self.start()

    def restore(self) -> None:
        """Crash it, and start it with the data that were saved: what came after is lost."""
        self.crash()
        shutil.rmtree(self._folder / "data")
        self._copy("saved", "data")
        self.start()

    def _copy(self, source: str, target: str) -> None:
        subprocess.run(["cp", "-a", source, target], check=True, cwd=self._folder)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it be there and answer nothing, for the length of the block."""
        self._signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_all(signal.SIGCONT)

    def fresh_schema(self) -> str:
        """A name for a new schema."""
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
        ready.set()  # it has ended instead


@functools.cache
def shared_server() -> PostgresServer:
    """The server of this test run, started for the first test that asks; skips without one."""
    return new_server()


def new_server() -> PostgresServer:
    """A server that runs until the end of this process, or until it is stopped."""
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
    """The server of this test run, running."""
    return shared_server()


def store_maker(server: PostgresServer, **options: Any) -> Callable[..., Any]:
    """Makes an empty store by a clock, in a schema of its own on this server."""
    options = {**UNHURRIED, **options}
    from lro.stores.postgres import PostgresStore  # only where there is a server to try it on

    def make(clock: Callable[[], Any] | None = None) -> PostgresStore:
        store = PostgresStore(server.url, schema=server.fresh_schema(), clock=clock, **options)
        store.secret()  # its first use, which makes the schema
        return store

    return make


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def as_other_user(folder: Path) -> Sequence[str]:
    """The words before a command that does not run as root, and is to have this folder."""
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
    """What runs a command as this user.

    ``Popen(user=...)`` would fork by ``fork()``, which runs what grpcio has to do in a child: now
    and then that ended the child before it became the server. Without, Popen uses ``vfork()``.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("PostgreSQL does not run as root, and util-linux's setpriv is not installed")
    return (setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--")
