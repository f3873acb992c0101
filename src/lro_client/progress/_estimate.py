"""How many seconds are left, from how fast the fraction has grown."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Estimate:
    """Estimates the end of something whose fraction done is told from time to time.

    The rate is that of the recent past: what is older than ``window_seconds`` counts less and
    less. A pause longer than those before it makes the estimate grow; a fraction that goes back
    takes away from what was gained, and where nothing is left of it, all begins anew. ``clock``
    gives seconds that never go back.
    """

    def __init__(
        self, *, window_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window = window_seconds
        self._clock = clock
        self._last: tuple[float, float] | None = None
        self._spent = 0.0
        self._gained = 0.0
        self._gap = 0.0

    def add(self, fraction: float | None, seconds: float | None = None) -> None:
        """Tell that this fraction was done at ``seconds`` of the clock, by default now.

        None and NaN are not known and change nothing; what is below 0 or above 1 is cut off.
        """
        if fraction is None or math.isnan(fraction):
            return
        fraction = min(max(fraction, 0.0), 1.0)
        now = self._clock() if seconds is None else seconds
        if self._last is None:
            self._last = (now, fraction)
            return
        before, had = self._last
        if fraction == had or now < before:  # a pause, or told too late
            return
        fade = math.exp(-(now - before) / self._window)
        self._spent = self._spent * fade + (now - before)
        self._gained = self._gained * fade + (fraction - had)
        self._gap = now - before
        self._last = (now, fraction)
        if self._gained <= 0:
            self._spent = self._gained = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds from now to the estimated end, never negative; None where it is not known."""
        if self._last is None:
            return None
        then, fraction = self._last
        if fraction == 1.0:
            return 0.0
        if not (self._spent > 0 and self._gained > 0):
            return None
        quiet = max(self._clock() - then, 0.0)
        stalled = max(quiet - self._gap, 0.0)  # the next step is overdue by so much
        needed = (1.0 - fraction) * ((self._spent + stalled) / self._gained)
        left = needed - min(quiet, self._gap)
        return max(left, 0.0) if math.isfinite(left) else None
