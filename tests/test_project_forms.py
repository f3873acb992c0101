"""The forms by which people reach the project are ones that their readers accept."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

yaml: Any = pytest.importorskip("yaml")

ROOT: Final = Path(__file__).resolve().parent.parent
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS: Final = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
NEEDS: Final = {
    "markdown": {"value"},
    "textarea": {"label"},
    "input": {"label"},
    "dropdown": {"label", "options"},
    "checkboxes": {"label", "options"},
}
"""What the attributes of each element must have, by GitHub's syntax for its form schema."""


def read(path: Path) -> dict[str, Any]:
    """A YAML file that is one mapping."""
    found = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def mistakes(form: dict[str, Any]) -> list[str]:
    """What GitHub would refuse in a form of an issue."""
    found = [f"no {key}" for key in ("name", "description", "body") if not form.get(key)]
    ids = []
    for element in form.get("body", []):
        kind, attributes = element.get("type"), element.get("attributes", {})
        missing = NEEDS.get(kind, {"type"}) - {key for key, value in attributes.items() if value}
        found += [f"{kind} without {key}" for key in sorted(missing)]
        options = attributes.get("options", [])
        if not all(isinstance(option, str) for option in options) or len(set(options)) < len(
            options
        ):
            found.append(f"{kind} with options that are no texts, or the same")
        if kind != "markdown":
            ids.append(str(element.get("id", "")))
    if not ids:
        found.append("no question")
    found += [f"id {one!r}" for one in ids if not re.fullmatch(r"[\w-]+", one)]
    return found + [f"id {one!r} twice" for one in sorted(set(ids)) if ids.count(one) > 1]


@pytest.mark.parametrize(
    "path", [one for one in FORMS if one.stem != "config"], ids=lambda p: p.stem
)
def test_form_of_issues_is_one_that_github_takes(path: Path) -> None:
    """It has what is required, and each question an id of its own and a label."""
    form = read(path)
    assert mistakes(form) == []
    assert any(element.get("validations", {}).get("required") for element in form["body"])


def test_wrong_form_is_found() -> None:
    """The test above would fail for each of these."""
    asked = {"type": "input", "id": "a", "attributes": {"label": "A"}}
    form = {"name": "N", "description": "D", "body": [asked]}
    assert mistakes(form) == []
    assert mistakes({"name": "N", "body": [asked]}) == ["no description"]
    assert mistakes(form | {"body": [asked, asked]}) == ["id 'a' twice"]
    assert mistakes(form | {"body": [{**asked, "attributes": {}}]}) == ["input without label"]
    assert mistakes(form | {"body": [{**asked, "type": "text"}]}) == ["text without type"]
    choice = {"type": "dropdown", "id": "b c", "attributes": {"label": "B", "options": [True]}}
    said = ["dropdown with options that are no texts, or the same", "id 'b c'"]
    assert mistakes(form | {"body": [choice]}) == said
    text = {"type": "markdown", "attributes": {"value": "V"}}
    assert mistakes(form | {"body": [text]}) == ["no question"]


def test_no_issue_is_without_a_form() -> None:
    """Each kind has its own; holes in security are reported elsewhere, which the first one says."""
    assert [path.stem for path in FORMS] == ["bug", "config", "feature", "question"]
    assert read(FORMS[1]) == {"blank_issues_enabled": False}
    assert "SECURITY.md" in FORMS[0].read_text("utf-8")


def test_citation_has_what_is_required() -> None:
    """The keys that version 1.2.0 of the format requires, and the facts of this release."""
    cited = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["cff-version"] == "1.2.0"
    assert all(author.get("name") for author in cited["authors"])
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
