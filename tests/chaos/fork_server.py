"""A process that has imported everything and started nothing, and makes servers by forking.

Its input is lines of JSON: the setting of the next server. Its output is lines of
JSON too: a server was born, was stopped by a signal, goes on, or has died. When its input ends, it
kills what is left and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, Final

import lro.executors.threads
import lro.stores.sqlite
from tests.chaos.server import Setting, serve

for _extra in ("lro.stores.postgres", "lro.executors.processes", "lro.executors.celery"):
    with contextlib.suppress(ImportError, lro.errors.MissingExtra):
        __import__(_extra)

_ORDERS: Final = 0
_CHUNK: Final = 65536


class ForkServer:
    """The servers that were made here."""

    def __init__(self) -> None:
        self._alive: set[int] = set()
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: our input will end
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def live(self) -> None:
        """Make servers and report their ends, until there is no more input."""
        received = b""
        while True:
            ready, _, _ = select.select([_ORDERS, self._wake], [], [])
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, _CHUNK)
                self._reap()
            if _ORDERS in ready:
                chunk = os.read(_ORDERS, _CHUNK)
                if not chunk:
                    break
                *orders, received = (received + chunk).split(b"\n")
                for order in orders:
                    self._bear(Setting.loads(order))
        for pid in self._alive:
            os.killpg(pid, signal.SIGKILL)
        while self._alive:
            self._alive.discard(os.waitpid(-1, 0)[0])

    def _bear(self, setting: Setting) -> None:
        # Bound before the fork, so that a caller who gets the port can connect at once.
        with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
            port = listener.getsockname()[1]
            pid = os.fork()
            if pid == 0:
                self._grow_up(setting, listener)
            with contextlib.suppress(OSError):  # it has done so itself
                os.setpgid(pid, pid)
            self._alive.add(pid)
        _report(event="born", pid=pid, port=port)

    def _grow_up(self, setting: Setting, listener: socket.socket) -> None:
        status = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(2, 1)
            os.close(self._wake)
            os.close(self._woken)
            serve(setting, listener)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        flags = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
        while self._alive:
            pid, status = os.waitpid(-1, flags)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                _report(event="stopped", pid=pid)
            elif os.WIFCONTINUED(status):
                _report(event="continued", pid=pid)
            else:
                self._alive.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                _report(event="died", pid=pid, code=code, at=time.monotonic())


def _report(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ForkServer().live()
