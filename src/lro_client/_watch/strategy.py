"""What a lane does next: by which verb, for which operations, and when again."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from lro import GetOperationRequest, ListOperationsRequest, Operation
from lro_client._flow.poll_state import GRACE_SECONDS, hold_within, wait_budget, wait_request
from lro_client._flow.single import BATCH, LIST, WAIT, WATCH, FlowConfig
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    Call,
    Request,
    Stream,
    WatchOperationsRequest,
)
from lro_client._literals import literal
from lro_client._watch.registry import MAX_BATCH_NAMES, WatchedOperation, WatchRegistry

MAX_UNREPORTED_SECONDS: Final = 5.0
"""What a stream has not told of within so long is asked for: something on the way may keep it."""

_MAX_WAITS_HELD: Final = 4
"""Up to so many operations are waited for by a Wait each."""

_MAX_FILTER_CHARS: Final = 4000
_MAX_LISTED_NAMES: Final = 100
"""The names in one List: as many as fit into an address that every proxy takes."""

_MAX_SET_ASIDE: Final = 100
_GATHER_AHEAD_SECONDS: Final = 0.05
"""What is due so soon is asked for together with what is due."""

_MIN_BATCH_PAUSE_SECONDS: Final = 0.5
_MIN_SECONDS_PER_CALL: Final = 0.05
"""Reads of many are made each half a second, or at twenty calls a second where they are more."""

_MIN_PAUSE_SHARE: Final = 0.0125
"""Nor is it worth while to read more often than each eightieth of the time that has passed."""

_MAX_GETS_PER_SECOND: Final = 400.0
_MAX_PROGRESS_DELAY_SECONDS: Final = 1.0
"""How late a change may be seen that is not the end."""

_MAX_BROKEN_STREAMS: Final = 2
"""What was in so many streams that broke before they told of it is read in batches."""

RECHECK_SECONDS: Final = 60.0
"""So often what a stream has told of as running is asked for by other means."""

_MAX_STREAM_SILENCE_SECONDS: Final = 40.0
"""A stream is given up that gives no sign of life for so long: there is one each 15 s."""


class Strategy(enum.Enum):
    """By which verb."""

    HOLD = WAIT
    STREAM = WATCH
    BATCH = BATCH
    LISTED = LIST
    ONE = "get"


BATCH_STRATEGIES: Final = frozenset({Strategy.STREAM, Strategy.BATCH, Strategy.LISTED})
"""Those that ask for many operations at once, where a server has them."""


Sink = Callable[["PollBatch", "Operation | str | None"], object]


@attrs.define(eq=False)
class PollBatch:
    """What one call asks for; ``hold`` in seconds, for a Wait, ``budget`` for the whole."""

    strategy: Strategy
    entries: dict[str, WatchedOperation]
    began: float
    hold: float = 0.0
    budget: float = 0.0
    request: Request | None = None
    left_out: set[str] = attrs.field(factory=set)
    """Names that a good answer has left for the next call."""


class Scheduler:
    """Chooses work. ``offered`` are the ways that the transport has. Under the table's lock."""

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
        """The work that is due; None: what is being tried now will tell how to do it."""
        first, due = next(self._registry.due(now))
        how = self._strategy(first, now)
        if how is None:
            self._registry.push(first, due)
            return None
        work = PollBatch(how, {first.name: first}, now)
        if how in BATCH_STRATEGIES:
            self._gather(work, first, now + _GATHER_AHEAD_SECONDS)
        if how is Strategy.HOLD:
            work.hold = self._hold(first, now)
        if how is Strategy.STREAM:
            for entry in work.entries.values():
                entry.streamed = True
                self._registry.push(entry, now + MAX_UNREPORTED_SECONDS)
        self._in_flight[how] += 1
        self._began[how] = now
        seconds = self._config.call_seconds
        if how is Strategy.HOLD:
            seconds = wait_budget(self._config, work.hold, first.deadline(now) - now)
        work.budget = min(seconds, _patience(work, now))
        work.request = _request(work)
        return work

    def finished(self, work: PollBatch) -> None:
        """The work is done, well or not."""
        self._in_flight[work.strategy] -= 1
        if work.strategy is Strategy.STREAM:
            for entry in work.entries.values():
                entry.streamed = entry.reported = False

    def step(self, work: PollBatch, sink: Sink) -> Call | Stream:
        """What is to be asked, and how long it may take."""
        assert work.request is not None
        if work.strategy is Strategy.STREAM:
            call = Call(request=work.request, budget=_MAX_STREAM_SILENCE_SECONDS)
            return Stream(call=call, sink=lambda item: sink(work, item))
        return Call(request=work.request, budget=work.budget)

    def _strategy(self, entry: WatchedOperation, now: float) -> Strategy | None:
        few = len(self._registry.entries) <= _MAX_WAITS_HELD
        if few and Strategy.HOLD in self._offered and entry.may_hold(self._config):
            return Strategy.HOLD if self._hold(entry, now) >= 0 else Strategy.ONE
        if few or entry.asked_alone:
            return Strategy.ONE
        for how in (Strategy.STREAM, Strategy.BATCH, Strategy.LISTED):
            if how not in self._offered or not self._server.offers(how.value, now):
                continue
            if how is Strategy.STREAM and not self._may_stream(entry):
                continue
            if how.value in self._server.proven or not self._in_flight[how]:
                return how
            if now < self._began[how] + MAX_UNREPORTED_SECONDS:
                return None
        return Strategy.ONE

    def _may_stream(self, entry: WatchedOperation) -> bool:
        polling = self._config.polling
        most = self._config.max_lanes - 2  # two are left for what is not in a stream
        if not polling.wait_first or entry.streamed or self._in_flight[Strategy.STREAM] >= most:
            return False
        return (
            entry.failures.count < _MAX_BROKEN_STREAMS
        )  # one that breaks too soon must not keep some from us

    def _hold(self, entry: WatchedOperation, now: float) -> float:
        """Seconds to hold a Wait for; negative: there is no time for one."""
        hold = self._config.polling.hold_seconds
        if entry.wants_progress:
            hold = min(hold, _MAX_PROGRESS_DELAY_SECONDS) if entry.polls else 0.0
        found = hold_within(hold, entry.deadline(now) - now)
        return -1.0 if found is None else found

    def _gather(self, work: PollBatch, first: WatchedOperation, until: float) -> None:
        """Add what is due until then and can be asked for in the same call."""
        aside: list[tuple[WatchedOperation, float]] = []
        chars = len(first.name)
        most = min(first.max_batch, capacity(work.strategy))
        collection = first.collection
        for entry, due in self._registry.due(until):
            chars += len(entry.name) + len(" OR name = ")
            fits = work.strategy is not Strategy.LISTED or chars <= _MAX_FILTER_CHARS
            streams = work.strategy is not Strategy.STREAM or self._may_stream(entry)
            if entry.asked_alone or not streams or not fits or entry.collection != collection:
                aside.append((entry, due))
            else:
                work.entries[entry.name] = entry
                most = min(most, entry.max_batch)
            if len(work.entries) >= most or len(aside) >= _MAX_SET_ASIDE or not fits:
                break
        for entry, due in aside:
            self._registry.push(entry, due)


def _patience(work: PollBatch, now: float) -> float:
    """Seconds for which somebody wants to know: a reply after that would hold up others only."""
    wants = (want for entry in work.entries.values() for want in entry.listeners.values())
    return max(max(want.deadline for want in wants) - now, 0.0) + GRACE_SECONDS


def _request(work: PollBatch) -> Request:
    names = tuple(work.entries)
    first = work.entries[names[0]]
    ended = not any(entry.wants_progress for entry in work.entries.values())
    if work.strategy is Strategy.STREAM:
        return WatchOperationsRequest(first.collection, names, ended)
    if work.strategy is Strategy.BATCH:
        return BatchGetOperationsRequest(first.collection, names, ended)
    if work.strategy is Strategy.LISTED:
        wanted = " OR ".join(f"name = {literal(name)}" for name in names)
        parent = first.collection.removesuffix("/operations")
        return ListOperationsRequest(parent, wanted, len(names))
    if work.strategy is Strategy.HOLD:
        return wait_request(first.name, work.hold)
    return GetOperationRequest(first.name)


def capacity(how: Strategy) -> int:
    """How many names one call takes."""
    return {Strategy.LISTED: _MAX_LISTED_NAMES, Strategy.ONE: 1, Strategy.HOLD: 1}.get(
        how, MAX_BATCH_NAMES
    )


def pause_after(
    config: FlowConfig,
    work: PollBatch,
    waiting: Sequence[WatchedOperation],
    registry: WatchRegistry,
    retry_after: float | None,
) -> float:
    """Seconds until the next look at those of the work who still wait."""
    polling = config.polling
    asked = polling.server_delay(retry_after)
    if asked > 0:
        return asked
    youngest = max(waiting, key=lambda entry: entry.since)
    elapsed = config.clock() - youngest.since
    pause = polling.pause(youngest.polls, elapsed, None, config.chance())
    everybody = len(registry.entries)
    if work.strategy in BATCH_STRATEGIES:
        calls = everybody / capacity(work.strategy) + len(registry.collections)
        return max(
            min(pause, max(_MIN_BATCH_PAUSE_SECONDS, elapsed * _MIN_PAUSE_SHARE)),
            calls * _MIN_SECONDS_PER_CALL,
        )
    if any(entry.wants_progress for entry in waiting):
        pause = min(pause, _MAX_PROGRESS_DELAY_SECONDS)
    return max(pause, everybody / _MAX_GETS_PER_SECOND)
