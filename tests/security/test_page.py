"""Each sentence of the security page names a test that proves it."""

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
"""The number of paragraphs at the top that only introduce the page."""


def claims() -> Iterator[str]:
    """Yield the source of each paragraph, list item and table row of the page."""
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip().splitlines()
        if not lines or lines[0].startswith("#"):
            continue
        if lines[0].startswith("|"):
            yield from lines[2:]  # skip the header and its rule
        else:
            yield from re.split(r"\n(?=- )", block.strip())


CLAIMS: Final = list(claims())[INTRODUCTION:]


@pytest.mark.parametrize("claim", CLAIMS, ids=range(len(CLAIMS)))
def test_each_sentence_of_the_security_page_names_a_test(claim: str) -> None:
    """A paragraph's comments name at least one test for each of its sentences."""
    said = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "x", MARK.sub("", claim))
    sentences = max(1, len(SENTENCE_END.findall(said.strip())))
    assert len(MARK.findall(claim)) >= sentences, claim


def test_each_test_named_on_the_security_page_exists() -> None:
    """Each comment of the page names a test that is in the given file."""
    named = {mark for claim in CLAIMS for mark in MARK.findall(claim)}
    assert named
    for path, test in sorted(named):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *(async )?def {test}\(", text, re.MULTILINE), f"{path}::{test}"
