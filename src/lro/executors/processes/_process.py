"""A child process, and the pool of child processes."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.spawn import get_executable
from typing import Final

from lro._engine.process import PerProcess, living
from lro.executors.processes._messages import FromChild, Shutdown, ToChild, encode, from_child

_CHUNK: Final = 1 << 20
_SHORT: Final = 4
_LONG: Final = 8
"""Bytes of a long length.

A message begins with its length, a signed 4-byte number. If the number is -1, the next 8 bytes have
the length.
"""


class MessageReader:
    """Reads messages piece by piece as they arrive.

    ``Connection.recv_bytes`` would wait for the end of a message. A child that is stopped or dies
    while it sends a message never sends the end of that message.
    """

    def __init__(self) -> None:
        self._begin()

    def take(self, descriptor: int) -> bytes | None:
        """Read once from the descriptor; return the message if it is now complete.

        Raises:
            EOFError: The child has closed the connection.
        """
        found = os.read(descriptor, min(self._left, _CHUNK))
        if not found:
            raise EOFError
        self._bytes += found
        self._left -= len(found)
        if self._left == 0 and self._in_length:
            self._measure()
        if self._left or self._in_length:
            return None
        whole = bytes(self._bytes)
        self._begin()
        return whole

    def _begin(self) -> None:
        self._bytes = bytearray()
        self._left = _SHORT
        self._in_length = True

    def _measure(self) -> None:
        length = int.from_bytes(self._bytes, "big", signed=len(self._bytes) == _SHORT)
        self._bytes.clear()
        self._in_length = length < 0
        self._left = _LONG if length < 0 else length


_PROGRAM: Final = """\
import json, os, sys
from multiprocessing.connection import Connection
os.set_inheritable(int(sys.argv[1]), False)
connection = Connection(int(sys.argv[1]))
sys.path[:], sys.argv[:], level = json.loads(connection.recv_bytes())
from lro.executors.processes._child import main
main(connection, level)
"""
"""The program of a child. It first reads its parent's ``sys.path``, to import all other modules."""

_SMALL: Final = 16384
"""Bytes that a pipe buffers even if the child does not read, for example after SIGSTOP."""

LEAVE_SECONDS: Final = 2.0
"""Seconds that an idle child has to end itself before it is killed."""


class ChildProcess:
    """A child that runs one call at a time. Used by one thread, unless a method says otherwise.

    The child is a new program, because a fork would inherit locks that threads of this process
    hold. A ``multiprocessing.Process`` would not do either: it has no process group of its own,
    imports the main module even if no function is in that module, and cannot be started by a
    daemonic process. The child leads a process group, which includes all processes that a function
    starts. So Ctrl-C does not reach these processes, and they are killed with the child.

    Raises:
        OSError: The child cannot be started.
    """

    def __init__(self) -> None:
        self.started = False
        """True once the child has reported that it is ready."""
        self._inbox = MessageReader()
        self.calls = 0
        """Number of calls sent to the child."""
        self._sender: threading.Thread | None = None
        self._waking = threading.Lock()
        self._wake_receiver, self._wake_sender = Pipe(duplex=False)
        self._connection, theirs = Pipe()
        for end in (self._connection, theirs):  # gevent makes pipes non-blocking
            os.set_blocking(end.fileno(), True)
        try:
            self._popen = _popen(theirs)
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
        with contextlib.suppress(OSError):  # the child has ended: receive() will notice
            level = logging.getLogger().level
            self._connection.send_bytes(json.dumps([_paths(), sys.argv, level]).encode())

    @property
    def pid(self) -> int:
        """The child's process id, which is also its group id."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """True if the child runs; any thread may ask."""
        return self._popen.poll() is None

    @property
    def killed(self) -> bool:
        """True if a signal ended the child."""
        return (self._popen.returncode or 0) < 0

    def send(self, message: ToChild) -> None:
        """Send a message to the child.

        Raises:
            OSError: The child has ended.
            ValueError, TypeError: The message cannot be encoded.
        """
        text = encode(message)
        if len(text) <= _SMALL:
            self._connection.send_bytes(text)
            return
        self._sender = threading.Thread(target=self._send, args=(text,), name="lro-send")
        self._sender.daemon = True
        self._sender.start()

    @property
    def still_sending(self) -> bool:
        """True while a long message is being sent, so that another message would have to wait."""
        return self._sender is not None and self._sender.is_alive()

    def receive(self, seconds: float | None) -> FromChild | None:
        """Return the child's next message; None after ``seconds`` seconds or a :meth:`wake`.

        Raises:
            EOFError, OSError: The child has ended.
        """
        ready = wait([self._connection, self._wake_receiver], seconds)
        if self._wake_receiver in ready:
            self._wake_receiver.recv_bytes()
        while self._connection in ready:
            text = self._inbox.take(self._connection.fileno())
            if text is not None:
                return from_child(text)
            ready = wait([self._connection], 0)
        return None

    def wake(self) -> None:
        """Make :meth:`receive` return soon; any thread may call it."""
        with self._waking:
            if not self._wake_sender.closed:
                self._wake_sender.send_bytes(b"")

    def terminate(self) -> None:
        """Interrupt the function that the child runs."""
        self._popen.terminate()

    def kill(self) -> None:
        """Kill the child and its process group; any thread may call it, before :meth:`reap`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the child has ended, after :meth:`kill`; any thread may call this."""
        self._popen.wait()

    def shut_down(self) -> None:
        """Ask the child to end itself once it is idle."""
        with contextlib.suppress(OSError):  # the child has already ended
            self.send(Shutdown())

    def reap(self, seconds: float = LEAVE_SECONDS) -> str:
        """Wait at most ``seconds`` seconds for the child's end, then kill it. Idempotent.

        Returns:
            A text that describes how the child ended.
        """
        if not self._connection.closed:
            try:
                self._popen.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            self.kill()  # also processes that functions left running
            self._popen.wait()
            self._end_sending()
            self._close()
        return _ending(self._popen.returncode)

    def _send(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # the child has ended: receive() will notice
            self._connection.send_bytes(text)

    def _end_sending(self) -> None:
        if self._sender is not None:
            # Stop sending, even if another process still holds the child's end open.
            end = socket.socket(fileno=self._connection.fileno())
            try:
                end.shutdown(socket.SHUT_RDWR)
            finally:
                end.detach()  # a duplicate could fail: perhaps no descriptor is free
            self._sender.join()

    def detach(self) -> None:
        """Forget the child, in a process that was forked from its parent."""
        self._waking = threading.Lock()  # the old lock may be held by a thread of the parent
        self._popen.returncode = 0  # do not wait for a child of the parent
        self._close()

    def _close(self) -> None:
        self._connection.close()
        with self._waking:
            self._wake_receiver.close()
            self._wake_sender.close()


def _popen(theirs: Connection) -> subprocess.Popen[bytes]:
    flags = [f"-W{option}" for option in sys.warnoptions]
    for name, value in sys._xoptions.items():
        flags.append(f"-X{name}" if value is True else f"-X{name}={value}")
    # -P: files of the working directory cannot shadow modules of the library.
    flags += ["-O"] * sys.flags.optimize + ["-P"]
    # A supervisor may send SIGTERM to all processes: block the signal until the child handles it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return subprocess.Popen(
            [get_executable(), *flags, "-c", _PROGRAM, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            process_group=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _paths() -> list[str]:
    return [os.path.abspath(path) for path in sys.path]


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"its process was ended by signal {-code}"


_pools: Final[weakref.WeakKeyDictionary[ChildPool, None]] = weakref.WeakKeyDictionary()


class ChildPool(PerProcess):
    """The child processes, idle and busy; the most recently used idle child is taken first.

    Each child is ended after ``recycle`` calls; None means no limit.
    """

    def __init__(self, recycle: int | None) -> None:
        self._recycle = recycle
        self._closed = self._killed = False
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        _pools[self] = None

    def take(self) -> ChildProcess:
        """Return an idle child, or a new one.

        Raises:
            OSError: The child cannot be started.
        """
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return self._start()
            if process.alive:
                return process
            self._end(process)  # killed while idle

    def give_back(self, process: ChildProcess, *, unusable: bool) -> None:
        """Keep a child for the next task, or end a child that cannot be used again."""
        with self._lock:
            used_up = self._recycle is not None and process.calls >= self._recycle
            if not (unusable or used_up or self._closed):
                self._idle.append(process)
                return
        process.shut_down()
        self._end(process)

    def close(self) -> None:
        """End the idle children now, and the busy children when they are given back."""
        with self._lock:
            self._closed = True
            leaving = [*self._idle]
        for process in leaving:
            process.shut_down()

    def reopen(self) -> None:
        """Keep idle children again after :meth:`close`."""
        self.reap(0.0)
        with self._lock:
            self._closed = self._killed = False

    def reap(self, seconds: float) -> None:
        """Wait at most ``seconds`` seconds for the idle children to end, then kill them."""
        until = time.monotonic() + seconds
        with self._lock:
            leaving, self._idle = self._idle, []
        for process in leaving:
            self._end(process, max(0.0, until - time.monotonic()))

    def kill(self) -> None:
        """Kill all children, and each child that is started later."""
        with self._lock:
            self._killed = True
            children = [*self._all]
        for process in children:
            process.kill()
        for process in children:
            process.wait()

    def _start(self) -> ChildProcess:
        process = ChildProcess()
        with self._lock:
            self._all.add(process)
            if self._killed:
                process.kill()
        return process

    def _end(self, process: ChildProcess, seconds: float = LEAVE_SECONDS) -> None:
        process.reap(seconds)
        with self._lock:
            self._all.discard(process)

    def _after_fork(self) -> None:
        # In a forked process: the children belong to the parent.
        for process in self._all:
            process.detach()
        self._lock = threading.Lock()
        self._idle, self._all = [], set()


def _kill_all() -> None:
    # The process is ending: its children must not continue without it.
    for pool in living(_pools):
        pool.kill()


atexit.register(_kill_all)
