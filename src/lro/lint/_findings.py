"""Findings: what is wrong with a method, by which rule, where it stands, and which are allowed.

Spec §8.2 has the rules of a set, spec §8.5 those of a comparison.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import attrs

from lro._base.errors import InvalidArgument


class Severity(enum.StrEnum):
    """Whether a rule is broken (``error``) or a convention (``warning``)."""

    ERROR = "error"
    WARNING = "warning"


def _codes(errors: str, warnings: str) -> dict[str, Severity]:
    found = dict.fromkeys(errors.split(), Severity.ERROR)
    return found | dict.fromkeys(warnings.split(), Severity.WARNING)


LINT_CODES: Final[Mapping[str, Severity]] = _codes(
    """
    missing-operation-info operation-info-not-allowed streaming-response
    response-type-missing metadata-type-missing
    response-type-unresolved metadata-type-unresolved
    response-type-not-imported metadata-type-not-imported
    response-type-not-qualified metadata-type-not-qualified
    """,
    "response-type-empty metadata-type-empty response-type-convention",
)
"""What :func:`lro.lint.lint` may find (spec §8.2)."""

BREAKING_CODES: Final[Mapping[str, Severity]] = _codes(
    """
    response-type-changed metadata-type-changed operation-info-removed method-removed
    return-type-changed field-number-changed
    """,
    "",
)
"""What :func:`lro.lint.breaking` may find: spec §8.5, and numbers of fields."""

UNUSED_ALLOWANCE: Final = "unused-allowance"
SEVERITIES: Final = {
    **LINT_CODES,
    **BREAKING_CODES,
    UNUSED_ALLOWANCE: Severity.WARNING,
}


@attrs.frozen(kw_only=True)
class Finding:
    """One problem of one method.

    ``method`` is its full name, ``message`` a sentence with what was found and what is wanted,
    ``file`` the name of its file in the set. ``line`` and ``column`` are where the method begins,
    both counted from 1; None where the set has no source information.
    """

    method: str
    code: str
    severity: Severity
    message: str
    file: str = ""
    line: int | None = None
    column: int | None = None


@attrs.frozen(kw_only=True)
class Breaking(Finding):
    """A finding of a comparison; ``old`` and ``new`` are the types, where a type has changed."""

    old: str | None = None
    new: str | None = None


def in_order(finding: Finding) -> tuple[str, str, str]:
    """By method, then code (spec §8.2)."""
    return finding.method, finding.code, finding.message


F = TypeVar("F", bound=Finding)


@attrs.frozen
class Allowance:
    """``METHOD:CODE``, ``METHOD`` (any code) or ``*:CODE`` (any method)."""

    entry: str
    method: str
    code: str

    @classmethod
    def parse(cls, entry: str) -> Allowance:
        """Read an entry.

        Raises:
            InvalidArgument: It has another form, or there is no such code.
        """
        method, colon, code = entry.partition(":")
        if not method or " " in entry or (method == "*" and not code) or (colon and not code):
            wanted = "an entry is METHOD:CODE, METHOD or *:CODE"
            raise InvalidArgument("allow", f"{entry!r} cannot be read; {wanted}")
        if code and (code not in SEVERITIES or code == UNUSED_ALLOWANCE):
            known = ", ".join(sorted(set(SEVERITIES) - {UNUSED_ALLOWANCE}))
            raise InvalidArgument("allow", f"{entry!r} has an unknown code; there are {known}")
        return cls(entry, method, code)

    def covers(self, finding: Finding) -> bool:
        """Whether the finding is one of those that are allowed."""
        return self.method in ("*", finding.method) and self.code in ("", finding.code)


def read_allowances(text: str) -> Iterator[str]:
    """The entries of an allow-file: one a line, comments after ``#``, empty lines."""
    for line in text.splitlines():
        entry = line.partition("#")[0].strip()
        if entry:
            yield entry


class Allowances:
    """The entries that concern one kind of check, whose codes are ``codes``.

    One list may serve ``lint`` and ``breaking``: entries with codes of the other are passed over.

    Raises:
        InvalidArgument: An entry cannot be read.
    """

    def __init__(self, entries: Collection[str], codes: Collection[str]) -> None:
        if isinstance(entries, str):
            raise InvalidArgument("allow", f"{entries!r} is one text; give a list of entries")
        parsed = map(Allowance.parse, dict.fromkeys(entries))
        self._entries = [one for one in parsed if not one.code or one.code in codes]

    def apply(self, findings: Iterable[F]) -> Iterator[F | Finding]:
        """What is not allowed; after that, a warning for each entry that took nothing away."""
        used = set()
        for finding in findings:
            covering = [one for one in self._entries if one.covers(finding)]
            used.update(covering)
            if not covering:
                yield finding
        for one in self._entries:
            if one not in used:
                yield Finding(
                    method=one.method,
                    code=UNUSED_ALLOWANCE,
                    severity=SEVERITIES[UNUSED_ALLOWANCE],
                    message=f"the allowance {one.entry!r} matches no finding; remove it",
                )
