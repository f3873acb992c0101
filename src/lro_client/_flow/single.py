"""Single calls with their retries, and the knowledge of a client about its server."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from lro import Code, Operation, Status
from lro.wire import (
    DeleteOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    View,
    WaitOperationRequest,
)
from lro_client._errors import CallError, PathNotServed, empty_reply, too_late, unreadable
from lro_client._flow.policy import NO_RETRY, Polling, Retry
from lro_client._flow.steps import (
    STARTS,
    Call,
    Flow,
    Reply,
    Request,
    Sleep,
    StartRequest,
    YieldValue,
)

WAIT: Final = "wait"
WATCH: Final = "watch"
BATCH: Final = "batch"
LIST: Final = "list"
"""The verbs that a server may offer for waiting. LIST means lists filtered by names."""

RELEARN_SECONDS: Final = 600.0
"""Seconds after which a missing verb is tried again: the server may have been upgraded."""

YOUNG_SECONDS: Final = 10.0
"""Seconds for which a replica of the server may not know a new operation."""

YOUNG_PAUSE_SECONDS: Final = 0.5
"""Seconds until an operation that may be too new is read again."""

_MAX_PAUSE_SECONDS: Final = 30.0
_FORGET_PRESSURE_SECONDS: Final = 10.0
_MAX_FORBIDDEN_TIMES: Final = 12
"""Maximum number of refusals in a row, enough to find one of a thousand names by bisection."""


@attrs.define(eq=False, repr=False)
class ServerState:
    """The knowledge of a client about its server: the verbs that it offers, and its load.

    Times are in seconds by the client's clock. Use the object under the lock of the client's
    registry or in one flow at a time. Elsewhere, only atomic writes are allowed.
    """

    proven: set[str] = attrs.field(factory=set)
    """The verbs that have worked."""
    lacking: dict[str, float] = attrs.field(factory=dict)
    """The verbs that are missing, and the time at which each verb is tried again."""
    paused_until: float = 0.0
    """The time until which the server asked for no calls."""
    last_pause: float = 0.0
    """Seconds of the last pause because of overload."""
    overloaded_at: float = -math.inf
    """The time when the server last reported overload."""
    refused: dict[str, int] = attrs.field(factory=dict)
    """How often in a row a verb was forbidden, perhaps only because of some names."""
    heard: bool = False
    """True once the server has replied."""
    _young: dict[str, float] = attrs.field(factory=dict)
    """Start times, in order, of operations that no reply has contained since their start."""

    def offers(self, verb: str, now: float) -> bool:
        """Return True unless a verb is known to be missing."""
        return now >= self.lacking.get(verb, now)

    def has(self, verb: str) -> None:
        """Note that a verb has worked."""
        self.proven.add(verb)
        self.lacking.pop(verb, None)
        self.refused.pop(verb, None)

    def lacks(self, verb: str, now: float, seconds: float = RELEARN_SECONDS) -> None:
        """Note that a verb is not offered."""
        self.proven.discard(verb)
        self.refused.pop(verb, None)
        self.lacking[verb] = now + seconds

    def forbids(self, verb: str) -> bool:
        """Note that a verb was forbidden. Return True if it seems forbidden for every name."""
        self.refused[verb] = self.refused.get(verb, 0) + 1
        return verb not in self.proven and self.refused[verb] > _MAX_FORBIDDEN_TIMES

    def overloaded(self, asked: float, began: float, now: float) -> None:
        """Note that the server is overloaded (429, 503). Pause for ``asked`` seconds, or longer.

        Each report in a row doubles the pause, from half a second to half a minute. Failures of
        calls that were in flight at the same time count as one report. ``began`` is the time when
        the failed call began.
        """
        if began >= self.overloaded_at:
            self.last_pause = min(max(2 * self.last_pause, 0.5), _MAX_PAUSE_SECONDS)
            self.overloaded_at = now
        # A single reply that asks for a pause of a day must not stop all other calls.
        self.paused_until = max(
            self.paused_until, now + max(min(asked, _MAX_PAUSE_SECONDS), self.last_pause)
        )

    def hear(self, error: CallError) -> None:
        """Note that the server has replied, if the error of a failed call came from the server."""
        self.heard = self.heard or error.http_status is not None or not error.passing

    def started(self, name: str, now: float) -> None:
        """Note that an operation was started."""
        for other, moment in list(itertools.islice(self._young.items(), 2)):
            if moment + YOUNG_SECONDS < now:
                self._young.pop(other, None)
        self._young[name] = now

    def seen(self, name: str) -> None:
        """Note that the server knows an operation, or knew it."""
        self._young.pop(name, None)

    def may_come(self, name: str, now: float) -> bool:
        """Return True if a missing operation may be too new for the replica that replied."""
        return now < self._young.get(name, -math.inf) + YOUNG_SECONDS

    def answered(self, now: float) -> None:
        """Note that a call succeeded. If the last pause was long ago, the next pause is short."""
        self.heard = True
        if self.last_pause and now > self.paused_until + _FORGET_PRESSURE_SECONDS:
            self.last_pause = 0.0


_SERVER_HOLD_SECONDS = 60.0
_MAX_WAIT_SECONDS = 86_400.0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FlowConfig:
    """The configuration of flows: clock, randomness, policies, and knowledge of the server.

    ``call_seconds`` limits each attempt of a call. A Wait may take longer, by the time for which
    the server holds it.
    """

    clock: Callable[[], float]
    chance: Callable[[], float] = random.random
    retry: Retry = Retry()
    polling: Polling = Polling()
    server: ServerState = attrs.field(factory=ServerState)
    call_seconds: float = 30.0


def single(
    config: FlowConfig,
    request: Request,
    headers: Mapping[str, str] | None = None,
    within: float | None = None,
    view: View = "BASIC",
) -> Flow[Reply]:
    """Make one call, with retries as the policy says (spec §11.5(1)).

    A start is retried only if it has a request id; a rerun needs none (spec §3.12). The call and
    its retries together take at most ``within`` seconds.
    """
    retry = config.retry
    if isinstance(request, StartRequest) and not request.request_id:
        retry = NO_RETRY
    budget = config.call_seconds + _held_seconds(request)
    call = Call(request=request, budget=budget, headers=headers or {}, view=view)
    began, attempt, lost = config.clock(), 0, False
    while True:
        attempt += 1
        if within is not None:
            left = began + within - config.clock()
            call = attrs.evolve(call, budget=min(budget, max(left, 0.001)))
        try:
            reply: Reply = yield call
            _learn(config, request, reply)
            return reply
        except CallError as exc:
            config.server.hear(exc)
            if is_gone(exc) and lost and isinstance(request, DeleteOperationRequest):
                return Reply(None)  # an attempt whose reply was lost had deleted it
            early = is_early(config, getattr(request, "name", ""), exc)
            lost = lost or not early
            # A replica that does not have the operation yet counts as unavailable.
            judged = CallError(exc.verb, Status(Code.UNAVAILABLE)) if early else exc
            pause = retry.pause(judged, attempt, config.clock() - began)
            asked = exc.retry_after or 0.0
            most = retry.max_retry_after
            if pause is None or (most is not None and asked > most):
                raise
            pause = max(pause, asked)
            if within is not None and config.clock() + pause >= began + within:
                yield Sleep(max(0.0, began + within - config.clock()))
                raise
        yield Sleep(pause)


def _learn(config: FlowConfig, request: Request, reply: Reply) -> None:
    server, found = config.server, reply.value
    server.heard = True
    if not isinstance(request, STARTS):
        server.seen(getattr(request, "name", ""))
    elif isinstance(found, Operation) and found.name:
        server.started(found.name, config.clock())


def is_gone(error: CallError) -> bool:
    """Return True if a call failed because there is no such operation."""
    return error.code is Code.NOT_FOUND and not isinstance(error, PathNotServed)


def is_early(config: FlowConfig, name: str, error: object) -> bool:
    """Return True if a replica may not yet know an operation that this client just started."""
    gone = isinstance(error, CallError) and is_gone(error)
    return gone and config.server.may_come(name, config.clock())


def _held_seconds(request: Request) -> float:
    if not isinstance(request, WaitOperationRequest):
        return 0.0
    if request.timeout is None:
        return _SERVER_HOLD_SECONDS  # the server's own maximum, by default a minute
    return min(max(request.timeout.total_seconds, 0.0), _MAX_WAIT_SECONDS)


def pages(
    config: FlowConfig,
    request: ListOperationsRequest,
    within: float | None = None,
    view: View = "BASIC",
) -> Flow[None]:
    """Yield the pages of a list, each fetched when it is needed (spec §11.9).

    ``within`` limits the duration of all calls together, in seconds.
    """
    asked = {hash(request.page_token)}
    until = math.inf if within is None else config.clock() + within
    while (now := config.clock()) < until:
        try:
            reply = yield from single(config, request, within=until - now, view=view)
        except CallError as exc:
            if exc.code is Code.DEADLINE_EXCEEDED and config.clock() >= until:
                break  # this error would name only the time that was left for the last call
            raise
        page = reply.value
        assert isinstance(page, ListOperationsResponse)
        yield YieldValue(page)
        if not page.next_page_token:
            return
        if hash(page.next_page_token) in asked:
            text = "the list has no end: its next page has the token of one before"
            raise CallError("ListOperations", Status(Code.UNKNOWN, text))
        asked.add(hash(page.next_page_token))
        request = attrs.evolve(request, page_token=page.next_page_token)
    assert within is not None
    raise too_late("ListOperations", within)


def read(reply: Reply) -> Operation:
    """Return the operation of a reply."""
    assert isinstance(reply.value, Operation)
    return reply.value


def check_operation(call: Call, operation: Operation, http_status: int | None = None) -> None:
    """Refuse a reply without content, or with an operation that cannot be read again.

    Raises:
        UnreadableReply: The operation has no field, or has an error but is not done (spec §2.4), or
            was returned by a start and is in progress without a name.
    """
    if why := unlawful(operation):
        raise unreadable(call.verb, why, http_status)
    if isinstance(call.request, STARTS):
        if not (operation.name or operation.done):
            text = "the reply is not what was asked for: an operation in progress without a name"
            raise unreadable(call.verb, text, http_status)
    elif operation == _NOTHING:
        raise empty_reply(call.verb, "an operation without any field", http_status)


def unlawful(operation: Operation) -> str:
    """Return an empty string, or a message if an operation has an error but is not done."""
    if operation.done or operation.error is None:
        return ""
    text = f"an operation in progress that has an error: {operation.error.message}"
    return f"the reply is not what was asked for: {text}"


_NOTHING: Final = Operation()
