"""Every sequence of the client, written once: generators that yield what they want done."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any as Anything

import attrs

from lro import (
    Code,
    DeleteOperationRequest,
    Duration,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    WaitOperationRequest,
)
from lro_client._calls import Call, Flow, Pause, Reply, Request, Show, StartRequest
from lro_client._errors import CallError, OperationGone, PollTimeout
from lro_client._policy import NO_RETRY, Polling, Retry

GRACE_SECONDS = 0.03
"""How long after a deadline the last poll, made at the deadline, may take (spec §11.4)."""

_AT_ONCE_SECONDS = 0.5
_AT_ONCE_TIMES = 3


@attrs.define
class Server:
    """What was learned about a server: whether it offers WaitOperation."""

    waits: bool = True


@attrs.frozen(kw_only=True)
class Setting:
    """What flows need from outside: clock, chance, policies, memory of the server.

    ``call_seconds`` bounds a single call, of which a Wait may last its hold longer.
    """

    clock: Callable[[], float]
    chance: Callable[[], float] = random.random
    retry: Retry = Retry()
    polling: Polling = Polling()
    server: Server = attrs.field(factory=Server)
    call_seconds: float = 30.0


def single(setting: Setting, request: Request) -> Flow[Reply]:
    """One call, retried as the policy says (spec §11.5(1)); a start only with a request id."""
    retry = setting.retry
    if isinstance(request, StartRequest) and not request.request_id:
        retry = NO_RETRY
    seconds = setting.call_seconds
    if isinstance(request, WaitOperationRequest) and request.timeout is not None:
        seconds += request.timeout.total_seconds
    elif isinstance(request, WaitOperationRequest):
        seconds += 60.0  # without a timeout the server's own maximum holds, by default a minute
    began, attempt = setting.clock(), 0
    while True:
        attempt += 1
        try:
            reply: Reply = yield Call(request=request, budget=seconds)
            return reply
        except CallError as exc:
            again = attempt > 1
            if again and isinstance(request, DeleteOperationRequest) and exc.code is Code.NOT_FOUND:
                return Reply(None)  # an attempt whose reply was lost has done it
            pause = retry.pause(exc, attempt, setting.clock() - began)
            if pause is None:
                raise
        yield Pause(pause)


def pages(setting: Setting, request: ListOperationsRequest) -> Flow[None]:
    """Shows each page of a list, fetched when it is asked for (spec §11.9)."""
    while True:
        reply = yield from single(setting, request)
        page = reply.value
        assert isinstance(page, ListOperationsResponse)
        yield Show(page)
        if not page.next_page_token:
            return
        request = attrs.evolve(request, page_token=page.next_page_token)


@attrs.define
class _Watch:
    """The state of one wait for an operation."""

    setting: Setting
    name: str
    timeout: float | None
    began: float
    operation: Operation | None = None
    last_error: CallError | None = None
    polls: int = 0
    answered: int = 0
    failures: int = 0
    failing_since: float | None = None
    at_once: int = 0
    doubt_wait: bool = False

    @property
    def left(self) -> float | None:
        if self.timeout is None:
            return None
        return self.began + self.timeout - self.setting.clock()

    def check_deadline(self) -> None:
        left = self.left
        if left is not None and left <= 0:
            assert self.timeout is not None
            raise PollTimeout(self.name, self.timeout, self.polls, self.operation, self.last_error)

    def cut(self, seconds: float) -> Pause:
        left = self.left
        return Pause(seconds if left is None else max(0.0, min(seconds, left)))

    def call(self, hold: float | None) -> Call:
        left = self.left
        seconds = self.setting.call_seconds + (hold or 0.0)
        hard = left is not None
        if left is not None:
            seconds = min(seconds, max(left, 0.0) + GRACE_SECONDS)
        request: Request = GetOperationRequest(self.name)
        if hold is not None:
            held = hold if left is None else max(0.0, min(hold, left))
            nanos = round(held * 1e9)
            span = Duration(nanos // 1_000_000_000, nanos % 1_000_000_000)
            request = WaitOperationRequest(self.name, span)
        return Call(request=request, budget=seconds, hard=hard)


def until_done(
    setting: Setting, name: str, first: Operation | None, timeout: float | None
) -> Flow[Operation]:
    """Poll until the operation is done (spec §11.2-§11.5); its last state.

    Raises:
        PollTimeout: ``timeout`` seconds are over.
        OperationGone: There is no such operation any more.
        CallError: A poll failed for a reason that does not pass.
    """
    return _watch(setting, name, first, timeout, every=None)


def updates(
    setting: Setting, name: str, first: Operation | None, timeout: float | None, every: float
) -> Flow[Operation]:
    """The same, showing each changed state, looked for at most ``every`` seconds."""
    return _watch(setting, name, first, timeout, every=every)


def _watch(
    setting: Setting,
    name: str,
    first: Operation | None,
    timeout: float | None,
    every: float | None,
) -> Flow[Operation]:
    if first is not None and first.done:
        if every is not None:
            yield Show(first)
        return first
    watch = _Watch(setting, name, timeout, setting.clock(), first)
    polling, server = setting.polling, setting.server
    shown: Operation | None = None
    while True:
        hold = _hold(watch, every) if polling.wait_first and server.waits else None
        if watch.doubt_wait:
            hold = None
        asked = setting.clock()
        watch.polls += 1
        try:
            reply: Reply = yield watch.call(hold)
        except CallError as exc:
            pause = _after_failure(watch, exc, waited=hold is not None)
            if pause is not None:
                yield watch.cut(pause)
            continue
        operation = _seen(watch, reply)
        if every is not None and operation != shown:
            shown = operation
            yield Show(operation)
        if operation.done:
            return operation
        watch.check_deadline()
        pause = _after_reply(watch, reply, hold, setting.clock() - asked, every)
        if pause is not None:
            yield watch.cut(pause)


def _hold(watch: _Watch, every: float | None) -> float:
    if every is None:
        return watch.setting.polling.hold_seconds
    if watch.answered == 0:
        return 0.0  # the first state is shown at once
    return min(every, _policy_pause(watch, None))


def _seen(watch: _Watch, reply: Reply) -> Operation:
    operation = reply.value
    assert isinstance(operation, Operation)
    if watch.doubt_wait:  # Wait was not found, yet the operation is there (spec §11.2(4))
        watch.setting.server.waits = watch.doubt_wait = False
    watch.operation = operation
    watch.answered += 1
    watch.failures, watch.failing_since, watch.last_error = 0, None, None
    return operation


def _after_reply(
    watch: _Watch, reply: Reply, hold: float | None, took: float, every: float | None
) -> float | None:
    if hold is not None:
        if every is not None and hold == 0.0:
            return None
        if took >= min(_AT_ONCE_SECONDS, hold / 2):
            watch.at_once = 0
            return None
        watch.at_once += 1
        if watch.at_once < _AT_ONCE_TIMES:
            return None
    pause = _policy_pause(watch, reply.retry_after)
    return pause if every is None else min(pause, every)


def _policy_pause(watch: _Watch, retry_after: float | None) -> float:
    setting = watch.setting
    elapsed = setting.clock() - watch.began
    return setting.polling.pause(watch.answered, elapsed, retry_after, setting.chance())


def _after_failure(watch: _Watch, error: CallError, *, waited: bool) -> float | None:
    """Seconds to wait before the next poll, None for none; raises what is final."""
    if waited:
        if error.code is Code.UNIMPLEMENTED:
            watch.setting.server.waits = False
            return None
        if error.code is Code.NOT_FOUND:
            watch.doubt_wait = True
            return None
    if error.code is Code.NOT_FOUND:
        raise OperationGone(error.verb, error.status, error.http_status) from error
    now = watch.setting.clock()
    watch.last_error = error
    watch.failures += 1
    if watch.failing_since is None:
        watch.failing_since = now
    retry = watch.setting.polling.retry
    pause = retry.pause(error, watch.failures, now - watch.failing_since)
    if pause is None and watch.left is not None and watch.left <= 0 and error.passing:
        pause = 0.0  # cut off by our own deadline, which is what is told
    if pause is None:
        raise error
    watch.check_deadline()
    return pause


def read(reply: Anything) -> Operation:
    """The operation of a reply that must hold one."""
    operation = reply.value
    assert isinstance(operation, Operation)
    return operation
