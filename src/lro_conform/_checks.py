"""Checks and their outcomes, shared by the judges of servers and clients."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from typing import Final

import attrs

HTTP: Final = "http"
GRPC: Final = "grpc"


class Level(enum.StrEnum):
    """The level of a rule, in the words of RFC 2119."""

    MUST = "must"
    """The sources require the rule; a peer that breaks it does not conform."""
    SHOULD = "should"
    """The sources recommend the rule; a peer may have a good reason to break it."""
    INFO = "info"
    """The rule is only information; a failure never counts."""


class Verdict(enum.StrEnum):
    """The verdict of a check."""

    PASSED = "passed"
    FAILED = "failed"
    ABSENT = "absent"
    """The peer does not offer the optional feature of the check."""
    SKIPPED = "skipped"
    """The check could not be judged; the facts say why. This is not a pass."""


@attrs.frozen
class Citation:
    """The source of a rule: a document, a place in it, and its address."""

    document: str
    section: str
    url: str

    def __str__(self) -> str:
        return f"{self.document} {self.section}".rstrip()


@attrs.frozen(kw_only=True)
class Check:
    """One rule by which a peer is judged.

    ``id`` is an area, a dot, and a short name, such as ``pages.negative-size``. ``says`` is the
    rule in one sentence. With ``optional`` the rule concerns a feature that a peer may leave out.
    """

    id: str
    says: str
    level: Level
    sources: tuple[Citation, ...]
    transports: frozenset[str] = frozenset({HTTP, GRPC})
    optional: bool = False

    @property
    def area(self) -> str:
        """The part of the id before the last dot."""
        return self.id.rpartition(".")[0]


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of a check over one transport, with the facts in sentences."""

    check: Check
    transport: str
    verdict: Verdict
    facts: tuple[str, ...] = ()
    seconds: float = 0.0
    required: bool = False
    """True if the check was required, so that a failure counts at any level."""

    def counts(self, strict: bool) -> bool:
        """True if the check failed, and it is required, a MUST, or (if ``strict``) a SHOULD."""
        levels: Collection[Level] = (Level.MUST, Level.SHOULD) if strict else (Level.MUST,)
        return self.verdict is Verdict.FAILED and (self.required or self.check.level in levels)


@attrs.frozen(kw_only=True)
class ConformanceReport:
    """All outcomes of a run against one target, in the order of the checks."""

    target: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    cut: str = ""
    """The reason why the run ended early; empty if the run was complete."""

    def counted(self, *, strict: bool = False) -> tuple[Outcome, ...]:
        """The failures that count: see :attr:`Outcome.counts`."""
        return tuple(one for one in self.outcomes if one.counts(strict))

    @property
    def unjudged(self) -> str:
        """The reason why a run without failures proves no conformance; empty if there is none."""
        if self.cut:
            return f"was not judged whole: {self.cut}"
        if not any(one.verdict in (Verdict.PASSED, Verdict.FAILED) for one in self.outcomes):
            return "was not judged: no check passed and none failed"
        return ""

    def exit_status(self, *, strict: bool = False) -> int:
        """The exit status of the command: 1 if a failure counts, else 2 if ``unjudged``."""
        if self.counted(strict=strict):
            return 1
        return 2 if self.unjudged else 0

    def number(self, level: Level) -> Counter[Verdict]:
        """Return how often each verdict occurs among the checks of this level."""
        return Counter(one.verdict for one in self.outcomes if one.check.level is level)
