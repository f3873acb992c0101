"""Polls that failed since the last good reply, for one operation (spec §11.5(2), (3))."""

from __future__ import annotations

from typing import Final

import attrs

from lro import Code
from lro_client._errors import CallError, UnreadableReply
from lro_client._flow.policy import Polling

FAIR_SECONDS: Final = 1.0
"""A server that had less time than this for an answer is not blamed for giving none."""

_WHOLE_BUDGET: Final = 0.9
"""A call that took so much of its budget was ended by that; timers may be a little early."""

_EMPTIES: Final = 3
"""So often an empty reply is asked for again."""


@attrs.define
class Failures:
    """What is known of the failures in a row. Times are in seconds by the client's clock."""

    count: int = 0
    since: float = 0.0
    last: CallError | None = None
    """The last one that tells of the server; of an unfair try only if nothing else is known."""
    _empties: int = 0
    _answered: bool = False

    def clear(self) -> None:
        """Take in a good reply."""
        self.count, self._empties, self.last, self._answered = 0, 0, None, True

    def add(self, error: CallError, now: float, *, fair: bool = True) -> None:
        """Take in a failure; ``fair`` says that the server had the time to answer."""
        self.since = self.since if self.count else now
        self.count += 1
        self._empties += isinstance(error, UnreadableReply) and error.empty
        if fair or not (self._answered or self.last):
            self.last = error

    def pause(
        self, polling: Polling, error: CallError, now: float, *, patient: bool
    ) -> float | None:
        """Seconds until the next poll after the latest ``error``; None: it is final.

        ``patient``: a deadline bounds the wait, instead of the policy's own patience.
        """
        if self._empties > _EMPTIES:
            return None
        retry = attrs.evolve(polling.retry, patience_seconds=None) if patient else polling.retry
        pause = retry.pause(error, self.count, now - self.since)
        return None if pause is None else max(pause, polling.server_delay(error.retry_after))


def unanswered(error: CallError, took: float, budget: float) -> bool:
    """Whether a call failed because its budget was over before anything was heard."""
    local = error.passing and error.http_status is None
    silent = error.code in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE)
    return local and silent and took >= budget * _WHOLE_BUDGET
