"""Immutable policies for polls and retries (spec §11.2, §11.5)."""

from __future__ import annotations

import math
from typing import Final

import attrs

from lro import Code
from lro.types import ByFields
from lro_client._errors import CallError, UnreadableReply, check
from lro_client.waits import Wait, pause_of, wait_exponential, wait_proportional

_PASSING: Final = frozenset(
    {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.INTERNAL}
)


def is_number(value: object, least: float) -> bool:
    """Return True if a value is a finite number of at least ``least``, and not a bool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and least <= value < math.inf  # type: ignore[operator]  # ``value`` is a number


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Retry(ByFields):
    """Decides which failed calls are retried, when, and how often.

    ``codes`` are the codes that are retried. A connection that fails before a reply counts as
    UNAVAILABLE. If ``transport`` is true, failures of the transport are retried too, whatever their
    code: error pages of proxies, truncated replies and timeouts. ``wait`` is the pause before each
    retry, but the server can ask for a longer pause. ``attempts`` is the maximum number of calls in
    a row (None: no limit). ``patience_seconds`` is the maximum time with only failures (None: no
    limit). A wait with a timeout uses its deadline instead of ``patience_seconds``.

    A single call fails at once if the server asks for a pause of more than ``max_retry_after``
    seconds (None: no limit). The attribute ``retry_after`` of the error is that pause.

    Raises:
        DeclarationError: An argument has the wrong type or is out of range.
    """

    codes: frozenset[Code] = frozenset({Code.UNAVAILABLE})
    transport: bool = False
    wait: Wait = wait_exponential(0.5, 2.0, 10.0)
    attempts: int | None = 5
    patience_seconds: float | None = None
    max_retry_after: float | None = 60.0

    def __attrs_post_init__(self) -> None:
        codes = isinstance(self.codes, frozenset) and all(type(one) is Code for one in self.codes)
        check("codes", self.codes, "a frozenset of lro.Code", fine=codes)
        check("transport", self.transport, "True or False", fine=isinstance(self.transport, bool))
        check("wait", self.wait, "a function, such as wait_exponential()", fine=callable(self.wait))
        attempts = self.attempts is None or _is_count(self.attempts)
        check("attempts", self.attempts, "a number from 1, or None", fine=attempts)
        for name in ("patience_seconds", "max_retry_after"):
            seconds = getattr(self, name)
            fine = seconds is None or is_number(seconds, 0.0)
            check(name, seconds, "seconds from 0, or None", fine=fine)

    def pause(self, error: CallError, attempt: int, failing_seconds: float) -> float | None:
        """Return the minimum pause before the next attempt, or None to give up."""
        said = error.code in self.codes and not isinstance(error, UnreadableReply)
        if not (said or (self.transport and error.passing)):
            return None
        if self.attempts is not None and attempt >= self.attempts:
            return None
        if self.patience_seconds is not None and failing_seconds >= self.patience_seconds:
            return None
        return pause_of(self.wait, attempt, failing_seconds, error)


NO_RETRY: Final = Retry(codes=frozenset())
"""A policy that never retries."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Polling(ByFields):
    """Decides how a client waits for an operation.

    ``wait`` is the pause between polls, and ``jitter`` is the maximum share by which each pause is
    shortened at random. If ``wait_first`` is true and the server has WaitOperation, the client uses
    it, for at most ``hold_seconds`` per call. ``retry`` is the policy for failed polls.
    ``max_retry_after`` is the longest pause, in seconds, that a Retry-After of the server can cause
    (None: no limit). ``connections`` is the maximum number of calls in flight for operations that
    are waited for together.

    Raises:
        DeclarationError: An argument has the wrong type or is out of range.
    """

    wait: Wait = wait_proportional()
    jitter: float = 0.1
    wait_first: bool = True
    hold_seconds: float = 20.0
    retry: Retry = Retry(codes=_PASSING, transport=True, attempts=None, patience_seconds=600.0)
    max_retry_after: float | None = None
    connections: int = 8

    def __attrs_post_init__(self) -> None:
        wait, retry = callable(self.wait), isinstance(self.retry, Retry)
        check("wait", self.wait, "a function, such as wait_proportional()", fine=wait)
        # Most polls do not fail, so a wait that needs an exception belongs in ``retry``.
        plain = not _asks_for_exception(self.wait)
        check("wait", self.wait, "one for polls without an exception", fine=plain)
        jitter = is_number(self.jitter, 0.0) and self.jitter <= 1
        check("jitter", self.jitter, "a share from 0 to 1", fine=jitter)
        first = isinstance(self.wait_first, bool)
        check("wait_first", self.wait_first, "True or False", fine=first)
        hold = is_number(self.hold_seconds, 0.0)
        check("hold_seconds", self.hold_seconds, "seconds from 0", fine=hold)
        check("retry", self.retry, "a Retry", fine=retry)
        longest = self.max_retry_after is None or is_number(self.max_retry_after, 0.0)
        check("max_retry_after", self.max_retry_after, "seconds from 0, or None", fine=longest)
        connections = _is_count(self.connections)
        check("connections", self.connections, "a number from 1", fine=connections)

    def pause(self, polls: int, seconds: float, retry_after: float | None, random: float) -> float:
        """Return the pause until the next poll, after ``polls`` polls in ``seconds``.

        ``retry_after`` is the server's recommendation (spec §11.3). ``random`` is from 0 to 1.
        """
        asked = self.server_delay(retry_after)
        if asked > 0:
            return asked
        plain = pause_of(self.wait, polls, seconds)
        return plain * (1 - self.jitter * random)  # never longer than the pause of ``wait``

    def server_delay(self, retry_after: float | None) -> float:
        """Return the pause in seconds that a server's Retry-After causes, or 0 for no pause."""
        asked = max(retry_after or 0.0, 0.0)
        return asked if self.max_retry_after is None else min(asked, self.max_retry_after)


def _asks_for_exception(wait: object) -> bool:
    """Return True if a wait of tenacity, or a part of it, calls a function with the error."""
    if any(cls.__name__ == "wait_exception" for cls in type(wait).__mro__):
        return True
    parts = (*getattr(wait, "wait_funcs", ()), *getattr(wait, "strategies", ()))
    return any(map(_asks_for_exception, parts))
