"""Findings that a project has decided to live with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

import attrs

from lro._base.errors import InvalidArgument
from lro.lint._finding import SEVERITIES, UNUSED_ALLOWANCE, Finding

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
