"""A server and a client's pollers in virtual time, without threads."""

from __future__ import annotations

import collections
import heapq
import itertools
import random
from collections.abc import Callable, Generator
from typing import Any

import attrs

import lro
import lro.wire
from lro_client import CallError, Polling
from lro_client._flow.single import BATCH, LIST, WAIT, WATCH, FlowConfig, ServerState
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    SleepUntilWoken,
    StopStream,
    Stream,
    WatchOperationsRequest,
)
from lro_client._watch.poller import Pollers
from lro_client._watch.registry import StateChanged, WatchFailed, WatchOptions, WatchRegistry
from lro_client._watch.strategy import Scheduler, Strategy
from lro_client.transports import Call, Reply

ALL = frozenset({WAIT, WATCH, BATCH, LIST})
ENTIRELY = frozenset(Strategy)
NEVER = 1e9


@attrs.define
class Planned:
    """A scripted operation, which the server knows from ``known_at`` until ``gone_at``."""

    name: str
    ends_at: float
    gone_at: float = NEVER
    changes: tuple[float, ...] = ()
    known_at: float = 0.0

    def at(self, now: float) -> lro.Operation | None:
        if not self.known_at <= now < self.gone_at:
            return None
        seen = sum(moment <= now for moment in self.changes)
        metadata = lro.AnyMessage("type.googleapis.com/acme.v1.Meta", {"percent": seen})
        return lro.Operation(name=self.name, done=now >= self.ends_at, metadata=metadata)


def error(code: lro.Code, *, passing: bool = False, **more: Any) -> CallError:
    """Make the error of a failed call."""
    return CallError("Call", lro.Status(code, "no"), passing=passing, **more)


Fault = Callable[[float, Call], CallError | None]


@attrs.define(slots=False)
class World:
    """A server that ``offers`` some verbs; ``fault`` may return an error for a call.

    ``cuts`` is the chance that a stream breaks at an event. If ``deaf``, streams send nothing;
    after ``mute_after`` updates of an operation, streams send no more of them. ``page_most`` limits
    the pages of lists, each reply has ``retry_after``, and if ``full`` no poller can start.
    """

    offers: frozenset[str] = ALL
    latency: float = 0.01
    fault: Fault = lambda now, call: None
    polling: Polling = Polling(jitter=0.0)
    transport: frozenset[Strategy] = ENTIRELY
    cuts: float = 0.0
    deaf: bool = False
    ignores_filters: bool = False
    mute_after: int = 1_000_000
    page_most: int = 1_000_000
    retry_after: float | None = None
    seed: int = 0
    max_hold: float = 60.0
    now: float = 1000.0
    operations: dict[str, Planned] = attrs.field(factory=dict)
    asked: list[tuple[float, Call]] = attrs.field(factory=list)
    received: dict[int, list[tuple[float, StateChanged | WatchFailed]]] = attrs.field(factory=dict)
    full: bool = False
    flying: int = 0
    most_flying: int = 0

    def __attrs_post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self._listeners: dict[int, tuple[str, Callable[[StateChanged | WatchFailed], None]]] = {}
        self._resting: Callable[[], object] | None = None
        self._streams: list[Callable[[], object]] = []
        self.server = ServerState()
        self.config = FlowConfig(
            clock=lambda: self.now,
            polling=self.polling,
            server=self.server,
            chance=self.random.random,
        )
        self.registry = WatchRegistry(
            lambda: self.now,
            max_pollers=lambda: self.polling.connections,
            start_poller=lambda: self._hire(pollers),
            wake_poller=self._ring,
        )
        pollers = Pollers(
            self.config, self.registry, Scheduler(self.config, self.registry, self.transport)
        )

    # -- for tests ---------------------------------------------------------------------------

    def plan(self, name: str, seconds: float, **more: Any) -> Planned:
        """Plan an operation that ends in this number of seconds."""
        made = self.operations[name] = Planned(name, self.now + seconds, **more)
        return made

    def watch(
        self, name: str, *, wants_progress: bool = False, seconds: float = float("inf")
    ) -> int:
        """Watch an operation; return the key of its updates in ``received``."""
        number = len(self.received)
        mine = self.received[number] = []

        def hear(news: StateChanged | WatchFailed) -> None:
            mine.append((self.now, news))

        self._listeners[number] = name, hear
        self.registry.subscribe(name, hear, WatchOptions(wants_progress, self.now + seconds))
        return number

    def leave(self, number: int) -> None:
        """End one watch."""
        name, hear = self._listeners[number]
        self.registry.leave(name, hear)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Run an action in this number of seconds."""
        heapq.heappush(self._agenda, (self.now + max(seconds, 0.0), next(self._count), action))

    def run(self, seconds: float = 1e6, steps: int = 200_000) -> None:
        """Let this much time pass, or less if nothing is left to do."""
        end = self.now + seconds
        while self._agenda and self._agenda[0][0] <= end and steps:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
            steps -= 1
        assert steps, "the pollers do not come to rest"
        if not self._agenda or seconds < 1e6:
            self.now = max(self.now, min(end, self.now if not self._agenda else end))

    def ends(self, number: int) -> list[tuple[float, StateChanged | WatchFailed]]:
        """Return the updates that ended the watch, with their times."""
        return [
            (at, news)
            for at, news in self.received[number]
            if isinstance(news, WatchFailed) or news.operation.done
        ]

    def break_streams(self) -> None:
        """Break all open streams."""
        streams, self._streams = self._streams, []
        for end in streams:
            end()

    def verbs(self) -> list[str]:
        return [call.verb for _, call in self.asked]

    # -- the pollers ----------------------------------------------------------------------------

    def _ring(self) -> None:
        if self._resting is not None:
            woken, self._resting = self._resting, None
            self.later(0.0, woken)

    def _go(self, poller: Generator[Any, Any, None], found: object) -> None:
        try:
            step = poller.throw(found) if isinstance(found, Exception) else poller.send(found)
        except StopIteration:
            return
        if isinstance(step, SleepUntilWoken):
            self._rest(poller, step)
        elif isinstance(step, Stream):
            self._fly(1)
            self._stream(poller, step)
        else:
            self._fly(1)
            self._call(poller, step)

    def _hire(self, pollers: Pollers) -> None:
        if self.full:
            raise RuntimeError("there can be no more threads")
        self.later(0.0, lambda: self._go(pollers.poller(), None))

    def _rest(self, poller: Generator[Any, Any, None], step: SleepUntilWoken) -> None:
        woken = [False]

        def wake() -> None:
            if not woken[0]:
                woken[0] = True
                self._resting = None if self._resting is wake else self._resting
                self._go(poller, None)

        self._resting = wake
        self.later(step.seconds, wake)

    def _fly(self, change: int) -> None:
        self.flying += change
        self.most_flying = max(self.most_flying, self.flying)

    # -- the server ---------------------------------------------------------------------------

    def _call(self, poller: Generator[Any, Any, None], call: Call) -> None:
        self.asked.append((self.now, call))
        held = 0.0
        if isinstance(call.request, lro.wire.WaitOperationRequest) and WAIT in self.offers:
            assert call.request.timeout is not None
            held = min(call.request.timeout.total_seconds, self.max_hold)
            operation = self.operations[call.request.name]
            held = max(0.0, min(held, operation.ends_at - self.now, operation.gone_at - self.now))

        def land() -> None:
            self._fly(-1)
            failed = self.fault(self.now, call)
            self._go(poller, failed or self._answer(call))

        self.later(held + self.latency, land)

    def _answer(self, call: Call) -> Reply | CallError:
        request = call.request
        if isinstance(request, BatchGetOperationsRequest):
            return self._batch(request) if BATCH in self.offers else error(lro.Code.NOT_FOUND)
        if isinstance(request, lro.wire.ListOperationsRequest):
            return self._list(request) if LIST in self.offers else error(lro.Code.UNIMPLEMENTED)
        if isinstance(request, lro.wire.WaitOperationRequest) and WAIT not in self.offers:
            return error(lro.Code.NOT_FOUND)
        assert isinstance(request, lro.wire.GetOperationRequest | lro.wire.WaitOperationRequest)
        planned = self.operations.get(request.name)
        found = planned and planned.at(self.now)
        return Reply(found, self.retry_after) if found else error(lro.Code.NOT_FOUND)

    def _batch(self, request: BatchGetOperationsRequest) -> Reply:
        known = {name: self.operations[name].at(self.now) for name in request.names}
        found = tuple(one for one in known.values() if one and (one.done or not request.ended))
        gone = tuple(name for name, one in known.items() if one is None)
        return Reply(lro.wire.BatchGetOperationsResponse(found, gone), self.retry_after)

    def _list(self, request: lro.wire.ListOperationsRequest) -> Reply:
        some = [*self.operations.values()][::-1]
        if not self.ignores_filters:
            wanted = {part.split('"')[1] for part in request.filter.split(" OR ")}
            some = [one for one in some if one.name in wanted]
        size = min(request.page_size, self.page_most)
        found = [one.at(self.now) for one in some[:size]]
        token = "more" if len(some) > size else ""
        return Reply(lro.wire.ListOperationsResponse(tuple(one for one in found if one), token))

    def _stream(self, poller: Generator[Any, Any, None], step: Stream) -> None:
        self.asked.append((self.now, step.call))
        request = step.call.request
        assert isinstance(request, WatchOperationsRequest)
        over = [False]

        def end(found: object) -> None:
            if not over[0]:
                over[0] = True
                self._fly(-1)
                self._go(poller, found)

        failed = self.fault(self.now, step.call)
        if failed is None and WATCH not in self.offers:
            failed = error(lro.Code.UNIMPLEMENTED)
        if failed is not None:
            self.later(self.latency, lambda: end(failed))
            return
        if self.deaf:
            self.later(step.call.budget, lambda: end(error(lro.Code.UNAVAILABLE, passing=True)))
            return
        left = set(request.names)
        sent: collections.Counter[str] = collections.Counter()
        self._streams.append(lambda: end(error(lro.Code.UNAVAILABLE, passing=True)))

        def send_state(name: str | None) -> None:
            if over[0]:
                return
            if name is not None:
                sent[name] += 1
                if sent[name] > self.mute_after:
                    return
            if name is not None and self.random.random() < self.cuts:
                end(error(lro.Code.UNAVAILABLE, passing=True))
                return
            try:
                self._event(step, name, left)
            except StopStream:
                end(None)
                return
            if not left:
                end(None)

        for name in request.names:
            planned = self.operations[name]
            moments = (self.now, *planned.changes, planned.ends_at, planned.gone_at)
            for moment in {one for one in moments if self.now <= one < NEVER}:
                self.later(moment - self.now + self.latency, lambda name=name: send_state(name))

        def beat() -> None:
            send_state(None)
            if not over[0]:
                self.later(15.0, beat)

        self.later(15.0, beat)

    def _event(self, step: Stream, name: str | None, left: set[str]) -> None:
        if name is None:
            step.sink(None)
            return
        operation = self.operations[name].at(self.now)
        step.sink(operation if operation is not None else name)
        if operation is None or operation.done:
            left.discard(name)
