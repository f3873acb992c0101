"""The outcome of the polls of one operation, and the next steps (spec §11.2-§11.5).

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
"""Seconds that the last poll can take, which is made at the deadline (spec §11.4)."""

MARGIN_SECONDS: Final = 0.2
"""A Wait ends at least this long before a deadline, so that its reply arrives in time."""

_MAX_RESERVE_SECONDS: Final = 2.0
_RESERVE_SHARE: Final = 0.25
"""With more time left more of it is kept: half for the Wait's reply, half for a Get without one."""

_MAX_ANSWER_SECONDS: Final = 5.0
"""A Wait without a reply this many seconds after its hold is lost."""

_MAX_AT_ONCE_SECONDS: Final = 0.5
_MAX_AT_ONCE_TIMES: Final = 3
"""A server that answers this many Waits in a row at once does not hold them: poll it."""

_FAIR_SECONDS: Final = 1.0
"""A server that had less time than this is not blamed for a missing answer."""

_WHOLE_BUDGET: Final = 0.9
"""A call that took this share of its budget was ended by it; timers may be a little early."""

_MAX_USELESS_REPLIES: Final = 3
"""Number of retries after a reply that is empty or spoilt."""

_STRANGER_SECONDS: Final = 60.0
"""Seconds for which a server that never replied is called: its address may be wrong."""

_TO_ANY_CALL: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)
"""Codes that do not depend on the verb."""

Fits: TypeAlias = Callable[[Operation], bool]
"""Returns True if the result of an operation is of the declared class."""


def any_fits(_: Operation) -> bool:
    """Accept every result."""
    return True


@attrs.frozen
class Failures:
    """Consecutive failed polls of one operation. Times are in seconds by the client's clock."""

    count: int = 0
    since: float = 0.0
    last: CallError | None = None
    """The last failure that tells about the server; an unfair one if there is no other."""
    useless_replies: int = 0
    answered: bool = False
    """True if a good reply came before them."""

    def with_one_more(self, error: CallError, now: float, *, fair: bool) -> Failures:
        """Return these and another failure; ``fair``: the server had enough time to answer."""
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
        """Return the pause until the next poll after an ``error``; None: the error is final.

        ``patient``: a deadline bounds the wait, instead of the patience of the policy, or of that
        with a server that has never replied.
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
"""No failures after a good reply. Thousands of operations share this object."""


@attrs.frozen
class UnconfirmedWait:
    """A Wait that failed, or whose reply can be wrong; a Get decides (spec §11.2(4))."""

    reply: Operation | None = None

    def settle(self, server: ServerState, found: Operation, now: float) -> None:
        """Compare with the reply of the Get. If it differs, the server has no usable Wait."""
        said = self.reply
        if said is None or (said.done, said.result) != (found.done, found.result):
            server.lacks(WAIT, now)


@attrs.define(eq=False, kw_only=True)
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
    """Number of Waits in a row that returned at once, and not done."""

    def may_hold(self, config: FlowConfig) -> bool:
        """Return True if the next poll can be a Wait.

        After a failure it is a Get: a proxy may cut every call that is held.
        """
        if not config.polling.wait_first or self.doubt is not None or self.failures.count:
            return False
        return config.server.offers(WAIT, config.clock())

    def accept(self, config: FlowConfig, found: Operation, fits: Fits, *, waited: bool) -> bool:
        """Take a good reply to a Wait or a Get; return False if a Get must confirm it."""
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
        """Return True if a missing operation may be too new."""
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
        """Take a failed poll; return True if a Get follows at once, to check the Wait.

        ``hold`` is that of a Wait, or None; ``took`` and ``budget`` are the seconds that the call
        took, and could have taken.
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
    """Return the hold of a Wait with this time left to the deadline; None: there is no time."""
    return min(hold, left - _reserve(left)) if left > 2 * MARGIN_SECONDS else None


def wait_budget(config: FlowConfig, hold: float, left: float) -> float:
    """Return the budget of a Wait, so that time for a Get is left."""
    answered = hold + min(config.call_seconds, _MAX_ANSWER_SECONDS)
    return min(answered, left - _reserve(left) / 2)


def wait_request(name: str, hold: float) -> WaitOperationRequest:
    """Return the request of a Wait that is held ``hold`` seconds."""
    return WaitOperationRequest(name, Duration(*divmod(round(hold * 1e9), 1_000_000_000)))


def final_error(error: CallError) -> CallError:
    """Return the error of a wait that a failed poll has ended."""
    if not is_gone(error):
        return error
    gone = OperationGone(error.verb, error.status, error.http_status)
    gone.__cause__ = error
    return gone


def _reserve(left: float) -> float:
    return min(max(left * _RESERVE_SHARE, MARGIN_SECONDS), _MAX_RESERVE_SECONDS)


def _may_lack_wait(polling: Polling, error: CallError) -> bool:
    """Return True if a Get must decide if a Wait failed because of the verb or the operation.

    That is every final failure, except those that any verb would get.
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
