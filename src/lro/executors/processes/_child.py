"""In the child: what a process does that runs functions for another one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from queue import SimpleQueue

from lro._base.errors import EncodingError
from lro._engine.forks import after_fork
from lro._engine.process_role import mark_worker_process
from lro.executors.processes._attempt import RemoteAttempt
from lro.executors.processes._messages import (
    Answer,
    Call,
    FromChild,
    Last,
    Leave,
    Line,
    Ready,
    Stop,
    encode,
    to_child,
)

log = logging.getLogger("lro")


def main(connection: Connection) -> None:
    """Do the calls that come over a connection, until the parent says that there are no more.

    When the parent is gone, this process and those that it has started are killed.
    """
    mark_worker_process()
    hands = ChildMain(connection, _die)
    signal.signal(signal.SIGINT, _ignored)  # Ctrl-C: the parent decides
    signal.signal(signal.SIGTERM, hands.interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    log.addHandler(hands.forwarding)
    log.propagate = False
    after_fork(hands, ChildMain.detach)
    threading.Thread(target=hands.listen, name="lro-listen", daemon=True).start()
    hands.work()


class ChildMain:
    """Does one call after another in the main thread, while another thread listens."""

    def __init__(self, connection: Connection, die: Callable[[], None]) -> None:
        self.forwarding = _Forwarding(self.send)
        """Sends the lines of a log to the parent."""
        self._connection = connection
        self._die = die
        self._attempts: SimpleQueue[RemoteAttempt | None] = SimpleQueue()
        self._sending = threading.Lock()
        self._main = threading.get_ident()
        self._pid = os.getpid()
        self._shielded = False
        self._late = False
        self._working: RemoteAttempt | None = None
        """Whose function the main thread is in."""

    def listen(self) -> None:
        """Take what the parent says, also while a function runs; die when the parent has died."""
        attempt: RemoteAttempt | None = None
        try:
            while True:
                message = to_child(self._connection.recv_bytes())
                if isinstance(message, Call):
                    # Made here, so that a Stop which comes right behind finds it.
                    attempt = RemoteAttempt(message, self.send)
                    self._attempts.put(attempt)
                elif isinstance(message, Leave):
                    self._attempts.put(None)
                elif attempt is not None:
                    self._pass_on(attempt, message)
        except (EOFError, OSError):  # the parent is gone
            self._die()
        except BaseException:  # such as MemoryError: nobody would hear the parent any more
            log.exception("what the parent says cannot be read")
            self._die()

    def work(self) -> None:
        """Do what is asked until there is no more."""
        self.send(Ready())
        while (attempt := self._attempts.get()) is not None:
            last: Last
            try:
                try:
                    self._working = attempt
                    returned = attempt.returned()
                finally:
                    self._working = None
                last = attempt.done(returned)
            except BaseException as exc:  # also SystemExit: it ends the call, not the process
                last = attempt.failed(exc)
            attempt.tell(last)

    def send(self, message: FromChild) -> None:
        """Tell the parent, in one piece whatever signal comes.

        Raises:
            EncodingError: The message holds what cannot be encoded.
        """
        try:
            text = encode(message)
        except (ValueError, TypeError) as exc:
            raise EncodingError(type(message).__name__, "", f"cannot be told: {exc}") from exc
        with self._shield(), self._sending:
            try:
                self._connection.send_bytes(text)
            except OSError:
                self._die()

    def interrupt(self, *_: object) -> None:
        """On SIGTERM: stop the function in its midst, if the parent has asked for that.

        A signal from elsewhere stops nothing: whoever ends a whole group of processes ends the
        parent too, which then says what is to happen.
        """
        if os.getpid() != self._pid:  # we were forked just now: see below
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        attempt = self._working
        if attempt is None or attempt.why is None:
            return
        if self._shielded:
            self._late = True
            return
        self._working = None  # once: it may be tidying up
        raise attempt.why.error()

    def detach(self) -> None:
        """In a process forked by a function: it is a stranger to our parent."""
        self._connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log.removeHandler(self.forwarding)
        log.propagate = True

    @staticmethod
    def _pass_on(attempt: RemoteAttempt, message: Stop | Answer) -> None:
        if isinstance(message, Stop):
            attempt.stop(message.why)
        else:
            attempt.answered(message)

    @contextlib.contextmanager
    def _shield(self) -> Iterator[None]:
        # Signals are handled in the main thread, so what others send is never interrupted.
        if threading.get_ident() != self._main:
            yield
            return
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._late:
            self._late = False
            self.interrupt()


class _Forwarding(logging.Handler):
    """Has the library's own lines, tracebacks and all, appear in the log of the parent."""

    def __init__(self, send: Callable[[FromChild], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(Line(record.levelno, self.format(record)))
        except Exception:  # as logging does it: a line is not worth a failure
            self.handleError(record)


def _ignored(*_: object) -> None:
    # Not SIG_IGN, which the programs that a function starts would inherit.
    pass


def _die() -> None:
    with contextlib.suppress(OSError):  # we lead no group: somebody else has started us
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
