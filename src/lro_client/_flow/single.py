"""Sequences of single calls, written once: generators that yield what they want done."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import attrs

from lro import (
    Code,
    DeleteOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    Status,
    WaitOperationRequest,
)
from lro_client._errors import CallError, NothingServed
from lro_client._flow.capabilities import Server
from lro_client._flow.policy import NO_RETRY, Polling, Retry
from lro_client._flow.steps import Call, Emit, Flow, Reply, Request, Sleep, StartRequest

_SERVER_HOLD_SECONDS = 60.0
_LONGEST_WAIT_SECONDS = 86_400.0


@attrs.frozen(kw_only=True)
class FlowConfig:
    """What flows need from outside: clock, chance, policies, memory of the server.

    ``call_seconds`` bounds each attempt at a call, of which a Wait may last its hold longer.
    """

    clock: Callable[[], float]
    chance: Callable[[], float] = random.random
    retry: Retry = Retry()
    polling: Polling = Polling()
    server: Server = attrs.field(factory=Server)
    call_seconds: float = 30.0

    @property
    def lanes(self) -> int:
        """How many calls may be in flight for all that is waited for together."""
        return max(1, self.polling.connections - self.server.held)


def single(
    setting: FlowConfig,
    request: Request,
    headers: Mapping[str, str] | None = None,
    within: float | None = None,
    failed: Callable[[CallError], object] = lambda _: None,
) -> Flow[Reply]:
    """One call, retried as the policy says (spec §11.5(1)); a start only with a request id.

    With its retries it takes no longer than ``within`` seconds. Each attempt that fails is told to
    ``failed``.
    """
    retry = setting.retry
    if isinstance(request, StartRequest) and not request.request_id:
        retry = NO_RETRY
    budget = setting.call_seconds + _held_seconds(request)
    call = Call(request=request, budget=budget, headers=headers or {})
    began, attempt = setting.clock(), 0
    while True:
        attempt += 1
        if within is not None:
            left = began + within - setting.clock()
            call = attrs.evolve(call, budget=min(budget, max(left, 0.001)))
        try:
            reply: Reply = yield call
            return reply
        except CallError as exc:
            failed(exc)
            gone = exc.code is Code.NOT_FOUND and not isinstance(exc, NothingServed)
            if gone and attempt > 1 and isinstance(request, DeleteOperationRequest):
                return Reply(None)  # an attempt whose reply was lost has done it
            pause = retry.pause(exc, attempt, setting.clock() - began)
            asked = exc.retry_after or 0.0
            most = retry.max_retry_after
            if pause is None or (most is not None and asked > most):
                raise
            pause = max(pause, asked)
            if within is not None and setting.clock() + pause >= began + within:
                yield Sleep(max(0.0, began + within - setting.clock()))
                raise
        yield Sleep(pause)


def _held_seconds(request: Request) -> float:
    if not isinstance(request, WaitOperationRequest):
        return 0.0
    if request.timeout is None:
        return _SERVER_HOLD_SECONDS  # the server's own maximum holds, by default a minute
    return min(max(request.timeout.total_seconds, 0.0), _LONGEST_WAIT_SECONDS)


def pages(setting: FlowConfig, request: ListOperationsRequest) -> Flow[None]:
    """Shows each page of a list, fetched when it is asked for (spec §11.9)."""
    while True:
        reply = yield from single(setting, request)
        page = reply.value
        assert isinstance(page, ListOperationsResponse)
        yield Emit(page)
        if not page.next_page_token:
            return
        if page.next_page_token == request.page_token:
            text = "the list has no end: its next page has the token of this one"
            raise CallError("ListOperations", Status(Code.UNKNOWN, text))
        request = attrs.evolve(request, page_token=page.next_page_token)


def read(reply: Reply) -> Operation:
    """The operation of a reply that must hold one."""
    assert isinstance(reply.value, Operation)
    return reply.value
