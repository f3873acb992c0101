"""A server in virtual time: executes the steps of a client flow, and records each call."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import attrs

import lro
from lro_client import CallError, Polling
from lro_client._flow.polling import until_done
from lro_client._flow.single import FlowConfig
from lro_client._flow.steps import Sleep, YieldValue
from lro_client.transports import Call, Reply, StartRequest
from tests.client.faces import Clock
from tests.client.messages import NAME

Fault = Callable[[float], CallError | None]


def call_error(code: lro.Code, *, passing: bool = False, **more: Any) -> CallError:
    """Make the error of a failed call."""
    return CallError("GetOperation", lro.Status(code, "no"), passing=passing, **more)


@attrs.define
class Simulation:
    """Simulate an operation that ends ``ends_at`` seconds after the simulation began.

    ``max_hold`` is the longest time that the server holds a Wait (None: it does not implement
    Wait), and ``latency`` is the duration of each call. ``metadata`` returns the metadata at a
    given time, and ``fault`` the error of a call at that time, if any.
    """

    ends_at: float
    max_hold: float | None = None
    latency: float = 0.0
    metadata: Callable[[float], lro.AnyMessage | None] = lambda _: None
    fault: Fault = lambda _: None
    clock: Clock = attrs.field(factory=Clock)
    asked: list[tuple[float, Call]] = attrs.field(factory=list)
    pauses: list[float] = attrs.field(factory=list)
    shown: list[lro.Operation] = attrs.field(factory=list)

    @property
    def now(self) -> float:
        """Seconds since the beginning of the simulation."""
        return self.clock.now - 1000.0

    def config(self, polling: Polling, **more: Any) -> FlowConfig:
        return FlowConfig(clock=self.clock, polling=polling, **more)

    def wait(self, polling: Polling, timeout: float | None = None, **more: Any) -> lro.Operation:
        """Wait for the operation, and return its last state."""
        return self.run(until_done(self.config(polling, **more), NAME, None, timeout))

    def watch(
        self, polling: Polling, timeout: float | None = None, every: float | None = None
    ) -> lro.Operation:
        """Watch the operation until it is done; ``shown`` has the updates."""
        flow = until_done(self.config(polling), NAME, None, timeout, changes=True, every=every)
        return self.run(flow)

    def run(self, flow: Generator[Any, Any, lro.Operation]) -> lro.Operation:
        found: Any = None
        try:
            while True:
                if isinstance(found, CallError):
                    step = flow.throw(found)
                else:
                    step = flow.send(found)
                found = self._act(step)
        except StopIteration as end:
            last: lro.Operation = end.value
            return last

    def _act(self, step: Call | Sleep | YieldValue) -> Reply | CallError | None:
        if isinstance(step, YieldValue):
            self.shown.append(step.value)
            return None
        if isinstance(step, Sleep):
            self.pauses.append(step.seconds)
            self.clock.now += step.seconds
            return None
        self.asked.append((self.now, step))
        self.clock.now += self.latency
        return self.fault(self.now) or self._answer(step)

    def _answer(self, call: Call) -> Reply | CallError:
        request = call.request
        assert not isinstance(request, StartRequest)
        assert request.name == NAME
        if isinstance(request, lro.wire.WaitOperationRequest):
            if self.max_hold is None:
                return call_error(lro.Code.UNIMPLEMENTED)
            assert request.timeout is not None
            held = min(request.timeout.total_seconds, self.max_hold)
            self.clock.now += max(0.0, min(held, self.ends_at - self.now))
        # The clock adds up many floats, so the sum may be slightly below `ends_at` when the
        # operation should end; the tolerance allows for this.
        done = self.now >= self.ends_at - 1e-9
        return Reply(lro.Operation(name=NAME, done=done, metadata=self.metadata(self.now)))

    @property
    def holds(self) -> list[float | None]:
        """The hold time in seconds that each call requested, or None for a Get."""
        return [
            call.request.timeout.total_seconds
            if isinstance(call.request, lro.wire.WaitOperationRequest) and call.request.timeout
            else None
            for _, call in self.asked
        ]
