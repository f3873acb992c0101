"""What a client has learned of its server, and how politely it asks: one budget per server."""

from __future__ import annotations

import math
from typing import Final

import attrs

WAIT: Final = "wait"
WATCH: Final = "watch"
BATCH: Final = "batch"
LIST: Final = "list"
"""What a server may offer for waiting. For LIST: lists that are filtered by names."""

RELEARN_SECONDS: Final = 600.0
"""What a server did not offer is tried again after so long: it may be another release by then."""

_SLOWEST_SECONDS: Final = 30.0
_QUICK_SECONDS: Final = 10.0
_FORBIDDEN_TIMES: Final = 12
"""Enough to find one name among a thousand by halves."""


@attrs.define
class Server:
    """What was learned about a server: which verbs it offers, and whether it is under pressure.

    Times are in seconds by the client's clock. Touched under the lock of the client's table, or by
    one flow at a time, but for what is written in one step.
    """

    proven: set[str] = attrs.field(factory=set)
    """What has worked."""
    lacking: dict[str, float] = attrs.field(factory=dict)
    """What is not offered, and until when that is believed."""
    until: float = 0.0
    """Nothing is asked before this moment: the server said so."""
    slowed: float = 0.0
    """The last pause that was made for it."""
    pressed_at: float = -math.inf
    """When that was."""
    refused: dict[str, int] = attrs.field(factory=dict)
    """How often in a row a verb was forbidden, which may be for some of the names alone."""
    held: int = 0
    """How many waits have a call for themselves now."""

    def offers(self, verb: str, now: float) -> bool:
        """Whether a verb is offered, as far as is known."""
        return now >= self.lacking.get(verb, now)

    def has(self, verb: str) -> None:
        """A verb has worked."""
        self.proven.add(verb)
        self.lacking.pop(verb, None)
        self.refused.pop(verb, None)

    def lacks(self, verb: str, now: float, seconds: float = RELEARN_SECONDS) -> None:
        """A verb is not offered."""
        self.proven.discard(verb)
        self.refused.pop(verb, None)
        self.lacking[verb] = now + seconds

    def forbids(self, verb: str) -> bool:
        """A verb was forbidden; whether so often that it seems to be for every name."""
        self.refused[verb] = self.refused.get(verb, 0) + 1
        return verb not in self.proven and self.refused[verb] > _FORBIDDEN_TIMES

    def pressed(self, asked: float, began: float, now: float) -> None:
        """The server has too much to do (429, 503): ask nothing for ``asked`` seconds, or longer.

        Each time in a row doubles the pause, from half a second to half a minute. Calls that were
        in flight together are one time: ``began`` is when this one was made.
        """
        if began >= self.pressed_at:
            self.slowed = min(max(2 * self.slowed, 0.5), _SLOWEST_SECONDS)
            self.pressed_at = now
        # What one answer asks for is no reason to ask nothing else for a day.
        self.until = max(self.until, now + max(min(asked, _SLOWEST_SECONDS), self.slowed))

    def answered(self, now: float) -> None:
        """A call went well: forget the pressure, unless it was a moment ago."""
        if self.slowed and now > self.until + _QUICK_SECONDS:
            self.slowed = 0.0
