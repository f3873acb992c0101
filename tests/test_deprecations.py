"""Each deprecation in the source says since when, until when, and what to use instead."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
MARKS: Final = {"DeprecationWarning", "PendingDeprecationWarning", "deprecated"}
_RELEASE: Final = r"(\d+)\.(\d+)\.0"
FACTS: Final = re.compile(
    rf"\S.* (?:is|are) deprecated since {_RELEASE} and ends? with {_RELEASE}: use \S"
)
EXAMPLE: Final = "lro.Old is deprecated since 0.3.0 and ends with 0.5.0: use lro.New"


def deprecations(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line of each deprecation, and its text; empty if it is not of the form of the policy."""
    texts: dict[int, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn"),
                args=[ast.Constant(value=str(text)), ast.Name(id="DeprecationWarning") as mark],
                keywords=[ast.keyword(arg="stacklevel")],
            ):
                texts[id(mark)] = text
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn"),
                args=[ast.JoinedStr() as filled, ast.Name(id="DeprecationWarning") as mark],
                keywords=[ast.keyword(arg="stacklevel")],
            ):
                texts[id(mark)] = ast.unparse(filled)
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in MARKS:
                yield node.lineno, texts.get(id(node), "")


def mistake(text: str, version: str = VERSION) -> str:
    """What is wrong with the text of a deprecation in this version; empty if nothing is."""
    found = FACTS.search(text)
    if found is None:
        return f"it does not say all of {EXAMPLE!r}"
    since, end = (tuple(map(int, found.groups()[at : at + 2])) for at in (0, 2))
    now = tuple(map(int, version.split(".")[:2]))
    if end[0] == since[0] and (since[0] > 0 or end[1] < since[1] + 2):
        return "it ends too early: two minor releases later, and from 1.0 on with a major one"
    return "its end has come: remove it" if now >= end else ""


def test_deprecations_of_source_have_their_facts() -> None:
    """In each module of every package that is shipped."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {why}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        if re.search("deprecated|DeprecationWarning", whole := path.read_text("utf-8"))
        for line, text in deprecations(ast.parse(whole))
        if (why := mistake(text))
    ]
    assert wrong == []


def test_deprecation_is_found_and_any_other_form_is_refused() -> None:
    """With a text that stands there, which may have parts to be filled in."""
    filled = "f'{name} is deprecated since 0.3.0 and ends with 0.5.0: use {other}'"
    for text in (repr(EXAMPLE), filled):
        source = f"warnings.warn({text}, DeprecationWarning, stacklevel=2)"
        ((line, found),) = deprecations(ast.parse(source))
        assert (line, mistake(found, "0.4.2")) == (1, "")
        assert "its end has come" in mistake(found, "0.5.0")
    for source in (
        f"@deprecated({EXAMPLE!r})\ndef old(): ...",
        f"@warnings.deprecated({EXAMPLE!r}, category=None)\nclass Old: ...",
        f"warn(message={EXAMPLE!r}, category=DeprecationWarning)",
        f"warnings.warn({EXAMPLE!r}, builtins.PendingDeprecationWarning, stacklevel=2)",
        "warnings.warn(TEXT, DeprecationWarning, stacklevel=2)",
    ):
        ((_, found),) = deprecations(ast.parse(source))
        assert "does not say all" in mistake(found, "0.4.2")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lro.Old is deprecated: use lro.New", "does not say all"),
        ("lro.Old is deprecated since 0.3.0: use lro.New", "does not say all"),
        ("lro.Old is deprecated since 0.3.0 and ends with 0.5.0", "does not say all"),
        ("lro.Old is deprecated since 0.3.0 and ends with 0.4.0: use lro.New", "too early"),
        ("lro.Old is deprecated since 1.3.0 and ends with 1.9.0: use lro.New", "too early"),
        ("lro.Old is deprecated since 0.1.0 and ends with 0.3.0: use lro.New", "has come"),
    ],
)
def test_deprecation_with_a_mistake_is_refused(text: str, why: str) -> None:
    """A fact is missing, the end is too early, or it has come."""
    assert why in mistake(text, "0.3.0")


def test_policy_shows_the_form() -> None:
    """Users and developers read the same example."""
    assert EXAMPLE in (ROOT / "docs" / "explanation" / "versions.md").read_text("utf-8")
