"""Waiting for one operation: hold a Wait, or poll (spec §11.2-§11.5)."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from lro import (
    Code,
    Duration,
    GetOperationRequest,
    InvalidArgument,
    Operation,
    WaitOperationRequest,
)
from lro_client._calls import Call, Flow, Pause, Reply, Request, Show
from lro_client._errors import CallError, OperationGone, PollTimeout
from lro_client._flows import Setting, read
from lro_client._servers import WAIT
from lro_client._tracing import log_failed_poll

GRACE_SECONDS = 0.03
"""How long after a deadline the last poll, made at the deadline, may take (spec §11.4)."""

MARGIN_SECONDS = 0.2
"""A Wait is held until so long before a deadline, so that its reply arrives in time."""

_TICK_SECONDS = 1e-6
"""So far a sleep may end before its time, without one more poll for it."""

_AT_ONCE_SECONDS = 0.5
_AT_ONCE_TIMES = 3


def until_done(
    setting: Setting,
    name: str,
    first: Operation | None,
    timeout: float | None,
    polled: Callable[[], object] = lambda: None,
) -> Flow[Operation]:
    """Poll until the operation is done (spec §11.2-§11.5); its last state. Each is ``polled``.

    Raises:
        PollTimeout: ``timeout`` seconds are over.
        OperationGone: There is no such operation any more.
        CallError: A poll failed for a reason that does not pass.
    """
    return _watch(setting, name, first, timeout, None, polled)


def updates(
    setting: Setting,
    name: str,
    first: Operation | None,
    timeout: float | None,
    every: float,
    polled: Callable[[], object] = lambda: None,
) -> Flow[Operation]:
    """The same, showing each changed state, looked for at most ``every`` seconds.

    Raises:
        InvalidArgument: ``every`` is not more than 0.
        PollTimeout, OperationGone, CallError: As for :func:`until_done`.
    """
    if not every > 0:
        raise InvalidArgument("every", f"must be more than 0 seconds, got {every!r}")
    return _watch(setting, name, first, timeout, every, polled)


def _watch(
    setting: Setting,
    name: str,
    first: Operation | None,
    timeout: float | None,
    every: float | None,
    polled: Callable[[], object],
) -> Flow[Operation]:
    if first is not None and first.done:
        if every is not None:
            yield Show(first)
        return first
    watch = _Watch(setting, name, timeout, every, setting.clock(), first)
    shown: Operation | None = None
    while True:
        hold = watch.hold()
        asked = setting.clock()
        watch.polls += 1
        polled()
        try:
            reply: Reply = yield watch.call(hold)
        except CallError as exc:
            pause = watch.after_failure(exc, waited=hold is not None)
        else:
            operation = watch.seen(reply)
            if every is not None and operation != shown:
                shown = operation
                yield Show(operation)
            if operation.done:
                return operation
            pause = watch.after_reply(reply, hold, setting.clock() - asked)
        if pause is not None:
            yield watch.cut(pause)


@attrs.define
class _Watch:
    """The state of one wait for an operation, and what it decides; ``every`` as for updates."""

    setting: Setting
    name: str
    timeout: float | None
    every: float | None
    began: float
    operation: Operation | None = None
    last_error: CallError | None = None
    polls: int = 0
    answered: int = 0
    failures: int = 0
    failing_since: float = 0.0
    at_once: int = 0
    doubt_wait: bool = False

    @property
    def left(self) -> float | None:
        """Seconds to the deadline."""
        if self.timeout is None:
            return None
        return self.began + self.timeout - self.setting.clock()

    def hold(self) -> float | None:
        """Seconds that the server may hold the next poll; None for a plain Get."""
        polling = self.setting.polling
        if not polling.wait_first or self.doubt_wait:
            return None
        if not self.setting.server.offers(WAIT, self.setting.clock()):
            return None
        if self.failures:  # it may be a proxy on the way that will not have a call held
            return None
        hold, left = polling.hold_seconds, self.left
        if self.every is not None:
            # The first state is shown at once.
            hold = min(self.every, self._policy_pause(None)) if self.answered else 0.0
        if left is None:
            return hold
        return min(hold, left - MARGIN_SECONDS) if left > 2 * MARGIN_SECONDS else None

    def call(self, hold: float | None) -> Call:
        """The next poll."""
        request: Request = GetOperationRequest(self.name)
        seconds = self.setting.call_seconds + (hold or 0.0)
        if hold is not None:
            span = divmod(round(hold * 1_000_000_000), 1_000_000_000)
            request = WaitOperationRequest(self.name, Duration(*span))
        left = self.left
        if left is None:
            return Call(request=request, budget=seconds)
        # Past the deadline the last moment is for a Get instead of a Wait that was refused.
        return Call(request=request, budget=min(seconds, max(left + GRACE_SECONDS, 0.001)))

    def cut(self, seconds: float) -> Pause:
        """A pause, which ends at the deadline at the latest."""
        left = self.left
        return Pause(seconds if left is None else max(0.0, min(seconds, left)))

    def seen(self, reply: Reply) -> Operation:
        """Take in a good reply."""
        if self.doubt_wait:  # Wait was not found, yet the operation is there (spec §11.2(4))
            self.setting.server.lacks(WAIT, self.setting.clock())
            self.doubt_wait = False
        self.operation = read(reply)
        self.answered += 1
        self.failures, self.last_error = 0, None
        return self.operation

    def after_reply(self, reply: Reply, hold: float | None, took: float) -> float | None:
        """Seconds to wait before the next poll, None for none."""
        self._check_deadline()
        if hold is not None:
            self.at_once = self.at_once + 1 if took < min(_AT_ONCE_SECONDS, hold / 2) else 0
            if self.at_once < _AT_ONCE_TIMES:
                return None
        pause = self._policy_pause(reply.retry_after)
        return pause if self.every is None else min(pause, self.every)

    def after_failure(self, error: CallError, *, waited: bool) -> float | None:
        """The same after a failed poll; raises what is final."""
        if waited and error.code is Code.UNIMPLEMENTED:
            self.setting.server.lacks(WAIT, self.setting.clock())
            return None
        if waited and error.code is Code.NOT_FOUND:
            self.doubt_wait = True
            return None
        if error.code is Code.NOT_FOUND:
            raise OperationGone(error.verb, error.status, error.http_status) from error
        now = self.setting.clock()
        self.failing_since = self.failing_since if self.failures else now
        self.failures += 1
        self.last_error = error
        pause = self._retry_pause(error, now - self.failing_since)
        if pause is None and not (error.passing and self._over):
            raise error
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
            raise PollTimeout(self.name, self.timeout, self.polls, self.operation, self.last_error)

    def _policy_pause(self, retry_after: float | None) -> float:
        setting = self.setting
        elapsed = setting.clock() - self.began
        return setting.polling.pause(self.answered, elapsed, retry_after, setting.chance())

    def _retry_pause(self, error: CallError, failing_seconds: float) -> float | None:
        polling = self.setting.polling
        retry = polling.retry
        if self.timeout is not None:  # the deadline is the patience (spec §11.5(2))
            retry = attrs.evolve(retry, patience_seconds=None)
        pause = retry.pause(error, self.failures, failing_seconds)
        return None if pause is None else max(pause, polling.honoured(error.retry_after))
