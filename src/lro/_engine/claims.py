"""Claims of waiting work: a process takes from the store the work that free workers can begin."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from lro._base.errors import Unavailable
from lro._base.status import AnyMessage
from lro._engine.events import about
from lro._engine.executor_port import LAST_SECONDS, Slot
from lro._engine.local_work import LocalWork, StartingRecord
from lro._engine.method_spec import MethodSpec
from lro._engine.process import PerProcess
from lro._engine.runtime import Runtime
from lro._engine.store_port import Claim, Claimed
from lro._model.operation import Record

log = logging.getLogger("lro")

_AT_ONCE: Final = 100
"""The largest number of operations that one claim takes."""
_LOOK_SECONDS: Final = 5.0
"""Seconds between looks for work, in case a notification was lost."""
_PAUSES_SECONDS: Final = 60.0
"""Seconds between reads of the paused methods, in case a notification was lost."""
_RETRY_SECONDS: Final = 1.0
"""Seconds until the next claim after the store was unavailable or work could not be begun."""
_SLOWER_SECONDS: Final = 0.003
"""Seconds between a notification and the claim, if the last claim of this process found no work."""
ENDS_SECONDS: Final = 0.003
"""The most seconds that a claim waits for workers whose results are being stored."""
_LOCKED_PAUSES: Final = (0.001, 0.1)
"""First and longest pause, in seconds, while other processes have locked the due work."""


class Claims(PerProcess):
    """Claims waiting work for the free workers of this process, and begins it.

    A process looks for work when a worker becomes free, when a notification says that work waits,
    when the next operation is due, and every few seconds. It claims at most as many operations as
    it has free workers. :meth:`run_due` claims the due work. :meth:`start` begins a thread that
    calls :meth:`run_due`.
    """

    def __init__(self, runtime: Runtime, specs: Mapping[str, MethodSpec], work: LocalWork) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._specs = specs
        self._work = work
        self._clock = runtime.clock
        self.older_waits: bool = False
        """True if waiting work may be due.

        New starts then wait behind that work, and workers that become free claim it.
        """
        self._look_at = -math.inf
        self._heard_at = math.inf
        self._not_before = -math.inf
        self._locked_pause = _LOCKED_PAUSES[0]
        self._announced = self._slower = False
        self._suspects_at = -math.inf
        self._suspect_waits = False
        """True if a suspect may have come to wait since the last look for suspects."""
        self._pauses_at = -math.inf
        self._most = 1
        """The most workers of the next claim, which doubles while claims find work."""
        self._lane = -1
        """The next claim begins after this lane (``Record.lane``); -1 before the first claim."""
        self._wake = threading.Event()
        self._claiming = threading.Lock()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that claims due work. Idempotent."""
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._live, name="lro-claims", daemon=True)
        thread.start()
        self._thread = thread

    @property
    def runs(self) -> bool:
        """True if a thread claims due work."""
        return self._thread is not None and not self._stopped

    def stop(self) -> None:
        """Stop claiming, and end the thread.

        A thread in which the executor still runs a function ends when the function returns.
        """
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            runs_functions = self._runtime.executor.submits_block
            self._thread.join(LAST_SECONDS if runs_functions else None)

    def claim_soon(self) -> None:
        """Claim work soon, because work waits in the store."""
        self.older_waits = self._suspect_waits = True
        self._wake.set()

    def work_announced(self) -> None:
        """Claim soon, because another process says that work waits.

        A process whose last claim found work claims at once. A process whose last claim found no
        work waits a moment first, so that processes do not lock each other out.
        """
        self._announced = True
        at = self._clock() + (_SLOWER_SECONDS if self._slower else 0.0)
        self._heard_at = min(self._heard_at, at)
        self._wake.set()

    def look_soon(self) -> None:
        """Look for work soon, because work may be waiting."""
        self._heard_at = -math.inf
        self._wake.set()

    def pauses_changed(self) -> None:
        """Read soon which methods are paused, and look for work of resumed methods."""
        self._pauses_at = -math.inf
        self.look_soon()

    def freed(self) -> None:
        """Claim soon if work waits, because a worker has become free."""
        if self.older_waits:
            self._wake.set()

    def run_due(self) -> float:
        """Claim work for free workers, and store start times; return seconds until the next run.

        Raises:
            Unavailable: The store cannot be reached.
        """
        return min(self._claim_due(), self._work.show_starts())

    def _claim_due(self) -> float:
        if self._work.stopping:  # other processes claim the waiting work
            return _LOOK_SECONDS
        with self._claiming:
            if (seconds := self._due_at - self._clock()) > 0:
                return seconds
            self._look_at, self._heard_at = self._clock() + _LOOK_SECONDS, math.inf
            try:
                return self._claim_what_is_due()
            except BaseException:
                self._look_at = min(self._look_at, self._clock() + _RETRY_SECONDS)
                self._pauses_at = self._suspects_at = self._look_at
                raise

    def _claim_what_is_due(self) -> float:
        if self._clock() >= self._pauses_at:
            self._pauses_at = self._clock() + _PAUSES_SECONDS
            self._work.read_paused()
        announced, self._announced = self._announced, False
        more = self.older_waits or announced
        if not more:
            more = self._look_for(suspects=None).more  # the due work may be a suspect
            self._suspects_at = -math.inf if more else self._look_at
        self._claim_suspect()  # first, else no suspect would ever run under a steady load
        while more and not self._stopped and not self._work.stopping:
            self._wait_for_ends()
            slots = self._reserve_or_wait(self._most)
            if not slots:
                return _LOOK_SECONDS
            more = self._claim(slots) and self._clock() >= self._not_before
        return max(0.0, self._due_at - self._clock())

    @property
    def _due_at(self) -> float:
        look = min(self._look_at, self._heard_at, self._pauses_at)
        soon = -math.inf if self.older_waits else look
        return max(self._not_before, soon)

    def _look_for(self, *, suspects: bool | None) -> Claimed:
        """Ask whether work is due, without reserving a worker, which a start may need."""
        found = self._store.claim(self._wanted(0, suspects=suspects))
        self._look_at = min(self._look_at, self._time_of(found))
        return found

    def _time_of(self, found: Claimed) -> float:
        """Return the time, by this process's clock, at which the next work is due."""
        if found.next_due is None:
            return math.inf
        seconds = (found.next_due - self._store.now()).total_seconds()
        return self._clock() + max(0.0, seconds)

    def _reserve(self, most: int) -> list[Slot]:
        """Reserve at most ``most`` workers, and no more once the executor is unavailable."""
        slots: list[Slot] = []
        with contextlib.suppress(Unavailable):
            while len(slots) < most and (slot := self._runtime.executor.reserve()) is not None:
                slots.append(slot)
        return slots

    def _reserve_or_wait(self, most: int) -> list[Slot]:
        """Reserve at most ``most`` workers; if none is free, claim when a worker becomes free."""
        slots = self._reserve(most)
        if not slots:
            self.older_waits = True
            slots = self._reserve(most)  # a worker may have become free just before
        return slots

    def _wait_for_ends(self) -> None:
        """Wait a moment while results are being stored, so that one claim serves their workers."""
        until = time.monotonic() + ENDS_SECONDS
        while self._work.ending and not self._stopped and (left := until - time.monotonic()) > 0:
            self._wake.wait(left)
            self._wake.clear()

    def _claim(self, slots: Sequence[Slot]) -> bool:
        """Claim work for these workers; return True if more work may be due."""
        self.older_waits = False
        try:
            found = self._claim_for(slots)
        except BaseException:
            self.older_waits = True
            raise
        self._look_at = min(self._look_at, self._time_of(found))
        self._slower, self._most = not found.works, 1
        if not found.more:
            return False
        if found.works:
            self._most = min(2 * len(slots), _AT_ONCE)
            self.older_waits, self._locked_pause = True, _LOCKED_PAUSES[0]
            return True
        self._look_at = self._clock() + self._locked_pause
        self._locked_pause = min(2 * self._locked_pause, _LOCKED_PAUSES[1])
        return False  # other processes have claimed or locked the due work

    def _claim_for(self, slots: Sequence[Slot], *, suspects: bool = False) -> Claimed:
        """Claim work for these workers and begin it; release the workers that are left over.

        A service that is stopping waits for this method, for a second at most, so that claimed work
        is either begun or released.
        """
        begun = 0
        try:
            with self._work.writing() as claiming:
                if self._work.stopping:
                    return Claimed((), more=False, next_due=None)
                found = self._store.claim(self._wanted(len(slots), suspects=suspects))
                self._turn_over(found)
                for (record, packed), slot in zip(found.works, slots, strict=False):
                    begun += 1
                    last = begun == len(found.works)
                    self._begin(record, packed, slot, claiming if last else None)
                return found
        except BaseException:  # before slot.release(), which wakes this thread
            self._not_before = self._clock() + _RETRY_SECONDS
            raise
        finally:
            for slot in slots[begun:]:
                slot.release()

    def _turn_over(self, found: Claimed) -> None:
        """Let the next claim begin after the lanes that the last claim served."""
        for record, _ in found.works:
            if record.lane:
                self._lane = record.lane
        if found.more and not found.works:  # the lanes that were read have reached their limits
            import random

            self._lane = random.randrange(2**63)  # continue at a random lane

    def _claim_suspect(self) -> None:
        """Begin one suspect, which is work that has lost workers, unless a suspect runs here.

        A process runs one suspect at a time. If that suspect kills the process, no other suspect
        loses an attempt.
        """
        look = self._suspect_waits or self._clock() >= self._suspects_at
        if not look or self._work.has_suspect():
            return
        self._suspects_at, self._suspect_waits = self._clock() + _LOOK_SECONDS, False
        found = self._look_for(suspects=True)
        if found.more:
            self._suspects_at = -math.inf  # at once, unless another process claims it
            slots = self._reserve_or_wait(1)
            if slots and not self._claim_for(slots, suspects=True).works:
                self._suspects_at = self._clock() + _LOOK_SECONDS
        self._suspects_at = min(self._suspects_at, self._time_of(found))

    def _wanted(self, most: int, *, suspects: bool | None) -> Claim:
        now, redelivery = self._store.now(), self._runtime.executor.redelivery
        owner, span = self._work.owner, self._runtime.lease
        if redelivery is not None:
            owner, span = "", redelivery
        limits = self._work.claim_limits([*self._specs.items()])  # a copy: the dict may change
        return Claim(
            owner,
            now + span,
            max_count=most,
            excluded=self._work.skipped,
            suspects=suspects,
            after_lane=self._lane,
            **limits,
        )

    def _begin(
        self, record: Record, packed: AnyMessage, slot: Slot, claiming: StartingRecord | None
    ) -> None:
        try:
            if self._work.submit(record, slot, packed=packed, start=claiming).release_requested:
                self._not_before = self._clock() + _RETRY_SECONDS
        except Exception:  # one failure must not hold up the other work
            self._not_before = self._clock() + _RETRY_SECONDS
            line = "%s: could not be begun"
            log.exception(line, record.name, extra=about(record.name, record.method))

    def _live(self) -> None:
        wake = self._wake  # another event once the service was closed and opened again
        while not self._stopped and self._wake is wake:
            try:
                seconds = self.run_due()
            except Unavailable:  # logged by the maintenance thread
                seconds = _RETRY_SECONDS
            except BaseException:  # raised by an executor or store
                log.exception("claiming work failed and goes on")
                seconds = _RETRY_SECONDS
            if self._stopped:  # a claim may have cleared the wake of this stop
                return
            self._wake.wait(seconds)
            self._wake.clear()  # before looking for a stop or for work, so that no wake is lost
