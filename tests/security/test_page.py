"""Each sentence of the page on security names a test that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/explanation/security.md"
MARK: Final = re.compile(r"<!--\s*([\w./-]+)::(\w+)\s*-->")
SENTENCE_END: Final = re.compile(r"[.!?](?=[\s|)]|$)")
INTRODUCTION: Final = 1
"""The first paragraph says what the page is, and no more."""


def claims() -> Iterator[str]:
    """The paragraphs, list items and table rows of the page, each as one line of its source."""
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip().splitlines()
        if not lines or lines[0].startswith("#"):
            continue
        if lines[0].startswith("|"):
            yield from lines[2:]  # after the header and its rule
        else:
            yield from re.split(r"\n(?=- )", block.strip())


CLAIMS: Final = list(claims())[INTRODUCTION:]


@pytest.mark.parametrize("claim", CLAIMS, ids=range(len(CLAIMS)))
def test_each_sentence_names_a_test(claim: str) -> None:
    """As many tests stand in comments as the claim has sentences, at least one."""
    said = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "x", MARK.sub("", claim))
    sentences = max(1, len(SENTENCE_END.findall(said.strip())))
    assert len(MARK.findall(claim)) >= sentences, claim


def test_each_named_test_exists() -> None:
    """A test that was renamed or removed takes its sentence along."""
    named = {mark for claim in CLAIMS for mark in MARK.findall(claim)}
    assert named
    for path, test in sorted(named):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *(async )?def {test}\(", text, re.MULTILINE), f"{path}::{test}"
