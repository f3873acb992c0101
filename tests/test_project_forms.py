"""The issue forms are valid for GitHub, and the citation file follows its format."""

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


def read(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file."""
    found = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "path", [one for one in FORMS if one.stem != "config"], ids=lambda p: p.stem
)
def test_issue_form_is_valid_for_github(path: Path) -> None:
    """A form has the keys that GitHub requires; each question has a unique id and a label."""
    form = read(path)
    assert all(form[key] for key in ("name", "description", "body"))
    questions = [one for one in form["body"] if one["type"] != "markdown"]
    assert any(one.get("validations", {}).get("required") for one in questions)
    for one in questions:
        assert one["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert one["attributes"]["label"]
        assert re.fullmatch(r"[\w-]+", one["id"])
        if one["type"] in ("dropdown", "checkboxes"):
            options = one["attributes"]["options"]
            assert options
            assert len({str(option) for option in options}) == len(options)
            assert one["type"] == "checkboxes" or all(isinstance(x, str) for x in options)
    assert len({one["id"] for one in questions}) == len(questions) > 0


def test_each_kind_of_issue_has_a_form() -> None:
    """Each kind of issue has a form; the first form names SECURITY.md for vulnerabilities."""
    assert [path.stem for path in FORMS] == ["bug", "config", "feature", "question"]
    assert read(FORMS[1]) == {"blank_issues_enabled": False}
    assert "SECURITY.md" in FORMS[0].read_text("utf-8")


def test_citation_file_has_the_required_keys() -> None:
    """The citation file has the required keys of format 1.2.0, and this release's version."""
    cited = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["cff-version"] == "1.2.0"
    assert all(author.get("name") for author in cited["authors"])
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
