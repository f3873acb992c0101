"""Waiting for one operation: hold a Wait, or poll (spec §11.2-§11.5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import attrs

from lro import (
    Code,
    Duration,
    GetOperationRequest,
    InvalidArgument,
    Operation,
    WaitOperationRequest,
)
from lro_client._errors import (
    CallError,
    NothingServed,
    OperationGone,
    PollTimeout,
    UnreadableReply,
)
from lro_client._flow.capabilities import WAIT, Server
from lro_client._flow.failures import FAIR_SECONDS, Failures, unanswered
from lro_client._flow.policy import Polling
from lro_client._flow.single import FlowConfig, read
from lro_client._flow.steps import Call, Emit, Flow, Reply, Request, Sleep
from lro_client._tracing import log_failed_poll

GRACE_SECONDS = 0.03
"""How long after a deadline the last poll, made at the deadline, may take (spec §11.4)."""

MARGIN_SECONDS = 0.2
"""A Wait is held until so long before a deadline at least, so that its reply arrives in time."""

_RESERVE_SECONDS = 2.0
_RESERVE_SHARE = 0.25
"""With more time left more of it is kept: half for the Wait's reply, half for a Get without one."""

_ANSWER_SECONDS = 5.0
"""So long after its hold a Wait is answered, or it is not: something on the way may swallow it."""

_TICK_SECONDS = 1e-6
"""So far a sleep may end before its time, without one more poll for it."""

_AT_ONCE_SECONDS = 0.5
_AT_ONCE_TIMES = 3


_TO_ANY_CALL = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)
"""What a server answers whatever the verb."""


Fits: TypeAlias = Callable[[Operation], bool]
"""Whether an operation that is done has a result as it was declared."""


def any_fits(_: Operation) -> bool:
    """Whatever the result is."""
    return True


@attrs.frozen
class Doubt:
    """A Wait failed, or ``said`` what is perhaps nonsense: a Get decides (spec §11.2(4))."""

    said: Operation | None = None

    def settle(self, server: Server, found: Operation, now: float) -> None:
        """Take in what a Get found. If it is something else, the server has no usable Wait."""
        if self.said is None or (self.said.done, self.said.result) != (found.done, found.result):
            server.lacks(WAIT, now)


def hold_within(hold: float, left: float) -> float | None:
    """Seconds to hold a Wait for with so many left to the deadline; None: there is no time."""
    return min(hold, left - _reserve(left)) if left > 2 * MARGIN_SECONDS else None


def wait_budget(setting: FlowConfig, hold: float, left: float) -> float:
    """Seconds that a Wait may take in all, so that there is time for a Get if it takes them."""
    answered = hold + min(setting.call_seconds, _ANSWER_SECONDS)
    return min(answered, left - _reserve(left) / 2)


def _reserve(left: float) -> float:
    return min(max(left * _RESERVE_SHARE, MARGIN_SECONDS), _RESERVE_SECONDS)


def is_fair(setting: FlowConfig, budget: float, hold: float) -> bool:
    """Whether a server that gave no answer to such a call had the time for one."""
    return budget - hold >= min(setting.call_seconds, FAIR_SECONDS)


def says_no_wait(polling: Polling, error: CallError) -> bool:
    """Whether a Wait failed so that a Get decides whether it is the verb or the operation.

    Every final failure is such a one, unless the server would say it to any call.
    """
    if error.code in (Code.UNIMPLEMENTED, Code.NOT_FOUND):
        return True
    if isinstance(error, UnreadableReply) and error.empty:
        return True
    final = polling.retry.pause(error, 1, 0.0) is None
    return final and not error.passing and error.code not in _TO_ANY_CALL


def until_done(
    setting: FlowConfig,
    name: str,
    first: Operation | None,
    timeout: float | None,
    polled: Callable[[], object] = lambda: None,
    fits: Fits = any_fits,
) -> Flow[Operation]:
    """Poll until the operation is done (spec §11.2-§11.5); its last state. Each is ``polled``.

    What a Wait says is done is asked again by Get unless it ``fits`` what was declared.

    Raises:
        PollTimeout: ``timeout`` seconds are over.
        OperationGone: There is no such operation any more.
        CallError: A poll failed for a reason that does not pass.
    """
    return _watch(setting, name, first, timeout, None, polled, fits)


def updates(
    setting: FlowConfig,
    name: str,
    first: Operation | None,
    timeout: float | None,
    every: float,
    polled: Callable[[], object] = lambda: None,
    fits: Fits = any_fits,
) -> Flow[Operation]:
    """The same, showing each changed state, looked for at most ``every`` seconds.

    Raises:
        InvalidArgument: ``every`` is not more than 0.
        PollTimeout, OperationGone, CallError: As for :func:`until_done`.
    """
    if not every > 0:
        raise InvalidArgument("every", f"must be more than 0 seconds, got {every!r}")
    return _watch(setting, name, first, timeout, every, polled, fits)


def _watch(
    setting: FlowConfig,
    name: str,
    first: Operation | None,
    timeout: float | None,
    every: float | None,
    polled: Callable[[], object],
    fits: Fits,
) -> Flow[Operation]:
    if first is not None and first.done:
        if every is not None:
            yield Emit(first)
        return first
    watch = _Watch(setting, name, timeout, every, fits, setting.clock(), first)
    shown: Operation | None = None
    while True:
        hold = watch.hold()
        asked = setting.clock()
        watch.polls += 1
        polled()
        call = watch.call(hold)
        try:
            reply: Reply = yield call
        except CallError as exc:
            pause = watch.after_failure(exc, call, hold, setting.clock() - asked)
        else:
            operation = watch.seen(reply, waited=hold is not None)
            if operation is None:
                continue
            if every is not None and operation != shown:
                shown = operation
                yield Emit(operation)
            if operation.done:
                return operation
            pause = watch.after_reply(reply, hold, setting.clock() - asked)
        if pause is not None:
            yield watch.cut(pause)


def lost(error: CallError) -> CallError:
    """What is told of a poll that failed for good: perhaps that the operation is gone."""
    if error.code is not Code.NOT_FOUND or isinstance(error, NothingServed):
        return error
    gone = OperationGone(error.verb, error.status, error.http_status)
    gone.__cause__ = error
    return gone


@attrs.define
class _Watch:
    """The state of one wait for an operation, and what it decides; ``every`` as for updates."""

    setting: FlowConfig
    name: str
    timeout: float | None
    every: float | None
    fits: Fits
    began: float
    operation: Operation | None = None
    failures: Failures = attrs.field(factory=Failures)
    polls: int = 0
    answered: int = 0
    at_once: int = 0
    doubt: Doubt | None = None

    @property
    def left(self) -> float | None:
        """Seconds to the deadline."""
        if self.timeout is None:
            return None
        return self.began + self.timeout - self.setting.clock()

    def hold(self) -> float | None:
        """Seconds that the server may hold the next poll; None for a plain Get."""
        polling = self.setting.polling
        if not polling.wait_first or self.doubt is not None:
            return None
        if not self.setting.server.offers(WAIT, self.setting.clock()):
            return None
        if self.failures.count:  # it may be a proxy on the way that will not have a call held
            return None
        hold, left = polling.hold_seconds, self.left
        if self.every is not None:
            # The first state is shown at once.
            hold = min(self.every, self._policy_pause(None)) if self.answered else 0.0
        return hold if left is None else hold_within(hold, left)

    def call(self, hold: float | None) -> Call:
        """The next poll."""
        request: Request = GetOperationRequest(self.name)
        seconds, left = self.setting.call_seconds, self.left
        if hold is not None:
            span = divmod(round(hold * 1_000_000_000), 1_000_000_000)
            request = WaitOperationRequest(self.name, Duration(*span))
            seconds = wait_budget(self.setting, hold, math.inf if left is None else left)
        if left is None:
            return Call(request=request, budget=seconds)
        # Past the deadline the last moment is for a Get instead of a Wait that was refused.
        return Call(request=request, budget=min(seconds, max(left + GRACE_SECONDS, 0.001)))

    def cut(self, seconds: float) -> Sleep:
        """A pause, which ends at the deadline at the latest."""
        left = self.left
        return Sleep(seconds if left is None else max(0.0, min(seconds, left)))

    def seen(self, reply: Reply, *, waited: bool) -> Operation | None:
        """Take in a good reply; None where a Wait says what a Get has to confirm."""
        found = read(reply)
        if waited and found.done and not self.fits(found):
            self.doubt = Doubt(found)
            self._check_deadline()
            return None
        if self.doubt is not None:
            self.doubt.settle(self.setting.server, found, self.setting.clock())
            self.doubt = None
        self.operation = found
        self.answered += 1
        self.failures.clear()
        return found

    def after_reply(self, reply: Reply, hold: float | None, took: float) -> float | None:
        """Seconds to wait before the next poll, None for none."""
        self._check_deadline()
        if hold is not None:
            self.at_once = self.at_once + 1 if took < min(_AT_ONCE_SECONDS, hold / 2) else 0
            if self.at_once < _AT_ONCE_TIMES:
                return None
        pause = self._policy_pause(reply.retry_after)
        return pause if self.every is None else min(pause, self.every)

    def after_failure(
        self, error: CallError, call: Call, hold: float | None, took: float
    ) -> float | None:
        """The same after a failed poll, which ``took`` so many seconds; raises what is final."""
        polling, now = self.setting.polling, self.setting.clock()
        if hold is not None and says_no_wait(polling, error):
            self.doubt = Doubt()
            self._check_deadline()
            return None
        silent = unanswered(error, took, call.budget)
        fair = not silent or is_fair(self.setting, call.budget, hold or 0.0)
        self.failures.add(error, now, fair=fair)
        if hold is not None and silent:  # a Get may be answered
            self.doubt = Doubt() if fair else None
            self._check_deadline()
            return None
        pause = self.failures.pause(polling, error, now, patient=self.timeout is not None)
        if pause is None and not (error.passing and self._over):
            raise lost(error) from None
        self._check_deadline()
        assert pause is not None
        log_failed_poll(self.name, error, pause)
        return pause

    @property
    def _over(self) -> bool:
        left = self.left
        return left is not None and left <= _TICK_SECONDS

    def _check_deadline(self) -> None:
        if self.timeout is not None and self._over:
            last = self.failures.last
            raise PollTimeout(self.name, self.timeout, self.polls, self.operation, last)

    def _policy_pause(self, retry_after: float | None) -> float:
        setting = self.setting
        elapsed = setting.clock() - self.began
        return setting.polling.pause(self.answered, elapsed, retry_after, setting.chance())
