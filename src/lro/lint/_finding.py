"""Findings: what is wrong with a method, by which rule, and where it stands (spec §8.2, §8.5)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs


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
