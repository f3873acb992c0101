"""Checks of what callers saw against the promises that hold whichever server dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

import lro
from tests.chaos.stories import Journal, Sight, Story
from tests.chaos.works import MAX_LOST, Effect, answer_to, effects

CLOSING = frozenset({"stopped", "fenced", "refused", "end", "died"})
"""Log entries after which an attempt does no more work in its process."""


@attrs.frozen(kw_only=True)
class Facts:
    """What the harness knows of a trial besides the journal. Times are monotonic, in seconds.

    - ``silent``: when each server died, or was frozen for longer than its lease.
    - ``drained``: servers that got SIGTERM and may have released work before they stopped.
    - ``death``: when the server that is judged died or was frozen.
    - ``awake``: when the frozen server was thawed.
    - ``since``: when a server that could take over the work was ready.
    - ``limit``: how long callers may wait for the state of the work after ``death`` and ``since``.
      The seconds that ``stalled`` returns do not count.
    """

    folder: Path
    silent: Mapping[int, float]
    frozen: frozenset[int] = frozenset()
    drained: frozenset[int] = frozenset()
    since: float = 0.0
    death: float = math.inf
    awake: float = math.inf
    limit: float = math.inf
    stalled: Callable[[float, float], float] = lambda *_: 0.0


@attrs.frozen
class Verdict:
    """The violations in a trial, and how long callers waited to learn the state of lost work."""

    violations: tuple[str, ...]
    seconds_to_truth: tuple[float, ...] = ()
    late_writes: int = 0
    """The number of refused late writes of a frozen server."""


def judge(journal: Journal, facts: Facts) -> Verdict:
    """Check a trial that has ended."""
    violations: list[str] = []
    spans: list[float] = []
    for story in journal.stories.values():
        judged = _Judged(story, facts)
        violations += [f"{story.text} {story.name}: {fault}" for fault in judged.faults()]
        span = judged.seconds_to_truth()
        if span is not None:
            spans.append(span)
            if span > facts.limit:
                violations.append(f"{story.text} {story.name}: no truth for {span:.2f} s")
    return Verdict(tuple(violations), tuple(spans))


class _Judged:
    def __init__(self, story: Story, facts: Facts) -> None:
        self._story = story
        self._facts = facts
        self._log = effects(facts.folder, story.name) if story.name else []
        self._begun = [e for e in self._log if e.what == "begin" and not self._dreamt(e)]

    def _dreamt(self, begin: Effect) -> bool:
        # While a process is frozen, other processes may do all its work. The thawed process does
        # not know of their work until the store refuses a write.
        if begin.server not in self._facts.frozen:
            return False
        done = self._story.first_done
        over = done is not None and done.received < begin.at
        return over or any(e.at < begin.at and e.attempt > begin.attempt for e in self._log)

    def faults(self) -> Iterator[str]:
        story = self._story
        yield from story.faults
        if len(story.names) > 1:
            yield f"one start has {len(story.names)} operations"
        if not story.names:
            return
        yield from self._order()
        yield from self._work()
        last = story.first_done
        if last is None:
            if not story.settled:
                yield "never ended"
        else:
            yield from self._truth(last)

    # -- what callers saw -------------------------------------------------------------------------

    def _order(self) -> Iterator[str]:
        # If two calls overlapped, either may have come first.
        story = self._story
        by_end = sorted(story.sights, key=lambda sight: sight.received)
        known, index, attempt = None, 0, 0
        for sight in sorted(story.sights, key=lambda sight: sight.sent):
            while by_end[index].received < sight.sent:
                before = by_end[index]
                known = known or (before if before.done else None)
                attempt = max(attempt, before.metadata.attempt)
                index += 1
            if sight.operation is None:
                yield from self._missing(sight)
                continue
            if story.deleted_at is not None and sight.sent > story.deleted_at:
                yield "came back after it was deleted"
            if known is not None and sight.operation != known.operation:
                yield f"changed after its end: {known.operation} to {sight.operation}"
            if sight.metadata.attempt < attempt:
                yield f"went back from attempt {attempt} to {sight.metadata.attempt}"
        ends = [sight.operation for sight in story.sights if sight.done]
        if any(end != ends[0] for end in ends):
            yield f"ended twice: {ends}"

    def _missing(self, sight: Sight) -> Iterator[str]:
        story = self._story
        if story.delete_asked or (story.named_at or math.inf) > sight.sent:
            return
        if story.kind != "brief":
            yield "vanished"
        elif story.first_done is None and not self._may_have_ended():
            yield "expired in progress"

    def _may_have_ended(self) -> bool:
        """Whether the operation may have ended without any caller seeing its end."""
        if any(effect.what in CLOSING for effect in self._log):
            return True
        cancelled_before_it_began = self._story.cancel_asked and not self._begun
        return cancelled_before_it_began or len(self._begun) > MAX_LOST

    # -- what the work did ------------------------------------------------------------------------

    def _work(self) -> Iterator[str]:
        attempts = [effect.attempt for effect in self._begun]
        if len(set(attempts)) < len(attempts) or attempts != sorted(attempts):
            yield f"begun in the order of attempts {attempts}"
        if any(effect.text != self._story.text for effect in self._log):
            yield "did the work of another request"
        for before, after in zip(self._begun, self._begun[1:], strict=False):
            yield from self._succession(before, after)
        done = self._story.first_done
        if done is not None and any(effect.at > done.received for effect in self._begun):
            yield "begun again after its end"

    def _succession(self, before: Effect, after: Effect) -> Iterator[str]:
        if self._story.kind in ("once", "alone"):
            yield f"begun twice, though it must not be: {before}, {after}"
        if before.server not in self._facts.drained and not self._over(before, after.at):
            yield f"done by two at once: {before}, {after}"

    def _over(self, begin: Effect, moment: float) -> bool:
        """Return whether the attempt that began with this entry had ended by this moment."""
        if self._facts.silent.get(begin.server, math.inf) < moment:
            return True
        return any(
            e.attempt == begin.attempt and e.what in CLOSING and e.at < moment for e in self._log
        )

    # -- how operations ended ---------------------------------------------------------------------

    def _truth(self, sight: Sight) -> Iterator[str]:
        operation, story = sight.operation, self._story
        assert operation is not None
        error = operation.error
        if error is None:
            yield from self._success(operation)
        elif error.code == lro.Code.CANCELLED:
            if not story.cancel_asked:
                yield "cancelled, though no caller asked"
            if self._begun and not self._over(self._begun[-1], sight.received):
                yield "cancelled while its work went on"
        elif error.code == lro.Code.FAILED_PRECONDITION:
            if not any(effect.what == "refused" for effect in self._log):
                yield "failed as no attempt has"
        elif is_lost(operation):
            yield from self._lost(sight)
        else:
            yield f"ended with {error}"

    def _success(self, operation: lro.Operation) -> Iterator[str]:
        response = operation.response
        payload = response.payload if response is not None else None
        if not isinstance(payload, dict):
            yield f"ended with the response {response}"
            return
        if payload.get("parts") != list(answer_to(self._story.text)):
            yield f"has the wrong response {payload}"
        attempt = payload.get("attempt")
        if not any(e.what == "end" and e.attempt == attempt for e in self._log):
            yield f"has the response of attempt {attempt}, which never ended"
        if self._begun and attempt != self._begun[-1].attempt:
            yield f"has the response of attempt {attempt}, which had lost it"

    def _lost(self, sight: Sight) -> Iterator[str]:
        if self._story.kind in ("again", "brief") and len(self._begun) <= MAX_LOST:
            yield "given up, though its work may run again"
        last = self._begun[-1] if self._begun else None
        if last is None or last.server in self._facts.drained:  # drained servers report the loss
            return
        alive = self._facts.silent.get(last.server, math.inf) > sight.received
        if alive and not any(effect.what == "died" for effect in self._log):
            yield f"its worker counts as lost and is alive: {last}"

    # -- when callers knew ------------------------------------------------------------------------

    def seconds_to_truth(self) -> float | None:
        """Return the seconds from a death to the news of lost work; None if no work was lost."""
        story, death = self._story, self._facts.death
        fatal = [effect.at for effect in self._log if effect.what == "died"]
        if fatal and death == math.inf:  # only a child died
            death = fatal[-1]
        if death == math.inf or story.asked_at > death:
            return None
        if story.named_at is None or story.named_at > self._facts.awake:
            return None  # the start may not have been stored
        done = story.first_done
        if done is not None and done.received <= death:
            return None
        if story.delete_asked or story.kind == "brief":
            return None  # callers may never see the end
        working = [effect for effect in self._begun if effect.at <= death]
        if not fatal and working and working[-1].server not in self._facts.silent:
            return None
        since = max(death, self._facts.since, story.started_at)
        # A new process may take long to start, so its start counts as the start of its attempt.
        again = [e.born if e.born > since else e.at for e in self._begun if e.at > death]
        known_at = min([*again, math.inf if done is None else done.received])
        # Work that has lost several workers waits before its next attempt, each time twice as long.
        pause = 2.0 ** (len(fatal) - 1) if len(fatal) > 1 else 0.0
        return max(0.0, known_at - since - pause - self._facts.stalled(since, known_at))


def is_lost(operation: lro.Operation) -> bool:
    details = operation.error.details if operation.error is not None else ()
    payload = details[0].payload if details else None
    return isinstance(payload, dict) and payload.get("reason") == "WORKER_LOST"
