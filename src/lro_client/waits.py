"""Pauses between polls and retries. You can also use every ``wait_*`` of tenacity."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import tenacity

__all__ = ["Wait", "wait_exponential", "wait_proportional"]

Wait: TypeAlias = "Callable[[tenacity.RetryCallState], float]"
"""A function that takes the retry state of tenacity and returns a pause in seconds.

The state has ``seconds_since_start``, and an ``attempt_number`` that begins with 1.
"""


class _PlainWait(abc.ABC):
    """A wait that depends only on the attempt and the time. It can be added to tenacity's waits."""

    @abc.abstractmethod
    def pause(self, attempt: int, seconds: float, /) -> float:
        """Return the pause after an attempt that ended ``seconds`` after the first one began."""

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """Return the pause for tenacity's retry state."""
        return self.pause(retry_state.attempt_number, retry_state.seconds_since_start or 0.0)

    def __add__(self, other: Any) -> Any:
        import tenacity  # already loaded if ``other`` is a wait of tenacity

        waits: Any = tenacity.wait_combine
        return waits(self, other)

    def __radd__(self, other: Any) -> Any:
        return self if other == 0 else self + other  # sum() begins with 0


class wait_proportional(_PlainWait):  # spelled like tenacity's waits
    """Wait for a share of the elapsed time, at least ``minimum`` and at most ``maximum`` seconds.

    With the default share, the client sees the end of an operation with a delay of at most a
    quarter of the run time.
    """

    def __init__(self, share: float = 0.25, minimum: float = 0.05, maximum: float = 20.0) -> None:
        self.share: float = share
        self.minimum: float = minimum
        self.maximum: float = maximum

    def pause(self, _attempt: int, seconds: float, /) -> float:
        """Return the pause after a reply that came ``seconds`` after the first poll."""
        return min(max(seconds * self.share, self.minimum), self.maximum)


class wait_exponential(_PlainWait):
    """Wait with pauses that grow by a factor, as most public clients do."""

    def __init__(
        self, initial: float = 1.0, multiplier: float = 1.5, maximum: float = 20.0
    ) -> None:
        self.initial: float = initial
        self.multiplier: float = multiplier
        self.maximum: float = maximum

    def pause(self, attempt: int, _seconds: float, /) -> float:
        """Return the pause after an attempt."""
        try:
            pause = self.initial * self.multiplier ** (attempt - 1)
        except OverflowError:
            return self.maximum
        return max(0.0, min(pause, self.maximum))


def pause_of(wait: Wait, attempt: int, seconds: float, error: Exception | None = None) -> float:
    """Return a wait's pause after an attempt that ended ``seconds`` after the first one began.

    A wait of tenacity can read the attempt's outcome: ``error``, or the result None if no error is
    given.
    """
    if isinstance(wait, _PlainWait):
        return wait.pause(attempt, seconds)
    import tenacity  # already loaded if the wait is tenacity's

    state = tenacity.RetryCallState(_retrying(), None, (), {})
    state.attempt_number = attempt
    state.start_time, state.outcome_timestamp = 0.0, seconds
    state.outcome = tenacity.Future(attempt)
    if error is None:
        state.outcome.set_result(None)
    else:
        state.outcome.set_exception(error)
    return float(wait(state))


@functools.cache
def _retrying() -> tenacity.Retrying:
    import tenacity

    return tenacity.Retrying()
