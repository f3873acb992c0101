"""Waiting for a single operation, by Waits that the server holds or by Gets (spec §11.2-§11.5)."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from lro import Operation
from lro.wire import GetOperationRequest
from lro_client._errors import CallError, PollTimeout
from lro_client._flow.poll_state import (
    ANSWERED,
    GRACE_SECONDS,
    Fits,
    PollState,
    any_fits,
    final_error,
    hold_within,
    wait_budget,
    wait_request,
)
from lro_client._flow.single import FlowConfig, read
from lro_client._flow.steps import Call, Flow, Reply, Request, Sleep, YieldValue
from lro_client._tracing import log_failed_poll

TICK_SECONDS = 1e-6
"""The deadline counts as reached this many seconds early, because sleeps can end early."""

DEFAULT_EVERY_SECONDS = 1.0
"""Maximum seconds of a Wait while changes are shown, because a Wait returns only at the end."""


def until_done(
    config: FlowConfig,
    name: str,
    first: Operation | None,
    timeout: float | None,
    polled: Callable[[], object] = lambda: None,
    fits: Fits = any_fits,
    changes: bool = False,
    every: float | None = None,
) -> Flow[Operation]:
    """Poll until the operation is done, and return its last state (spec §11.2-§11.5).

    ``polled`` is called before each poll. If ``fits`` rejects the result that a Wait returns, a
    Get follows. With ``changes``, yield each changed state, at most ``every`` seconds late.

    Raises:
        PollTimeout: The timeout expired.
        OperationGone: The operation does not exist any more.
        CallError: A poll failed with an error that is not retried.
    """
    if first is not None and first.done:
        if changes:
            yield YieldValue(first)
        return first
    wait = _SingleWait(
        name=name,
        since=config.clock(),
        operation=first,
        config=config,
        timeout=timeout,
        changes=changes,
        every=every,
    )
    shown: Operation | None = None
    while True:
        hold = wait.hold()
        asked = config.clock()
        wait.polls += 1
        polled()
        call = wait.call(hold)
        try:
            reply: Reply = yield call
        except CallError as exc:
            pause = wait.after_failure(exc, call, hold, config.clock() - asked)
        else:
            operation = read(reply)
            if not wait.accept(config, operation, fits, waited=hold is not None):
                wait.check_deadline()
                continue
            wait.operation = operation
            wait.answered += 1
            wait.failures = ANSWERED
            if changes and operation != shown:
                shown = operation
                yield YieldValue(operation)
            if operation.done:
                return operation
            pause = wait.after_reply(reply, hold, config.clock() - asked)
        if pause is not None:
            yield wait.sleep(pause)


@attrs.define(eq=False, kw_only=True, repr=False)
class _SingleWait(PollState):
    """The wait for one operation: it computes when each poll is due, and how long it may take."""

    config: FlowConfig
    timeout: float | None
    changes: bool
    every: float | None
    answered: int = 0

    @property
    def left(self) -> float:
        """Seconds to the deadline, or infinity without a deadline."""
        if self.timeout is None:
            return math.inf
        return self.since + self.timeout - self.config.clock()

    def hold(self) -> float | None:
        """Return the seconds for which a Wait is held, or None if the next poll is a Get."""
        if not self.may_hold(self.config):
            return None
        hold = self.config.polling.hold_seconds
        if self.changes:
            # The first poll is not held, so the first state is yielded at once.
            most = DEFAULT_EVERY_SECONDS if self.every is None else self.every
            hold = min(most, self._policy_pause(None)) if self.answered else 0.0
        return hold_within(hold, self.left)

    def call(self, hold: float | None) -> Call:
        """Return the next poll."""
        request: Request = GetOperationRequest(self.name)
        seconds, left = self.config.call_seconds, self.left
        if hold is not None:
            request = wait_request(self.name, hold)
            seconds = wait_budget(self.config, hold, left)
        # If a Wait is refused, the seconds of grace after the deadline leave time for a Get.
        return Call(request=request, budget=min(seconds, max(left + GRACE_SECONDS, 0.001)))

    def sleep(self, seconds: float) -> Sleep:
        """Return a pause that ends at the deadline at the latest."""
        return Sleep(max(0.0, min(seconds, self.left)))

    def after_reply(self, reply: Reply, hold: float | None, took: float) -> float | None:
        """Return the pause before the next poll, or None to poll at once."""
        self.check_deadline()
        if hold is not None and self.holds_again(hold, took):
            return None
        return min(self._policy_pause(reply.retry_after), self._longest_pause(hold))

    def after_failure(
        self, error: CallError, call: Call, hold: float | None, took: float
    ) -> float | None:
        """Return the pause after a failed poll, as ``after_reply`` does.

        Raise the error instead if it is final.
        """
        config = self.config
        if self.fail(config, error, hold=hold, took=took, budget=call.budget):
            self.check_deadline()
            return None
        patient = self.timeout is not None
        pause = self.failures.pause(config, error, config.clock(), patient=patient)
        if pause is None and not (error.passing and self._is_over):
            raise final_error(error) from None
        self.check_deadline()
        assert pause is not None
        log_failed_poll(self.name, error, pause)
        return pause

    def check_deadline(self) -> None:
        """Raise ``PollTimeout`` if the deadline has been reached."""
        if self.timeout is not None and self._is_over:
            last = self.failures.last
            raise PollTimeout(self.name, self.timeout, self.polls, self.operation, last)

    @property
    def _is_over(self) -> bool:
        return self.left <= TICK_SECONDS

    def _longest_pause(self, hold: float | None) -> float:
        if self.every is not None:
            return self.every
        between_waits = self.changes and hold is None and self.may_hold(self.config)
        return DEFAULT_EVERY_SECONDS if between_waits else math.inf

    def _policy_pause(self, retry_after: float | None) -> float:
        config = self.config
        elapsed = config.clock() - self.since
        return config.polling.pause(self.answered, elapsed, retry_after, config.chance())
