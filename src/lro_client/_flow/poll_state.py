"""The outcome of the polls of one operation, and the next steps (spec §11.2-§11.5).

Both ways to wait use this module: ``polling``, for a single operation, and the poller, which
polls many operations together.
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
"""Maximum seconds of the last poll, which is made at the deadline (spec §11.4)."""

MARGIN_SECONDS: Final = 0.2
"""A Wait ends at least this many seconds before a deadline, so that its reply arrives in time."""

_MAX_RESERVE_SECONDS: Final = 2.0
_RESERVE_SHARE: Final = 0.25
"""Share of the remaining time that a Wait keeps free: half for its reply, half for a later Get."""

_MAX_ANSWER_SECONDS: Final = 5.0
"""A Wait counts as lost if no reply has come this many seconds after its timeout."""

_MAX_AT_ONCE_SECONDS: Final = 0.5
_MAX_AT_ONCE_TIMES: Final = 3
"""After this many Waits in a row that the server answered at once, the client polls instead."""

_FAIR_SECONDS: Final = 1.0
"""A server that had fewer seconds than this is not blamed for a missing reply."""

_WHOLE_BUDGET: Final = 0.9
"""A call that took this share of its budget counts as timed out, because timers may fire early."""

_MAX_USELESS_REPLIES: Final = 3
"""Maximum number of retries after replies that are empty or damaged."""

_STRANGER_SECONDS: Final = 60.0
"""A wait fails after this many seconds if the server never replied: its address may be wrong."""

_TO_ANY_CALL: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)
"""Codes of failures that can happen to any verb."""

Fits: TypeAlias = Callable[[Operation], bool]
"""A function that returns True if the result of an operation is of the declared class."""


def any_fits(_: Operation) -> bool:
    """Accept every result."""
    return True


@attrs.frozen(eq=False, repr=False)
class Failures:
    """Consecutive failed polls of one operation. Times are in seconds by the client's clock."""

    count: int = 0
    since: float = 0.0
    last: CallError | None = None
    """The last failure for which the server had enough time, otherwise the first failure."""
    useless_replies: int = 0
    answered: bool = False
    """True if a good reply came before these failures."""

    def with_one_more(self, error: CallError, now: float, *, fair: bool) -> Failures:
        """Return a copy with one more failure.

        ``fair`` is true if the server had enough time to reply.
        """
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
        """Return the pause until the next poll after an ``error``, or None if the error is final.

        ``patient`` is true if a deadline limits the wait. Then the policy's patience does not
        apply. A server that has never replied gets less patience than the policy allows.
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
        # A pause that the server asks for ends when patience ends, so that a last poll follows.
        return max(pause, asked if most is None else min(asked, most - failing))


_NO_FAILURES: Final = Failures()
ANSWERED: Final = Failures(answered=True)
"""The state after a good reply: no failures. Thousands of operations share this object."""


@attrs.frozen(eq=False, repr=False)
class UnconfirmedWait:
    """A Wait that failed, or whose reply may be wrong. A Get decides (spec §11.2(4))."""

    reply: Operation | None = None

    def settle(self, server: ServerState, found: Operation, now: float) -> None:
        """Record that the server lacks Wait, unless the Wait had the same outcome as the Get."""
        said = self.reply
        if said is None or (said.done, said.result) != (found.done, found.result):
            server.lacks(WAIT, now)


@attrs.define(eq=False, kw_only=True, repr=False)
class PollState:
    """The state of the polls of one operation. Times are in seconds by the client's clock."""

    name: str
    since: float
    """When the wait began."""
    operation: Operation | None = None
    """The last known state."""
    polls: int = 0
    """Number of replies and failures."""
    failures: Failures = _NO_FAILURES
    doubt: UnconfirmedWait | None = None
    """A Wait that a Get has to confirm."""
    _at_once: int = 0
    """Number of Waits in a row that returned at once, before the operation ended."""

    def may_hold(self, config: FlowConfig) -> bool:
        """Return True if the next poll can be a Wait.

        After a failure the next poll is a Get, because a proxy may cut off every call that is held.
        """
        if not config.polling.wait_first or self.doubt is not None or self.failures.count:
            return False
        return config.server.offers(WAIT, config.clock())

    def accept(self, config: FlowConfig, found: Operation, fits: Fits, *, waited: bool) -> bool:
        """Take a good reply to a Wait or a Get. Return False if a Get must confirm the reply."""
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
        """Return True if a missing operation may be too new for the replica that replied."""
        server, now = config.server, config.clock()
        return not self.failures.answered and server.may_come(self.name, now)

    def holds_again(self, hold: float, took: float) -> bool:
        """Return True if another Wait can follow without a pause."""
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
        """Record a failed poll. Return True if a Get must follow at once, to check the Wait.

        ``hold`` is the timeout of a Wait, or None for a Get. ``took`` is the duration of the call,
        ``budget`` its maximum. All are in seconds.
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
    """Return the seconds to hold a Wait if ``left`` seconds remain, or None if too few remain."""
    return min(hold, left - _reserve(left)) if left > 2 * MARGIN_SECONDS else None


def wait_budget(config: FlowConfig, hold: float, left: float) -> float:
    """Return the budget of a Wait, which leaves time for a Get."""
    answered = hold + min(config.call_seconds, _MAX_ANSWER_SECONDS)
    return min(answered, left - _reserve(left) / 2)


def wait_request(name: str, hold: float) -> WaitOperationRequest:
    """Return the request of a Wait that is held ``hold`` seconds."""
    return WaitOperationRequest(name, Duration(*divmod(round(hold * 1e9), 1_000_000_000)))


def final_error(error: CallError) -> CallError:
    """Return the error that a wait raises after a final failure of a poll."""
    if not is_gone(error):
        return error
    gone = OperationGone(error.verb, error.status, error.http_status)
    gone.__cause__ = error
    return gone


def _reserve(left: float) -> float:
    return min(max(left * _RESERVE_SHARE, MARGIN_SECONDS), _MAX_RESERVE_SECONDS)


def _may_lack_wait(polling: Polling, error: CallError) -> bool:
    """Return True if a Get must find out whether a Wait failed because the server lacks Wait.

    A Get must follow each final failure, except failures that can happen to any verb.
    """
    if error.code in (Code.UNIMPLEMENTED, Code.NOT_FOUND):
        return True
    if isinstance(error, UnreadableReply) and error.empty:
        return True
    final = polling.retry.pause(error, 1, 0.0) is None
    return final and not error.passing and error.code not in _TO_ANY_CALL


def _is_unanswered(error: CallError, took: float, budget: float) -> bool:
    """Return True if a call failed because nothing was received within its budget."""
    local = error.passing and error.http_status is None
    silent = error.code in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE)
    return local and silent and took >= budget * _WHOLE_BUDGET
