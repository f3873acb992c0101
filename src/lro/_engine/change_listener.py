"""The thread that receives notifications of the changes that other processes make."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import Final

from lro._base.errors import LroError
from lro._engine.claims import Claims
from lro._engine.local_work import LocalWork
from lro._engine.process import PerProcess
from lro._engine.runtime import RecordUpdater
from lro._engine.store_port import PAUSES_CHANGED, WORK_WAITS, ChangeSubscription

log = logging.getLogger("lro")

LOOK_AGAIN_SECONDS: Final = 3.0
"""Seconds between reads of all awaited operations, in case a notification was lost."""

LINGER_SECONDS: Final = 5.0
"""Seconds for which an unused subscription stays open, as a new one may need a new connection."""

_PAUSE_FACTOR: Final = 10
"""The pause after a full read is this many times the CPU time of the read.

The pause is also at least as long as the read took. However much other processes write, this
process then spends little CPU time on reading, and reads for at most half of the time. Wall time
alone would mislead, because a short read can take long on a busy machine.
"""


class ChangeListener(PerProcess):
    """Notifies this process of the changes that other processes make, such as cancel requests.

    While this process has no waits, watches or work, the listener reads no operations. If this
    process claims no work either, for which it needs notifications, the listener's thread sleeps.
    """

    def __init__(
        self, updater: RecordUpdater, work: LocalWork, claims: Claims | None = None
    ) -> None:
        self._store = updater.store
        self._updater = updater
        self._notifier = updater.notifier
        self._work = work
        self._claims = claims
        self._clock = time.monotonic
        self._shared = updater.store.shared
        self._look_at = 0.0

        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._subscription: ChangeSubscription | None = None
        self._thread: threading.Thread | None = None
        self._away = False

    def ensure_running(self) -> None:
        """Listen from now on, because a caller waits or watches, or this process has work."""
        if not self._shared or self._wake.is_set():
            return
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                thread = threading.Thread(target=self._live, name="lro-listener", daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:  # too many threads; the next call tries again
                    log.warning("changes by other processes are not received now: %s", exc)
                    return
                self._thread = thread
        self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            self._stopping.set()
            thread, subscription = self._thread, self._subscription
        self._wake.set()
        if subscription is not None:
            subscription.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def _claims_running(self) -> Claims | None:
        # None if the application runs the claims itself, or this process has no workers.
        return self._claims if self._claims is not None and self._claims.runs else None

    def _look_for_work(self) -> None:
        if (claims := self._claims_running) is not None:
            claims.pauses_changed()

    @property
    def _needed(self) -> bool:
        if self._claims_running is not None:
            return True  # another process may start work at any time
        return bool(self._notifier) or bool(self._work.held())

    def _live(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            try:
                self._listen()
                continue
            except LroError as exc:
                if self._stopping.is_set():
                    return
                if not self._away:
                    log.info("changes by other processes are not received now: %s", exc)
                self._away = True
            except BaseException:  # raised by a store
                log.exception("receiving changes by other processes failed; retrying")
            self._stopping.wait(1.0)
            if not self._needed:
                self._may_sleep()

    def _listen(self) -> None:
        try:
            subscription = self._store.listen()
        except Exception:
            self._look_at_all()  # reading the store may still work, and callers wait
            raise
        self._away = False
        with self._lock:
            self._subscription = subscription
        try:
            self._look_at_all()  # finds changes made before the subscription
            last = self._clock()
            while not self._stopping.is_set():
                if self._needed:
                    last = self._clock()
                elif self._clock() - last >= LINGER_SECONDS and self._may_sleep():
                    return
                self.receive(subscription)
        finally:
            self._subscription = None
            subscription.close()

    def _may_sleep(self) -> bool:
        self._wake.clear()
        if not self._needed:  # checked again: a caller may have come meanwhile
            return True
        self._wake.set()
        return False

    def receive(self, subscription: ChangeSubscription) -> None:
        """Wait for changes, at most until the next full read is due, and pass them on."""
        names = subscription.next_changes(max(0.0, self._look_at - self._clock()))
        if names is None:
            self._updater.unnamed_changes += 1
            self._look_for_work()
        elif PAUSES_CHANGED in names:
            self._look_for_work()
        elif WORK_WAITS in names and (claims := self._claims_running) is not None:
            claims.work_announced()
        for name in names or ():
            self._notifier.notify(name)
        if names is None or self._clock() >= self._look_at:
            began, spent = self._clock(), time.thread_time()
            self._look()
            pause = max(self._clock() - began, _PAUSE_FACTOR * (time.thread_time() - spent))
            self._stopping.wait(min(pause, LOOK_AGAIN_SECONDS))
            return
        mine = self._work.held().intersection(names)
        if mine:
            self._cancel(self._store.poll_states(mine).cancel_requested)

    def _look_at_all(self) -> None:
        self._look_for_work()
        self._look()

    def _look(self) -> None:
        """Read all operations that this process waits for, watches or works on."""
        self._look_at = self._clock() + LOOK_AGAIN_SECONDS
        names, mine = self._notifier.names(), self._work.held()
        if mine:  # otherwise the names, which may be ten thousand, need not be copied
            names |= mine
        if not names:
            return
        found = self._store.poll_states(names)
        for name in found.finished:
            self._notifier.notify(name)
        self._cancel(found.cancel_requested & mine)

    def _cancel(self, names: Collection[str]) -> None:
        for name in names:
            self._work.cancel_held(name)
