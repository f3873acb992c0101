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
WARNINGS: Final = {"DeprecationWarning", "PendingDeprecationWarning"}
_RELEASE: Final = r"(\d+)\.(\d+)\.0"
FACTS: Final = re.compile(
    rf"\S.* (?:is|are) deprecated since {_RELEASE} and ends? with {_RELEASE}: use \S"
)
EXAMPLE: Final = "lro.Old is deprecated since 0.3.0 and ends with 0.5.0: use lro.New"


def last_name(node: ast.expr) -> str:
    """``warn`` of ``warnings.warn``; empty for what has no name."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Call(func=func):
            return last_name(func)
    return ""


def deprecations(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line of each deprecation, and its text; of one that is not written there, the code."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        warns = last_name(node.func) in {"warn", "warn_explicit"}
        if last_name(node.func) == "deprecated" or (
            warns and WARNINGS.intersection(map(last_name, values))
        ):
            yield node.lineno, text_of(values)


def text_of(values: list[ast.expr]) -> str:
    """The first text among arguments, also within a warning that is made there."""
    for value in values:
        match value:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr():
                return ast.unparse(value)
            case ast.Call(args=inner) if last_name(value) in WARNINGS:
                return text_of(inner)
    return ", ".join(map(ast.unparse, values))


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


@pytest.mark.parametrize(
    "source",
    [
        f"@deprecated({EXAMPLE!r})\ndef old(): ...",
        f"@warnings.deprecated({EXAMPLE!r}, category=None)\nclass Old: ...",
        f"warnings.warn({EXAMPLE!r}, DeprecationWarning, stacklevel=2)",
        f"warn(message={EXAMPLE!r}, category=DeprecationWarning)",
        f"warnings.warn(DeprecationWarning({EXAMPLE!r}))",
        f"warnings.warn({EXAMPLE!r}, builtins.PendingDeprecationWarning)",
        "warnings.warn(f'{name} is deprecated since 0.3.0 and ends with 0.5.0: use {other}', "
        "DeprecationWarning)",
    ],
)
def test_deprecation_is_found_in_each_form(source: str) -> None:
    """As a decorator, as a warning, and with a text that has parts to be filled in."""
    ((line, text),) = deprecations(ast.parse(source))
    assert (line, mistake(text, "0.4.2")) == (1, "")
    assert "its end has come" in mistake(text, "0.5.0")


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


@pytest.mark.parametrize("argument", ["TEXT", "text % name", "''"])
def test_text_that_is_elsewhere_is_refused(argument: str) -> None:
    """The test could not read it."""
    ((_, text),) = deprecations(ast.parse(f"warnings.warn({argument}, DeprecationWarning)"))
    assert "does not say all" in mistake(text)


def test_other_warnings_are_no_deprecations() -> None:
    """Only what announces an end is."""
    source = "warnings.warn('slow', UserWarning); filterwarnings('error', '', DeprecationWarning)"
    assert list(deprecations(ast.parse(source))) == []


def test_policy_shows_the_form() -> None:
    """Users and developers read the same example."""
    assert EXAMPLE in (ROOT / "docs" / "explanation" / "versions.md").read_text("utf-8")
