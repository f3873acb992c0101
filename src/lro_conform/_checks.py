"""What a check is, and what came of one: values that the judges of servers and clients share."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from typing import Final

import attrs

HTTP: Final = "http"
GRPC: Final = "grpc"


class Level(enum.StrEnum):
    """How much a rule binds: the words are those of RFC 2119."""

    MUST = "must"
    """Its sources demand it: who breaks it does not conform."""
    SHOULD = "should"
    """Its sources recommend it; a good reason may speak against it."""
    INFO = "info"
    """Worth knowing. Whatever is found is never counted."""


class Verdict(enum.StrEnum):
    """What came of one check."""

    PASSED = "passed"
    FAILED = "failed"
    ABSENT = "absent"
    """The peer does not offer what the check is about, as it may."""
    SKIPPED = "skipped"
    """It could not be judged; the facts say why. This is not a pass."""


@attrs.frozen
class Citation:
    """Where a rule comes from: a document, a place in it, and its address."""

    document: str
    section: str
    url: str

    def __str__(self) -> str:
        return f"{self.document} {self.section}".rstrip()


@attrs.frozen(kw_only=True)
class Check:
    """One rule that a peer is judged by.

    ``id`` is an area and words, such as ``pages.negative-size``. ``says`` is the rule in one
    sentence. With ``optional`` it is about something that a peer may leave out.
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
    """What came of a check over one transport, and the facts that were found, in sentences."""

    check: Check
    transport: str
    verdict: Verdict
    facts: tuple[str, ...] = ()
    seconds: float = 0.0
    required: bool = False
    """Whether it was required, so that a failure counts at any level."""

    def counts(self, strict: bool) -> bool:
        """Whether a must or a required check has failed, or under ``strict`` a should."""
        levels: Collection[Level] = (Level.MUST, Level.SHOULD) if strict else (Level.MUST,)
        return self.verdict is Verdict.FAILED and (self.required or self.check.level in levels)


@attrs.frozen(kw_only=True)
class ConformanceReport:
    """All outcomes of a run against one target, in the order of the checks."""

    target: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    cut: str = ""
    """Why the run ended before all was judged; empty if it did not."""

    def counted(self, *, strict: bool = False) -> tuple[Outcome, ...]:
        """The failures that count: of musts, under ``strict`` also of shoulds."""
        return tuple(one for one in self.outcomes if one.counts(strict))

    @property
    def unjudged(self) -> str:
        """Why the target cannot be said to conform, though nothing failed; empty if it can."""
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
        """How often each verdict was given to checks of this level."""
        return Counter(one.verdict for one in self.outcomes if one.check.level is level)
