"""The choice of the next call: its verb, its operations, and its time."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from lro import Operation
from lro.wire import GetOperationRequest, ListOperationsRequest
from lro_client._flow.poll_state import GRACE_SECONDS, hold_within, wait_budget, wait_request
from lro_client._flow.single import BATCH, LIST, WAIT, WATCH, FlowConfig
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    Call,
    Request,
    Stream,
    WatchOperationsRequest,
)
from lro_client._watch.registry import MAX_BATCH_NAMES, WatchedOperation, WatchRegistry

MAX_UNREPORTED_SECONDS: Final = 5.0
"""An operation that its stream has not reported after this many seconds is polled.

The reason is that a proxy may delay the stream.
"""

_MAX_WAITS_HELD: Final = 4
"""With at most this many operations, each gets its own Wait."""

_MAX_FILTER_CHARS: Final = 4000
_MAX_LISTED_NAMES: Final = 100
"""Maximum number of names in one List: they must fit into a URL that every proxy accepts."""

_MAX_SET_ASIDE: Final = 100
_GATHER_AHEAD_SECONDS: Final = 0.05
"""Operations that will be due within this many seconds join the current batch."""

_POLICY_PAUSE_SECONDS: Final = 0.5
"""Maximum seconds of the policy's pause between batches, unless the share below allows more."""

_MIN_SECONDS_PER_CALL: Final = 0.05
"""Minimum seconds of the pause between batches, for each call in a round of batches."""

_POLICY_PAUSE_SHARE: Final = 0.0125
"""Maximum of the policy's pause between batches, as a share of the time waited so far."""

_MAX_GETS_PER_SECOND: Final = 400.0
_MAX_PROGRESS_DELAY_SECONDS: Final = 1.0
"""Maximum seconds until the client sees a change other than the end."""

_MAX_BROKEN_STREAMS: Final = 2
"""An operation is read in batches after this many streams broke before they reported it."""

RECHECK_SECONDS: Final = 60.0
"""Seconds until an operation is polled after a stream has reported the operation as running."""

_MAX_STREAM_SILENCE_SECONDS: Final = 40.0
"""A stream without a keep-alive for this many seconds is closed. Servers send one every 15 s."""


_SINCE: Final = operator.attrgetter("since")


class Strategy(enum.Enum):
    """The verb of a call."""

    WAIT = WAIT
    STREAM = WATCH
    BATCH = BATCH
    LIST = LIST
    GET = "get"


BATCH_STRATEGIES: Final = frozenset({Strategy.STREAM, Strategy.BATCH, Strategy.LIST})
"""The strategies that read many operations at once, if the server supports them."""


Sink = Callable[["PollBatch", "Operation | str | None"], object]


@attrs.define(eq=False, repr=False)
class PollBatch:
    """The operations of one call, with the Wait's ``hold`` and the call's ``budget`` in seconds."""

    strategy: Strategy
    entries: dict[str, WatchedOperation]
    began: float
    hold: float = 0.0
    budget: float = 0.0
    request: Request | None = None
    left_out: set[str] = attrs.field(factory=set)
    """Names that a good reply did not include. They are part of the next call."""


class Scheduler:
    """Chooses the next call among the ``offered`` strategies. Used under the registry's lock."""

    def __init__(
        self, config: FlowConfig, registry: WatchRegistry, offered: frozenset[Strategy]
    ) -> None:
        self._config = config
        self._server = config.server
        self._registry = registry
        self._offered = offered
        self._in_flight: dict[Strategy, int] = dict.fromkeys(Strategy, 0)
        self._began: dict[Strategy, float] = {}

    def next_batch(self, now: float) -> PollBatch | None:
        """Return the next batch, or None if a call in flight will show which verb to use."""
        first, due = next(self._registry.due(now))
        how = self._strategy(first, now)
        if how is None:
            self._registry.push(first, due)
            return None
        batch = PollBatch(how, {first.name: first}, now)
        if how in BATCH_STRATEGIES:
            self._gather(batch, first, now + _GATHER_AHEAD_SECONDS)
        if how is Strategy.WAIT:
            batch.hold = self._hold(first, now)
        if how is Strategy.STREAM:
            for entry in batch.entries.values():
                entry.streamed = True
            self._registry.push_all(batch.entries.values(), now + MAX_UNREPORTED_SECONDS)
        self._in_flight[how] += 1
        self._began[how] = now
        seconds = self._config.call_seconds
        if how is Strategy.WAIT:
            seconds = wait_budget(self._config, batch.hold, first.listeners.deadline(now) - now)
        listeners = {entry.listeners for entry in batch.entries.values()}
        # Nobody needs a reply after the last deadline, and waiting for it would delay other calls.
        patience = max(one.last_deadline for one in listeners) - now
        batch.budget = min(seconds, max(patience, 0.0) + GRACE_SECONDS)
        batch.request = _request(batch, ended=not any(one.wants_progress for one in listeners))
        return batch

    def finished(self, batch: PollBatch) -> None:
        """Note that a call has ended."""
        self._in_flight[batch.strategy] -= 1
        if batch.strategy is Strategy.STREAM:
            for entry in batch.entries.values():
                entry.streamed = entry.reported = False

    def step(self, batch: PollBatch, sink: Sink) -> Call | Stream:
        """Return the step that makes the call."""
        assert batch.request is not None
        if batch.strategy is Strategy.STREAM:
            call = Call(request=batch.request, budget=_MAX_STREAM_SILENCE_SECONDS)
            return Stream(call=call, sink=lambda item: sink(batch, item))
        return Call(request=batch.request, budget=batch.budget)

    def _strategy(self, entry: WatchedOperation, now: float) -> Strategy | None:
        few = len(self._registry.entries) <= _MAX_WAITS_HELD
        if few and Strategy.WAIT in self._offered and entry.may_hold(self._config):
            return Strategy.WAIT if self._hold(entry, now) >= 0 else Strategy.GET
        if few or entry.asked_alone:
            return Strategy.GET
        for how in (Strategy.STREAM, Strategy.BATCH, Strategy.LIST):
            if how not in self._offered or not self._server.offers(how.value, now):
                continue
            if how is Strategy.STREAM and not self._may_stream(entry):
                continue
            if how.value in self._server.proven or not self._in_flight[how]:
                return how
            if now < self._began[how] + MAX_UNREPORTED_SECONDS:
                return None
        return Strategy.GET

    def _may_stream(self, entry: WatchedOperation) -> bool:
        polling = self._config.polling
        # Two calls are reserved for operations that are not in a stream.
        most = self._registry.max_calls(polling.connections) - 2
        if not polling.wait_first or entry.streamed or self._in_flight[Strategy.STREAM] >= most:
            return False
        # If streams with this operation keep breaking, it is polled instead.
        return entry.failures.count < _MAX_BROKEN_STREAMS

    def _hold(self, entry: WatchedOperation, now: float) -> float:
        """Return the seconds to hold a Wait, or a negative number if there is too little time."""
        hold = self._config.polling.hold_seconds
        if entry.listeners.wants_progress:
            hold = min(hold, _MAX_PROGRESS_DELAY_SECONDS) if entry.polls else 0.0
        found = hold_within(hold, entry.listeners.deadline(now) - now)
        return -1.0 if found is None else found

    def _gather(self, batch: PollBatch, first: WatchedOperation, until: float) -> None:
        """Add the entries that are due by ``until`` and fit into the same call."""
        aside: list[tuple[WatchedOperation, float]] = []
        entries, collection = batch.entries, first.collection
        most = min(first.max_batch, capacity(batch.strategy))
        streams, listed = batch.strategy is Strategy.STREAM, batch.strategy is Strategy.LIST
        left = _MAX_FILTER_CHARS - len(first.name)
        for entry, due in self._registry.due(until):
            if listed:
                left -= len(entry.name) + len(" OR name = ")
            if (
                left < 0
                or entry.asked_alone
                or entry.collection != collection
                or (streams and not self._may_stream(entry))
            ):
                aside.append((entry, due))
                if len(aside) >= _MAX_SET_ASIDE or left < 0:
                    break
                continue
            entries[entry.name] = entry
            if entry.max_batch < most:
                most = entry.max_batch
            if len(entries) >= most:
                break
        for entry, due in aside:
            self._registry.push(entry, due)


def _request(batch: PollBatch, *, ended: bool) -> Request:
    names = tuple(batch.entries)
    first = batch.entries[names[0]]
    if batch.strategy is Strategy.STREAM:
        return WatchOperationsRequest(first.collection, names, ended)
    if batch.strategy is Strategy.BATCH:
        return BatchGetOperationsRequest(first.collection, names, ended)
    if batch.strategy is Strategy.LIST:
        from lro_client.filters import literal  # imported late, because few clients use List here

        wanted = " OR ".join(f"name = {literal(name)}" for name in names)
        parent = first.collection.removesuffix("/operations")
        return ListOperationsRequest(parent, wanted, len(names))
    if batch.strategy is Strategy.WAIT:
        return wait_request(first.name, batch.hold)
    return GetOperationRequest(first.name)


def capacity(how: Strategy) -> int:
    """Return the maximum number of names in one call."""
    return {Strategy.LIST: _MAX_LISTED_NAMES, Strategy.GET: 1, Strategy.WAIT: 1}.get(
        how, MAX_BATCH_NAMES
    )


def pause_after(
    config: FlowConfig,
    batch: PollBatch,
    waiting: Sequence[WatchedOperation],
    registry: WatchRegistry,
    retry_after: float | None,
) -> float:
    """Return the pause until the next call for the operations that are still watched."""
    polling = config.polling
    asked = polling.server_delay(retry_after)
    if asked > 0:
        return asked
    youngest = max(waiting, key=_SINCE)
    elapsed = config.clock() - youngest.since
    pause = polling.pause(youngest.polls, elapsed, None, config.chance())
    waited_for = len(registry.entries)
    if batch.strategy in BATCH_STRATEGIES:
        calls = waited_for / capacity(batch.strategy) + len(registry.collections)
        return max(
            min(pause, max(_POLICY_PAUSE_SECONDS, elapsed * _POLICY_PAUSE_SHARE)),
            calls * _MIN_SECONDS_PER_CALL,
        )
    if any(entry.listeners.wants_progress for entry in waiting):
        pause = min(pause, _MAX_PROGRESS_DELAY_SECONDS)
    return max(pause, waited_for / _MAX_GETS_PER_SECOND)
