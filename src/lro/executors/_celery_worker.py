"""The Celery worker's side of the executor: it runs an operation by name, and ends when told to."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Final, TypeAlias

from celery.exceptions import Reject, SoftTimeLimitExceeded

from lro._base.errors import InvalidOperationName, Unavailable
from lro._engine.forks import after_fork

log = logging.getLogger("lro")

REJECT_PAUSE_SECONDS: Final = 1.0
"""How long a worker waits before it gives a message back, so that the two do not spin."""

_SHOWN: Final = 5
"""The number of arguments of a wrong message whose types are logged."""

Work: TypeAlias = Callable[[str], None]
Close: TypeAlias = Callable[[timedelta], None]


class CeleryWorkerTask:
    """Runs operations by their names, in a process that may be ended while one runs.

    ``close`` hands back what runs here; it is called when Celery ends the process.
    """

    def __init__(self, work: Work, close: Close | None) -> None:
        self._work = work
        self._close = close
        self.stopped = False
        self._reset_after_fork()
        after_fork(self, CeleryWorkerTask._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._quiet = threading.Condition()
        self._running = 0

    def run(self, *arguments: object, **named: object) -> None:
        """Do the work of the one name that a message holds, unless another has it.

        A message of anything else never becomes one that can be worked on: it is dropped.

        Raises:
            Reject: Not now, or not here: the message is to go back to the broker.
        """
        name = arguments[0] if len(arguments) == 1 and not named else None
        if not isinstance(name, str):
            held = [type(one).__name__ for one in (*arguments, *named.values())][:_SHOWN]
            log.error("a message is dropped, it holds no name of an operation but %s", held)
            return
        try:
            if self.stopped:
                raise Unavailable("the worker is stopping")
            self._run_in_thread(name)
        except InvalidOperationName as exc:
            log.error("a message is dropped: %s", exc)
            return
        except Unavailable as exc:
            log.warning("%s: not begun, its message goes back to the broker: %s", name, exc)
            time.sleep(REJECT_PAUSE_SECONDS)
            raise Reject(str(exc), requeue=True) from exc
        if self.stopped:  # so it may have been handed back, and others can go on with it at once
            raise Reject("the worker is stopping", requeue=True)

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds until nothing runs here; return whether nothing does."""
        with self._quiet:
            return self._quiet.wait_for(lambda: self._running == 0, seconds)

    def _run_in_thread(self, name: str) -> None:
        # Celery ends a process by an exception that a signal handler raises in the main thread.
        # Were the work done there, it would be raised in the midst of the user's function, or of
        # the store. So it is done in another thread, and this one waits.
        if threading.current_thread() is not threading.main_thread():
            self._run_counted(name)
            return
        apart = SeparateThread(lambda: self._run_counted(name))
        while True:
            try:
                apart.start()
                apart.done.result()
                return
            except (Unavailable, InvalidOperationName):
                raise
            except SoftTimeLimitExceeded:  # a limit that starts the work again would limit nothing
                log.warning("%s: goes on; Celery's soft time limit is not for operations", name)
            except BaseException as exc:
                if apart.done.done():  # the work's own
                    raise
                apart.take()
                self._release(name, exc)
                if isinstance(exc, Exception):  # the worker goes on to its end by itself
                    raise Reject(str(exc), requeue=True) from exc
                raise

    def _run_counted(self, name: str) -> None:
        with self._quiet:
            self._running += 1
        try:
            self._work(name)
        finally:
            with self._quiet:
                self._running -= 1
                self._quiet.notify_all()

    def _release(self, name: str, why: BaseException) -> None:
        log.warning("%s: interrupted by the end of its worker: %r", name, why)
        if self._close is None:
            return
        try:
            self._close(timedelta())
        except Exception:  # what is not handed back now is taken over when its lease is over
            log.exception("the work of this process could not be handed back")


class SeparateThread:
    """An action that a thread of its own does, once, wherever an exception interrupts us."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.done: Future[None] = Future()
        self._action = action
        self._context = contextvars.copy_context()
        self._taken = threading.Lock()

    def take(self) -> bool:
        """Claim the action; return False if another thread did. The claimant decides to run it."""
        return self._taken.acquire(blocking=False)

    def start(self) -> None:
        """Start a thread for it, unless one has begun."""
        if self._taken.locked():
            return
        try:
            threading.Thread(target=self._run, name="lro-celery", daemon=True).start()
        except RuntimeError as exc:
            if type(exc) is not RuntimeError:  # raised by a signal
                raise
            raise Unavailable(f"no thread can be started: {exc}") from exc

    def _run(self) -> None:
        if not self.take():
            return
        try:
            self._context.run(self._action)
        except BaseException as exc:
            self.done.set_exception(exc)
        else:
            self.done.set_result(None)
