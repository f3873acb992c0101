"""Every cited rule exists in docs/reference/specification.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "specification.md"
CITING: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(
        path
        for folder in ("src", "docs", "tests", "examples", "bench")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md"} and path != PAGE
    ),
]

RULE: Final = r"§\d+(?:\.\d+)?(?:\(\d+\))?"
CITED: Final = re.compile(rf"\bspec\s+({RULE}(?:(?:,\s+|\s+to\s+|\s+and\s+|-)(?:{RULE}|\(\d+\)))*)")
"""Matches ``spec §1.8``, ``spec §5.1-§5.4, §5.15`` and ``spec §11.5(2), (3)``."""


def rules() -> set[str]:
    """Return each chapter, section and numbered item of the page, such as 2, 2.8 and 2.8(1)."""
    found, section = set(), ""
    for line in PAGE.read_text("utf-8").splitlines():
        if heading := re.match(r"##+ (\d+(?:\.\d+)?) |- \*\*(\d+\.\d+)\*\* ", line):
            section = heading[1] or heading[2]
            found.add(section)
        elif item := re.match(r"(\d+)\. ", line):
            found.add(f"{section}({item[1]})")
    return found


def cited(text: str) -> list[str]:
    """Return the rules that a text cites."""
    found = []
    for chain in CITED.findall(text):
        for rule in re.findall(rf"{RULE}|\(\d+\)", chain):
            section = found[-1].partition("(")[0] if rule.startswith("(") else ""
            found.append(section + rule.removeprefix("§"))
    return found


def test_each_cited_rule_is_in_the_specification() -> None:
    """Each rule that the code, the docs or the tests cite is in the specification."""
    known, seen, unknown = rules(), set(), []
    for path in CITING:
        for rule in cited(path.read_text("utf-8")):
            seen.add(rule)
            if rule not in known:
                unknown.append(f"{path.relative_to(ROOT)}: {rule}")
    assert unknown == []
    assert len(seen) > 150


def test_rules_cited_by_the_specification_exist() -> None:
    """The specification itself cites only rules that exist."""
    text = re.sub(r"RFC \d+ §[\d.]+", "", PAGE.read_text("utf-8"))
    assert {rule.removeprefix("§") for rule in re.findall(RULE, text)} - {"N.M"} <= rules()


def test_citations_are_read_in_each_form() -> None:
    """A citation may have one rule, several rules, a range, or further items of the last rule."""
    assert cited("(spec §1.8)") == ["1.8"]
    assert cited("spec §5.1-§5.4, §5.15 and §9") == ["5.1", "5.4", "5.15", "9"]
    assert cited("Patience (spec §11.5(2), (3)).") == ["11.5(2)", "11.5(3)"]
    assert cited("RFC 9110 §11.6.1") == []


def test_each_rule_is_numbered_once() -> None:
    text = PAGE.read_text("utf-8")
    sections = re.findall(r"^(?:##+ |- \*\*)(\d+\.\d+)", text, re.MULTILINE)
    assert len(sections) == len(set(sections))
