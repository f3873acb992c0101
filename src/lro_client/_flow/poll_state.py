"""What the polls of one operation have shown, and what follows (spec §11.2-§11.5).

Both ways to wait use it: ``polling``, for one operation by itself, and the poller, which asks
for many together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from lro import Code, Duration, Operation
from lro.wire import WaitOperationRequest
from lro_client._errors import CallError, OperationGone, UnreadableReply
from lro_client._flow.policy import Polling
from lro_client._flow.single import WAIT, FlowConfig, ServerState, is_gone

GRACE_SECONDS: Final = 0.03
"""How long after a deadline the last poll, made at the deadline, may take (spec §11.4)."""

MARGIN_SECONDS: Final = 0.2
"""A Wait ends at least this long before a deadline, so that its reply arrives in time."""

_MAX_RESERVE_SECONDS: Final = 2.0
_RESERVE_SHARE: Final = 0.25
"""With more time left more of it is kept: half for the Wait's reply, half for a Get without one."""

_MAX_ANSWER_SECONDS: Final = 5.0
"""A Wait without a reply this long after its hold has been lost on the way."""

_MAX_AT_ONCE_SECONDS: Final = 0.5
_MAX_AT_ONCE_TIMES: Final = 3
"""A server that answers so many Waits in a row at once does not hold them: it is polled."""

_FAIR_SECONDS: Final = 1.0
"""A server that had less time than this for an answer is not blamed for giving none."""

_WHOLE_BUDGET: Final = 0.9
"""A call that took this share of its budget was ended by it; timers may be a little early."""

_MAX_USELESS_REPLIES: Final = 3
"""How often a reply that is empty or spoilt is asked for again."""

_STRANGER_SECONDS: Final = 60.0
"""How long a server is asked that has never said anything: its address may be wrong."""

_TO_ANY_CALL: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)
"""What a server answers whatever the verb."""

Fits: TypeAlias = Callable[[Operation], bool]
"""Whether an operation that is done has a result as it was declared."""


def any_fits(_: Operation) -> bool:
    """Accept every result."""
    return True


@attrs.frozen
class Failures:
    """Consecutive failed polls of one operation. Times are in seconds by the client's clock."""

    count: int = 0
    since: float = 0.0
    last: CallError | None = None
    """The last failure that says something of the server; an unfair one if there is no other."""
    useless_replies: int = 0
    answered: bool = False
    """Whether there was a good reply before them."""

    def with_one_more(self, error: CallError, now: float, *, fair: bool) -> Failures:
        """These and another; ``fair`` says that the server had the time to answer."""
        useless = isinstance(error, UnreadableReply) and (error.empty or error.spoilt)
        return Failures(
            self.count + 1,
            self.since if self.count else now,
            error if fair or not (self.answered or self.last) else self.last,
            self.useless_replies + useless,
            self.answered,
        )

    def pause(
        self, config: FlowConfig, error: CallError, now: float, *, patient: bool
    ) -> float | None:
        """Seconds until the next poll after the latest ``error``; None: the error is final.

        ``patient``: a deadline bounds the wait, instead of the policy's own patience, or of that
        with a server that has never said anything.
        """
        if self.useless_replies > _MAX_USELESS_REPLIES:
            return None
        polling = config.polling
        most = None if patient else polling.retry.patience_seconds
        if most is not None and not config.server.heard:
            most = min(most, _STRANGER_SECONDS)
        failing, retry = now - self.since, attrs.evolve(polling.retry, patience_seconds=most)
        pause = retry.pause(error, self.count, failing)
        if pause is None:
            return None
        asked = polling.server_delay(error.retry_after)
        # One last poll is made when the patience ends.
        return max(pause, asked if most is None else min(asked, most - failing))


_NO_FAILURES: Final = Failures()
ANSWERED: Final = Failures(answered=True)
"""After a good reply. Thousands of operations share it."""


@attrs.frozen
class UnconfirmedWait:
    """A Wait that failed, or whose reply may be wrong: a Get decides (spec §11.2(4))."""

    reply: Operation | None = None

    def settle(self, server: ServerState, found: Operation, now: float) -> None:
        """Take in the reply of the Get. If it differs, the server has no usable Wait."""
        said = self.reply
        if said is None or (said.done, said.result) != (found.done, found.result):
            server.lacks(WAIT, now)


@attrs.define(eq=False, kw_only=True)
class PollState:
    """What the polls of one operation have shown. Times are in seconds by the client's clock."""

    name: str
    since: float
    """When the operation was first waited for."""
    operation: Operation | None = None
    """The last state seen."""
    polls: int = 0
    """Replies and failures together."""
    failures: Failures = _NO_FAILURES
    doubt: UnconfirmedWait | None = None
    """A Wait that a Get has to confirm."""
    _at_once: int = 0
    """Number of Waits in a row that came back at once, and not done."""

    def may_hold(self, config: FlowConfig) -> bool:
        """Whether the next poll may be a Wait rather than a Get.

        After a failure it is a Get: a proxy on the way may cut every call that is held.
        """
        if not config.polling.wait_first or self.doubt is not None or self.failures.count:
            return False
        return config.server.offers(WAIT, config.clock())

    def accept(self, config: FlowConfig, found: Operation, fits: Fits, *, waited: bool) -> bool:
        """Take in a good reply to a Wait or a Get; False where a Get has to confirm it."""
        config.server.heard = True
        config.server.seen(self.name)
        if waited:
            if found.done and not fits(found):
                self.doubt = UnconfirmedWait(found)
                return False
        elif self.doubt is not None:
            self.doubt.settle(config.server, found, config.clock())
            self.doubt = None
        return True

    def may_come(self, config: FlowConfig) -> bool:
        """Whether what is not found may only be too young."""
        server, now = config.server, config.clock()
        return not self.failures.answered and server.may_come(self.name, now)

    def holds_again(self, hold: float, took: float) -> bool:
        """Whether a Wait may follow, without a pause, one that came back before the end."""
        at_once = took < min(_MAX_AT_ONCE_SECONDS, hold / 2)
        self._at_once = self._at_once + 1 if at_once else 0
        return self._at_once < _MAX_AT_ONCE_TIMES

    def fail(
        self,
        config: FlowConfig,
        error: CallError,
        *,
        hold: float | None,
        took: float,
        budget: float,
    ) -> bool:
        """Take in a failed poll; whether a Get follows at once, since the Wait may be at fault.

        ``hold`` is that of a Wait, None for another verb; ``took`` and ``budget`` are the seconds
        that the call took and might have taken.
        """
        config.server.hear(error)
        if hold is not None and _may_lack_wait(config.polling, error):
            self.doubt = UnconfirmedWait()
            return True
        if is_gone(error) and self.may_come(config):
            error.passing, self.doubt = True, None
        silent = _is_unanswered(error, took, budget)
        fair = budget - (hold or 0.0) >= min(config.call_seconds, _FAIR_SECONDS) or not silent
        self.failures = self.failures.with_one_more(error, config.clock(), fair=fair)
        if hold is None or not silent:
            return False
        self.doubt = UnconfirmedWait() if fair else None
        return True


def hold_within(hold: float, left: float) -> float | None:
    """Seconds to hold a Wait for, given those left to the deadline; None: there is no time."""
    return min(hold, left - _reserve(left)) if left > 2 * MARGIN_SECONDS else None


def wait_budget(config: FlowConfig, hold: float, left: float) -> float:
    """Seconds that a Wait may take in all, so that there is time for a Get if it takes them."""
    answered = hold + min(config.call_seconds, _MAX_ANSWER_SECONDS)
    return min(answered, left - _reserve(left) / 2)


def wait_request(name: str, hold: float) -> WaitOperationRequest:
    """The request that holds a Wait for ``hold`` seconds."""
    return WaitOperationRequest(name, Duration(*divmod(round(hold * 1e9), 1_000_000_000)))


def final_error(error: CallError) -> CallError:
    """The error of a wait that a failed poll has ended: perhaps the operation is gone."""
    if not is_gone(error):
        return error
    gone = OperationGone(error.verb, error.status, error.http_status)
    gone.__cause__ = error
    return gone


def _reserve(left: float) -> float:
    return min(max(left * _RESERVE_SHARE, MARGIN_SECONDS), _MAX_RESERVE_SECONDS)


def _may_lack_wait(polling: Polling, error: CallError) -> bool:
    """Whether a Wait failed so that a Get decides whether it is the verb or the operation.

    Every final failure is such a one, unless the server would say it to any call.
    """
    if error.code in (Code.UNIMPLEMENTED, Code.NOT_FOUND):
        return True
    if isinstance(error, UnreadableReply) and error.empty:
        return True
    final = polling.retry.pause(error, 1, 0.0) is None
    return final and not error.passing and error.code not in _TO_ANY_CALL


def _is_unanswered(error: CallError, took: float, budget: float) -> bool:
    """Whether a call failed because its budget was over before anything was received."""
    local = error.passing and error.http_status is None
    silent = error.code in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE)
    return local and silent and took >= budget * _WHOLE_BUDGET
