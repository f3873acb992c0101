"""Claims of waiting work: a process takes from the store what its free workers can begin."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from lro._base.errors import Unavailable
from lro._base.status import AnyMessage
from lro._engine.events import about
from lro._engine.executor_port import Slot
from lro._engine.method_spec import MethodSpec
from lro._engine.runtime import Runtime
from lro._engine.store_port import Claim, Claimed
from lro._engine.workers import StartingRecord, Workers
from lro._model.operation import Record

log = logging.getLogger("lro")

_AT_ONCE: Final = 100
"""How many operations one claim takes at most."""
_LOOK_SECONDS: Final = 5.0
"""How often a process looks for work, so that a lost notification does no harm."""
_PAUSES_SECONDS: Final = 60.0
"""How often a process reads which methods are paused, if a notification was lost."""
_RETRY_SECONDS: Final = 1.0
"""How soon a store or a broker that is away is asked again."""
_SLOWER_SECONDS: Final = 0.003
"""How much later than others a process claims what is announced, after they were quicker."""
_RESTS: Final = (0.001, 0.1)
"""The first and the longest pause, in seconds, while others have what is due."""


class Claims:
    """Claims waiting work for the free workers of this process, and has it begun.

    It looks when a worker becomes free and work may wait, when this process or another one says
    that work waits, when the next work is due, and every few seconds. It reserves no worker to
    look, and asks for no more than there are free workers. :meth:`run_due` does what is due;
    :meth:`start` has a thread do that.
    """

    def __init__(self, runtime: Runtime, specs: Mapping[str, MethodSpec], workers: Workers) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._specs = specs
        self._workers = workers
        self._clock = runtime.clock
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin again without a thread: that of the parent process does not come along."""
        self.ahead: bool = False
        """Whether work may be due that is older than what is started now."""
        self._look_at = -math.inf
        self._heard_at = math.inf
        self._not_before = -math.inf
        self._rest = _RESTS[0]
        self._announced = self._slower = False
        self._suspects_at = -math.inf
        self._pauses_at = -math.inf
        self._lane = -1
        """The lane that was served last; none yet."""
        self._wake = threading.Event()
        self._claiming = threading.Lock()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Claim what is due in a thread of its own. Idempotent."""
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._live, name="lro-claims", daemon=True)
        thread.start()
        self._thread = thread

    @property
    def runs(self) -> bool:
        """Whether a thread claims what is due."""
        return self._thread is not None and not self._stopped

    def stop(self) -> None:
        """Claim nothing more, and end the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def work_waits(self) -> None:
        """Claim soon: work waits."""
        self.ahead, self._suspects_at = True, -math.inf
        self._wake.set()

    def announced(self) -> None:
        """Claim soon: another process says that work waits.

        The process that was the quickest the last time is the first to ask; all at once would
        hold up each other.
        """
        self._announced = True
        self._heard_at = self._clock() + (_SLOWER_SECONDS if self._slower else 0.0)
        self._wake.set()

    def look(self) -> None:
        """Look soon: work may wait."""
        self._heard_at = -math.inf
        self._wake.set()

    def pauses_changed(self) -> None:
        """Read soon which methods are paused, and look for work of others that were resumed."""
        self._pauses_at = -math.inf
        self.look()

    def freed(self) -> None:
        """Claim soon if work waits: a worker has become free."""
        if self.ahead:
            self._wake.set()

    def run_due(self) -> float:
        """Claim what is due for free workers, and show what has begun; return when to do so again.

        That is in seconds.

        Raises:
            Unavailable: The store cannot be reached.
        """
        return min(self._claim_due(), self._workers.show_starts())

    def _claim_due(self) -> float:
        with self._claiming:
            if (seconds := self._due_at - self._clock()) > 0:
                return seconds
            self._look_at, self._heard_at = self._clock() + _LOOK_SECONDS, math.inf
            try:
                return self._claim_what_is_due()
            except BaseException:
                self._look_at = min(self._look_at, self._clock() + _RETRY_SECONDS)
                self._pauses_at = self._look_at
                raise

    def _claim_what_is_due(self) -> float:
        if self._clock() >= self._pauses_at:
            self._pauses_at = self._clock() + _PAUSES_SECONDS
            self._workers.read_paused()
        announced, self._announced = self._announced, False
        more, most = self.ahead or announced, 1
        if not more:
            more = self._look_for(suspects=None).more  # maybe only a suspect
            self._suspects_at = -math.inf if more else self._look_at
        self._claim_suspect()  # first: under a steady load there is always something else to do
        while more and not self._stopped and not self._workers.stopping:
            slots = self._free_workers_or_ahead(most)
            if not slots:
                return _LOOK_SECONDS
            more = self._claim(slots) and self._clock() >= self._not_before
            most = min(2 * most, _AT_ONCE)
        return max(0.0, self._due_at - self._clock())

    @property
    def _due_at(self) -> float:
        look = min(self._look_at, self._heard_at, self._pauses_at)
        soon = -math.inf if self.ahead else look
        return max(self._not_before, soon)

    def _look_for(self, *, suspects: bool | None) -> Claimed:
        """Look whether work is due; no worker is reserved for that, a start may take it."""
        found = self._store.claim(self._wanted(0, suspects=suspects))
        self._look_at = min(self._look_at, self._time_of(found))
        return found

    def _time_of(self, found: Claimed) -> float:
        """When the next work is due, by this process's clock."""
        if found.next_due is None:
            return math.inf
        seconds = (found.next_due - self._store.now()).total_seconds()
        return self._clock() + max(0.0, seconds)

    def _free_workers(self, most: int) -> list[Slot]:
        """Reserve so many workers at most; none while a broker is away, or no event loop there."""
        slots: list[Slot] = []
        with contextlib.suppress(Unavailable):
            while len(slots) < most and (slot := self._runtime.executor.reserve()) is not None:
                slots.append(slot)
        return slots

    def _free_workers_or_ahead(self, most: int) -> list[Slot]:
        """Reserve at most ``most`` workers; if none is free, the next free one claims."""
        slots = self._free_workers(most)
        if not slots:
            self.ahead = True
            slots = self._free_workers(most)  # one may have become free before that
        return slots

    def _claim(self, slots: Sequence[Slot]) -> bool:
        """Claim work for these workers; return whether to claim more at once."""
        self.ahead = False
        try:
            found = self._claim_for(slots)
        except BaseException:  # only now: a release is no reason to try again at once
            self.ahead, self._not_before = True, self._clock() + _RETRY_SECONDS
            raise
        self._look_at = min(self._look_at, self._time_of(found))
        self._slower = not found.works
        if not found.more:
            return False
        self.ahead = True
        if found.works:
            self._rest = _RESTS[0]
            return True
        self._look_at, self._rest = self._clock() + self._rest, min(2 * self._rest, _RESTS[1])
        self.ahead = False  # others are quicker, or have locked it: the next look is soon
        return False

    def _claim_for(self, slots: Sequence[Slot], *, suspects: bool = False) -> Claimed:
        """Claim work for these workers, and have them begin it; the other ones are free again.

        The service does not stop meanwhile: what is claimed is in its hands, or handed back.
        """
        begun = 0
        try:
            with self._workers.claiming() as claiming:
                if self._workers.stopping:
                    return Claimed((), more=False, next_due=None)
                found = self._store.claim(self._wanted(len(slots), suspects=suspects))
                self._turn_over(found)
                for (record, packed), slot in zip(found.works, slots, strict=False):
                    begun += 1
                    last = begun == len(found.works)
                    self._begin(record, packed, slot, claiming if last else None)
                return found
        finally:
            for slot in slots[begun:]:
                slot.release()

    def _turn_over(self, found: Claimed) -> None:
        """Have the lanes after those that were served come first the next time."""
        for record, _ in found.works:
            if record.lane:
                self._lane = record.lane
        if found.more and not found.works:  # the lanes looked at are full
            self._lane = random.randrange(2**63)  # any other place will do

    def _claim_suspect(self) -> None:
        """Begin work that may have killed its workers, unless such work runs here already.

        So the one that kills its process costs the others no attempt.
        """
        if self._clock() < self._suspects_at or self._workers.has_suspect():
            return
        self._suspects_at = self._clock() + _LOOK_SECONDS
        found = self._look_for(suspects=True)
        if found.more:
            self._suspects_at = -math.inf  # it is tried again at once, unless others are quicker
            slots = self._free_workers_or_ahead(1)
            if slots and not self._claim_for(slots, suspects=True).works:
                self._suspects_at = self._clock() + _LOOK_SECONDS
        self._suspects_at = min(self._suspects_at, self._time_of(found))

    def _wanted(self, most: int, *, suspects: bool | None) -> Claim:
        now, redelivery = self._store.now(), self._runtime.executor.redelivery
        owner, span = self._workers.owner, self._runtime.lease
        if redelivery is not None:
            owner, span = "", redelivery
        limits = self._workers.claim_limits([*self._specs.items()])  # one may be declared meanwhile
        return Claim(
            owner,
            now + span,
            most=most,
            without=self._workers.left,
            suspects=suspects,
            start=self._lane,
            **limits,
        )

    def _begin(
        self, record: Record, packed: AnyMessage, slot: Slot, claiming: StartingRecord | None
    ) -> None:
        try:
            if self._workers.begin(record, slot, packed=packed, start=claiming).given_up:
                self._not_before = self._clock() + _RETRY_SECONDS
        except Exception:  # one that cannot be begun must not be in the way of the others
            line = "%s: could not be begun"
            log.exception(line, record.name, extra=about(record.name, record.method))

    def _live(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                seconds = self.run_due()
            except Unavailable:  # maintenance reports that the store is away
                seconds = _RETRY_SECONDS
            except BaseException:  # whatever code of others has raised
                log.exception("claiming work failed and goes on")
                seconds = _RETRY_SECONDS
            self._wake.wait(seconds)
