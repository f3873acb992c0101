"""One thread a process that hears what other processes have changed, while it matters here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from lro._base.errors import LroError
from lro._engine.record_updater import RecordUpdater
from lro._engine.store_port import ChangeSubscription

log = logging.getLogger("lro")

LOOK_AGAIN_SECONDS: Final = 3.0
"""How often all that somebody waits for is looked at, so that a lost announcement does no harm."""

LINGER_SECONDS: Final = 5.0
"""How long the ear stays open when it is not needed: opening one may cost a connection."""

_REST: Final = 10
"""A look is followed by a rest of so many times the CPU it took, and of no less than its length.

However much the others write, this process so spends little on looking, and asks for it half of the
time at most. Its length alone would not do: on a busy machine a short look may take long.
"""


class ChangeListener:
    """Rings the bell for what other processes announce, and passes on what they ask to cancel.

    ``held`` are the operations whose work this process has; ``cancel`` is told those of them that
    are asked to stop. Nobody waiting and no work in hand, the thread sleeps, and asks the store
    nothing.
    """

    def __init__(
        self,
        updater: RecordUpdater,
        *,
        held: Callable[[], Collection[str]],
        cancel: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._updater = updater
        self._held = held
        self._cancel = cancel
        self._clock = clock
        self._shared = updater.store.shared
        self._look_at = 0.0
        self.forked()

    def forked(self) -> None:
        """Begin anew: in a forked process, the thread is gone."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._ear: ChangeSubscription | None = None
        self._thread: threading.Thread | None = None

    def ensure_running(self) -> None:
        """Somebody waits, or work has come: listen from now on."""
        if not self._shared or self._wake.is_set():
            return
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                thread = threading.Thread(target=self._live, name="lro-ear", daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:  # too many threads: the next one in need tries again
                    log.warning("other processes are not heard now: %s", exc)
                    return
                self._thread = thread
        self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            self._stopping.set()
            thread, ear = self._thread, self._ear
        self._wake.set()
        if ear is not None:
            ear.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def _needed(self) -> bool:
        return self._updater.wanted or bool(self._held())

    def _live(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            try:
                self._listen()
                continue
            except LroError as exc:
                if self._stopping.is_set():
                    return
                log.info("not heard now what other processes change: %s", exc)
            except BaseException:  # whatever code of others has raised
                log.exception("hearing other processes failed, and goes on")
            self._stopping.wait(1.0)
            if not self._needed:
                self._dismissed()

    def _listen(self) -> None:
        try:
            ear = self._updater.store.listen()
        except Exception:
            self._sweep()  # the store may be there for all that, and somebody waits
            raise
        with self._lock:
            self._ear = ear
        try:
            self._sweep()  # what was announced before there was an ear
            last = self._clock()
            while not self._stopping.is_set():
                if self._needed:
                    last = self._clock()
                elif self._clock() - last >= LINGER_SECONDS and self._dismissed():
                    return
                self.turn(ear)
        finally:
            self._ear = None
            ear.close()

    def _dismissed(self) -> bool:
        self._wake.clear()
        if not self._needed:  # asked once more: who came meanwhile has not woken us
            return True
        self._wake.set()
        return False

    def turn(self, ear: ChangeSubscription) -> None:
        """Hear once, for no longer than until the next look at everything."""
        names = ear.next_changes(max(0.0, self._look_at - self._clock()))
        if names is None or self._clock() >= self._look_at:
            if names is None:
                self._updater.unnamed_changes += 1
            began, spent = self._clock(), time.thread_time()
            self._sweep()
            rest = max(self._clock() - began, _REST * (time.thread_time() - spent))
            self._stopping.wait(min(rest, LOOK_AGAIN_SECONDS))
            return
        for name in names:
            self._updater.notify(name)
        mine = frozenset(self._held()).intersection(names)
        if mine:
            self._stop(self._updater.store.poll_states(mine).cancel_requested)

    def _sweep(self) -> None:
        self._look_at = self._clock() + LOOK_AGAIN_SECONDS
        mine = frozenset(self._held())
        names = self._updater.names() | mine
        if not names:
            return
        found = self._updater.store.poll_states(names)
        for name in found.finished:
            self._updater.notify(name)
        self._stop(found.cancel_requested & mine)

    def _stop(self, asked: Collection[str]) -> None:
        for name in asked:
            self._cancel(name)
