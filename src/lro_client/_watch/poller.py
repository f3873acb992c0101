"""Asking for many operations at once: lanes that share a table (spec §3.11, §11.2-§11.5).

A lane is a flow: it takes work from the table, has it done, gives back what came of it. As many
lanes as calls may be in flight share one table, so that ten thousand operations need no more
connections than eight.
"""

from __future__ import annotations

import math
from typing import Final

from lro import BatchGetOperationsResponse, Code, ListOperationsResponse, Operation, Status
from lro.errors import OperationNotFound
from lro.types import ErrorInfo
from lro_client._errors import CallError, OperationGone
from lro_client._flow.poll_state import final_error
from lro_client._flow.single import WATCH, FlowConfig
from lro_client._flow.steps import Enough, Flow, Idle, Reply
from lro_client._tracing import log_failed_poll
from lro_client._watch.registry import (
    MAX_BATCH_NAMES,
    Notifications,
    WatchedOperation,
    WatchRegistry,
    notify_all,
)
from lro_client._watch.strategy import (
    BATCH_STRATEGIES,
    MAX_UNREPORTED_SECONDS,
    RECHECK_SECONDS,
    PollBatch,
    Scheduler,
    Strategy,
    pause_after,
)

_RETRY_VERB_SECONDS: Final = 30.0
_ABSENT: Final = frozenset({Code.NOT_FOUND, Code.UNIMPLEMENTED})
_FORBIDDEN: Final = frozenset({Code.PERMISSION_DENIED, Code.UNAUTHENTICATED})
_PRESSURE: Final = frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED})
_ENDED: Final = Status(Code.UNAVAILABLE, "the stream ended before the operation")


def _too_large(work: PollBatch, error: CallError) -> bool:
    """Whether a server refuses a batch because its operations are too large together."""
    if work.strategy is not Strategy.BATCH or error.code is not Code.RESOURCE_EXHAUSTED:
        return False
    infos = (detail for detail in error.details() if isinstance(detail, ErrorInfo))
    return any(info.reason == "BATCH_TOO_LARGE" for info in infos)


class Poller:
    """What all lanes of a client make of what they hear."""

    def __init__(self, config: FlowConfig, registry: WatchRegistry, scheduler: Scheduler) -> None:
        self._config = config
        self._server = config.server
        self._registry = registry
        self._scheduler = scheduler

    def lane(self) -> Flow[None]:
        """Do what is due, until nobody waits for anything that others do not see to."""
        table, failed = self._registry, None
        with table.lock:
            table.lane_started()
        try:
            yield from self._lane()
        except Exception as exc:  # nobody must wait for ever for a lane that is no more
            failed = exc
            raise
        finally:
            with table.lock:
                table.lane_exited()
                told = [] if failed is None else table.give_up_all(failed)
            notify_all(told)

    def _lane(self) -> Flow[None]:
        while True:
            work = self._next_batch()
            if work is None:
                return
            if isinstance(work, Idle):
                try:
                    yield work
                finally:
                    with self._registry.lock:
                        self._registry.lane_woke()
                continue
            try:
                reply: Reply | None = yield self._scheduler.step(work, self._stream_item)
            except CallError as exc:
                self._failed(work, exc)
            except Exception as exc:  # of a transport, or of a listener: nobody must wait for ever
                self._broken(work, exc)
            else:
                self._succeeded(work, reply)

    def _next_batch(self) -> PollBatch | Idle | None:
        table = self._registry
        with table.lock:
            if table.closed is not None or not table.entries:
                return None
            now = table.clock()
            due = max(table.next_due, self._server.paused_until)
            if due <= now:
                work = self._scheduler.next_batch(now)
                if work is not None:
                    if table.next_due < math.inf:
                        table.ensure_lane()
                    return work
                due = now + MAX_UNREPORTED_SECONDS  # the lane that tries something is soon back
            if due == math.inf or not table.try_sleep(due):
                return None
            return Idle(due - now)

    # -- good answers -------------------------------------------------------------------------

    def _succeeded(self, work: PollBatch, reply: Reply | None) -> None:
        with self._registry.lock:
            now = self._registry.clock()
            self._scheduler.finished(work)
            try:
                if reply is None:  # a stream has ended
                    told = self._unfinished(work, now)
                else:
                    told = self._take_reply(work, reply, now)
            except Exception as exc:  # a transport gave something else than was asked for
                told = self._give_up(work, exc)
        notify_all(told)

    def _take_reply(self, work: PollBatch, reply: Reply, now: float) -> Notifications:
        self._server.answered(now)
        told: Notifications = []
        value = reply.value
        if isinstance(value, Operation):
            (entry,) = work.entries.values()
            waited = work.strategy is Strategy.HOLD
            if not entry.accept(self._config, value, entry.fits_all, waited=waited):
                self._push(work, now)
                return told
            told += self._registry.take_state(entry, value)
        elif isinstance(value, BatchGetOperationsResponse):
            told += self._found(work, value.operations)
            for name in work.entries.keys() & set(value.missing):
                told += self._gone(work.entries[name])
        else:
            assert isinstance(value, ListOperationsResponse)
            if not self._filtered(work, value, now):
                return told
            told += self._found(work, value.operations)
        if work.strategy is not Strategy.ONE:
            self._server.has(work.strategy.value)
        self._schedule_next(work, reply.retry_after, now)
        return told

    def _found(self, work: PollBatch, operations: tuple[Operation, ...]) -> Notifications:
        told: Notifications = []
        for operation in operations:
            entry = work.entries.get(operation.name)
            if entry is not None:
                told += self._registry.take_state(entry, operation)
        return told

    def _gone(self, entry: WatchedOperation) -> Notifications:
        status = Status(Code.NOT_FOUND, str(OperationNotFound(entry.name)))
        return self._registry.give_up(entry, OperationGone("GetOperation", status))

    def _filtered(self, work: PollBatch, page: ListOperationsResponse, now: float) -> bool:
        """Whether the server lists by names; what it has not listed is asked for by itself."""
        listed = {operation.name for operation in page.operations}
        if not listed <= work.entries.keys():
            self._server.lacks(work.strategy.value, now)
            self._push(work, now)
            return False
        for name, entry in work.entries.items():
            if name not in listed and not page.next_page_token:
                entry.asked_alone = True
            elif name not in listed:  # on a page that the server has cut short
                work.left_out.add(name)
        return True

    def _schedule_next(self, work: PollBatch, retry_after: float | None, now: float) -> None:
        waiting = self._watched(work)
        if not waiting:
            return
        for entry in waiting:
            entry.polls += 1
        if work.strategy is Strategy.HOLD:
            (entry,) = waiting
            if entry.holds_again(work.hold, now - work.began):
                self._registry.push(entry, now)
                return
        pause = pause_after(self._config, work, waiting, self._registry, retry_after)
        for entry in waiting:
            left = work.strategy in BATCH_STRATEGIES and (
                entry.asked_alone or entry.name in work.left_out
            )
            if not left:
                entry.max_batch = MAX_BATCH_NAMES
            trusted = RECHECK_SECONDS if entry.reported else pause
            self._registry.push(entry, now if left else now + trusted)

    # -- streams ------------------------------------------------------------------------------

    def _stream_item(self, work: PollBatch, item: Operation | str | None) -> None:
        with self._registry.lock:
            if self._registry.closed is not None or not self._still_watched(work):
                raise Enough
            told: Notifications = []
            if item is not None:
                if WATCH not in self._server.proven:
                    self._server.has(WATCH)
                    # Others may have waited for the outcome of this first stream.
                    self._registry.ensure_lane()
                told = self._take_stream_item(work, item)
        notify_all(told)

    def _take_stream_item(self, work: PollBatch, item: Operation | str) -> Notifications:
        name = item if isinstance(item, str) else item.name
        entry = work.entries.get(name)
        if entry is None:
            return []
        self._registry.push(entry, self._registry.clock() + RECHECK_SECONDS)
        entry.polls += 1
        entry.reported = True
        if isinstance(item, str) or item.done:
            del work.entries[name]
        return (
            self._gone(entry) if isinstance(item, str) else self._registry.take_state(entry, item)
        )

    def _unfinished(self, work: PollBatch, now: float) -> Notifications:
        told: Notifications = []
        for entry in self._watched(work):
            error = CallError("WatchOperations", _ENDED, passing=True)
            told += self._fail_one(entry, error, now, work)
        return told

    # -- bad answers --------------------------------------------------------------------------

    def _failed(self, work: PollBatch, error: CallError) -> None:
        with self._registry.lock:
            now = self._registry.clock()
            self._scheduler.finished(work)
            # A stream that breaks says nothing of the server, which may have closed it for its age.
            broken = work.strategy is Strategy.STREAM and error.http_status is None
            if error.code in _PRESSURE and not broken and not _too_large(work, error):
                polling = self._config.polling
                self._server.overloaded(polling.server_delay(error.retry_after), work.began, now)
            told = self._take_failure(work, error, now)
        notify_all(told)

    def _take_failure(self, work: PollBatch, error: CallError, now: float) -> Notifications:
        server, waiting = self._server, self._watched(work)
        if _too_large(work, error):
            self._halve(work, fewest=2)
            self._push(work, now)
            return []
        passes = self._config.polling.retry.pause(error, 1, 0.0) is not None
        if passes and not waiting:  # their patience has cut it: that says nothing of the server
            return []
        if work.strategy in BATCH_STRATEGIES and (
            not passes or work.strategy.value not in server.proven
        ):
            self._refused(work, error, passes, now)
            self._push(work, now)
            return []
        return [one for entry in waiting for one in self._fail_one(entry, error, now, work)]

    def _refused(self, work: PollBatch, error: CallError, passes: bool, now: float) -> None:
        """A call for many has failed: the server lacks the verb, or will not have all the names."""
        verb = work.strategy.value
        known = verb in self._server.proven
        if passes:  # the verb may be there for all that
            self._server.lacks(verb, now, _RETRY_VERB_SECONDS)
        elif error.code in _ABSENT or not (known or error.code in _FORBIDDEN):
            self._server.lacks(verb, now)
        else:  # one of them is refused, which is found by halves
            if self._server.forbids(verb):
                self._server.lacks(verb, now)
            self._halve(work, fewest=1)

    def _halve(self, work: PollBatch, fewest: int) -> None:
        """Ask for these in batches half as large; alone, where that would be below ``fewest``."""
        half = len(work.entries) // 2
        for entry in self._watched(work):
            entry.asked_alone, entry.max_batch = entry.asked_alone or half < fewest, max(1, half)

    def _fail_one(
        self, entry: WatchedOperation, error: CallError, now: float, work: PollBatch
    ) -> Notifications:
        hold = work.hold if work.strategy is Strategy.HOLD else None
        # A stream has no end by which it must have answered.
        budget = math.inf if work.strategy is Strategy.STREAM else work.budget
        entry.polls += 1
        if entry.fail(self._config, error, hold=hold, took=now - work.began, budget=budget):
            self._registry.push(entry, now)
            return []
        # Where everybody has a deadline, that is the patience (spec §11.5(2)).
        pause = entry.failures.pause(
            self._config.polling, error, now, patient=not entry.some_without_deadline
        )
        if pause is not None:
            log_failed_poll(entry.name, error, pause)
            self._registry.push(entry, now + pause)
            return []
        return self._registry.give_up(entry, final_error(error))

    def _broken(self, work: PollBatch, error: Exception) -> None:
        with self._registry.lock:
            self._scheduler.finished(work)
            told = self._give_up(work, error)
        notify_all(told)

    def _give_up(self, work: PollBatch, error: Exception) -> Notifications:
        return [
            one for entry in self._watched(work) for one in self._registry.give_up(entry, error)
        ]

    # -- parts --------------------------------------------------------------------------------

    def _watched(self, work: PollBatch) -> list[WatchedOperation]:
        """Those of the work for which somebody still waits."""
        known = self._registry.entries
        return [entry for name, entry in work.entries.items() if known.get(name) is entry]

    def _still_watched(self, work: PollBatch) -> bool:
        """Whether somebody waits for any of it; those that nobody waits for are left out of it."""
        known = self._registry.entries
        while work.entries:
            name = next(iter(work.entries))
            if known.get(name) is work.entries[name]:
                return True
            del work.entries[name]
        return False

    def _push(self, work: PollBatch, due: float) -> None:
        for entry in self._watched(work):
            self._registry.push(entry, due)
