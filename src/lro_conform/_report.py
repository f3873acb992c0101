"""Reports and lists of checks: as text for people, as JSON, and as JUnit for CI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final
from xml.etree import ElementTree as Xml

import attrs

from lro_conform._checks import Check, ConformanceReport, Level, Outcome, Verdict

FORMATS: Final = ("human", "json", "junit")

_RANK: Final = (Level.MUST, Level.SHOULD, Level.INFO)
_COLOURS: Final = {Level.MUST: "31", Level.SHOULD: "33", Level.INFO: "36"}
"""ANSI colours of failures: red for MUST, yellow for SHOULD, cyan for INFO."""
_NOT_XML: Final = re.compile(r"[^\t\n -\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def select(
    checks: Iterable[Check], *, level: Level = Level.INFO, only: Sequence[str] = ()
) -> list[Check]:
    """Return the checks of a level and of stricter levels: SHOULD includes MUST, INFO includes all.

    ``only`` has ids, areas or patterns such as ``pages.*``; if ``only`` is empty, it has no effect.

    Raises:
        ValueError: An item of ``only`` matches no check.
    """
    known = list(checks)
    wanted = set()
    for pattern in only:
        found = {one.id for one in known if _names(pattern, one)}
        if not found:
            raise ValueError(f"{pattern!r} names no check; --list shows them")
        wanted |= found
    ranks = _RANK[: _RANK.index(level) + 1]
    return [one for one in known if one.level in ranks and (not only or one.id in wanted)]


def _names(pattern: str, check: Check) -> bool:
    return pattern == check.area or fnmatchcase(check.id, pattern)


def as_text(
    report: ConformanceReport, *, strict: bool = False, verbose: bool = False, styled: bool = False
) -> str:
    """Return the report for people: each failure with its facts, then counts.

    With ``verbose`` every check is shown. With ``styled`` failures are in colour.
    """
    lines = []
    for one in report.outcomes:
        if verbose or one.verdict is Verdict.FAILED:
            lines += _lines(one, styled)
    if lines:
        lines.append("")
    skipped = [one for one in report.outcomes if one.verdict is Verdict.SKIPPED]
    for why in dict.fromkeys(fact for one in skipped for fact in one.facts):
        number = sum(why in one.facts for one in skipped)
        lines.append(f"{_counted(number, 'check')} skipped: {why}")
    lines += [_count_line(report, level) for level in _RANK if report.number(level)]
    failed = len(report.counted(strict=strict))
    ending = report.unjudged or "conforms"
    if failed:
        ending = f"does not conform: {_counted(failed, 'failure')}"
    lines.append(f"{report.target} {ending} ({report.seconds:.1f} s)")
    return "\n".join(lines) + "\n"


def _lines(one: Outcome, styled: bool) -> list[str]:
    check = one.check
    mark = f"{one.verdict.upper()} {check.level}"
    if styled and one.verdict is Verdict.FAILED:
        mark = f"\x1b[{_COLOURS[check.level]}m{mark}\x1b[0m"
    found = [f"{mark} {check.id} ({one.transport}): {check.says}"]
    found += [f"    {fact}" for fact in one.facts]
    if one.verdict is Verdict.FAILED:
        found.append(f"    source: {_sources(check)}")
    return found


def _sources(check: Check) -> str:
    return ", ".join(map(str, check.sources))


def _count_line(report: ConformanceReport, level: Level) -> str:
    numbers = report.number(level)
    shown = [f"{numbers[verdict]} {verdict}" for verdict in Verdict if numbers[verdict]]
    return f"{level}: {', '.join(shown)}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def as_json(report: ConformanceReport, *, strict: bool = False) -> str:
    """Return the report as a JSON object; ``status`` is the exit status of the command."""
    counts = {
        str(level): {str(verdict): report.number(level)[verdict] for verdict in Verdict}
        for level in _RANK
    }
    found = {
        "target": report.target,
        "status": report.exit_status(strict=strict),
        "seconds": round(report.seconds, 3),
        "counts": counts,
        "checks": [
            {
                **_described(one.check),
                "transport": one.transport,
                "verdict": str(one.verdict),
                "facts": list(one.facts),
                "seconds": round(one.seconds, 3),
            }
            for one in report.outcomes
        ],
    }
    return json.dumps(found, indent=2) + "\n"


def _described(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "says": check.says,
        "level": str(check.level),
        "optional": check.optional,
        "sources": [attrs.asdict(one) for one in check.sources],
    }


def as_junit(report: ConformanceReport, *, strict: bool = False) -> str:
    """Return the report as JUnit XML: a suite for each transport and area, a case for each check.

    A failure that does not count is a passed case, with the facts in ``system-out``.
    """
    suites: dict[str, list[Outcome]] = {}
    for one in report.outcomes:
        suites.setdefault(f"{one.transport}.{one.check.area}", []).append(one)
    root = Xml.Element("testsuites", name=_xml(report.target), time=f"{report.seconds:.3f}")
    for name, outcomes in suites.items():
        suite = Xml.SubElement(root, "testsuite", name=name, tests=str(len(outcomes)), errors="0")
        suite.set("failures", str(sum(one.counts(strict) for one in outcomes)))
        suite.set("skipped", str(sum(_not_judged(one) for one in outcomes)))
        suite.set("time", f"{sum(one.seconds for one in outcomes):.3f}")
        for one in outcomes:
            _add_case(suite, name, one, strict)
    Xml.indent(root)
    # Written by hand, because the XML module would declare the locale's encoding, not the file's.
    return f"<?xml version='1.0' encoding='UTF-8'?>\n{Xml.tostring(root, 'unicode')}\n"


def _not_judged(one: Outcome) -> bool:
    return one.verdict in (Verdict.SKIPPED, Verdict.ABSENT)


def _add_case(suite: Xml.Element, name: str, one: Outcome, strict: bool) -> None:
    case = Xml.SubElement(
        suite, "testcase", classname=name, name=one.check.id, time=f"{one.seconds:.3f}"
    )
    facts = _xml("\n".join([one.check.says, *one.facts, f"source: {_sources(one.check)}"]))
    if one.counts(strict):
        message = _xml(one.facts[0] if one.facts else one.check.says)
        Xml.SubElement(case, "failure", type=str(one.check.level), message=message).text = facts
    elif _not_judged(one):
        Xml.SubElement(case, "skipped", message=_xml(" ".join([one.verdict, *one.facts])))
    elif one.verdict is Verdict.FAILED:
        Xml.SubElement(case, "system-out").text = f"{one.check.level} failed\n{facts}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def list_as_text(checks: Iterable[Check]) -> str:
    """Return the checks as text for people, two lines each."""
    return "".join(
        f"{one.id} ({one.level}{', optional' if one.optional else ''}; "
        f"{', '.join(sorted(one.transports))}; {_sources(one)})\n    {one.says}\n"
        for one in checks
    )


def list_as_json(checks: Iterable[Check]) -> str:
    """Return the checks as a JSON array."""
    found = [{**_described(one), "transports": sorted(one.transports)} for one in checks]
    return json.dumps(found, indent=2) + "\n"
