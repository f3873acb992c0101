"""Polling many operations at once (spec §3.11, §11.2-§11.5).

A poller is a flow: it takes a batch from the registry, makes the call, and stores the outcome in
the registry. All pollers share one registry. Each poller has at most one call in flight, and by
default there are at most eight pollers, so ten thousand operations need at most eight connections.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from lro import Code, Operation, Status
from lro.errors import OperationNotFound
from lro.wire import BatchGetOperationsResponse, ListOperationsRequest, ListOperationsResponse
from lro_client._errors import CallError, OperationGone, too_many_bytes, unreadable
from lro_client._flow.poll_state import final_error
from lro_client._flow.single import WATCH, YOUNG_PAUSE_SECONDS, FlowConfig, unlawful
from lro_client._flow.steps import Flow, Reply, SleepUntilWoken, StopStream
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
_MAX_EMPTY_PAGES: Final = 10
"""Maximum number of empty pages in a row after which the next page is read at once."""

_ABSENT: Final = frozenset({Code.NOT_FOUND, Code.UNIMPLEMENTED})
_FORBIDDEN: Final = frozenset({Code.PERMISSION_DENIED, Code.UNAUTHENTICATED})
_PRESSURE: Final = frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED})
_ENDED: Final = Status(Code.UNAVAILABLE, "the stream ended before the operation")


def _too_large(batch: PollBatch, error: CallError) -> bool:
    """Return True if a server refused a batch because its operations are too large together."""
    return batch.strategy is Strategy.BATCH and too_many_bytes(error)


class Pollers:
    """Runs pollers, and handles each reply and failure."""

    def __init__(self, config: FlowConfig, registry: WatchRegistry, scheduler: Scheduler) -> None:
        self._config = config
        self._server = config.server
        self._registry = registry
        self._scheduler = scheduler

    def poller(self) -> Flow[None]:
        """Make the calls that are due. End when the other pollers are enough."""
        registry, failed = self._registry, None
        with registry.lock:
            registry.poller_started()
        try:
            yield from self._poller()
        except Exception as exc:  # otherwise waiters would wait for a dead poller
            failed = exc
            raise
        finally:
            with registry.lock:
                registry.poller_exited()
                notifications = [] if failed is None else registry.give_up_all(failed)
            notify_all(notifications)

    def _poller(self) -> Flow[None]:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            if isinstance(batch, SleepUntilWoken):
                try:
                    yield batch
                finally:
                    with self._registry.lock:
                        self._registry.poller_woke()
                continue
            try:
                reply: Reply | None = yield self._scheduler.step(batch, self._stream_item)
                for _ in range(_MAX_EMPTY_PAGES):
                    if not self._turn_empty_page(batch, reply):
                        break
                    reply = yield self._scheduler.step(batch, self._stream_item)
            except CallError as exc:
                self._failed(batch, exc)
            except Exception as exc:  # a bug in a transport or a listener: end the waits
                self._broken(batch, exc)
            else:
                self._succeeded(batch, reply)

    def _next_batch(self) -> PollBatch | SleepUntilWoken | None:
        registry = self._registry
        with registry.lock:
            if registry.closed is not None or not registry.entries:
                return None
            now = registry.clock()
            due = max(registry.next_due, self._server.paused_until)
            if due <= now:
                batch = self._scheduler.next_batch(now)
                if batch is not None:
                    if registry.next_due < math.inf:
                        registry.ensure_poller()
                    return batch
                # At ``due``, the call in flight that tries the verb will have ended.
                due = now + MAX_UNREPORTED_SECONDS
            if due == math.inf or not registry.try_sleep(due):
                return None
            return SleepUntilWoken(due - now)

    # -- good answers -------------------------------------------------------------------------

    def _turn_empty_page(self, batch: PollBatch, reply: Reply | None) -> bool:
        """Prepare to read the page after an empty page (spec §3.4(8)).

        Return False if there is no need to read another page.
        """
        page, request = None if reply is None else reply.value, batch.request
        if not isinstance(page, ListOperationsResponse) or page.operations:
            return False
        with self._registry.lock:
            watched = self._watched(batch)
        if not (page.next_page_token and watched):
            return False
        assert isinstance(request, ListOperationsRequest)
        batch.request = attrs.evolve(request, page_token=page.next_page_token)
        return True

    def _succeeded(self, batch: PollBatch, reply: Reply | None) -> None:
        with self._registry.lock:
            now = self._registry.clock()
            self._scheduler.finished(batch)
            try:
                if reply is None:  # a stream has ended
                    notifications = self._unfinished(batch, now)
                else:
                    notifications = self._take_reply(batch, reply, now)
            except Exception as exc:  # the transport returned a reply of the wrong type
                notifications = self._give_up(batch, exc)
        notify_all(notifications)

    def _take_reply(self, batch: PollBatch, reply: Reply, now: float) -> Notifications:
        self._server.answered(now)
        notifications: Notifications = []
        value = reply.value
        if isinstance(value, Operation):
            (entry,) = batch.entries.values()
            waited = batch.strategy is Strategy.WAIT
            if not entry.accept(self._config, value, entry.fits_all, waited=waited):
                self._push(batch, now)
                return notifications
            notifications += self._registry.take_state(entry, value)
        elif isinstance(value, BatchGetOperationsResponse):
            notifications += self._found(batch, value.operations)
            for name in batch.entries.keys() & set(value.missing):
                notifications += self._gone(batch.entries[name])
        else:
            assert isinstance(value, ListOperationsResponse)
            if not self._filtered(batch, value, now):
                return notifications
            notifications += self._found(batch, value.operations)
        if batch.strategy is not Strategy.GET:
            self._server.has(batch.strategy.value)
        self._schedule_next(batch, reply.retry_after, now)
        return notifications

    def _found(self, batch: PollBatch, operations: tuple[Operation, ...]) -> Notifications:
        notifications: Notifications = []
        for operation in operations:
            entry = batch.entries.get(operation.name)
            if entry is not None:
                notifications += self._take_state(entry, operation)
        return notifications

    def _take_state(self, entry: WatchedOperation, operation: Operation) -> Notifications:
        """Accept a state from a batch. An invalid state ends the wait, as after a Get."""
        if why := unlawful(operation):
            return self._registry.give_up(entry, unreadable("GetOperation", why))
        return self._registry.take_state(entry, operation)

    def _gone(self, entry: WatchedOperation) -> Notifications:
        if entry.may_come(self._config):
            return []
        status = Status(Code.NOT_FOUND, str(OperationNotFound(entry.name)))
        return self._registry.give_up(entry, OperationGone("GetOperation", status))

    def _filtered(self, batch: PollBatch, page: ListOperationsResponse, now: float) -> bool:
        """Return True if the server filters lists by name. Omitted names get their own calls."""
        listed = {operation.name for operation in page.operations}
        if not listed <= batch.entries.keys():
            self._server.lacks(batch.strategy.value, now)
            self._push(batch, now)
            return False
        for name, entry in batch.entries.items():
            if name in listed:
                continue
            if listed and page.next_page_token:  # the page was shorter than asked for
                batch.left_out.add(name)
            else:
                entry.asked_alone = True
        return True

    def _schedule_next(self, batch: PollBatch, retry_after: float | None, now: float) -> None:
        waiting = self._watched(batch)
        if not waiting:
            return
        many = batch.strategy in BATCH_STRATEGIES
        at_once: list[WatchedOperation] = []
        trusted: list[WatchedOperation] = []
        others: list[WatchedOperation] = []
        for entry in waiting:
            entry.polls += 1
            if many and (entry.asked_alone or entry.name in batch.left_out):
                at_once.append(entry)
                continue
            entry.max_batch = MAX_BATCH_NAMES
            (trusted if entry.reported else others).append(entry)
        if batch.strategy is Strategy.WAIT:
            (entry,) = waiting
            if entry.holds_again(batch.hold, now - batch.began):
                self._registry.push(entry, now)
                return
        pause = pause_after(self._config, batch, waiting, self._registry, retry_after)
        self._registry.push_all(at_once, now)
        self._registry.push_all(trusted, now + RECHECK_SECONDS)
        self._registry.push_all(others, now + pause)

    # -- streams ------------------------------------------------------------------------------

    def _stream_item(self, batch: PollBatch, item: Operation | str | None) -> None:
        with self._registry.lock:
            self._server.heard = True
            if self._registry.closed is not None or not self._still_watched(batch):
                raise StopStream
            notifications: Notifications = []
            if item is not None:
                if WATCH not in self._server.proven:
                    self._server.has(WATCH)
                    # Other operations may have waited for the outcome of this first stream.
                    self._registry.ensure_poller()
                notifications = self._take_stream_item(batch, item)
        notify_all(notifications)
        if not batch.entries:
            raise StopStream

    def _take_stream_item(self, batch: PollBatch, item: Operation | str) -> Notifications:
        name = item if isinstance(item, str) else item.name
        entry = batch.entries.get(name)
        if entry is None:
            return []
        entry.polls += 1
        entry.reported = True
        if isinstance(item, str) or item.done or item.error is not None:
            del batch.entries[name]
            if isinstance(item, str) and entry.may_come(self._config):
                entry.streamed = entry.reported = False
                self._registry.push(entry, self._registry.clock() + YOUNG_PAUSE_SECONDS)
        else:  # rounded up, so that operations reported in the same second are due together
            self._registry.push(entry, math.ceil(self._registry.clock()) + RECHECK_SECONDS)
        return self._gone(entry) if isinstance(item, str) else self._take_state(entry, item)

    def _unfinished(self, batch: PollBatch, now: float) -> Notifications:
        notifications: Notifications = []
        for entry in self._watched(batch):
            error = CallError("WatchOperations", _ENDED, passing=True)
            notifications += self._fail_one(entry, error, now, batch)
        return notifications

    # -- bad answers --------------------------------------------------------------------------

    def _failed(self, batch: PollBatch, error: CallError) -> None:
        with self._registry.lock:
            now = self._registry.clock()
            self._scheduler.finished(batch)
            # A broken stream does not mean overload: the server may close old streams.
            broken = batch.strategy is Strategy.STREAM and error.http_status is None
            if error.code in _PRESSURE and not broken and not _too_large(batch, error):
                polling = self._config.polling
                self._server.overloaded(polling.server_delay(error.retry_after), batch.began, now)
            notifications = self._take_failure(batch, error, now)
        notify_all(notifications)

    def _take_failure(self, batch: PollBatch, error: CallError, now: float) -> Notifications:
        server, waiting = self._server, self._watched(batch)
        if _too_large(batch, error):
            self._halve(batch, fewest=2)
            self._push(batch, now)
            return []
        passes = self._config.polling.retry.pause(error, 1, 0.0) is not None
        if passes and not waiting:  # all deadlines have passed, so this is no fault of the server
            return []
        if batch.strategy in BATCH_STRATEGIES and (
            not passes or batch.strategy.value not in server.proven
        ):
            self._refused(batch, error, passes, now)
            if not passes:
                self._push(batch, now)
                return []
        return [one for entry in waiting for one in self._fail_one(entry, error, now, batch)]

    def _refused(self, batch: PollBatch, error: CallError, passes: bool, now: float) -> None:
        """Handle a failed batch: the server lacks the verb, or refuses some names."""
        verb = batch.strategy.value
        known = verb in self._server.proven
        if passes:  # a temporary failure: the server may still have the verb
            self._server.lacks(verb, now, _RETRY_VERB_SECONDS)
        elif error.code in _ABSENT or not (known or error.code in _FORBIDDEN):
            self._server.lacks(verb, now)
        else:  # one name is refused: halving the batches finds it
            if self._server.forbids(verb):
                self._server.lacks(verb, now)
            self._halve(batch, fewest=1)

    def _halve(self, batch: PollBatch, fewest: int) -> None:
        """Halve the batch size. If it falls below ``fewest``, each operation gets its own call."""
        half = len(batch.entries) // 2
        for entry in self._watched(batch):
            entry.asked_alone, entry.max_batch = entry.asked_alone or half < fewest, max(1, half)

    def _fail_one(
        self, entry: WatchedOperation, error: CallError, now: float, batch: PollBatch
    ) -> Notifications:
        hold = batch.hold if batch.strategy is Strategy.WAIT else None
        # A stream has no time limit.
        budget = math.inf if batch.strategy is Strategy.STREAM else batch.budget
        entry.polls += 1
        if entry.fail(self._config, error, hold=hold, took=now - batch.began, budget=budget):
            self._registry.push(entry, now)
            return []
        # If all listeners have deadlines, these replace the policy's patience (spec §11.5(2)).
        pause = entry.failures.pause(
            self._config, error, now, patient=entry.listeners.last_deadline < math.inf
        )
        if pause is not None:
            log_failed_poll(entry.name, error, pause)
            self._registry.push(entry, now + pause)
            return []
        return self._registry.give_up(entry, final_error(error))

    def _broken(self, batch: PollBatch, error: Exception) -> None:
        with self._registry.lock:
            self._scheduler.finished(batch)
            notifications = self._give_up(batch, error)
        notify_all(notifications)

    def _give_up(self, batch: PollBatch, error: Exception) -> Notifications:
        return [
            one for entry in self._watched(batch) for one in self._registry.give_up(entry, error)
        ]

    # -- parts --------------------------------------------------------------------------------

    def _watched(self, batch: PollBatch) -> list[WatchedOperation]:
        """Return the operations of the batch that still have listeners."""
        known = self._registry.entries
        return [entry for name, entry in batch.entries.items() if known.get(name) is entry]

    def _still_watched(self, batch: PollBatch) -> bool:
        """Return True if an operation of the batch has a listener. Drop operations before it."""
        known = self._registry.entries
        while batch.entries:
            name = next(iter(batch.entries))
            if known.get(name) is batch.entries[name]:
                return True
            del batch.entries[name]
        return False

    def _push(self, batch: PollBatch, due: float) -> None:
        self._registry.push_all(self._watched(batch), due)
